//! The world as one value: nodes around an API server, and a network between them. Every action leads to a next world.

mod action;
mod api;
mod damage;
mod fingerprint;
mod kubelet;
mod network;
mod node;
mod properties;
mod setup;

use std::collections::BTreeMap;
use std::sync::Arc;

use akri_model::instance::Version;
use akri_model::names::Usage;
use akri_model::slots::{ApiView, PublishedSlots};

pub(crate) use action::{Action, Wanted};
use api::Api;
use damage::Excuse;
use fingerprint::Cache;
use network::Message;
use node::Node;
pub(crate) use properties::ENDINGS;
use setup::{NODES, Setup};

use crate::bounds::{Bounds, Edit, Fault, Mutation, WAIT};

/// The state of everything.
#[derive(Clone)]
pub(crate) struct World {
    setup: Arc<Setup>,
    api: Api,
    nodes: Vec<Arc<Node>>,
    /// Requests and answers on their way.
    network: Vec<Message>,
    /// The number of faults that may still happen.
    faults_left: u8,
    is_collector_stalled: bool,
    /// Something other than a circumstance has happened.
    has_begun: bool,
    /// Claims whose truth was damaged in a way that agents could not know: node, Instance and slot.
    excused: BTreeMap<(usize, usize, u32), Excuse>,
    /// The first property that did not hold.
    violation: Option<String>,
}

impl World {
    /// All agents are up, and know that all slots are free.
    pub(crate) fn new(bounds: Bounds) -> Self {
        let setup = Arc::new(Setup::new(bounds));
        let nodes = (0..bounds.nodes).map(|number| Arc::new(Node::new(&setup, number))).collect();
        let mut world = Self {
            api: Api::new(&setup),
            setup,
            nodes,
            network: Vec::new(),
            faults_left: bounds.faults,
            is_collector_stalled: false,
            has_begun: false,
            excused: BTreeMap::new(),
            violation: None,
        };
        for number in 0..bounds.nodes {
            world.node_mut(number).settled = true;
            world.perform(number);
        }
        while !world.network.is_empty() {
            world.act(Action::Deliver(0));
        }
        world.has_begun = false;
        world
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.setup.bounds
    }

    /// The world after an action.
    pub(crate) fn after(&self, action: Action) -> Self {
        let mut world = self.clone();
        world.act(action);
        world
    }

    fn node_mut(&mut self, number: usize) -> &mut Node {
        let node = Arc::make_mut(&mut self.nodes[number]);
        node.cache = Cache::default();
        node
    }

    pub(crate) fn act(&mut self, action: Action) {
        let is_circumstance = matches!(
            action,
            Action::Fault(
                Fault::FailPolls(_)
                    | Fault::ClosePlugins(_)
                    | Fault::HideCgroups(_)
                    | Fault::HideCheckpoint(_)
                    | Fault::ListEnded(_)
            )
        );
        self.has_begun |= !is_circumstance;
        match action {
            Action::Allocate(node, wanted) => self.allocate(node, wanted),
            Action::Written(node) => self.written(node),
            Action::RecordAgain(node) => self.machine(node, akri_model::claim_machine::ClaimMachine::record_again),
            Action::Deliver(index) => self.deliver(index),
            Action::ResumeWatch(node) => self.node_mut(node).is_stalled = false,
            Action::End(node, pod) => self.node_mut(node).kubelet.end(pod),
            Action::Poll(node, complete) => self.poll(node, complete),
            Action::ApplyLate(node) => {
                if let Some(snapshot) = self.node_mut(node).late_snapshot.take() {
                    self.apply_snapshot(node, &snapshot);
                }
            }
            Action::Converge(node) => self.node_mut(node).settled = true,
            Action::Wait(node) => {
                self.node_mut(node).clock += WAIT;
                self.poll(node, true); // one of many
            }
            Action::Find(node, instance) => {
                let setup = Arc::clone(&self.setup);
                self.node_mut(node).find(&setup, node, instance);
            }
            Action::Start(node) => {
                let configuration = Setup::configuration(self.api.configuration_uid(), self.api.capacity);
                self.node_mut(node).start(configuration, node);
            }
            Action::Join(node, instance) => {
                self.api.join(instance, node);
                if self.nodes[node].joining.contains(&instance) {
                    self.node_mut(node).joining.remove(&instance);
                }
            }
            Action::PublishCapacity(_) => self.api.publish_capacity(),
            Action::ResumeCollector => self.is_collector_stalled = false,
            Action::CleanUp(node) => self.api.clean_up(node),
            Action::RestoreNode(node) => self.api.node_objects[node] = true,
            Action::DeleteEnded(node) => self.node_mut(node).kubelet.ended.clear(),
            Action::FreeUnreadable(instance, slot) => self.api.edit(instance, slot, Usage::Free),
            Action::Fault(fault) => {
                self.faults_left = self.faults_left.saturating_sub(1);
                self.fail(fault);
            }
        }
        self.collect_garbage();
        (0..self.nodes.len()).for_each(|number| self.proceed(number));
        self.network.sort_by_key(|message| (message.node, message.instance, message.is_late));
        self.end_excuses();
        if self.violation.is_none() {
            self.violation = self.shared_slot();
        }
    }

