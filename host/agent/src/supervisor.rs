//! The supervisor of owners: one for each Configuration of this node.

use std::collections::BTreeMap;
use std::sync::Arc;

use akri_cluster::{ConfigurationReport, Manifests, Report};
use akri_discovery::sources::Providers;
use akri_model::claim::Entry;
use akri_model::claim_machine::{OrphanRecord, Orphans};
use akri_model::configuration::Configuration;
use akri_model::configuration_status::ConfigurationStatus;
use akri_model::names::{Key, short_name};
use akri_model::reclaim::UsageSnapshot;
use futures::future::join_all;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::owner::{Context, Owner, record_orphans};

/// Keeps an owner for each Configuration.
pub(crate) struct Supervisor {
    context: Arc<Context>,
    owners: BTreeMap<Key, Owner>,
    /// Journal entries of Configurations that have no owner yet.
    entries: BTreeMap<Key, Entry>,
    /// Claims of containers whose Configuration is gone.
    orphans: Orphans,
    /// Configurations that are not served, by UID and generation, and which one is instead.
    refused: BTreeMap<Key, (String, i64, Key)>,
}

impl Supervisor {
    /// Creates a supervisor with the entries of the journal.
    pub(crate) fn new(context: Arc<Context>, entries: BTreeMap<Key, Entry>) -> Self {
        Self { context, owners: BTreeMap::new(), entries, orphans: Orphans::default(), refused: BTreeMap::new() }
    }

    /// Serves Configurations until `stop` or the end of the manifests.
    pub(crate) async fn run(
        mut self,
        mut manifests: watch::Receiver<Arc<Manifests>>,
        providers: Providers,
        stop: impl Future<Output = ()>,
    ) -> Self {
        tokio::pin!(stop);
        let mut snapshots = self.context.snapshots.clone();
        loop {
            let now = manifests.borrow_and_update().clone();
            self.reconcile(&now, &providers).await;
            if now.complete {
                self.context.startup.listed();
            }
            loop {
                tokio::select! {
                    () = &mut stop => return self,
                    changed = manifests.changed() => if changed.is_err() { return self } else { break },
                    Ok(()) = snapshots.changed() => {
                        let snapshot = snapshots.borrow_and_update().clone();
                        if let Some(snapshot) = snapshot {
                            self.release_orphans(&snapshot);
                        }
                    }
                }
            }
        }
    }

    /// Ends claims of Configurations that are gone, when no container uses them any more (rule 43).
    fn release_orphans(&mut self, snapshot: &UsageSnapshot) {
        let (ended, needs_refresh) = self.change_orphans(|orphans| orphans.apply_snapshot(snapshot));
        record_orphans(&self.context, ended);
        if needs_refresh {
            self.context.refresher.refresh();
        }
    }

    /// Keeps the claims of entries. Returns what the journal has to hold then.
    fn keep_orphans(&mut self, entries: Vec<Entry>) -> Vec<OrphanRecord> {
        let (context, moment) = (Arc::clone(&self.context), self.context.claims.moment());
        let keep =
            |orphans: &mut Orphans| entries.into_iter().map(|of| orphans.keep(of, &context.node, moment)).collect();
        self.change_orphans(keep)
    }

    /// Changes orphans, and counts their claims.
    fn change_orphans<T>(&mut self, change: impl FnOnce(&mut Orphans) -> T) -> T {
        let result = change(&mut self.orphans);
        self.context.claims.count(None, self.orphans.claims());
        result
    }

    async fn reconcile(&mut self, manifests: &Manifests, providers: &Providers) {
        if manifests.complete {
            self.remove_gone(manifests).await;
        }
        let holders: BTreeMap<&str, &Arc<Configuration>> = holders(manifests);
        for configuration in manifests.configurations.values() {
            match holders.get(&*configuration.key.name) {
                Some(holder) if holder.key != configuration.key => self.refuse(configuration, &holder.key).await,
                _ => self.serve(configuration, providers).await,
            }
        }
    }

