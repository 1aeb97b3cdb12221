//! Allocates: each is decided in memory, confirmed by the journal and, for shared devices, by the API server, and answered
//! when all of that is done (rule 7, rule 14, rule 42, rule 46).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::requests::SlotRequest;
use super::{ClaimMachine, Effect, ManagedInstance, Moment, Target};
use crate::broker_info::ClaimDirectory;
use crate::container_paths;
use crate::edits::{ContainerEdits, merge};
use crate::names::{Identity, slot_name};
use crate::slots::{Claimed, Refusal, SlotState};

/// Time for a whole Allocate (rule 7). The owner calls [`ClaimMachine::expire`] at its end.
pub const BUDGET: Duration = Duration::from_secs(2);

/// Maximum number of attempts to choose slots for an Allocate; another node may be faster each time.
const ATTEMPTS: u32 = 4;

/// Identifies an Allocate among those of a machine.
pub type AllocationId = u64;

/// An Allocate whose answer has not been received.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Allocation {
    target: Target,
    containers: Vec<Vec<String>>,
    attempts: u32,
    claims: Vec<PendingClaim>,
    /// Slots that virtual devices leave for those.
    left: Vec<(Identity, u32)>,
    answer: Vec<ContainerEdits>,
    /// It was answered with yes, and whether that was received is not known yet.
    is_answered: bool,
}

/// A claim of an Allocate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PendingClaim {
    identity: Identity,
    slot: u32,
    generation: u64,
    /// Set if it is new: a slot that was held before stays if the Allocate fails.
    is_new: bool,
    /// The record of the Instance that has it.
    revision: u64,
}

/// The progress of an Allocate.
enum Progress {
    Pending,
    Granted,
    /// Another node has a slot that it claimed.
    Lost(String),
    Failed(Refusal),
}

impl Allocation {
    /// Returns whether it claims nothing yet: it waits for slots that are being given back.
    fn is_waiting(&self) -> bool {
        self.answer.is_empty()
    }

    /// Returns it as it was before this attempt.
    fn without_claims(self) -> Self {
        Self { claims: Vec::new(), left: Vec::new(), answer: Vec::new(), ..self }
    }

    /// Returns its slots of one Instance, with the record that has the claim.
    pub(super) fn claims_of<'a>(&'a self, identity: &'a Identity) -> impl Iterator<Item = (u32, u64)> + 'a {
        self.claims.iter().filter(|claim| claim.identity == *identity).map(|claim| (claim.slot, claim.revision))
    }
}

impl ClaimMachine {
    /// Returns the devices that an Allocate has claimed and waits for.
    pub fn claimed_by(&self, id: AllocationId) -> BTreeSet<Identity> {
        let claims = self.allocations.get(&id).into_iter().flat_map(|allocation| &allocation.claims);
        claims.map(|claim| claim.identity.clone()).collect()
    }

    /// Begins an Allocate.
    pub fn allocate(&mut self, target: Target, containers: Vec<Vec<String>>, moment: Moment) -> AllocationId {
        self.last_allocation += 1;
        let (claims, left, answer) = (Vec::new(), Vec::new(), Vec::new());
        let allocation = Allocation { target, containers, attempts: 0, claims, left, answer, is_answered: false };
        self.attempt(self.last_allocation, allocation, moment);
        self.last_allocation
    }

    /// Chooses slots and claims them, all or none.
    fn attempt(&mut self, id: AllocationId, mut allocation: Allocation, moment: Moment) {
        allocation.attempts += 1;
        match self.claim_all(&mut allocation, moment) {
            Ok(()) => {
                for claim in &mut allocation.claims {
                    if let Some(instance) = self.instances.get_mut(&claim.identity) {
                        instance.mark(&claim.identity, false, &mut self.changed);
                        claim.revision = instance.revision();
                        self.effects.push(Effect::Synchronize(claim.identity.clone()));
                    }
                }
                self.allocations.insert(id, allocation);
                self.decide(id, moment);
            }
            Err(refusal) => {
                for claim in &allocation.claims {
                    if let Some(instance) = self.instances.get_mut(&claim.identity) {
                        instance.directories.clear();
                        if claim.is_new {
                            instance.slots.withdraw(claim.slot);
                        }
                    }
                }
                // What this node gives back is free in a moment: the kubelet may have chosen it by an older list.
                if matches!(refusal, Refusal::Unavailable(_)) && self.is_releasing(&allocation.target) {
                    allocation.attempts -= 1;
                    self.allocations.insert(id, allocation.without_claims());
                } else {
                    self.refuse(id, &allocation, refusal);
                }
            }
        }
    }

