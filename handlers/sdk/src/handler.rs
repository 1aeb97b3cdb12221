//! The three functions of a handler.

use std::time::Duration;

use crate::{Device, Problem};

/// A discovery handler. [`export!`](crate::export) makes it the component's.
pub trait Handler {
    /// The `discoveryDetails` of a Configuration.
    type Details;

    /// The handler's name and defaults.
    const DESCRIPTION: Description;

    /// Parses the details as the host passes them: as JSON, or `None` if they are neither YAML nor JSON. Nothing is granted
    /// meanwhile.
    ///
    /// # Errors
    /// All problems, at least one.
    fn parse(json: Option<&str>) -> Result<Self::Details, Vec<Problem>>;

    /// Returns what starts a round besides the interval, such as `("uevent", "tty")`.
    fn triggers(details: &Self::Details) -> Vec<(String, String)> {
        let _ = details;
        Vec::new()
    }

    /// Runs one round and returns every device there is now. A device that is not listed is missing, unless its origin was
    /// kept.
    ///
    /// # Errors
    /// The failure of the round, after which the known devices are unchanged.
    fn discover(details: Self::Details) -> Result<Vec<Device>, Failure>;
}

/// The description of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    /// The name that Configurations use in `discoveryHandler.name`.
    pub name: &'static str,
    /// The handler's version, for display.
    pub version: &'static str,
    /// True if several nodes see the same devices.
    pub shared: bool,
    /// The pause between rounds, unless the DiscoveryHandler or the details say otherwise.
    pub interval: Duration,
}

impl Description {
    /// Describes a handler whose devices belong to one node each, with a round every 30 s.
    pub const fn new(name: &'static str, version: &'static str) -> Self {
        Self { name, version, shared: false, interval: Duration::from_secs(30) }
    }

    /// Declares that several nodes see the same devices.
    #[must_use]
    pub const fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    /// Sets the pause between rounds.
    #[must_use]
    pub const fn interval_ms(self, milliseconds: u32) -> Self {
        Self { interval: Duration::from_millis(milliseconds as u64), ..self }
    }
}

/// The reason why a round failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The host denied something that the handler requires; names it.
    NotGranted(String),
    /// An external system did not respond. The round is retried with backoff.
    Unavailable(String),
}
