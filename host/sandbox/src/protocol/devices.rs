//! Devices, which are the payload of a message about them.

use std::collections::BTreeMap;
use std::io;

use akri_model::device::{Device, DeviceSpec, Mount};
use postcard::Serializer;
use postcard::ser_flavors::{ExtendFlavor, Flavor as _};
use serde::{Deserialize, Serialize};

use super::counted::decode_counted;
use super::{LENGTH, Reply, malformed, with_length};

/// Bytes that are decoded without a break, for others on the thread.
const AT_ONCE: usize = 64 << 10;

/// The encoding of a device, which has all fields: the model's own form, for JSON, leaves out what is empty.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Device")]
struct DeviceEncoding {
    id: String,
    origin: String,
    properties: BTreeMap<String, String>,
    mounts: Vec<Mount>,
    device_specs: Vec<DeviceSpec>,
}

/// Devices that were received so far.
#[derive(Debug, Default)]
pub(crate) struct ReceivedDevices {
    pub(crate) devices: Vec<Device>,
    elements: usize,
}

impl ReceivedDevices {
    /// Decodes devices of a payload until some time has passed. Returns the rest of it.
    ///
    /// # Errors
    /// If they are no devices, or too many.
    pub(crate) fn add_some<'a>(&mut self, payload: &'a [u8]) -> io::Result<&'a [u8]> {
        let mut rest = payload;
        while !rest.is_empty() && payload.len() - rest.len() < AT_ONCE {
            let (device, left) = decode_counted(rest, &mut self.elements, |bytes| DeviceEncoding::deserialize(bytes))?;
            self.devices.push(device);
            rest = left;
        }
        Ok(rest)
    }

    /// Checks that these are the devices that a reply announces, if it does.
    ///
    /// # Errors
    /// If there are more or fewer.
    pub(crate) fn check(&self, reply: &Reply) -> io::Result<()> {
        match reply {
            Reply::Discovered { devices, result: Ok(_), .. } if self.devices.len() != *devices => {
                Err(malformed("other devices than announced"))
            }
            _ => Ok(()),
        }
    }
}

/// Returns a frame of a message and devices.
///
/// # Errors
/// If it is too large.
pub(crate) fn encode_devices(message: &impl Serialize, devices: &[Device]) -> io::Result<Vec<u8>> {
    let frame = postcard::to_extend(message, vec![0; LENGTH]).map_err(malformed)?;
    let mut serializer = Serializer { output: ExtendFlavor::new(frame) };
    for device in devices {
        DeviceEncoding::serialize(device, &mut serializer).map_err(malformed)?;
    }
    with_length(serializer.output.finalize().map_err(malformed)?)
}
