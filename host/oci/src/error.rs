//! Errors of pulls and pushes, and what servers say about them.

use http::StatusCode;

use crate::manifest::shortened;

/// The reason why a registry did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The status of a response is an error.
    #[error("{host} answered '{status}'{}", detail(.message))]
    Status {
        /// The host.
        host: String,
        /// The status.
        status: StatusCode,
        /// The beginning of the response.
        message: String,
    },
    /// There is no response, or it is not used; or the client can't be set up.
    #[error("{0}")]
    Failed(String),
    /// There is no such image.
    #[error("{0} does not exist")]
    NotFound(String),
    /// Credentials are missing or wrong.
    #[error("{host} refuses access to {repository} {}{}", if *.given { "with the credentials for it" } else { "without credentials" }, detail(.message))]
    Denied {
        /// The host that refuses.
        host: String,
        /// The repository.
        repository: String,
        /// True if there are credentials for it.
        given: bool,
        /// The beginning of its response.
        message: String,
    },
    /// A content does not have the digest or the size that it should have.
    #[error("{0}")]
    Mismatch(String),
    /// It is no image of a component.
    #[error("{0}")]
    Manifest(String),
    /// The image is not trusted.
    #[error("{0}")]
    Signature(String),
}

impl RegistryError {
    /// A host names an address that may not be read.
    pub(crate) fn target(host: &str, target: &str) -> Self {
        Self::Failed(format!("{host} leads to '{}', which is not https", shortened(target)))
    }

    /// A registry and a path make no address.
    pub(crate) fn address(text: &str) -> Self {
        Self::Failed(format!("an address cannot be made of '{}'", shortened(text)))
    }

    /// Returns whether the registry has no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status: StatusCode::NOT_FOUND, .. })
    }
}

fn detail(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

/// Returns the message of an error, as registries send them, or the beginning of the text.
pub(crate) fn message(body: &[u8]) -> String {
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
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
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
