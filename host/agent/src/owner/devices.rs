//! From rounds to Instances: devices come, change, go missing and end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use akri_cluster::UsagePublishing;
use akri_kubelet::Plugin;
use akri_model::device::{Device, DeviceSet};
use akri_model::edits::ContainerEdits;
use akri_model::instance::Online;
use akri_model::names::{HashInput, Identity, Key, Usage, parse_slot_name};
use akri_model::plan::{Known, Plan, plan};
use akri_model::publishing::PublishingBudget;
use akri_model::retry::{Backoff, jitter};
use akri_model::slots::Claim;
use akri_model::sources::{MergedDevices, MergedResult};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::naming::{self, BoundInstance, NamingError, PendingInstance};
use super::published::PublishedInstance;
use super::{NamingResult, OwnerState};

/// The last devices of the discovery sources. Some may have no Instance yet, and sources report changes only.
#[derive(Default)]
pub(super) struct LastSet {
    found: Option<(DeviceSet, bool)>,
    /// The value of `shared` if no source has declared it: that of the devices known from before a restart.
    pub(super) default_shared: bool,
    /// Set if it came while Instances were being created: one may be of a device that has gone by now.
    overtook: bool,
    backoff: Backoff,
    /// The time of the next attempt to create those that failed, or that had to wait.
    pub(super) again: Option<Instant>,
    budget: PublishingBudget,
}

/// A device whose Instance is to be created. Dropping it ends that, unless it has begun.
pub(super) struct Pending(oneshot::Sender<()>);

impl Pending {
    fn has_begun(&self) -> bool {
        self.0.is_closed()
    }
}

impl OwnerState {
    /// Applies the combined result of all discovery sources.
    pub(super) async fn apply_result(&mut self, MergedResult { status, devices }: MergedResult) {
        if let Some(status) = status {
            self.health.discovery = status;
        }
        if let Some(MergedDevices { set, shared }) = devices {
            let lost_unpublished = self.health.retain_unpublished(&set);
            self.found(set, shared.unwrap_or(self.last.default_shared)).await;
            if lost_unpublished {
                self.apply_remote_usage().await; // one of them may have an Instance whose creation was not confirmed
            }
        }
    }

    /// Applies the last devices again.
    pub(super) async fn find_again(&mut self) {
        self.last.again = None;
        if let Some((set, shared)) = self.last.found.take() {
            self.found(set, shared).await;
        }
    }

    async fn found(&mut self, set: DeviceSet, shared: bool) {
        self.drop_pending(&set, shared);
        self.last.overtook = !self.pending.is_empty();
        let mut plan = self.plan(&set, shared);
        self.limit(&mut plan);
        for (identity, device) in plan.publish {
            self.create(identity, device, shared);
        }
        let mut touched = Vec::new();
        for (identity, device) in plan.change {
            if let Some(published) = self.published.get_mut(&identity) {
                let moved = published.set_device(device);
                moved.into_iter().for_each(|object_event| self.context.cluster.record_event(object_event));
                touched.push(identity);
            }
        }
        let changes = [(plan.online, Online::True), (plan.offline, Online::False), (plan.unknown, Online::Unknown)];
        let changes = changes.into_iter().flat_map(|(all, online)| all.into_iter().map(move |one| (one, online)));
        for (identity, online) in changes {
            if let Some(published) = self.published.get_mut(&identity) {
                published.set_online(online);
                touched.push(identity);
            }
        }
        let withheld =
            self.published.iter_mut().filter_map(|(id, published)| published.set_withheld(&set).then_some(id));
        touched.extend(withheld.cloned());
        self.last.found = Some((set, shared));
        self.changed(touched).await;
    }

    /// Returns the devices of the newest set.
    pub(super) fn found_identities(&self) -> BTreeSet<Identity> {
        self.last.found.as_ref().map(|(set, shared)| self.identities(set, *shared)).unwrap_or_default()
    }

