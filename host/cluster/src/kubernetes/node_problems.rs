//! Writes what is wrong on this node into the status of objects (rule 34, rule 61): `status.nodes` has an entry for each node
//! that has a problem. The controller aggregates them into conditions.
//!
//! Entries are written by JSON Patch. With server-side apply the first node that had nothing to say would own the map as a
//! whole, and all others would be refused.

use akri_api::document::pointer_token;
use akri_api::{Configuration, DiscoveryHandler, HandlerKind, HandlerState};
use akri_kube::events::EventRecorder;
use akri_kube::json_patch::{add, remove, test};
use akri_kube::requests::Requests;
use akri_kube::watch::typed;
use akri_model::configuration_status::DiscoveryStatus;
use akri_model::instance::{Instance, Online};
use akri_model::names::Key;
use akri_model::node_report::are_enough;
use akri_model::summary::{HANDLER_GONE, INCOMPLETE, NOTHING_FOUND, NodeProblem, OUTDATED, Truth};
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tracing::warn;

use super::Kubernetes;
use super::problem_reporter::{Due, ProblemReporter, Subject};
use crate::{ClusterError, ConfigurationReport, HandlerReport, ObjectEvent};

/// The nodes that may write into the status of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writers {
    /// All: of an Instance, what each node sees counts.
    All,
    /// Some, who speak for the others.
    Some,
}

/// Returns the problem that a report about a handler comes to: that the node can't use it, or that it uses an older component
/// than the object wants. A component that is being compiled is none.
fn handler_problem(report: &HandlerReport) -> Option<NodeProblem> {
    let failed = |kind: &str| {
        report.conditions.iter().find(|condition| condition.kind == kind && condition.truth == Truth::False)
    };
    match (report.state, failed("Ready"), failed("Accepted")) {
        (HandlerState::Loading, ..) | (_, None, None) => None,
        (_, Some(ready), _) => Some(NodeProblem::new(&ready.reason, &ready.message)),
        (_, None, Some(refused)) => {
            Some(NodeProblem::new(OUTDATED, &format!("{}: {}", refused.reason, refused.message)))
        }
    }
}

/// Returns the patch that makes an object show a problem of a node, or none; nothing if it does already, or if enough other
/// nodes show theirs. Of two writers one has to look again, so that the bounds hold.
fn patch(object: &Value, node: &str, problem: Option<&NodeProblem>, writers: Writers, now: Timestamp) -> Option<Value> {
    let nodes = object.pointer("/status/nodes").and_then(Value::as_object);
    let before = nodes.and_then(|nodes| nodes.get(node));
    let path = format!("/status/nodes/{}", pointer_token(node));
    let version = test("/metadata/resourceVersion", object.pointer("/metadata/resourceVersion"));
    let Some(problem) = problem else {
        return before.map(|_| json!([version, remove(&path)]));
    };
    let is_same = |entry: &Value| text(entry, "reason") == problem.reason;
    if before.is_some_and(|before| is_same(before) && text(before, "message") == problem.message) {
        return None;
    }
    let others = nodes.into_iter().flatten().filter(|(name, _)| *name != node);
    let others = others.map(|(_, entry)| (text(entry, "reason"), text(entry, "message")));
    if writers == Writers::Some && before.is_none() && are_enough(others, problem) {
        return None;
    }
    let since =
        before.filter(|before| is_same(before)).and_then(|before| before.get("since")).filter(|at| at.is_string());
    let since = since.cloned().unwrap_or_else(|| format!("{now:.0}").into());
    let entry = json!({"reason": problem.reason, "message": problem.message, "since": since});
    let (path, value) = match (object.get("status").and_then(Value::as_object), nodes) {
        (_, Some(_)) => (path, entry),
        (Some(_), None) => ("/status/nodes".to_owned(), json!({node: entry})),
        (None, None) => ("/status".to_owned(), json!({"nodes": {node: entry}})),
    };
    Some(json!([version, add(&path, value)]))
}

