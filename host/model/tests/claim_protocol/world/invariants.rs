//! Invariants of worlds: what holds at every moment, and what holds in the end.

use akri_model::claim::ClaimState;
use akri_model::names::Usage;
use akri_model::slots::ApiView;

use super::{Action, Container, NODES, Node, SLOTS, World};

impl World {
    /// Returns the violated invariant, if one does not hold.
    pub(crate) fn violation(&self) -> Option<String> {
        (0..self.slots).find_map(|slot| {
            let users: Vec<&str> = self
                .nodes
                .iter()
                .zip(NODES)
                .filter(|(node, _)| node.kubelet[slot as usize] != Container::None)
                .map(|(_, name)| name)
                .collect();
            (users.len() > 1).then(|| format!("containers of {users:?} have slot {slot} at once"))
        })
    }

    /// Returns the missing proof, if an Allocate is answered with yes without it.
    pub(crate) fn granted_without_proof(&self, action: &Action) -> Option<String> {
        let Action::Answered(number) = *action else { return None };
        let slot = self.nodes[number].allocate.as_ref()?.slot;
        let own = Usage::Instance { node: NODES[number].to_owned() };
        let in_api = self.api.slots.get(&slot) == Some(&own);
        let on_disk = self.nodes[number].journal.get(&slot).is_some_and(|claim| claim.state != ClaimState::Releasing);
        let was_made_again = self.api.uid > 1 || !self.api.exists;
        (!on_disk || !(in_api || was_made_again))
            .then(|| format!("slot {slot} is granted; in the API: {in_api}, on disk: {on_disk}"))
    }

    /// Returns this world without faults to come, and with all pods gone.
    pub(crate) fn calm(&self) -> Self {
        let mut world = self.clone();
        world.faults = 0;
        for node in &mut world.nodes {
            node.kubelet = [Container::None; SLOTS];
            node.allocates = 0;
        }
        world
    }

    /// Lets a calm world run its course, and says what is left over.
    pub(crate) fn leftover(mut self) -> Option<String> {
        for _ in 0..64 {
            let mut is_over = true;
            for action in self.calm_actions() {
                if self.is_possible(&action) {
                    self.act(&action);
                    is_over = false;
                }
            }
            if is_over {
                break;
            }
        }
        let is_free =
            |node: &Node| node.table.as_ref().is_some_and(|table| table.free().count() == self.slots as usize);
        if self.api.slots.values().any(|usage| !usage.is_free()) {
            return Some(format!("slots stay taken: {:?}", self.api.slots));
        }
        let closed = self.nodes.iter().zip(NODES).find(|(node, _)| !is_free(node));
        closed.map(|(node, name)| format!("free slots stay refused on {name}: {:?}", node.table))
    }

    /// One fair step of everybody. Allocates that are being answered time out: their pods are gone.
    fn calm_actions(&self) -> Vec<Action> {
        let mut actions = vec![Action::Deliver(0)];
        for node in 0..NODES.len() {
            use Action::{EndReservations, JournalWritten, Recreate, Restart, Send, Snapshot, TimedOut, Watch};
            let steps = [Restart, JournalWritten, TimedOut, Watch, Recreate, Send, Snapshot, EndReservations];
            actions.extend(steps.map(|action| action(node)));
        }
        actions
    }

    fn is_possible(&self, action: &Action) -> bool {
        let up = |node: usize| self.nodes[node].table.as_ref();
        match *action {
            Action::Deliver(index) => index < self.network.len(),
            Action::Restart(node) => up(node).is_none(),
            Action::JournalWritten(node) => self.nodes[node].writing.is_some(),
            Action::TimedOut(node) => self.nodes[node].allocate.is_some(),
            Action::Watch(node) => up(node).is_some_and(|table| *table.api() != self.view()),
            Action::Recreate(node) => !self.api.exists && up(node).is_some_and(|table| *table.api() == ApiView::Absent),
            Action::Send(node) => {
                !self.nodes[node].waiting && up(node).is_some_and(|table| table.next_step().is_some())
            }
            Action::EndReservations(node) => up(node).is_some_and(|table| self.reservations_end(table)),
            Action::Snapshot(node) => {
                self.nodes[node].allocate.is_none() && up(node).is_some_and(|table| table.claims().count() > 0)
            }
            _ => false,
        }
    }
}
