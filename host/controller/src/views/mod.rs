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
use std::time::Duration;

use akri_api::condition::{self, Condition};
use akri_kube::watch::{key_of, version_of};
use akri_model::names::Key;
use akri_model::summary::NodeProblem;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::DynamicObject;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

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

/// The time that an answer stays of which the former controller knew whose it was: every running agent renews its Lease meanwhile.
const KEPT: Duration = Duration::from_secs(75);

/// The generation of an object, and what is known of the agents that have looked at it (rule 131).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Generation {
    uid: String,
    pub(crate) number: i64,
    /// The version since which the object has it, as far as the watch has shown, or lacks an entry whose node can't tell more: others may
    /// have kept silent because of it.
    pub(crate) since: u64,
    /// The conditions say what an agent found.
    pub(crate) is_known: bool,
    /// The time until which they do, whichever agents have looked.
    pub(crate) kept_until: Option<Instant>,
    /// The nodes with an entry in the status.
    reporters: BTreeSet<String>,
    /// The nodes that run discovery, with the versions since which they do; all nodes if `None` (rule 126).
    discovering: Option<BTreeMap<String, u64>>,
}

impl Generation {
    fn of(metadata: &ObjectMeta, conditions: &[Condition], problems: &BTreeMap<String, NodeProblem>) -> Self {
        let is_known =
            |ready: &Condition| ready.observed_generation == metadata.generation && ready.status != "Unknown";
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            number: metadata.generation.unwrap_or_default(),
            since: version_of(metadata),
            is_known: condition::find(conditions, "Ready").is_some_and(is_known),
            kept_until: None,
            reporters: problems.keys().cloned().collect(),
            discovering: None,
        }
    }

    /// Only these nodes run discovery, as far as is known since this version.
    fn discovers_on(&mut self, nodes: &[String]) {
        self.discovering = Some(nodes.iter().map(|node| (node.clone(), self.since)).collect());
    }

    /// Returns the version since which a node has to look at the generation; `None` if that is for others to do.
    pub(crate) fn since_on(&self, node: &str) -> Option<u64> {
        match &self.discovering {
            None => Some(self.since),
            Some(nodes) => nodes.get(node).map(|since| self.since.max(*since)),
        }
    }

    /// Takes what the view before says, which may know better, if there was one; `has_agent` says of a node whether its agent runs.
    pub(crate) fn follow(&mut self, before: Option<&Self>, has_agent: impl Fn(&str) -> bool, now: Instant) {
        let Some(before) = before else {
            self.kept_until = self.is_known.then(|| now + KEPT);
            return;
        };
        if let (Some(nodes), Some(before)) = (&mut self.discovering, &before.discovering) {
            for (node, since) in nodes {
                *since = before.get(node).map_or(*since, |before| (*since).min(*before));
            }
        }
        let mut removed = before.reporters.difference(&self.reporters);
        let is_same = (&before.uid, before.number) == (&self.uid, self.number);
        if is_same && removed.all(|node| has_agent(node)) {
            self.since = self.since.min(before.since);
            self.kept_until = before.kept_until;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn generation(number: i64, version: u64, is_known: bool, nodes: &[&str]) -> Generation {
        let metadata = json!({"uid": "u", "generation": number, "resourceVersion": version.to_string()});
        let status = if is_known { "True" } else { "Unknown" };
        let ready = json!({
            "type": "Ready", "status": status, "reason": "R", "message": "", "observedGeneration": number,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let problems = nodes.iter().map(|node| ((*node).to_owned(), NodeProblem::new("R", "m"))).collect();
        Generation::of(&serde_json::from_value(metadata).unwrap(), &[serde_json::from_value(ready).unwrap()], &problems)
    }

    fn followed(before: Option<&Generation>, mut next: Generation) -> Generation {
        next.follow(before, |node| node == "running", Instant::now());
        next
    }

    #[test] // rule 131
    fn generation_counts_from_its_first_version() {
        let first = followed(None, generation(1, 10, false, &["running", "gone"]));
        assert_eq!((first.since, first.kept_until), (10, None));
        let answered = followed(Some(&first), generation(1, 12, true, &["gone"]));
        assert_eq!(
            (answered.since, answered.is_known, answered.kept_until),
            (10, true, None),
            "an agent wrote its own"
        );
        let removed = followed(Some(&answered), generation(1, 14, true, &[]));
        assert_eq!(removed.since, 14, "others may have kept silent because of the entry of a node that went");
        assert_eq!(followed(Some(&removed), generation(2, 15, false, &[])).since, 15);
        assert_eq!(followed(Some(&removed), generation(1, 3, true, &[])).since, 3, "etcd was restored");
    }

    #[test] // rule 126, rule 131
    fn node_that_takes_over_has_to_look_anew() {
        let on = |version, nodes: &[&str]| {
            let mut generation = generation(1, version, false, &[]);
            generation.discovers_on(&nodes.iter().map(|node| (*node).to_owned()).collect::<Vec<_>>());
            generation
        };
        let first = followed(None, on(10, &["a"]));
        let second = followed(Some(&first), on(12, &["a", "b"]));
        assert_eq!(["a", "b", "c"].map(|node| second.since_on(node)), [Some(10), Some(12), None]);
        assert_eq!(generation(1, 10, false, &[]).since_on("c"), Some(10), "all look");
    }

    #[test] // rule 131
    fn answer_of_before_this_controller_is_kept_for_a_while() {
        let first = followed(None, generation(1, 10, true, &["gone"]));
        assert!(first.kept_until.is_some());
        assert_eq!(followed(Some(&first), generation(1, 11, true, &["gone"])).kept_until, first.kept_until);
        for next in [generation(1, 11, true, &[]), generation(2, 11, true, &["gone"])] {
            assert_eq!(followed(Some(&first), next).kept_until, None);
        }
    }
}
