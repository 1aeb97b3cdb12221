//! The published form of a device.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names::{Identity, Key, Usage};

/// A device that Kubernetes can schedule, as the agent reads and writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its Configuration's namespace, and its name `<configuration>-<hash>`.
    pub key: Key,
    /// Set by the store of objects; empty before.
    pub uid: String,
    /// The version that was read; [`Version::default`] before it is stored.
    pub version: Version,
    /// The identity of its device; `None` if it was made by upstream Akri.
    pub identity: Option<Identity>,
    /// The Configuration's name.
    pub configuration: String,
    /// The Configuration's UID, for the owner reference.
    pub configuration_uid: String,
    /// `spec.cdiName`.
    pub cdi_name: String,
    /// Slots.
    pub capacity: u32,
    /// The properties that brokers see.
    pub properties: BTreeMap<String, String>,
    /// True if several nodes see the device.
    pub shared: bool,
    /// The nodes that see it.
    pub nodes: Vec<String>,
    /// Slot name to usage string.
    pub device_usage: BTreeMap<String, String>,
    /// Condition `Online`; with a reason if it is not.
    pub online: Online,
}

impl Instance {
    /// Returns whether it belongs to a Configuration.
    pub fn is_of(&self, configuration: &Key) -> bool {
        (&self.key.namespace, &self.configuration) == (&configuration.namespace, &configuration.name)
    }

    /// Returns whether a node sees its device, or uses it.
    pub fn mentions(&self, node: &str) -> bool {
        let is_user = |usage: &String| Usage::read(usage).node() == Some(node);
        self.nodes.iter().any(|of| of == node) || self.device_usage.values().any(is_user)
    }
}

/// `metadata.resourceVersion`: opaque to be sent back, and a number that grows with each change (KEP-5504).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Version(pub String);

impl Version {
    /// Returns whether another version is newer; false if either is not a number.
    pub fn is_older_than(&self, other: &Self) -> bool {
        matches!((self.0.parse::<u64>(), other.0.parse::<u64>()), (Ok(own), Ok(other)) if own < other)
    }

    /// Takes another version that is newer, or the first one.
    pub fn raise(&mut self, other: &Self) {
        if self.0.is_empty() || self.is_older_than(other) {
            self.clone_from(other);
        }
    }
}

/// The availability of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Online {
    /// The last round saw it.
    True,
    /// The last round did not see it.
    False,
    /// The state is unknown: the handler has gone. The device is not handed out.
    #[default]
    Unknown,
}
