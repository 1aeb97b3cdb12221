//! Places the nodes and mounts of devices in containers as a Configuration says, before they are admitted there (rule 124).

use std::fs;
use std::path::Path;

use akri_model::configuration::Configuration;
use akri_model::container_paths::{self, Links};
use akri_model::device::{DeviceSet, Note};
use akri_model::device_path::covers;
use akri_model::text::clean;

/// Entries of directories that are looked at for links, for all rules together.
const MAX_ENTRIES: usize = 4096;

/// Depth of directories below `/dev` in which links are looked for.
const MAX_DEPTH: usize = 4;

/// Bytes shown of a device's id.
const SHOWN: usize = 256;

/// The rules that no device has a path for, as filters are named.
const UNMATCHED: &str = "`container.paths`, since no device has such a path";

/// Places the devices of a set. A device that can't be placed is withheld, with a note.
pub(crate) fn place(mut set: DeviceSet, configuration: &Configuration, notes: usize) -> DeviceSet {
    if configuration.paths.is_empty() || set.devices.is_empty() {
        return set;
    }
    let patterns = configuration.paths.iter().map(|rule| rule.host_path.as_str());
    let (links, problem) = links(Path::new("/dev"), patterns);
    if let Some(message) = problem {
        set.add_note(Note { origin: String::new(), reason: "TooManyLinks".to_owned(), message }, notes);
    }
    for pattern in container_paths::unmatched(&set.devices, configuration, &links) {
        set.left_out.add(UNMATCHED, pattern);
    }
    for mut device in std::mem::take(&mut set.devices) {
        match container_paths::place(&mut device, configuration, &links) {
            Ok(()) => set.devices.push(device),
            Err(error) => {
                let message = format!("device '{}': {error}", clean(&device.id, SHOWN));
                set.withhold(device, "DeviceRefused", message, notes);
            }
        }
    }
    set
}

/// Returns the links below a directory that patterns cover, by the paths that they lead to, and a message if there are too many entries:
/// links that were found before count.
fn links<'a>(root: &Path, patterns: impl Iterator<Item = &'a str>) -> (Links, Option<String>) {
    let (mut search, mut problem) = (Search { links: Links::new(), left: MAX_ENTRIES }, None);
    for pattern in patterns {
        let fixed = pattern.split('*').next().and_then(|start| start.rsplit_once('/')).map(|(directory, _)| directory);
        let directory = Path::new(fixed.unwrap_or_default());
        if !pattern.contains('*') && directory.starts_with(root) {
            search.take(Path::new(pattern)); // no other entry can be meant
        } else if directory.starts_with(root) && search.search(directory, pattern, MAX_DEPTH).is_err() {
            problem.get_or_insert_with(|| {
                format!(
                    "spec.container.paths: not all links are found for '{pattern}': there are more than {MAX_ENTRIES} files to look at"
                )
            });
        }
    }
    (search.links, problem)
}

struct Search {
    links: Links,
    left: usize,
}

struct TooMany;

impl Search {
    /// Notes where a link leads.
    fn take(&mut self, path: &Path) {
        let real = path.canonicalize().ok().filter(|real| path.is_symlink() && real != path);
        if let (Some(real), Some(text)) = (real.as_deref().and_then(Path::to_str), path.to_str()) {
            self.links.entry(real.to_owned()).or_default().push(text.to_owned());
        }
    }