impl Kubernetes {
    /// Takes what is wrong with a Configuration on this node; it is written in the background.
    pub(super) fn report_problem(&self, report: &ConfigurationReport) {
        let problem = report.status.problem();
        // Before the first result nothing is known: what an earlier agent of this node has reported stays.
        if problem.is_none() && matches!(report.status.discovery, DiscoveryStatus::Starting) {
            return;
        }
        self.problems.report(Subject::Configuration(report.key.clone()), Some(report.uid.clone()), problem);
    }

    /// Takes what is wrong with a DiscoveryHandler on this node. Remote handlers have no object.
    pub(super) fn report_handler_problem(&self, report: &HandlerReport) {
        if report.kind == HandlerKind::Component {
            let subject = Subject::Handler(Key::new("", &*report.name));
            self.problems.report(subject, None, handler_problem(report));
        }
    }

    /// Writes that this node misses the device of an Instance, or does not any more.
    pub(super) async fn write_online(&self, instance: &Instance) -> Result<(), ClusterError> {
        let problem = match instance.online {
            Online::True => None,
            Online::False => Some(NodeProblem::new("NotFound", "the last round of discovery did not see the device")),
            Online::Unknown => Some(NodeProblem::new(HANDLER_GONE, "no handler can tell whether the device is there")),
        };
        let (key, uid) = (&instance.key, &instance.uid);
        let change = |object: &Value| Ok(patch(object, &self.node, problem.as_ref(), Writers::All, Timestamp::now()));
        let written = self.requests.change_status::<akri_api::Instance, ClusterError>(key, uid, change).await?;
        if let Some(Ok(written)) = written.map(|object| typed(&object)) {
            self.instances.update(&written);
        }
        Ok(())
    }
}

/// Writes entries that are due, one after the other, for ever. A warning is an Event, too.
pub(super) async fn write_due(requests: Requests, node: String, events: EventRecorder, problems: ProblemReporter) {
    loop {
        let due = problems.next().await;
        let written = write(&requests, &node, &due).await;
        match &written {
            Ok(Some(_)) => record_incomplete(&events, &due),
            Ok(None) | Err(ClusterError::NotFound(_)) => {}
            Err(error) => warn!(object = %due.subject.key(), %error, "the problem of this node is not reported yet"),
        }
        problems.written(&due, written);
    }
}

async fn write(requests: &Requests, node: &str, due: &Due) -> Result<Option<DynamicObject>, ClusterError> {
    let problem = due.report.as_ref();
    let change = |object: &Value| Ok(patch(object, node, problem, Writers::Some, Timestamp::now()));
    match &due.subject {
        Subject::Configuration(key) => requests.change_status::<Configuration, _>(key, &due.uid, change).await,
        Subject::Handler(key) => requests.change_status::<DiscoveryHandler, _>(key, &due.uid, change).await,
    }
}

fn record_incomplete(events: &EventRecorder, due: &Due) {
    if let (Subject::Configuration(key), Some(problem)) = (&due.subject, &due.report)
        && matches!(&*problem.reason, INCOMPLETE | NOTHING_FOUND)
    {
        let (key, uid, message) = (key.clone(), due.uid.clone(), problem.message.clone());
        let event = ObjectEvent { kind: "Configuration", key, uid, reason: INCOMPLETE, message };
        events.record(event);
    }
}

