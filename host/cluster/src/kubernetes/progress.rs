//! The Configurations and DiscoveryHandlers that the watches show: which of them this agent has looked at since they were made or
//! edited (rule 131), and what this node has to write so that the reports of nodes agree with what it wants to report (rule 34,
//! rule 61).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_kube::agent_lease::LookedAt;
use akri_kube::watch::{Change, key_of, version_of};
use akri_model::agent_lease::{NamespaceVersions, Progress, Versions};
use akri_model::names::Key;
use akri_model::node_report::{Step, report_delay, step};
use akri_model::summary::NodeProblem;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::send_changed;

/// An object.
#[derive(Debug)]
struct Shown {
    uid: String,
    generation: i64,
    /// The version since which it has that generation, as far as the watch has shown.
    since: u64,
    version: u64,
    is_deleting: bool,
    /// Other nodes run discovery (rule 126).
    is_left_to_others: bool,
    /// The entries of nodes, and the version since which the object has them.
    nodes: BTreeMap<String, NodeProblem>,
    nodes_since: u64,
    /// The version whose entries agree with what this node reports of the generation; `None` before it has looked.
    reported: Option<u64>,
    /// The version since which the controller wants to know at once that this node has looked at it, if it does.
    awaited_since: Option<u64>,
    /// The entries after a write of this node, and their version, until the watch shows the object again.
    written: Option<(u64, BTreeMap<String, NodeProblem>)>,
    /// The time since which this node could add its entry.
    add_since: Option<Instant>,
}

impl Shown {
    /// Returns the entries of nodes as far as this node knows.
    fn entries(&self) -> &BTreeMap<String, NodeProblem> {
        self.written.as_ref().map_or(&self.nodes, |(_, nodes)| nodes)
    }

    /// This node has looked at the generation, and its report holds beside the entries of today.
    fn is_looked_at(&self) -> bool {
        self.is_deleting || self.is_left_to_others || self.reported.is_some_and(|reported| reported >= self.nodes_since)
    }
}

/// The next write of this node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReportStep {
    /// None, until the watch shows another object.
    Unknown,
    /// None, until the watch shows something else than in this version.
    Rest(u64),
    /// One after this time, if the watch then still shows too few entries of others.
    Wait(Duration),
    /// One now.
    Write,
}

/// Returns the entries of nodes in the status of an object, without their times.
pub(super) fn shown_problems(object: &Value) -> BTreeMap<String, NodeProblem> {
    let nodes = object.pointer("/status/nodes").and_then(Value::as_object);
    let field = |entry: &Value, name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let problem = |entry: &Value| NodeProblem::new(&field(entry, "reason"), &field(entry, "message"));
    nodes.into_iter().flatten().map(|(node, entry)| (node.clone(), problem(entry))).collect()
}

/// All objects of both kinds; a DiscoveryHandler's key has no namespace. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct ProgressTracker {
    node: Arc<str>,
    shown: Arc<Mutex<BTreeMap<Key, Shown>>>,
    /// The content of the agent's Lease.
    pub(super) looked_at: watch::Sender<LookedAt>,
    /// Changes of entries.
    pub(super) changes: watch::Sender<()>,
}

impl ProgressTracker {
    /// Returns none yet.
    pub(super) fn new(node: &str) -> Self {
        Self {
            node: node.into(),
            shown: Arc::default(),
            looked_at: watch::Sender::default(),
            changes: watch::Sender::default(),
        }
    }

    /// Applies a change from the watch of Configurations, or of DiscoveryHandlers, which have no namespace.
    pub(super) fn take(&self, change: &Change<DynamicObject>, has_namespace: bool) {
        self.change(|shown| match change {
            Change::All(objects) => {
                let is_listed = |key: &Key| objects.iter().any(|object| key_of(&object.metadata) == *key);
                shown.retain(|key, _| key.namespace.is_empty() == has_namespace || is_listed(key));
                objects.iter().for_each(|object| self.put(shown, object));
            }
            Change::Put(object) => self.put(shown, object),
            Change::Deleted(metadata) => drop(shown.remove(&key_of(metadata))),
        });
    }

