//! From Configurations to device sets: the registry of handlers, and the rounds that are run with them.

pub mod admission;
mod pace;
pub mod properties;
pub mod registry;
pub mod rounds;

use std::sync::Arc;

use akri_model::device::DeviceSet;
use akri_model::discovery::RoundError;

/// What the owner of a Configuration is told by its source of device sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// There is no handler of that name; the message says what there is.
    NoHandler(String),
    /// The handler found fault with the details, or failed; its devices stay as they are.
    Failed(Arc<RoundError>),
    /// A round: the whole truth.
    Found {
        /// What it saw.
        set: DeviceSet,
        /// Whether many nodes see these devices.
        shared: bool,
    },
}
