//! The reports of nodes about Configurations and DiscoveryHandlers, as the watches show them, and what this node has to write so
//! that they agree with what it wants to report (rule 34, rule 61).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_kube::watch::{Change, key_of};
use akri_model::names::Key;
use akri_model::node_report::{Step, report_delay, step};
use akri_model::summary::NodeProblem;
use kube::ResourceExt as _;
use kube::api::{DynamicObject, ObjectMeta};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

/// The entries of an object in the watch.
#[derive(Debug)]
struct ShownReports {
    uid: String,
    version: u64,
    nodes: BTreeMap<String, NodeProblem>,
    /// The time since which this node could add its entry.
    add_since: Option<Instant>,
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

/// Returns the version of an object.
pub(super) fn version_of(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// The reports of all nodes about the objects of a kind. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct NodeReports {
    node: Arc<str>,
    shown: Arc<Mutex<BTreeMap<Key, ShownReports>>>,
    changes: watch::Sender<u64>,
}

impl NodeReports {
    /// Returns none yet. Changes of entries are counted in `changes`.
    pub(super) fn new(node: &str, changes: watch::Sender<u64>) -> Self {
        Self { node: node.into(), shown: Arc::default(), changes }
    }

    /// Applies a change from the watch.
    pub(super) fn take(&self, change: &Change<DynamicObject>) {
        match change {
            Change::All(objects) => {
                self.shown.lock().retain(|key, _| objects.iter().any(|object| key_of(&object.metadata) == *key));
                objects.iter().for_each(|object| self.put(object));
            }
            Change::Put(object) => self.put(object),
            Change::Deleted(metadata) => drop(self.shown.lock().remove(&key_of(metadata))),
        }
    }

    /// Applies an object as the watch or a request shows it.
    pub(super) fn put(&self, object: &DynamicObject) {
        let (key, nodes) = (key_of(&object.metadata), shown_problems(&object.data));
        let (uid, version) = (object.uid().unwrap_or_default(), version_of(&object.metadata));
        let mut shown = self.shown.lock();
        let before = shown.remove(&key);
        let is_same = before.as_ref().is_some_and(|before| (&before.uid, &before.nodes) == (&uid, &nodes));
        let add_since = before.and_then(|before| before.add_since);
        shown.insert(key, ShownReports { uid, version, nodes, add_since });
        drop(shown);
        self.changes.send_if_modified(|count| {
            *count = count.wrapping_add(u64::from(!is_same));
            !is_same
        });
    }

    /// Returns the next write of this node.
    pub(super) fn next_step(&self, key: &Key, uid: &str, problem: Option<&NodeProblem>, now: Instant) -> ReportStep {
        let mut shown = self.shown.lock();
        // Another UID: the watch has not shown this object yet, or shows the next of its name.
        let shown = shown.get_mut(key).filter(|shown| uid == shown.uid);
        let Some(shown) = shown else { return ReportStep::Unknown };
        let delay = match step(&shown.nodes, &self.node, problem) {
            Step::Rest => {
                shown.add_since = None;
                return ReportStep::Rest(shown.version);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key() -> Key {
        Key::new("default", "cam")
    }

    fn reports() -> NodeReports {
        NodeReports::new("a", watch::Sender::new(0))
    }

    fn object(nodes: Value) -> DynamicObject {
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
        let (reports, now) = (reports(), Instant::now());
        let next = |now| reports.next_step(&key(), "u", Some(&report("R")), now);
        assert_eq!(next(now), ReportStep::Unknown, "the watch has not shown the object");
        reports.put(&object(json!({})));
        let delay = report_delay("a", &key());
        assert_eq!(next(now), ReportStep::Wait(delay));
        let entry = json!({"reason": "R", "message": "m"});
        reports.put(&object(json!({"b": entry, "c": entry, "d": entry})));
        assert_eq!(next(now + delay), ReportStep::Rest(7), "three others report it");
        reports.put(&object(json!({"b": entry, "c": entry})));
        assert_eq!(next(now + delay), ReportStep::Wait(delay), "it waits anew");
        assert_eq!(next(now + delay * 2), ReportStep::Write);
    }

    #[test]
    fn entry_of_this_node_is_changed_and_removed_at_once() {
        let (reports, now) = (reports(), Instant::now());
        let next = |problem: Option<&NodeProblem>| reports.next_step(&key(), "u", problem, now);
        reports.put(&object(json!({"a": {"reason": "R", "message": "m"}})));
        assert_eq!(next(Some(&report("R"))), ReportStep::Rest(7));
        assert_eq!([next(Some(&report("S"))), next(None)], [ReportStep::Write, ReportStep::Write]);
        reports.put(&object(json!({})));
        assert_eq!(next(None), ReportStep::Rest(7));
        assert!(matches!(next(Some(&report("R"))), ReportStep::Wait(_)), "the controller has removed the entry");
    }

    #[test]
    fn object_that_was_made_again_is_left_alone() {
        let (reports, now) = (reports(), Instant::now());
        let next = |uid| reports.next_step(&key(), uid, None, now);
        reports.put(&object(json!({"a": {"reason": "R"}})));
        assert_eq!(next("of before"), ReportStep::Unknown);
        assert_eq!(next("u"), ReportStep::Write);
        reports.take(&Change::All(Vec::new()));
        assert_eq!(next("u"), ReportStep::Unknown);
    }

    #[test]
    fn only_changes_of_entries_are_counted() {
        let reports = reports();
        let mut changes = reports.changes.subscribe();
        for (nodes, expected) in [(json!({}), true), (json!({}), false), (json!({"b": {"reason": "R"}}), true)] {
            reports.put(&object(nodes));
            assert_eq!(changes.has_changed().unwrap(), expected);
            changes.mark_unchanged();
        }
    }
}