    fn identities(&self, set: &DeviceSet, shared: bool) -> BTreeSet<Identity> {
        let identity = |device: &Device| HashInput::new(&device.id, shared, &self.context.node).identity();
        set.devices.iter().map(identity).collect()
    }

    pub(super) fn plan(&self, set: &DeviceSet, shared: bool) -> Plan {
        let known: BTreeMap<Identity, Known<'_>> =
            self.published.iter().map(|(identity, published)| (identity.clone(), published.known())).collect();
        let mut plan = plan(set, &known, shared, &self.context.node);
        plan.publish.retain(|(identity, _)| !self.pending.contains_key(identity));
        plan
    }

    pub(super) fn create(&mut self, identity: Identity, device: Device, shared: bool) {
        let (sender, mut dropped) = oneshot::channel();
        // It may be joined again, and that may not be confirmed.
        self.leaving.retain(|_, (of, _)| *of != identity);
        self.pending.insert(identity.clone(), Pending(sender));
        let (context, claims) = (Arc::clone(&self.context), self.orphans.claims_of(&identity));
        let pending =
            PendingInstance { configuration: Arc::clone(&self.configuration), device, identity, shared, claims };
        self.naming.spawn(async move {
            let _permit = tokio::select! {
                permit = context.naming.acquire() => permit,
                _ = &mut dropped => return None,
            };
            drop(dropped);
            let named = naming::name(&context, &pending).await;
            Some((pending.identity, pending.device, named))
        });
    }

    /// Forgets devices whose Instances have not been begun and that are not in the newest set: ids that change each round
    /// would pile up.
    fn drop_pending(&mut self, set: &DeviceSet, shared: bool) {
        if self.pending.is_empty() {
            return;
        }
        let seen = self.identities(set, shared);
        self.pending.retain(|identity, pending| pending.has_begun() || seen.contains(identity));
    }

    /// Defers devices beyond the rate limit.
    fn limit(&mut self, plan: &mut Plan) {
        let now = Instant::now();
        let held = self.published.values().map(|published| published.entry().device.bytes()).sum();
        let deferred = self.last.budget.limit(plan, held, now.into_std());
        for device in &deferred.new {
            self.health.unpublished(
                device,
                "more devices than a Configuration may have, or than may be new at once; it waits for its turn",
            );
        }
        if let Some(wait) = deferred.wait {
            let (new, changed) = (deferred.new.len(), deferred.changed);
            debug!(configuration = %self.configuration.key, new, changed, "devices wait for their turn");
            self.last.again.get_or_insert(now + wait);
        }
    }

    /// A device got its Instance, or not.
    pub(super) async fn named(&mut self, result: NamingResult) {
        if let Some((identity, device, named)) = result {
            self.pending.remove(&identity);
            match named {
                Ok(named) => self.publish(&device, named).await,
                Err(error) => self.not_named(&device, &error),
            }
        }
        if self.pending.is_empty() && self.last.overtook {
            self.find_again().await;
            self.apply_remote_usage().await; // as after a set that lacks a device without an Instance
        }
    }

    /// A later round, or after a pause the same devices once more, will try again.
    fn not_named(&mut self, device: &Device, error: &NamingError) {
        if let NamingError::Journal(error) = error {
            debug!(configuration = %self.configuration.key, device = device.id, "no Instance: {error}"); // it is in the log
        } else {
            warn!(configuration = %self.configuration.key, device = device.id, "no Instance: {error}");
        }
        self.health.unpublished(&device.id, &error.to_string());
        self.warn_unpublished(device, error);
        if self.last.again.is_none() {
            self.last.again = Some(Instant::now() + self.last.backoff.failed(jitter()));
        }
    }

