//! Performs what the claim machine decides: answers to the kubelet, records in the journal, lists, and what users get to know.

use std::sync::Arc;
use std::time::Duration;

use akri_cluster::ObjectEvent;
use akri_model::claim_machine::{AllocationId, BUDGET, Effect, Moment, Notice, Record, Refusal, Target};
use akri_model::edits::ContainerEdits;
use akri_model::events::DeviceEvent;
use akri_model::instance::Online;
use akri_model::names::{Identity, resource_name};
use akri_model::slots::SlotEvent;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::resource::AllocateResult;
use super::{OwnerState, record_orphans};
use crate::pod_resources_poller::Answering;

/// Pause before records are repeated that could not be written.
const RECORD_AGAIN: Duration = Duration::from_secs(5);

/// The caller of an Allocate that has not been answered.
pub(super) struct Caller {
    pub(super) target: Target,
    pub(super) reply: oneshot::Sender<AllocateResult>,
    pub(super) started: Instant,
    pub(super) _answering: Answering,
}

/// Records that were written together, and whether they are on disk.
pub(super) type WriteResult = (Vec<(Identity, u64)>, Result<(), String>);

impl OwnerState {
    /// Returns the time of an input for the machine.
    pub(super) fn moment(&self) -> Moment {
        self.context.claims.moment()
    }

    /// Performs all effects, and those that they lead to.
    pub(super) async fn perform_effects(&mut self) {
        loop {
            self.expire_callers();
            let effects = self.machine.effects();
            if effects.is_empty() {
                return;
            }
            let (mut records, mut orphans, mut shown) = (Vec::new(), Vec::new(), Vec::new());
            for effect in effects {
                match effect {
                    Effect::Answer(id, result) => self.answer(id, result),
                    Effect::Record(record) => records.push(*record),
                    Effect::RecordOrphans(changed) => orphans.extend(changed),
                    Effect::Show(identity) => {
                        self.show(&identity);
                        shown.push(identity);
                    }
                    Effect::Synchronize(identity) => drop(self.unsynced.insert(identity)),
                    Effect::Resend(target) => self.advertise(&target, true),
                    Effect::RefreshCheckpoint => self.context.refresher.refresh(),
                    Effect::Notify(identity, notice) => self.notify(&identity, notice),
                }
            }
            self.write(records);
            record_orphans(&self.context, orphans);
            self.write_cdi(shown).await;
        }
    }

    /// Ends Allocates whose time is over, or whose caller has gone.
    fn expire_callers(&mut self) {
        let is_over = |caller: &Caller| caller.reply.is_closed() || caller.started.elapsed() >= BUDGET;
        let over = self.callers.iter().filter(|(_, caller)| is_over(caller)).map(|(id, _)| *id);
        for id in over.collect::<Vec<_>>() {
            self.machine.expire(id);
        }
    }

    /// Returns the time at which the first Allocate has to be answered.
    pub(super) fn next_answer(&self) -> Option<Instant> {
        self.callers.values().map(|caller| caller.started + BUDGET).min()
    }

    fn answer(&mut self, id: AllocationId, result: Result<Vec<ContainerEdits>, Refusal>) {
        let Some(Caller { target, reply, started, .. }) = self.callers.remove(&id) else { return };
        let granted = match result.and_then(|edits| self.recheck(id).map(|()| edits)) {
            Ok(edits) => {
                let is_received = reply.send(Ok(edits)).is_ok();
                self.machine.answered(id, is_received);
                is_received
            }
            Err(refusal) => {
                let name = self.name(&target).unwrap_or_else(|| self.configuration.key.name.clone());
                let resource = resource_name(&name);
                warn!(configuration = %self.configuration.key, resource, "Allocate refused: {refusal}");
                let _ = reply.send(Err(refusal)); // the kubelet may have given up
                self.machine.answered(id, false);
                false
            }
        };
        self.context.metrics.claim(target != Target::Configuration, granted, started.elapsed());
    }

    /// Checks the files of what an Allocate has claimed, as they are now.
    fn recheck(&self, id: AllocationId) -> Result<(), Refusal> {
        let claimed = self.machine.claimed_by(id);
        let devices = claimed.iter().filter_map(|identity| Some(&self.machine.get(identity)?.entry().device));
        let refused = devices.filter_map(|device| self.providers.refusal(&self.configuration.handler, device)).next();
        refused.map_or(Ok(()), |why| Err(Refusal::Unavailable(why)))
    }

