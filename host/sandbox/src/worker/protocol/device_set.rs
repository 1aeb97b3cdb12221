//! Devices, which are the payload of a message about them.

use std::collections::BTreeMap;

use akri_model::device::{AbsenceMeaning, Device, DeviceSet, DeviceSpec, Mount, Note};
use serde::{Deserialize, Serialize};

use super::{Bounded, LENGTH, ProtocolError, malformed, with_length};

/// Properties, mounts and device specs of all devices of a round: each takes 16 bytes of the 16 MiB that a guest may return.
const ELEMENTS: usize = 1 << 20;
/// Devices of a round; no limit is larger.
pub(super) const DEVICES: usize = 1 << 16;

/// A set of devices without the devices, which are the payload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
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

/// The same as it is received.
#[derive(Deserialize)]
struct ReceivedDevice {
    id: String,
    origin: String,
    properties: Bounded<(String, String), 1024>,
    mounts: Bounded<Mount, 1024>,
    device_specs: Bounded<DeviceSpec, 1024>,
}

impl From<ReceivedDevice> for Device {
    fn from(device: ReceivedDevice) -> Self {
        Self {
            id: device.id,
            origin: device.origin,
            properties: device.properties.0.into_iter().collect(),
            mounts: device.mounts.0,
            device_specs: device.device_specs.0,
        }
    }
}

/// Splits a set into the message about it and its devices.
pub(crate) fn split(set: DeviceSet) -> (Found, Vec<Device>) {
    let found = Found {
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

/// Joins what [`split`] has separated. Devices beyond a limit are an error.
///
/// # Errors
/// If the payload does not have the devices that were announced.
pub(crate) fn join(found: Found, payload: &[u8]) -> Result<DeviceSet, ProtocolError> {
    Ok(DeviceSet {
        devices: devices(found.devices, payload)?,
        kept: found.kept.0.into_iter().collect(),
        withheld: found.withheld.0.into_iter().collect(),
        absence: if found.are_all_kept { AbsenceMeaning::Kept(Default::default()) } else { AbsenceMeaning::Missing },
        notes: found.notes.0,
        notes_dropped: found.notes_dropped,
        secrets_revealed: found.secrets_revealed,
        memory_bytes: found.memory_bytes,
    })
}

fn devices(count: u32, mut payload: &[u8]) -> Result<Vec<Device>, ProtocolError> {
    let (mut devices, mut elements) = (Vec::new(), 0);
    for _ in 0..count {
        let (device, rest) = postcard::take_from_bytes::<ReceivedDevice>(payload).map_err(malformed)?;
        elements += device.properties.0.len() + device.mounts.0.len() + device.device_specs.0.len();
        if devices.len() >= DEVICES || elements > ELEMENTS {
            return Err(ProtocolError("too many devices or properties".to_owned()));
        }
        devices.push(Device::from(device));
        payload = rest;
    }
    if payload.is_empty() { Ok(devices) } else { Err(ProtocolError("more devices than announced".to_owned())) }
}

/// Returns a frame of a message and devices.
///
/// # Errors
/// If it is too large.
pub(crate) fn encode_devices(message: &impl Serialize, devices: Vec<Device>) -> Result<Vec<u8>, ProtocolError> {
    let mut frame = postcard::to_extend(message, vec![0; LENGTH]).map_err(malformed)?;
    for device in devices {
        frame = postcard::to_extend(&SentDevice::from(&device), frame).map_err(malformed)?;
    }
    with_length(frame)
}
