//! The slots of an Instance as one node knows them: one state per slot, and pure transitions between the states (rules
//! 9-12, 40-43). Device plugin lists, the answer to an Allocate and the writes to the API server are derived from them.
//!
//! For a shared Instance the API server decides. A node states what it wants, sends at most one patch at a time, and goes by
//! what the API server then shows, not by what a request was answered with: a request may be lost, its answer may be lost,
//! and it may take effect late. Two things make that safe. A claim expects the slot to be free. A release names the version
//! of the Instance that it is based on, so that one that takes effect late can't take a later claim away.

mod api_sync;

use std::collections::{BTreeMap, BTreeSet};

pub use api_sync::{ApiView, PublishedSlots, SlotEvent, SlotPatch, SyncStep};

use serde::{Deserialize, Serialize};

use crate::instance::Version;
use crate::names::{Usage, parse_slot_name, slot_name};
use crate::reclaim::ClaimObservation;

/// The state of one slot on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// The slot is free.
    #[default]
    Free,
    /// An Allocate of this node wants it and has not been answered.
    Claiming(Claim),
    /// A container of this node has it, or may have it.
    Held(Claim),
    /// This node gives it back, and the API server does not show that yet.
    Releasing(Usage),
    /// Another node has it, or its usage is unreadable.
    Elsewhere(Usage),
}

/// A claim of this node on a slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The usage of the slot.
    pub usage: Usage,
    /// Grows with each Allocate on this node: a snapshot of what pods use judges only claims older than itself (rule 20).
    pub generation: u64,
    /// The observations in snapshots.
    pub observation: ClaimObservation,
}

/// The authority over the slots of an Instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Authority {
    /// The API server: the Instance is shared by nodes.
    Api,
    /// This node's journal: the Instance is local, and the API server has a copy.
    Journal,
    /// The journal, which was damaged: what the API server has is taken over once.
    DamagedJournal,
    /// Nobody: the device has no Instance. Claims end at once, and what others used of it is kept.
    None,
}

/// The reason for a refused Allocate. The message is shown in the status of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// An ID that can't belong to the resource.
    #[error("{0}")]
    Invalid(String),
    /// The device does not exist, or no longer.
    #[error("{0}")]
    NotFound(String),
    /// The slot is taken, or its device is offline.
    #[error("{0}")]
    Unavailable(String),
    /// The devices can't be used together in one container.
    #[error("{0}")]
    Conflict(String),
    /// The claim can't be recorded.
    #[error("{0}")]
    Internal(String),
}

impl Refusal {
    pub(crate) fn gone() -> Self {
        Self::NotFound("the device is gone".to_owned())
    }

    pub(crate) fn in_use(slot: u32, usage: &Usage) -> Self {
        Self::Unavailable(format!("slot {slot} is in use by {}", usage.user()))
    }
}

/// The result of claiming a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// It has to be confirmed: by the journal, and for a shared Instance by the API server.
    Pending,
    /// This node holds it already: the kubelet offers an ID again after its pod is gone (rule 7).
    Held,
}

/// The usage of a shared Instance by other nodes, by slot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OtherUsage {
    /// The UID of the Instance that showed it; empty if it was not seen.
    pub uid: String,
    /// The usage of each slot.
    pub slots: BTreeMap<u32, Usage>,
    /// Slots among them that this Instance does not show: they are carried over from an earlier one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub carried: BTreeSet<u32>,
}

/// The slots of one Instance over all nodes, as one node knows them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotTable {
    node: String,
    authority: Authority,
    capacity: u32,
    /// Slots that are not free. One at or above the capacity was in use when the capacity was lowered.
    slots: BTreeMap<u32, SlotState>,
    api: ApiView,
    /// The history and the version of the newest view of the Instance, also if it was deleted since.
    newest: Option<(u64, Version)>,
    /// The UID of the Instance that the usage of others was read from.
    uid: Option<String>,
    /// Slots that others had of the Instance that this one takes the place of, and that it does not show yet (rule 103).
    carried: BTreeSet<u32>,
}

