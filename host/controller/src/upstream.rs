//! Finalizers that upstream Akri's agents left: each put the name of its node on every Configuration and on its Instances, which
//! then could not be deleted without that agent (rule 65). Nothing of ours sets one.

use std::collections::BTreeSet;
use std::time::Duration;

use akri_brokers::{JOB_RECORD, JobRecord};
use akri_kube::json_patch::{remove, test};
use akri_kube::requests::{Kind, RequestResult};
use akri_model::names::Key;
use kube::ResourceExt as _;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::reconcile::{Again, Context, adding};

/// Pause between two removals from one object: an agent of upstream that still runs adds its finalizer again at once.
const PAUSE: Duration = Duration::from_mins(10);

/// Removes the finalizers of an object that are names of these nodes. They show that upstream Akri made it, so that the Job that `ran`
/// for it is recorded with that, unless one is. Returns the time until the next try, if they were removed not long ago.
pub(crate) async fn remove_finalizers<K: Kind>(
    context: &Context,
    key: &Key,
    uid: &str,
    nodes: BTreeSet<&str>,
    ran: Option<JobRecord>,
) -> RequestResult<Again> {
    let (requests, removed) = (&context.requests, &context.objects.removed_finalizers);
    if nodes.is_empty() {
        return Ok(None);
    }
    if let Some(left) = removed.left(&uid.to_owned(), Instant::now()) {
        warn!(uid, "a finalizer of upstream Akri is there again: an agent of it still runs; delete its DaemonSet");
        return Ok(Some(left));
    }
    let Some(object) = requests.get::<K>(key).await? else { return Ok(None) };
    let mut operations = removal_of_finalizers(object.finalizers(), &nodes);
    if !operations.is_empty() {
        operations.insert(0, test("/metadata/uid", uid));
        let ran = ran.filter(|_| !object.annotations().contains_key(JOB_RECORD));
        operations.extend(ran.iter().flat_map(|ran| adding(ran, &object)));
        requests.json_patch::<K>(key, Value::Array(operations)).await?;
        removed.begin([uid.to_owned()], PAUSE, Instant::now());
        info!(object = %key, ?nodes, "removed finalizers of upstream Akri's agents");
    }
    Ok(None)
}

/// Returns operations that test and remove finalizers, from the last one on, so that the others keep their places.
pub(crate) fn removal_of_finalizers(finalizers: &[String], nodes: &BTreeSet<&str>) -> Vec<Value> {
    let foreign = finalizers.iter().enumerate().rev().filter(|(_, name)| nodes.contains(name.as_str()));
    let removal = |(at, finalizer)| {
        let path = format!("/metadata/finalizers/{at}");
        [test(&path, finalizer), remove(&path)]
    };
    foreign.flat_map(removal).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test] // rule 65
    fn only_finalizers_of_nodes_are_removed() {
        let finalizers = ["node-a", "example.com/x", "node-b", "other"].map(str::to_owned);
        let mut object = json!({"metadata": {"uid": "u", "finalizers": finalizers}});
        let operations = removal_of_finalizers(&finalizers, &["node-a", "node-b"].into());
        let patch: json_patch::Patch = serde_json::from_value(Value::Array(operations)).unwrap();
        json_patch::patch(&mut object, &patch.0).unwrap();
        assert_eq!(object["metadata"]["finalizers"], json!(["example.com/x", "other"]));
    }
}