    /// Writes records to the journal, with one sync of the disk.
    fn write(&mut self, records: Vec<Record>) {
        if records.is_empty() {
            return;
        }
        let parts = records.into_iter().map(|of| ((of.identity, of.revision), of.entry, of.directories));
        let (revisions, entries, directories): (Vec<_>, Vec<_>, Vec<_>) = parts.collect();
        let (context, written) = (Arc::clone(&self.context), self.context.journal.write_all(entries, Vec::new()));
        self.writes.spawn(async move {
            // A directory without a claim in the journal is one that nobody uses.
            let created = match written.await {
                Ok(()) => context.broker_info.create(directories.concat()).await,
                Err(error) => Err(error),
            };
            (revisions, created)
        });
    }

    /// Records were written, or not.
    pub(super) fn written(&mut self, result: Option<WriteResult>) {
        let Some((revisions, result)) = result else { return };
        if let Err(error) = &result {
            debug!(configuration = %self.configuration.key, error, "records were not written; retrying");
            self.record_again_at.get_or_insert(Instant::now() + RECORD_AGAIN);
        }
        let moment = self.moment();
        for (identity, revision) in revisions {
            self.machine.recorded(&identity, revision, result.is_ok(), moment);
        }
    }

    pub(super) fn record_again(&mut self) {
        self.record_again_at = None;
        self.machine.record_again();
    }

    /// Shows the kubelet and the cluster an Instance as it is now.
    fn show(&mut self, identity: &Identity) {
        self.advertise(&Target::Instance(identity.clone()), false);
        if let Some(instance) = self.machine.get(identity).filter(|_| !self.machine.is_node_missing()) {
            let mut published = instance.instance(&self.configuration, &self.context.node);
            if !self.configuration.role.discovers() {
                published.online = Online::True; // others say whether it is
            }
            // Information of brokers is published only of slots that the Instance shows as this node's.
            self.context.publisher.publish(published, self.configuration.broker_info);
        }
        self.serve_instance(identity);
    }

    /// Sends the kubelet a list; `again` even if nothing changed.
    pub(super) fn advertise(&self, target: &Target, again: bool) {
        match target {
            Target::Instance(identity) => {
                let served = self.served.get(identity).zip(self.machine.get(identity));
                served.into_iter().for_each(|(served, one)| served.resource.advertise(one.advertised(), again));
            }
            Target::Configuration if self.configuration_resource.plugin.is_some() => {
                let ids = self.machine.virtual_devices().into_iter().map(|id| (id, true));
                self.configuration_resource.advertise(ids, again);
            }
            Target::Configuration => {}
        }
    }

    fn notify(&self, identity: &Identity, notice: Notice) {
        let Some(key) = self.machine.get(identity).map(|instance| &instance.entry().key) else { return };
        match notice {
            Notice::Observed(slots) => {
                for (slot, container) in &slots {
                    match container {
                        Some(by) => info!(instance = %key, slot, %by, "a container uses it"),
                        None => debug!(instance = %key, slot, "a container uses it"),
                    }
                }
                self.record_device_events(identity, DeviceEvent::claimed(&self.context.node, &slots));
            }
            Notice::Released(slots) => {
                self.context.metrics.reclaimed.inc_by(slots.len() as u64);
                self.record_device_events(identity, DeviceEvent::released(&self.context.node, &slots));
                let slots: Vec<u32> = slots.into_iter().map(|(slot, _)| slot).collect();
                info!(instance = %key, ?slots, "released: no container uses them");
            }
            Notice::Slot(SlotEvent::Adopted(slot)) => {
                warn!(instance = %key, slot, "the API server has a claim of this node that the journal lacks");
            }
            Notice::Slot(SlotEvent::Overcommitted(slot, by)) => {
                let message = format!("slot {slot} is in use on this node and claimed by '{by}'");
                self.record_instance_event(identity, "SlotOvercommitted", message);
            }
        }
    }

    /// Records an Event of an Instance, and logs it.
    pub(super) fn record_instance_event(&self, identity: &Identity, reason: &'static str, message: String) {
        let Some(entry) = self.machine.get(identity).map(|instance| instance.entry()) else { return };
        warn!(instance = %entry.key, "{reason}: {message}");
        self.context.cluster.record_event(ObjectEvent::new("Instance", &entry.key, &entry.uid, reason, message));
    }

    /// Records changes of a device, which are logged where they are made.
    pub(super) fn record_device_events(&self, identity: &Identity, events: Vec<DeviceEvent>) {
        let Some(entry) = self.machine.get(identity).map(|instance| instance.entry()) else { return };
        for event in events {
            self.context.cluster.record_event(ObjectEvent::of_device(entry.key.clone(), entry.uid.clone(), event));
        }
    }
}