impl SlotTable {
    /// Returns a table of free slots. Unless the journal decides, they can't be claimed before [`SlotTable::observe`].
    pub fn new(node: &str, authority: Authority, capacity: u32) -> Self {
        let (slots, api, newest, uid, carried) = Default::default();
        Self { node: node.to_owned(), authority, capacity, slots, api, newest, uid, carried }
    }

    /// Returns whether the Instance is shared.
    fn shared(&self) -> bool {
        self.authority == Authority::Api
    }

    /// Returns whether what others use is kept.
    fn knows_others(&self) -> bool {
        matches!(self.authority, Authority::Api | Authority::None)
    }

    /// Takes claims that the journal has lost and another witness knows, on slots that are free. Returns those slots.
    pub fn add_lost(&mut self, claims: impl IntoIterator<Item = (u32, Claim)>) -> Vec<u32> {
        let mut added = Vec::new();
        for (slot, claim) in claims {
            if *self.state(slot) == SlotState::Free {
                self.slots.insert(slot, SlotState::Held(claim));
                added.push(slot);
            }
        }
        added
    }

    /// Changes the capacity. A slot in use above a lowered capacity stays until it is released.
    pub fn resize(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    /// The state of a slot.
    pub fn state(&self, slot: u32) -> &SlotState {
        self.slots.get(&slot).unwrap_or(&SlotState::Free)
    }

    /// The slots that are not free, with their states, in ascending order.
    pub fn taken(&self) -> impl Iterator<Item = (u32, &SlotState)> {
        self.slots.iter().map(|(slot, state)| (*slot, state))
    }

    /// Returns whether another table has the same slots in the same states, and carries over the same ones.
    pub(crate) fn has_same_usage(&self, other: &Self) -> bool {
        (&self.slots, &self.carried) == (&other.slots, &other.carried)
    }

    /// The claims of this node, confirmed or not.
    pub fn claims(&self) -> impl Iterator<Item = (u32, &Claim)> {
        self.taken().filter_map(|(slot, state)| match state {
            SlotState::Claiming(claim) | SlotState::Held(claim) => Some((slot, claim)),
            _ => None,
        })
    }

    /// The slots that can be claimed, lowest first.
    pub fn free(&self) -> impl Iterator<Item = u32> {
        let known = if self.is_known() { self.capacity } else { 0 };
        (0..known).filter(|slot| !self.slots.contains_key(slot))
    }

    /// Returns whether this node uses no slot.
    pub fn is_idle(&self) -> bool {
        self.slots.values().all(|state| matches!(state, SlotState::Free | SlotState::Elsewhere(_)))
    }

    /// The number of slots whose change the API server has not confirmed.
    pub fn unconfirmed(&self) -> usize {
        self.slots.values().filter(|state| matches!(state, SlotState::Claiming(_) | SlotState::Releasing(_))).count()
    }

    /// Returns the last view of the API server.
    pub fn api(&self) -> &ApiView {
        &self.api
    }

    /// Returns whether the users of the slots are known: always for a local Instance.
    fn is_known(&self) -> bool {
        self.authority == Authority::Journal || matches!(self.api, ApiView::Present(_))
    }

    /// Claims a slot for an Allocate. A claim that is pending is decided by [`SlotTable::observe`] or
    /// [`SlotTable::confirm_local`], or given up by [`SlotTable::abandon`].
    ///
    /// # Errors
    /// If the slot can't be claimed now. Nothing changes then.
    pub fn claim(&mut self, slot: u32, claim: Claim) -> Result<Claimed, Refusal> {
        match self.state(slot) {
            SlotState::Held(held) if held.usage == claim.usage => {
                if let Some(usage) = self.other_user(slot) {
                    return Err(Refusal::in_use(slot, &usage));
                }
                let observation = claim.observation.beside(&held.observation);
                let claim = Claim { observation, ..claim };
                self.slots.insert(slot, SlotState::Held(claim));
                Ok(Claimed::Held)
            }
            SlotState::Held(Claim { usage, .. }) | SlotState::Elsewhere(usage) => Err(Refusal::in_use(slot, usage)),
            SlotState::Claiming(_) | SlotState::Releasing(_) => {
                let why = format!("slot {slot} waits for the API server to confirm an earlier change");
                Err(Refusal::Unavailable(why))
            }
            SlotState::Free if slot >= self.capacity => {
                Err(Refusal::NotFound(format!("slot {slot} does not exist: the capacity is {}", self.capacity)))
            }
            SlotState::Free if !self.is_known() => {
                Err(Refusal::Unavailable(format!("the API server has not told who uses slot {slot}")))
            }
            SlotState::Free => {
                self.slots.insert(slot, SlotState::Claiming(claim));
                Ok(Claimed::Pending)
            }
        }
    }

    /// Returns the usage of a shared slot that the API server shows as somebody else's: its container here runs on, and no other
    /// one may start.
    pub(crate) fn other_user(&self, slot: u32) -> Option<Usage> {
        let ApiView::Present(published) = &self.api else { return None };
        let usage = published.slots.get(&slot).filter(|_| self.shared())?;
        (!usage.is_free() && usage.node() != Some(&*self.node)).then(|| usage.clone())
    }

    /// Returns whether a held slot is this node's as far as the authority is known: the API server shows it, or has shown nothing
    /// since the start.
    pub(crate) fn is_confirmed(&self, slot: u32) -> bool {
        match &self.api {
            _ if !self.shared() => true,
            ApiView::Unknown => true,
            ApiView::Absent => false,
            ApiView::Present(published) => {
                published.slots.get(&slot).is_some_and(|usage| usage.node() == Some(&*self.node))
            }
        }
    }

    /// Confirms pending claims on a local Instance: they are in the journal, which decides.
    pub fn confirm_local(&mut self, slot: u32) {
        if let SlotState::Claiming(claim) = self.state(slot)
            && !self.shared()
        {
            self.slots.insert(slot, SlotState::Held(claim.clone()));
        }
    }

    /// Takes back a pending claim that was not sent to anybody.
    pub fn withdraw(&mut self, slot: u32) {
        if matches!(self.state(slot), SlotState::Claiming(_)) {
            self.slots.remove(&slot);
        }
    }

    /// Gives up a pending claim: the kubelet was told that it failed. Whether the API server has it is unknown, so that the
    /// slot stays closed until it shows that it does not (rule 11).
    pub fn abandon(&mut self, slot: u32) {
        if let SlotState::Claiming(claim) = self.state(slot) {
            self.end(slot, claim.usage.clone());
        }
    }

    /// Gives back a slot that no container uses any more.
    pub fn release(&mut self, slot: u32) {
        if let SlotState::Held(claim) = self.state(slot) {
            self.end(slot, claim.usage.clone());
        }
    }

    fn end(&mut self, slot: u32, usage: Usage) {
        if self.shared() {
            self.slots.insert(slot, SlotState::Releasing(usage));
        } else {
            self.slots.remove(&slot);
        }
    }

    /// Takes a state from the journal back. A container may use the slot, whatever the capacity is now. Of a local Instance
    /// the journal has decided.
    pub fn restore(&mut self, slot: u32, state: SlotState) {
        match state {
            SlotState::Claiming(claim) if !self.shared() => drop(self.slots.insert(slot, SlotState::Held(claim))),
            SlotState::Free | SlotState::Releasing(_) if !self.shared() => drop(self.slots.remove(&slot)),
            state => drop(self.slots.insert(slot, state)),
        }
    }

    /// Returns what other nodes use of a shared Instance.
    pub fn others(&self) -> OtherUsage {
        let of_others = self.taken().filter_map(|(slot, state)| match state {
            SlotState::Elsewhere(usage) if usage.node().is_some() => Some((slot, usage.clone())),
            _ => None,
        });
        let slots: BTreeMap<u32, Usage> = of_others.filter(|_| self.knows_others()).collect();
        let uid = self.uid.clone().filter(|_| !slots.is_empty()).unwrap_or_default();
        OtherUsage { uid, slots, carried: self.carried.clone() }
    }

    /// Takes back what others used of a shared Instance when it was last seen. If the next one is another, their usage is
    /// carried over to it: it stays theirs until their agents say otherwise (rule 103).
    pub fn restore_others(&mut self, others: &OtherUsage) {
        if self.knows_others() && !others.slots.is_empty() {
            let elsewhere = |(slot, usage): (&u32, &Usage)| (*slot, SlotState::Elsewhere(usage.clone()));
            self.slots.extend(others.slots.iter().map(elsewhere));
            self.uid = Some(others.uid.clone());
            self.carried.clone_from(&others.carried);
        }
    }

    /// Changes what snapshots say about the claim on a slot.
    pub fn observation_mut(&mut self, slot: u32) -> Option<&mut ClaimObservation> {
        match self.slots.get_mut(&slot)? {
            SlotState::Held(claim) => Some(&mut claim.observation),
            _ => None,
        }
    }

    /// `deviceUsage` as this node would write it: every slot below the capacity, and those in use above it (rule 9), what other
    /// nodes use among them (rule 103). Text that names no node is nobody's usage.
    pub fn to_usage(&self, instance: &str) -> BTreeMap<String, String> {
        let free = (0..self.capacity).map(|slot| (slot_name(instance, slot), String::new()));
        let known = self.taken().filter(|(_, state)| usage_of(state).node().is_some());
        let taken = known.map(|(slot, state)| (slot_name(instance, slot), usage_of(state).to_string()));
        free.chain(taken).collect()
    }

    /// Returns the device list of the Instance's own resource: each slot and whether it is healthy (rule 12). A slot
    /// that is held on this node stays healthy while the device is offline: its pod could not be admitted again after a
    /// kubelet restart.
    pub fn instance_level(&self, online: bool) -> Vec<(u32, bool)> {
        let known = self.is_known();
        let free = (0..self.capacity).filter(|slot| !self.slots.contains_key(slot));
        let free = free.map(|slot| (slot, online && known));
        let taken = self.taken().map(|(slot, state)| (slot, is_instance_claim(state)));
        let mut list: Vec<(u32, bool)> = free.chain(taken).collect();
        list.sort_unstable();
        list
    }
}

fn usage_of(state: &SlotState) -> &Usage {
    match state {
        SlotState::Free => &Usage::Free,
        SlotState::Claiming(claim) | SlotState::Held(claim) => &claim.usage,
        SlotState::Releasing(usage) | SlotState::Elsewhere(usage) => usage,
    }
}

/// Claims that are not confirmed yet count: the kubelet is asking for them this moment.
fn is_instance_claim(state: &SlotState) -> bool {
    let (SlotState::Claiming(claim) | SlotState::Held(claim)) = state else { return false };
    matches!(claim.usage, Usage::Instance { .. })
}

/// Reads `deviceUsage`. A key that is no slot of the Instance is left out and returned, to be warned about.
pub fn read_usage(instance: &str, usage: &BTreeMap<String, String>) -> (BTreeMap<u32, Usage>, Vec<String>) {
    let mut slots = BTreeMap::new();
    let mut unknown = Vec::new();
    for (name, text) in usage {
        match parse_slot_name(instance, name) {
            Some(slot) => drop(slots.insert(slot, Usage::read(text))),
            None => unknown.push(name.clone()),
        }
    }
    (slots, unknown)
}

/// `deviceUsage` of an Instance that nobody uses.
pub fn free_usage(instance: &str, capacity: u32) -> BTreeMap<String, String> {
    (0..capacity).map(|slot| (slot_name(instance, slot), String::new())).collect()
}

#[cfg(test)]
mod tests;