    /// A Configuration that was deleted and made again is another one: the Instances of the old one go with it (rule 26).
    async fn serve(&mut self, configuration: &Arc<Configuration>, providers: &Providers) {
        let key = &configuration.key;
        self.refused.remove(key);
        if self.owners.get(key).is_some_and(|owner| owner.uid() != configuration.uid) {
            let old = self.owners.remove(key);
            self.delete(old).await;
        }
        if let Some(owner) = self.owners.get(key) {
            return owner.update(Arc::clone(configuration));
        }
        info!(configuration = %key, handler = configuration.handler, "serving a Configuration");
        let entries = self.journal_entries(key);
        let owner = Owner::start(Arc::clone(&self.context), Arc::clone(configuration), entries, providers.clone());
        self.owners.insert(key.clone(), owner);
    }

    /// Refuses a Configuration whose name is held by another one (rule 29); its status says so.
    async fn refuse(&mut self, configuration: &Configuration, holder: &Key) {
        let owner = self.owners.remove(&configuration.key);
        self.delete(owner).await;
        let refused = (configuration.uid.clone(), configuration.generation, holder.clone());
        if self.refused.insert(configuration.key.clone(), refused.clone()) == Some(refused) {
            return;
        }
        let taken = [(holder.name.clone(), holder.clone())].into();
        let status = ConfigurationStatus { taken, ..ConfigurationStatus::default() };
        let message = status.problem().map(|problem| problem.message).unwrap_or_default();
        error!(configuration = %configuration.key, "Configuration not served: {message}");
        self.context.publisher.report(Report::Configuration(ConfigurationReport {
            key: configuration.key.clone(),
            uid: configuration.uid.clone(),
            generation: configuration.generation,
            status,
        }));
    }

    /// Deletes owners with their Instances, all at once: the kubelet may take seconds for each.
    async fn delete(&mut self, owners: impl IntoIterator<Item = Owner>) {
        let kept = join_all(owners.into_iter().map(Owner::delete)).await;
        self.keep_orphans(kept.into_iter().flatten().collect()); // they are in the journal
    }

    fn journal_entries(&mut self, configuration: &Key) -> Vec<Entry> {
        let mut entries = self.change_orphans(|orphans| orphans.take_of(configuration));
        let is_its = |_: &Key, entry: &mut Entry| entry.configuration_key() == *configuration;
        entries.extend(self.entries.extract_if(.., is_its).map(|(_, entry)| entry));
        entries
    }

    async fn remove_gone(&mut self, manifests: &Manifests) {
        for (key, _) in self.refused.extract_if(.., |key, _| !manifests.configurations.contains_key(key)) {
            info!(configuration = %key, "Configuration is gone; it had no resource");
            self.context.publisher.forget(key);
        }
        let gone = self.owners.extract_if(.., |key, _| !manifests.configurations.contains_key(key));
        let gone: Vec<Owner> = gone
            .map(|(key, owner)| {
                info!(configuration = %key, "Configuration is gone, its Instances go too");
                owner
            })
            .collect();
        self.delete(gone).await;
        let exists = |entry: &Entry| {
            let of = entry.configuration_key();
            manifests.configurations.contains_key(&of) || manifests.invalid.contains(&of)
        };
        let mut deleted = Vec::new();
        for (key, entry) in self.entries.extract_if(.., |_, entry| !exists(entry)).collect::<Vec<_>>() {
            info!(instance = %key, "its Configuration was deleted while the agent was stopped; deleting it");
            if let Some(cdi) = &self.context.cdi {
                cdi.remove(&entry.configuration, short_name(&entry.configuration, &key.name)).await;
            }
            if !entry.claims.is_empty() {
                warn!(instance = %key, "containers still use it: its claims are kept");
            }
            self.context.publisher.delete(key, entry.uid.clone(), !entry.claims.is_empty());
            deleted.push(entry);
        }
        let records = self.keep_orphans(deleted);
        record_orphans(&self.context, records);
    }

    /// Stops all owners; Instances stay as they are.
    pub(crate) async fn stop(self) {
        join_all(self.owners.into_values().map(Owner::stop)).await;
    }
}

/// Returns the Configuration that has each name.
fn holders(manifests: &Manifests) -> BTreeMap<&str, &Arc<Configuration>> {
    let mut all: Vec<&Arc<Configuration>> = manifests.configurations.values().collect();
    all.sort_unstable_by(|one, other| other.rank().cmp(&one.rank())); // the last one of a name has it
    all.into_iter().map(|configuration| (configuration.key.name.as_str(), configuration)).collect()
}
