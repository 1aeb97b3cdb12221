//! This node's kernel and file system: device events, queries of devices, multicast, watched directories, regular files and
//! their atomic replacement, and admission of the device paths that handlers report.

pub mod admission;
pub mod cgroups;
mod container_paths;
pub mod json_file;
pub mod multicast;
pub mod regular_file;
pub mod replace;
pub mod saved;
pub mod sysfs;
pub mod uevent;
pub mod watch_dir;

use std::io;

use tokio::time::{Instant, sleep_until};

/// The reason why something of the node can't be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// A bound was reached.
    #[error("{0}")]
    Limit(String),
    /// It can't be read or reached.
    #[error("{0}")]
    Unavailable(String),
}

/// Returns nothing if what was looked for does not exist.
///
/// # Errors
/// If there is any other error.
pub fn if_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Waits until a point in time; forever if there is none.
pub async fn sleep_until_some(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
