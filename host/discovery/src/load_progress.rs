//! The progress of loading a component: it is pulled, if it is in a registry, and compiled.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use akri_oci::Progress;

/// The progress of one load, shared by the task and the loader.
#[derive(Debug, Default)]
pub(crate) struct LoadProgress {
    pub(crate) transfer: Progress,
    is_read: AtomicBool,
}

/// The current step of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadStep {
    /// The component is pulled from its registry: bytes so far and in all, if they are known.
    Pulling(Option<(u64, u64)>),
    /// The component is compiled.
    Compiling,
}

impl LoadProgress {
    /// Records that the component is here.
    pub(crate) fn set_read(&self) {
        self.is_read.store(true, Ordering::Relaxed);
    }

    pub(crate) fn step(&self) -> LoadStep {
        if self.is_read.load(Ordering::Relaxed) { LoadStep::Compiling } else { LoadStep::Pulling(self.transfer.get()) }
    }
}

impl fmt::Display for LoadStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        match self {
            Self::Pulling(None) => f.write_str("is being pulled"),
            Self::Pulling(Some((done, all))) => write!(f, "is being pulled ({} of {} MiB)", mib(*done), mib(*all)),
            Self::Compiling => f.write_str("is being compiled"),
        }
    }
}
