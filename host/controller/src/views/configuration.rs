//! A Configuration as the controller keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_api::condition::Condition;
use akri_api::{BrokerCounts, Configuration, ConfigurationStatus, configuration_to_model, validate};
use akri_brokers::Manifest;
use akri_kube::watch::key_of;
use akri_model::names::Key;
use akri_model::summary::NodeProblem;
use kube::api::DynamicObject;
use serde_json::Value;

use super::{View, finalizer_nodes, node_finalizers, problems, status_of};

/// The workload that is run for each device.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Broker {
    /// Nothing.
    #[default]
    None,
    /// A Pod on each node.
    Pod(Manifest),
    /// A Job.
    Job(Manifest),
}

/// The wanted brokers and Services of a valid Configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) broker: Broker,
    pub(crate) instance_service: Option<Manifest>,
    pub(crate) configuration_service: Option<Manifest>,
    /// The time that a missing device keeps its broker, for local and for shared devices.
    pub(crate) grace: [Duration; 2],
}

/// A Configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConfigurationView {
    pub(crate) key: Key,
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) is_deleting: bool,
    /// The wanted brokers and Services, or the error of the object: then everything stays as it is.
    pub(crate) wanted: Result<Wanted, String>,
    pub(crate) mentions: BTreeSet<String>,
    /// Finalizers that may be names of nodes, which upstream Akri left.
    pub(crate) finalizers: BTreeSet<String>,
    pub(crate) problems: BTreeMap<String, NodeProblem>,
    /// The generation in the status that the controller wrote.
    pub(crate) observed_generation: Option<i64>,
    pub(crate) instances: i64,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) brokers: Option<BrokerCounts>,
}

impl ConfigurationView {
    /// Reads any object: the status of an invalid one says what is wrong.
    pub(crate) fn read(object: DynamicObject) -> Self {
        let status: ConfigurationStatus = status_of(&object);
        let metadata = object.metadata.clone();
        let mentions = status.nodes.keys().cloned().chain(finalizer_nodes(&metadata)).collect();
        let finalizers = node_finalizers(&metadata);
        Self {
            key: key_of(&metadata),
            uid: metadata.uid.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            is_deleting: metadata.deletion_timestamp.is_some(),
            wanted: wanted(object),
            mentions,
            finalizers,
            problems: problems(&status.nodes),
            observed_generation: status.observed_generation,
            instances: status.instances,
            conditions: status.conditions,
            brokers: status.brokers,
        }
    }

    /// Returns the wanted brokers and Services, if the object is valid.
    pub(crate) fn valid(&self) -> Option<&Wanted> {
        self.wanted.as_ref().ok()
    }
}

/// Returns the wanted brokers and Services, or the error of an object that the API server accepted.
fn wanted(mut object: DynamicObject) -> Result<Wanted, String> {
    object.data.as_object_mut().map(|fields| fields.remove("status"));
    let value = serde_json::to_value(object).map_err(|error| error.to_string())?;
    let configuration: Configuration =
        serde_json::from_value::<Value>(value).and_then(serde_json::from_value).map_err(|error| error.to_string())?;
    let errors = validate::configuration(&configuration);
    if !errors.is_empty() {
        let lines: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
        return Err(lines.join("; "));
    }
    let model = configuration_to_model(&configuration);
    let spec = configuration.spec;
    let brokers = spec.broker_spec.unwrap_or_default();
    Ok(Wanted {
        broker: match (brokers.broker_pod_spec, brokers.broker_job_spec) {
            (Some(pod), _) => Broker::Pod(pod),
            (None, Some(job)) => Broker::Job(job),
            (None, None) => Broker::None,
        },
        instance_service: spec.instance_service_spec,
        configuration_service: spec.configuration_service_spec,
        grace: [model.grace(false), model.grace(true)],
    })
}

impl View for ConfigurationView {
    fn key(&self) -> &Key {
        &self.key
    }
}
