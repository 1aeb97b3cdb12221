//! A node: its agent with the claim machine, its journal and its kubelet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use akri_model::claim::Entry;
use akri_model::claim_machine::{
    AllocationId, ClaimMachine, Effect, ManagedInstance, Moment, OrphanRecord, Record, Target,
};
use akri_model::configuration::Configuration;
use akri_model::edits::ContainerEdits;
use akri_model::names::{Identity, parse_slot_annotation, parse_slot_name};
use akri_model::reclaim::UsageSnapshot;
use akri_model::slots::{ApiView, Claim, OtherUsage, SlotState};

use super::World;
use super::action::Wanted;
use super::api::Creation;
use super::fingerprint::Cache;
use super::kubelet::{Kubelet, Pod};
use super::setup::{NODES, Setup, user};
use crate::bounds::{Mutation, WAIT};

/// Numbers that only grow begin here, each kind in a range of its own, so that fingerprints can rank them.
pub(crate) const GENERATIONS: u64 = 1 << 40;
pub(crate) const TIMES: u64 = 1 << 45;

#[derive(Clone)]
pub(crate) struct Node {
    /// `None` while the agent is down.
    pub(crate) machine: Option<ClaimMachine>,
    pub(crate) clock: Duration,
    /// The kubelet's epoch.
    pub(crate) epoch: u64,
    pub(crate) generation: u64,
    /// The journal.
    pub(crate) disk: BTreeMap<Identity, Entry>,
    /// Records in flight, in order.
    pub(crate) writing: VecDeque<Record>,
    pub(crate) is_slow: bool,
    pub(crate) fails_record: bool,
    /// The Allocate that is being answered.
    pub(crate) pending: Option<Pending>,
    pub(crate) kubelet: Kubelet,
    pub(crate) pods_left: u8,
    /// The number of times that this node noticed the cluster going back.
    pub(crate) history: u64,
    /// Set once the kubelet has started long ago.
    pub(crate) settled: bool,
    pub(crate) late_snapshot: Option<UsageSnapshot>,
    /// Its watches stall.
    pub(crate) is_stalled: bool,
    /// The Instances that it wants to join. Until it has, its watch does not show them (rule 23).
    pub(crate) joining: BTreeSet<usize>,
    // Circumstances.
    pub(crate) is_flaky: bool,
    pub(crate) is_refreshable: bool,
    pub(crate) has_cgroups: bool,
    pub(crate) has_checkpoint: bool,
    pub(super) cache: Cache,
}

/// An Allocate.
#[derive(Clone, Hash)]
pub(crate) struct Pending {
    pub(super) id: AllocationId,
    target: Target,
    device: String,
    init: bool,
    /// The kubelet no longer waits for the answer.
    pub(super) has_hung_up: bool,
}

impl Node {
    pub(super) fn new(setup: &Setup, number: usize) -> Self {
        let configuration = Setup::configuration(super::api::UIDS.to_string(), setup.bounds.slots);
        let mut node = Self {
            machine: Some(ClaimMachine::new(NODES[number].to_owned(), configuration.clone(), String::new())),
            clock: Duration::from_secs(TIMES),
            epoch: 1,
            generation: GENERATIONS,
            disk: BTreeMap::new(),
            writing: VecDeque::new(),
            is_slow: false,
            fails_record: false,
            pending: None,
            kubelet: Kubelet::default(),
            pods_left: setup.bounds.pods,
            history: 0,
            settled: true,
            late_snapshot: None,
            is_stalled: false,
            joining: BTreeSet::new(),
            is_flaky: false,
            is_refreshable: true,
            has_cgroups: true,
            has_checkpoint: true,
            cache: Cache::default(),
        };
        for instance in 0..setup.bounds.instances {
            let entry = setup.entry(instance, &configuration);
            node.disk.insert(entry.identity.clone(), entry);
        }
        node.start(configuration, number);
        node
    }

