//! Invariants: of every moment, and of the end.

use akri_model::claim::ClaimState;
use akri_model::claim_machine::ManagedInstance;
use akri_model::names::Usage;
use akri_model::slots::SlotState;

use super::World;
use super::action::Action;
use super::damage::Excuse;
use super::node::Node;
use super::setup::{NODES, user};
use crate::bounds::Fault;

/// Steps within which everything is as it should be once faults have ended.
const STEPS: usize = 200;

/// The course of containers once faults have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All containers end.
    ContainersEnd,
    /// Containers that were not deleted run on.
    ContainersRun,
}

pub(crate) const ENDINGS: [Ending; 2] = [Ending::ContainersEnd, Ending::ContainersRun];

impl World {
    /// Returns the first property that did not hold.
    pub(crate) fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// Containers of two nodes never use a slot at once, but for damage that no agent could know of.
    pub(super) fn shared_slot(&self) -> Option<String> {
        let mut users = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            for pod in &node.kubelet.pods {
                let mut excuse = pod.excuse;
                let of_claim = self.excused.get(&(number, pod.instance, pod.slot));
                of_claim.into_iter().for_each(|of_claim| excuse.add(*of_claim));
                users.push((pod.instance, pod.slot, number, excuse));
            }
        }
        for (index, (instance, slot, node, excuse)) in users.iter().enumerate() {
            let is_second = |other: &&(usize, u32, usize, Excuse)| {
                (other.0, other.1) == (*instance, *slot)
                    && other.2 != *node
                    && !excuse.covers(*node, other.2, self.nodes.len())
                    && !other.3.covers(other.2, *node, self.nodes.len())
            };
            if let Some((_, _, other, _)) = users[index..].iter().find(is_second) {
                let (one, other) = (NODES[*node], NODES[*other]);
                return Some(format!("containers of {one} and {other} use slot {slot} of Instance {instance}"));
            }
        }
        None
    }

    /// An Allocate is answered with yes only if its claim is on disk and, unless the Instance was made again, in the API.
    pub(super) fn check_proof(&mut self, number: usize, (instance, slot): (usize, u32)) {
        let identity = &self.setup.devices[instance].identity;
        let claim = self.nodes[number].disk.get(identity).and_then(|entry| entry.claims.get(&slot));
        let on_disk = claim.is_some_and(|claim| claim.state != ClaimState::Releasing);
        let published = self.api.instances[instance].as_ref();
        let is_own = |usage: &Usage| user(usage) == Some(number);
        let in_api =
            published.is_none_or(|published| published.is_damaged || published.slots.get(&slot).is_some_and(is_own));
        if !on_disk || !in_api {
            self.violation = Some(format!("slot {slot} is granted; in the API: {in_api}, on disk: {on_disk}"));
        }
    }

    /// Returns what matters, for people.
    pub(crate) fn summary(&self) -> String {
        let mut summary = format!("configuration {} capacity {}", self.api.configuration, self.api.capacity);
        for (instance, published) in self.api.instances.iter().enumerate() {
            summary += &match published {
                None => format!("\n  Instance {instance}: none"),
                Some(of) => format!(
                    "\n  Instance {instance}: uid {} version {} nodes {:?} {:?}",
                    of.uid, of.version, of.nodes, of.slots
                ),
            };
        }
        for (node, name) in self.nodes.iter().zip(NODES) {
            summary +=
                &format!("\n  {name}: settled {} stalled {} pods {:?}", node.settled, node.is_stalled, node.kubelet);
            for entry in node.disk.values() {
                let claims: Vec<_> =
                    entry.claims.iter().map(|(slot, claim)| (slot, claim.state, &claim.users)).collect();
                summary += &format!("\n    disk: {claims:?} others {:?}", entry.others);
            }
            for managed in node.machine.iter().flat_map(|machine| machine.instances().values()) {
                summary += &format!("\n    memory: {:?} step {}", managed.slots(), managed.is_in_step());
            }
        }
        for message in &self.network {
            summary += &format!("\n  {message:?}");
        }
        summary
    }

    /// Returns this world without faults to come, and without further pods.
    pub(crate) fn calm(&self, ending: Ending) -> Self {
        let mut world = self.clone();
        world.faults_left = 0;
        world.has_begun = true;
        for number in 0..world.nodes.len() {
            let node = &self.nodes[number];
            if node.pods_left == 0 && node.kubelet.pods.is_empty() {
                continue; // it need not be copied
            }
            let node = world.node_mut(number);
            node.pods_left = 0;
            let kubelet = &mut node.kubelet;
            for pod in (0..kubelet.pods.len()).rev() {
                if ending == Ending::ContainersEnd || kubelet.pods[pod].is_terminating {
                    kubelet.end(pod);
                }
            }
        }
        world
    }

    /// Lets the most urgent thing happen that changes anything. Returns whether there was one.
    fn progress(&mut self, ending: Ending) -> bool {
        let before = self.fingerprint();
        let next = self.fair_actions(ending).into_iter().map(|action| self.after(action));
        let next = next.into_iter().find(|world| world.fingerprint() != before);
        next.map(|world| *self = world).is_some()
    }

    /// Everything that has to happen some time, the most urgent first.
    fn fair_actions(&self, ending: Ending) -> Vec<Action> {
        let mut actions = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            self.actions_of_agent(number, node, &mut actions);
            if ending == Ending::ContainersEnd {
                actions.extend((0..node.kubelet.pods.len()).map(|pod| Action::End(number, pod)));
            }
            if node.is_uncertain() {
                actions.push(Action::DeleteEnded(number));
            }
        }
        actions.extend((0..self.network.len()).map(Action::Deliver));
        actions.extend(self.late_allocates());
        self.actions_of_cluster(&mut actions);
        for (index, published) in self.api.instances.iter().enumerate() {
            let slots = published.iter().flat_map(|published| &published.slots);
            let unreadable = slots.filter(|(_, usage)| matches!(usage, Usage::Unreadable(_)));
            actions.extend(unreadable.map(|(slot, _)| Action::FreeUnreadable(index, *slot)));
        }
        let urgency = |action: &Action| match action {
            Action::Poll(_, false) => None,
            Action::Wait(_) => Some(2),
            Action::Poll(..) => Some(1),
            _ => Some(0),
        };
        actions.retain(|action| urgency(action).is_some());
        actions.sort_by_key(urgency);
        actions
    }

    /// Allocates end after two seconds, whatever happens.
    fn late_allocates(&self) -> impl Iterator<Item = Action> {
        let is_pending = |number: &usize| self.nodes[*number].pending.is_some();
        (0..self.nodes.len()).filter(is_pending).map(|number| Action::Fault(Fault::Expire(number)))
    }

    /// Returns what is not as it should be, although nothing went wrong for long.
    fn leftover_now(&self, ending: Ending) -> Option<String> {
        let leftover = (0..self.nodes.len()).find_map(|number| {
            let node = &self.nodes[number];
            (0..self.setup.devices.len()).find_map(|instance| self.leftover_of(number, node, instance))
        });
        leftover.map(|leftover| format!("{leftover}, in the end ({ending:?})"))
    }

    fn leftover_of(&self, number: usize, node: &Node, instance: usize) -> Option<String> {
        let (name, device) = (NODES[number], &self.setup.devices[instance]);
        let published = self.api.instances[instance].as_ref();
        let managed = node.machine.as_ref().and_then(|machine| machine.get(&device.identity));
        let (Some(published), Some(managed)) = (published, managed) else {
            return Some(format!("Instance {instance} does not exist on {name}"));
        };
        let slots = self.api.capacity.max(2);
        (0..slots).find_map(|slot| {
            self.wrong_slot(
                number,
                node,
                managed,
                (instance, slot),
                &published.slots.get(&slot).cloned().unwrap_or_default(),
            )
        })
    }

    fn wrong_slot(
        &self,
        number: usize,
        node: &Node,
        managed: &ManagedInstance,
        (instance, slot): (usize, u32),
        shown: &Usage,
    ) -> Option<String> {
        let name = NODES[number];
        let state = managed.slots().state(slot);
        let on_disk = &node.disk[&self.setup.devices[instance].identity];
        let runs: Vec<usize> = (0..self.nodes.len()).filter(|node| self.runs(*node, instance, slot)).collect();
        let wrong =
            |what: &str| Some(format!("slot {slot} of Instance {instance} on {name} {what}: '{shown}', {state:?}"));
        match *runs.as_slice() {
            [] if self.stands_for_another(shown) => None,
            [] if !shown.is_free() => wrong("stays taken"),
            [] if *state != SlotState::Free => wrong("stays refused"),
            [] if on_disk.claims.contains_key(&slot) => wrong("stays in the journal"),
            [] if slot < self.api.capacity
                && !managed.advertised().iter().any(|(id, healthy)| *healthy && id.ends_with(&format!("-{slot}"))) =>
            {
                wrong("is not offered")
            }
            [owner] if user(shown) != Some(owner) && !self.is_excused(owner, instance, slot) => {
                wrong("is not its user's")
            }
            [owner]
                if owner == number
                    && !node.has_claim(&self.setup.devices[instance].identity, slot)
                    && !self.is_excused(owner, instance, slot) =>
            {
                wrong("is not held")
            }
            _ => None,
        }
    }

    /// Returns whether a slot is claimed for a virtual device that has another slot by now: a request took effect late. It is
    /// kept for as long as a container has the virtual device.
    fn stands_for_another(&self, shown: &Usage) -> bool {
        let Some((node, vdev)) = user(shown).zip(shown.vdev()) else { return false };
        self.nodes[node].kubelet.pods.iter().any(|pod| pod.is_virtual(vdev))
    }

    fn is_excused(&self, number: usize, instance: usize, slot: u32) -> bool {
        let is_excused =
            |pod: &super::kubelet::Pod| (pod.instance, pod.slot) == (instance, slot) && pod.excuse != Excuse::NONE;
        self.nodes[number].kubelet.pods.iter().any(is_excused)
    }

    /// Returns what is left over in the end, whatever happens to containers.
    pub(crate) fn leftover(&self) -> Option<String> {
        ENDINGS.into_iter().find_map(|ending| self.leftover_after(ending, |_| false))
    }

    /// Returns what is left over once everything fair has happened. `is_known` says of a world that nothing is; it gets all
    /// worlds on the way.
    pub(crate) fn leftover_after(&self, ending: Ending, mut is_known: impl FnMut(u64) -> bool) -> Option<String> {
        let mut world = self.calm(ending);
        for _ in 0..STEPS {
            if is_known(world.fingerprint()) {
                return None;
            }
            if !world.progress(ending) {
                return world.leftover_now(ending);
            }
            if world.violation.is_some() {
                return world.violation;
            }
        }
        Some(format!("nothing comes to rest ({ending:?})"))
    }
}
