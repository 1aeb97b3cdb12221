//! Claims that outlive their Instance: its Configuration was deleted, or deleted and made again, and containers still use the
//! device. They stay in the journal until no container uses them, or the device has an Instance again (rule 43). What other
//! nodes used of it stays until the device has one, too (rule 103).

use std::collections::BTreeMap;

use super::{ManagedInstance, Moment};
use crate::claim::{Claims, Entry};
use crate::names::{Identity, Key};
use crate::reclaim::UsageSnapshot;
use crate::slots::{Authority, OtherUsage};

/// Maximum number of devices without an Instance of which only the usage of others is kept.
const MAX_OTHERS: usize = 4096;

/// Claims without an Instance, and what others used, by device.
#[derive(Debug, Clone, Default, Hash)]
pub struct Orphans(BTreeMap<Identity, ManagedInstance>);

/// A change of the journal's entry of a device without an Instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OrphanRecord {
    /// The name of the Instance that it had.
    pub key: Key,
    /// The new entry; `None` removes it.
    pub entry: Option<Entry>,
    /// Slots whose claims have ended.
    pub ended: Vec<u32>,
}

impl OrphanRecord {
    /// Returns the removal of an entry.
    pub(super) fn removal(key: Key) -> Self {
        Self { key, entry: None, ended: Vec::new() }
    }
}

impl Orphans {
    /// Keeps the claims of an entry of the journal and the usage of others. Returns what becomes of the entry.
    pub fn keep(&mut self, entry: Entry, node: &str, moment: Moment) -> OrphanRecord {
        // It belongs to no Configuration and no Instance any more, also if the next ones have the same UIDs (local mode).
        let orphan = Entry { uid: String::new(), configuration_uid: String::new(), ..entry.clone() };
        let orphan = ManagedInstance::with_authority(orphan, node, Authority::None, moment);
        if orphan.is_used() || (!entry.others.slots.is_empty() && self.0.len() < MAX_OTHERS) {
            self.0.insert(entry.identity.clone(), orphan);
            return OrphanRecord { key: entry.key.clone(), entry: Some(entry), ended: Vec::new() };
        }
        OrphanRecord::removal(entry.key)
    }

    /// Returns what is kept of a device.
    pub fn get(&self, identity: &Identity) -> Option<&ManagedInstance> {
        self.0.get(identity)
    }

    /// Returns the claims on a device and what others used of it, for its new Instance.
    pub fn of(&self, identity: &Identity) -> (Claims, OtherUsage) {
        let entry = self.get(identity).map(ManagedInstance::journal_entry);
        entry.map(|entry| (entry.claims, entry.others)).unwrap_or_default()
    }

    /// Returns whether there are claims on a device under the name of an Instance.
    pub fn has(&self, identity: &Identity, key: &Key) -> bool {
        self.get(identity).is_some_and(|orphan| orphan.entry().key == *key)
    }

    /// The new Instance of a device has its claims. Returns the name under which the journal has them.
    pub(super) fn take(&mut self, identity: &Identity) -> Option<Key> {
        self.0.remove(identity).map(|orphan| orphan.entry().key.clone())
    }

    /// Takes all of one Configuration's, for its new owner.
    pub fn take_of(&mut self, configuration: &Key) -> Vec<Entry> {
        let is_of = |orphan: &ManagedInstance| {
            let entry = orphan.entry();
            (&entry.key.namespace, &entry.configuration) == (&configuration.namespace, &configuration.name)
        };
        self.0.extract_if(.., |_, orphan| is_of(orphan)).map(|(_, orphan)| orphan.journal_entry()).collect()
    }

    /// Ends all here; what is left stays in the journal.
    pub fn into_entries(self) -> Vec<Entry> {
        self.0.into_values().map(|orphan| orphan.journal_entry()).collect()
    }

    /// The number of claims.
    pub fn claims(&self) -> usize {
        self.0.values().map(|orphan| orphan.slots().claims().count()).sum()
    }

    /// Ends the claims that no container uses any more. Returns what the journal has to hold then, and whether the kubelet has to
    /// write its checkpoint before others can be judged.
    pub fn apply_snapshot(&mut self, snapshot: &UsageSnapshot) -> (Vec<OrphanRecord>, bool) {
        let (mut records, mut needs_refresh) = (Vec::new(), false);
        self.0.retain(|_, orphan| {
            let (ended, refresh) = orphan.end_claims(snapshot);
            needs_refresh |= refresh;
            if ended.is_empty() {
                return true;
            }
            let entry = orphan.journal_entry();
            let is_kept = orphan.is_used() || !entry.others.slots.is_empty();
            records.push(OrphanRecord { key: entry.key.clone(), entry: is_kept.then_some(entry), ended });
            is_kept
        });
        (records, needs_refresh)
    }
}