    /// Returns the time of an input.
    pub(super) fn moment(&mut self) -> Moment {
        self.generation += 1;
        Moment { now: self.clock, epoch: self.epoch, generation: self.generation }
    }

    /// Starts the agent with what is on disk.
    pub(super) fn start(&mut self, configuration: Arc<Configuration>, number: usize) {
        let of_claims = self.disk.values().flat_map(|entry| entry.claims.values()).map(|claim| claim.generation);
        self.generation = of_claims.max().unwrap_or(0).max(GENERATIONS);
        (self.epoch, self.settled, self.history) = (1, false, 0);
        self.serve(configuration, number, self.disk.values().cloned().collect());
    }

    /// Serves a Configuration that was made again. All Instances of the one before are removed.
    pub(super) fn replace_configuration(&mut self, configuration: Arc<Configuration>, number: usize) {
        let moment = self.moment();
        let Some(mut machine) = self.machine.take() else { return };
        (self.pending, self.late_snapshot) = (None, None);
        self.joining.clear();
        machine.fail_allocations();
        for identity in machine.instances().keys().cloned().collect::<Vec<_>>() {
            machine.remove(&identity, moment);
        }
        self.writing.clear();
        for effect in machine.effects() {
            if let Effect::RecordOrphans(records) = effect {
                self.record_orphans(records);
            }
        }
        self.serve(configuration, number, machine.into_orphans());
    }

    /// Takes entries of the journal. Claims of an earlier Configuration have no Instance (rule 43).
    fn serve(&mut self, configuration: Arc<Configuration>, number: usize, entries: Vec<Entry>) {
        let moment = self.moment();
        let mut machine = ClaimMachine::new(NODES[number].to_owned(), Arc::clone(&configuration), String::new());
        for entry in entries {
            if entry.configuration_uid == configuration.uid {
                machine.insert(ManagedInstance::new(entry, NODES[number], false, moment));
            } else {
                machine.keep_claims(entry, moment);
            }
        }
        machine.reconfigure(configuration);
        self.machine = Some(machine);
    }

    /// Glue of the search for the Instance of a device: what was kept of it is in the new entry, which is on disk before the machine
    /// gets it.
    pub(super) fn find(&mut self, setup: &Setup, number: usize, instance: usize) {
        let moment = self.moment();
        let Some(machine) = &mut self.machine else { return };
        let entry = setup.entry(instance, machine.configuration());
        let (claims, others) = machine.orphans().of(&entry.identity);
        let entry = Entry { claims, others, ..entry };
        self.disk.insert(entry.identity.clone(), entry.clone());
        machine.insert(ManagedInstance::new(entry, NODES[number], false, moment));
    }

    fn record_orphans(&mut self, records: Vec<OrphanRecord>) {
        for OrphanRecord { key, entry, .. } in records {
            self.disk.retain(|_, known| known.key != key);
            self.disk.extend(entry.map(|entry| (entry.identity.clone(), entry)));
        }
    }

    /// Returns what the agent knows of a device, with or without an Instance.
    pub(super) fn known(&self, identity: &Identity) -> Option<&ManagedInstance> {
        let machine = self.machine.as_ref()?;
        machine.get(identity).or_else(|| machine.orphans().get(identity))
    }

    /// Returns the claims of the agent, with those on devices without an Instance.
    pub(super) fn claims<'n>(&'n self, setup: &'n Setup) -> impl Iterator<Item = &'n Claim> {
        let known = setup.devices.iter().filter_map(|device| self.known(&device.identity));
        known.flat_map(|one| one.slots().claims().map(|(_, claim)| claim))
    }

    pub(super) fn crash(&mut self) {
        self.machine = None;
        self.writing.clear();
        (self.is_slow, self.fails_record, self.settled, self.is_stalled) = (false, false, false, false);
        (self.pending, self.late_snapshot) = (None, None);
        self.joining.clear();
    }

