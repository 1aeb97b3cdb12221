//! What the agent publishes of a device.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names::{Identity, Key};

/// A device that Kubernetes can schedule, as the agent reads and writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its Configuration's namespace, and its name `<configuration>-<hash>`.
    pub key: Key,
    /// Given by whoever stores it; empty before.
    pub uid: String,
    /// Which device it stands for; `None` if it was made by upstream Akri.
    pub identity: Option<Identity>,
    /// The Configuration's name.
    pub configuration: String,
    /// The Configuration's UID, for the owner reference.
    pub configuration_uid: String,
    /// `spec.cdiName`.
    pub cdi_name: String,
    /// Slots.
    pub capacity: u32,
    /// What brokers see.
    pub properties: BTreeMap<String, String>,
    /// Whether many nodes see the device.
    pub shared: bool,
    /// The nodes that see it.
    pub nodes: Vec<String>,
    /// Slot name to usage string.
    pub device_usage: BTreeMap<String, String>,
    /// Condition `Online`; with a reason if it is not.
    pub online: Online,
}

/// Whether a device answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Online {
    /// The last round saw it.
    True,
    /// The last round did not see it.
    False,
    /// Nobody can tell: its handler has gone. It is not handed out.
    Unknown,
}
