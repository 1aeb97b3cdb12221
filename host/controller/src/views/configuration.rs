//! A Configuration as the controller keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_api::configuration::BrokerSpec;
use akri_api::{Configuration, ConfigurationStatus, configuration_to_model, discover_on_to_model, validate};
use akri_brokers::Manifest;
use akri_kube::watch::typed;
use akri_model::discover_on::DiscoverOn;
use akri_model::summary::NodeProblem;
use kube::api::DynamicObject;

use super::{Generation, View, node_finalizers, problems, status_of};

/// The wanted brokers and Services of a valid Configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    /// At most one of Pods and Jobs.
    pub(crate) brokers: BrokerSpec,
    pub(crate) instance_service: Option<Manifest>,
    pub(crate) configuration_service: Option<Manifest>,
    /// The time that a missing device keeps its broker, for local and for shared devices.
    pub(crate) grace: [Duration; 2],
    /// The nodes that run discovery, if not all do.
    pub(crate) discover_on: Option<DiscoverOn>,
}

/// A Configuration.
pub(crate) type ConfigurationView = View<ConfigurationFields>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConfigurationFields {
    pub(crate) generation: Generation,
    /// The wanted brokers and Services, or the error of the object: then everything stays as it is.
    pub(crate) wanted: Result<Wanted, String>,
    /// Finalizers that may be names of nodes, which upstream Akri left.
    pub(crate) finalizers: BTreeSet<String>,
    pub(crate) problems: BTreeMap<String, NodeProblem>,
    /// The status that the controller wrote.
    pub(crate) status: ConfigurationStatus,
}

impl ConfigurationView {
    /// Reads any object: the status of an invalid one says what is wrong.
    pub(crate) fn read(object: DynamicObject) -> Self {
        let status: ConfigurationStatus = status_of(&object);
        let metadata = object.metadata.clone();
        let problems = problems(&status.nodes);
        let wanted = wanted(object, &status.discover_on);
        let is_limited = match &wanted {
            Ok(wanted) => wanted.discover_on.is_some(),
            Err(_) => !status.discover_on.is_empty(), // agents go by the last valid version
        };
        let mut generation = Generation::of(&metadata, &status.conditions, &problems);
        if is_limited {
            generation.discovers_on(&status.discover_on);
        }
        let fields = ConfigurationFields {
            generation,
            wanted,
            finalizers: node_finalizers(&metadata),
            problems,
            status: ConfigurationStatus { nodes: BTreeMap::new(), ..status },
        };
        View::new(&metadata, fields)
    }

    /// All nodes it mentions.
    pub(crate) fn mentions(&self) -> BTreeSet<String> {
        let finalizers = self.finalizers.iter().filter(|_| self.is_deleting);
        self.problems.keys().chain(finalizers).cloned().collect()
    }

    /// Returns whether a node runs discovery and says whether devices answer; all do unless some were chosen (rule 126).
    pub(crate) fn discovers(&self, node: &str) -> bool {
        self.generation.since_on(node).is_some()
    }

    /// Returns the wanted brokers and Services, if the object is valid.
    pub(crate) fn valid(&self) -> Option<&Wanted> {
        self.wanted.as_ref().ok()
    }
}

/// Returns the wanted brokers and Services, or the error of an object that the API server accepted.
fn wanted(mut object: DynamicObject, chosen: &[String]) -> Result<Wanted, String> {
    object.data.as_object_mut().map(|fields| fields.remove("status"));
    let configuration: Configuration = validate::valid(typed(&object)?, validate::configuration)?;
    let model = configuration_to_model(&configuration);
    let discover_on = discover_on_to_model(&configuration, chosen.iter().cloned().collect());
    let spec = configuration.spec;
    Ok(Wanted {
        brokers: spec.broker_spec.unwrap_or_default(),
        instance_service: spec.instance_service_spec,
        configuration_service: spec.configuration_service_spec,
        grace: [model.grace(false), model.grace(true)],
        discover_on,
    })
}