    /// Returns the agent's view of an Instance.
    pub(super) fn view(&self, setup: &Setup, instance: usize) -> Option<&ApiView> {
        let managed = self.machine.as_ref()?.get(&setup.devices[instance].identity)?;
        Some(managed.slots().api())
    }

    /// Returns whether the agent polls now: it does while there are claims and no Allocate is being answered (rule 20).
    pub(super) fn is_polling(&self, setup: &Setup) -> bool {
        self.pending.is_none() && self.claims(setup).next().is_some()
    }

    /// Returns whether a claim stays since nothing can tell whether its container runs (rule 102).
    pub(super) fn is_uncertain(&self) -> bool {
        let instances = self.machine.iter().flat_map(|machine| machine.instances().values());
        let mut claims = instances.flat_map(|one| one.slots().claims());
        claims.any(|(_, claim)| claim.observation.uncertain_user().is_some())
    }

    /// Returns whether a claim ends by time alone, and no container runs that has to end before: the delay of rule 101 is set to
    /// more than the grace of pods, and init containers without a witness end within [`akri_model::reclaim::UNSEEN`] (rule 21,
    /// rule 104).
    pub(super) fn waits_for_time(&self, setup: &Setup) -> bool {
        let claims: Vec<&Claim> = self.claims(setup).collect();
        let has_witnesses = self.has_cgroups && self.has_checkpoint && self.is_refreshable;
        let waits = |claim: &&Claim| {
            let lacks_witness = !has_witnesses || claim.observation.users().pods.is_empty();
            lacks_witness && claim.observation.unlisted_for(self.clock) < WAIT
        };
        let knows = |claim: &Claim, pod: &Pod| {
            let users = claim.observation.users();
            users.pods.contains(&pod.uid) || users.earlier.contains(&pod.uid)
        };
        let is_known = |pod: &Pod| claims.iter().any(|claim| knows(claim, pod));
        let must_end = |pod: &Pod| {
            let is_unlisted = pod.is_terminating || pod.is_forgotten && pod.init;
            is_unlisted && !(self.has_cgroups && is_known(pod))
                || pod.init && !(self.has_checkpoint && self.is_refreshable)
        };
        self.settled && claims.iter().any(waits) && !self.kubelet.pods.iter().any(must_end)
    }

    /// Returns whether the agent and its journal know that another node uses a slot.
    pub(super) fn knows_user(&self, identity: &Identity, slot: u32, node: usize, is_mutated: bool) -> bool {
        let is_it = |others: &OtherUsage| others.slots.get(&slot).and_then(user) == Some(node);
        let on_disk = self.disk.get(identity).is_some_and(|entry| is_it(&entry.others));
        let in_memory = self.machine.is_none() || self.known(identity).is_some_and(|one| is_it(&one.slots().others()));
        (on_disk || is_mutated) && in_memory
    }

    /// Returns whether a slot is claimed on this node, in memory or on disk.
    pub(crate) fn has_claim(&self, identity: &Identity, slot: u32) -> bool {
        let in_memory = self
            .known(identity)
            .is_some_and(|one| matches!(one.slots().state(slot), SlotState::Held(_) | SlotState::Claiming(_)));
        in_memory || self.disk.get(identity).is_some_and(|entry| entry.claims.contains_key(&slot))
    }
}

impl World {
    /// The kubelet admits a pod.
    pub(super) fn allocate(&mut self, number: usize, wanted: Wanted) {
        let setup = Arc::clone(&self.setup);
        let (target, device, init) = match wanted {
            Wanted::Slot { instance, slot, init } => {
                let device = &setup.devices[instance];
                let id = akri_model::names::slot_name(&device.name, slot);
                (Target::Instance(device.identity.clone()), id, init)
            }
            Wanted::Virtual { number, init } => (Target::Configuration, number.to_string(), init),
        };
        let node = self.node_mut(number);
        node.pods_left -= 1;
        let moment = node.moment();
        let Some(machine) = &mut node.machine else { return };
        let id = machine.allocate(target.clone(), vec![vec![device.clone()]], moment);
        node.pending = Some(Pending { id, target, device, init, has_hung_up: false });
    }

