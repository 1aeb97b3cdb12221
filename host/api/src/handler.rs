//! The DiscoveryHandler: a component, and what it may reach. It belongs to the administrator of the cluster.

use std::collections::BTreeMap;

use akri_model::grant::Isolation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, ResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::component::ComponentRef;
use crate::condition::{NodeProblem, null_is_empty};
use crate::grants::Grants;
use crate::limits::Limits;

/// A component handler.
#[serde_with::skip_serializing_none]
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "akri.sh",
    version = "v0",
    kind = "DiscoveryHandler",
    plural = "discoveryhandlers",
    shortname = "akrid",
    category = "all",
    doc = "A component that discovers devices, and what it may reach.",
    derive = "Default",
    derive = "PartialEq",
    status = "DiscoveryHandlerStatus",
    printcolumn = r#"{"name":"Component","type":"string","jsonPath":".spec.component.file"}"#,
    printcolumn = r#"{"name":"Image","type":"string","jsonPath":".spec.component.image","priority":1}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerSpec {
    /// The name by which Configurations use the handler, which has to be the one that its component gives itself; the name of
    /// the object if absent. A name that several objects claim stays with the one that served it first.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^\S+$"))]
    pub name: Option<String>,
    /// The location of the component.
    pub component: ComponentRef,
    /// True if devices are visible to several nodes; overrides the component's own value.
    pub shared: Option<bool>,
    /// Interval of rounds, such as `30s`; overrides the component's own value.
    pub interval: Option<String>,
    /// The process in which nodes run the component: `shared` (the default), with other components, or its `own`, which takes
    /// some 15 MiB more.
    pub isolation: Option<Isolation>,
    /// Access granted to the component. None if absent.
    #[serde(default)]
    pub grants: Grants,
    /// Limits on the component's resources.
    #[serde(default)]
    pub limits: Limits,
}

impl DiscoveryHandler {
    /// Returns the name by which Configurations use the handler.
    pub fn handler_name(&self) -> String {
        self.spec.name.clone().unwrap_or_else(|| self.name_any())
    }
}

/// Observed state of a discovery handler. In local mode all of it is this node's; in a cluster it has only `nodes` and
/// `conditions`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerStatus {
    /// The handler name that Configurations use, if known.
    pub handler: Option<String>,
    /// The type of the handler.
    #[serde(default)]
    #[schemars(extend("default" = null))]
    pub kind: HandlerKind,
    /// For a component: SHA-256 of the running one, in lower-case hex.
    pub digest: Option<String>,
    /// For a remote handler: its address.
    pub endpoint: Option<String>,
    /// The current state.
    #[serde(default)]
    #[schemars(extend("default" = null))]
    pub state: HandlerState,
    /// The time of the last change of the state.
    pub since: Option<Time>,
    /// `Discovered`, or the first failure with the name of its Configuration.
    pub last_result: Option<String>,
    /// Number of devices last reported, for all Configurations.
    #[serde(default)]
    pub devices: i64,
    /// Problems on single nodes. Each node writes its own entry, only while it has a problem, and at most 20 do.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub nodes: BTreeMap<String, NodeProblem>,
    /// Nodes, at most three, whose agents are to tell at once that they have loaded or refused this generation. Written by the
    /// controller.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub awaiting: Vec<String>,
    /// `Ready`: the handler is usable. `Accepted`: the running component is the one of this object.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The type of a discovery handler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum HandlerKind {
    /// A WebAssembly component that the agent runs.
    #[default]
    Component,
    /// A separate process that has registered.
    Remote,
}

/// The state of a discovery handler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HandlerState {
    /// No Configuration names it.
    #[default]
    Waiting,
    /// Configurations use it.
    Active,
    /// It is remote and unreachable.
    Offline,
    /// It is a component that is being pulled or compiled.
    Loading,
    /// It is a component that was refused.
    Refused,
}
