//! Errors of pulls and pushes.

use akri_model::image::Sha256Digest;
use http::StatusCode;

use crate::manifest::MAX_COMPONENT;
use crate::{HttpError, ManifestError, SignatureError};

/// The reason why a registry did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// A request failed.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The whole took too long.
    #[error("the transfer took longer than {0:?}")]
    TooLong(std::time::Duration),
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
    /// The registry asks for credentials in a way that is not supported.
    #[error("{host} asks for credentials by '{challenge}', which is not supported")]
    Challenge {
        /// The host.
        host: String,
        /// The header.
        challenge: String,
    },
    /// The token server sent no token.
    #[error("{0} sent no token")]
    NoToken(String),
    /// A content is not the one that was asked for.
    #[error("{what} has digest {actual}, not {wanted}")]
    Digest {
        /// The content.
        what: String,
        /// The digest of what came.
        actual: Sha256Digest,
        /// The digest that was asked for.
        wanted: Sha256Digest,
    },
    /// The size of the component is not the one in the manifest.
    #[error("the component has {actual} bytes, its manifest says {wanted}")]
    Size {
        /// The bytes that came.
        actual: u64,
        /// The bytes in the manifest.
        wanted: u64,
    },
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
    /// The component can't be pushed.
    #[error("the component has {0} bytes, more than {MAX_COMPONENT}")]
    TooLarge(u64),
    /// The registry does not say where to upload to.
    #[error("{0} does not say where to upload to")]
    NoUpload(String),
}

impl RegistryError {
    /// Returns whether the registry has no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Http(HttpError::Status { status: StatusCode::NOT_FOUND, .. }))
    }
}
