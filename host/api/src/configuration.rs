//! The Configuration: which devices to look for, and what to do with them. Fields of upstream Akri keep their names and
//! meaning; what is added is optional.

use std::collections::BTreeMap;

pub use akri_model::configuration::Resources;
use akri_model::container_paths::MAX_RULES;
use akri_model::template::MAX_TEMPLATE;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::condition::{NodeProblem, null_is_empty};
use crate::discover_on::DiscoverOn;
use crate::instance::BrokerCounts;

/// Desired discovery of devices and their use.
#[serde_with::skip_serializing_none]
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "akri.sh",
    version = "v0",
    kind = "Configuration",
    plural = "configurations",
    shortname = "akric",
    category = "all",
    doc = "Which devices to look for, and what to do with them.",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    status = "ConfigurationStatus",
    printcolumn = r#"{"name":"Handler","type":"string","jsonPath":".spec.discoveryHandler.name"}"#,
    printcolumn = r#"{"name":"Capacity","type":"integer","jsonPath":".spec.capacity"}"#,
    printcolumn = r#"{"name":"Instances","type":"integer","jsonPath":".status.instances"}"#,
    printcolumn = r#"{"name":"Brokers","type":"integer","jsonPath":".status.brokers.desired"}"#,
    printcolumn = r#"{"name":"Running","type":"integer","jsonPath":".status.brokers.running"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name":"Complete","type":"string","jsonPath":".status.conditions[?(@.type=='DiscoveryComplete')].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Discovers","type":"string","priority":1,"jsonPath":".status.discoverOn"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationSpec {
    /// The discovery handler and its input.
    pub discovery_handler: DiscoveryHandlerInfo,
    /// Number of containers that may use a device at once, on all nodes together: 1 to 1,000. Default 1.
    #[serde(default = "default_capacity")]
    #[schemars(range(min = 1, max = 1000))]
    pub capacity: i64,
    /// The broker to run for each device: a Pod or a Job. At most 256 KiB.
    pub broker_spec: Option<BrokerSpec>,
    /// A Service for the brokers of each device.
    #[serde(default)]
    #[schemars(schema_with = "opaque")]
    pub instance_service_spec: Option<Map<String, Value>>,
    /// A Service for all brokers of the Configuration.
    #[serde(default)]
    #[schemars(schema_with = "opaque")]
    pub configuration_service_spec: Option<Map<String, Value>>,
    /// Environment variables of each container that uses a device, beside the properties of the device; these win. At most
    /// 16 KiB in all. Names that decide what programs run or trust, such as `PATH`, are refused.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub broker_properties: BTreeMap<String, String>,
    /// The resources registered with the kubelet. Default both.
    #[serde(default)]
    pub resources: Resources,
    /// Time that a missing device keeps its Instance, such as `5m`. Default 0s for local devices, 5m for shared ones.
    pub offline_grace_period: Option<String>,
    /// Give each container a directory for small files about its device, which are published in `status.brokerInfo` of the
    /// Instance. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub broker_info: bool,
    /// Run discovery on a few nodes, for all: only for devices of the network. Default on every node. In local mode it has no
    /// effect.
    pub discover_on: Option<DiscoverOn>,
    /// The view that containers have of the devices.
    pub container: Option<Container>,
    /// Names of Instances, and so of their resources, with `{{NAME}}` for a property of the device: `cam-{{ONVIF_DEVICE_UUID}}`. Default
    /// the Configuration's name and a hash, which stays the name where this gives none, or one that is taken.
    #[schemars(length(min = 1, max = MAX_TEMPLATE))]
    pub instance_name: Option<String>,
}

/// The view that containers have of the devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// The paths in the container of device nodes and mounts that are to be others than on the node.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_RULES), extend("nullable" = true))]
    pub paths: Vec<ContainerPath>,
}

/// The path of device nodes or mounts in the container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPath {
    /// The path on the node, or of a link to it such as `/dev/serial/by-id/*`. `*` stands for any characters of a name.
    #[schemars(length(min = 1, max = MAX_TEMPLATE))]
    pub host_path: String,
    /// The path in the container, with `{{NAME}}` for a property of the device and `{{index}}` for its number in the container.
    #[schemars(length(min = 1, max = MAX_TEMPLATE))]
    pub container_path: String,
}

fn default_capacity() -> i64 {
    1
}

/// The discovery handler and its input.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerInfo {
    /// Name of the discovery handler, such as `udev`.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Input of the handler, in the handler's format; usually YAML in a block scalar. At most 256 KiB.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 262_144))]
    pub discovery_details: String,
    /// Named values passed to the handler in addition to the details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub discovery_properties: Option<Vec<DiscoveryProperty>>,
}

/// A named value passed to the handler.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryProperty {
    /// A C identifier.
    #[schemars(regex(pattern = "^[_A-Za-z][_A-Za-z0-9]*$"))]
    pub name: String,
    /// The inline value. At most 1 MiB.
    #[schemars(length(max = 1_048_576))]
    pub value: Option<String>,
    /// The source of the value.
    pub value_from: Option<ValueFrom>,
}

/// The source of a value. Exactly one of the two fields.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValueFrom {
    /// A key of a Secret.
    pub secret_key_ref: Option<KeyRef>,
    /// A key of a ConfigMap.
    pub config_map_key_ref: Option<KeyRef>,
}

/// A key of a Secret or a ConfigMap.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// The key in its data, which is needed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The object's name.
    pub name: String,
    /// The object's namespace. Default `default`.
    pub namespace: Option<String>,
    /// Set if it may be missing.
    pub optional: Option<bool>,
}

/// The broker to run for each device: at most one of the two. Opaque, so that fields of any Kubernetes version are accepted.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BrokerSpec {
    /// A PodSpec: one Pod for each node that sees the device.
    #[serde(default)]
    #[schemars(schema_with = "opaque")]
    pub broker_pod_spec: Option<Map<String, Value>>,
    /// Annotations of these Pods. Those of a Job's Pods are in its template.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub broker_pod_annotations: BTreeMap<String, String>,
    /// A JobSpec: one Job for each device.
    #[serde(default)]
    #[schemars(schema_with = "opaque")]
    pub broker_job_spec: Option<Map<String, Value>>,
}

/// Observed state.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationStatus {
    /// The generation that this status describes.
    pub observed_generation: Option<i64>,
    /// Number of Instances.
    #[serde(default)]
    pub instances: i64,
    /// Problems on single nodes. Each node writes its own entry, only while it has a problem, and at most 20 do.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub nodes: BTreeMap<String, NodeProblem>,
    /// Nodes, at most three, whose agents are to tell at once that they have looked for devices of this generation. Written by
    /// the controller.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub awaiting: Vec<String>,
    /// The nodes that run discovery for others. Written by the controller.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub discover_on: Vec<String>,
    /// Brokers of all devices, if there are any. Written by the controller.
    pub brokers: Option<BrokerCounts>,
    /// `Ready`, `HandlerAvailable`, `DetailsValid`, `PropertiesResolved`, `DiscoveryComplete`, `BrokersReady`.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// An object with fields of Kubernetes, passed on as they are.
fn opaque(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true})
}
