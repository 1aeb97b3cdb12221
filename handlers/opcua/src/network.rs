//! The interface of a round to its environment: requests to servers, and the remaining time.

use std::time::Duration;

use crate::conversation;
use crate::message::{self, Question};
use crate::status::Refusal;
use crate::url::Url;

/// The network.
pub trait Network {
    /// Sends a request to the server at a URL. Everything, from name resolution to the last byte, is bounded by the
    /// limit.
    fn ask(&self, url: &Url, question: Question, limit: Duration) -> impl Future<Output = Result<Vec<u8>, Error>>;

    /// Returns the remaining time of the round.
    fn remaining(&self) -> Duration;
}

/// The reason for a failed request. Messages follow the server's URL and a colon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A grant is missing; names it.
    #[error("not granted: {0}")]
    NotGranted(String),
    /// The name does not resolve.
    #[error("the name '{0}' does not resolve")]
    NameNotResolved(String),
    /// Connecting failed.
    #[error("{0}")]
    Unreachable(String),
    /// The server accepted the connection and ended it before it answered, as some do that have too many.
    #[error("the connection broke off")]
    BrokenOff,
    /// No response in time.
    #[error("no answer within {} s", seconds(.0))]
    TimedOut(Duration),
    /// An OPC UA server refused the request.
    #[error("it answers {0}")]
    Refused(Refusal),
    /// Not a valid OPC UA response.
    #[error("{0}")]
    InvalidReply(String),
    /// Another server responds at the URL.
    #[error("the server there is '{0}'")]
    OtherApplication(String),
    /// A limit of the round prevented keeping the response.
    #[error("not taken: the memory of the round was used up")]
    NoRoom,
    /// A limit of the round prevented the request, or waiting for its response.
    #[error("not asked: no name server answered, or the time or the connections of the round were used up")]
    NotReached,
}

impl Error {
    /// Returns the reason as a CamelCase word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotGranted(_) => "NotGranted",
            Self::NameNotResolved(_) => "NameNotResolved",
            Self::Unreachable(_) | Self::BrokenOff => "Unreachable",
            Self::TimedOut(_) => "TimedOut",
            Self::Refused(_) => "Refused",
            Self::InvalidReply(_) => "InvalidReply",
            Self::OtherApplication(_) => "OtherApplication",
            Self::NoRoom => "NoRoom",
            Self::NotReached => "NotReached",
        }
    }

    /// Returns whether nobody answers at the URL. A name that does not resolve, a missing grant and a limit of the round
    /// say nothing about the server.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::TimedOut(_))
    }

    /// Returns whether the server has no free connections.
    pub fn is_busy(&self) -> bool {
        *self == Self::BrokenOff || matches!(self, Self::Refused(refusal) if refusal.status.is_busy())
    }

    /// Returns whether the server refuses clients without security.
    pub fn demands_security(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.status.demands_security())
    }

    /// Returns the failure of two addresses of a server that says more about it, the later one of two alike.
    pub fn or(self, later: Self) -> Self {
        if self.weight() > later.weight() { self } else { later }
    }

    fn weight(&self) -> u8 {
        match self {
            Self::NotGranted(_) => 0, // few networks are granted, and most machines have addresses in others
            Self::Unreachable(_) | Self::TimedOut(_) | Self::NameNotResolved(_) => 1,
            Self::NotReached | Self::NoRoom => 2,
            Self::BrokenOff | Self::Refused(_) | Self::InvalidReply(_) | Self::OtherApplication(_) => 3,
        }
    }
}

impl From<conversation::Error> for Error {
    fn from(error: conversation::Error) -> Self {
        match error {
            conversation::Error::Refused(refusal) => Self::Refused(refusal),
            conversation::Error::Message(error) => error.into(),
            broken => Self::InvalidReply(broken.to_string()),
        }
    }
}

impl From<message::Error> for Error {
    fn from(error: message::Error) -> Self {
        match error {
            message::Error::Fault(status) => Self::Refused(status.into()),
            broken => Self::InvalidReply(broken.to_string()),
        }
    }
}

/// Truncates a server's text for an error message.
pub fn shown(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Returns seconds with at most one decimal.
fn seconds(duration: &Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_an_address_that_answers_counts() {
        let (silent, denied) = (|| Error::Unreachable("connection refused".into()), || Error::NotGranted("TCP".into()));
        for (first, later, expected) in [
            (Error::BrokenOff, silent(), Error::BrokenOff),
            (silent(), Error::BrokenOff, Error::BrokenOff),
            (Error::NotReached, silent(), Error::NotReached),
            (silent(), denied(), silent()),
            (silent(), Error::TimedOut(Duration::ZERO), Error::TimedOut(Duration::ZERO)),
        ] {
            assert_eq!(first.or(later), expected);
        }
    }
}