    /// Returns whether a slot that an Allocate may choose is being given back.
    fn is_releasing(&self, target: &Target) -> bool {
        let is_releasing =
            |one: &ManagedInstance| one.slots.taken().any(|(_, state)| matches!(state, SlotState::Releasing(_)));
        match target {
            Target::Instance(identity) => self.get(identity).is_some_and(is_releasing),
            Target::Configuration => self.instances.values().any(|one| is_releasing(one)),
        }
    }

    fn claim_all(&mut self, allocation: &mut Allocation, moment: Moment) -> Result<(), Refusal> {
        for container in self.slot_requests(&allocation.target, &allocation.containers)? {
            let (mut edits, mut slots) = (BTreeMap::new(), Vec::new());
            for request in container {
                let (identity, slot) = (request.identity.clone(), request.slot);
                let (name, of_slot) = self.claim_slot(request, allocation, moment)?;
                edits.insert(name.clone(), of_slot);
                slots.push((identity, slot, name));
            }
            container_paths::number(edits.values_mut());
            for (identity, slot, name) in slots {
                let claimed = self.instances.get_mut(&identity).zip(edits.get(&name));
                claimed.into_iter().for_each(|(instance, edits)| drop(instance.edits.insert(slot, edits.clone())));
            }
            allocation.answer.push(merge(&edits).map_err(Refusal::Conflict)?);
        }
        Ok(())
    }

    fn claim_slot(
        &mut self,
        request: SlotRequest,
        allocation: &mut Allocation,
        moment: Moment,
    ) -> Result<(String, ContainerEdits), Refusal> {
        let SlotRequest { identity, slot, usage, moved_from } = request;
        let instance = self.instances.get_mut(&identity).ok_or_else(Refusal::gone)?;
        let key = instance.entry().key.clone();
        if let Some(why) = instance.refusal() {
            return Err(Refusal::Unavailable(format!("the device of '{}' {why}", key.name)));
        }
        let claimed = instance.slots.claim(slot, moment.claim(usage.clone()))?;
        let mut edits = instance.edits_for(&self.configuration, slot, &usage);
        let directory = ClaimDirectory { instance: key.clone(), slot, generation: moment.generation };
        let directory = self.configuration.broker_info.then_some(directory);
        if let Some(directory) = &directory {
            directory.add_to(&mut edits, format!("{}/{directory}", self.broker_info), instance.hash());
        }
        instance.claimed(slot, directory);
        allocation.left.extend(moved_from);
        let (generation, is_new) = (moment.generation, claimed == Claimed::Pending);
        allocation.claims.push(PendingClaim { identity, slot, generation, is_new, revision: 0 });
        Ok((slot_name(&key.name, slot), edits))
    }

    /// Answers the Allocates that are decided.
    pub(super) fn decide_allocations(&mut self, moment: Moment) {
        for id in self.allocations.keys().copied().collect::<Vec<_>>() {
            self.decide(id, moment);
        }
    }

    fn decide(&mut self, id: AllocationId, moment: Moment) {
        let Some(allocation) = self.allocations.get_mut(&id).filter(|allocation| !allocation.is_answered) else {
            return;
        };
        let allocation = allocation.clone();
        if allocation.is_waiting() {
            return self.attempt(id, allocation, moment);
        }
        match self.progress(&allocation) {
            Progress::Pending => {}
            Progress::Granted => {
                self.effects.push(Effect::Answer(id, Ok(allocation.answer.clone())));
                self.allocations.insert(id, Allocation { is_answered: true, ..allocation });
            }
            // A virtual device stands for any device, so that another one will do.
            Progress::Lost(_) if allocation.target == Target::Configuration && allocation.attempts < ATTEMPTS => {
                self.allocations.remove(&id);
                self.give_up(&allocation);
                self.attempt(id, allocation.without_claims(), moment);
            }
            Progress::Lost(reason) => self.fail(id, Refusal::Unavailable(reason)),
            Progress::Failed(refusal) => self.fail(id, refusal),
        }
    }

