//! Messages to the sandbox process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use akri_model::datagram::DatagramFilter;
use akri_model::grant::{Grants, Limits};
use akri_model::property::Secret;
use serde::de::Deserializer;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_bytes::Bytes;

use super::byte_values;

/// A message to the sandbox process. Answers name the `call` they belong to; components and listeners have numbers from the agent.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Request {
    /// Load the component in the payload.
    Load { call: u64, component: u64 },
    /// Forget a component.
    Unload { component: u64 },
    /// Call an export of a component.
    Call { call: u64, component: u64, export: Export, arguments: Box<Arguments> },
    /// End a call, which is answered nevertheless.
    Cancel { call: u64 },
    /// Join a multicast group on the interfaces that the globs cover; a datagram has to match one of the filters.
    Join { listener: u64, group: SocketAddr, interfaces: Vec<String>, filters: Vec<DatagramFilter> },
    /// Report the next datagram of a group; asked for anew after each report.
    Listen { listener: u64 },
    /// Leave a multicast group.
    Leave { listener: u64 },
}

/// The export that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Export {
    /// Validates details.
    Validate,
    /// Runs a round.
    Discover,
}

/// The arguments of a call of a component. They are not shown: properties and the cache may hold what is secret.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Arguments {
    /// `namespace/name` of the Configuration.
    pub(crate) subject: String,
    /// Its details.
    pub(crate) details: String,
    /// The details as JSON.
    pub(crate) details_json: Option<String>,
    /// Plain properties.
    #[serde(with = "byte_values")]
    pub(crate) properties: BTreeMap<String, Vec<u8>>,
    /// Properties from Secrets; those that are not granted have no value.
    #[serde(serialize_with = "reveal", deserialize_with = "conceal")]
    pub(crate) secrets: BTreeMap<String, Secret>,
    /// Access.
    pub(crate) grants: Grants,
    /// Limits.
    pub(crate) limits: Limits,
    /// The cache of the handler.
    #[serde(with = "byte_values")]
    pub(crate) cache: Arc<BTreeMap<String, Vec<u8>>>,
    /// The name of the budgets over time that the call shares with others.
    pub(crate) rates: u64,
}

/// Encodes values of secrets.
fn reveal<S: Serializer>(secrets: &BTreeMap<String, Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(secrets.iter().map(|(name, secret)| (name, Bytes::new(secret.reveal()))))
}

/// Decodes values of secrets, which are overwritten when they are dropped.
fn conceal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Secret>, D::Error> {
    let values: BTreeMap<String, Vec<u8>> = byte_values::deserialize(deserializer)?;
    Ok(values.into_iter().map(|(name, value)| (name, Secret::new(value))).collect())
}
