//! Admission of devices: a handler's results are checked against its grants and against the node's file system.

use std::fs::{FileType, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use akri_model::configuration::Configuration;
use akri_model::device::{Device, DeviceSet, Note};
use akri_model::device_path::{self, is_granted, is_named};
use akri_model::discovery::RoundError;
use akri_model::grant::{Grants, Limits};
use akri_model::policy::{self, DeviceRefusal};
use akri_model::text::clean;
use rustix::fs::{major, minor};

use crate::container_paths::place;

/// Bytes shown of a device's id.
const SHOWN: usize = 256;

/// Character devices with these numbers are the node's memory, its ports and its log (Linux, Documentation/admin-guide/
/// devices.txt).
const MEMORY: u32 = 1;
const GUARDED: [u32; 5] = [1, 2, 4, 6, 11];
/// Character devices with these major numbers are disks and tapes (`st`, `sg`, `ht`, `mtd`, `raw`, `osst`) and registers of processors.
const GUARDED_MAJORS: [u32; 8] = [9, 21, 37, 90, 162, 202, 203, 206];

/// Places devices in containers as their Configuration says, and moves those that must not be allocated to the withheld ones,
/// with a note for each. Blocks on the file system.
///
/// # Errors
/// If the round is over meanwhile.
pub fn admit(
    set: DeviceSet,
    configuration: &Configuration,
    grants: &Grants,
    limits: &Limits,
    is_over: impl Fn() -> bool,
) -> Result<DeviceSet, RoundError> {
    withhold(set, configuration, limits, |device| refusal(device, grants, DeviceRefusal::to_string), is_over)
}

/// Like [`admit`], with a function that returns the reason for refusing a device.
///
/// # Errors
/// As [`admit`].
pub fn withhold(
    set: DeviceSet,
    configuration: &Configuration,
    limits: &Limits,
    refusal: impl Fn(&Device) -> Option<String>,
    is_over: impl Fn() -> bool,
) -> Result<DeviceSet, RoundError> {
    let mut set = place(set, configuration, limits.notes);
    for device in std::mem::take(&mut set.devices) {
        if is_over() {
            return Err(RoundError::LimitExceeded(
                "checking the paths of its devices takes longer than a round".to_owned(),
            ));
        }
        let Some(refusal) = refusal(&device) else {
            if let Some(path) = missing_node(&device) {
                let message =
                    format!("device '{}': there is no '{path}', which its containers need", clean(&device.id, SHOWN));
                let note = Note { origin: device.origin.clone(), reason: "NodeMissing".to_owned(), message };
                set.add_note(note, limits.notes);
            }
            set.devices.push(device);
            continue;
        };
        let message = format!("device '{}': {refusal}", clean(&device.id, SHOWN));
        set.withhold(device, "DeviceRefused", message, limits.notes);
    }
    Ok(set)
}

/// Returns the reason why a device must not be allocated, if any. `describe` words a refusal by the grants.
pub fn refusal(device: &Device, grants: &Grants, describe: impl Fn(&DeviceRefusal) -> String) -> Option<String> {
    if let Err(refusal) = policy::check(device, grants) {
        return Some(describe(&refusal));
    }
    let nodes = device.device_specs.iter().find_map(|spec| node_refusal(&spec.host_path, &grants.device_paths, true));
    nodes.or_else(|| device.mounts.iter().find_map(|mount| node_refusal(&mount.host_path, &grants.mount_paths, false)))
}

/// Returns a device node that is not there: it may appear a moment after its device, or be misspelt.
fn missing_node(device: &Device) -> Option<&str> {
    let is_missing =
        |path: &str| Path::new(path).symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    device.device_specs.iter().map(|spec| spec.host_path.as_str()).find(|path| is_missing(path))
}

/// Checks the file at a granted path. A device node may be missing ([`missing_node`]).
fn node_refusal(path: &str, granted: &[String], must_be_device: bool) -> Option<String> {
    let real = match real_path(Path::new(path)) {
        Ok(real) => real,
        Err(error) => return Some(format!("cannot access '{path}': {error}")),
    };
    let Some(text) = real.to_str().filter(|real| is_granted(real, granted)) else {
        return Some(format!("'{path}' leads to '{}', which is not granted", real.display()));
    };
    let must_be_device = must_be_device || real.starts_with("/dev");
    match real.symlink_metadata() {
        Ok(metadata) if is_guarded(&metadata) && !is_named(text, granted) => {
            Some(format!("'{path}' is a disk, or the node's memory or log: the grant has to name '{text}' itself"))
        }
        Ok(metadata) if is_allowed(metadata.file_type(), must_be_device) => None,
        Ok(_) => Some(format!("'{path}' is not a character or block device")),
        Err(error) if error.kind() == io::ErrorKind::NotFound && must_be_device => None,
        Err(error) => Some(format!("cannot access '{path}': {error}")),
    }
}

/// Returns the path without links, also of a missing file.
///
/// # Errors
/// If a link on the way leads nowhere: on the node, or later, it may lead anywhere.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Err(error), Some(directory), Some(name))
            if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() =>
        {
            Ok(real_path(directory)?.join(name))
        }
        (real, ..) => real,
    }
}

