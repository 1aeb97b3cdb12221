//! From rounds to Instances: devices come, change, go missing and end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use akri_kubelet::Plugin;
use akri_model::claim_machine::ManagedInstance;
use akri_model::configuration::Configuration;
use akri_model::configuration_status::DiscoveryStatus;
use akri_model::container_paths;
use akri_model::device::{Device, DeviceSet};
use akri_model::discover_on::{Role, withhold_local};
use akri_model::edits::ContainerEdits;
use akri_model::events::DeviceEvent;
use akri_model::grant::Limits;
use akri_model::instance::Online;
use akri_model::names::{HashInput, Identity, parse_slot_name};
use akri_model::plan::{Known, Plan, plan};
use akri_model::publishing::{PublishingBudget, bounded_capacity, held_by};
use akri_model::retry::{Backoff, jitter};
use akri_model::sources::{MergedDevices, MergedResult};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::naming::{self, BoundInstance, NamingError, PendingInstance};
use super::served::ServedInstance;
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
    /// The time of the kernel event that led to the set that is being applied.
    event_at: Option<std::time::Instant>,
}

/// A device whose Instance is to be created, with the bytes that it will take. Dropping it ends that, unless it has begun.
pub(super) struct Pending {
    started: oneshot::Sender<()>,
    held: usize,
    /// The time of the kernel event that led to it.
    event_at: Option<std::time::Instant>,
}

