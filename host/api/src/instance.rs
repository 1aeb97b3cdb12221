//! The Instance: a device that was found, and who uses it. Fields of upstream Akri keep their names and meaning.

use std::collections::BTreeMap;

use akri_model::broker_info::Files;
use akri_model::names::Key;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::{NodeProblem, null_is_empty};
use crate::document::pointer_token;

/// Most nodes of an Instance: as many as Kubernetes has in a cluster.
const MAX_NODES: usize = 5_000;

/// Most slots of an Instance, with those above its capacity that are still in use.
const MAX_SLOTS: usize = 20_000;

/// Returns the command that frees a slot whose usage names no node.
pub fn command_to_free(instance: &Key, slot: &str) -> String {
    let (Key { namespace, name }, path) = (instance, pointer_token(slot));
    format!(
        "kubectl patch akrii {name} --namespace {namespace} --type json --patch \
         '[{{\"op\": \"replace\", \"path\": \"/spec/deviceUsage/{path}\", \"value\": \"\"}}]'"
    )
}

/// A discovered device.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "akri.sh",
    version = "v0",
    kind = "Instance",
    plural = "instances",
    shortname = "akrii",
    category = "all",
    doc = "A device that was found, and who uses it.",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    status = "InstanceStatus",
    printcolumn = r#"{"name":"Config","type":"string","jsonPath":".spec.configurationName"}"#,
    printcolumn = r#"{"name":"Shared","type":"boolean","jsonPath":".spec.shared"}"#,
    printcolumn = r#"{"name":"Nodes","type":"string","jsonPath":".spec.nodes"}"#,
    printcolumn = r#"{"name":"Online","type":"string","jsonPath":".status.conditions[?(@.type=='Online')].status"}"#,
    printcolumn = r#"{"name":"Brokers","type":"integer","jsonPath":".status.brokers.desired"}"#,
    printcolumn = r#"{"name":"Running","type":"integer","jsonPath":".status.brokers.running"}"#,
    printcolumn = r#"{"name":"Why","type":"string","jsonPath":".status.conditions[?(@.type=='BrokersReady')].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSpec {
    /// The Configuration that discovered it.
    pub configuration_name: String,
    /// Fully qualified CDI device name.
    pub cdi_name: String,
    /// Number of containers that may use the device at once.
    #[schemars(range(min = 0, max = 10_000))]
    pub capacity: i64,
    /// Environment variables of brokers.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub broker_properties: BTreeMap<String, String>,
    /// True if the device is visible to several nodes.
    #[serde(default)]
    pub shared: bool,
    /// The nodes that see the device.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_NODES), extend("x-kubernetes-list-type" = "set", "nullable" = true))]
    pub nodes: Vec<String>,
    /// Each slot: "" free, `<node>`, `C:<virtual device>:<node>` or `R:<claim uid>:<node>`. Other text is in use, too.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "granular", "maxProperties" = MAX_SLOTS))]
    pub device_usage: BTreeMap<String, String>,
}

/// The brokers of an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BrokerCounts {
    /// Brokers that should run.
    #[serde(default)]
    pub desired: i64,
    /// Brokers that are ready, and Jobs that are under way.
    #[serde(default)]
    pub running: i64,
}

/// Observed state of the device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// Problems with the device on single nodes. Each node writes its own entry, only while it has a problem.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true, "maxProperties" = MAX_NODES))]
    pub nodes: BTreeMap<String, NodeProblem>,
    /// Brokers of the device, if its Configuration has any. Written by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brokers: Option<BrokerCounts>,
    /// Files that containers have written about the device, by slot and name. Each node writes those of its own slots; they stay
    /// until the next claim of the slot.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub broker_info: BTreeMap<String, Files>,
    /// `Online`, `BrokersReady`; `UsageKnown` while slots may have no user.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
