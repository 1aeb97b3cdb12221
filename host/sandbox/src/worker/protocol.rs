//! Messages between the agent and a sandbox process.
//!
//! A frame is its length (four bytes, little-endian), a message in the postcard format, and a payload that the message
//! announces: the bytes of a component, or devices one after the other. Neither side trusts the other with its memory: frames,
//! lists and the number of all elements are bounded, and what does not decode ends the connection.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use akri_model::datagram::DatagramFilter;
use akri_model::device::{AbsenceMeaning, Device, DeviceSet, DeviceSpec, Mount, Note};
use akri_model::discovery::{Description, Problem, RoundError, Trigger};
use akri_model::grant::{Grants, Limits};
use akri_model::property::Secret;
use serde::de::{DeserializeOwned, Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

/// Bytes of a frame to the sandbox process: the largest component, and what comes with it.
pub(crate) const LARGEST_REQUEST: usize = 96 << 20;
/// Bytes of a frame to the agent: devices, kept origins and cache of a round, each of up to 16 MiB.
pub(crate) const LARGEST_REPLY: usize = 56 << 20;
/// Bytes of the length before each frame.
pub(crate) const LENGTH: usize = 4;
/// Properties, mounts and device specs of all devices of a round: each takes 16 bytes of the 16 MiB that a guest may return.
const ELEMENTS: usize = 1 << 20;
/// Devices of a round; no limit is larger.
const DEVICES: usize = 1 << 16;

/// An error of decoding a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub(crate) struct ProtocolError(String);

/// A list of at most `N` elements: more are refused before there is memory for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Bounded<T, const N: usize>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for Bounded<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const N: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for List<T, N> {
            type Value = Vec<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {N} elements")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
                if elements.size_hint().is_some_and(|count| count > N) {
                    return Err(A::Error::custom("too many elements"));
                }
                let mut list = Vec::new();
                while let Some(element) = elements.next_element()? {
                    if list.len() >= N {
                        return Err(A::Error::custom("too many elements"));
                    }
                    list.push(element);
                }
                Ok(list)
            }
        }
        deserializer.deserialize_seq(List::<T, N>(PhantomData)).map(Self)
    }
}

impl<T, const N: usize> Default for Bounded<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const N: usize> FromIterator<T> for Bounded<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Self(elements.into_iter().collect())
    }
}

/// A message to the sandbox process. Answers name the `call` they belong to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Load the component in the payload.
    Load {
        /// The call.
        call: u64,
        /// The name it is called by from then on.
        component: u64,
    },
    /// Forget a component.
    Unload {
        /// The component.
        component: u64,
    },
    /// Validate details.
    Validate {
        /// The call.
        call: u64,
        /// The component.
        component: u64,
        /// The arguments.
        arguments: Box<Arguments>,
    },
    /// Run a round.
    Discover {
        /// The call.
        call: u64,
        /// The component.
        component: u64,
        /// The arguments.
        arguments: Box<Arguments>,
    },
    /// End a call, which is answered nevertheless.
    Cancel {
        /// The call.
        call: u64,
    },
    /// Join a multicast group.
    Join {
        /// The name of the listener from then on.
        listener: u64,
        /// The group.
        group: SocketAddr,
        /// Globs for interfaces.
        interfaces: Bounded<String, 4096>,
        /// Filters of which one must match.
        filters: Bounded<DatagramFilter, 64>,
    },
    /// Report the next datagram of a group; asked for anew after each report.
    Listen {
        /// The listener.
        listener: u64,
    },
    /// Leave a multicast group.
    Leave {
        /// The listener.
        listener: u64,
    },
}

/// The arguments of a call of a component.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Arguments {
    /// `namespace/name` of the Configuration.
    pub(crate) subject: String,
    /// Its details.
    pub(crate) details: String,
    /// The details as JSON.
    pub(crate) details_json: Option<String>,
    /// Plain properties.
    pub(crate) properties: BTreeMap<String, Vec<u8>>,
    /// Properties from Secrets; those that are not granted have no value.
    pub(crate) secrets: BTreeMap<String, Vec<u8>>,
    /// Access.
    pub(crate) grants: Grants,
    /// Limits.
    pub(crate) limits: Limits,
    /// The cache of the handler.
    pub(crate) cache: BTreeMap<String, Vec<u8>>,
    /// Secrets that may be in the cache.
    pub(crate) cached_secrets: BTreeMap<String, Vec<u8>>,
    /// The name of the budgets over time that the call shares with others.
    pub(crate) rates: u64,
}

