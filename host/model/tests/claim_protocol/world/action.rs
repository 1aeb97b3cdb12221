//! Everything that may happen next.

use std::time::Duration;

use akri_model::node_absence::{NodeAbsence, NodeDecision, NodeObject};
use akri_model::slots::ApiView;

use super::World;
use super::network::Body;
use super::node::Node;
use crate::bounds::{Edit, Fault, Mutation};

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// The kubelet of a node admits a pod.
    Allocate(usize, Wanted),
    /// The first record in flight is on disk.
    Written(usize),
    /// Records that could not be written are written again.
    RecordAgain(usize),
    /// A message arrives, by index.
    Deliver(usize),
    /// The watch of a node no longer stalls.
    ResumeWatch(usize),
    /// The container of a pod, by index, ends.
    End(usize, usize),
    /// The agent polls what containers use; `true` if the list has all pods.
    Poll(usize, bool),
    /// The agent applies the snapshot that is late.
    ApplyLate(usize),
    /// The kubelet has started long ago.
    Converge(usize),
    /// [`crate::bounds::WAIT`] passes.
    Wait(usize),
    /// The agent finds the Instance of a device, by index, that it has none of.
    Find(usize, usize),
    /// The agent starts.
    Start(usize),
    /// The controller joins a node to an Instance, as its Lease asks for; or the node finds that there is none any more to join.
    Join(usize, usize),
    /// A node publishes the slots that the capacity asks for.
    PublishCapacity(usize),
    /// Garbage collection no longer stalls: it deletes the Instances of an earlier Configuration.
    ResumeCollector,
    /// The controller removes what a node used that is lost (rule 100).
    CleanUp(usize),
    /// A Node object is there again.
    RestoreNode(usize),
    /// An administrator frees a slot whose usage can't be read (rule 107).
    FreeUnreadable(usize, u32),
    /// An administrator deletes the pods of a node that have ended, as its agent asks for (rule 102).
    DeleteEnded(usize),
    Fault(Fault),
}

/// The request of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    Slot { instance: usize, slot: u32, init: bool },
    Virtual { number: u32, init: bool },
}

