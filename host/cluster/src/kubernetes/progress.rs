//! The Configurations and DiscoveryHandlers that the watches show, and which of them this agent has looked at since they were made or
//! edited (rule 131).

use std::collections::BTreeMap;
use std::sync::Arc;

use akri_kube::agent_lease::LookedAt;
use akri_kube::watch::{Change, key_of};
use akri_model::agent_lease::{NamespaceVersions, Progress, Versions};
use akri_model::names::Key;
use akri_model::summary::NodeProblem;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use super::node_reports::{shown_problems, version_of};

/// An object.
#[derive(Debug)]
struct Shown {
    uid: String,
    generation: i64,
    /// The version since which it has that generation, as far as the watch has shown.
    since: u64,
    version: u64,
    is_deleting: bool,
    /// The entries of nodes, and the version since which the object has them.
    nodes: BTreeMap<String, NodeProblem>,
    nodes_since: u64,
    /// The version whose entries agree with what this node reports of the generation; `None` before it has looked.
    reported: Option<u64>,
    /// The version since which the controller wants to know at once that this node has looked at it, if it does.
    awaited_since: Option<u64>,
}

impl Shown {
    /// This node has looked at the generation, and its report holds beside the entries of today.
    fn is_looked_at(&self) -> bool {
        self.is_deleting || self.reported.is_some_and(|reported| reported >= self.nodes_since)
    }
}

/// All objects of both kinds; a DiscoveryHandler's key has no namespace. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct ProgressTracker {
    node: Arc<str>,
    shown: Arc<Mutex<BTreeMap<Key, Shown>>>,
    sender: watch::Sender<LookedAt>,
}

impl ProgressTracker {
    /// Returns none yet.
    pub(super) fn new(node: &str) -> Self {
        Self { node: node.into(), shown: Arc::default(), sender: watch::Sender::default() }
    }

    /// Returns what the Lease has to say, and every change of it.
    pub(super) fn looked_at(&self) -> watch::Receiver<LookedAt> {
        self.sender.subscribe()
    }

    /// Applies a change from the watch of Configurations.
    pub(super) fn take_configurations(&self, change: &Change<DynamicObject>) {
        self.take(change, |key| !key.namespace.is_empty());
    }

    /// Applies a change from the watch of DiscoveryHandlers.
    pub(super) fn take_handlers(&self, change: &Change<DynamicObject>) {
        self.take(change, |key| key.namespace.is_empty());
    }

    fn take(&self, change: &Change<DynamicObject>, is_of_kind: fn(&Key) -> bool) {
        self.change(|shown| match change {
            Change::All(objects) => {
                let is_listed = |key: &Key| objects.iter().any(|object| key_of(&object.metadata) == *key);
                shown.retain(|key, _| !is_of_kind(key) || is_listed(key));
                objects.iter().for_each(|object| put(shown, object, &self.node));
            }
            Change::Put(object) => put(shown, object, &self.node),
            Change::Deleted(metadata) => drop(shown.remove(&key_of(metadata))),
        });
    }

