//! The world as one value, and everything that may happen next.

mod fingerprint;
mod invariants;

use std::collections::BTreeMap;
use std::time::Duration;

use akri_model::claim::{ClaimState, Claims, journaled, restore};
use akri_model::instance::Version;
use akri_model::names::Usage;
use akri_model::reclaim::{ClaimObservation, Evidence, SnapshotEffect, SnapshotInfo};
use akri_model::slots::{ApiView, Authority, Claim, PublishedSlots, SlotPatch, SlotState, SlotTable, SyncStep};

pub(crate) const NODES: [&str; 2] = ["a", "b"];
/// The most slots there are.
const SLOTS: usize = 2;

/// The state of everything.
#[derive(Clone)]
pub(crate) struct World {
    /// The Instance, or what follows the last one.
    pub(crate) api: Api,
    pub(crate) nodes: [Node; 2],
    /// Requests and answers on their way.
    pub network: Vec<Message>,
    /// The number of faults that may still happen.
    faults: u8,
    slots: u32,
}

#[derive(Clone)]
pub(crate) struct Api {
    exists: bool,
    uid: u32,
    version: u64,
    pub(crate) slots: BTreeMap<u32, Usage>,
}

#[derive(Clone)]
pub(crate) struct Node {
    /// None while the agent is down.
    pub(crate) table: Option<SlotTable>,
    /// On disk.
    journal: Claims,
    /// Being written.
    writing: Option<Claims>,
    /// Set while a response of the API server is awaited.
    waiting: bool,
    allocate: Option<Allocate>,
    pub(crate) kubelet: [Container; SLOTS],
    /// The number of pods that may still come.
    allocates: u8,
}

/// An Allocate that is being answered.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Allocate {
    slot: u32,
    journaled: bool,
}

/// The container that the kubelet runs on a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Container {
    None,
    /// The kubelet has the answer and has not noted it.
    Starting,
    /// PodResources lists it.
    App,
    /// Only the checkpoint has it.
    Init,
}

#[derive(Clone)]
pub(crate) enum Message {
    /// `late` if the node no longer waits for the answer.
    Request {
        node: usize,
        step: SyncStep,
        late: bool,
    },
    Answer {
        node: usize,
        view: ApiView,
    },
}

/// An action that may happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Allocate(usize, u32),
    JournalWritten(usize),
    Answered(usize),
    TimedOut(usize),
    Send(usize),
    Deliver(usize),
    Watch(usize),
    Started(usize, u32, bool),
    Ended(usize, u32),
    Snapshot(usize),
    Restart(usize),
    Recreate(usize),
    EndReservations(usize),
    // Faults.
    Lose(usize),
    Delay(usize),
    Crash(usize),
    DeleteInstance,
}

impl World {
    pub(crate) fn new(slots: u32, faults: u8, allocates: u8) -> Self {
        let free = (0..slots).map(|slot| (slot, Usage::Free)).collect();
        let api = Api { exists: true, uid: 1, version: 1, slots: free };
        let node = |name: &str| Node {
            table: Some(SlotTable::new(name, Authority::Api, slots)),
            journal: Claims::new(),
            writing: None,
            waiting: false,
            allocate: None,
            kubelet: [Container::None; SLOTS],
            allocates,
        };
        let mut world = Self { api, nodes: NODES.map(node), network: Vec::new(), faults, slots };
        (0..NODES.len()).for_each(|node| world.watch(node));
        world
    }