    async fn publish(&mut self, device: &Device, bound: BoundInstance) {
        self.last.backoff.reset();
        let BoundInstance { entry, instance } = bound;
        info!(instance = %entry.key, device = device.id, "published");
        self.health.published(&device.id);
        let identity = entry.identity.clone();
        if let Some(old) = self.orphans.take(&identity).filter(|old| *old != entry.key) {
            self.forget(old).await;
        }
        let mut published = PublishedInstance::new(entry, &self.context.node, &self.context.claims, false);
        published.resize(self.configuration.capacity);
        published.slots.reserve(self.context.reservations.take(&self.configuration.key, &identity));
        self.leaving.remove(&published.entry().uid);
        self.published.insert(identity.clone(), published);
        self.observe(&identity, Some(&instance)).await;
        self.restore_lost(&identity);
        self.changed(vec![identity]).await;
    }

    /// Takes over claims that the journal has lost and the kubelet's checkpoint has (rule 45).
    pub(super) fn restore_lost(&mut self, identity: &Identity) {
        let Some(published) = self.published.get_mut(identity) else { return };
        let name = &published.entry().key.name;
        let of_this = |(slot, usage): (&String, &Usage)| Some((parse_slot_name(name, slot)?, usage.clone()));
        let witnessed: Vec<(u32, Usage)> = self.context.checkpointed.iter().filter_map(of_this).collect();
        let claims = witnessed.into_iter().map(|(slot, usage)| {
            let (generation, observation) = (self.context.claims.next_generation(), self.context.claims.observation());
            (slot, Claim { usage, generation, observation })
        });
        for slot in published.slots.add_lost(claims) {
            warn!(instance = %published.entry().key, slot, "restored from the kubelet's checkpoint: the journal lost it");
        }
    }

    /// Records an Event for a device that can't have an Instance (rule 30), and none for a device that only waits.
    fn warn_unpublished(&self, device: &Device, error: &NamingError) {
        if matches!(error, NamingError::TooLong { .. } | NamingError::AllTaken) {
            self.context
                .cluster
                .record_event(self.object_event("NotPublished", format!("device '{}': {error}", device.id)));
        }
    }

    /// Advertises, publishes and journals changed Instances. The kubelet gets all lists before the first write to the disk.
    pub(super) async fn changed(&mut self, identities: Vec<Identity>) {
        for identity in &identities {
            self.advertise_and_publish(identity);
        }
        let changed = identities.iter().filter_map(|identity| self.published.get(identity));
        futures::future::join_all(changed.map(|published| self.save(published))).await;
        self.write_cdi(identities).await;
    }

    /// Shows the kubelet and the cluster an Instance as it is now.
    pub(super) fn advertise_and_publish(&mut self, identity: &Identity) {
        self.unsynced.insert(identity.clone());
        if let Some(published) = self.published.get(identity) {
            published.advertise(false);
            // Information of brokers is published only of slots that the Instance shows as this node's.
            let usage = match self.configuration.broker_info {
                true => UsagePublishing::Immediate,
                false => UsagePublishing::Deferred,
            };
            self.context.publisher.publish(published.instance(&self.configuration, &self.context.node), usage);
        }
        self.serve_instance(identity);
    }

    /// Writes the CDI specifications of Instances, if that is wanted.
    pub(super) async fn write_cdi(&mut self, identities: Vec<Identity>) {
        let Some(cdi) = &self.context.cdi else { return };
        let write = async |published: &mut PublishedInstance| {
            let entry = published.entry();
            let properties = self.configuration.broker_view(&entry.device.properties);
            let edits = ContainerEdits::of_device(&entry.device, &properties, published.hash());
            let written = cdi.put(&entry.configuration, published.hash(), &edits).await;
            published.by_cdi = written && cdi.kubelet;
        };
        let identities: BTreeSet<Identity> = identities.into_iter().collect();
        let wanted = self.published.iter_mut().filter(|(identity, _)| identities.contains(identity));
        futures::future::join_all(wanted.map(|(_, published)| write(published))).await;
    }