impl fmt::Debug for Arguments {
    /// Leaves out values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arguments").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl Arguments {
    /// Moves secrets out, so that the originals are overwritten.
    pub(crate) fn take_secrets(secrets: &mut BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Secret> {
        std::mem::take(secrets).into_iter().map(|(name, value)| (name, Secret::new(value))).collect()
    }
}

/// A message to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// A component is loaded, or not.
    Loaded {
        /// The call.
        call: u64,
        /// The component's description of itself.
        result: Result<LoadedComponent, LoadFailure>,
    },
    /// Details were validated.
    Validated {
        /// The call.
        call: u64,
        /// Triggers.
        result: Result<Bounded<Trigger, 64>, Failure>,
        /// Ticks of processor time.
        ticks: u32,
    },
    /// A round has ended; its devices are the payload.
    Discovered {
        /// The call.
        call: u64,
        /// The rest of the set, without the devices.
        result: Result<Box<Found>, Failure>,
        /// The cache, if the round changed it.
        cache: Option<ChangedCache>,
        /// Ticks of processor time.
        ticks: u32,
    },
    /// A guest wrote to its log.
    Log {
        /// The call.
        call: u64,
        /// The line.
        line: Line,
    },
    /// A datagram came in.
    Received {
        /// The listener.
        listener: u64,
    },
}

/// A component that was loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoadedComponent {
    /// Its description of itself.
    pub(crate) description: Description,
    /// The interface by which it is a handler.
    pub(crate) exported: String,
    /// Its imports.
    pub(crate) imports: Bounded<String, 4096>,
}

/// An error of loading a component.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum LoadFailure {
    /// Its `describe` failed.
    Describe(Failure),
    /// Anything else, in words.
    Other(String),
}

/// An error of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Failure {
    /// See [`RoundError::InvalidDetails`].
    InvalidDetails(Bounded<Problem, 64>),
    /// See [`RoundError::NotGranted`].
    NotGranted(String),
    /// See [`RoundError::Unavailable`].
    Unavailable(String),
    /// See [`RoundError::Trapped`].
    Trapped(String),
    /// See [`RoundError::DeadlineExceeded`].
    DeadlineExceeded(Duration),
    /// See [`RoundError::LimitExceeded`].
    LimitExceeded(String),
    /// See [`RoundError::InvalidResult`].
    InvalidResult(String),
}

impl From<RoundError> for Failure {
    fn from(error: RoundError) -> Self {
        match error {
            RoundError::InvalidDetails(problems) => Self::InvalidDetails(Bounded(problems)),
            RoundError::NotGranted(what) => Self::NotGranted(what),
            RoundError::Unavailable(what) => Self::Unavailable(what),
            RoundError::Trapped(what) => Self::Trapped(what),
            RoundError::DeadlineExceeded(limit) => Self::DeadlineExceeded(limit),
            RoundError::LimitExceeded(what) => Self::LimitExceeded(what),
            RoundError::InvalidResult(what) => Self::InvalidResult(what),
            // The agent alone judges these.
            other @ (RoundError::NoHandler(_)
            | RoundError::PropertiesUnresolved(_)
            | RoundError::Quarantined { .. }) => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<Failure> for RoundError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::InvalidDetails(problems) => Self::InvalidDetails(problems.0),
            Failure::NotGranted(what) => Self::NotGranted(what),
            Failure::Unavailable(what) => Self::Unavailable(what),
            Failure::Trapped(what) => Self::Trapped(what),
            Failure::DeadlineExceeded(limit) => Self::DeadlineExceeded(limit),
            Failure::LimitExceeded(what) => Self::LimitExceeded(what),
            Failure::InvalidResult(what) => Self::InvalidResult(what),
        }
    }
}

/// The cache of a handler after a round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChangedCache {
    /// Keys and values.
    pub(crate) entries: Bounded<(String, Vec<u8>), 4096>,
    /// Properties from Secrets whose values may be in it: those of this call, or those that were in it before.
    pub(crate) secrets: Bounded<CachedSecret, 512>,
}

/// A secret that may be in a cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CachedSecret {
    /// The property.
    pub(crate) name: String,
    /// True if it has the value of this call, and not that of an earlier one.
    pub(crate) is_current: bool,
}

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

/// A device of the payload. The model's own form for JSON leaves out what is empty, which this format can't.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct WireDevice {
    id: String,
    origin: String,
    properties: Bounded<(String, String), 1024>,
    mounts: Bounded<Mount, 1024>,
    device_specs: Bounded<DeviceSpec, 1024>,
}

