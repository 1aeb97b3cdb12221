//! The labels of Instances, by which agents watch and list them (rule 23).

use std::collections::BTreeMap;

use crate::names::node_hash;

/// Returns the label that selects the Instances of a node.
pub fn node_label(node: &str) -> String {
    format!("node.akri.sh/{}", node_hash(node))
}

/// Returns whether a label is that of a node.
pub fn is_node_label(label: &str) -> bool {
    let hash = label.strip_prefix("node.akri.sh/").unwrap_or_default();
    hash.len() == 12 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The label of Instances that have no labels of their nodes, since they have so many: all agents watch these. Its value is the time at
/// which it was set, in Unix seconds.
pub const MANY_NODES_LABEL: &str = "node.akri.sh/many";

/// Most nodes of an Instance that have labels there.
pub const MAX_NODE_LABELS: usize = 32;

/// The label of shared Instances that don't end in the short hash of their device: another device had it (rule 22), or the Configuration
/// chose the name (rule 125). One list finds them all. Its value is that of the node that made it, as of a label of that node.
pub const OTHER_NAME_LABEL: &str = "node.akri.sh/other-name";

/// Returns the label of the shared Instances of the Configuration with that UID: one list finds them all. Its value is as that of
/// [`OTHER_NAME_LABEL`].
pub fn shared_label(configuration_uid: &str) -> String {
    format!("node.akri.sh/shared-{}", node_hash(configuration_uid))
}

/// The value of the label of a node: its name, by which an admission policy sees whose label it is. Empty if it is too long.
pub fn node_label_value(node: &str) -> &str {
    if node.len() <= 63 { node } else { "" }
}

/// The time for which nodes keep their labels beside the one for many nodes, in seconds: their agents may see that later.
const LABELS_STAY: i64 = 30;

/// Returns the time from which the labels of an Instance of so many nodes have to be other ones, in Unix seconds.
pub fn relabel_at(labels: &BTreeMap<String, String>, nodes: usize) -> Option<i64> {
    match labels.get(MANY_NODES_LABEL) {
        None => (nodes > MAX_NODE_LABELS).then_some(0),
        Some(since) => labels
            .keys()
            .any(|label| is_node_label(label))
            .then(|| since.parse().map_or(0, |since: i64| since.saturating_add(LABELS_STAY))),
    }
}

/// Returns the labels that an Instance needs which has so many nodes now, if these lack theirs. Few have a label each, by which their
/// agents watch it; of more than that none has: a claim of one device is sent to all (rule 113).
pub fn node_labels<'a>(
    labels: &BTreeMap<String, String>,
    nodes: usize,
    lacking: impl Iterator<Item = &'a str>,
    now: i64,
) -> BTreeMap<String, String> {
    let mut wanted = labels.clone();
    if nodes <= MAX_NODE_LABELS && !labels.contains_key(MANY_NODES_LABEL) {
        wanted.extend(lacking.map(|node| (node_label(node), node_label_value(node).to_owned())));
    } else if relabel_at(labels, nodes).is_some_and(|at| at <= now) {
        match labels.contains_key(MANY_NODES_LABEL) {
            true => wanted.retain(|label, _| !is_node_label(label)),
            false => drop(wanted.insert(MANY_NODES_LABEL.to_owned(), now.to_string())),
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 23
    fn few_nodes_have_labels_and_many_share_one() {
        let label = |node: &str| (node_label(node), node.to_owned());
        let none = BTreeMap::new();
        assert_eq!(node_labels(&none, MAX_NODE_LABELS, ["a", "b"].into_iter(), 100), [label("a"), label("b")].into());
        let other = ("node.akri.sh/other-name".to_owned(), "a".to_owned());
        let few = BTreeMap::from([label("a"), other.clone()]);
        assert_eq!(relabel_at(&few, MAX_NODE_LABELS), None);
        assert_eq!(relabel_at(&few, MAX_NODE_LABELS + 1), Some(0), "nodes have joined by themselves");
        let many = (MANY_NODES_LABEL.to_owned(), "100".to_owned());
        let both = node_labels(&few, MAX_NODE_LABELS + 1, ["b"].into_iter(), 100);
        assert_eq!(both, [label("a"), other.clone(), many.clone()].into(), "agents see the new one first");
        assert_eq!(relabel_at(&both, 1), Some(100 + LABELS_STAY));
        assert_eq!(node_labels(&both, 40, ["c"].into_iter(), 99 + LABELS_STAY), both);
        let after = node_labels(&both, 40, ["c"].into_iter(), 100 + LABELS_STAY);
        assert_eq!(after, [other, many].into());
        assert_eq!((relabel_at(&after, 40), relabel_at(&after, 2)), (None, None), "also once there are few of them");
        let edited = BTreeMap::from([(MANY_NODES_LABEL.to_owned(), "x".to_owned()), label("a")]);
        assert_eq!(relabel_at(&edited, 40), Some(0));
    }
}
