//! Devices, which are the payload of a message about them.

use std::collections::BTreeMap;

use akri_model::device::{AbsenceMeaning, Device, DeviceSet, DeviceSpec, Mount, Note};
use postcard::Serializer;
use postcard::ser_flavors::{ExtendFlavor, Flavor as _};
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};

use super::{Bounded, LENGTH, ProtocolError, Reply, bounded_map, malformed, with_length};

/// Properties, mounts and device specs of all devices of a round: each takes 16 bytes of the 16 MiB that a guest may return.
const ELEMENTS: usize = 1 << 20;
/// Bytes that are decoded without a break, for others on the thread.
const AT_ONCE: usize = 64 << 10;
/// Devices of a round; no limit is larger.
pub(super) const DEVICES: usize = 1 << 16;

/// A set of devices without the devices, which are the payload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeviceSetHead {
    /// Number of devices in the payload.
    pub(crate) devices: u32,
    /// See [`DeviceSet::kept`].
    pub(crate) kept: Bounded<String, DEVICES>,
    /// See [`DeviceSet::withheld`].
    pub(crate) withheld: Bounded<String, DEVICES>,
    /// True if the absence of devices means nothing.
    pub(crate) are_all_kept: bool,
    /// See [`DeviceSet::notes`].
    pub(crate) notes: Bounded<Note, 256>,
    /// See [`DeviceSet::notes_dropped`].
    pub(crate) notes_dropped: u64,
    /// See [`DeviceSet::secrets_revealed`].
    pub(crate) secrets_revealed: u64,
    /// See [`DeviceSet::memory_bytes`].
    pub(crate) memory_bytes: u64,
}

/// The encoding of a device, which has all fields: the model's own form, for JSON, leaves out what is empty.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Device")]
struct DeviceEncoding {
    id: String,
    origin: String,
    #[serde(deserialize_with = "properties")]
    properties: BTreeMap<String, String>,
    #[serde(deserialize_with = "elements")]
    mounts: Vec<Mount>,
    #[serde(deserialize_with = "elements")]
    device_specs: Vec<DeviceSpec>,
}

fn properties<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    bounded_map(deserializer, 1024, |value| value)
}

fn elements<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Bounded::<T, 1024>::deserialize(deserializer).map(|list| list.0)
}

/// Splits a set into the message about it and its devices.
pub(crate) fn split(set: DeviceSet) -> (DeviceSetHead, Vec<Device>) {
    let found = DeviceSetHead {
        devices: u32::try_from(set.devices.len()).unwrap_or(u32::MAX),
        kept: set.kept.into_iter().collect(),
        withheld: set.withheld.into_iter().collect(),
        are_all_kept: matches!(set.absence, AbsenceMeaning::Kept(_)),
        notes: Bounded(set.notes),
        notes_dropped: set.notes_dropped,
        secrets_revealed: set.secrets_revealed,
        memory_bytes: set.memory_bytes,
    };
    (found, set.devices)
}

/// Devices that were received so far.
#[derive(Debug, Default)]
pub(crate) struct ReceivedDevices {
    devices: Vec<Device>,
    elements: usize,
}

impl ReceivedDevices {
    /// Decodes devices of a payload until some time has passed. Returns the rest of it. Devices beyond a limit are an error.
    ///
    /// # Errors
    /// If they are no devices.
    pub(crate) fn add_some<'a>(&mut self, payload: &'a [u8]) -> Result<&'a [u8], ProtocolError> {
        let mut rest = payload;
        while !rest.is_empty() && payload.len() - rest.len() < AT_ONCE {
            let mut deserializer = postcard::Deserializer::from_bytes(rest);
            let device = DeviceEncoding::deserialize(&mut deserializer).map_err(malformed)?;
            self.elements += device.properties.len() + device.mounts.len() + device.device_specs.len();
            if self.devices.len() >= DEVICES || self.elements > ELEMENTS {
                return Err(ProtocolError::new("too many devices or properties"));
            }
            self.devices.push(device);
            rest = deserializer.finalize().map_err(malformed)?;
        }
        Ok(rest)
    }

    /// Checks that these are the devices that a reply announces, if it does.
    ///
    /// # Errors
    /// If there are more or fewer.
    pub(crate) fn check(&self, reply: &Reply) -> Result<(), ProtocolError> {
        match reply {
            Reply::Discovered { result: Ok(found), .. } if self.devices.len() != found.devices as usize => {
                Err(ProtocolError::new("other devices than announced"))
            }
            _ => Ok(()),
        }
    }

    /// Joins what [`split`] has separated.
    pub(crate) fn into_set(self, found: DeviceSetHead) -> DeviceSet {
        let absence =
            if found.are_all_kept { AbsenceMeaning::Kept(Default::default()) } else { AbsenceMeaning::Missing };
        DeviceSet {
            devices: self.devices,
            kept: found.kept.0.into_iter().collect(),
            withheld: found.withheld.0.into_iter().collect(),
            absence,
            notes: found.notes.0,
            notes_dropped: found.notes_dropped,
            secrets_revealed: found.secrets_revealed,
            memory_bytes: found.memory_bytes,
        }
    }
}

/// Returns a frame of a message and devices.
///
/// # Errors
/// If it is too large.
pub(crate) fn encode_devices(message: &impl Serialize, devices: &[Device]) -> Result<Vec<u8>, ProtocolError> {
    let frame = postcard::to_extend(message, vec![0; LENGTH]).map_err(malformed)?;
    let mut serializer = Serializer { output: ExtendFlavor::new(frame) };
    for device in devices {
        DeviceEncoding::serialize(device, &mut serializer).map_err(malformed)?;
    }
    with_length(serializer.output.finalize().map_err(malformed)?)
}