    fn progress(&self, allocation: &Allocation) -> Progress {
        let mut is_confirmed = true;
        for PendingClaim { identity, slot, generation, is_new, revision } in &allocation.claims {
            let Some(instance) = self.get(identity) else { return Progress::Failed(Refusal::gone()) };
            match instance.is_recorded(*revision) {
                Some(is_recorded) => is_confirmed &= is_recorded,
                None => {
                    let reason = "the claim can't be recorded; see the agent's log";
                    return Progress::Failed(Refusal::Internal(reason.to_owned()));
                }
            }
            if let Some(usage) = instance.slots.other_user(*slot) {
                return Progress::Lost(format!("slot {slot} is in use by {}", usage.user()));
            }
            is_confirmed &= instance.slots.is_confirmed(*slot);
            match instance.slots.state(*slot) {
                _ if !is_new => {}
                SlotState::Held(claim) if claim.generation == *generation => {}
                SlotState::Claiming(claim) if claim.generation == *generation => is_confirmed = false,
                _ => return Progress::Lost(format!("slot {slot} was taken away")),
            }
        }
        if is_confirmed { Progress::Granted } else { Progress::Pending }
    }

    /// Ends an Allocate whose time is over, or whose caller has gone.
    pub fn expire(&mut self, id: AllocationId) {
        let Some(allocation) = self.allocations.get(&id) else { return };
        let is_recorded = |claim: &PendingClaim| {
            self.get(&claim.identity).and_then(|instance| instance.is_recorded(claim.revision)) == Some(true)
        };
        let silent = if allocation.claims.iter().all(is_recorded) { "the API server" } else { "the journal" };
        let what = if allocation.is_waiting() { "the release of a slot" } else { "the claim" };
        self.fail(id, Refusal::Unavailable(format!("{silent} did not confirm {what} within {BUDGET:?}")));
    }

    /// Ends all Allocates: the owner ends.
    pub fn fail_allocations(&mut self) {
        for id in self.allocations.keys().copied().collect::<Vec<_>>() {
            self.fail(id, Refusal::Unavailable("the agent or the Configuration ends".to_owned()));
        }
    }

    /// An answer with yes was received, or the kubelet has given up before.
    pub fn answered(&mut self, id: AllocationId, is_received: bool) {
        let Some(allocation) = self.allocations.remove(&id) else { return };
        if !is_received {
            self.give_up(&allocation);
            return self.effects.push(Effect::Resend(allocation.target));
        }
        for (identity, slot) in &allocation.left {
            if let Some(instance) = self.instances.get_mut(identity) {
                instance.release(*slot, identity, &mut self.changed);
            }
        }
        for identity in allocation.claims.iter().map(|claim| &claim.identity).collect::<BTreeSet<_>>() {
            self.change(identity);
        }
    }

    /// Gives up the slots that an Allocate has claimed. Slots that were held before stay.
    fn give_up(&mut self, allocation: &Allocation) {
        for PendingClaim { identity, slot, generation, .. } in allocation.claims.iter().filter(|claim| claim.is_new) {
            let Some(instance) = self.instances.get_mut(identity) else { continue };
            match instance.slots.state(*slot) {
                SlotState::Claiming(claim) if claim.generation == *generation => {
                    instance.abandon(*slot, identity, &mut self.changed);
                }
                SlotState::Held(claim) if claim.generation == *generation => {
                    instance.release(*slot, identity, &mut self.changed);
                }
                _ => instance.mark(identity, true, &mut self.changed),
            }
        }
    }

    fn fail(&mut self, id: AllocationId, refusal: Refusal) {
        let Some(allocation) = self.allocations.remove(&id) else { return };
        self.give_up(&allocation);
        self.refuse(id, &allocation, refusal);
    }

    fn refuse(&mut self, id: AllocationId, allocation: &Allocation, refusal: Refusal) {
        self.effects.push(Effect::Answer(id, Err(refusal)));
        self.effects.push(Effect::Resend(allocation.target.clone())); // the kubelet may know an older list
    }
}
