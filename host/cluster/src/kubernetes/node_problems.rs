//! Writes what is wrong on this node into the status of objects (rules 34 and 61): `status.nodes` has an entry for each node
//! that has a problem. The controller aggregates them into conditions.
//!
//! Entries are written by JSON Patch. With server-side apply the first node that had nothing to say would own the map as a
//! whole, and all others would be refused.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{MutexGuard, PoisonError};

use akri_api::Configuration;
use akri_api::document::pointer_token;
use akri_model::instance::{Instance, Online};
use akri_model::names::Key;
use akri_model::summary::{HANDLER_GONE, INCOMPLETE, NOTHING_FOUND};
use akri_model::text::cut;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Kubernetes, MANAGER, REQUEST, bounded, failed, late};
use crate::{ClusterError, ConfigurationReport, ObjectEvent};

/// Longest message of a problem, in bytes.
const MAX_MESSAGE: usize = 256;

/// Nodes that may report problems with one Configuration.
const MAX_NODES: usize = 20;

/// Nodes that may report the same reason for one Configuration: more of them add nothing.
const MAX_SAME: usize = 3;

/// Which nodes may write into the status of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writers {
    /// All: of an Instance, what each node sees counts.
    All,
    /// Some, who speak for the others.
    Some,
}

/// Tries to write an entry while others write, too.
const TRIES: usize = 10;

/// What is wrong with an object on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    reason: String,
    message: String,
}

/// The problem that the status of a Configuration of this UID was last made to show.
pub(super) type Reported = (String, Option<Problem>);

/// Returns the problem that a report comes to: that the Configuration is not ready, or that its discovery is incomplete.
fn problem(report: &ConfigurationReport) -> Option<Problem> {
    let failed = |kind: &str| {
        report.conditions.iter().find(|condition| condition.kind == kind && condition.holds == Some(false))
    };
    if let Some(ready) = failed("Ready") {
        return Some(of(&ready.reason, &ready.message));
    }
    failed("DiscoveryComplete").map(|incomplete| of(INCOMPLETE, &incomplete.message))
}

fn of(reason: &str, message: &str) -> Problem {
    Problem { reason: reason.to_owned(), message: cut(message, MAX_MESSAGE).to_owned() }
}

