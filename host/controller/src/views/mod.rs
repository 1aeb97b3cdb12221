//! Views of objects: the few fields that the controller keeps, since there may be 10,000 Instances.

mod configuration;
mod handler;
mod instance;
mod node;
mod pod;
mod workload;

pub(crate) use configuration::{ConfigurationFields, ConfigurationView, Wanted};
pub(crate) use handler::{HandlerFields, HandlerView};
pub(crate) use instance::{InstanceFields, InstanceView};
pub(crate) use node::{NodeView, is_out_of_service};
pub(crate) use pod::PodView;
pub(crate) use workload::{JobView, ServiceFields, ServiceView};

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use akri_api::condition::{self, Condition};
use akri_kube::watch::key_of;
use akri_model::names::Key;
use akri_model::summary::NodeProblem;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::DynamicObject;
use serde::de::DeserializeOwned;

use crate::work::Work;

/// An object as the controller keeps it: what all kinds have, and the fields of its own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct View<F> {
    pub(crate) key: Key,
    pub(crate) uid: String,
    pub(crate) is_deleting: bool,
    /// The Instance or Configuration that controls it, which is reconciled when the object changes.
    pub(crate) owner: Option<Work>,
    /// The UID of its controller, of whatever kind that is.
    pub(crate) owner_uid: Option<String>,
    fields: F,
}

impl<F> View<F> {
    pub(crate) fn new(metadata: &ObjectMeta, fields: F) -> Self {
        let (key, owner) = (key_of(metadata), controller_of(metadata));
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            is_deleting: metadata.deletion_timestamp.is_some(),
            owner: owner.and_then(|owner| work_of(&key.namespace, owner)),
            owner_uid: owner.map(|owner| owner.uid.clone()),
            key,
            fields,
        }
    }
}

impl<F> Deref for View<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.fields
    }
}

impl<F> DerefMut for View<F> {
    fn deref_mut(&mut self) -> &mut F {
        &mut self.fields
    }
}

/// The generation of an object, and whether an agent has looked at it (rule 131).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Generation {
    uid: String,
    pub(crate) number: i64,
    /// The version since which the object has it, as far as the watch has shown.
    pub(crate) since: u64,
    /// An agent has looked at it already, as the conditions say.
    pub(crate) is_answered: bool,
}

impl Generation {
    fn of(metadata: &ObjectMeta, conditions: &[Condition]) -> Self {
        let since = metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or_default();
        let is_answer =
            |ready: &Condition| ready.observed_generation == metadata.generation && ready.status != "Unknown";
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            number: metadata.generation.unwrap_or_default(),
            since,
            is_answered: condition::find(conditions, "Ready").is_some_and(is_answer),
        }
    }

    /// Takes the version since which the object has it from the view before, which may know better.
    pub(crate) fn follow(&mut self, before: Option<&Self>) {
        if let Some(before) = before.filter(|before| (&before.uid, before.number) == (&self.uid, self.number)) {
            self.since = self.since.min(before.since);
        }
    }
}

/// Reads the status of an object; one that does not fit its type counts as empty.
fn status_of<S: DeserializeOwned + Default>(object: &DynamicObject) -> S {
    let status = object.data.get("status").cloned();
    status.and_then(|status| serde_json::from_value(status).ok()).unwrap_or_default()
}

/// Converts the entries of nodes in a status.
fn problems(nodes: &BTreeMap<String, akri_api::condition::NodeProblem>) -> BTreeMap<String, NodeProblem> {
    nodes.iter().map(|(node, problem)| (node.clone(), problem.into())).collect()
}

fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Returns whether the controller of an object has this UID.
pub(crate) fn is_controlled_by(object: &DynamicObject, uid: &str) -> bool {
    controller_of(&object.metadata).is_some_and(|owner| owner.uid == uid)
}

/// The Instance or Configuration that an owner reference names.
fn work_of(namespace: &str, owner: &OwnerReference) -> Option<Work> {
    let key = Key::new(namespace, &owner.name);
    match (owner.api_version.as_str(), owner.kind.as_str()) {
        ("akri.sh/v0", "Instance") => Some(Work::Instance(key)),
        ("akri.sh/v0", "Configuration") => Some(Work::Configuration(key)),
        _ => None,
    }
}

/// Finalizers that Kubernetes itself sets; all others of an object that is being deleted may be names of nodes, which
/// upstream Akri set.
pub(crate) const NOT_A_NODE: [&str; 2] = ["orphan", "foregroundDeletion"];

/// The finalizers that may be names of nodes.
fn node_finalizers(metadata: &ObjectMeta) -> BTreeSet<String> {
    let finalizers = metadata.finalizers.iter().flatten();
    finalizers.filter(|finalizer| !NOT_A_NODE.contains(&finalizer.as_str())).cloned().collect()
}
