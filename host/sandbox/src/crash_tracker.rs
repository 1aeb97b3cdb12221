//! The components that were running when a sandbox process ended.
//!
//! Components share a process, and any of those that were running may have ended it. Each of them has a process of its own from
//! then on, until another component replaces it: the next crash harms only the one that causes it. The failed rounds count as
//! traps, for which [`akri_model::retry`] quarantines a handler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// The records of all components, by digest.
#[derive(Debug, Default)]
pub(crate) struct CrashTracker(Mutex<BTreeMap<String, Arc<CrashRecord>>>);

/// The record of one component.
#[derive(Debug, Default)]
pub(crate) struct CrashRecord {
    has_crashed: AtomicBool,
}

impl CrashTracker {
    /// Returns the record of a component. Those of components that are neither loaded nor to be isolated are forgotten.
    pub(crate) fn record_of(&self, digest: &str) -> Arc<CrashRecord> {
        let mut records = self.0.lock();
        records.retain(|_, record| record.is_isolated() || Arc::strong_count(record) > 1);
        Arc::clone(records.entry(digest.to_owned()).or_default())
    }
}

impl CrashRecord {
    /// Records that a process has ended while the component was running in it.
    pub(crate) fn process_exited(&self) {
        self.has_crashed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the component has to run in a process of its own.
    pub(crate) fn is_isolated(&self) -> bool {
        self.has_crashed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 92, threat 18
    fn component_that_crashed_is_isolated_when_it_is_loaded_again() {
        let tracker = CrashTracker::default();
        let (crashed, other) = (tracker.record_of("a"), tracker.record_of("b"));
        crashed.process_exited();
        drop((crashed, other));
        assert!(tracker.record_of("a").is_isolated() && !tracker.record_of("b").is_isolated());
        drop(tracker.record_of("c"));
        assert_eq!(tracker.0.lock().len(), 2, "of `b` there is nothing to remember");
    }
}