    pub(super) async fn save(&self, published: &PublishedInstance) {
        if let Err(error) = self.context.journal.put(published.journal_entry()).await {
            debug!(instance = %published.entry().key, "{error}");
        }
    }

    pub(super) async fn forget(&self, key: Key) {
        if let Err(error) = self.context.journal.remove(key.clone()).await {
            debug!(instance = %key, "{error}");
        }
    }

    pub(super) fn grace(&self, published: &PublishedInstance) -> Duration {
        self.configuration.grace(published.entry().shared)
    }

    /// Returns the time at which the next missing device loses its Instance. An Instance whose slots are in use waits
    /// for their release.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let idle = self.published.values().filter(|published| published.slots.is_idle());
        idle.filter_map(|published| Some(published.missing_since? + self.grace(published))).min()
    }

    pub(super) async fn expire(&mut self) {
        self.totals.expiry = None; // until the next look
        let now = Instant::now();
        let expired = self.published.iter().filter(|(_, published)| {
            let due = published.missing_since.is_some_and(|since| since + self.grace(published) <= now);
            due && published.slots.is_idle()
        });
        let expired: Vec<Identity> = expired.map(|(identity, _)| identity.clone()).collect();
        self.remove(expired).await;
    }

    /// Takes Instances out of service: first the kubelet forgets them, then the cluster, then the journal.
    pub(super) async fn remove(&mut self, identities: Vec<Identity>) {
        let gone = identities.iter().filter_map(|identity| self.published.remove(identity));
        let mut gone: Vec<PublishedInstance> = gone.collect();
        // What is advertised has to outlive the plugin, or the kubelet gets no empty list.
        let plugins: Vec<Plugin> = gone.iter_mut().filter_map(|published| published.plugin.take()).collect();
        futures::future::join_all(plugins.into_iter().map(Plugin::close)).await;
        let mut kept = Vec::new();
        for published in &gone {
            let entry = published.entry();
            if let Some(cdi) = &self.context.cdi {
                cdi.remove(&entry.configuration, published.hash()).await;
            }
            self.context.resource_names.release(&entry.key.name, &self.configuration);
            self.health.claimed(&entry.key.name, None);
            let is_used = published.slots.claims().next().is_some();
            self.context.publisher.delete(entry.key.clone(), entry.uid.clone(), is_used);
            self.leaving.insert(entry.uid.clone(), (entry.identity.clone(), Instant::now()));
            info!(instance = %entry.key, "removed");
            let entry = published.journal_entry();
            if self.orphans.keep(entry.clone(), &self.context.node, &self.context.claims) {
                warn!(instance = %entry.key, claims = entry.claims.len(), "containers still use it: its claims are kept");
                kept.push(entry);
            } else {
                self.forget(entry.key).await;
            }
        }
        for entry in kept {
            let key = entry.key.clone();
            if let Err(error) = self.context.journal.put(entry).await {
                debug!(instance = %key, "{error}");
            }
        }
    }

    /// Returns when the first slots are no longer kept for others.
    pub(super) fn next_end_of_reservations(&mut self) -> Option<Instant> {
        self.published.values_mut().filter_map(PublishedInstance::reserved_until).min()
    }

    pub(super) async fn end_reservations(&mut self) {
        let mut ended = Vec::new();
        for (identity, published) in &mut self.published {
            if published.reserved_until().is_some_and(|until| until <= Instant::now()) {
                info!(instance = %published.entry().key, slots = ?published.slots.reserved(), "nobody claimed them again");
                published.slots.end_reservations();
                ended.push(identity.clone());
            }
        }
        self.changed(ended).await;
    }

    /// The Configuration is gone: its Instances may be made again, and others may still use them.
    pub(super) fn keep_reservations(&self) {
        for (identity, published) in &self.published {
            self.context.reservations.keep(&self.configuration.key, identity, published.slots.of_others());
        }
    }
}
