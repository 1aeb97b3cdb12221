//! Devices as a discovery handler reports them (`proto/discovery.proto`, `wit/types.wit`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::grant::Limits;

/// One device a handler sees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Stable and unique among the devices of one handler.
    pub id: String,
    /// The origin of the device; "" if its handler has only one, and for every remote handler.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub origin: String,
    /// The environment variables of brokers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
    /// The mounts of a container that uses the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// The device nodes a container that uses the device gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_specs: Vec<DeviceSpec>,
}

impl Device {
    /// Bytes of its texts.
    pub fn bytes(&self) -> usize {
        self.texts().map(|(_, text)| text.len()).sum()
    }

    /// Checks the number and the length of what it holds.
    ///
    /// # Errors
    /// The exceeded limit, and by which part of the set.
    pub fn check(&self, limits: &Limits) -> Result<(), String> {
        for (what, count) in [
            ("properties", self.properties.len()),
            ("mounts", self.mounts.len()),
            ("device specs", self.device_specs.len()),
        ] {
            if count > limits.properties {
                return Err(format!("{what}: {count} (at most {})", limits.properties));
            }
        }
        let max = limits.string_bytes;
        match self.texts().find(|(_, text)| text.len() > max) {
            Some((what, text)) => Err(format!("{what}: {} bytes (at most {max})", text.len())),
            None => Ok(()),
        }
    }

    fn texts(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let properties = self.properties.iter();
        let properties =
            properties.flat_map(|(name, value)| [("a property's name", name), ("a property's value", value)]);
        let mounts = self.mounts.iter();
        let mounts = mounts.flat_map(|m| [("a mount's path", &m.container_path), ("a mount's path", &m.host_path)]);
        let specs = self.device_specs.iter().flat_map(|spec| {
            [
                ("a device spec's path", &spec.container_path),
                ("a device spec's path", &spec.host_path),
                ("a device spec's permissions", &spec.permissions),
            ]
        });
        [("its id", &self.id), ("its origin", &self.origin)].into_iter().chain(properties).chain(mounts).chain(specs)
    }
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Absolute path inside the container.
    pub container_path: String,
    /// Absolute path on the node.
    pub host_path: String,
    /// Set if the container may only read.
    pub read_only: bool,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceSpec {
    /// Absolute path inside the container.
    pub container_path: String,
    /// Absolute path on the node.
    pub host_path: String,
    /// Device cgroup permissions: any of `r`, `w`, `m`.
    pub permissions: String,
}

/// The result of one round of discovery: all devices, except those of origins that were not reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceSet {
    /// Every device seen, in the handler's order, ids unique.
    pub devices: Vec<Device>,
    /// Origins the round did not find out about: their known devices stay.
    pub kept: BTreeSet<String>,
    /// Ids of devices that were seen but can't be used, such as one that names a path it was not granted: not published,
    /// and if they were before, they stay as they are (rule 35).
    pub withheld: BTreeSet<String>,
    /// The meaning of a known device not being listed.
    pub absence: AbsenceMeaning,
    /// Warnings, in order, bounded by the producer.
    pub notes: Vec<Note>,
    /// Warnings beyond that bound.
    pub notes_dropped: u64,
    /// The number of times that secrets were revealed to the handler, for metrics.
    pub secrets_revealed: u64,
    /// Bytes of memory that the round took of `limits.memory`; 0 for remote handlers.
    pub memory_bytes: u64,
}

impl DeviceSet {
    /// Returns whether the round found no device and warns of something: the devices may be behind that.
    pub fn has_only_warnings(&self) -> bool {
        self.devices.is_empty() && (!self.notes.is_empty() || self.notes_dropped > 0)
    }
}

/// The meaning of a known device not being in a set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AbsenceMeaning {
    /// It is missing.
    #[default]
    Missing,
    /// Only these ids are missing. Sources that may know the others have not reported yet.
    Kept(BTreeSet<String>),
    /// The state is unknown: the handler that reported it has gone (rule 31).
    Unknown,
}

/// A warning of a round that nevertheless succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The origin it is about, or "".
    pub origin: String,
    /// A CamelCase word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

impl Note {
    /// Returns the message, with the origin in front unless the message names it.
    pub fn sentence(&self) -> Cow<'_, str> {
        if self.message.contains(&self.origin) {
            return Cow::Borrowed(&self.message);
        }
        Cow::Owned(format!("{}: {}", self.origin, self.message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_names_its_origin_once() {
        let sentence = |origin: &str, message: &str| {
            let (origin, reason, message) = (origin.to_owned(), "Unreachable".to_owned(), message.to_owned());
            Note { origin, reason, message }.sentence().into_owned()
        };
        assert_eq!(sentence("", "nobody answers"), "nobody answers");
        assert_eq!(sentence("http://a", "nobody answers"), "http://a: nobody answers");
        assert_eq!(sentence("http://a", "nobody answers at http://a/x"), "nobody answers at http://a/x");
    }
}
