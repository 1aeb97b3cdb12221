//! The DiscoveryHandler: a component, and what it may reach. It belongs to the administrator of the cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// What a handler may reach.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grants {
    /// The node's devices as the kernel describes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udev: Option<UdevGrant>,
    /// Node paths that device specs may name: a path, or a directory and `/**`. Default `/dev/**`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_paths: Option<Vec<String>>,
    /// Node paths that mounts may name. Default `/dev/**`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_paths: Option<Vec<String>>,
}

/// Which of the node's devices a handler may see.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UdevGrant {
    /// Kernel subsystems, as shell globs; `*` is all.
    pub subsystems: Vec<String>,
}

/// How much a handler may use. By default 10 s a round, 64 MiB of memory and 4,096 devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Time of a round, such as `10s`; at most `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<String>,
    /// Linear memory, such as `64Mi`; at most `1Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Devices in one answer; at most 65,536.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<i64>,
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