impl World {
    /// Returns all actions that may happen next.
    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            self.actions_of_kubelet(number, node, &mut actions);
            self.actions_of_agent(number, node, &mut actions);
        }
        actions.extend((0..self.network.len()).map(Action::Deliver));
        self.actions_of_cluster(&mut actions);
        if self.faults_left > 0 {
            self.faults(&mut actions);
        }
        actions
    }

    fn actions_of_kubelet(&self, number: usize, node: &Node, actions: &mut Vec<Action>) {
        if node.pods_left > 0 && node.pending.is_none() {
            actions.extend(self.offered(node).into_iter().map(|wanted| Action::Allocate(number, wanted)));
        }
        actions.extend((0..node.kubelet.pods.len()).map(|pod| Action::End(number, pod)));
    }

    pub(super) fn actions_of_agent(&self, number: usize, node: &Node, actions: &mut Vec<Action>) {
        let Some(machine) = &node.machine else { return actions.push(Action::Start(number)) };
        if !node.writing.is_empty() {
            actions.push(Action::Written(number));
        }
        if machine.has_unrecorded() {
            actions.push(Action::RecordAgain(number));
        }
        if node.is_stalled {
            actions.push(Action::ResumeWatch(number));
        }
        if node.writing.is_empty() {
            let devices = self.setup.devices.iter().enumerate();
            let without = devices.filter(|(_, device)| machine.get(&device.identity).is_none());
            actions.extend(without.map(|(instance, _)| Action::Find(number, instance)));
        }
        if node.is_polling(&self.setup) {
            actions.push(Action::Poll(number, true));
            if !node.settled && !node.kubelet.pods.is_empty() {
                actions.push(Action::Poll(number, false));
            }
            if !node.settled {
                actions.push(Action::Converge(number));
            }
            if node.waits_for_time(&self.setup) {
                actions.push(Action::Wait(number));
            }
        }
        if node.late_snapshot.is_some() {
            actions.push(Action::ApplyLate(number));
        }
    }

    pub(super) fn actions_of_cluster(&self, actions: &mut Vec<Action>) {
        if self.is_collector_stalled {
            actions.push(Action::ResumeCollector);
        }
        for published in self.api.instances.iter().flatten() {
            let is_current = |node: &Node| {
                node.machine.as_ref().is_some_and(|machine| machine.configuration().capacity == self.api.capacity)
            };
            if self.api.has_wrong_keys(published)
                && let Some(first) = self.nodes.iter().position(|node| is_current(node))
            {
                actions.push(Action::PublishCapacity(first));
            }
        }
        for number in 0..self.nodes.len() {
            let can_join = |instance: &usize| {
                let waits = self.nodes[number].joining.contains(instance);
                if self.api.node_objects[number] { waits || self.api.is_joining(*instance, number) } else { waits }
            };
            let joins = (0..self.setup.devices.len()).filter(can_join);
            actions.extend(joins.map(|instance| Action::Join(number, instance)));
            if !self.api.node_objects[number] {
                actions.push(Action::RestoreNode(number));
                if self.is_lost(number) && self.api.mentions(&self.setup, number) {
                    actions.push(Action::CleanUp(number));
                }
            }
        }
    }

    /// Returns whether the controller decides that a node without an object is lost, after five minutes in which nothing changes.
    /// An agent that is up renews its Lease. By the time that another one's is old, the kubelet has ended what ran there: the
    /// pods of a node without an object are deleted.
    fn is_lost(&self, number: usize) -> bool {
        let node = &self.nodes[number];
        let mut absence = NodeAbsence::default();
        let decisions = (0..10).map(|count| {
            let now = Duration::from_secs(30 * count);
            let renewed = if node.machine.is_some() { now } else { Duration::ZERO };
            absence.observe(now, NodeObject::Missing, Some(renewed))
        });
        let is_lost = decisions.last() == Some(NodeDecision::Lost) && node.kubelet.pods.is_empty();
        is_lost || self.setup.bounds.mutation == Some(Mutation::Rule100)
    }

    fn faults(&self, actions: &mut Vec<Action>) {
        let mut add = |fault| actions.push(Action::Fault(fault));
        for (number, node) in self.nodes.iter().enumerate() {
            self.faults_of_node(number, node, &mut add);
        }
        for (index, message) in self.network.iter().enumerate() {
            if matches!(message.body, Body::Request(_)) {
                if !message.is_late {
                    let faults = [Fault::LoseRequest, Fault::LoseAnswer, Fault::DelayAnswer, Fault::DelayRequest];
                    faults.into_iter().for_each(|fault| add(fault(index)));
                }
                add(Fault::DoubleRequest(index));
            }
        }
        for (index, published) in self.api.instances.iter().enumerate() {
            let Some(published) = published else { continue };
            add(Fault::DeleteInstance(index));
            for (slot, usage) in &published.slots {
                let edits = [Edit::Free, Edit::OtherNode, Edit::Unreadable];
                edits
                    .into_iter()
                    .filter(|edit| self.edited(*slot, index, *edit) != *usage)
                    .for_each(|edit| add(Fault::EditUsage(index, *slot, edit)));
            }
        }
        add(Fault::ReplaceConfiguration);
        if !self.is_collector_stalled {
            add(Fault::StallCollector);
        }
        add(Fault::EditCapacity);
        if self.api.version > self.api.backup_version() {
            add(Fault::Restore);
        }
    }

    fn faults_of_node(&self, number: usize, node: &Node, add: &mut impl FnMut(Fault)) {
        if !self.has_begun {
            let circumstances = [
                (!node.is_flaky, Fault::FailPolls(number)),
                (node.is_refreshable, Fault::ClosePlugins(number)),
                (node.has_cgroups, Fault::HideCgroups(number)),
                (node.has_checkpoint, Fault::HideCheckpoint(number)),
                (!node.kubelet.lists_ended, Fault::ListEnded(number)),
            ];
            circumstances.into_iter().filter(|(is_possible, _)| *is_possible).for_each(|(_, fault)| add(fault));
        }
        if node.machine.is_some() {
            add(Fault::Crash(number));
            if !node.is_slow {
                add(Fault::SlowDisk(number));
            }
            if !node.fails_record {
                add(Fault::FailRecord(number));
            }
        }
        if !node.is_stalled {
            add(Fault::StallWatch(number));
        }
        if let Some(pending) = &node.pending {
            add(Fault::Expire(number));
            if !pending.has_hung_up {
                add(Fault::HangUp(number));
            }
        }
        for (index, pod) in node.kubelet.pods.iter().enumerate() {
            if !pod.is_terminating {
                add(Fault::ForceDelete(number, index));
            }
        }
        if !node.kubelet.pods.is_empty() {
            add(Fault::RestartKubelet(number));
            add(Fault::LoseCheckpoint(number));
        }
        let can_poll = node.is_polling(&self.setup);
        if can_poll && node.late_snapshot.is_none() {
            add(Fault::LateSnapshot(number));
        }
        if can_poll && node.kubelet.pods.iter().any(|pod| !pod.was_observed && !pod.was_missed) {
            add(Fault::LaggingList(number));
        }
        if self.api.node_objects[number] {
            add(Fault::DeleteNode(number));
        }
    }

    /// Returns whether the agent's view of an Instance is the current one.
    pub(super) fn is_view_current(&self, number: usize, instance: usize) -> bool {
        let view = self.nodes[number].view(&self.setup, instance);
        let is_shown = self.api.has_node(instance, number) || self.nodes[number].joining.contains(&instance);
        let shown = || self.api.get(instance, self.nodes[number].history);
        is_shown && view.is_some_and(|view| matches!(view, ApiView::Present(_)) && *view == shown())
    }
}