/// Returns whether a file is a disk, memory or the kernel's log, by its type and number, or by the kernel's name for it.
fn is_guarded(metadata: &Metadata) -> bool {
    let (kind, number) = (metadata.file_type(), metadata.rdev());
    let (major, minor) = (major(number), minor(number));
    let is_numbered = GUARDED_MAJORS.contains(&major) || (major == MEMORY && GUARDED.contains(&minor));
    kind.is_block_device() || (kind.is_char_device() && (is_numbered || is_guarded_by_kernel_name(major, minor)))
}

fn is_guarded_by_kernel_name(major: u32, minor: u32) -> bool {
    let uevent = fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/uevent")).unwrap_or_default();
    let name = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    name.is_some_and(|name| device_path::is_guarded(&format!("/dev/{name}")))
}

fn is_allowed(kind: FileType, must_be_device: bool) -> bool {
    let device = kind.is_char_device() || kind.is_block_device();
    device || (!must_be_device && (kind.is_file() || kind.is_dir()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
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
        let set = DeviceSet { devices, ..DeviceSet::default() };
        admit(set, &Configuration::default(), &grants, &Limits::default(), || false).unwrap()
    }

    #[test] // rule 134, threat 59
    fn check_of_paths_ends_with_the_round() {
        let (devices, checked) = ((0..100).map(|n| with_node(&n.to_string(), "/dev/null")).collect(), Cell::new(0));
        let is_over = || checked.replace(checked.get() + 1) == 10;
        let set = DeviceSet { devices, ..DeviceSet::default() };
        let (configuration, grants) = (Configuration::default(), Grants::default());
        let error = admit(set, &configuration, &grants, &Limits::default(), is_over).unwrap_err();
        assert!(matches!(error, RoundError::LimitExceeded(_)), "{error}");
        assert_eq!(checked.get(), 11);
    }

    #[test]
    fn real_devices_and_absent_ones_are_admitted() {
        let set = admitted(vec![with_node("a", "/dev/null"), with_node("b", "/dev/not-there-yet")], &["/dev/**"]);
        assert_eq!((set.devices.len(), set.withheld.len()), (2, 0));
        let [Note { reason, message, .. }] = set.notes.as_slice() else { panic!("{:?}", set.notes) };
        assert_eq!(reason, "NodeMissing");
        assert_eq!(message, "device 'b': there is no '/dev/not-there-yet', which its containers need");
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

    /// In a container they lead nowhere, and on its node to sockets of services.
    #[test] // rule 137, threat 54
    fn links_that_lead_nowhere_and_missing_mounts_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for (link, target) in [("log", "/run/not-here/socket"), ("directory", "/run/not-here"), ("inside", "absent")] {
            symlink(target, root.join(link)).unwrap();
        }
        let grant = format!("{}/**", root.display());
        for (path, as_node) in [
            ("log", false),
            ("directory", false),
            ("directory/socket", false),
            ("inside", false),
            ("absent", true),
            ("absent/too", true),
        ] {
            let path = root.join(path);
            let node = admitted(vec![with_node("a", path.to_str().unwrap())], &[&grant]);
            assert_eq!(node.devices.len() == 1, as_node, "{} {:?}", path.display(), node.notes);
            let mount = admitted(vec![with_mount(&path)], &[&grant]);
            assert!(mount.notes[0].message.contains("cannot access"), "{} {mount:?}", path.display());
        }
    }

    #[test] // rule 137, threat 12
    fn disks_and_memory_are_recognized_by_number() {
        // An administrator may create nodes with other names.
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let all = format!("{}/**", root.display());
        for (major, minor) in [(1, 1), (1, 4), (9, 0), (21, 0), (90, 0), (162, 1)] {
            let node = root.join(format!("camera-{major}-{minor}"));
            let number = rustix::fs::makedev(major, minor);
            let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::RUSR);
            if rustix::fs::mknodat(rustix::fs::CWD, &node, kind, mode, number).is_err() {
                return; // without the right to
            }
            let path = node.to_str().unwrap();
            let set = admitted(vec![with_node("a", path)], &[&all]);
            assert!(set.notes[0].message.contains("the grant has to name"), "{major}:{minor} {set:?}");
            assert_eq!(admitted(vec![with_node("a", path)], &[path]).devices.len(), 1);
        }
    }

    #[test] // rule 35
    fn notes_are_bounded() {
        let many = (0..50).map(|n| with_node(&n.to_string(), "/dev/shm")).collect();
        let set = admitted(many, &["/dev/**"]);
        assert_eq!((set.notes.len(), set.notes_dropped, set.withheld.len()), (10, 40, 50));
    }
}
