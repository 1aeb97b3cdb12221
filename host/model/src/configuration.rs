//! Configurations as the agent uses them.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::container_paths::PathRule;
use crate::discover_on::Role;
use crate::names::Key;
use crate::property::PropertySource;
use crate::template::Template;

/// A Configuration: which devices to discover, and how to offer them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// Namespace and name.
    pub key: Key,
    /// The object's UID; a Configuration that was deleted and recreated has another one.
    pub uid: String,
    /// The time of its creation, in Unix seconds; 0 for a manifest of local mode.
    pub created: i64,
    /// `metadata.generation`, for `status.observedGeneration`.
    pub generation: i64,
    /// Name of the discovery handler.
    pub handler: String,
    /// `discoveryDetails`, interpreted by the handler only.
    pub details: String,
    /// `discoveryProperties` with the source of each value.
    pub properties: BTreeMap<String, PropertySource>,
    /// Slots of each Instance.
    pub capacity: u32,
    /// Overlaid on each device's properties; these win.
    pub broker_properties: BTreeMap<String, String>,
    /// The advertised resources.
    pub resources: Resources,
    /// The time that a missing device keeps its Instance; `None` is the default for its kind, [`Configuration::grace`].
    pub offline_grace: Option<Duration>,
    /// Set if containers get a directory for reports about their device (rule 39).
    pub broker_info: bool,
    /// The part of this node in its discovery (rule 126).
    pub role: Role,
    /// The places of device nodes and mounts in containers (rule 124).
    pub paths: Vec<PathRule>,
    /// The names of Instances; without it they end in a hash (rule 125).
    pub instance_name: Option<Template>,
}

impl Configuration {
    /// Returns how long a device may be missing before its Instance leaves this node: not at all for a local device,
    /// which was unplugged, five minutes for a shared one, which may have missed a probe.
    pub fn grace(&self, shared: bool) -> Duration {
        let default = if shared { Duration::from_secs(300) } else { Duration::ZERO };
        self.offline_grace.unwrap_or(default)
    }

    /// Names of resources know no namespaces: of Configurations with one name that of the lowest rank has it. It is the
    /// oldest, then that of the lowest UID, which all nodes see alike (rule 29).
    pub fn rank(&self) -> (i64, &str, &Key) {
        (self.created, &self.uid, &self.key)
    }

    /// Returns a device's properties as brokers see them, with the Configuration's overlaid.
    pub fn broker_view(&self, properties: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut view = properties.clone();
        view.extend(self.broker_properties.clone());
        view
    }
}

/// The advertised resources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Resources {
    /// Only `akri.sh/<instance>`.
    Instance,
    /// Only `akri.sh/<configuration>`.
    Configuration,
    /// Both.
    #[default]
    Both,
}

/// Maximum number of slots of an Instance: each is a device plugin id in every list the kubelet gets.
pub const MAX_CAPACITY: u32 = 1000;