/// Returns the patch that makes an object show a problem of a node, or none; nothing if it does already, or if enough other
/// nodes show theirs. Of two writers one has to look again, so that the bounds hold.
fn patch(object: &Value, node: &str, problem: Option<&Problem>, writers: Writers, now: Timestamp) -> Option<Value> {
    let nodes = object.pointer("/status/nodes").and_then(Value::as_object);
    let before = nodes.and_then(|nodes| nodes.get(node));
    let path = format!("/status/nodes/{}", pointer_token(node));
    let version = json!({"op": "test", "path": "/metadata/resourceVersion", "value": object.pointer("/metadata/resourceVersion")});
    let Some(problem) = problem else {
        return before.map(|_| json!([version, {"op": "remove", "path": path}]));
    };
    let field = |entry: &Value, name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let is_same = |entry: &Value| field(entry, "reason") == problem.reason;
    if before.is_some_and(|before| is_same(before) && field(before, "message") == problem.message) {
        return None;
    }
    let others = || nodes.into_iter().flatten().filter(|(name, _)| *name != node).map(|(_, entry)| entry);
    let are_enough = || others().count() >= MAX_NODES || others().filter(|other| is_same(other)).count() >= MAX_SAME;
    if writers == Writers::Some && before.is_none() && are_enough() {
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
    Some(json!([version, {"op": "add", "path": path, "value": value}]))
}

impl Kubernetes {
    pub(super) fn reported(&self) -> MutexGuard<'_, BTreeMap<Key, Reported>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is wrong with a Configuration on this node, if that is something new. A warning is an Event, too.
    pub(super) async fn report_problem(&self, report: &ConfigurationReport) -> Result<(), ClusterError> {
        let (key, now) = (&report.key, (report.uid.clone(), problem(report)));
        if self.reported().get(key) == Some(&now) {
            return Ok(());
        }
        match self.write_problem::<Configuration>(key, &report.uid, now.1.as_ref(), Writers::Some).await {
            Ok(_) => {}
            Err(ClusterError::NotFound(_)) => return Ok(()), // the status of what is gone is of no use to anyone
            Err(error) => return Err(error),
        }
        if let Some(problem) = now.1.as_ref().filter(|problem| matches!(&*problem.reason, INCOMPLETE | NOTHING_FOUND)) {
            self.record_incomplete(report, problem);
        }
        self.reported().insert(key.clone(), now);
        Ok(())
    }

    fn record_incomplete(&self, report: &ConfigurationReport, problem: &Problem) {
        let (key, uid, message) = (report.key.clone(), report.uid.clone(), problem.message.clone());
        let event = ObjectEvent { kind: "Configuration", key, uid, reason: INCOMPLETE, message };
        let _ = self.events.try_send(event); // it is in the log, too
    }

    /// Writes that this node misses the device of an Instance, or does not any more.
    pub(super) async fn write_online(&self, instance: &Instance) -> Result<(), ClusterError> {
        let problem = match instance.online {
            Online::True => None,
            Online::False => Some(of("NotFound", "the last round of discovery did not see the device")),
            Online::Unknown => Some(of(HANDLER_GONE, "no handler can tell whether the device is there")),
        };
        let (key, uid) = (&instance.key, &instance.uid);
        let written = self.write_problem::<akri_api::Instance>(key, uid, problem.as_ref(), Writers::All).await?;
        if let Some(Ok(written)) = written.map(|object| super::object_watch::typed(&object)) {
            self.instances.update(&written);
        }
        Ok(())
    }

    /// Writes this node's problem with an object; returns the object if that changed it.
    async fn write_problem<K>(
        &self,
        key: &Key,
        uid: &str,
        problem: Option<&Problem>,
        writers: Writers,
    ) -> Result<Option<DynamicObject>, ClusterError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Debug,
    {
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        for _ in 0..TRIES {
            let object = bounded(key, api.get(&key.name)).await?;
            if object.metadata.uid.as_deref() != Some(uid) {
                return Err(ClusterError::NotFound(key.clone()));
            }
            let object = serde_json::to_value(object).map_err(|error| ClusterError::Refused(error.to_string()))?;
            let Some(operations) = patch(&object, &self.node, problem, writers, Timestamp::now()) else {
                return Ok(None);
            };
            let operations =
                serde_json::from_value(operations).map_err(|error| ClusterError::Refused(error.to_string()))?;
            let patch = Patch::Json::<()>(operations);
            match timeout(REQUEST, api.patch_status(&key.name, &params, &patch)).await.map_err(|_| late())? {
                Ok(object) => return Ok(Some(object)),
                Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => {} // others write, too
                Err(error) => return Err(failed(key, &error)),
            }
        }
        Err(ClusterError::Unavailable(format!("the status of {key} changes all the time")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_767_225_600).unwrap()
    }

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn object(status: Value) -> Value {
        json!({"metadata": {"resourceVersion": "7"}, "status": status})
    }

    /// The object after the node has written its problem; nothing if it writes nothing.
    fn after(mut object: Value, node: &str, problem: Option<&Problem>) -> Option<Value> {
        let operations: json_patch::Patch =
            serde_json::from_value(patch(&object, node, problem, Writers::Some, now())?).unwrap();
        json_patch::patch(&mut object, &operations.0).unwrap();
        Some(object["status"].clone())
    }

    #[test]
    fn entry_is_added_beside_those_of_other_nodes() {
        let problem = of("NotFound", "m");
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

    #[test]
    fn entry_keeps_its_time_while_the_reason_is_the_same() {
        let before =
            || object(json!({"nodes": {"a": {"reason": "NotFound", "message": "m", "since": "2025-01-01T00:00:00Z"}}}));
        assert_eq!(after(before(), "a", Some(&of("NotFound", "m"))), None, "nothing new");
        let since = |problem| after(before(), "a", Some(&problem)).unwrap()["nodes"]["a"]["since"].clone();
        assert_eq!(since(of("NotFound", "other")), "2025-01-01T00:00:00Z");
        assert_eq!(since(of("HandlerGone", "m")), NOW);
    }

    #[test]
    fn entry_is_removed_alone() {
        let both = object(json!({"nodes": {"a": {"reason": "R"}, "b": {"reason": "R"}}}));
        assert_eq!(after(both, "a", None), Some(json!({"nodes": {"b": {"reason": "R"}}})));
        assert_eq!(after(object(json!({"nodes": {"b": {"reason": "R"}}})), "a", None), None);
        assert_eq!(after(object(Value::Null), "a", None), None);
    }

    #[test]
    fn enough_nodes_report_a_problem() {
        let nodes = |count: usize, reason: &str| -> Value {
            let entry = |number| (format!("n{number}"), json!({"reason": reason}));
            object(json!({"nodes": (0..count).map(entry).collect::<BTreeMap<_, _>>()}))
        };
        let problem = of("R", "m");
        assert!(after(nodes(2, "R"), "a", Some(&problem)).is_some());
        assert!(after(nodes(3, "R"), "a", Some(&problem)).is_none());
        assert!(after(nodes(19, "other"), "a", Some(&problem)).is_some());
        assert!(after(nodes(20, "other"), "a", Some(&problem)).is_none());
        assert!(after(nodes(20, "R"), "n3", Some(&problem)).is_some(), "its own entry follows");
        assert!(after(nodes(20, "R"), "n3", None).is_some());
        assert!(patch(&nodes(20, "R"), "a", Some(&problem), Writers::All, now()).is_some(), "of an Instance all do");
    }

    #[test]
    fn warning_is_a_problem_of_its_own_reason() {
        let condition = |kind, holds, reason: &str| crate::ReportedCondition {
            kind,
            holds: Some(holds),
            reason: reason.to_owned(),
            message: "m".to_owned(),
        };
        let report = |conditions| ConfigurationReport {
            key: Key::new("default", "cam"),
            uid: "u".into(),
            generation: 1,
            instances: 0,
            conditions,
        };
        let incomplete = condition("DiscoveryComplete", false, "Unauthorized");
        assert_eq!(problem(&report(vec![condition("Ready", true, "Discovered")])), None);
        assert_eq!(problem(&report(vec![incomplete.clone()])), Some(of(INCOMPLETE, "m")));
        let failed = condition("Ready", false, "NoHandler");
        assert_eq!(problem(&report(vec![failed, incomplete])), Some(of("NoHandler", "m")));
    }
}
