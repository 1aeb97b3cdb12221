//! Claims that outlive their Instance: its Configuration was deleted, or deleted and made again, and containers still use the
//! device. They stay in the journal until no container uses them, or the device has an Instance again (rule 43). What other
//! nodes used of it stays until the device has one, too (rule 103).

use std::collections::BTreeMap;

use akri_model::claim::{Claims, Entry};
use akri_model::claim_machine::ManagedInstance;
use akri_model::names::{Identity, Key};
use akri_model::reclaim::UsageSnapshot;
use akri_model::slots::OtherUsage;
use tracing::{debug, info};

use crate::journal::Journal;
use crate::pod_resources_poller::ClaimTracker;

/// Maximum number of devices without an Instance of which only the usage of others is kept.
const MAX_OTHERS: usize = 4096;

/// Claims without an Instance, and what others used, by device.
#[derive(Default)]
pub struct Orphans(BTreeMap<Identity, Orphan>);

struct Orphan {
    claims: ManagedInstance,
    others: OtherUsage,
}

impl Orphan {
    fn journal_entry(&self) -> Entry {
        Entry { others: self.others.clone(), ..self.claims.journal_entry() }
    }
}

impl Orphans {
    /// Keeps the claims of an entry of the journal and the usage of others, if it has any.
    pub fn keep(&mut self, mut entry: Entry, node: &str, tracker: &ClaimTracker) -> bool {
        let others = std::mem::take(&mut entry.others);
        // It belongs to no Configuration and no Instance any more, also if the next ones have the same UIDs (local mode).
        let entry = Entry { uid: String::new(), configuration_uid: String::new(), ..entry };
        let claims = ManagedInstance::without_instance(entry, node, tracker.moment());
        let is_kept = claims.is_used() || (!others.slots.is_empty() && self.0.len() < MAX_OTHERS);
        if is_kept {
            self.0.insert(claims.entry().identity.clone(), Orphan { claims, others });
        }
        is_kept
    }

    /// Returns the claims on a device and what others used of it, for its new Instance.
    pub(super) fn of(&self, identity: &Identity) -> (Claims, OtherUsage) {
        let entry = self.0.get(identity).map(Orphan::journal_entry);
        entry.map(|entry| (entry.claims, entry.others)).unwrap_or_default()
    }

    /// Returns whether there are claims on a device under the name of an Instance.
    pub(super) fn has(&self, identity: &Identity, key: &Key) -> bool {
        self.0.get(identity).is_some_and(|orphan| orphan.claims.entry().key == *key)
    }

    /// The new Instance of a device has its claims. Returns the name under which the journal has them.
    pub(super) fn take(&mut self, identity: &Identity) -> Option<Key> {
        self.0.remove(identity).map(|orphan| orphan.claims.entry().key.clone())
    }

    /// Takes all of one Configuration's, for its new owner.
    pub fn take_of(&mut self, configuration: &Key) -> Vec<Entry> {
        let is_of = |orphan: &Orphan| {
            let entry = orphan.claims.entry();
            (&entry.key.namespace, &entry.configuration) == (&configuration.namespace, &configuration.name)
        };
        self.0.extract_if(.., |_, orphan| is_of(orphan)).map(|(_, orphan)| orphan.journal_entry()).collect()
    }

    /// Ends all here; what is left stays in the journal.
    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.0.into_values().map(|orphan| orphan.journal_entry()).collect()
    }

    /// The number of claims.
    pub fn len(&self) -> usize {
        self.0.values().map(|orphan| orphan.claims.slots().claims().count()).sum()
    }

    /// Returns whether there are no claims.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the claims that no container uses any more, and writes the journal. Returns whether the kubelet has to write its
    /// checkpoint before others can be judged.
    pub async fn release(&mut self, snapshot: &UsageSnapshot, journal: &Journal) -> bool {
        let (changes, needs_refresh) = self.apply_snapshot(snapshot);
        for (key, entry) in changes {
            let written = match entry {
                Some(entry) => journal.put(entry).await,
                None => journal.remove(key.clone()).await,
            };
            if let Err(error) = written {
                debug!(instance = %key, "{error}");
            }
        }
        needs_refresh
    }

    /// Ends the claims that no container uses any more. Returns the journal's new entries; `None` removes one.
    fn apply_snapshot(&mut self, snapshot: &UsageSnapshot) -> (Vec<(Key, Option<Entry>)>, bool) {
        let (mut changes, mut needs_refresh) = (Vec::new(), false);
        self.0.retain(|_, orphan| {
            let (ended, refresh) = orphan.claims.end_claims(snapshot);
            needs_refresh |= refresh;
            let is_kept = orphan.claims.is_used() || !orphan.others.slots.is_empty();
            if !ended.is_empty() {
                let key = &orphan.claims.entry().key;
                info!(instance = %key, slots = ?ended, "claims without an Instance have ended");
                changes.push((key.clone(), is_kept.then(|| orphan.journal_entry())));
            }
            is_kept
        });
        (changes, needs_refresh)
    }
}