    /// Returns all actions that may happen next.
    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            self.actions_of(number, node, &mut actions);
        }
        for (index, message) in self.network.iter().enumerate() {
            actions.push(Action::Deliver(index));
            if self.faults > 0 {
                actions.push(Action::Lose(index));
                if matches!(message, Message::Request { late: false, .. }) {
                    actions.push(Action::Delay(index));
                }
            }
        }
        if self.faults > 0 && self.api.exists && self.nodes.iter().all(|node| self.is_current(node)) {
            actions.push(Action::DeleteInstance);
        }
        actions
    }

    fn actions_of(&self, number: usize, node: &Node, actions: &mut Vec<Action>) {
        for slot in 0..self.slots {
            match node.kubelet[slot as usize] {
                Container::None if node.allocates > 0 && node.allocate.is_none() && node.table.is_some() => {
                    actions.push(Action::Allocate(number, slot));
                }
                Container::None => {}
                Container::Starting => {
                    actions.extend([true, false].map(|init| Action::Started(number, slot, init)));
                }
                Container::App | Container::Init => actions.push(Action::Ended(number, slot)),
            }
        }
        let Some(table) = &node.table else { return actions.push(Action::Restart(number)) };
        if node.writing.is_some() {
            actions.push(Action::JournalWritten(number));
        }
        if node.allocate.is_some() {
            actions.push(Action::TimedOut(number));
            if self.is_granted(number) {
                actions.push(Action::Answered(number));
            }
        } else if table.claims().count() > 0 && !node.kubelet.contains(&Container::Starting) {
            actions.push(Action::Snapshot(number));
        }
        if !node.waiting && table.next_step().is_some() {
            actions.push(Action::Send(number));
        }
        if *table.api() != self.view() {
            actions.push(Action::Watch(number));
        }
        if *table.api() == ApiView::Absent && !self.api.exists {
            actions.push(Action::Recreate(number));
        }
        if self.reservations_end(table) {
            actions.push(Action::EndReservations(number));
        }
        if self.faults > 0 {
            actions.push(Action::Crash(number));
        }
    }

    /// Returns whether a node knows the usage of the others: only then does it carry that over.
    fn is_current(&self, node: &Node) -> bool {
        node.table.as_ref().is_some_and(|table| *table.api() == self.view() && table.unconfirmed() == 0)
            && self.network.is_empty()
    }

    /// Slots are kept for longer than it takes their users to claim them again.
    fn reservations_end(&self, table: &SlotTable) -> bool {
        let is_claimed = |node: &Node, slot: u32| {
            let is_known = match &node.table {
                Some(table) => table.claims().any(|(claimed, _)| claimed == slot),
                None => node.journal.get(&slot).is_some_and(|claim| claim.state != ClaimState::Releasing),
            };
            is_known || node.kubelet[slot as usize] != Container::None
        };
        let has_user = |slot: &u32| {
            let others = self.nodes.iter().zip(NODES).filter(|(_, name)| table.of_others()[slot].node() == Some(name));
            others.into_iter().any(|(node, _)| is_claimed(node, *slot))
        };
        !table.reserved().is_empty() && !table.reserved().iter().any(has_user)
    }

    fn is_granted(&self, number: usize) -> bool {
        let node = &self.nodes[number];
        let (Some(table), Some(allocate)) = (&node.table, &node.allocate) else { return false };
        allocate.journaled && matches!(table.state(allocate.slot), SlotState::Held(_))
    }

    /// The world after an action.
    pub(crate) fn after(&self, action: &Action) -> Self {
        let mut world = self.clone();
        world.act(action);
        world
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Allocate(node, slot) => self.allocate(node, slot),
            Action::JournalWritten(node) => self.journal_written(node),
            Action::Answered(node) => self.answered(node),
            Action::TimedOut(node) => self.timed_out(node),
            Action::Send(node) => self.send(node),
            Action::Deliver(index) => self.deliver(index),
            Action::Watch(node) => self.watch(node),
            Action::Started(node, slot, init) => {
                self.nodes[node].kubelet[slot as usize] = if init { Container::Init } else { Container::App };
            }
            Action::Ended(node, slot) => self.nodes[node].kubelet[slot as usize] = Container::None,
            Action::Snapshot(node) => self.snapshot(node),
            Action::Restart(node) => self.restart(node),
            Action::Recreate(node) => self.recreate(node),
            Action::EndReservations(node) => self.nodes[node].table.as_mut().unwrap().end_reservations(),
            Action::Lose(index) => self.lose(index),
            Action::Delay(index) => self.delay(index),
            Action::Crash(node) => self.crash(node),
            Action::DeleteInstance => {
                self.faults -= 1;
                self.api.exists = false;
            }
        }
        if self.network.len() > 1 {
            self.network.sort_by_cached_key(|message| format!("{message:?}"));
        }
    }

    fn allocate(&mut self, number: usize, slot: u32) {
        let node = &mut self.nodes[number];
        node.allocates -= 1;
        let table = node.table.as_mut().unwrap();
        let usage = Usage::Instance { node: NODES[number].to_owned() };
        if table.claim(slot, claim(usage)).is_ok() {
            node.writing = Some(journaled(table, &BTreeMap::new()));
            node.allocate = Some(Allocate { slot, journaled: false });
        }
    }

    fn journal_written(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.journal = node.writing.take().unwrap();
        if let Some(allocate) = &mut node.allocate {
            allocate.journaled = true;
        }
    }

    /// The kubelet gets its yes.
    fn answered(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let allocate = node.allocate.take().unwrap();
        node.kubelet[allocate.slot as usize] = Container::Starting;
        node.writing = Some(journaled(node.table.as_ref().unwrap(), &BTreeMap::new()));
    }

    /// Ends an Allocate whose caller has gone. Its claim is given up, and that is on disk before anything else happens.
    fn timed_out(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let allocate = node.allocate.take().unwrap();
        let table = node.table.as_mut().unwrap();
        table.abandon(allocate.slot);
        table.release(allocate.slot);
        node.write_now();
    }

    fn send(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let step = node.table.as_ref().unwrap().next_step().unwrap();
        node.waiting = true;
        self.network.push(Message::Request { node: number, step, late: false });
    }

    fn deliver(&mut self, index: usize) {
        match self.network.remove(index) {
            Message::Request { node, step, late } => {
                if let SyncStep::Patch(patch) = &step {
                    self.api.apply(patch);
                }
                if !late {
                    self.network.push(Message::Answer { node, view: self.view() });
                }
            }
            Message::Answer { node, view } => {
                self.nodes[node].waiting = false;
                self.observe(node, view);
            }
        }
    }

    fn view(&self) -> ApiView {
        if !self.api.exists {
            return ApiView::Absent;
        }
        ApiView::Present(PublishedSlots {
            uid: self.api.uid.to_string(),
            version: Version(self.api.version.to_string()),
            slots: self.api.slots.clone(),
        })
    }

    fn watch(&mut self, number: usize) {
        self.observe(number, self.view());
    }

    /// Applies a view of the API server. Adopted claims are on disk before anything else happens.
    fn observe(&mut self, number: usize, view: ApiView) {
        let node = &mut self.nodes[number];
        if let Some(table) = &mut node.table
            && !table.observe(view, claim).is_empty()
        {
            node.write_now();
        }
    }

    fn snapshot(&mut self, number: usize) {
        let slots = self.slots;
        let node = &mut self.nodes[number];
        let table = node.table.as_mut().unwrap();
        let info = SnapshotInfo { generation: 0, epoch: 0, at: Duration::ZERO, settled: true };
        for slot in 0..slots {
            let container = node.kubelet[slot as usize];
            let evidence = Evidence::new(container == Container::App, Some(container == Container::Init));
            let effects = table.observation_mut(slot).map(|observation| observation.observe(evidence, &info));
            if effects == Some(SnapshotEffect::Ended) {
                table.release(slot);
            }
        }
        node.write_now();
    }

    fn crash(&mut self, number: usize) {
        self.faults -= 1;
        let node = &mut self.nodes[number];
        (node.table, node.writing, node.allocate, node.waiting) = (None, None, None, false);
        // What it has sent goes on without it.
        self.network.retain(|message| !matches!(message, Message::Answer { node, .. } if *node == number));
        for message in &mut self.network {
            if let Message::Request { node, late, .. } = message
                && *node == number
            {
                *late = true;
            }
        }
    }

    fn restart(&mut self, number: usize) {
        let slots = self.slots;
        let node = &mut self.nodes[number];
        let mut table = SlotTable::new(NODES[number], Authority::Api, slots);
        restore(&mut table, &node.journal, 0, Duration::ZERO);
        node.table = Some(table);
    }

    /// A node makes the Instance of a device again that somebody deleted, with its own claims.
    fn recreate(&mut self, number: usize) {
        let table = self.nodes[number].table.as_ref().unwrap();
        let usage = table.to_usage("i").into_iter();
        let slots = usage.map(|(name, text)| (name[2..].parse().unwrap(), Usage::read(&text))).collect();
        self.api = Api { exists: true, uid: self.api.uid + 1, version: self.api.version + 1, slots };
    }

    /// A request or an answer is lost; the node stops waiting.
    fn lose(&mut self, index: usize) {
        self.faults -= 1;
        match self.network.remove(index) {
            Message::Request { late: true, .. } => {}
            Message::Request { node, .. } | Message::Answer { node, .. } => self.nodes[node].waiting = false,
        }
    }

    /// A node stops waiting for a request that will take effect all the same, some time.
    fn delay(&mut self, index: usize) {
        self.faults -= 1;
        if let Message::Request { node, late, .. } = &mut self.network[index] {
            *late = true;
            self.nodes[*node].waiting = false;
        }
    }
}

