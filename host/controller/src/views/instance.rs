//! An Instance as the controller keeps it.

use std::collections::{BTreeMap, BTreeSet};

use akri_api::condition::Condition;
use akri_api::validate::is_dns_subdomain;
use akri_api::{BrokerCounts, Instance};
use akri_brokers::{JOB_RECORD, JobRecord};
use akri_kube::watch::key_of;
use akri_model::names::{Key, Usage};
use akri_model::summary::NodeProblem;
use kube::api::DynamicObject;
use tracing::warn;

use super::{View, controller_of, node_finalizers, problems};
use crate::work::Work;

/// An Instance.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InstanceView {
    pub(crate) key: Key,
    pub(crate) uid: String,
    /// The time of its creation, in Unix seconds.
    pub(crate) created: i64,
    pub(crate) is_deleting: bool,
    /// `spec.configurationName`.
    pub(crate) configuration: String,
    /// The UID in its owner reference to that Configuration.
    pub(crate) owner_uid: Option<String>,
    pub(crate) capacity: usize,
    pub(crate) shared: bool,
    pub(crate) nodes: Vec<String>,
    /// The number of slots that each node uses.
    pub(crate) used_by: BTreeMap<String, usize>,
    /// Slots whose usage names no node. They are not free (rule 107).
    pub(crate) unreadable: BTreeMap<String, String>,
    /// Finalizers that may be names of nodes, which upstream Akri left.
    pub(crate) finalizers: BTreeSet<String>,
    pub(crate) problems: BTreeMap<String, NodeProblem>,
    pub(crate) job: Option<JobRecord>,
    /// The conditions that the controller wrote.
    pub(crate) conditions: Vec<Condition>,
    pub(crate) brokers: Option<BrokerCounts>,
}

impl InstanceView {
    /// Reads an object. An object that does not fit the type is logged and left out: it must not stop the others.
    pub(crate) fn read(object: DynamicObject) -> Option<Self> {
        let (name, namespace) = (object.metadata.name.clone(), object.metadata.namespace.clone());
        match serde_json::to_value(object).and_then(serde_json::from_value::<Instance>) {
            Ok(instance) => Some(Self::of(instance)),
            Err(error) => {
                warn!(name, namespace, %error, "an Instance can't be read and is ignored");
                None
            }
        }
    }

    fn of(object: Instance) -> Self {
        let Instance { metadata, spec, status } = object;
        let status = status.unwrap_or_default();
        let owner = controller_of(&metadata)
            .filter(|owner| owner.kind == "Configuration" && owner.name == spec.configuration_name);
        let (mut used_by, mut unreadable) = (BTreeMap::new(), BTreeMap::new());
        for (slot, text) in spec.device_usage.iter().filter(|(_, text)| !text.is_empty()) {
            match Usage::read(text).node().filter(|node| is_dns_subdomain(node)) {
                Some(node) => *used_by.entry(node.to_owned()).or_default() += 1,
                None => drop(unreadable.insert(slot.clone(), text.clone())),
            }
        }
        let record = metadata.annotations.as_ref().and_then(|annotations| annotations.get(JOB_RECORD));
        Self {
            key: key_of(&metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map_or(0, |created| created.0.as_second()),
            is_deleting: metadata.deletion_timestamp.is_some(),
            owner_uid: owner.map(|owner| owner.uid.clone()),
            capacity: usize::try_from(spec.capacity).unwrap_or_default(),
            shared: spec.shared,
            used_by,
            unreadable,
            finalizers: node_finalizers(&metadata),
            problems: problems(&status.nodes),
            job: record.and_then(|record| JobRecord::parse(record)),
            conditions: status.conditions,
            brokers: status.brokers,
            configuration: spec.configuration_name,
            nodes: spec.nodes,
        }
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

    /// Returns whether no node sees the device and none uses it.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.nodes.is_empty() && self.used_by.is_empty() && self.unreadable.is_empty() && !self.is_deleting
    }
}

impl View for InstanceView {
    fn key(&self) -> &Key {
        &self.key
    }

    fn owner(&self) -> Option<Work> {
        Some(Work::Configuration(self.configuration_key()))
    }
}
