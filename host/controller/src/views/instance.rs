//! An Instance as the controller keeps it.

use std::collections::{BTreeMap, BTreeSet};

use akri_api::validate::is_dns_subdomain;
use akri_api::{IDENTITY_ANNOTATION, Instance, InstanceStatus, condition};
use akri_brokers::{JOB_RECORD, JobRecord};
use akri_kube::watch::{key_of, typed};
use akri_model::instance::Online;
use akri_model::names::{Key, MANY_NODES_LABEL, MAX_NODE_LABELS, Usage, is_node_label, node_label, node_label_value};
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

/// The time for which nodes keep their labels beside the one for many nodes, in seconds: their agents may see that later.
const LABELS_STAY: i64 = 30;

/// Returns the time from which the labels of an Instance of so many nodes have to be other ones, in Unix seconds.
fn relabel_at(labels: &BTreeMap<String, String>, nodes: usize) -> Option<i64> {
    match labels.get(MANY_NODES_LABEL) {
        None => (nodes > MAX_NODE_LABELS).then_some(0),
        Some(since) => labels
            .keys()
            .any(|label| is_node_label(label))
            .then(|| since.parse().map_or(0, |since: i64| since.saturating_add(LABELS_STAY))),
    }
}

/// Returns the labels that an Instance needs which has so many nodes now, if these lack theirs. Few have a label each, by which their
/// agents watch it; of more than that none has: a claim of one device is sent to all (rule 113).
pub(crate) fn node_labels<'a>(
    labels: &BTreeMap<String, String>,
    nodes: usize,
    lacking: impl Iterator<Item = &'a str>,
    now: i64,
) -> BTreeMap<String, String> {
    let mut wanted = labels.clone();
    if nodes <= MAX_NODE_LABELS && !labels.contains_key(MANY_NODES_LABEL) {
        wanted.extend(lacking.map(|node| (node_label(node), node_label_value(node).to_owned())));
    } else if relabel_at(labels, nodes).is_some_and(|at| at <= now) {
        match labels.contains_key(MANY_NODES_LABEL) {
            true => wanted.retain(|label, _| !is_node_label(label)),
            false => drop(wanted.insert(MANY_NODES_LABEL.to_owned(), now.to_string())),
        }
    }
    wanted
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

    /// All nodes it mentions.
    pub(crate) fn mentions(&self) -> BTreeSet<String> {
        let finalizers = self.finalizers.iter().filter(|_| self.is_deleting);
        self.nodes.iter().chain(self.used_by.keys()).chain(self.problems.keys()).chain(finalizers).cloned().collect()
    }

    /// Returns what `Online` says; a device of which it says nothing yet was just found.
    pub(crate) fn last_online(&self) -> Online {
        let online = condition::find(&self.status.conditions, "Online").map(|online| online.status.as_str());
        match online {
            None | Some("True") => Online::True,
            Some("False") => Online::False,
            Some(_) => Online::Unknown,
        }
    }

    /// Returns whether no node sees the device and none uses it.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.nodes.is_empty() && self.used_by.is_empty() && self.unreadable.is_empty() && !self.is_deleting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 23
    fn few_nodes_have_labels_and_many_share_one() {
        let label = |node: &str| (node_label(node), node.to_owned());
        let none = BTreeMap::new();
        assert_eq!(node_labels(&none, MAX_NODE_LABELS, ["a", "b"].into_iter(), 100), [label("a"), label("b")].into());
        let other = ("node.akri.sh/other-name".to_owned(), "a".to_owned());
        let few = BTreeMap::from([label("a"), other.clone()]);
        assert_eq!(relabel_at(&few, MAX_NODE_LABELS), None);
        assert_eq!(relabel_at(&few, MAX_NODE_LABELS + 1), Some(0), "nodes have joined by themselves");
        let many = (MANY_NODES_LABEL.to_owned(), "100".to_owned());
        let both = node_labels(&few, MAX_NODE_LABELS + 1, ["b"].into_iter(), 100);
        assert_eq!(both, [label("a"), other.clone(), many.clone()].into(), "agents see the new one first");
        assert_eq!(relabel_at(&both, 1), Some(100 + LABELS_STAY));
        assert_eq!(node_labels(&both, 40, ["c"].into_iter(), 99 + LABELS_STAY), both);
        let after = node_labels(&both, 40, ["c"].into_iter(), 100 + LABELS_STAY);
        assert_eq!(after, [other, many].into());
        assert_eq!((relabel_at(&after, 40), relabel_at(&after, 2)), (None, None), "also once there are few of them");
        let edited = BTreeMap::from([(MANY_NODES_LABEL.to_owned(), "x".to_owned()), label("a")]);
        assert_eq!(relabel_at(&edited, 40), Some(0));
    }
}
