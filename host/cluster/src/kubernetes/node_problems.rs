//! Writes what is wrong on this node into the status of objects (rule 34, rule 61): `status.nodes` has an entry for each node
//! that has a problem. The controller aggregates them into conditions.
//!
//! Entries are written by JSON Patch. With server-side apply the first node that had nothing to say would own the map as a
//! whole, and all others would be refused.

use akri_api::document::pointer_token;
use akri_api::{Configuration, DiscoveryHandler, HandlerState};
use akri_kube::json_patch::{add, remove, test};
use akri_kube::requests::Kind;
use akri_kube::watch::version_of;
use akri_model::configuration_status::DiscoveryStatus;
use akri_model::instance::Instance;
use akri_model::names::Key;
use akri_model::node_report::{Step, step};
use akri_model::summary::{
    INCOMPLETE, NOT_SEEN, NOTHING_FOUND, NodeProblem, OUTDATED, Truth, Unknown, online_condition,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::progress::{ReportStep, shown_problems};
use super::sharing::LOOK_AGAIN;
use super::{Kubernetes, instance_of};
use crate::{ClusterError, ClusterResult, ConfigurationReport, HandlerReport, ObjectEvent, WriteOutcome};

/// The result of reporting.
struct WrittenReport {
    outcome: WriteOutcome,
    /// The version of the object that says what there is to report, if there is one.
    shown_in: Option<u64>,
    is_written: bool,
}

/// Returns the problem that a report about a handler comes to: that the node can't use it, or that it uses an older component
/// than the object wants.
fn handler_problem(report: &HandlerReport) -> Option<NodeProblem> {
    let failed = |kind: &str| {
        report.conditions.iter().find(|condition| condition.kind == kind && condition.truth == Truth::False)
    };
    match (failed("Ready"), failed("Accepted")) {
        (None, None) => None,
        (Some(ready), _) => Some(NodeProblem::new(&ready.reason, &ready.message)),
        (None, Some(refused)) => Some(NodeProblem::new(OUTDATED, &format!("{}: {}", refused.reason, refused.message))),
    }
}

/// Returns the patch that makes an object show a problem of a node, or none; nothing if it does already, or if enough other
/// nodes that count show theirs. Of two writers one has to read again, so that the bounds hold.
fn patch(
    object: &Value,
    counts: impl Fn(&str) -> bool,
    node: &str,
    problem: Option<&NodeProblem>,
    now: Timestamp,
) -> Option<Value> {
    let shown = shown_problems(object);
    let path = format!("/status/nodes/{}", pointer_token(node));
    let version = test("/metadata/resourceVersion", object.pointer("/metadata/resourceVersion"));
    let problem = match step(&shown, counts, node, problem) {
        Step::Rest => return None,
        Step::Remove => return Some(json!([version, remove(&path)])),
        Step::Change | Step::Add => problem?,
    };
    let nodes = object.pointer("/status/nodes").and_then(Value::as_object);
    let before = shown.get(node).filter(|before| before.reason == problem.reason).and_then(|_| nodes?.get(node));
    let since = before.and_then(|before| before.get("since")).filter(|at| at.is_string());
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
    /// Reports the problem of this node with a Configuration, or that there is none.
    pub(super) async fn report_configuration(&self, report: &ConfigurationReport) -> ClusterResult<WriteOutcome> {
        let ConfigurationReport { key, uid, generation, status } = report;
        // Before the first result nothing is known: what was reported before, also by an earlier agent of this node, stays.
        let unknown = status.unknown();
        if unknown == Some(Unknown::Pending) && !status.node_missing {
            return Ok(WriteOutcome::Complete);
        }
        let problem = status.problem().map(|problem| NodeProblem::new(&problem.reason, &problem.message));
        let report = self.write_report::<Configuration>(key, uid, problem.as_ref()).await?;
        if let Some(problem) = problem.filter(|_| report.is_written)
            && matches!(&*problem.reason, INCOMPLETE | NOTHING_FOUND)
        {
            self.events.record(ObjectEvent::new("Configuration", key, uid, INCOMPLETE, problem.message));
        }
        let has_looked = unknown.is_none() && status.discovery != DiscoveryStatus::LeftToOthers;
        if let Some(version) = report.shown_in.filter(|_| has_looked) {
            self.progress.look_ended(key, uid, *generation, version);
        }
        Ok(report.outcome)
    }

    /// Reports the problem of this node with a DiscoveryHandler, or that there is none. While its component is being loaded, what was
    /// reported before stays.
    pub(super) async fn report_component(&self, report: &HandlerReport) -> ClusterResult<WriteOutcome> {
        let Some((uid, generation)) =
            report.looked_at.as_ref().filter(|_| report.status.state != HandlerState::Loading)
        else {
            return Ok(WriteOutcome::Complete);
        };
        let (key, problem) = (Key::new("", &*report.name), handler_problem(report));
        let report = self.write_report::<DiscoveryHandler>(&key, uid, problem.as_ref()).await?;
        if let Some(version) = report.shown_in {
            self.progress.look_ended(&key, uid, *generation, version);
        }
        Ok(report.outcome)
    }

    /// Brings the entry of this node in the status of an object to what it should be. The watch may be behind: if an attempt
    /// changes nothing, the next one follows when it shows more.
    async fn write_report<K: Kind>(
        &self,
        key: &Key,
        uid: &str,
        problem: Option<&NodeProblem>,
    ) -> ClusterResult<WrittenReport> {
        let outcome = |outcome, shown_in, is_written| Ok(WrittenReport { outcome, shown_in, is_written });
        match self.progress.next_step(key, uid, problem, tokio::time::Instant::now()) {
            ReportStep::Unknown => return outcome(WriteOutcome::Complete, None, false),
            ReportStep::Rest(version) => return outcome(WriteOutcome::Complete, Some(version), false),
            ReportStep::Wait(delay) => return outcome(WriteOutcome::RetryAfter(delay), None, false),
            ReportStep::Write => {}
        }
        let mut read = None;
        let change = |object: &Value| {
            let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
            read = version.and_then(|version| version.parse().ok());
            Ok(patch(object, |_| true, &self.node, problem, Timestamp::now()))
        };
        match self.requests.change_status::<K, ClusterError>(key, uid, change).await {
            Ok(Some(object)) => {
                self.progress.written(&object);
                outcome(WriteOutcome::Complete, Some(version_of(&object.metadata)), true)
            }
            Ok(None) => outcome(WriteOutcome::Complete, read, false),
            Err(ClusterError::NotFound(_)) => outcome(WriteOutcome::Complete, None, false),
            Err(error) => Err(error),
        }
    }

    /// Publishes that this node misses the device of an Instance, or does not any more: in the Instance, or in its Lease if enough other
    /// nodes have written so and its Lease has room (rule 114), which it checks now and then.
    pub(super) async fn publish_online(
        &self,
        published: &Instance,
        instance: &Instance,
    ) -> ClusterResult<WriteOutcome> {
        let (key, uid) = (&instance.key, &instance.uid);
        let now = tokio::time::Instant::now();
        let delay = self.sharing.set_online(&self.node, instance, published.nodes.len(), now);
        let state = online_condition(instance.online, NOT_SEEN);
        let problem = (state.truth != Truth::True).then(|| NodeProblem::new(&state.reason, &state.message));
        let is_written = published.online == instance.online;
        let is_full = self.sharing.is_full(key);
        let counts = |other: &str| !is_full && published.nodes.iter().any(|node| node == other);
        let shown = || self.instances.seen(key, |seen| seen.problems.clone()).unwrap_or_default();
        let step = match is_written {
            true => Step::Rest,
            false => step(&shown(), counts, &self.node, problem.as_ref()),
        };
        let is_counted = !is_written && step == Step::Rest;
        self.sharing.set_counted(key, is_counted);
        match step {
            Step::Rest if is_counted => return Ok(WriteOutcome::LeftToOtherNode),
            Step::Rest => return Ok(WriteOutcome::Complete),
            Step::Add if !delay.is_zero() => return Ok(WriteOutcome::RetryAfter(delay)),
            Step::Add | Step::Remove | Step::Change => {}
        }
        let change = |object: &Value| Ok(patch(object, counts, &self.node, problem.as_ref(), Timestamp::now()));
        match self.requests.change_status::<akri_api::Instance, ClusterError>(key, uid, change).await? {
            Some(written) => drop(self.instances.update(&instance_of(&written)?)),
            None => return Ok(WriteOutcome::RetryAfter(LOOK_AGAIN)), // the watch is behind: others have written it
        }
        if step == Step::Remove {
            self.sharing.is_back(key, tokio::time::Instant::now());
        }
        Ok(WriteOutcome::Complete)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use akri_api::DiscoveryHandlerStatus;
    use akri_model::summary::ConditionState;

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
            serde_json::from_value(patch(&object, |_| true, node, problem, now())?).unwrap();
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
    }

    #[test] // rule 61
    fn handler_that_a_node_can_not_use_is_a_problem() {
        let condition = |kind, holds, reason: &str| {
            ConditionState::new(kind, if holds { Truth::True } else { Truth::False }, reason, "m")
        };
        let report = |ready, accepted| HandlerReport {
            name: "udev".into(),
            looked_at: None,
            status: DiscoveryHandlerStatus::default(),
            conditions: vec![condition("Ready", ready, "FileMissing"), condition("Accepted", accepted, "Digest")],
        };
        for (ready, accepted, expected) in [
            (true, true, None),
            (false, false, Some(NodeProblem::new("FileMissing", "m"))),
            (true, false, Some(NodeProblem::new(OUTDATED, "Digest: m"))),
        ] {
            assert_eq!(handler_problem(&report(ready, accepted)), expected);
        }
    }
}
