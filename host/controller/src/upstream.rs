//! Finalizers that upstream Akri's agents left: each put the name of its node on every Configuration and on its Instances, which
//! then could not be deleted without that agent (rule 65). Nothing of ours sets one.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use akri_kube::json_patch::{remove, test};
use akri_kube::requests::{RequestError, Requests};
use akri_model::names::Key;
use k8s_openapi::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde_json::Value;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::rests::Rests;

/// Pause between two removals from one object: an agent of upstream that still runs adds its finalizer again at once.
const PAUSE: Duration = Duration::from_mins(10);

/// Removes finalizers, and remembers the UIDs of their objects.
#[derive(Default)]
pub(crate) struct UpstreamFinalizers {
    removed: Mutex<Rests<String>>,
}

impl UpstreamFinalizers {
    /// Removes the finalizers of an object that are names of these nodes.
    pub(crate) async fn remove<K>(
        &self,
        requests: &Requests,
        key: &Key,
        uid: &str,
        nodes: BTreeSet<&str>,
    ) -> Result<(), RequestError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        if nodes.is_empty() || !self.is_due(uid, Instant::now()) {
            return Ok(());
        }
        let Some(object) = requests.get::<K>(key).await? else { return Ok(()) };
        let mut operations = removal_of_finalizers(object.finalizers(), &nodes);
        if !operations.is_empty() {
            operations.insert(0, test("/metadata/uid", uid));
            requests.json_patch::<K>(key, Value::Array(operations)).await?;
            self.removed(uid, Instant::now());
            info!(object = %key, ?nodes, "removed finalizers of upstream Akri's agents");
        }
        Ok(())
    }

    /// Returns whether another removal is due.
    fn is_due(&self, uid: &str, now: Instant) -> bool {
        let is_due = self.removed.lock().unwrap_or_else(PoisonError::into_inner).left(&uid.to_owned(), now).is_none();
        if !is_due {
            warn!(uid, "a finalizer of upstream Akri is there again: an agent of it still runs; delete its DaemonSet");
        }
        is_due
    }

    fn removed(&self, uid: &str, now: Instant) {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner).begin([uid.to_owned()], PAUSE, now);
    }
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

    #[test] // rule 65
    fn removals_from_one_object_are_ten_minutes_apart() {
        let (upstream, now) = (UpstreamFinalizers::default(), Instant::now());
        let due = |uid: &str, after: u64| upstream.is_due(uid, now + Duration::from_secs(after));
        assert_eq!([due("u", 0), due("u", 1)], [true, true], "one that failed is tried again");
        upstream.removed("u", now);
        assert_eq!([due("u", 1), due("v", 1), due("u", 599), due("u", 601)], [false, true, false, true]);
    }
}
