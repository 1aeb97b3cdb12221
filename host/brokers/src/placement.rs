//! Selects the nodes of an Instance that get a broker (rule 52).

use std::collections::BTreeSet;

use blake2::Blake2b;
use blake2::digest::consts::U6;

use akri_model::names::hex;

/// A node that sees the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub node: String,
    /// It has a broker of this Instance that is not being deleted.
    pub has_broker: bool,
    /// It has reported the device missing, and its grace period has not passed: it keeps a broker and gets no new one.
    pub is_missing: bool,
}

/// Returns the nodes that should have a broker: those with one first, then by hash of node and Instance, up to capacity. The
/// order does not depend on anything that changes, so that it is the same after a restart and on every replica.
pub fn place(instance: &str, capacity: usize, candidates: &[Candidate]) -> BTreeSet<String> {
    let eligible = candidates.iter().filter(|candidate| candidate.has_broker || !candidate.is_missing);
    let mut ranked: Vec<_> = eligible.map(|candidate| (rank(instance, candidate), &candidate.node)).collect();
    ranked.sort_unstable();
    ranked.into_iter().take(capacity).map(|(_, node)| node.clone()).collect()
}

fn rank(instance: &str, candidate: &Candidate) -> (bool, String) {
    (!candidate.has_broker, hex::<Blake2b<U6>>(&format!("{}/{instance}", candidate.node)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidates(nodes: &[&str], with_broker: &[&str], missing: &[&str]) -> Vec<Candidate> {
        let candidate = |node: &&str| Candidate {
            node: (*node).to_owned(),
            has_broker: with_broker.contains(node),
            is_missing: missing.contains(node),
        };
        nodes.iter().map(candidate).collect()
    }

    fn placed(capacity: usize, nodes: &[&str], with_broker: &[&str], missing: &[&str]) -> Vec<String> {
        place("cam-1", capacity, &candidates(nodes, with_broker, missing)).into_iter().collect()
    }

    #[test]
    fn every_node_gets_a_broker_within_capacity() {
        assert_eq!(placed(5, &["a", "b"], &[], &[]), ["a", "b"]);
        assert_eq!(placed(5, &[], &[], &[]), [""; 0]);
    }

    #[test] // rule 52
    fn existing_brokers_stay_when_nodes_exceed_capacity() {
        let nodes = ["a", "b", "c", "d", "e"];
        for holder in nodes {
            assert!(placed(2, &nodes, &[holder], &[]).contains(&holder.to_owned()), "{holder}");
        }
    }

    #[test] // rule 53
    fn missing_device_keeps_its_broker_and_gets_no_new_one() {
        assert_eq!(placed(2, &["a", "b"], &["a"], &["a", "b"]), ["a"]);
        assert_eq!(placed(1, &["a", "b"], &[], &["a"]), ["b"]);
    }

    #[test]
    fn instances_are_spread_over_nodes() {
        let nodes = candidates(&["a", "b", "c", "d"], &[], &[]);
        let mut count = std::collections::BTreeMap::new();
        for number in 0..400 {
            for node in place(&format!("cam-{number}"), 1, &nodes) {
                *count.entry(node).or_insert(0) += 1;
            }
        }
        assert!(count.len() == 4 && count.values().all(|count| (60..140).contains(count)), "{count:?}");
    }

    proptest! {
        #[test] // rule 52
        fn placement_is_stable_once_its_brokers_exist(
            nodes in prop::collection::btree_set("[a-z]{1,3}", 0..12), capacity in 0usize..6,
        ) {
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            let first = placed(capacity, &nodes, &[], &[]);
            prop_assert_eq!(first.len(), nodes.len().min(capacity));
            let holders: Vec<&str> = first.iter().map(String::as_str).collect();
            prop_assert_eq!(&placed(capacity, &nodes, &holders, &[]), &first);
            // Another node that appears moves none of them.
            let more: Vec<&str> = nodes.iter().copied().chain(["zzzz"]).collect();
            prop_assert_eq!(placed(holders.len(), &more, &holders, &[]), first);
        }
    }
}