    /// Searches a directory, and at those in it that may hold what the pattern covers. An unreadable one holds nothing.
    fn search(&mut self, directory: &Path, pattern: &str, depth: usize) -> Result<(), TooMany> {
        let parts = pattern.split('/').count();
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            self.left = self.left.checked_sub(1).ok_or(TooMany)?;
            let path = entry.path();
            let (Some(text), Ok(kind)) = (path.to_str(), entry.file_type()) else { continue };
            if covers(pattern, text) {
                self.take(&path);
            }
            let is_deeper = pattern.ends_with("/**") || text.split('/').count() < parts;
            if kind.is_dir() && is_deeper && depth > 0 {
                self.search(&path, pattern, depth - 1)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use akri_model::container_paths::PathRule;
    use akri_model::device::{Device, DeviceSpec};

    use super::*;

    #[test] // rule 124
    fn links_that_a_pattern_covers_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let text = |name: &str| root.join(name).to_str().unwrap().to_owned();
        fs::create_dir_all(root.join("serial/by-id")).unwrap();
        fs::write(root.join("ttyUSB0"), "").unwrap();
        for link in ["serial/by-id/usb-Acme-if00", "serial/by-id/usb-Other", "zigbee"] {
            symlink(root.join("ttyUSB0"), root.join(link)).unwrap();
        }
        symlink(root.join("absent"), root.join("serial/by-id/usb-Acme-if01")).unwrap();
        let found = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|pattern| text(pattern)).collect();
            let (links, problem) = links(&root, patterns.iter().map(String::as_str));
            assert_eq!(problem, None);
            links
                .into_iter()
                .flat_map(|(to, links)| links.into_iter().map(move |link| (to.clone(), link)))
                .collect::<Vec<_>>()
        };
        let expected = |links: &[&str]| -> Vec<(String, String)> {
            links.iter().map(|link| (text("ttyUSB0"), text(link))).collect()
        };
        assert_eq!(found(&["serial/by-id/usb-Acme*"]), expected(&["serial/by-id/usb-Acme-if00"]));
        assert_eq!(found(&["*/by-id/*Other", "zigbee"]), expected(&["serial/by-id/usb-Other", "zigbee"]));
        assert_eq!(found(&["serial/**"]).len(), 2);
        assert_eq!(found(&["ttyUSB*", "other/**"]), Vec::<(String, String)>::new());
        let elsewhere = links(Path::new("/dev"), [text("zigbee").as_str()].into_iter());
        assert_eq!(elsewhere, (Links::new(), None), "links outside of /dev are none of udev's");
    }

    #[test] // rule 124
    fn links_beyond_a_bound_cause_a_note() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        (0..=MAX_ENTRIES).for_each(|number| fs::write(root.join(number.to_string()), "").unwrap());
        symlink(root.join("0"), root.join("plc")).unwrap();
        let (pattern, plc) = (format!("{}/*", root.display()), root.join("plc").display().to_string());
        let (links, why) = links(&root, [&*pattern, &*plc].into_iter());
        assert!(links.values().flatten().any(|link| *link == plc), "the path of a link needs no search");
        let why = why.unwrap();
        assert!(why.contains(&pattern) && why.contains("more than 4096 files"), "{why}");
    }

    #[test] // rule 124
    fn device_that_can_not_be_placed_is_withheld() {
        let device = |id: &str, serial: Option<&str>| Device {
            id: id.to_owned(),
            properties: serial.map(|serial| ("SERIAL".to_owned(), serial.to_owned())).into_iter().collect(),
            device_specs: vec![DeviceSpec {
                container_path: "/dev/null".into(),
                host_path: "/dev/null".into(),
                permissions: "rw".into(),
            }],
            ..Device::default()
        };
        let rule = PathRule { host_path: "/dev/null".into(), container_path: "/dev/x-{{SERIAL}}".parse().unwrap() };
        let configuration = Configuration { paths: vec![rule], ..Configuration::default() };
        let devices = vec![device("a", Some("1")), device("b", None)];
        let set = place(DeviceSet { devices, ..DeviceSet::default() }, &configuration, 9);
        assert_eq!(set.devices[0].device_specs[0].container_path, "/dev/x-1");
        assert_eq!((set.devices.len(), set.withheld.contains("b")), (1, true));
        let expected =
            "device 'b': spec.container.paths: '/dev/x-{{SERIAL}}': the device has no property 'SERIAL'; it has none";
        assert_eq!(set.notes[0].message, expected);
    }
}
