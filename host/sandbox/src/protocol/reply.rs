//! Messages to the agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_model::discovery::{Description, Problem, RoundError, Trigger};
use serde::{Deserialize, Serialize};
use tracing::Level;

use super::{Bounded, DeviceSetHead, byte_values};

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
    /// The payload has devices of a round that has ended; the others follow.
    Devices {
        /// The call.
        call: u64,
    },
    /// A round has ended; its devices, or the last of them, are the payload.
    Discovered {
        /// The call.
        call: u64,
        /// The rest of the set, without the devices.
        result: Result<Box<DeviceSetHead>, Failure>,
        /// The cache, if the round changed it.
        cache: Option<CacheEntries>,
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
pub(crate) struct CacheEntries(#[serde(with = "byte_values")] pub(crate) Arc<BTreeMap<String, Vec<u8>>>);

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
        /// True if the host wrote it: something was refused.
        is_refusal: bool,
        /// True if whoever wants a copy of the log gets one.
        is_copied: bool,
    },
    /// Lines beyond a bound.
    Dropped(u64),
}

/// Returns the number by which a level is sent.
pub(crate) fn number_of(level: Level) -> u8 {
    match level {
        Level::TRACE => 0,
        Level::DEBUG => 1,
        Level::INFO => 2,
        Level::WARN => 3,
        Level::ERROR => 4,
    }
}

/// Returns the level of a number that was sent.
pub(crate) fn level_of(number: u8) -> Level {
    match number {
        0 => Level::TRACE,
        1 => Level::DEBUG,
        2 => Level::INFO,
        3 => Level::WARN,
        _ => Level::ERROR,
    }
}
