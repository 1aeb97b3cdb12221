//! An Instance as the controller keeps it.

use std::collections::{BTreeMap, BTreeSet};

use akri_api::validate::is_dns_subdomain;
use akri_api::{IDENTITY_ANNOTATION, Instance, InstanceStatus, condition};
use akri_brokers::{JOB_RECORD, JobRecord};
use akri_kube::watch::{key_of, typed};
use akri_model::instance::Online;
use akri_model::instance_labels::{MANY_NODES_LABEL, node_label, relabel_at};
use akri_model::names::{Key, Usage};
use akri_model::summary::NodeProblem;
use kube::api::DynamicObject;
use tracing::warn;

use super::{View, node_finalizers, problems};
use crate::work::Work;

/// An Instance. It belongs to the Configuration that it names, also without an owner reference to that.
pub(crate) type InstanceView = View<InstanceFields>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InstanceFields {
    /// The time of its creation, in Unix seconds.
    pub(crate) created: i64,
    /// `spec.configurationName`.
    pub(crate) configuration: String,
    pub(crate) capacity: usize,
    pub(crate) shared: bool,
    pub(crate) nodes: Vec<String>,
    /// The number of slots that each node uses.
    pub(crate) used_by: BTreeMap<String, usize>,
    /// Nodes that use it and have neither joined nor their label: their agents do not watch it.
    pub(crate) unlabelled: BTreeSet<String>,
    /// Each of its nodes has a label, not all together one (rule 23).
    pub(crate) has_node_labels: bool,
    /// The time from which its labels have to be other ones, in Unix seconds, as it has too many nodes for a label of each.
    pub(crate) relabel_at: Option<i64>,
    /// Slots whose usage names no node. They are not free (rule 107).
    pub(crate) unreadable: BTreeMap<String, String>,
    /// Finalizers that may be names of nodes, which upstream Akri left.
    pub(crate) finalizers: BTreeSet<String>,
    pub(crate) problems: BTreeMap<String, NodeProblem>,
    pub(crate) job: Option<JobRecord>,
    /// The properties of an Instance without an identity: upstream Akri made it, and no agent has adopted it.
    pub(crate) unadopted: Option<BTreeMap<String, String>>,
    /// The status that the controller wrote.
    pub(crate) status: InstanceStatus,
}

impl InstanceView {
    /// Reads an object. An object that does not fit the type is logged and left out: it must not stop the others.
    pub(crate) fn read(object: DynamicObject) -> Option<Self> {
        let warn = |error: &String| warn!(instance = %key_of(&object.metadata), error, "an Instance can't be read and is ignored");
        typed(&object).inspect_err(warn).ok().map(Self::of)
    }

    fn of(object: Instance) -> Self {
        let Instance { metadata, spec, status } = object;
        let status = status.unwrap_or_default();
        let (mut used_by, mut unreadable) = (BTreeMap::new(), BTreeMap::new());
        for (slot, text) in spec.device_usage.iter().filter(|(_, text)| !text.is_empty()) {
            match Usage::read(text).node().filter(|node| is_dns_subdomain(node)) {
                Some(node) => *used_by.entry(node.to_owned()).or_default() += 1,
                None => drop(unreadable.insert(slot.clone(), text.clone())),
            }
        }
        let annotations = metadata.annotations.as_ref();
        let labels = metadata.labels.as_ref();
        let has_label = |label: &str| labels.is_some_and(|labels| labels.contains_key(label));
        let is_watched_by =
            |node: &String| has_label(MANY_NODES_LABEL) || has_label(&node_label(node)) || spec.nodes.contains(node);
        let record = annotations.and_then(|annotations| annotations.get(JOB_RECORD));
        let fields = InstanceFields {
            created: metadata.creation_timestamp.as_ref().map_or(0, |created| created.0.as_second()),
            capacity: usize::try_from(spec.capacity).unwrap_or_default(),
            shared: spec.shared,
            unlabelled: used_by.keys().filter(|node| !is_watched_by(node)).cloned().collect(),
            has_node_labels: labels.is_some() && !has_label(MANY_NODES_LABEL),
            relabel_at: labels.and_then(|labels| relabel_at(labels, spec.nodes.len())),
            used_by,
            unreadable,
            finalizers: node_finalizers(&metadata),
            problems: problems(&status.nodes),
            job: record.and_then(|record| JobRecord::parse(record)),
            unadopted: annotations
                .is_none_or(|all| !all.contains_key(IDENTITY_ANNOTATION))
                .then_some(spec.broker_properties),
            status: InstanceStatus { nodes: BTreeMap::new(), broker_info: BTreeMap::new(), ..status },
            configuration: spec.configuration_name,
            nodes: spec.nodes,
        };
        let mut view = View::new(&metadata, fields);
        let configuration = Some(Work::Configuration(view.configuration_key()));
        view.owner_uid = view.owner_uid.filter(|_| view.owner == configuration);
        view.owner = configuration;
        view
    }