    /// Records that a round with this generation of a Configuration has ended, or that this generation of a DiscoveryHandler was loaded or
    /// refused, and that the object says in this version what there is to report.
    pub(super) fn look_ended(&self, key: &Key, uid: &str, generation: i64, version: u64) {
        self.change(|shown| {
            let shown = shown.get_mut(key).filter(|shown| (&*shown.uid, shown.generation) == (uid, generation));
            shown.into_iter().for_each(|shown| shown.reported = shown.reported.max(Some(version)));
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Key, Shown>)) {
        let mut shown = self.shown.lock();
        change(&mut shown);
        let now = looked_at(&shown);
        self.sender.send_if_modified(|before| {
            let is_changed = *before != now;
            *before = now;
            is_changed
        });
    }
}

fn looked_at(shown: &BTreeMap<Key, Shown>) -> LookedAt {
    let pending = shown.iter().filter(|(_, shown)| !shown.is_looked_at());
    let pending = pending.map(|(key, shown)| (key.clone(), shown.since)).collect();
    let (mut watched, mut reported) = (Versions::default(), NamespaceVersions::new());
    for (key, shown) in shown {
        let watched = watched.of(key);
        *watched = (*watched).max(shown.version);
        if let Some(version) = shown.reported {
            let reported = reported.entry(key.namespace.to_string()).or_default();
            *reported = (*reported).max(version);
        }
    }
    let awaited = shown.iter().filter(|(_, shown)| shown.is_looked_at());
    let awaited = awaited.filter_map(|(key, shown)| Some((key.clone(), shown.awaited_since?.max(shown.nodes_since))));
    let awaited = awaited.collect();
    LookedAt { progress: Progress::new(watched, pending, reported), awaited }
}

fn put(shown: &mut BTreeMap<Key, Shown>, object: &DynamicObject, node: &str) {
    let (key, version) = (key_of(&object.metadata), version_of(&object.metadata));
    let awaiting = object.data.pointer("/status/awaiting").and_then(Value::as_array);
    let is_awaited = awaiting.is_some_and(|nodes| nodes.iter().any(|name| name.as_str() == Some(node)));
    let (uid, generation) = (object.uid().unwrap_or_default(), object.metadata.generation.unwrap_or_default());
    let mut now = Shown {
        since: version,
        version,
        is_deleting: object.metadata.deletion_timestamp.is_some(),
        nodes: shown_problems(&object.data),
        nodes_since: version,
        reported: None,
        awaited_since: is_awaited.then_some(version),
        uid,
        generation,
    };
    let before = shown.remove(&key).filter(|before| (&before.uid, before.generation) == (&now.uid, now.generation));
    if let Some(before) = before {
        now.since = before.since.min(version);
        if before.nodes == now.nodes {
            now.nodes_since = before.nodes_since.min(version);
        }
        now.awaited_since =
            now.awaited_since.map(|since| before.awaited_since.map_or(since, |before| before.min(since)));
        let is_restored = version < before.version; // etcd, from a backup: versions of before are too high
        now.reported = before.reported.map(|reported| if is_restored { reported.min(version) } else { reported });
    }
    shown.insert(key, now);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key() -> Key {
        Key::new("default", "cam")
    }

    fn object_of(namespace: Option<&str>, generation: i64, version: u64, awaiting: &[&str]) -> Change<DynamicObject> {
        let metadata = json!({
            "namespace": namespace, "name": "cam", "uid": "u", "generation": generation, "resourceVersion": version.to_string(),
        });
        Change::Put(serde_json::from_value(json!({"metadata": metadata, "status": {"awaiting": awaiting}})).unwrap())
    }

    fn object(generation: i64, version: u64, awaiting: &[&str]) -> Change<DynamicObject> {
        object_of(Some("default"), generation, version, awaiting)
    }

    #[test] // rule 131
    fn generation_is_looked_at_when_its_round_ended() {
        let tracker = ProgressTracker::new("a");
        let covers = |since| tracker.looked_at().borrow().progress.covers(&key(), since);
        tracker.take_configurations(&object(1, 10, &[]));
        assert!(!covers(10));
        tracker.look_ended(&key(), "u", 1, 10);
        assert!(covers(10));
        tracker.take_configurations(&object(2, 20, &[]));
        tracker.look_ended(&key(), "u", 1, 20);
        tracker.look_ended(&key(), "another", 2, 20);
        assert!(!covers(20), "those were of another generation, and of another object");
        tracker.look_ended(&key(), "u", 2, 20);
        tracker.take_configurations(&object(2, 30, &[]));
        assert!(covers(20) && covers(30), "only its status changed");
        tracker.take_configurations(&object(2, 5, &[]));
        assert!(covers(5) && !covers(20), "etcd was restored");
        tracker.take_configurations(&Change::All(Vec::new()));
        assert!(!covers(5));
    }

    fn reported_by(node: &str, version: u64) -> Change<DynamicObject> {
        let metadata = json!({"namespace": "default", "name": "cam", "uid": "u", "generation": 1, "resourceVersion": version.to_string()});
        let status = json!({"awaiting": ["a"], "nodes": {node: {"reason": "R", "message": "m"}}});
        Change::Put(serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap())
    }

    #[test] // rule 131
    fn entries_of_others_that_change_need_another_report() {
        let tracker = ProgressTracker::new("a");
        let covers = |since| tracker.looked_at().borrow().progress.covers(&key(), since);
        let is_ahead = |seen| tracker.looked_at().borrow().progress.is_ahead(&key(), seen);
        tracker.take_configurations(&reported_by("b", 10));
        tracker.look_ended(&key(), "u", 1, 10);
        tracker.take_configurations(&reported_by("b", 11));
        assert!(covers(10), "the entries are the same");
        tracker.take_configurations(&object(1, 12, &["a"]));
        assert!(!covers(12), "this node kept silent because of the entry");
        assert_eq!(tracker.looked_at().borrow().awaited, [].into());
        tracker.look_ended(&key(), "u", 1, 13); // it has written its own
        assert!(covers(12) && is_ahead(12) && !is_ahead(13));
        tracker.take_configurations(&reported_by("a", 13));
        assert!(covers(13));
        assert_eq!(tracker.looked_at().borrow().awaited, [(key(), 13)].into());
        tracker.take_configurations(&Change::All(Vec::new()));
        assert!(!is_ahead(0), "nobody will see that version any more");
    }

    #[test] // rule 131
    fn controller_awaits_three_nodes() {
        let tracker = ProgressTracker::new("a");
        let awaited = || tracker.looked_at().borrow().awaited.iter().cloned().collect::<Vec<_>>();
        tracker.take_configurations(&object(1, 10, &["a", "b"]));
        assert_eq!(awaited(), []);
        tracker.look_ended(&key(), "u", 1, 10);
        assert_eq!(awaited(), [(key(), 10)]);
        tracker.take_configurations(&object(1, 11, &["b"]));
        assert_eq!(awaited(), []);
    }

    #[test] // rule 131
    fn watches_of_both_kinds_are_apart() {
        let tracker = ProgressTracker::new("a");
        let handler = Key::new("", "cam");
        let covers = |key: &Key, since| tracker.looked_at().borrow().progress.covers(key, since);
        tracker.take_configurations(&object(1, 50, &[]));
        tracker.look_ended(&key(), "u", 1, 50);
        assert!(covers(&key(), 50) && !covers(&handler, 40), "the other watch may be behind");
        tracker.take_handlers(&object_of(None, 1, 40, &["a"]));
        assert!(!covers(&handler, 40));
        tracker.look_ended(&handler, "u", 1, 40);
        assert!(covers(&handler, 40) && !covers(&handler, 41));
        assert_eq!(tracker.looked_at().borrow().awaited, [(handler.clone(), 40)].into());
        tracker.take_configurations(&Change::All(Vec::new()));
        assert!(covers(&handler, 40) && !covers(&key(), 50));
        tracker.take_handlers(&Change::All(Vec::new()));
        assert!(!covers(&handler, 40));
    }
}
