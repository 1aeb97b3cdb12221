//! What a round needs of the world: to ask servers, and to know how long it may go on.

use std::time::Duration;

use crate::conversation;
use crate::message::{self, Question};
use crate::status::Refusal;
use crate::url::Url;

/// The way to the servers.
pub trait Network {
    /// Asks the server at a URL. The whole of it, from the name to the last byte, ends within the limit.
    fn ask(&self, url: &Url, question: Question, limit: Duration) -> impl Future<Output = Result<Vec<u8>, Error>>;

    /// How long the round may still go on.
    fn remaining(&self) -> Duration;
}

/// Why a server gave no answer. Each is said behind the server's URL and a colon, here or by the host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The handler may not do that; says what would have to be granted.
    #[error("not granted: {0}")]
    NotGranted(String),
    /// Nobody knows the name.
    #[error("the name '{0}' does not resolve")]
    NameNotResolved(String),
    /// No connection, or it broke off.
    #[error("{0}")]
    Unreachable(String),
    /// Nobody said anything, or too slowly.
    #[error("no answer within {} s", seconds(.0))]
    TimedOut(Duration),
    /// It is an OPC UA server, and refuses.
    #[error("it answers {0}")]
    Refused(Refusal),
    /// It is no OPC UA server, or breaks the rules.
    #[error("{0}")]
    InvalidReply(String),
    /// Another server answers there.
    #[error("the server there is '{0}'")]
    OtherApplication(String),
    /// The round's own bounds did not allow to keep what it said.
    #[error("not taken: the memory of the round was used up")]
    NoRoom,
    /// The round's own bounds did not allow to ask it, or to wait for its answer.
    #[error("not asked: the time or the connections of the round were used up")]
    NotReached,
}

impl Error {
    /// A CamelCase word for programs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotGranted(_) => "NotGranted",
            Self::NameNotResolved(_) => "NameNotResolved",
            Self::Unreachable(_) => "Unreachable",
            Self::TimedOut(_) => "TimedOut",
            Self::Refused(_) => "Refused",
            Self::InvalidReply(_) => "InvalidReply",
            Self::OtherApplication(_) => "OtherApplication",
            Self::NoRoom => "NoRoom",
            Self::NotReached => "NotReached",
        }
    }

    /// Whether it is an OPC UA server that has no connection left.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.status.is_busy())
    }

    /// Whether it is an OPC UA server that says nothing to who comes without security.
    pub fn demands_security(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.status.demands_security())
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

/// As much of a server's text as an error shows.
pub fn shown(text: &str) -> String {
    text.chars().take(200).collect()
}

/// With one decimal, if that is not 0.
fn seconds(duration: &Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}
