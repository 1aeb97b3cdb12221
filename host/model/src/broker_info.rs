//! Rules about what brokers report of their devices: small files in a directory of the claim, which the agent publishes in
//! `status.brokerInfo` of the Instance (rule 39). A container can write anything there, so that everything has a bound.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::device::Mount;
use crate::edits::ContainerEdits;
use crate::names::{Key, slot_name, variable_suffix};
use crate::text::clean;

/// Files of one directory that are published.
pub const MAX_FILES: usize = 16;

/// Longest file, in bytes.
pub const MAX_FILE: usize = 4 << 10;

/// Longest name of a file.
pub const MAX_NAME: usize = 63;

/// Limit for one node in one Instance, in bytes of JSON.
pub const MAX_OF_NODE: usize = 128 << 10;

/// Limit for all nodes together in one Instance, in bytes of JSON. API servers store objects of up to 1.5 MiB, which
/// must also hold the claims.
pub const MAX_OF_INSTANCE: usize = 512 << 10;

/// The newest directories of a slot that are kept: containers of one pod are allocated one after the other before the first
/// of them starts, and may get the same slot (rule 7).
pub const MAX_GENERATIONS: usize = 16;

/// Refused files that are named in a message.
const NAMED: usize = 3;

/// The path of the directory in containers.
const IN_CONTAINER: &str = "/run/akri/broker-info";

/// The variable with the directory's path in the container.
const VARIABLE: &str = "AKRI_BROKER_INFO_DIR";

/// The contents of files by name.
pub type Files = BTreeMap<String, String>;

/// The directory of a claim. Its text, `<namespace>.<slot name>.<generation>`, is the name of the directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimDirectory {
    /// The Instance.
    pub instance: Key,
    /// The slot.
    pub slot: u32,
    /// The generation of the claim.
    pub generation: u64,
}

impl fmt::Display for ClaimDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.instance.namespace, slot_name(&self.instance.name, self.slot), self.generation)
    }
}

impl ClaimDirectory {
    /// Parses the name of a directory; `None` if it is not one of a claim. A namespace has no dots, and the name of an Instance
    /// may have some.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, rest) = text.split_once('.')?;
        let (slot, generation) = rest.rsplit_once('.')?;
        let (instance, slot) = slot.rsplit_once('-')?;
        let instance = Key::new(namespace, instance);
        let parsed = Self { instance, slot: slot.parse().ok()?, generation: generation.parse().ok()? };
        (parsed.to_string() == text).then_some(parsed)
    }

    /// Adds the directory to the edits of the slot's container: a mount, and its path as a variable with and without the hash
    /// of the Instance. `host_path` is the directory on the node.
    pub fn add_to(&self, edits: &mut ContainerEdits, host_path: String, hash: &str) {
        let container_path = format!("{IN_CONTAINER}/{}", slot_name(&self.instance.name, self.slot));
        for name in [VARIABLE.to_owned(), format!("{VARIABLE}{}", variable_suffix(hash))] {
            edits.env.insert(name, container_path.clone());
        }
        edits.mounts.push(Mount { container_path, host_path, read_only: false });
    }
}

/// The reason why a file is not published.
pub type FileRefusal = &'static str;

const BAD_NAME: FileRefusal = "has a name that is not 1 to 63 letters, digits, '-', '_' and '.'";
/// A link, a FIFO, a directory or a device.
pub const NOT_REGULAR: FileRefusal = "is not a regular file";
/// A file that exceeds [`MAX_FILE`].
pub const TOO_LONG: FileRefusal = "is longer than 4 KiB";
/// A binary file.
pub const NOT_UTF8: FileRefusal = "is not UTF-8";
/// A file beside [`MAX_FILES`] others.
pub const TOO_MANY: FileRefusal = "is beyond the first 16 files";
/// A file whose mode does not let the agent read it.
pub const UNREADABLE: FileRefusal = "can't be read by the agent: make it readable for everybody";
const TOO_MUCH: FileRefusal = "is beyond the 128 KiB that a node may publish in one Instance";

/// The files of a directory that may be published, and those that may not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// The files to publish.
    pub files: Files,
    /// The refused files by name, up to a bound.
    pub refused: BTreeMap<String, FileRefusal>,
}

impl Reading {
    /// Reads the directory whose entries have these names, with a function that returns the bytes of a regular file, at most
    /// one more than [`MAX_FILE`]. Names that begin with a dot are skipped: a file can be written under one and renamed.
    pub fn of(names: &BTreeSet<String>, read: impl Fn(&str) -> Result<Vec<u8>, FileRefusal>) -> Self {
        let mut reading = Self::default();
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            match reading.text(name, &read) {
                Ok(text) => drop(reading.files.insert(name.clone(), text)),
                Err(refusal) => reading.refuse(name, refusal),
            }
        }
        reading
    }

    fn text(&self, name: &str, read: impl Fn(&str) -> Result<Vec<u8>, FileRefusal>) -> Result<String, FileRefusal> {
        if !is_file_name(name) {
            return Err(BAD_NAME);
        }
        if self.files.len() >= MAX_FILES {
            return Err(TOO_MANY);
        }
        let bytes = read(name)?;
        if bytes.len() > MAX_FILE {
            return Err(TOO_LONG);
        }
        String::from_utf8(bytes).map_err(|_| NOT_UTF8)
    }

    fn refuse(&mut self, name: &str, refusal: FileRefusal) {
        if self.refused.len() < MAX_FILES {
            self.refused.insert(clean(name, MAX_NAME), refusal);
        }
    }

    /// Describes the refused files and the reasons; `None` if all are fine.
    pub fn refusals(&self) -> Option<String> {
        let one = |(name, refusal): (&String, &FileRefusal)| format!("'{name}' {refusal}");
        let mut lines: Vec<String> = self.refused.iter().take(NAMED).map(one).collect();
        if self.refused.len() > NAMED {
            lines.push("and more".to_owned());
        }
        (!lines.is_empty()).then(|| lines.join("; "))
    }
}

