//! A DiscoveryHandler as the controller keeps it.

use std::collections::{BTreeMap, BTreeSet};

use akri_api::DiscoveryHandlerStatus;
use akri_api::condition::Condition;
use akri_kube::watch::key_of;
use akri_model::names::Key;
use akri_model::summary::NodeProblem;
use kube::api::DynamicObject;

use super::{View, problems, status_of};

/// A DiscoveryHandler.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HandlerView {
    pub(crate) key: Key,
    pub(crate) uid: String,
    pub(crate) is_deleting: bool,
    /// The nodes in its status.
    pub(crate) mentions: BTreeSet<String>,
    pub(crate) problems: BTreeMap<String, NodeProblem>,
    /// The conditions that the controller wrote.
    pub(crate) conditions: Vec<Condition>,
}

impl HandlerView {
    /// Reads an object. What it wants is the agents' business.
    pub(crate) fn read(object: DynamicObject) -> Self {
        let status: DiscoveryHandlerStatus = status_of(&object);
        Self {
            key: key_of(&object.metadata),
            uid: object.metadata.uid.unwrap_or_default(),
            is_deleting: object.metadata.deletion_timestamp.is_some(),
            mentions: status.nodes.keys().cloned().collect(),
            problems: problems(&status.nodes),
            conditions: status.conditions,
        }
    }
}

impl View for HandlerView {
    fn key(&self) -> &Key {
        &self.key
    }
}