impl OwnerState {
    /// Applies the combined result of all discovery sources.
    pub(super) async fn apply_result(&mut self, MergedResult { mut status, mut devices }: MergedResult) {
        if let Some(devices) = devices.as_mut().filter(|_| self.configuration.role == Role::Probes) {
            let shared = devices.shared.unwrap_or(self.last.default_shared);
            let has_local = withhold_local(&mut devices.set, shared, Limits::default().notes);
            status = status.map(|status| match status {
                DiscoveryStatus::Found { .. } if has_local => DiscoveryStatus::found(&devices.set),
                status => status,
            });
        }
        if let Some(status) = status {
            self.health.status.discovery = status;
        }
        if let Some(MergedDevices { set, shared, event_at }) = devices {
            let lost_unpublished = self.health.retain_unpublished(&set);
            self.last.event_at = event_at;
            self.found(set, shared.unwrap_or(self.last.default_shared)).await;
            self.last.event_at = None;
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

    /// Applies the last devices again; without any of its own, this node takes the Instances that others have made anew.
    pub(super) async fn retry_names(&mut self) {
        let finds = self.last.found.is_some();
        self.find_again().await;
        if !finds && self.drop_superseded().await {
            self.apply_remote_usage().await;
        }
    }

    async fn found(&mut self, set: DeviceSet, shared: bool) {
        self.drop_pending(&set, shared);
        self.update_names(&set, shared).await;
        self.last.overtook = !self.pending.is_empty();
        let mut plan = self.plan(&set, shared);
        self.limit(&mut plan);
        if shared {
            // All nodes have one order: the Instances that one has made are those that the others need next.
            plan.publish.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        }
        for (identity, device) in plan.publish {
            self.create(identity, device, shared);
        }
        for (identity, device) in plan.change {
            if self.machine.change(&identity).is_some_and(|instance| instance.set_device(device)) {
                let message = "containers that use the device keep its old node".to_owned();
                self.record_instance_event(&identity, "DeviceNodeChanged", message);
            }
        }
        let changes = [(plan.online, Online::True), (plan.offline, Online::False), (plan.unknown, Online::Unknown)];
        for (identity, online) in
            changes.into_iter().flat_map(|(all, online)| all.into_iter().map(move |one| (one, online)))
        {
            self.set_online(&identity, online);
        }
        let withheld = self.machine.instances().iter().filter_map(|(identity, instance)| {
            let withheld = instance.is_withheld_by(&set);
            (withheld != instance.entry().withheld).then(|| (identity.clone(), withheld))
        });
        for (identity, withheld) in withheld.collect::<Vec<_>>() {
            self.machine.change(&identity).into_iter().for_each(|instance| instance.set_withheld(withheld));
        }
        self.last.found = Some((set, shared));
    }

    pub(super) fn set_online(&mut self, identity: &Identity, online: Online) {
        let Some(instance) = self.machine.change(identity) else { return };
        instance.set_online(online);
        let change = match online {
            Online::True => "the device is back",
            Online::False => "the device is missing",
            Online::Unknown => "the device is unknown: its discovery handler has gone",
        };
        info!(instance = %instance.entry().key, "{change}");
        if let Some(served) = self.served.get_mut(identity) {
            served.missing_since = (online == Online::False).then(Instant::now);
        }
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
            self.machine.instances().iter().map(|(identity, one)| (identity.clone(), one.known())).collect();
        let mut plan = plan(set, &known, shared, &self.context.node);
        plan.publish.retain(|(identity, _)| !self.pending.contains_key(identity));
        plan
    }

    fn create(&mut self, identity: Identity, device: Device, shared: bool) {
        if self.machine.is_node_missing() {
            return; // once it is back, this is tried again
        }
        let (sender, mut dropped) = oneshot::channel();
        // It may be joined again, and that may not be confirmed.
        self.leaving.retain(|_, (of, _)| *of != identity);
        let held = held_by(&device, self.configuration.capacity);
        self.pending.insert(identity.clone(), Pending { started: sender, held, event_at: self.last.event_at });
        let (context, (claims, others)) = (Arc::clone(&self.context), self.machine.orphans().of(&identity));
        let configuration = Arc::clone(&self.configuration);
        // The kubelet lists a container with the name that it asked for: so a claim on that keeps the name (rule 43).
        let held = self.machine.orphans().get(&identity).filter(|orphan| orphan.is_held_by_name());
        let name = held.map(|orphan| orphan.entry().key.name.clone()).or_else(|| self.wanted_name(&identity));
        let left = self.names.left.get(&identity).cloned();
        let pending = PendingInstance { configuration, device, identity, shared, claims, others, name, left };
        self.naming.spawn(async move {
            let _permit = tokio::select! {
                biased; // one that was dropped may have another task already
                _ = &mut dropped => return None,
                permit = context.naming.acquire() => permit,
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
        self.pending.retain(|identity, pending| pending.started.is_closed() || seen.contains(identity));
    }

    /// Defers devices beyond the rate limit.
    fn limit(&mut self, plan: &mut Plan) {
        let now = Instant::now();
        let capacity = self.configuration.capacity;
        let published = self.machine.instances().values().map(|instance| held_by(&instance.entry().device, capacity));
        let held = published.chain(self.pending.values().map(|pending| pending.held)).sum();
        let deferred = self.last.budget.limit(plan, held, capacity, now.into_std());
        for device in &deferred.new {
            let why = "more devices and slots than a Configuration may have, or more than may be new at once; it waits \
                       for its turn";
            self.health.unpublished.insert(device.clone(), why.to_owned());
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
            let event_at = self.pending.remove(&identity).and_then(|pending| pending.event_at);
            match named {
                Ok(named) => {
                    self.publish(&device, named);
                    if let Some(at) = event_at {
                        self.context.metrics.plug_to_offer.observe(at.elapsed().as_secs_f64());
                    }
                }
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
        self.health.unpublished.insert(device.id.clone(), error.to_string());
        // A device that can't have an Instance gets an Event (rule 30), and none that only waits.
        if matches!(error, NamingError::TooLong { .. } | NamingError::AllTaken) {
            self.record_event("NotPublished", format!("device '{}': {error}", device.id));
        }
        if self.last.again.is_none() {
            self.last.again = Some(Instant::now() + self.last.backoff.failed(jitter()));
        }
    }

    fn publish(&mut self, device: &Device, bound: BoundInstance) {
        self.last.backoff.reset();
        let BoundInstance { entry, instance, is_new } = bound;
        info!(instance = %entry.key, device = device.id, "published");
        self.health.unpublished.remove(&device.id);
        let identity = entry.identity.clone();
        self.leaving.remove(&entry.uid);
        let entry = akri_model::claim::Entry { capacity: self.configuration.capacity, ..entry };
        self.take_instance(ManagedInstance::new(entry, &self.context.node, false, self.moment()));
        if is_new {
            self.record_device_events(&identity, vec![DeviceEvent::found(&self.context.node, &device.id)]);
        }
        self.observe(&identity, Some(&instance), 0); // whatever is shown next is newer
        self.restore_lost(&identity);
        self.machine.change(&identity);
        self.note_name(&identity);
    }

    /// Takes over claims that the journal lacks and the kubelet's checkpoint has (rule 45, rule 108).
    pub(super) fn restore_lost(&mut self, identity: &Identity) {
        let Some(key) = self.machine.get(identity).map(|instance| instance.entry().key.clone()) else { return };
        // Each is used once: a claim that was released since must not come back with the device.
        let mut checkpointed = self.context.checkpointed.lock();
        let of_this = checkpointed.extract_if(.., |slot, _| parse_slot_name(&key.name, slot).is_some());
        let claims = of_this.filter_map(|(slot, usage)| Some((parse_slot_name(&key.name, &slot)?, usage))).collect();
        drop(checkpointed);
        for slot in self.machine.restore_lost(identity, &claims, self.moment()) {
            warn!(instance = %key, slot, "restored from the kubelet's checkpoint: the journal lacks it");
        }
    }

    /// Writes the CDI specifications of Instances, if that is wanted.
    pub(super) async fn write_cdi(&mut self, identities: Vec<Identity>) {
        let Some(cdi) = &self.context.cdi else { return };
        let write = async |identity: Identity, instance: &ManagedInstance| {
            let entry = instance.entry();
            if (entry.online == Online::False || entry.withheld) && !cdi.kubelet {
                // No kubelet keeps containers from a device that is not there, or that they may not get.
                cdi.remove(&entry.configuration, instance.hash()).await;
                return (identity, false);
            }
            let properties = self.configuration.broker_view(&entry.device.properties);
            let mut edits = ContainerEdits::of_device(&entry.device, &properties, instance.hash());
            container_paths::number([&mut edits]);
            let written = cdi.put(&entry.configuration, instance.hash(), &edits).await;
            (identity, written && cdi.kubelet)
        };
        let wanted = identities.into_iter().filter_map(|identity| Some((self.machine.get(&identity)?, identity)));
        let written = futures::future::join_all(wanted.map(|(instance, identity)| write(identity, instance))).await;
        for (identity, by_cdi) in written {
            self.machine.set_by_cdi(&identity, by_cdi);
        }
    }

    /// Returns the missing devices whose Instances are not used, and when each loses its Instance. An Instance whose slots are in
    /// use waits for their release, and one that others serve until they have left it.
    fn expiries(&self) -> impl Iterator<Item = (&Identity, Instant)> {
        self.served.iter().filter_map(|(identity, served)| {
            let (since, instance) = (served.missing_since?, self.machine.get(identity)?);
            let grace = self.configuration.grace(instance.entry().shared);
            let is_free = instance.slots().is_idle() && !self.followed.contains(identity);
            is_free.then_some((identity, since.checked_add(grace)?))
        })
    }

    /// Returns the time at which the next missing device loses its Instance.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiries().map(|(_, at)| at).min()
    }

    pub(super) async fn expire(&mut self) {
        self.totals.expiry = None; // until the next look
        let now = Instant::now();
        let expired = self.expiries().filter(|(_, at)| *at <= now).map(|(identity, _)| identity.clone()).collect();
        self.remove(expired).await;
    }

    /// Takes Instances out of service: first the kubelet forgets them, then the cluster, then the journal.
    pub(super) async fn remove(&mut self, identities: Vec<Identity>) {
        // What is advertised has to outlive the plugin, or the kubelet gets no empty list.
        let mut resources: Vec<ServedInstance> =
            identities.iter().filter_map(|identity| self.served.remove(identity)).collect();
        let plugins: Vec<Plugin> = resources.iter_mut().filter_map(|served| served.resource.plugin.take()).collect();
        futures::future::join_all(plugins.into_iter().map(Plugin::close)).await;
        let moment = self.moment();
        let gone: Vec<ManagedInstance> =
            identities.iter().filter_map(|identity| self.machine.remove(identity, moment)).collect();
        for instance in &gone {
            let entry = instance.entry();
            if let Some(cdi) = &self.context.cdi {
                cdi.remove(&entry.configuration, instance.hash()).await;
            }
            self.context.resource_names.release(&entry.key.name, &self.configuration);
            self.health.status.taken.remove(&entry.key.name);
            self.context.publisher.delete(entry.key.clone(), entry.uid.clone(), instance.is_used());
            self.leaving.insert(entry.uid.clone(), (entry.identity.clone(), Instant::now()));
            info!(instance = %entry.key, "removed");
            if instance.is_used() {
                warn!(instance = %entry.key, "containers still use it: its claims are kept");
            }
        }
    }
}

/// Returns a Configuration with no more slots than its Instances on this node may have.
pub(super) fn bounded(configuration: Arc<Configuration>, instances: usize) -> Arc<Configuration> {
    let capacity = bounded_capacity(configuration.capacity, instances);
    if capacity == configuration.capacity {
        return configuration;
    }
    let wanted = configuration.capacity;
    warn!(configuration = %configuration.key, instances, "capacity {wanted} is too much for so many; each has {capacity} slots");
    Arc::new(Configuration { capacity, ..Configuration::clone(&configuration) })
}
