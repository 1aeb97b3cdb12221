//! Errors of pulls and pushes.

use http::StatusCode;

use crate::{HttpError, ManifestError, SignatureError};

/// The reason why a registry did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// A request failed, or its response can't be used.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// There is no such image.
    #[error("{0} does not exist")]
    NotFound(String),
    /// Credentials are missing or wrong.
    #[error("{host} refuses access to {repository} {}{}", if *.given { "with the credentials for it" } else { "without credentials" }, if .detail.is_empty() { String::new() } else { format!(": {}", .detail) })]
    Denied {
        /// The host that refuses.
        host: String,
        /// The repository.
        repository: String,
        /// True if there are credentials for it.
        given: bool,
        /// Its message.
        detail: String,
    },
    /// A content does not have the digest or the size that it should have.
    #[error("{0}")]
    Mismatch(String),
    /// It is no image of a component.
    #[error("{image}: {reason}")]
    Manifest {
        /// The image.
        image: String,
        /// The reason.
        reason: ManifestError,
    },
    /// The image is not trusted.
    #[error(transparent)]
    Signature(#[from] SignatureError),
}

impl RegistryError {
    /// Returns whether the registry has no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Http(HttpError::Status { status: StatusCode::NOT_FOUND, .. }))
    }
}
