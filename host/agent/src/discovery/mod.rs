//! From Configurations to device sets: the registry of handlers, the rounds that are run with them, and what they and
//! remote handlers say together.

pub mod admission;
mod component_file;
mod ears;
mod pace;
pub mod properties;
pub mod registry;
pub mod reports;
mod round;
pub mod rounds;
pub mod sources;
pub mod standing;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use akri_model::device::DeviceSet;
use akri_model::discovery::RoundError;
use tokio::time::{Instant, sleep_until};

pub use round::call;

/// What came of looking for the devices of a Configuration.
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

/// Any number, another one each time: for pauses that are not to be the same everywhere.
pub(crate) fn dice() -> u64 {
    RandomState::new().hash_one(())
}

/// Waits for a moment, or for ever.
pub(crate) async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
