//! Admission of devices: a handler's results are checked against its grants and against the node's file system.

use std::fs::{FileType, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use akri_model::device::{Device, DeviceSet, Note};
use akri_model::device_path::{is_granted, is_named};
use akri_model::grant::{Grants, Limits};
use akri_model::policy::{self, DeviceRefusal};
use akri_model::text::clean;
use rustix::fs::{major, minor};

/// Bytes shown of a device's id.
const SHOWN: usize = 256;

/// Character devices with these numbers are the node's memory, its ports and its log (Linux, Documentation/admin-guide/
/// devices.txt).
const MEMORY: u32 = 1;
const GUARDED: [u32; 5] = [1, 2, 4, 6, 11];

/// Moves devices that must not be allocated to the withheld ones, with a note for each. Blocks on the file system.
pub fn admit(set: DeviceSet, grants: &Grants, limits: &Limits) -> DeviceSet {
    withhold(set, limits, |device| refusal(device, grants, DeviceRefusal::to_string))
}

/// Like [`admit`], with a function that returns the reason for refusing a device.
pub fn withhold(mut set: DeviceSet, limits: &Limits, refusal: impl Fn(&Device) -> Option<String>) -> DeviceSet {
    let (admitted, refused): (Vec<_>, Vec<_>) = std::mem::take(&mut set.devices)
        .into_iter()
        .map(|device| (refusal(&device), device))
        .partition(|(refusal, _)| refusal.is_none());
    set.devices = admitted.into_iter().map(|(_, device)| device).collect();
    for (refusal, device) in refused {
        let message = format!("device '{}': {}", clean(&device.id, SHOWN), refusal.unwrap_or_default());
        note(&mut set, Note { origin: device.origin, reason: "DeviceRefused".to_owned(), message }, limits);
        set.withheld.insert(device.id);
    }
    set
}

fn note(set: &mut DeviceSet, note: Note, limits: &Limits) {
    if set.notes.len() < limits.notes {
        set.notes.push(note);
    } else {
        set.notes_dropped = set.notes_dropped.saturating_add(1);
    }
}

/// Returns the reason why a device must not be allocated, if any. `describe` words a refusal by the grants.
pub fn refusal(device: &Device, grants: &Grants, describe: impl Fn(&DeviceRefusal) -> String) -> Option<String> {
    if let Err(refusal) = policy::check(device, grants) {
        return Some(describe(&refusal));
    }
    let nodes = device.device_specs.iter().find_map(|spec| node_refusal(&spec.host_path, &grants.device_paths, true));
    nodes.or_else(|| device.mounts.iter().find_map(|mount| node_refusal(&mount.host_path, &grants.mount_paths, false)))
}

/// Checks the file at a granted path. A missing file is accepted: a device node may appear a moment after its device.
fn node_refusal(path: &str, granted: &[String], must_be_device: bool) -> Option<String> {
    let real = match Path::new(path).canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(format!("cannot access '{path}': {error}")),
    };
    let Some(text) = real.to_str().filter(|real| is_granted(real, granted)) else {
        return Some(format!("'{path}' leads to '{}', which is not granted", real.display()));
    };
    match real.symlink_metadata() {
        Ok(metadata) if is_guarded(&metadata) && !is_named(text, granted) => {
            Some(format!("'{path}' is a disk, or the node's memory or log: the grant has to name '{text}' itself"))
        }
        Ok(metadata) if is_allowed(metadata.file_type(), must_be_device || real.starts_with("/dev")) => None,
        Ok(_) => Some(format!("'{path}' is not a character or block device")),
        Err(error) => Some(format!("cannot access '{path}': {error}")),
    }
}

/// Returns whether a file is a disk, memory or the kernel's log, by its type and number.
fn is_guarded(metadata: &Metadata) -> bool {
    let (kind, number) = (metadata.file_type(), metadata.rdev());
    kind.is_block_device() || (kind.is_char_device() && major(number) == MEMORY && GUARDED.contains(&minor(number)))
}

fn is_allowed(kind: FileType, must_be_device: bool) -> bool {
    let device = kind.is_char_device() || kind.is_block_device();
    device || (!must_be_device && (kind.is_file() || kind.is_dir()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use akri_model::device::{DeviceSpec, Mount};

    use super::*;

    fn with_node(id: &str, host_path: &str) -> Device {
        let spec =
            DeviceSpec { container_path: "/dev/x".into(), host_path: host_path.into(), permissions: "rw".into() };
        Device { id: id.into(), device_specs: vec![spec], ..Device::default() }
    }

    fn with_mount(host_path: &Path) -> Device {
        let host_path = host_path.to_str().unwrap().to_owned();
        let mount = Mount { container_path: "/dev/x".into(), host_path, read_only: true };
        Device { id: "m".into(), mounts: vec![mount], ..Device::default() }
    }

    fn admitted(devices: Vec<Device>, paths: &[&str]) -> DeviceSet {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        let grants = Grants { device_paths: paths.clone(), mount_paths: paths, ..Grants::default() };
        admit(DeviceSet { devices, ..DeviceSet::default() }, &grants, &Limits::default())
    }

    #[test]
    fn real_devices_and_absent_ones_are_admitted() {
        let set = admitted(vec![with_node("a", "/dev/null"), with_node("b", "/dev/not-there-yet")], &["/dev/**"]);
        assert_eq!((set.devices.len(), set.withheld.len()), (2, 0));
    }

    #[test] // threat 54
    fn other_files_are_withheld_with_a_note() {
        let set = admitted(vec![with_node("a", "/dev/shm"), with_node("b", "/etc/passwd")], &["/dev/**"]);
        assert!(set.devices.is_empty());
        assert_eq!(set.withheld.iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(set.notes[0].message, "device 'a': '/dev/shm' is not a character or block device");
        assert!(set.notes[1].message.contains("'/etc/passwd' is not covered by grants.devicePaths"));
    }

    #[test] // threat 54
    fn links_out_of_the_grant_and_sockets_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let (link, socket, file) = (root.join("link"), root.join("socket"), root.join("file"));
        symlink("/etc/passwd", &link).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        std::fs::write(&file, "").unwrap();
        let grant = format!("{}/**", root.display());
        for (path, allowed) in [(&link, false), (&socket, false), (&file, true)] {
            let set = admitted(vec![with_mount(path)], &[&grant]);
            assert_eq!(set.devices.len() == 1, allowed, "{} {:?}", path.display(), set.notes);
        }
    }

    #[test] // threat 12
    fn memory_devices_are_recognized_by_number() {
        // An administrator may create nodes with other names.
        let directory = tempfile::tempdir().unwrap();
        let node = directory.path().canonicalize().unwrap().join("camera");
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            &node,
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::Mode::RUSR,
            rustix::fs::makedev(1, 1),
        );
        if made.is_err() {
            return; // without the right to
        }
        let path = node.to_str().unwrap();
        let all = format!("{}/**", directory.path().canonicalize().unwrap().display());
        let set = admitted(vec![with_node("a", path)], &[&all]);
        assert!(set.notes[0].message.contains("the grant has to name"), "{:?}", set.notes);
        assert_eq!(admitted(vec![with_node("a", path)], &[path]).devices.len(), 1);
    }

    #[test] // rule 35
    fn notes_are_bounded() {
        let many = (0..50).map(|n| with_node(&n.to_string(), "/dev/shm")).collect();
        let set = admitted(many, &["/dev/**"]);
        assert_eq!((set.notes.len(), set.notes_dropped, set.withheld.len()), (10, 40, 50));
    }
}