    /// Records that a round with this generation of a Configuration has ended, or that this generation of a DiscoveryHandler was loaded or
    /// refused, and that the object says in this version what there is to report.
    pub(super) fn look_ended(&self, key: &Key, uid: &str, generation: i64, version: u64) {
        let mut all = self.shown.lock();
        let shown = all.get_mut(key).filter(|shown| (&*shown.uid, shown.generation) == (uid, generation));
        if let Some(shown) = shown.filter(|shown| shown.reported < Some(version)) {
            shown.reported = Some(version);
            send_changed(&self.looked_at, looked_at(&all));
        }
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Key, Shown>)) {
        let mut shown = self.shown.lock();
        change(&mut shown);
        send_changed(&self.looked_at, looked_at(&shown));
    }

    fn put(&self, shown: &mut BTreeMap<Key, Shown>, object: &DynamicObject) {
        let (key, version) = (key_of(&object.metadata), version_of(&object.metadata));
        let awaiting = object.data.pointer("/status/awaiting").and_then(Value::as_array);
        let is_awaited = awaiting.is_some_and(|nodes| nodes.iter().any(|name| name.as_str() == Some(&*self.node)));
        let (uid, generation) = (object.uid().unwrap_or_default(), object.metadata.generation.unwrap_or_default());
        let chosen = object.data.pointer("/status/discoverOn").and_then(Value::as_array);
        let is_chosen = chosen.is_some_and(|nodes| nodes.iter().any(|name| name.as_str() == Some(&*self.node)));
        let is_limited = object.data.pointer("/spec/discoverOn").is_some_and(Value::is_object);
        let mut now = Shown {
            is_left_to_others: is_limited && !is_chosen,
            since: version,
            version,
            is_deleting: object.metadata.deletion_timestamp.is_some(),
            nodes: shown_problems(&object.data),
            nodes_since: version,
            reported: None,
            awaited_since: is_awaited.then_some(version),
            written: None,
            add_since: None,
            uid,
            generation,
        };
        let before = shown.remove(&key);
        now.add_since = before.as_ref().and_then(|before| before.add_since);
        let is_same = before.as_ref().is_some_and(|before| (&before.uid, before.entries()) == (&now.uid, &now.nodes));
        let was_looked_at = before.as_ref().is_some_and(Shown::is_looked_at);
        if let Some(before) = before.filter(|of| (&of.uid, of.generation) == (&now.uid, now.generation)) {
            now.since = before.since.min(version);
            if before.nodes == now.nodes {
                now.nodes_since = before.nodes_since.min(version);
            }
            now.awaited_since =
                now.awaited_since.map(|since| before.awaited_since.map_or(since, |before| before.min(since)));
            let is_restored = version < before.version; // etcd, from a backup: versions of before are too high
            now.reported = before.reported.map(|reported| if is_restored { reported.min(version) } else { reported });
            now.reported = now.reported.filter(|_| !before.is_left_to_others);
        }
        let has_to_look = was_looked_at && !now.is_looked_at();
        shown.insert(key, now);
        self.changes.send_if_modified(|()| !is_same || has_to_look);
    }

    /// Applies an object as a write of this node left it. The watch may be far from that version.
    pub(super) fn written(&self, object: &DynamicObject) {
        let mut shown = self.shown.lock();
        let uid = object.uid().unwrap_or_default();
        let Some(shown) = shown.get_mut(&key_of(&object.metadata)).filter(|shown| shown.uid == uid) else { return };
        let nodes = shown_problems(&object.data);
        self.changes.send_if_modified(|()| *shown.entries() != nodes);
        shown.written = Some((version_of(&object.metadata), nodes));
    }

    /// Returns the next write of this node.
    pub(super) fn next_step(&self, key: &Key, uid: &str, problem: Option<&NodeProblem>, now: Instant) -> ReportStep {
        let mut shown = self.shown.lock();
        // Another UID: the watch has not shown this object yet, or shows the next of its name.
        let shown = shown.get_mut(key).filter(|shown| uid == shown.uid);
        let Some(shown) = shown else { return ReportStep::Unknown };
        let delay = match step(shown.entries(), |_| true, &self.node, problem) {
            Step::Rest => {
                shown.add_since = None;
                return ReportStep::Rest(shown.written.as_ref().map_or(shown.version, |(version, _)| *version));
            }
            Step::Remove | Step::Change => Duration::ZERO,
            Step::Add => {
                let since = *shown.add_since.get_or_insert(now);
                (since + report_delay(&self.node, key)).saturating_duration_since(now)
            }
        };
        if delay.is_zero() { ReportStep::Write } else { ReportStep::Wait(delay) }
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
        let covers = |since| tracker.looked_at.borrow().progress.covers(&key(), since);
        tracker.take(&object(1, 10, &[]), true);
        assert!(!covers(10));
        tracker.look_ended(&key(), "u", 1, 10);
        assert!(covers(10));
        tracker.take(&object(2, 20, &[]), true);
        tracker.look_ended(&key(), "u", 1, 20);
        tracker.look_ended(&key(), "another", 2, 20);
        assert!(!covers(20), "those were of another generation, and of another object");
        tracker.look_ended(&key(), "u", 2, 20);
        tracker.take(&object(2, 30, &[]), true);
        assert!(covers(20) && covers(30), "only its status changed");
        tracker.take(&object(2, 5, &[]), true);
        assert!(covers(5) && !covers(20), "etcd was restored");
        tracker.take(&Change::All(Vec::new()), true);
        assert!(!covers(5));
    }

    #[test] // rule 126, rule 131
    fn object_of_other_nodes_is_pending_once_it_is_of_this_one() {
        let tracker = ProgressTracker::new("a");
        let covers = || tracker.looked_at.borrow().progress.covers(&key(), 10);
        let show = |nodes: &[&str], version: u64| {
            let mut change = object(1, version, &[]);
            if let Change::Put(object) = &mut change {
                object.data["spec"] = json!({"discoverOn": {"count": 1}});
                object.data["status"]["discoverOn"] = json!(nodes);
            }
            tracker.take(&change, true);
        };
        show(&["a"], 10);
        assert!(!covers());
        tracker.look_ended(&key(), "u", 1, 10);
        assert!(covers());
        show(&["b"], 11);
        assert!(covers(), "a Lease names few objects");
        show(&["a"], 12);
        assert!(!covers(), "it has to look again");
    }

    fn reported_by(node: &str, version: u64) -> Change<DynamicObject> {
        let metadata = json!({"namespace": "default", "name": "cam", "uid": "u", "generation": 1, "resourceVersion": version.to_string()});
        let status = json!({"awaiting": ["a"], "nodes": {node: {"reason": "R", "message": "m"}}});
        Change::Put(serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap())
    }

    #[test] // rule 131
    fn entries_of_others_that_change_need_another_report() {
        let tracker = ProgressTracker::new("a");
        let covers = |since| tracker.looked_at.borrow().progress.covers(&key(), since);
        let is_ahead = |seen| tracker.looked_at.borrow().progress.is_ahead(&key(), seen);
        tracker.take(&reported_by("b", 10), true);
        tracker.look_ended(&key(), "u", 1, 10);
        tracker.take(&reported_by("b", 11), true);
        assert!(covers(10), "the entries are the same");
        tracker.take(&object(1, 12, &["a"]), true);
        assert!(!covers(12), "this node kept silent because of the entry");
        assert_eq!(tracker.looked_at.borrow().awaited, [].into());
        tracker.look_ended(&key(), "u", 1, 13); // it has written its own
        assert!(covers(12) && is_ahead(12) && !is_ahead(13));
        tracker.take(&reported_by("a", 13), true);
        assert!(covers(13));
        assert_eq!(tracker.looked_at.borrow().awaited, [(key(), 13)].into());
        tracker.take(&Change::All(Vec::new()), true);
        assert!(!is_ahead(0), "nobody will see that version any more");
    }

    #[test] // rule 131
    fn list_that_leaves_out_a_report_asks_for_it_again() {
        let tracker = ProgressTracker::new("a");
        let entry = json!({"a": {"reason": "R", "message": "m"}});
        let shown = |version: &str, nodes: &Value| {
            let mut object = with_nodes(nodes.clone());
            object.metadata.resource_version = Some(version.to_owned());
            object
        };
        tracker.take(&Change::Put(shown("7", &json!({}))), true);
        tracker.written(&shown("9", &entry));
        tracker.look_ended(&key(), "u", 0, 9);
        let mut changes = tracker.changes.subscribe();
        tracker.take(&Change::All(vec![shown("12", &entry)]), true);
        let covers = || tracker.looked_at.borrow().progress.covers(&key(), 12);
        assert!(!covers() && changes.has_changed().unwrap());
        let next = tracker.next_step(&key(), "u", Some(&report("R")), Instant::now());
        assert_eq!(next, ReportStep::Rest(12));
        tracker.look_ended(&key(), "u", 0, 12);
        assert!(covers());
        changes.mark_unchanged();
        tracker.take(&Change::Put(shown("13", &entry)), true);
        assert!(covers() && !changes.has_changed().unwrap());
    }

    #[test] // rule 131
    fn controller_awaits_three_nodes() {
        let tracker = ProgressTracker::new("a");
        let awaited = || tracker.looked_at.borrow().awaited.iter().cloned().collect::<Vec<_>>();
        tracker.take(&object(1, 10, &["a", "b"]), true);
        assert_eq!(awaited(), []);
        tracker.look_ended(&key(), "u", 1, 10);
        assert_eq!(awaited(), [(key(), 10)]);
        tracker.take(&object(1, 11, &["b"]), true);
        assert_eq!(awaited(), []);
    }

    #[test] // rule 131
    fn watches_of_both_kinds_are_apart() {
        let tracker = ProgressTracker::new("a");
        let handler = Key::new("", "cam");
        let covers = |key: &Key, since| tracker.looked_at.borrow().progress.covers(key, since);
        tracker.take(&object(1, 50, &[]), true);
        tracker.look_ended(&key(), "u", 1, 50);
        assert!(covers(&key(), 50) && !covers(&handler, 40), "the other watch may be behind");
        tracker.take(&object_of(None, 1, 40, &["a"]), false);
        assert!(!covers(&handler, 40));
        tracker.look_ended(&handler, "u", 1, 40);
        assert!(covers(&handler, 40) && !covers(&handler, 41));
        assert_eq!(tracker.looked_at.borrow().awaited, [(handler.clone(), 40)].into());
        tracker.take(&Change::All(Vec::new()), true);
        assert!(covers(&handler, 40) && !covers(&key(), 50));
        tracker.take(&Change::All(Vec::new()), false);
        assert!(!covers(&handler, 40));
    }

    fn with_nodes(nodes: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": "cam", "uid": "u", "resourceVersion": "7"}, "status": {"nodes": nodes},
        }))
        .unwrap()
    }

    fn report(reason: &str) -> NodeProblem {
        NodeProblem::new(reason, "m")
    }

    #[test]
    fn node_delays_its_report_and_checks_again() {
        let (tracker, now) = (ProgressTracker::new("a"), Instant::now());
        let next = |now| tracker.next_step(&key(), "u", Some(&report("R")), now);
        assert_eq!(next(now), ReportStep::Unknown, "the watch has not shown the object");
        tracker.take(&Change::Put(with_nodes(json!({}))), true);
        let delay = report_delay("a", &key());
        assert_eq!(next(now), ReportStep::Wait(delay));
        let entry = json!({"reason": "R", "message": "m"});
        tracker.take(&Change::Put(with_nodes(json!({"b": entry, "c": entry, "d": entry}))), true);
        assert_eq!(next(now + delay), ReportStep::Rest(7), "three others report it");
        tracker.take(&Change::Put(with_nodes(json!({"b": entry, "c": entry}))), true);
        assert_eq!(next(now + delay), ReportStep::Wait(delay), "it waits anew");
        assert_eq!(next(now + delay * 2), ReportStep::Write);
    }

    #[test]
    fn entry_of_this_node_is_changed_and_removed_at_once() {
        let (tracker, now) = (ProgressTracker::new("a"), Instant::now());
        let next = |problem: Option<&NodeProblem>| tracker.next_step(&key(), "u", problem, now);
        tracker.take(&Change::Put(with_nodes(json!({"a": {"reason": "R", "message": "m"}}))), true);
        assert_eq!(next(Some(&report("R"))), ReportStep::Rest(7));
        assert_eq!([next(Some(&report("S"))), next(None)], [ReportStep::Write, ReportStep::Write]);
        tracker.take(&Change::Put(with_nodes(json!({}))), true);
        assert_eq!(next(None), ReportStep::Rest(7));
        assert!(matches!(next(Some(&report("R"))), ReportStep::Wait(_)), "the controller has removed the entry");
    }

    #[test]
    fn object_that_was_made_again_is_left_alone() {
        let (tracker, now) = (ProgressTracker::new("a"), Instant::now());
        let next = |uid| tracker.next_step(&key(), uid, None, now);
        tracker.take(&Change::Put(with_nodes(json!({"a": {"reason": "R"}}))), true);
        assert_eq!(next("of before"), ReportStep::Unknown);
        assert_eq!(next("u"), ReportStep::Write);
        tracker.take(&Change::All(Vec::new()), true);
        assert_eq!(next("u"), ReportStep::Unknown);
    }

    #[test]
    fn only_changes_of_entries_are_counted() {
        let tracker = ProgressTracker::new("a");
        let mut changes = tracker.changes.subscribe();
        for (nodes, expected) in [(json!({}), true), (json!({}), false), (json!({"b": {"reason": "R"}}), true)] {
            tracker.take(&Change::Put(with_nodes(nodes)), true);
            assert_eq!(changes.has_changed().unwrap(), expected);
            changes.mark_unchanged();
        }
    }

    #[test] // rule 131
    fn own_write_does_not_move_the_version_that_was_watched() {
        let tracker = ProgressTracker::new("a");
        let entry = json!({"a": {"reason": "R", "message": "m"}});
        tracker.take(&Change::Put(with_nodes(json!({}))), true);
        let mut written = with_nodes(entry.clone());
        written.metadata.resource_version = Some("9".to_owned());
        tracker.written(&written);
        let next = tracker.next_step(&key(), "u", Some(&report("R")), Instant::now());
        assert_eq!(next, ReportStep::Rest(9));
        tracker.look_ended(&key(), "u", 0, 9);
        assert!(!tracker.looked_at.borrow().progress.covers(&key(), 9), "the watch is at 7");
        tracker.take(&Change::Put(written), true);
        assert!(tracker.looked_at.borrow().progress.covers(&key(), 9));
    }
}
