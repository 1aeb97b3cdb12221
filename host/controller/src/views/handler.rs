//! A DiscoveryHandler as the controller keeps it.

use std::collections::{BTreeMap, BTreeSet};

use akri_api::DiscoveryHandlerStatus;
use akri_api::condition::Condition;
use akri_model::summary::NodeProblem;
use kube::api::DynamicObject;

use super::{Generation, View, problems, status_of};

/// A DiscoveryHandler.
pub(crate) type HandlerView = View<HandlerFields>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HandlerFields {
    pub(crate) generation: Generation,
    pub(crate) problems: BTreeMap<String, NodeProblem>,
    /// The conditions that the controller wrote, and the agents that it waits for.
    pub(crate) conditions: Vec<Condition>,
    pub(crate) awaiting: Vec<String>,
}

impl HandlerView {
    /// Reads an object. What it wants is the agents' business.
    pub(crate) fn read(object: &DynamicObject) -> Self {
        let status: DiscoveryHandlerStatus = status_of(object);
        let problems = problems(&status.nodes);
        let fields = HandlerFields {
            generation: Generation::of(&object.metadata, &status.conditions, &problems),
            problems,
            conditions: status.conditions,
            awaiting: status.awaiting,
        };
        View::new(&object.metadata, fields)
    }

    /// All nodes it mentions.
    pub(crate) fn mentions(&self) -> BTreeSet<String> {
        self.problems.keys().cloned().collect()
    }
}
