//! The objects that are reconciled.

use std::fmt;

use akri_kube::work_queue::WorkQueue;
use akri_model::names::Key;

/// The queue of objects to reconcile.
pub(crate) type Queue = WorkQueue<Work>;

/// An object to reconcile.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// A Configuration.
    Configuration(Key),
    /// An Instance.
    Instance(Key),
    /// A DiscoveryHandler, whose key has no namespace.
    Handler(Key),
    /// The Lease of an agent whose node may be gone, without its namespace.
    Lease(Key),
}

impl Work {
    /// Returns the namespace and the name of the object.
    pub(crate) fn key(&self) -> &Key {
        match self {
            Self::Configuration(key) | Self::Instance(key) | Self::Handler(key) | Self::Lease(key) => key,
        }
    }

    /// Returns the kind of the object.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Configuration(_) => "Configuration",
            Self::Instance(_) => "Instance",
            Self::Handler(_) => "DiscoveryHandler",
            Self::Lease(_) => "Lease",
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(key) | Self::Instance(key) => write!(f, "{} {key}", self.kind()),
            Self::Handler(key) | Self::Lease(key) => write!(f, "{} {}", self.kind(), key.name),
        }
    }
}
