//! Damage to the truth that no agent can know of. It excuses a second user of the slots concerned, and nothing else.

use akri_model::names::Usage;
use akri_model::slots::ApiView;

use super::World;
use super::setup::user;
use crate::bounds::Mutation;

impl World {
    /// An Instance goes away. Who makes it again carries over what it knows of others (rule 103): a claim that some node has not
    /// seen, or has not on disk, is excused until its own node has claimed it again.
    pub(super) fn excuse_unknown(&mut self, instance: usize) {
        let Some(published) = &self.api.instances[instance] else { return };
        let identity = self.setup.devices[instance].identity.clone();
        let used: Vec<(usize, u32)> =
            published.slots.iter().filter_map(|(slot, usage)| Some((user(usage)?, *slot))).collect();
        for (owner, slot) in used {
            let is_mutated = self.setup.bounds.mutation == Some(Mutation::Rule103); // it would have been on disk
            let others = (0..self.nodes.len()).filter(|node| *node != owner);
            if !others.into_iter().all(|node| self.nodes[node].knows_user(&identity, slot, owner, is_mutated)) {
                self.excused.insert((owner, instance, slot));
            }
        }
        // What it did not show can't be carried over.
        self.excuse_damaged();
    }

    /// The usage of slots was edited, or went back: claims that the API server does not show now are excused.
    pub(super) fn excuse_damaged(&mut self) {
        for (instance, published) in self.api.instances.iter().enumerate() {
            let identity = &self.setup.devices[instance].identity;
            let slots = self.setup.bounds.slots.max(2);
            for (number, node) in self.nodes.iter().enumerate() {
                for slot in 0..slots {
                    let shown = published.as_ref().and_then(|published| published.slots.get(&slot));
                    let is_used = node.has_claim(identity, slot) || self.runs(number, instance, slot);
                    if is_used && shown.and_then(user) != Some(number) {
                        self.excused.insert((number, instance, slot));
                    }
                }
            }
        }
    }

    /// Returns whether a container of a node uses a slot.
    pub(super) fn runs(&self, number: usize, instance: usize, slot: u32) -> bool {
        self.nodes[number].kubelet.pods.iter().any(|pod| (pod.instance, pod.slot) == (instance, slot))
    }

    /// An excuse ends when its node has no claim any more, or knows who has the slot. Containers that ran before keep it.
    pub(super) fn end_excuses(&mut self) {
        for (number, instance, slot) in self.excused.clone() {
            let pods = self.nodes[number].kubelet.pods.iter();
            if pods.into_iter().any(|pod| (pod.instance, pod.slot) == (instance, slot) && !pod.is_excused) {
                let pods = self.node_mut(number).kubelet.pods.iter_mut();
                pods.filter(|pod| (pod.instance, pod.slot) == (instance, slot)).for_each(|pod| pod.is_excused = true);
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