fn is_file_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Leaves out the files of a node that exceed [`MAX_OF_NODE`] in one Instance, by slot. The lowest slots come first.
pub fn limit(readings: &mut BTreeMap<u32, Reading>) {
    let mut left = MAX_OF_NODE;
    for reading in readings.values_mut() {
        let exceeds = |name: &String, text: &mut String| {
            let bytes = json_length(name) + json_length(text);
            let exceeds = bytes > left;
            left -= if exceeds { 0 } else { bytes };
            exceeds
        };
        let beyond = reading.files.extract_if(.., exceeds).map(|(name, _)| name);
        for name in beyond.collect::<Vec<_>>() {
            reading.refuse(&name, TOO_MUCH);
        }
    }
}

/// Returns the length of a text as JSON, with its quotes and a separator: a control character takes six bytes.
fn json_length(text: &str) -> usize {
    serde_json::Value::from(text).to_string().len() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn directory(namespace: &str, instance: &str) -> ClaimDirectory {
        ClaimDirectory { instance: Key::new(namespace, instance), slot: 12, generation: 7 }
    }

    #[test]
    fn directory_names_are_read_back() {
        for (directory, name) in [
            (directory("default", "cam-8120fe"), "default.cam-8120fe-12.7"),
            (directory("a-b", "my.cam-8120fe"), "a-b.my.cam-8120fe-12.7"),
        ] {
            assert_eq!(directory.to_string(), name);
            assert_eq!(ClaimDirectory::parse(name), Some(directory));
        }
        for other in
            ["", "a", "default.cam.7", "default.cam-x.7", "default.cam-1.x", "default.cam-01.7", "..", "a.b-1.+7"]
        {
            assert_eq!(ClaimDirectory::parse(other), None, "{other}");
        }
    }

    #[test]
    fn newest_directory_of_a_slot_is_the_last() {
        let of = |generation| ClaimDirectory { generation, ..directory("default", "cam-1") };
        assert!(of(9) < of(10));
    }

    #[test]
    fn container_finds_the_directory_of_each_slot() {
        let mut edits = ContainerEdits::default();
        directory("default", "cam-8120fe").add_to(&mut edits, "/state/d".into(), "8120fe");
        let path = "/run/akri/broker-info/cam-8120fe-12";
        let mount = Mount { container_path: path.into(), host_path: "/state/d".into(), read_only: false };
        assert_eq!(edits.mounts, [mount]);
        let env: Vec<(&str, &str)> = edits.env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(env, [("AKRI_BROKER_INFO_DIR", path), ("AKRI_BROKER_INFO_DIR_8120FE", path)]);
    }

    #[test] // rule 39
    fn files_with_bad_names_or_contents_are_refused() {
        let long = "x".repeat(64);
        let all = names(&["ok", "a b", "ü", "", &long, "binary", "big", "link", ".part", "..", "A-1_.z"]);
        let reading = Reading::of(&all, |name| match name {
            "binary" => Ok(vec![0xff, 0xfe]),
            "big" => Ok(vec![b'x'; MAX_FILE + 1]),
            "link" => Err(NOT_REGULAR),
            "ok" => Ok(vec![b'x'; MAX_FILE]),
            _ => Ok("text\n\0".into()),
        });
        assert_eq!(reading.files.keys().collect::<Vec<_>>(), ["A-1_.z", "ok"]);
        let refused: Vec<(&str, FileRefusal)> =
            reading.refused.iter().map(|(name, why)| (name.as_str(), *why)).collect();
        let long = &long[..63];
        assert_eq!(
            refused,
            [
                ("", BAD_NAME),
                ("a b", BAD_NAME),
                ("big", TOO_LONG),
                ("binary", NOT_UTF8),
                ("link", NOT_REGULAR),
                (long, BAD_NAME),
                ("ü", BAD_NAME),
            ]
        );
        let refusals = reading.refusals().unwrap();
        assert!(refusals.ends_with("'big' is longer than 4 KiB; and more"), "{refusals}");
        assert_eq!(Reading::default().refusals(), None);
    }

    #[test]
    fn only_so_many_files_are_read() {
        let all: BTreeSet<String> = (0..1000).map(|number| format!("f{number:04}")).collect();
        let read = std::cell::Cell::new(0);
        let reading = Reading::of(&all, |_| {
            read.set(read.get() + 1);
            Ok(Vec::new())
        });
        assert_eq!((reading.files.len(), read.get(), reading.refused.len()), (MAX_FILES, MAX_FILES, MAX_FILES));
        assert_eq!(reading.refused["f0016"], TOO_MANY);
    }

    #[test] // rule 39
    fn node_publishes_a_bounded_amount_per_instance() {
        let full = || Reading::of(&(0..16).map(|n| format!("f{n}")).collect(), |_| Ok(vec![b'x'; MAX_FILE]));
        let mut readings: BTreeMap<u32, Reading> = (0..5).map(|slot| (slot, full())).collect();
        limit(&mut readings);
        assert_eq!(readings[&0].files.len(), 16);
        assert!(readings[&4].files.is_empty() && readings[&4].refused["f0"] == TOO_MUCH);
        let files = readings.values().flat_map(|reading| &reading.files);
        let total: usize = files.map(|(name, text)| json_length(name) + json_length(text)).sum();
        assert!(total <= MAX_OF_NODE && total > MAX_OF_NODE - 2 * MAX_FILE, "{total}");
    }
}