    /// Deletes the Instances of an earlier Configuration.
    fn collect_garbage(&mut self) {
        for instance in 0..self.setup.devices.len() {
            let published = self.api.instances[instance].as_ref();
            let is_garbage = published.is_some_and(|published| published.configuration != self.api.configuration);
            if is_garbage && !self.is_collector_stalled {
                self.excuse_unknown(instance);
                self.api.delete(instance);
            }
        }
    }

    fn machine(&mut self, number: usize, input: impl FnOnce(&mut akri_model::claim_machine::ClaimMachine)) {
        if let Some(machine) = &mut self.node_mut(number).machine {
            input(machine);
        }
    }

    /// Lets a node perform what it decided, and shows it by its watch what has changed.
    fn proceed(&mut self, number: usize) {
        // A node that nothing has happened to is shared with the world before.
        if Arc::get_mut(&mut self.nodes[number]).is_some() {
            self.perform(number);
        }
        if self.nodes[number].is_stalled || self.nodes[number].machine.is_none() {
            return;
        }
        if !self.has_configuration(number) {
            self.take_configuration(number);
            self.perform(number);
        }
        for instance in 0..self.setup.devices.len() {
            self.notice_restore(number, instance);
            if self.nodes[number].joining.contains(&instance) {
                continue; // it knows what requests have shown
            }
            // What was patched meanwhile is shown at once, too.
            while self.nodes[number]
                .view(&self.setup, instance)
                .is_some_and(|view| *view != self.watched(number, instance))
            {
                let before = self.nodes[number].view(&self.setup, instance).cloned();
                self.watch(number, instance);
                self.perform(number);
                if self.nodes[number].view(&self.setup, instance) == before.as_ref() {
                    break; // it takes this for outdated
                }
            }
        }
    }

    fn has_configuration(&self, number: usize) -> bool {
        let is_current = |machine: &akri_model::claim_machine::ClaimMachine| {
            let known = machine.configuration();
            (known.uid.as_str(), known.capacity) == (self.api.configuration_uid().as_str(), self.api.capacity)
        };
        self.nodes[number].machine.as_ref().is_none_or(is_current)
    }

    /// Returns an Instance as the watch of a node shows it: only of its own (rule 77).
    fn watched(&self, number: usize, instance: usize) -> ApiView {
        if self.api.has_node(instance, number) {
            self.api.get(instance, self.nodes[number].history)
        } else {
            ApiView::Absent
        }
    }

    fn watch(&mut self, number: usize, instance: usize) {
        let (view, identity) = (self.watched(number, instance), self.setup.devices[instance].identity.clone());
        let node = self.node_mut(number);
        let moment = node.moment();
        if let Some(machine) = &mut node.machine {
            machine.observe(&identity, view, moment);
        }
    }

    /// A node notices that the cluster went back when the store is older than what it knows (rule 106).
    fn notice_restore(&mut self, number: usize, instance: usize) {
        let known = self.nodes[number].machine.as_ref().and_then(|of| of.get(&self.setup.devices[instance].identity));
        let (version, history) = (Version(self.api.version.to_string()), self.nodes[number].history);
        let store = ApiView::Present(PublishedSlots { version, history, ..PublishedSlots::default() });
        let is_older = known.is_some_and(|known| known.slots().is_outdated(&store));
        if is_older && self.setup.bounds.mutation != Some(Mutation::Rule106) {
            self.node_mut(number).history += 1;
        }
    }