    /// Performs what the machine of a node decides, until it has nothing more to do.
    pub(super) fn perform(&mut self, number: usize) {
        let mut unsynced = BTreeSet::new();
        loop {
            let Some(machine) = &mut self.node_mut(number).machine else { return };
            let effects = machine.effects();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                match effect {
                    Effect::Answer(id, result) => self.answer(number, id, result.ok()),
                    Effect::Record(record) => self.record(number, *record),
                    Effect::RecordOrphans(records) => self.node_mut(number).record_orphans(records),
                    Effect::Synchronize(identity) => drop(unsynced.insert(self.setup.index(&identity))),
                    Effect::RefreshCheckpoint => self.node_mut(number).refresh_checkpoint(),
                    Effect::Show(_) | Effect::Resend(_) | Effect::Notify(..) => {}
                }
            }
        }
        unsynced.into_iter().for_each(|instance| self.send(number, instance));
    }

    fn answer(&mut self, number: usize, id: AllocationId, granted: Option<Vec<ContainerEdits>>) {
        let Some(pending) = self.nodes[number].pending.clone().filter(|pending| pending.id == id) else { return };
        if let Some(edits) = &granted {
            let place = self.place(number, edits);
            self.check_proof(number, place);
            let node = self.node_mut(number);
            if !pending.has_hung_up {
                let Pending { target, device, init, .. } = pending;
                node.kubelet.start(target, device, place, init, node.pods_left);
            }
            node.machine.as_mut().unwrap().answered(id, !pending.has_hung_up);
        }
        self.node_mut(number).pending = None;
    }

    /// Returns the Instance and the slot that a container got.
    fn place(&self, number: usize, edits: &[ContainerEdits]) -> (usize, u32) {
        let (name, value) = edits[0].annotations.first_key_value().unwrap();
        let (slot_name, _) = parse_slot_annotation(name, value, NODES[number]).unwrap();
        let slot = |name: &str| parse_slot_name(name, &slot_name);
        let find = |(index, device): (usize, &super::setup::SharedDevice)| Some((index, slot(&device.name)?));
        self.setup.devices.iter().enumerate().find_map(find).unwrap()
    }

    /// A record is handed to the journal.
    fn record(&mut self, number: usize, mut record: Record) {
        if self.setup.bounds.mutation == Some(Mutation::Rule103) {
            record.entry.others = OtherUsage::default();
        }
        let node = self.node_mut(number);
        node.writing.push_back(record);
        if !node.is_slow {
            self.written(number);
        }
    }

    /// The first record in flight is on disk, or could not be written.
    pub(super) fn written(&mut self, number: usize) {
        let node = self.node_mut(number);
        let Some(Record { identity, entry, revision, .. }) = node.writing.pop_front() else { return };
        let is_written = !std::mem::take(&mut node.fails_record);
        if is_written {
            node.disk.insert(identity.clone(), entry);
        }
        node.is_slow &= !node.writing.is_empty();
        let moment = node.moment();
        if let Some(machine) = &mut node.machine {
            machine.recorded(&identity, revision, is_written, moment);
        }
    }

    /// Returns the Instance as a node makes it.
    pub(super) fn creation(&self, number: usize, instance: usize) -> Creation {
        let machine = self.nodes[number].machine.as_ref().unwrap();
        let managed = machine.get(&self.setup.devices[instance].identity).unwrap();
        let wanted = managed.instance(machine.configuration(), NODES[number]);
        let (mut slots, _) = akri_model::slots::read_usage(&wanted.key.name, &wanted.device_usage);
        if self.setup.bounds.mutation == Some(Mutation::Rule103) {
            slots
                .values_mut()
                .filter(|usage| user(usage).is_some_and(|of| of != number))
                .for_each(|usage| *usage = Default::default());
        }
        Creation { configuration_uid: wanted.configuration_uid, slots }
    }
}