impl Message {
    fn view(&self) -> Option<&ApiView> {
        match self {
            Self::Answer { view, .. } => Some(view),
            Self::Request { .. } => None,
        }
    }
}

impl Node {
    fn write_now(&mut self) {
        let table = self.table.as_ref().unwrap();
        self.journal = journaled(table, &BTreeMap::new());
        if self.writing.take().is_some()
            && let Some(allocate) = &mut self.allocate
        {
            allocate.journaled = true; // one writer, in order
        }
    }
}

impl Api {
    fn apply(&mut self, patch: &SlotPatch) {
        let is_same = |version: &Version| version.0 == self.version.to_string();
        let expected = |(slot, (from, _)): (&u32, &(Option<Usage>, Usage))| self.slots.get(slot) == from.as_ref();
        let applies = self.exists
            && patch.uid == self.uid.to_string()
            && patch.version.as_ref().is_none_or(is_same)
            && patch.changes.iter().all(expected);
        if applies {
            self.version += 1;
            self.slots.extend(patch.changes.iter().map(|(slot, (_, to))| (*slot, to.clone())));
        }
    }
}

fn claim(usage: Usage) -> Claim {
    Claim { usage, generation: 0, observation: ClaimObservation::new(0, Duration::ZERO) }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Request { node, step, late } => write!(f, "request of {} {step:?} late: {late}", NODES[*node]),
            Self::Answer { node, view } => write!(f, "answer to {} {view:?}", NODES[*node]),
        }
    }
}
