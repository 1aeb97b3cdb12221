//! Claims that outlive their Instance: its Configuration was deleted, or deleted and made again, and containers still use the
//! device. They stay in the journal until no container uses them, or the device has an Instance again (rule 43).

use std::collections::BTreeMap;

use akri_model::claim::{Claims, Entry};
use akri_model::names::{Identity, Key, resource_name};
use tracing::{debug, info};

use super::published::PublishedInstance;
use crate::journal::Journal;
use crate::pod_resources_poller::{ClaimTracker, UsageSnapshot};

/// Claims without an Instance, by device.
#[derive(Default)]
pub struct Orphans(BTreeMap<Identity, PublishedInstance>);

impl Orphans {
    /// Keeps the claims of an entry of the journal, if it has any.
    pub fn keep(&mut self, entry: Entry, node: &str, tracker: &ClaimTracker) -> bool {
        // It belongs to no Configuration and no Instance any more, also if the next ones have the same UIDs (local mode).
        let entry = Entry { shared: false, uid: String::new(), configuration_uid: String::new(), ..entry };
        let published = PublishedInstance::new(entry, node, tracker, false);
        let has_claims = published.slots.claims().next().is_some();
        if has_claims {
            self.0.insert(published.entry().identity.clone(), published);
        }
        has_claims
    }

    /// Returns the claims on a device, for its new Instance.
    pub(super) fn claims_of(&self, identity: &Identity) -> Claims {
        self.0.get(identity).map(|published| published.journal_entry().claims).unwrap_or_default()
    }

    /// Returns whether there are claims on a device under the name of an Instance.
    pub(super) fn has(&self, identity: &Identity, key: &Key) -> bool {
        self.0.get(identity).is_some_and(|published| published.entry().key == *key)
    }

    /// The new Instance of a device has its claims. Returns the name under which the journal has them.
    pub(super) fn take(&mut self, identity: &Identity) -> Option<Key> {
        self.0.remove(identity).map(|published| published.entry().key.clone())
    }

    /// Takes all of one Configuration's, for its new owner.
    pub fn take_of(&mut self, configuration: &Key) -> Vec<Entry> {
        let is_of = |published: &PublishedInstance| {
            let entry = published.entry();
            (&entry.key.namespace, &entry.configuration) == (&configuration.namespace, &configuration.name)
        };
        self.0.extract_if(.., |_, published| is_of(published)).map(|(_, one)| one.journal_entry()).collect()
    }

    /// Ends all here; what is left stays in the journal.
    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.0.into_values().map(|published| published.journal_entry()).collect()
    }

    /// The number of claims.
    pub fn len(&self) -> usize {
        self.0.values().map(|published| published.slots.claims().count()).sum()
    }

    /// Returns whether there are no claims.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the claims that no container uses any more, and writes the journal.
    pub async fn release(&mut self, snapshot: &UsageSnapshot, journal: &Journal) {
        for (key, entry) in self.apply_snapshot(snapshot) {
            let written = match entry {
                Some(entry) => journal.put(entry).await,
                None => journal.remove(key.clone()).await,
            };
            if let Err(error) = written {
                debug!(instance = %key, "{error}");
            }
        }
    }

    /// Ends the claims that no container uses any more. Returns the journal's new entries; `None` removes one.
    fn apply_snapshot(&mut self, snapshot: &UsageSnapshot) -> Vec<(Key, Option<Entry>)> {
        let Some(info) = snapshot.info else { return Vec::new() };
        let mut changes = Vec::new();
        self.0.retain(|_, published| {
            let (own, configuration_resource) = (&published.entry().key.name, &published.entry().configuration);
            let (own, configuration_resource) = (resource_name(own), resource_name(configuration_resource));
            // No lists are sent for the resource any more, so that the checkpoint may be older than the end of the pod.
            let all_seen = published.slots.claims().all(|(_, claim)| claim.observation.is_seen());
            let checkpoint = snapshot.checkpoint.clone().filter(|_| !all_seen);
            let snapshot = UsageSnapshot { checkpoint, ..snapshot.clone() };
            let observed = published.apply_snapshot(&own, &configuration_resource, &snapshot, &info);
            observed.ended.iter().for_each(|slot| published.slots.release(*slot));
            let is_used = published.slots.claims().next().is_some();
            if !observed.ended.is_empty() {
                info!(instance = %published.entry().key, slots = ?observed.ended, "claims without an Instance have ended");
                let entry = is_used.then(|| published.journal_entry());
                changes.push((published.entry().key.clone(), entry));
            }
            is_used
        });
        changes
    }
}
