//! Errors of requests, and what servers say about them.

use std::time::Duration;

use http::StatusCode;

use super::MAX_REDIRECTS;
use crate::manifest::shortened;

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No connection.
    #[error("cannot reach {host}: {reason}")]
    Connect {
        /// The host.
        host: String,
        /// The cause.
        reason: String,
    },
    /// No response in time.
    #[error("{host} did not answer within {limit:?}")]
    Silent {
        /// The host.
        host: String,
        /// The limit.
        limit: Duration,
    },
    /// The body comes too slowly.
    #[error("{host} is too slow: it sent less than {bytes} bytes in {window:?}")]
    TooSlow {
        /// The host.
        host: String,
        /// The bytes that are needed.
        bytes: u64,
        /// The time for them.
        window: Duration,
    },
    /// The body is too large.
    #[error("{host} sent more than {limit} bytes")]
    TooLarge {
        /// The host.
        host: String,
        /// The limit.
        limit: u64,
    },
    /// The body broke off.
    #[error("the connection to {host} broke off: {reason}")]
    Broken {
        /// The host.
        host: String,
        /// The cause.
        reason: String,
    },
    /// The status is an error.
    #[error("{host} answered '{status}'{}", detail(.message))]
    Status {
        /// The host.
        host: String,
        /// The status.
        status: StatusCode,
        /// The beginning of the response.
        message: String,
    },
    /// A redirect goes to a place where nothing may be read.
    #[error("{host} leads to '{target}', which is not https")]
    Target {
        /// The host.
        host: String,
        /// The address.
        target: String,
    },
    /// Too many redirects.
    #[error("{host} redirects more than {MAX_REDIRECTS} times")]
    Redirects {
        /// The host.
        host: String,
    },
    /// A registry and a path make no address.
    #[error("an address cannot be made of '{0}'")]
    Address(String),
}

fn detail(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

/// Returns the message of an error, as registries send them, or the beginning of the text.
pub(super) fn message(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let first = json.as_ref().and_then(|json| json.pointer("/errors/0"));
    let field = |name: &str| first.and_then(|first| first.get(name)?.as_str());
    match (field("code"), field("message")) {
        (Some(code), Some(message)) => shortened(&format!("{code}: {message}")),
        _ => shortened(text.lines().next().unwrap_or_default()),
    }
}

/// Returns an error with its causes.
pub(super) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = all.map(ToString::to_string).collect();
    texts.dedup();
    shortened(&texts.join(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_registries_are_short_and_printable() {
        let json = br#"{"errors":[{"code":"DENIED","message":"no\nway"}]}"#;
        assert_eq!(message(json), "DENIED: no\\nway");
        assert_eq!(message(b"\x1b[31mred\nnext"), "\\u{1b}[31mred");
        assert!(message(&[b'x'; 10_000]).len() <= 200);
    }
}
