//! The claims of one Configuration on one node: everything that is decided about them, without I/O (rule 111).
//!
//! The owner of a Configuration feeds it with requests of the kubelet, views of the API server, snapshots of what containers
//! use and results of writes to the journal, and performs the [`Effect`]s that it returns. The same machine is explored with
//! faults in `tests/claim_protocol`.
//!
//! A claim counts once it is recorded in the journal and, for a shared Instance, shown by the API server. Whatever has to be
//! written is compared with what is written and sent until both agree: an effect that gets lost is found again.

mod allocation;
mod instance;
mod orphans;
mod pacing;
mod requests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::broker_info::ClaimDirectory;
use crate::claim::Entry;
use crate::configuration::Configuration;
use crate::edits::ContainerEdits;
use crate::names::{Identity, Key, Usage, resource_name};
use crate::reclaim::{ClaimObservation, SlotUse, UsageSnapshot};
pub use crate::slots::Refusal;
use crate::slots::{ApiView, Claim, SlotEvent, SyncStep};
pub use allocation::{AllocationId, BUDGET};
pub use instance::ManagedInstance;
pub use orphans::{OrphanRecord, Orphans};
pub use pacing::Pacing;
pub use requests::{Preference, Target};

use allocation::Allocation;

/// The time of an input, and the counters that order claims and snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Time since any fixed moment.
    pub now: Duration,
    /// The kubelet's epoch.
    pub epoch: u64,
    /// The generation of claims that are made now; it grows with each input that may make one (rule 20).
    pub generation: u64,
}

impl Moment {
    /// Returns a claim that is made now.
    fn claim(&self, usage: Usage) -> Claim {
        let observation = ClaimObservation::new(self.epoch, self.now);
        Claim { usage, generation: self.generation, observation }
    }
}

/// A task of the owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Answer an Allocate, and pass to [`ClaimMachine::answered`] whether the kubelet has received the answer.
    Answer(AllocationId, Result<Vec<ContainerEdits>, Refusal>),
    /// Write the journal, then create directories of containers, and pass the result to [`ClaimMachine::recorded`].
    Record(Box<Record>),
    /// Write entries of devices without an Instance to the journal. Nothing waits for that.
    RecordOrphans(Vec<OrphanRecord>),
    /// Show the kubelet and the cluster an Instance as it is now.
    Show(Identity),
    /// Ask for the next step of an Instance, [`ClaimMachine::start_step`].
    Synchronize(Identity),
    /// Send the kubelet a list again that it may not know (rule 4).
    Resend(Target),
    /// Make the kubelet write its checkpoint.
    RefreshCheckpoint,
    /// Tell users what has happened to slots of an Instance.
    Notify(Identity, Notice),
}

/// A write to the journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Record {
    /// The device.
    pub identity: Identity,
    /// Its content, with the claims.
    pub entry: Entry,
    /// Counts the records of an Instance.
    pub revision: u64,
    /// Directories of containers that are created once the claims are recorded.
    pub directories: Vec<ClaimDirectory>,
}

/// Something that users want to know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Notice {
    /// Other users of slots were observed than before; the containers among them that are new.
    Observed(Vec<SlotUse>),
    /// Slots were given back: no container uses them any more. The containers that used them last.
    Released(Vec<SlotUse>),
    /// The API server shows something of a slot that the journal lacks or contradicts.
    Slot(SlotEvent),
}

/// The claims of one Configuration on one node.
#[derive(Debug, Clone, Default, Hash)]
pub struct ClaimMachine {
    node: String,
    configuration: Arc<Configuration>,
    /// The directory on the node in which brokers report.
    broker_info: String,
    /// Boxed: most Configurations have few, and a map has room for eleven from the start.
    instances: BTreeMap<Identity, Box<ManagedInstance>>,
    orphans: Orphans,
    allocations: BTreeMap<AllocationId, Allocation>,
    last_allocation: AllocationId,
    /// The Node object of this node is missing: claims stay, and nothing is joined (rule 100).
    is_node_missing: bool,
    /// Instances that changed since the last effects were taken, and whether there is something to show.
    changed: BTreeMap<Identity, bool>,
    effects: Vec<Effect>,
    /// Entries of the journal whose claims are in those of new Instances, which are written first.
    superseded: Vec<Key>,
}

impl ClaimMachine {
    /// Returns a machine without Instances. `broker_info` is the directory in which brokers report, as the kubelet sees it.
    pub fn new(node: String, configuration: Arc<Configuration>, broker_info: String) -> Self {
        Self { node, configuration, broker_info, ..Self::default() }
    }

