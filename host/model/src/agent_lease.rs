//! The Lease by which the agent of each node shows that it runs (rule 59).

use std::time::Duration;

use crate::names::node_hash;

/// The time that a Lease is good after its renewal.
pub const GOOD_FOR: Duration = Duration::from_secs(180);

/// Returns the name of the Lease of a node's agent. Names of nodes can be longer than those of Leases.
pub fn name(node: &str) -> String {
    format!("akri-agent-{}", node_hash(node))
}
