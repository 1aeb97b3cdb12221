//! Discovery: the registry of component handlers, their rounds, and the results of components and remote handlers
//! combined.

mod component_file;
pub mod handler_activity;
pub mod handler_reports;
pub mod images;
pub mod load_progress;
mod loader;
mod multicast_triggers;
pub mod properties;
pub mod registry;
mod round;
mod round_rate_limit;
pub mod rounds;
pub mod sources;

use tokio::time::{Instant, sleep_until};

pub use round::{call, details_json};

/// Waits until a point in time; forever if there is none.
pub(crate) async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
