//! The Lease by which the agent of each node shows that it runs (rule 59), and which Configurations it has looked at (rule 131).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::names::{Key, node_hash};

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

/// The annotation with the highest version of a Configuration that the agent's watch has shown.
const WATCHED: &str = "akri.sh/watched";

/// The annotation with the Configurations that it shows and whose present generation the agent has not looked at.
const PENDING: &str = "akri.sh/pending";

/// Most Configurations that are named in a Lease.
const MAX_PENDING: usize = 100;

/// The Configurations that an agent has looked at. A version is a `resourceVersion`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// It has looked at what was made or edited up to this version, ...
    watched: u64,
    /// ... but for these.
    pending: BTreeSet<Key>,
}

impl Progress {
    /// Creates it from the highest version that was watched, and the pending Configurations with the versions since which they have
    /// their generation. If they are too many, what is older than all of them counts as watched.
    pub fn new(watched: u64, pending: BTreeMap<Key, u64>) -> Self {
        let oldest = pending.values().min().copied().unwrap_or_default();
        if pending.len() > MAX_PENDING {
            return Self { watched: oldest.saturating_sub(1), pending: BTreeSet::new() };
        }
        Self { watched, pending: pending.into_keys().collect() }
    }

    /// Returns whether the agent has looked at a Configuration that has its generation since that version.
    pub fn covers(&self, configuration: &Key, since: u64) -> bool {
        since <= self.watched && !self.pending.contains(configuration)
    }

    /// Returns the annotations of the Lease.
    pub fn to_annotations(&self) -> BTreeMap<String, String> {
        let pending: Vec<String> = self.pending.iter().map(Key::to_string).collect();
        [(WATCHED, self.watched.to_string()), (PENDING, pending.join(","))]
            .map(|(key, value)| (key.to_owned(), value))
            .into()
    }

    /// Reads the annotations of a Lease. An agent of version 0.1 has none: it has looked at nothing.
    pub fn read(annotations: &BTreeMap<String, String>) -> Self {
        let watched = annotations.get(WATCHED).and_then(|version| version.parse().ok()).unwrap_or_default();
        let pending = annotations.get(PENDING).map(String::as_str).unwrap_or_default();
        let keys = pending.split(',').filter_map(|key| key.split_once('/'));
        Self { watched, pending: keys.map(|(namespace, name)| Key::new(namespace, name)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 131
    fn annotations_have_the_configurations_that_were_looked_at() {
        let key = |number: u64| Key::new("default", format!("cam-{number}"));
        let pending = |count: u64| (0..count).map(|number| (key(number), 40 + number)).collect();
        let covered = |progress: &Progress| {
            let read = Progress::read(&progress.to_annotations());
            assert_eq!(read, *progress);
            [(key(1), 41), (key(500), 39), (key(500), 50), (key(500), 51)].map(|(key, since)| read.covers(&key, since))
        };
        assert_eq!(covered(&Progress::new(50, pending(0))), [true, true, true, false]);
        assert_eq!(covered(&Progress::new(50, pending(2))), [false, true, true, false]);
        assert_eq!(covered(&Progress::new(50, pending(101))), [false, true, false, false], "too many to be named");
        assert_eq!(covered(&Progress::read(&BTreeMap::new())), [false; 4]);
    }

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
