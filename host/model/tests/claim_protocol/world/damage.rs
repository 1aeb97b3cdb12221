//! Damage to the truth that agents can't know of. It excuses second users of the slots concerned on the nodes that do not know the
//! first one, and nothing else.

use akri_model::names::Usage;
use akri_model::slots::ApiView;

use super::World;
use super::setup::user;
use crate::bounds::Mutation;

/// Nodes that may use a slot that another one has: a bit for each, counted from that one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Excuse(u8);

impl Excuse {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self(u8::MAX);

    fn of(owner: usize, user: usize, nodes: usize) -> Self {
        Self(1 << ((user + nodes - owner) % nodes))
    }

    pub(super) fn covers(self, owner: usize, user: usize, nodes: usize) -> bool {
        self.0 & Self::of(owner, user, nodes).0 != 0
    }

    fn includes(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl World {
    /// An Instance goes away. Who makes it again carries over what it knows of others (rule 103): a node that has not seen a claim, or
    /// has not on disk, is excused until the claim's own node has claimed it again.
    pub(super) fn excuse_unknown(&mut self, instance: usize) {
        let Some(published) = &self.api.instances[instance] else { return };
        let identity = self.setup.devices[instance].identity.clone();
        let used: Vec<(usize, u32)> =
            published.slots.iter().filter_map(|(slot, usage)| Some((user(usage)?, *slot))).collect();
        for (owner, slot) in used {
            let is_mutated = self.setup.bounds.mutation == Some(Mutation::Rule103); // it would have been on disk
            let others = (0..self.nodes.len()).filter(|node| *node != owner);
            for node in others
                .filter(|node| !self.nodes[*node].knows_user(&identity, slot, owner, is_mutated))
                .collect::<Vec<_>>()
            {
                self.excuse((owner, instance, slot), Excuse::of(owner, node, self.nodes.len()));
            }
        }
        // What it did not show can't be carried over.
        self.excuse_damaged();
    }

    /// The usage of slots was edited, or went back: claims that the API server does not show now are excused.
    pub(super) fn excuse_damaged(&mut self) {
        let mut damaged = Vec::new();
        for (instance, published) in self.api.instances.iter().enumerate() {
            let identity = &self.setup.devices[instance].identity;
            let slots = self.setup.bounds.slots.max(2);
            for (number, node) in self.nodes.iter().enumerate() {
                for slot in 0..slots {
                    let shown = published.as_ref().and_then(|published| published.slots.get(&slot));
                    let is_used = node.has_claim(identity, slot) || self.runs(number, instance, slot);
                    if is_used && shown.and_then(user) != Some(number) {
                        damaged.push((number, instance, slot));
                    }
                }
            }
        }
        damaged.into_iter().for_each(|claim| self.excuse(claim, Excuse::ALL));
    }

    fn excuse(&mut self, claim: (usize, usize, u32), excuse: Excuse) {
        self.excused.entry(claim).or_insert(Excuse::NONE).add(excuse);
    }

    /// Returns whether a container of a node uses a slot.
    pub(super) fn runs(&self, number: usize, instance: usize, slot: u32) -> bool {
        self.nodes[number].kubelet.pods.iter().any(|pod| (pod.instance, pod.slot) == (instance, slot))
    }

    /// An excuse ends when its node has no claim any more, or knows who has the slot. Containers that ran before keep it. Once a node
    /// that is excused has the slot, nobody knows of the first user any more.
    pub(super) fn end_excuses(&mut self) {
        for ((number, instance, slot), mut excuse) in self.excused.clone() {
            let published = self.api.instances[instance].as_ref();
            let shown = published.and_then(|published| published.slots.get(&slot)).and_then(user);
            if shown.is_some_and(|user| user != number && excuse.covers(number, user, self.nodes.len())) {
                excuse = Excuse::ALL;
                self.excuse((number, instance, slot), excuse);
            }
            let is_here = |pod: &&mut super::kubelet::Pod| (pod.instance, pod.slot) == (instance, slot);
            let pods = self.nodes[number].kubelet.pods.iter();
            let mut here = pods.filter(|pod| (pod.instance, pod.slot) == (instance, slot));
            if here.any(|pod| !pod.excuse.includes(excuse)) {
                let pods = self.node_mut(number).kubelet.pods.iter_mut();
                pods.filter(is_here).for_each(|pod| pod.excuse.add(excuse));
            }
            let identity = &self.setup.devices[instance].identity;
            let shows_user = |view: &ApiView| match view {
                ApiView::Present(published) => published.slots.get(&slot).is_some_and(|usage| *usage != Usage::Free),
                _ => false,
            };
            let is_known = self.is_view_current(number, instance)
                && self.nodes[number].view(&self.setup, instance).is_some_and(shows_user);
            if is_known || !self.nodes[number].has_claim(identity, slot) {
                self.excused.remove(&(number, instance, slot));
            }
        }
    }
}
