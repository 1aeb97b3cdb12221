//! The functions of the host.

use std::time::{Duration, Instant};

use crate::Failure;

#[cfg(target_family = "wasm")]
pub use crate::component::bindings::akri::discovery::{
    cache, logging, multicast, properties, round, secrets, types::AccessError, udev,
};
#[cfg(not(target_family = "wasm"))]
pub use crate::testing::imports::{AccessError, cache, logging, multicast, properties, round, secrets, udev};

pub use self::round::{keep, note};

/// Returns the time until the round should be over: `reserve` before the host ends it.
pub fn time_left(reserve: Duration) -> Duration {
    Duration::from_nanos(round::remaining()).saturating_sub(reserve)
}

/// Returns when the round should be over: `reserve` before the host ends it.
pub fn deadline(reserve: Duration) -> Instant {
    Instant::now() + time_left(reserve)
}

/// Returns a property of the Configuration, from a plain value, a ConfigMap or a Secret.
///
/// # Errors
/// If it may come from a Secret and `grants.secrets` does not cover its name.
pub fn property(name: &str) -> Result<Option<Vec<u8>>, AccessError> {
    match properties::get(name) {
        Some(value) => Ok(Some(value)),
        None => Ok(secrets::get(name)?.map(|secret| secret.reveal())),
    }
}

/// Reports devices that a filter left out, the first of them: whoever looks for one gets to know the filter.
pub fn left_out<T: AsRef<str>>(filter: &str, devices: impl IntoIterator<Item = T>) {
    devices.into_iter().take(64).for_each(|device| note(device.as_ref(), crate::FILTERED, filter));
}

/// Logs a line.
pub fn log(level: logging::Level, context: &str, message: impl AsRef<str>) {
    logging::log(level, context, message.as_ref());
}

/// Returns the text of an error.
pub fn reason(error: AccessError) -> String {
    match error {
        AccessError::NotGranted(why) | AccessError::Limit(why) | AccessError::Unavailable(why) => why,
    }
}

impl From<AccessError> for Failure {
    /// A limit is not the fault of the details: the next round may succeed.
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::NotGranted(what) => Self::NotGranted(what),
            AccessError::Limit(what) | AccessError::Unavailable(what) => Self::Unavailable(what),
        }
    }
}
