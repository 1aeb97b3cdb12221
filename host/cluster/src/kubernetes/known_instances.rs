//! The Instances that the watches of an agent have shown.

use std::collections::BTreeMap;
use std::sync::Arc;

use akri_model::instance::{Instance, Online};
use akri_model::instance_labels::{MANY_NODES_LABEL, node_label, node_label_value};
use akri_model::names::Key;
use akri_model::summary::NodeProblem;

/// The Instances that a watch selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Watched {
    /// Instances with the label of this node.
    OfNode,
    /// Instances of so many nodes that they have no labels of them. A node takes those of which it is a node or a user.
    OfMany,
}

impl Watched {
    pub(super) const ALL: [Self; 2] = [Self::OfNode, Self::OfMany];

    /// Returns what it selects by. By its value the label of a node is that node's: others can't make it watch what they like (rule 64).
    pub(super) fn selector(self, node: &str) -> String {
        let label = self.label(node);
        if self == Self::OfNode { format!("{label}={}", node_label_value(node)) } else { label }
    }

    /// Returns the label that it selects by.
    pub(super) fn label(self, node: &str) -> String {
        match self {
            Self::OfNode => node_label(node),
            Self::OfMany => MANY_NODES_LABEL.to_owned(),
        }
    }
}

/// The Instances that each watch has shown. While its labels change one is in both, and the newer version is true.
#[derive(Default)]
pub(super) struct Known {
    of_node: BTreeMap<Key, Seen>,
    of_many: BTreeMap<Key, Seen>,
}

impl Known {
    pub(super) fn of(&mut self, watched: Watched) -> &mut BTreeMap<Key, Seen> {
        match watched {
            Watched::OfNode => &mut self.of_node,
            Watched::OfMany => &mut self.of_many,
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Seen> {
        newer(self.of_node.get(key), self.of_many.get(key))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Seen> {
        let others = self.of_many.iter().filter(|(key, _)| !self.of_node.contains_key(key)).map(|(_, seen)| seen);
        self.of_node.iter().filter_map(|(key, seen)| newer(Some(seen), self.of_many.get(key))).chain(others)
    }

    /// Removes an Instance from what these watches have shown, if a test holds; returns whether it was known.
    pub(super) fn remove(&mut self, from: &[Watched], key: &Key, is_it: impl Fn(&Seen) -> bool) -> bool {
        let removed = from.iter().map(|watched| self.of(*watched).extract_if(key..=key, |_, seen| is_it(seen)).count());
        removed.sum::<usize>() > 0
    }
}

fn newer<'a>(one: Option<&'a Seen>, other: Option<&'a Seen>) -> Option<&'a Seen> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if one.is_older_than(other) { other } else { one }),
        (one, other) => one.or(other),
    }
}

/// An Instance as it was seen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    pub(super) instance: Arc<Instance>,
    /// It has a label by which this node watches it, and an identity. Upstream Akri gives an Instance neither (rule 65).
    pub(super) adopted: bool,
    /// The state of its device by its condition; a device that was just found has none.
    pub(super) found: Online,
    /// The entries of nodes that miss its device.
    pub(super) problems: BTreeMap<String, NodeProblem>,
}

impl Seen {
    /// Returns whether something has changed that owners have to know.
    pub(super) fn changed_since(&self, before: Option<&Self>) -> bool {
        let is_same = |one: &Instance, other: &Instance| one.uid == other.uid && one.device_usage == other.device_usage;
        before.is_some_and(|before| !is_same(&before.instance, &self.instance)) || self.finding_changed_since(before)
    }

    /// Returns whether something has changed that owners have to know, beside the usage.
    pub(super) fn finding_changed_since(&self, before: Option<&Self>) -> bool {
        let is_same = |one: &Instance, other: &Instance| one.properties == other.properties && one.nodes == other.nodes;
        before.is_none_or(|before| before.found != self.found || !is_same(&before.instance, &self.instance))
    }

    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        self.instance.version.is_older_than(&other.instance.version)
    }
}

/// Replaces what is known by a list, and returns whether that changed anything. The first one, from the API server's cache, may be
/// older than the answer to a request: of an Instance the newer version stays. Later ones are consistent, and what they show is true,
/// also if its version is lower: etcd may have been restored (rule 106).
pub(super) fn replace(known: &mut BTreeMap<Key, Seen>, mut listed: BTreeMap<Key, Seen>, is_cached: bool) -> bool {
    for (key, seen) in &mut listed {
        if let Some(before) = known.get(key).filter(|before| is_cached && seen.is_older_than(before)) {
            *seen = before.clone();
        }
    }
    let changed = *known != listed;
    *known = listed;
    changed
}
