//! Serves the kubelet's requests, and applies snapshots of pods to claims.

use akri_kubelet::resource::Preference;
use akri_model::names::{Identity, resource_name};
use tracing::{info, warn};

use super::published::PublishedInstance;
use super::resource::{Command, Target};
use super::{OwnerState, claims, configuration_resource};
use crate::pod_resources_poller::{DuplicateAllocations, UsageSnapshot};

impl OwnerState {
    pub(super) fn serve(&mut self, command: Command) {
        match command {
            Command::Allocate { target, containers, reply } => self.allocate(target, containers, reply),
            Command::Prefer { target, containers, reply } => {
                let _ = reply.send(self.prefer(&target, &containers)); // the kubelet may have given up
            }
            Command::Holds { target, ids, reply } => {
                let _ = reply.send(self.holds(&target, &ids));
            }
        }
    }

    fn prefer(&self, target: &Target, containers: &[Preference]) -> Vec<Vec<String>> {
        match target {
            Target::Configuration => configuration_resource::prefer(&self.published, containers),
            Target::Instance(identity) => {
                let published = self.published.get(identity);
                let prefer = |published| containers.iter().map(|wanted| claims::prefer(published, wanted)).collect();
                published.map(prefer).unwrap_or_default()
            }
        }
    }

    fn holds(&self, target: &Target, ids: &[String]) -> bool {
        match target {
            Target::Configuration => configuration_resource::holds(&self.published, ids),
            Target::Instance(identity) => {
                self.published.get(identity).is_some_and(|published| claims::holds(published, ids))
            }
        }
    }

    /// Judges all claims by a snapshot of what containers use, and releases those that have ended.
    pub(super) async fn apply_snapshot(&mut self, snapshot: &UsageSnapshot) {
        let Some(info) = snapshot.info else { return };
        self.record_duplicates(&snapshot.duplicates);
        let configuration_resource = resource_name(&self.configuration.key.name);
        let mut ended = Vec::new();
        let (mut seen, mut refresh_configuration_resource) = (Vec::new(), false);
        for (identity, published) in &mut self.published {
            let own = resource_name(&published.entry().key.name);
            let observed = published.apply_snapshot(&own, &configuration_resource, snapshot, &info);
            refresh_configuration_resource |= observed.refresh.1;
            if observed.refresh.0 {
                published.refresh();
            }
            if observed.seen {
                seen.push(identity.clone());
            }
            if !observed.ended.is_empty() {
                ended.push((identity.clone(), observed.ended));
            }
        }
        if refresh_configuration_resource {
            self.configuration_resource.refresh(&self.published);
        }
        let seen = seen.iter().filter_map(|identity| self.published.get(identity));
        futures::future::join_all(seen.map(|published| self.save(published))).await;
        for (identity, slots) in ended {
            self.release(&identity, &slots).await;
        }
        self.orphans.release(snapshot, &self.context.journal).await;
    }

    /// Two pods that have one ID are the kubelet's doing: an Event says so once, and neither loses it (rule 21).
    fn record_duplicates(&mut self, duplicates: &DuplicateAllocations) {
        self.duplicates.retain(|slot| duplicates.contains_key(slot));
        for (slot, pods) in duplicates {
            if self.duplicates.contains(slot) {
                continue;
            }
            let (resource, id) = slot;
            let message = format!("pods {pods} have '{id}' of {resource} at once");
            let of_this = |published: &&PublishedInstance| resource_name(&published.entry().key.name) == *resource;
            let object_event = if *resource == resource_name(&self.configuration.key.name) {
                self.object_event("SlotUsedTwice", message)
            } else if let Some(published) = self.published.values().find(of_this) {
                published.object_event("SlotUsedTwice", message)
            } else {
                continue; // another Configuration's
            };
            self.duplicates.insert(slot.clone());
            self.context.metrics.used_twice();
            self.context.cluster.record_event(object_event);
        }
    }

    /// Gives slots back. The journal has that before the kubelet and the cluster: an agent that starts again must not take them for
    /// held while a release of before is on its way (rule 41).
    async fn release(&mut self, identity: &Identity, slots: &[u32]) {
        let Some(published) = self.published.get_mut(identity) else { return };
        let before = published.slots.clone();
        slots.iter().for_each(|slot| published.slots.release(*slot));
        let (journal, entry) = (self.context.journal.clone(), published.journal_entry());
        if let Err(error) = journal.put(entry).await {
            warn!(%error, ?slots, "the release is not in the journal; retrying");
            published.slots = before;
            return;
        }
        published.forget_edits();
        info!(instance = %published.entry().key, ?slots, "released: no container uses them");
        slots.iter().for_each(|_| self.context.metrics.reclaimed());
        self.unsynced.insert(identity.clone());
        self.advertise_and_publish(identity);
    }
}
