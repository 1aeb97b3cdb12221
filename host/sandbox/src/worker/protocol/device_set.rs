//! Devices, which are the payload of a message about them.

use std::collections::BTreeMap;

use akri_model::device::{AbsenceMeaning, Device, DeviceSet, DeviceSpec, Mount, Note};
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};

use super::{Bounded, LENGTH, ProtocolError, bounded_map, malformed, with_length};

/// Properties, mounts and device specs of all devices of a round: each takes 16 bytes of the 16 MiB that a guest may return.
const ELEMENTS: usize = 1 << 20;
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

/// A device of the payload, as it is sent. The model's own form for JSON leaves out what is empty, which this format can't.
#[derive(Serialize)]
struct SentDevice<'a> {
    id: &'a str,
    origin: &'a str,
    properties: &'a BTreeMap<String, String>,
    mounts: &'a [Mount],
    device_specs: &'a [DeviceSpec],
}

impl<'a> From<&'a Device> for SentDevice<'a> {
    fn from(device: &'a Device) -> Self {
        let Device { id, origin, properties, mounts, device_specs } = device;
        Self { id, origin, properties, mounts, device_specs }
    }
}

/// A device of the payload, as it is received.
#[derive(Deserialize)]
struct ReceivedDevice {
    id: String,
    origin: String,
    #[serde(deserialize_with = "properties")]
    properties: BTreeMap<String, String>,
    mounts: Bounded<Mount, 1024>,
    device_specs: Bounded<DeviceSpec, 1024>,
}

fn properties<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    bounded_map(deserializer, 1024, |value| value)
}

impl From<ReceivedDevice> for Device {
    fn from(device: ReceivedDevice) -> Self {
        Self {
            id: device.id,
            origin: device.origin,
            properties: device.properties,
            mounts: device.mounts.0,
            device_specs: device.device_specs.0,
        }
    }
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
    /// Checks that these are the devices that were announced.
    ///
    /// # Errors
    /// If there are more or fewer.
    pub(crate) fn check(&self, found: &DeviceSetHead) -> Result<(), ProtocolError> {
        let is_so = self.devices.len() == found.devices as usize;
        is_so.then_some(()).ok_or_else(|| ProtocolError::new("other devices than announced"))
    }

    /// Decodes the devices of a payload. Those beyond a limit are an error.
    ///
    /// # Errors
    /// If they are no devices.
    pub(crate) fn add(&mut self, mut payload: &[u8]) -> Result<(), ProtocolError> {
        while !payload.is_empty() {
            let (device, rest) = postcard::take_from_bytes::<ReceivedDevice>(payload).map_err(malformed)?;
            let device = Device::from(device);
            self.elements += device.properties.len() + device.mounts.len() + device.device_specs.len();
            if self.devices.len() >= DEVICES || self.elements > ELEMENTS {
                return Err(ProtocolError::new("too many devices or properties"));
            }
            self.devices.push(device);
            payload = rest;
        }
        Ok(())
    }
}

/// Joins what [`split`] has separated.
///
/// # Errors
/// If these are not the devices that were announced.
pub(crate) fn join(found: DeviceSetHead, received: ReceivedDevices) -> Result<DeviceSet, ProtocolError> {
    received.check(&found)?;
    Ok(DeviceSet {
        devices: received.devices,
        kept: found.kept.0.into_iter().collect(),
        withheld: found.withheld.0.into_iter().collect(),
        absence: if found.are_all_kept { AbsenceMeaning::Kept(Default::default()) } else { AbsenceMeaning::Missing },
        notes: found.notes.0,
        notes_dropped: found.notes_dropped,
        secrets_revealed: found.secrets_revealed,
        memory_bytes: found.memory_bytes,
    })
}

/// Returns a frame of a message and devices.
///
/// # Errors
/// If it is too large.
pub(crate) fn encode_devices(message: &impl Serialize, devices: &[Device]) -> Result<Vec<u8>, ProtocolError> {
    let mut frame = postcard::to_extend(message, vec![0; LENGTH]).map_err(malformed)?;
    for device in devices {
        frame = postcard::to_extend(&SentDevice::from(device), frame).map_err(malformed)?;
    }
    with_length(frame)
}
