//! Devices as a discovery handler reports them (`proto/discovery.proto`, `wit/types.wit`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::{Deserialize, Serialize};

use crate::discovery::RoundError;
use crate::grant::Limits;
use crate::left_out::LeftOut;
use crate::text::clean;

/// One device a handler sees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, &String)> {
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The devices that filters of the details left out.
    pub left_out: LeftOut,
    /// The number of times that secrets were revealed to the handler, for metrics.
    pub secrets_revealed: u64,
    /// Bytes of memory that the round took of `limits.memory`; 0 for remote handlers.
    pub memory_bytes: u64,
}

impl DeviceSet {
    /// Adds a note, or counts it if there are so many already.
    pub fn add_note(&mut self, note: Note, most: usize) {
        if self.notes.len() < most {
            self.notes.push(note);
        } else {
            self.notes_dropped = self.notes_dropped.saturating_add(1);
        }
    }

    /// Withholds a device, so that no container gets it, and notes why.
    pub fn withhold(&mut self, device: Device, reason: &str, message: String, most_notes: usize) {
        self.add_note(Note { origin: device.origin, reason: reason.to_owned(), message }, most_notes);
        self.withheld.insert(device.id);
    }

    /// Returns whether the round found no device and warns of something: the devices may be behind that.
    pub fn has_only_warnings(&self) -> bool {
        self.devices.is_empty() && (!self.notes.is_empty() || self.notes_dropped > 0)
    }

    /// Checks the result of a component: its devices against the limits of the round, and that each has an id of its own.
    ///
    /// # Errors
    /// [`RoundError::LimitExceeded`] with the limit, or [`RoundError::InvalidResult`].
    pub fn check(&self, limits: &Limits) -> Result<(), RoundError> {
        for (what, count) in [("devices", self.devices.len() + self.withheld.len()), ("kept origins", self.kept.len())]
        {
            if count > limits.devices {
                return Err(RoundError::LimitExceeded(format!("{what}: {count} (at most {})", limits.devices)));
            }
        }
        if self.kept.iter().chain(&self.withheld).any(|text| text.len() > limits.string_bytes) {
            return Err(RoundError::LimitExceeded("a kept origin or a withheld id is too long".to_owned()));
        }
        let mut ids = HashSet::with_capacity(self.devices.len());
        for device in &self.devices {
            let id = clean(&device.id, 64);
            if id.is_empty() {
                return Err(RoundError::InvalidResult("a device has an empty id".to_owned()));
            }
            device.check(limits).map_err(|what| RoundError::LimitExceeded(format!("device `{id}`: {what}")))?;
            if !ids.insert(device.id.as_str()) {
                let why = format!("two devices have the id `{id}`; list each device once, with an id of its own");
                return Err(RoundError::InvalidResult(why));
            }
        }
        Ok(())
    }
}