    fn take_configuration(&mut self, number: usize) {
        let configuration = Setup::configuration(self.api.configuration_uid(), self.api.capacity);
        let Some(machine) = &self.nodes[number].machine else { return };
        if machine.configuration().uid == configuration.uid {
            return self.machine(number, |machine| machine.reconfigure(configuration));
        }
        self.forget_requests(number);
        self.node_mut(number).replace_configuration(configuration, number);
    }

    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::FailPolls(node) => self.node_mut(node).is_flaky = true,
            Fault::ClosePlugins(node) => self.node_mut(node).is_refreshable = false,
            Fault::HideCgroups(node) => self.node_mut(node).has_cgroups = false,
            Fault::HideCheckpoint(node) => self.node_mut(node).has_checkpoint = false,
            Fault::ListEnded(node) => self.node_mut(node).kubelet.lists_ended = true,
            Fault::Crash(node) => {
                self.node_mut(node).crash();
                self.forget_requests(node);
            }
            Fault::Expire(node) => {
                if let Some(id) = self.nodes[node].pending.as_ref().map(|pending| pending.id) {
                    self.machine(node, |machine| machine.expire(id));
                }
            }
            Fault::HangUp(node) => self.node_mut(node).hang_up(),
            Fault::SlowDisk(node) => self.node_mut(node).is_slow = true,
            Fault::FailRecord(node) => self.node_mut(node).fails_record = true,
            Fault::LoseRequest(index) => self.lose(index, false),
            Fault::LoseAnswer(index) => self.lose(index, true),
            Fault::DelayAnswer(index) => self.delay_answer(index),
            Fault::DelayRequest(index) => self.delay_request(index),
            Fault::DoubleRequest(index) => self.double_request(index),
            Fault::StallWatch(node) => self.node_mut(node).is_stalled = true,
            Fault::DeleteInstance(instance) => {
                self.excuse_unknown(instance);
                self.api.delete(instance);
            }
            Fault::ReplaceConfiguration => self.api.replace_configuration(),
            Fault::StallCollector => self.is_collector_stalled = true,
            Fault::EditCapacity => {
                let slots = self.setup.bounds.slots;
                self.api.capacity = if self.api.capacity == slots { slots % 2 + 1 } else { slots };
                self.api.next_version();
            }
            Fault::EditUsage(instance, slot, edit) => {
                let usage = self.edited(slot, instance, edit);
                self.api.edit(instance, slot, usage);
                self.excuse_damaged();
            }
            Fault::Restore => {
                self.api.restore();
                self.lose_all();
                self.excuse_damaged();
            }
            Fault::DeleteNode(node) => self.api.node_objects[node] = false,
            Fault::ForceDelete(node, pod) => self.node_mut(node).kubelet.force_delete(pod),
            Fault::RestartKubelet(node) => self.restart_kubelet(node),
            Fault::LoseCheckpoint(node) => {
                self.restart_kubelet(node);
                let node = self.node_mut(node);
                node.kubelet.lose_checkpoint(node.has_cgroups);
            }
            Fault::LateSnapshot(node) => self.node_mut(node).late_snapshot = Some(self.snapshot(node, true, false)),
            Fault::LaggingList(number) => {
                let snapshot = self.snapshot(number, true, true);
                self.apply_snapshot(number, &snapshot);
                let pods = self.node_mut(number).kubelet.pods.iter_mut();
                pods.filter(|pod| !pod.was_observed).for_each(|pod| pod.was_missed = true);
            }
        }
    }

    /// Returns what a hand edit makes of a slot.
    fn edited(&self, slot: u32, instance: usize, edit: Edit) -> Usage {
        let published = self.api.instances[instance].as_ref();
        let user = published.and_then(|published| setup::user(published.slots.get(&slot)?));
        match edit {
            Edit::Free => Usage::Free,
            Edit::OtherNode => {
                let other = user.map_or(0, |user| (user + 1) % self.nodes.len());
                Usage::Instance { node: NODES[other].to_owned() }
            }
            Edit::Unreadable => Usage::read("C:0"),
        }
    }

    fn restart_kubelet(&mut self, number: usize) {
        let is_unnoticed = self.setup.bounds.mutation == Some(Mutation::Rule19);
        let node = self.node_mut(number);
        if !is_unnoticed {
            (node.epoch, node.settled) = (node.epoch + 1, false);
        }
        node.hang_up();
    }
}

impl Node {
    fn hang_up(&mut self) {
        self.pending.iter_mut().for_each(|pending| pending.has_hung_up = true);
    }
}
