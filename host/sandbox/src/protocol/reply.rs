//! Messages to the agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use akri_engine::{ForwardedLine, LoadError};
use akri_model::device::DeviceSet;
use akri_model::discovery::{Description, RoundError, Trigger};
use serde::{Deserialize, Serialize};

use super::byte_values;

/// A message to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// A component is loaded, or not.
    Loaded { call: u64, result: Result<LoadedComponent, LoadError> },
    /// Details were validated.
    Validated { call: u64, result: Result<Vec<Trigger>, RoundError>, ticks: u32 },
    /// The payload has devices of a round that has ended; the others follow.
    Devices { call: u64 },
    /// A round has ended; its devices, or the last of them, are the payload.
    Discovered {
        /// The call.
        call: u64,
        /// The number of devices in all payloads.
        devices: usize,
        /// The rest of the set, without the devices.
        result: Result<Box<DeviceSet>, RoundError>,
        /// The cache, if the round changed it.
        cache: Option<CacheEntries>,
        /// Ticks of processor time.
        ticks: u32,
    },
    /// A guest wrote to its log.
    Log { call: u64, line: ForwardedLine },
    /// A datagram came in.
    Received { listener: u64 },
}

/// A component that was loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoadedComponent {
    /// Its description of itself.
    pub(crate) description: Description,
    /// The interface by which it is a handler.
    pub(crate) exported: String,
    /// Its imports.
    pub(crate) imports: Vec<String>,
}

/// The cache of a handler after a round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CacheEntries(#[serde(with = "byte_values")] pub(crate) Arc<BTreeMap<String, Vec<u8>>>);