    /// The Configuration.
    pub fn configuration(&self) -> &Arc<Configuration> {
        &self.configuration
    }

    /// All Instances by device.
    pub fn instances(&self) -> &BTreeMap<Identity, Box<ManagedInstance>> {
        &self.instances
    }

    /// Returns the Instance of a device.
    pub fn get(&self, identity: &Identity) -> Option<&ManagedInstance> {
        self.instances.get(identity).map(|instance| &**instance)
    }

    /// Changes what is known of a device, which is recorded and shown.
    pub fn change(&mut self, identity: &Identity) -> Option<&mut ManagedInstance> {
        let instance = self.instances.get_mut(identity)?;
        instance.mark(identity, true, &mut self.changed);
        Some(instance)
    }

    /// Sets whether containers get a device by its CDI name.
    pub fn set_by_cdi(&mut self, identity: &Identity, by_cdi: bool) {
        self.instances.get_mut(identity).into_iter().for_each(|instance| instance.by_cdi = by_cdi);
    }

    /// The Configuration was edited: slots in use above a lowered capacity stay.
    pub fn reconfigure(&mut self, configuration: Arc<Configuration>) {
        for (identity, instance) in &mut self.instances {
            instance.resize(configuration.capacity);
            instance.mark(identity, true, &mut self.changed);
        }
        self.configuration = configuration;
    }

    /// Takes whether the Node object of this node is missing. While it was, nothing was published.
    pub fn set_node_missing(&mut self, is_missing: bool) {
        self.is_node_missing = is_missing;
        let again = |identity: &Identity| [Effect::Show(identity.clone()), Effect::Synchronize(identity.clone())];
        self.effects.extend(self.instances.keys().flat_map(again));
    }

    /// Returns whether the Node object of this node is missing.
    pub fn is_node_missing(&self) -> bool {
        self.is_node_missing
    }

    /// Claims on devices that have no Instance now.
    pub fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    /// Ends, and returns what is left of claims on devices without an Instance.
    pub fn into_orphans(self) -> Vec<Entry> {
        self.orphans.into_entries()
    }

    /// Keeps the claims of an entry of the journal whose Instance goes, or has gone.
    pub fn keep_claims(&mut self, entry: Entry, moment: Moment) {
        let record = self.orphans.keep(entry, &self.node, moment);
        self.effects.push(Effect::RecordOrphans(vec![record]));
    }

    /// Takes a device into service, with the claims of its entry, which are those that were kept of it.
    pub fn insert(&mut self, instance: ManagedInstance) {
        let identity = instance.entry().identity.clone();
        self.superseded.extend(self.orphans.take(&identity).filter(|old| *old != instance.entry().key));
        self.instances.insert(identity.clone(), Box::new(instance));
        self.effects.push(Effect::Synchronize(identity));
    }

    /// Takes a device out of service, and keeps its claims.
    pub fn remove(&mut self, identity: &Identity, moment: Moment) -> Option<ManagedInstance> {
        self.changed.remove(identity);
        let removed = self.instances.remove(identity)?;
        self.keep_claims(removed.journal_entry(), moment);
        Some(*removed)
    }

    /// Takes over claims that the journal lacks and the kubelet's checkpoint has, by slot (rule 45, rule 108). Returns the slots
    /// that were free.
    pub fn restore_lost(&mut self, identity: &Identity, claims: &BTreeMap<u32, Usage>, moment: Moment) -> Vec<u32> {
        let Some(instance) = self.instances.get_mut(identity) else { return Vec::new() };
        let claims = claims.iter().map(|(slot, usage)| (*slot, moment.claim(usage.clone())));
        let added = instance.slots.add_lost(claims);
        if !added.is_empty() {
            instance.mark(identity, true, &mut self.changed);
        }
        added
    }