/// The meaning of a known device not being in a set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    use proptest::prelude::*;

    use super::*;

    fn device(id: &str) -> Device {
        Device { id: id.to_owned(), ..Device::default() }
    }

    fn set(devices: Vec<Device>) -> DeviceSet {
        DeviceSet { devices, ..DeviceSet::default() }
    }

    fn refused(change: impl FnOnce(&mut Device)) -> String {
        let mut changed = device("d");
        change(&mut changed);
        set(vec![device("first"), changed]).check(&Limits::default()).unwrap_err().to_string()
    }

    #[test] // threat 22
    fn results_over_a_limit_are_refused_by_name() {
        let long = "x".repeat(4097);
        let mount = Mount { container_path: long.clone(), host_path: String::new(), read_only: true };
        let spec = DeviceSpec { container_path: String::new(), host_path: String::new(), permissions: long.clone() };
        assert_eq!(refused(|d| d.id = String::new()), "invalid result: a device has an empty id");
        assert_eq!(
            refused(|d| d.id = "first".to_owned()),
            "invalid result: two devices have the id `first`; list each device once, with an id of its own"
        );
        assert!(refused(|d| d.id = long.clone()).contains("its id: 4097 bytes"));
        assert!(refused(|d| d.origin = long.clone()).contains("its origin"));
        let properties = || (0..65).map(|number: i32| (number.to_string(), String::new())).collect();
        assert!(refused(|d| d.properties = properties()).contains("properties: 65"));
        assert!(refused(|d| d.properties = [(long.clone(), String::new())].into()).contains("property's name"));
        assert!(refused(|d| d.properties = [(String::new(), long.clone())].into()).contains("property's value"));
        assert!(refused(|d| d.mounts = vec![mount.clone(); 65]).contains("mounts: 65"));
        assert!(refused(|d| d.mounts = vec![mount.clone()]).contains("a mount's path"));
        assert!(refused(|d| d.device_specs = vec![spec.clone(); 65]).contains("device specs: 65"));
        assert!(refused(|d| d.device_specs = vec![spec.clone()]).contains("permissions"));
        let many = set((0..4097).map(|number| device(&number.to_string())).collect());
        assert_eq!(
            many.check(&Limits::default()),
            Err(RoundError::LimitExceeded("devices: 4097 (at most 4096)".to_owned()))
        );
    }

    #[test] // threat 22
    fn kept_origins_and_withheld_ids_are_within_the_limits() {
        let limits = Limits { devices: 2, string_bytes: 4, ..Limits::default() };
        for (texts, is_good) in [(vec!["a", "b"], true), (vec!["a", "b", "c"], false), (vec!["texts"], false)] {
            let texts: BTreeSet<String> = texts.into_iter().map(str::to_owned).collect();
            let kept = DeviceSet { kept: texts.clone(), ..DeviceSet::default() };
            let withheld = DeviceSet { withheld: texts, ..DeviceSet::default() };
            assert_eq!(kept.check(&limits).is_ok(), is_good, "{kept:?}");
            assert_eq!(withheld.check(&limits).is_ok(), is_good, "{withheld:?}");
        }
    }

    #[test]
    fn device_exactly_at_the_limits_passes() {
        let mut full = device(&"x".repeat(4096));
        full.properties = (0..64).map(|number| (number.to_string(), "x".repeat(4096))).collect();
        assert_eq!(set(vec![full]).check(&Limits::default()), Ok(()));
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![".{0,3}", Just("x".repeat(64)), Just("x".repeat(65)), Just("\0\u{1b}[2J\n".to_owned())]
    }

    prop_compose! {
        fn any_device()(
            (id, origin) in (text(), text()),
            properties in prop::collection::btree_map(text(), text(), 0..6),
            mounts in prop::collection::vec((text(), text(), any::<bool>()), 0..6),
            specs in prop::collection::vec((text(), text(), text()), 0..6),
        ) -> Device {
            let mount = |(container_path, host_path, read_only)| Mount { container_path, host_path, read_only };
            let spec = |(container_path, host_path, permissions)| DeviceSpec { container_path, host_path, permissions };
            let mounts = mounts.into_iter().map(mount).collect();
            let device_specs = specs.into_iter().map(spec).collect();
            Device { id, origin, properties, mounts, device_specs }
        }
    }

    proptest! {
        #[test]
        fn accepted_devices_keep_to_the_limits(found in prop::collection::vec(any_device(), 0..6)) {
            let limits = Limits { devices: 4, properties: 4, string_bytes: 64, ..Limits::default() };
            let set = set(found);
            if set.check(&limits).is_ok() {
                let ids: HashSet<&str> = set.devices.iter().map(|device| device.id.as_str()).collect();
                prop_assert!(ids.len() == set.devices.len() && ids.len() <= 4 && !ids.contains(""));
                for device in &set.devices {
                    prop_assert!(device.properties.len().max(device.mounts.len()).max(device.device_specs.len()) <= 4);
                    let properties = device.properties.iter().flat_map(|(name, value)| [name, value]);
                    let mounts = device.mounts.iter().flat_map(|m| [&m.container_path, &m.host_path]);
                    let specs = device.device_specs.iter().flat_map(|s| [&s.host_path, &s.permissions]);
                    let mut texts = [&device.id, &device.origin].into_iter().chain(properties).chain(mounts).chain(specs);
                    prop_assert!(texts.all(|text| text.len() <= 64));
                }
            }
        }
    }

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
