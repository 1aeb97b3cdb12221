//! The DiscoveryHandler: a component, and what it may reach. It belongs to the administrator of the cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::grants::Grants;
use crate::limits::Limits;

/// A component handler.
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
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerSpec {
    /// Where the component is.
    pub component: ComponentRef,
    /// Whether many nodes see one device; overrides what the component says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// Pause between rounds, such as `30s`; overrides what the component says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// What the component may reach. Nothing but device nodes below `/dev` if absent.
    #[serde(default)]
    pub grants: Grants,
    /// How much it may use.
    #[serde(default)]
    pub limits: Limits,
}

/// Where a component is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentRef {
    /// Name of a file in the component directory, without a path.
    #[serde(default)]
    pub file: String,
    /// Reserved: an OCI reference such as `registry.example/handlers/udev:1.2`, pinned by `digest`, instead of a file.
    /// Refused until components can be fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// `sha256:<64 hex digits>`: any other content is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// How a discovery handler is doing on this node, be it a component or a remote one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerStatus {
    /// The name Configurations use, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// What it is.
    #[serde(default)]
    pub kind: HandlerKind,
    /// Of a component: SHA-256 of the one that runs, in lower hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Of a remote handler: where it is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// What it is doing.
    #[serde(default)]
    pub state: HandlerState,
    /// Since when that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// `Discovered`, or what the first Configuration that fails suffers from, and which one that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_result: Option<String>,
    /// Devices that it saw last, of all Configurations together.
    #[serde(default)]
    pub devices: i64,
    /// `Ready`: it can be used. `Accepted`: what runs is what the object says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What a discovery handler is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum HandlerKind {
    /// A WebAssembly component that the agent runs.
    #[default]
    Component,
    /// A process of its own that has registered.
    Remote,
}

/// What a discovery handler is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HandlerState {
    /// Nothing: no Configuration names it.
    #[default]
    Waiting,
    /// It serves Configurations.
    Active,
    /// It is remote and can't be reached.
    Offline,
    /// It is a component that can't be used.
    Refused,
}
