//! The DiscoveryHandler: a component, and what it may reach. It belongs to the administrator of the cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
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
    pub file: String,
    /// `sha256:<64 hex digits>`: any other content is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// How it is going on this node or in this cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerStatus {
    /// The name Configurations use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// Digest of the component that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