    /// Takes a view of the API server. Returns whether anything changed.
    pub fn observe(&mut self, identity: &Identity, view: ApiView, moment: Moment) -> bool {
        let Some(instance) = self.instances.get_mut(identity) else { return false };
        let before = (instance.slots.clone(), instance.entry().uid.clone());
        if let ApiView::Present(published) = &view {
            instance.entry.uid.clone_from(&published.uid);
        }
        let events = instance.slots.observe(view, |usage| moment.claim(usage));
        let is_present = |api: &ApiView| matches!(api, ApiView::Present(_));
        let changed = !before.0.has_same_usage(&instance.slots)
            || is_present(before.0.api()) != is_present(instance.slots.api())
            || before.1 != instance.entry().uid;
        for event in &events {
            if let SlotEvent::Adopted(slot) = event {
                instance.restore_edits(*slot, &self.configuration);
            }
        }
        if changed {
            instance.mark(identity, true, &mut self.changed);
        }
        let notify = |event| Effect::Notify(identity.clone(), Notice::Slot(event));
        self.effects.extend(events.into_iter().map(notify));
        self.effects.push(Effect::Synchronize(identity.clone()));
        self.decide_allocations(moment);
        changed
    }

    /// A record is on disk, or could not be written.
    pub fn recorded(&mut self, identity: &Identity, revision: u64, is_written: bool, moment: Moment) {
        let Some(instance) = self.instances.get_mut(identity) else { return };
        instance.recorded(revision, is_written);
        if is_written {
            for (slot, of) in self.allocations.values().flat_map(|allocation| allocation.claims_of(identity)) {
                if of <= revision {
                    instance.slots.confirm_local(slot);
                }
            }
            self.effects.push(Effect::Synchronize(identity.clone()));
        }
        self.decide_allocations(moment);
    }

    /// Records Instances again whose last record could not be written.
    pub fn record_again(&mut self) {
        for (identity, instance) in &mut self.instances {
            if instance.is_unrecorded() {
                instance.mark(identity, false, &mut self.changed);
            }
        }
    }

    /// Returns whether a record could not be written.
    pub fn has_unrecorded(&self) -> bool {
        self.instances.values().any(|instance| instance.is_unrecorded())
    }

    /// Starts the next step of an Instance, unless one is on its way or none is needed.
    pub fn start_step(&mut self, identity: &Identity) -> Option<SyncStep> {
        self.instances.get_mut(identity)?.start_step(!self.is_node_missing)
    }

    /// A step has ended, with the Instance as it is then; `None` if it failed. Returns whether anything changed.
    pub fn step_ended(&mut self, identity: &Identity, view: Option<ApiView>, moment: Moment) -> bool {
        let Some(instance) = self.instances.get_mut(identity) else { return false };
        instance.is_in_step = false;
        match view {
            Some(view) => self.observe(identity, view, moment),
            None => {
                self.effects.push(Effect::Synchronize(identity.clone()));
                false
            }
        }
    }

    /// Judges all claims by a snapshot of what containers use, and gives back slots that none uses any more.
    pub fn apply_snapshot(&mut self, snapshot: &UsageSnapshot) {
        let of_configuration = resource_name(&self.configuration.key.name);
        let mut needs_refresh = false;
        for (identity, instance) in &mut self.instances {
            let observed = instance.apply_snapshot(&of_configuration, snapshot);
            needs_refresh |= observed.needs_refresh;
            if !observed.ended.is_empty() {
                observed.ended.iter().for_each(|(slot, _)| instance.release(*slot, identity, &mut self.changed));
                self.effects.push(Effect::Notify(identity.clone(), Notice::Released(observed.ended)));
            }
            if !observed.seen.is_empty() {
                instance.mark(identity, false, &mut self.changed);
                self.effects.push(Effect::Notify(identity.clone(), Notice::Observed(observed.seen)));
            }
        }
        let (records, orphans_need_refresh) = self.orphans.apply_snapshot(snapshot);
        if !records.is_empty() {
            self.effects.push(Effect::RecordOrphans(records));
        }
        if needs_refresh || orphans_need_refresh {
            self.effects.push(Effect::RefreshCheckpoint);
        }
    }

    /// Returns what has to be done since the last time. The kubelet gets all lists before the first write to the disk.
    pub fn effects(&mut self) -> Vec<Effect> {
        let mut effects = std::mem::take(&mut self.effects);
        let mut records = Vec::new();
        for (identity, shows) in std::mem::take(&mut self.changed) {
            let Some(instance) = self.instances.get_mut(&identity) else { continue };
            records.push(Effect::Record(Box::new(instance.record())));
            if shows {
                effects.push(Effect::Show(identity.clone()));
                effects.push(Effect::Synchronize(identity));
            }
        }
        effects.extend(records);
        if !self.superseded.is_empty() {
            let removals = std::mem::take(&mut self.superseded).into_iter().map(OrphanRecord::removal);
            effects.push(Effect::RecordOrphans(removals.collect()));
        }
        effects
    }
}

#[cfg(test)]
mod tests;