    /// The Configuration it says it belongs to.
    pub(crate) fn configuration_key(&self) -> Key {
        Key::new(&*self.key.namespace, &*self.configuration)
    }

    /// Counts the time of each entry of a node from when this controller saw it first, since clocks of nodes may be wrong (rule 121). Of
    /// what was there before the controller only the node's own time is known.
    pub(crate) fn set_times(&mut self, before: Option<&Self>, now: i64) {
        let before = before.filter(|before| before.uid == self.uid).map(|before| before.problems.clone());
        for (node, problem) in &mut self.fields.problems {
            let known = before.as_ref().map(|known| known.get(node).filter(|known| known.reason == problem.reason));
            problem.since = match known {
                Some(known) => known.map_or(Some(now), |known| known.since),
                None => problem.since.map(|since| since.min(now)),
            };
        }
    }

    /// All nodes it mentions.
    pub(crate) fn mentions(&self) -> BTreeSet<String> {
        let finalizers = self.finalizers.iter().filter(|_| self.is_deleting);
        self.nodes.iter().chain(self.used_by.keys()).chain(self.problems.keys()).chain(finalizers).cloned().collect()
    }

    /// Returns what `Online` says; a device of which it says nothing yet was just found.
    pub(crate) fn last_online(&self) -> Online {
        condition::online(&self.status.conditions).unwrap_or(Online::True)
    }

    /// Returns whether no node sees the device and none uses it.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.nodes.is_empty() && self.used_by.is_empty() && self.unreadable.is_empty() && !self.is_deleting
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test] // rule 121
    fn times_of_entries_are_those_of_this_controller() {
        let view = |since: &str, reason: &str| {
            let nodes = json!({"a": {"reason": reason, "since": since}});
            let object = json!({
                "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"namespace": "default", "name": "cam-1", "uid": "u"},
                "spec": {"configurationName": "cam", "cdiName": "akri.sh/cam=1", "capacity": 1, "shared": true, "nodes": ["a"]},
                "status": {"nodes": nodes},
            });
            InstanceView::read(serde_json::from_value(object).unwrap()).unwrap()
        };
        let taken = |mut view: InstanceView, before: Option<&InstanceView>, now| {
            view.set_times(before, now);
            (view.problems["a"].since, view)
        };
        let (early, late) = ("1970-01-01T00:00:10Z", "1970-01-02T00:00:00Z");
        assert_eq!(taken(view(late, "NotFound"), None, 50).0, Some(50), "a clock that is ahead");
        let (since, listed) = taken(view(early, "NotFound"), None, 50);
        assert_eq!(since, Some(10));
        assert_eq!(taken(view(late, "NotFound"), Some(&listed), 60).0, Some(10));
        let (since, other) = taken(view(early, "HandlerGone"), Some(&listed), 60);
        assert_eq!(since, Some(60), "a clock that is behind");
        assert_eq!(taken(view(early, "HandlerGone"), Some(&other), 70).0, Some(60));
    }
}