fn text<'e>(entry: &'e Value, name: &str) -> &'e str {
    entry.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use akri_model::summary::Verdict;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_767_225_600).unwrap()
    }

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn object(status: Value) -> Value {
        json!({"metadata": {"resourceVersion": "7"}, "status": status})
    }

    /// The object after the node has written its problem; nothing if it writes nothing.
    fn after(mut object: Value, node: &str, problem: Option<&NodeProblem>) -> Option<Value> {
        let operations: json_patch::Patch =
            serde_json::from_value(patch(&object, node, problem, Writers::Some, now())?).unwrap();
        json_patch::patch(&mut object, &operations.0).unwrap();
        Some(object["status"].clone())
    }

    #[test] // rule 34
    fn entry_is_added_beside_those_of_other_nodes() {
        let problem = NodeProblem::new("NotFound", "m");
        let entry = json!({"reason": "NotFound", "message": "m", "since": NOW});
        let other = json!({"reason": "NoHandler"});
        for (status, expected) in [
            (Value::Null, json!({"nodes": {"a.b": entry}})),
            (json!({"instances": 1}), json!({"instances": 1, "nodes": {"a.b": entry}})),
            (json!({"nodes": null}), json!({"nodes": {"a.b": entry}})),
            (json!({"nodes": {}}), json!({"nodes": {"a.b": entry}})),
            (json!({"nodes": {"b": other}}), json!({"nodes": {"a.b": entry, "b": other}})),
        ] {
            assert_eq!(after(object(status.clone()), "a.b", Some(&problem)), Some(expected), "{status}");
        }
    }

    #[test] // rule 34
    fn entry_keeps_its_time_while_the_reason_is_the_same() {
        let before =
            || object(json!({"nodes": {"a": {"reason": "NotFound", "message": "m", "since": "2025-01-01T00:00:00Z"}}}));
        assert_eq!(after(before(), "a", Some(&NodeProblem::new("NotFound", "m"))), None, "nothing new");
        let since = |problem| after(before(), "a", Some(&problem)).unwrap()["nodes"]["a"]["since"].clone();
        assert_eq!(since(NodeProblem::new("NotFound", "other")), "2025-01-01T00:00:00Z");
        assert_eq!(since(NodeProblem::new("HandlerGone", "m")), NOW);
    }

    #[test] // rule 34
    fn entry_is_removed_alone() {
        let both = object(json!({"nodes": {"a": {"reason": "R"}, "b": {"reason": "R"}}}));
        assert_eq!(after(both, "a", None), Some(json!({"nodes": {"b": {"reason": "R"}}})));
        assert_eq!(after(object(json!({"nodes": {"b": {"reason": "R"}}})), "a", None), None);
        assert_eq!(after(object(Value::Null), "a", None), None);
    }

    #[test] // rule 61
    fn enough_nodes_report_a_problem() {
        let nodes = |count: usize, reason: &str| -> Value {
            let entry = |number| (format!("n{number}"), json!({"reason": reason}));
            object(json!({"nodes": (0..count).map(entry).collect::<BTreeMap<_, _>>()}))
        };
        let problem = NodeProblem::new("R", "m");
        assert!(after(nodes(2, "R"), "a", Some(&problem)).is_some());
        assert!(after(nodes(3, "R"), "a", Some(&problem)).is_none());
        assert!(after(nodes(19, "other"), "a", Some(&problem)).is_some());
        assert!(after(nodes(20, "other"), "a", Some(&problem)).is_none());
        assert!(after(nodes(20, "R"), "n3", Some(&problem)).is_some(), "its own entry follows");
        assert!(after(nodes(20, "R"), "n3", None).is_some());
        assert!(patch(&nodes(20, "R"), "a", Some(&problem), Writers::All, now()).is_some(), "of an Instance all do");
    }

    #[test] // rule 61
    fn handler_that_a_node_can_not_use_is_a_problem() {
        let condition =
            |kind, holds, reason: &str| Verdict::new(kind, if holds { Truth::True } else { Truth::False }, reason, "m");
        let report = |state, ready, accepted| HandlerReport {
            name: "udev".into(),
            handler: None,
            kind: HandlerKind::Component,
            digest: None,
            endpoint: None,
            state,
            last_result: None,
            devices: 0,
            conditions: vec![condition("Ready", ready, "FileMissing"), condition("Accepted", accepted, "Digest")],
        };
        for (state, ready, accepted, expected) in [
            (HandlerState::Active, true, true, None),
            (HandlerState::Loading, false, true, None),
            (HandlerState::Refused, false, false, Some(NodeProblem::new("FileMissing", "m"))),
            (HandlerState::Active, true, false, Some(NodeProblem::new(OUTDATED, "Digest: m"))),
        ] {
            assert_eq!(handler_problem(&report(state, ready, accepted)), expected);
        }
    }
}
