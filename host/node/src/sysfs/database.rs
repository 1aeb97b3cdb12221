//! udev's database: one file per device below `/run/udev/data`, as systemd-udevd writes it.
//!
//! Lines are `E:KEY=VALUE` (a property), `S:link` (a link below /dev), `G:tag` (a tag it ever had), `Q:tag` (a tag it has
//! now), `I:usec` (when it was set up) and others that no rule can see.

use std::collections::BTreeMap;

/// The database's data about a device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// In the order of the file, `DEVLINKS`, `TAGS`, `CURRENT_TAGS` and `USEC_INITIALIZED` last.
    pub(super) properties: Vec<(String, String)>,
    pub(super) tags: Vec<String>,
}

/// The name of a device's file: `b7:0`, `c81:0`, `n3` or `+usb:1-1`.
///
/// `kernel_name` is the last component of the path, as the kernel wrote it.
pub(super) fn file_name(subsystem: &str, kernel_name: &str, uevent: &BTreeMap<String, String>) -> String {
    match (uevent.get("MAJOR"), uevent.get("MINOR"), uevent.get("IFINDEX")) {
        (Some(major), Some(minor), _) => {
            let kind = if subsystem == "block" { 'b' } else { 'c' };
            format!("{kind}{major}:{minor}")
        }
        (_, _, Some(index)) => format!("n{index}"),
        _ => format!("+{subsystem}:{kernel_name}"),
    }
}

/// Reads a file; lines it does not know are passed over.
pub(super) fn parse(text: &str) -> Record {
    let mut record = Record::default();
    let (mut links, mut current, mut since) = (Vec::new(), Vec::new(), None);
    for line in text.lines() {
        match line.split_once(':') {
            Some(("E", pair)) => record.properties.extend(pair.split_once('=').map(owned)),
            Some(("S", link)) => links.push(format!("/dev/{link}")),
            Some(("G", tag)) => record.tags.push(tag.to_owned()),
            Some(("Q", tag)) => current.push(tag.to_owned()),
            Some(("I", usec)) => since = Some(usec),
            _ => {}
        }
    }
    let tags = list(&record.tags);
    let more = [
        ("DEVLINKS", (!links.is_empty()).then(|| links.join(" "))),
        ("TAGS", tags),
        ("CURRENT_TAGS", list(&current)),
        ("USEC_INITIALIZED", since.map(str::to_owned)),
    ];
    record.properties.extend(more.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    record
}

fn owned((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

/// Tags the way udev puts them into a property: `:a:b:`.
fn list(tags: &[String]) -> Option<String> {
    (!tags.is_empty()).then(|| format!(":{}:", tags.join(":")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs<C: FromIterator<(String, String)>>(of: &[(&str, &str)]) -> C {
        of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn files_are_named_as_udev_names_them() {
        let node: BTreeMap<_, _> = pairs(&[("MAJOR", "81"), ("MINOR", "0")]);
        for (subsystem, name, uevent, file) in [
            ("video4linux", "video0", node.clone(), "c81:0"),
            ("block", "sda", pairs(&[("MAJOR", "8"), ("MINOR", "0"), ("IFINDEX", "4")]), "b8:0"),
            ("net", "eth0", pairs(&[("IFINDEX", "3")]), "n3"),
            ("usb", "1-1", pairs(&[]), "+usb:1-1"),
            ("block", "cciss!c0d0", pairs(&[]), "+block:cciss!c0d0"),
        ] {
            assert_eq!(file_name(subsystem, name, &uevent), file);
        }
    }

    #[test]
    fn file_gives_properties_links_and_tags() {
        let text = "S:v4l/by-id/usb-cam\nS:v4l/by-path/pci\nI:4711\nE:ID_SERIAL=cam=1\nE:broken\nG:uaccess\nG:seat\n\
                    Q:seat\nV:1\nL:0\nnonsense\n";
        let record = parse(text);
        assert_eq!(record.tags, ["uaccess", "seat"]);
        let expected = [
            ("ID_SERIAL", "cam=1"),
            ("DEVLINKS", "/dev/v4l/by-id/usb-cam /dev/v4l/by-path/pci"),
            ("TAGS", ":uaccess:seat:"),
            ("CURRENT_TAGS", ":seat:"),
            ("USEC_INITIALIZED", "4711"),
        ];
        assert_eq!(record.properties, pairs::<Vec<_>>(&expected));
    }

    #[test]
    fn empty_file_gives_nothing() {
        assert_eq!(parse(""), Record::default());
    }
}
