//! What a node remembers of a device and its claims: the record that survives `kill -9` (rule 28).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::edits::ContainerEdits;
use crate::instance::Online;
use crate::names::{Identity, Key};

/// One Instance in this node's journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The Instance.
    pub key: Key,
    /// The Instance's UID.
    pub uid: String,
    /// Which device it is.
    pub identity: Identity,
    /// Its Configuration's name.
    pub configuration: String,
    /// Its Configuration's UID.
    pub configuration_uid: String,
    /// Whether many nodes see it.
    pub shared: bool,
    /// Slots.
    pub capacity: u32,
    /// As last seen by this node: what a claim hands out (rule 17).
    pub device: Device,
    /// Whether the last round that could tell saw it.
    pub online: Online,
    /// Its device must not be handed out now: the last round withheld it, or nothing is known of it since the journal was
    /// lost. Containers that use it keep it.
    #[serde(default)]
    pub withheld: bool,
    /// Claims of this node by slot.
    pub claims: BTreeMap<u32, Claim>,
}

/// A slot in use by a container of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The slot's usage string.
    pub usage: String,
    /// What the container got. It keeps that for as long as it runs (rule 18).
    pub edits: ContainerEdits,
    /// Grows with each Allocate on this node: a look at what pods use judges only claims older than itself (rule 20).
    pub generation: u64,
    /// The API server did not answer in time, so nobody knows yet whether it accepted the claim (rule 11).
    #[serde(default)]
    pub doubtful: bool,
}