impl From<Device> for WireDevice {
    fn from(device: Device) -> Self {
        Self {
            id: device.id,
            origin: device.origin,
            properties: device.properties.into_iter().collect(),
            mounts: Bounded(device.mounts),
            device_specs: Bounded(device.device_specs),
        }
    }
}

impl From<WireDevice> for Device {
    fn from(device: WireDevice) -> Self {
        Self {
            id: device.id,
            origin: device.origin,
            properties: device.properties.0.into_iter().collect(),
            mounts: device.mounts.0,
            device_specs: device.device_specs.0,
        }
    }
}

/// A line that a guest wrote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Line {
    /// A line.
    Written {
        /// Its level, 0 (trace) to 4 (error).
        level: u8,
        /// Its context, in the guest's words or the host's.
        context: String,
        /// The text.
        message: String,
        /// True if it was written by the `logging` interface.
        is_logged: bool,
    },
    /// Lines beyond a bound.
    Dropped(u64),
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
        let (device, rest) = postcard::take_from_bytes::<WireDevice>(payload).map_err(malformed)?;
        elements += device.properties.0.len() + device.mounts.0.len() + device.device_specs.0.len();
        if devices.len() >= DEVICES || elements > ELEMENTS {
            return Err(ProtocolError("too many devices or properties".to_owned()));
        }
        devices.push(Device::from(device));
        payload = rest;
    }
    if payload.is_empty() { Ok(devices) } else { Err(ProtocolError("more devices than announced".to_owned())) }
}

fn malformed(error: postcard::Error) -> ProtocolError {
    ProtocolError(error.to_string())
}

/// Returns a frame of a message and a payload.
///
/// # Errors
/// If it is too large.
pub(crate) fn encode(message: &impl Serialize, payload: &[u8]) -> Result<Vec<u8>, ProtocolError> {
    let mut frame = postcard::to_extend(message, vec![0; LENGTH]).map_err(malformed)?;
    frame.extend_from_slice(payload);
    with_length(frame)
}

/// Returns the frame of a request of at most so many bytes, and overwrites the values of secrets in it. A buffer that grew
/// would leave copies.
///
/// # Errors
/// If it is too large.
pub(crate) fn encode_secret(mut request: Request, capacity: usize) -> Result<Vec<u8>, ProtocolError> {
    let mut frame = Vec::with_capacity(capacity);
    frame.resize(LENGTH, 0);
    let encoded = postcard::to_extend(&request, frame).map_err(malformed);
    if let Request::Validate { arguments, .. } | Request::Discover { arguments, .. } = &mut request {
        let secrets = arguments.secrets.values_mut().chain(arguments.cached_secrets.values_mut());
        secrets.for_each(Zeroize::zeroize);
    }
    with_length(encoded?)
}

/// Returns a frame of a message and devices.
///
/// # Errors
/// If it is too large.
pub(crate) fn encode_devices(message: &impl Serialize, devices: Vec<Device>) -> Result<Vec<u8>, ProtocolError> {
    let mut frame = postcard::to_extend(message, vec![0; LENGTH]).map_err(malformed)?;
    for device in devices {
        frame = postcard::to_extend(&WireDevice::from(device), frame).map_err(malformed)?;
    }
    with_length(frame)
}

fn with_length(mut frame: Vec<u8>) -> Result<Vec<u8>, ProtocolError> {
    let length = u32::try_from(frame.len() - LENGTH).map_err(|_| ProtocolError("too large".to_owned()))?;
    if let Some(start) = frame.first_chunk_mut() {
        *start = length.to_le_bytes();
    }
    Ok(frame)
}

