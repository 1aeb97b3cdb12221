//! Requests and answers on their way.

use akri_model::slots::{ApiView, SyncStep};

use super::World;
use super::api::Creation;

/// A request of a node about an Instance, or the answer to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Message {
    pub(crate) node: usize,
    pub(crate) instance: usize,
    /// The node no longer waits for it.
    pub(crate) is_late: bool,
    pub(crate) body: Body,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Body {
    Request(Request),
    Answer(ApiView),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Slots(SyncStep),
    Create(Creation),
}

impl World {
    /// Sends the next step of an Instance, if it needs one.
    pub(super) fn send(&mut self, node: usize, instance: usize) {
        let identity = self.setup.devices[instance].identity.clone();
        let Some(machine) = &mut self.node_mut(node).machine else { return };
        let Some(step) = machine.start_step(&identity) else { return };
        let request = match step {
            SyncStep::Create => Request::Create(self.creation(node, instance)),
            step => Request::Slots(step),
        };
        self.network.push(Message { node, instance, is_late: false, body: Body::Request(request) });
    }

    pub(super) fn deliver(&mut self, index: usize) {
        let Message { node, instance, is_late, body } = self.network.remove(index);
        match body {
            Body::Answer(view) => self.end_step(node, instance, Some(view)),
            Body::Request(request) => {
                let view = self.serve(node, instance, &request);
                if !is_late {
                    self.announce(node, instance, &request);
                    self.end_step(node, instance, Some(view));
                }
            }
        }
    }

    /// Lets a request take effect. Returns the answer.
    fn serve(&mut self, node: usize, instance: usize, request: &Request) -> ApiView {
        match request {
            Request::Slots(SyncStep::Patch(patch)) => self.api.patch(instance, patch),
            Request::Slots(_) => {}
            Request::Create(wanted) => self.api.create(instance, node, wanted),
        }
        self.api.get(instance, self.nodes[node].history)
    }

    /// A node that wanted to make an Instance, and finds that of another, says in its Lease that it wants to join it.
    fn announce(&mut self, node: usize, instance: usize, request: &Request) {
        if matches!(request, Request::Create(_)) && self.api.announce(instance, node) {
            self.node_mut(node).joining.insert(instance);
        }
    }

    /// A request is lost, or its answer.
    pub(super) fn lose(&mut self, index: usize, arrives: bool) {
        let Message { node, instance, body, .. } = self.network.remove(index);
        if let Body::Request(request) = &body
            && arrives
        {
            self.serve(node, instance, request);
        }
        self.end_step(node, instance, None);
    }

    pub(super) fn delay_answer(&mut self, index: usize) {
        let Message { node, instance, body, .. } = self.network.remove(index);
        let Body::Request(request) = &body else { return };
        let view = self.serve(node, instance, request);
        self.announce(node, instance, request);
        let body = Body::Answer(view);
        self.network.push(Message { node, instance, is_late: false, body });
    }

    /// The sender gives a request up.
    pub(super) fn delay_request(&mut self, index: usize) {
        let message = &mut self.network[index];
        message.is_late = true;
        let (node, instance) = (message.node, message.instance);
        self.end_step(node, instance, None);
    }

    pub(super) fn double_request(&mut self, index: usize) {
        let late = Message { is_late: true, ..self.network[index].clone() };
        self.network.push(late);
    }

    /// A node no longer waits for anything. What it has sent goes on without it.
    pub(super) fn forget_requests(&mut self, node: usize) {
        self.network.retain(|message| message.node != node || matches!(message.body, Body::Request(_)));
        self.network.iter_mut().filter(|message| message.node == node).for_each(|message| message.is_late = true);
    }

    /// All connections break, and nothing of what was on its way arrives.
    pub(super) fn lose_all(&mut self) {
        for message in std::mem::take(&mut self.network).into_iter().filter(|message| !message.is_late) {
            self.end_step(message.node, message.instance, None);
        }
    }

    fn end_step(&mut self, node: usize, instance: usize, view: Option<ApiView>) {
        let identity = self.setup.devices[instance].identity.clone();
        let node = self.node_mut(node);
        let moment = node.moment();
        if let Some(machine) = &mut node.machine {
            machine.step_ended(&identity, view, moment);
        }
    }
}
