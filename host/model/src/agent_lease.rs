//! The Lease by which the agent of each node shows that it runs (rule 59).

use std::time::Duration;

use crate::names::node_hash;

/// The time that a Lease is good after its renewal.
pub const GOOD_FOR: Duration = Duration::from_secs(180);

/// Longest name of a Lease.
const MAX_NAME: usize = 253;

/// Returns the name of the Lease of a node's agent. It has the node's name, by which an admission policy sees whose Lease it is
/// (rule 109); of a name that does not fit it has the beginning.
pub fn name(node: &str) -> String {
    let mut name = format!("akri-agent-{node}");
    name.truncate(MAX_NAME);
    name.trim_end_matches(['-', '.']).to_owned()
}

/// Returns the name that the agent of version 0.1 gives it. It is read while nodes are upgraded.
pub fn former_name(node: &str) -> String {
    format!("akri-agent-{}", node_hash(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 109
    fn lease_name_has_the_name_of_the_node_and_fits() {
        assert_eq!(name("node-a.example"), "akri-agent-node-a.example");
        let label = "n".repeat(60);
        let longest = format!("{label}.{label}.{label}.{}-{}", "n".repeat(58), "n".repeat(11));
        assert_eq!(longest.len(), 253);
        let name = name(&longest);
        assert!(name.len() <= MAX_NAME && format!("akri-agent-{longest}").starts_with(&name));
        assert!(name.ends_with('n'), "{name}");
    }
}