/// Decodes a frame without its length; also returns its payload.
///
/// # Errors
/// If it is no such message.
pub(crate) fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<(T, &[u8]), ProtocolError> {
    postcard::take_from_bytes(frame).map_err(malformed)
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    fn device() -> impl Strategy<Value = Device> {
        let mount = (".*", ".*", any::<bool>()).prop_map(|(container_path, host_path, read_only)| Mount {
            container_path,
            host_path,
            read_only,
        });
        let spec = (".*", ".*", ".*").prop_map(|(container_path, host_path, permissions)| DeviceSpec {
            container_path,
            host_path,
            permissions,
        });
        (".*", ".*", btree_map(".*", ".*", 0..4), vec(mount, 0..3), vec(spec, 0..3)).prop_map(
            |(id, origin, properties, mounts, device_specs)| Device { id, origin, properties, mounts, device_specs },
        )
    }

    fn set() -> impl Strategy<Value = DeviceSet> {
        let note = (".*", ".*", ".*").prop_map(|(origin, reason, message)| Note { origin, reason, message });
        let sets = (vec(device(), 0..5), btree_set(".*", 0..3), btree_set(".*", 0..3), vec(note, 0..3));
        (sets, any::<bool>(), any::<u64>()).prop_map(|((devices, kept, withheld, notes), are_kept, count)| DeviceSet {
            devices,
            kept,
            withheld,
            notes,
            absence: if are_kept { AbsenceMeaning::Kept(Default::default()) } else { AbsenceMeaning::Missing },
            notes_dropped: count,
            secrets_revealed: count / 2,
            memory_bytes: count / 3,
        })
    }

    fn arguments() -> impl Strategy<Value = Arguments> {
        let values = || btree_map(".*", vec(any::<u8>(), 0..9), 0..3);
        let maps = (values(), values(), values(), values());
        (".*", ".*", proptest::option::of(".*"), maps, any::<[u8; 4]>(), any::<u16>(), any::<u64>()).prop_map(
            |(subject, details, details_json, maps, address, port, rates)| {
                let networks = vec![ipnet::IpNet::new(address.into(), address[0] % 33).unwrap()];
                let to = akri_model::grant::Destinations { networks, ports: vec![port..=u16::MAX] };
                let grants = Grants { tcp: vec![to], names: vec![subject.clone()], ..Grants::default() };
                Arguments {
                    subject,
                    details,
                    details_json,
                    properties: maps.0,
                    secrets: maps.1,
                    cache: maps.2,
                    cached_secrets: maps.3,
                    grants,
                    limits: Limits { devices: port.into(), ..Limits::default() },
                    rates,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn requests_survive_encoding(arguments in arguments(), call: u64, payload in vec(any::<u8>(), 0..99)) {
            let request = Request::Discover { call, component: 1, arguments: Box::new(arguments) };
            let frame = encode(&request, &payload).unwrap();
            let (length, body) = frame.split_at(LENGTH);
            prop_assert_eq!(u32::from_le_bytes(length.try_into().unwrap()) as usize, body.len());
            prop_assert_eq!(decode::<Request>(body).unwrap(), (request, payload.as_slice()));
        }

        #[test]
        fn device_sets_survive_encoding(set in set(), call: u64) {
            let (found, devices) = split(set.clone());
            let reply = Reply::Discovered { call, result: Ok(Box::new(found)), cache: None, ticks: 3 };
            let frame = encode_devices(&reply, devices).unwrap();
            let (decoded, payload) = decode::<Reply>(&frame[LENGTH..]).unwrap();
            let Reply::Discovered { result: Ok(found), .. } = decoded else { panic!("{decoded:?}") };
            prop_assert_eq!(join(*found, payload).unwrap(), set);
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..512)) {
            let _ = decode::<Request>(&bytes);
            if let Ok((Reply::Discovered { result: Ok(found), .. }, payload)) = decode::<Reply>(&bytes) {
                let _ = join(*found, payload);
            }
        }

        #[test]
        fn damaged_frames_are_decoded_or_refused(set in set(), at: prop::sample::Index, byte: u8) {
            let (found, devices) = split(set);
            let reply = Reply::Discovered { call: 1, result: Ok(Box::new(found)), cache: None, ticks: 0 };
            let mut frame = encode_devices(&reply, devices).unwrap().split_off(LENGTH);
            let at = at.index(frame.len());
            frame[at] = byte;
            if let Ok((Reply::Discovered { result: Ok(found), .. }, payload)) = decode::<Reply>(&frame) {
                let _ = join(*found, payload);
            }
        }
    }

    #[test]
    fn lists_are_bounded_before_there_is_memory_for_them() {
        let frame = encode(&vec![String::new(); 3], &[]).unwrap();
        assert!(decode::<Bounded<String, 3>>(&frame[LENGTH..]).is_ok());
        assert!(decode::<Bounded<String, 2>>(&frame[LENGTH..]).is_err());
        let many = Device {
            properties: (0..1025).map(|number| (number.to_string(), String::new())).collect(),
            ..Device::default()
        };
        let (found, devices) = split(DeviceSet { devices: vec![many], ..DeviceSet::default() });
        let frame = encode_devices(&(), devices).unwrap();
        assert!(join(found, &frame[LENGTH..]).is_err());
        let empty = WireDevice::from(Device::default());
        let payload = postcard::to_allocvec(&vec![empty; DEVICES + 1]).unwrap();
        assert!(join(Found { devices: 65_537, ..Found::default() }, &payload[3..]).is_err());
    }
}
