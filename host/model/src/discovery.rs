//! Descriptions of discovery handlers, and errors of rounds.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::datagram::DatagramFilter;
use crate::text::dotted;

/// The reason of a round after which the handler rests.
pub const QUARANTINED: &str = "Quarantined";

/// The description of a component handler (`handler.describe`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The name Configurations use.
    pub name: String,
    /// The handler's own version, for people.
    pub version: String,
    /// True if several nodes see the same device.
    pub shared: bool,
    /// The handler's default pause between rounds, if it has one.
    pub interval: Option<Duration>,
}

/// A trigger of a round besides the end of the interval (`handler.validate`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trigger {
    /// A kernel uevent of this subsystem.
    Uevent(String),
    /// A datagram to a multicast group.
    Multicast {
        /// The group and its port.
        group: SocketAddr,
        /// The filter of its datagrams.
        filter: DatagramFilter,
    },
    /// A pause that fits the details better than the handler's default.
    Interval(Duration),
}

impl Trigger {
    /// Reads a `(kind, value)` pair; unknown kinds and values that don't parse are `None`, since a newer handler may
    /// name kinds this host does not know.
    pub fn parse(kind: &str, value: &str) -> Option<Self> {
        match kind {
            "uevent" => Some(Self::Uevent(value.to_owned())),
            "multicast" => multicast(value),
            "interval-ms" => value.parse().ok().map(|ms| Self::Interval(Duration::from_millis(ms))),
            _ => None,
        }
    }
}

/// `ADDRESS:PORT`, or that, a space, and what a datagram has to hold.
fn multicast(value: &str) -> Option<Trigger> {
    let (group, filter) = value.split_once(' ').unwrap_or((value, ""));
    let group = group.parse().ok().filter(|group: &SocketAddr| group.ip().is_multicast())?;
    Some(Trigger::Multicast { group, filter: DatagramFilter::parse(filter)? })
}

/// A problem of a Configuration's `discoveryDetails`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// JSON pointer into the details, "" for the whole.
    pub path: String,
    /// A CamelCase word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// The reason for a round without a result. None of these removes a device (invariant 8). Errors that are found in the agent
/// alone are not serialized; they come last, since variants are encoded by their number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum RoundError {
    /// The user has to change the details; a round is not tried again until then.
    #[error("invalid discoveryDetails: {}", join(.0))]
    InvalidDetails(Vec<Problem>),
    /// The handler was refused something it can't do without.
    #[error("not granted: {0}")]
    NotGranted(String),
    /// The outside world did not answer; tried again with backoff.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The component trapped or exited.
    #[error("the handler trapped: {0}")]
    Trapped(String),
    /// The round did not end in time.
    #[error("the handler did not finish within {0:?}; limits.round of its DiscoveryHandler gives it more")]
    DeadlineExceeded(Duration),
    /// The round did not end in time, since the component was computing; says in which function.
    #[error(
        "the handler did not finish within {limit:?}: it was computing{place}; if that is no endless loop, limits.round of its \
         DiscoveryHandler gives it more"
    )]
    StillComputing {
        /// The time it had.
        limit: Duration,
        /// " in FUNCTION", if that has a name.
        place: String,
    },
    /// The component went over a limit; says which.
    #[error("limit exceeded: {0}")]
    LimitExceeded(String),
    /// The component's devices make no sense, such as two of one id.
    #[error("invalid result: {0}")]
    InvalidResult(String),
    /// There is no handler of the requested name; the message lists the available ones.
    #[error("{0}")]
    #[serde(skip)]
    NoHandler(String),
    /// A property has no value; no round is run until it has one.
    #[error("discoveryProperties: {0}")]
    #[serde(skip)]
    PropertiesUnresolved(String),
    /// The component failed by its own fault so often that it is left alone for a while.
    #[error(
        "quarantined after {faults} failed rounds; the next one is in {} minutes, or at once when the component, its \
         DiscoveryHandler or the Configuration changes; the last one failed: {last}",
        pause.as_secs() / 60
    )]
    #[serde(skip)]
    Quarantined {
        /// Rounds that it failed.
        faults: u32,
        /// The error of the last one.
        last: Box<RoundError>,
        /// The pause before the next one.
        pause: Duration,
    },
    /// The process of the component ended while this was the only call in it.
    #[error("the handler trapped: {0}")]
    #[serde(skip)]
    ProcessEnded(String),
}

impl RoundError {
    /// Replaces the texts in it that are the handler's.
    #[must_use]
    pub fn map_texts(self, map: impl Fn(String) -> String) -> Self {
        match self {
            Self::InvalidDetails(problems) => {
                let problem =
                    |p: Problem| Problem { path: map(p.path), reason: map(p.reason), message: map(p.message) };
                Self::InvalidDetails(problems.into_iter().map(problem).collect())
            }
            Self::NotGranted(what) => Self::NotGranted(map(what)),
            Self::Unavailable(what) => Self::Unavailable(map(what)),
            Self::Trapped(what) => Self::Trapped(map(what)),
            Self::StillComputing { limit, place } => Self::StillComputing { limit, place: map(place) },
            Self::LimitExceeded(what) => Self::LimitExceeded(map(what)),
            Self::InvalidResult(what) => Self::InvalidResult(map(what)),
            Self::NoHandler(_)
            | Self::ProcessEnded(_)
            | Self::DeadlineExceeded(_)
            | Self::PropertiesUnresolved(_)
            | Self::Quarantined { .. } => self,
        }
    }

    /// A CamelCase word for conditions and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoHandler(_) => "NoHandler",
            Self::InvalidDetails(_) => "InvalidDetails",
            Self::PropertiesUnresolved(_) => "PropertiesUnresolved",
            Self::NotGranted(_) => "NotGranted",
            Self::Unavailable(_) => "Unavailable",
            Self::Trapped(_) | Self::ProcessEnded(_) => "Trapped",
            Self::DeadlineExceeded(_) | Self::StillComputing { .. } => "DeadlineExceeded",
            Self::LimitExceeded(_) => "LimitExceeded",
            Self::InvalidResult(_) => "InvalidResult",
            Self::Quarantined { .. } => QUARANTINED,
        }
    }
}

/// Returns the first line of each problem; further ones, such as a rule with a caret below, are for those who see the text of the
/// details.
fn join(problems: &[Problem]) -> String {
    let sentence = |Problem { path, message, .. }: &Problem| {
        let message = message.lines().next().unwrap_or_default();
        if path.is_empty() { message.to_owned() } else { format!("{}: {message}", dotted(path)) }
    };
    problems.iter().map(sentence).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_trigger_names_a_group_and_perhaps_a_text() {
        let trigger = |group: &str, filter: &str| {
            let filter = DatagramFilter::parse(filter).unwrap();
            Some(Trigger::Multicast { group: group.parse().unwrap(), filter })
        };
        let group = "239.255.255.250:3702";
        assert_eq!(Trigger::parse("multicast", group), trigger(group, ""));
        assert_eq!(
            Trigger::parse("multicast", "239.255.255.250:3702 discovery/Hello"),
            trigger(group, "discovery/Hello")
        );
        assert_eq!(Trigger::parse("multicast", "[ff02::fb]:5353"), trigger("[ff02::fb]:5353", ""));
        for value in ["", "239.255.255.250", "10.0.0.1:80", "example:80", "239.255.255.250:3702 @x"] {
            assert_eq!(Trigger::parse("multicast", value), None, "{value}");
        }
    }
}
