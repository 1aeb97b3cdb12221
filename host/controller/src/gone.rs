//! Nodes that are gone for good (rule 36): what their agents can no longer take back is taken back here. A node is gone when
//! its Node object does not exist; one that is only not ready may still use its devices.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use akri_api::Instance;
use akri_api::validate::is_dns_subdomain;
use akri_model::names::{Usage, node_hash};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::core::{ApiResource, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tracing::{info, warn};

/// How long an Instance may be without nodes: it is made so, and its agent joins it next. One that lost its agent right then,
/// or between its last node's leave and its deletion, would stay for ever.
const JOINING: Duration = Duration::from_mins(5);

/// Finalizers of Kubernetes itself that a node could have as its name.
const NOT_A_NODE: [&str; 1] = ["orphan"];

/// What a node that is gone has left could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove what a node that is gone has left of {name}: {source}")]
pub(crate) struct GoneError {
    name: String,
    source: kube::Error,
}

/// The nodes of the cluster.
pub(crate) struct Nodes {
    api: Api<PartialObjectMeta<Node>>,
    known: Store<PartialObjectMeta<Node>>,
    /// Whether they have been listed: before, every one would have to be asked for.
    listed: Arc<AtomicBool>,
}

impl Nodes {
    /// The nodes, and a stream that says when some may have gone. It has to be polled for the nodes to be known.
    pub(crate) fn watch(client: &Client) -> (Self, impl Stream<Item = ()> + Send + 'static) {
        let api: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
        let (known, writer) = reflector::store();
        let events = watcher(api.clone(), Config::default()).default_backoff();
        let events = events.modify(|node| node.metadata.managed_fields = None).reflect(writer);
        let listed = Arc::new(AtomicBool::new(false));
        let nodes = Self { api, known, listed: Arc::clone(&listed) };
        let went = move |event: Result<Event<_>, watcher::Error>| match event {
            Ok(Event::InitDone) => {
                listed.store(true, Ordering::SeqCst);
                Some(()) // while there was no watch, too
            }
            Ok(event) => matches!(event, Event::Delete(_)).then_some(()),
            Err(error) => {
                warn!("cannot watch Nodes, those that are gone are not cleaned up after: {error}");
                None
            }
        };
        (nodes, events.filter_map(move |event| std::future::ready(went(event))))
    }

    /// Which of these do not exist. What the watch knows is enough to say that a node is there, never that it is gone.
    async fn gone(&self, names: BTreeSet<String>) -> kube::Result<BTreeSet<String>> {
        let mut gone = BTreeSet::new();
        if !self.listed.load(Ordering::SeqCst) {
            return Ok(gone);
        }
        // Only such names may become part of a path: what an object says, anybody may have written.
        for name in names.into_iter().filter(|name| is_dns_subdomain(name)) {
            let known = self.known.get(&ObjectRef::new(&name)).is_some();
            if !known && self.api.get_opt(&name).await?.is_none() {
                gone.insert(name);
            }
        }
        Ok(gone)
    }
}

/// Removes what nodes that are gone have left of an object: entries, slots, labels, troubles, and finalizers of upstream
/// Akri. An Instance of which nothing is left goes as a whole (rule 25).
pub(crate) async fn clean(
    client: &Client,
    nodes: &Nodes,
    object: &DynamicObject,
    resource: &ApiResource,
) -> Result<(), GoneError> {
    let failed = |source| GoneError { name: object.name_any(), source };
    let gone = nodes.gone(mentioned(object)).await.map_err(failed)?;
    let namespace = object.namespace().unwrap_or_default();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, resource);
    if !gone.is_empty() {
        remove(&api, object, &gone).await.map_err(failed)?;
        info!(object = object.name_any(), namespace, ?gone, "removed what nodes that are gone have left");
    } else if is_abandoned(object) && is_old(object, Timestamp::now()) {
        delete(&api, object).await.map_err(failed)?;
        info!(object = object.name_any(), namespace, "deleted: no node sees it and nobody uses it");
    }
    Ok(())
}

async fn remove(api: &Api<DynamicObject>, object: &DynamicObject, gone: &BTreeSet<String>) -> kube::Result<()> {
    let name = object.name_any();
    let troubles = of_status(object, gone);
    if troubles.len() > 1 {
        api.patch_status(&name, &PatchParams::default(), &json_patch(troubles)?).await?;
    }
    let rest = of_object(object, gone);
    if rest.len() > 1 {
        let left = api.patch(&name, &PatchParams::default(), &json_patch(rest)?).await?;
        if is_abandoned(&left) {
            delete(api, &left).await?;
        }
    }
    Ok(())
}

/// Deletes this very version of an object, and nothing that somebody made of it meanwhile.
async fn delete(api: &Api<DynamicObject>, object: &DynamicObject) -> kube::Result<()> {
    let (uid, resource_version) = (object.uid(), object.resource_version());
    let preconditions = Some(Preconditions { uid, resource_version });
    api.delete(&object.name_any(), &DeleteParams { preconditions, ..DeleteParams::default() }).await.map(drop)
}

fn json_patch(operations: Vec<Value>) -> kube::Result<Patch<()>> {
    serde_json::from_value(Value::Array(operations)).map(Patch::Json).map_err(kube::Error::SerdeError)
}

/// Whether this is an Instance that no node sees and nobody uses.
fn is_abandoned(object: &DynamicObject) -> bool {
    let instance = serde_json::to_value(object).and_then(serde_json::from_value::<Instance>);
    let idle = |instance: Instance| {
        instance.spec.nodes.is_empty() && instance.spec.device_usage.values().all(String::is_empty)
    };
    object.metadata.deletion_timestamp.is_none() && instance.is_ok_and(idle)
}

/// Whether it was made so long ago that the agent that made it would have joined it since.
fn is_old(object: &DynamicObject, now: Timestamp) -> bool {
    let made = object.metadata.creation_timestamp.as_ref();
    made.is_some_and(|made| now.duration_since(made.0) > SignedDuration::try_from(JOINING).unwrap_or_default())
}

/// All nodes that an object speaks of.
fn mentioned(object: &DynamicObject) -> BTreeSet<String> {
    let users = usages(object).filter_map(|(_, usage)| user(usage));
    let troubled =
        object.data.pointer("/status/nodes").and_then(Value::as_object).into_iter().flat_map(|map| map.keys());
    let nodes = nodes(object).chain(finalizers(object)).map(str::to_owned);
    nodes.chain(users).chain(troubled.cloned()).collect()
}

fn nodes(object: &DynamicObject) -> impl Iterator<Item = &str> {
    let nodes = object.data.pointer("/spec/nodes").and_then(Value::as_array);
    nodes.into_iter().flatten().filter_map(Value::as_str)
}

fn usages(object: &DynamicObject) -> impl Iterator<Item = (&String, &str)> {
    let usage = object.data.pointer("/spec/deviceUsage").and_then(Value::as_object);
    usage.into_iter().flatten().filter_map(|(slot, usage)| Some((slot, usage.as_str()?)))
}

fn user(usage: &str) -> Option<String> {
    usage.parse::<Usage>().ok()?.node().map(str::to_owned)
}

/// Those that keep an object from going: upstream Akri's have the name of a node.
fn finalizers(object: &DynamicObject) -> impl Iterator<Item = &str> {
    let deleted = object.metadata.deletion_timestamp.is_some();
    let all = object.finalizers().iter().map(String::as_str).filter(|finalizer| !NOT_A_NODE.contains(finalizer));
    all.filter(move |_| deleted)
}

/// A patch of the object itself: what it removes has to be what was seen.
fn of_object(object: &DynamicObject, gone: &BTreeSet<String>) -> Vec<Value> {
    let mut patch = vec![test("/metadata/uid", json!(object.metadata.uid))];
    let all: Vec<&str> = nodes(object).collect();
    let left: Vec<&str> = all.iter().copied().filter(|node| !gone.contains(*node)).collect();
    if left.len() < all.len() {
        patch.extend([test("/spec/nodes", json!(all)), replace("/spec/nodes", json!(left))]);
    }
    for (slot, usage) in usages(object).filter(|(_, usage)| user(usage).is_some_and(|user| gone.contains(&user))) {
        let path = format!("/spec/deviceUsage/{}", escaped(slot));
        patch.extend([test(&path, json!(usage)), replace(&path, json!(""))]);
    }
    let label = |node: &String| format!("node.akri.sh/{}", node_hash(node));
    for label in gone.iter().map(label).filter(|label| object.labels().contains_key(label)) {
        patch.push(remove_at(&format!("/metadata/labels/{}", escaped(&label))));
    }
    // From the last one on, so that the others keep their places.
    let foreign: BTreeSet<&str> = finalizers(object).filter(|finalizer| gone.contains(*finalizer)).collect();
    for (at, finalizer) in
        object.finalizers().iter().enumerate().rev().filter(|(_, one)| foreign.contains(one.as_str()))
    {
        let path = format!("/metadata/finalizers/{at}");
        patch.extend([test(&path, json!(finalizer)), remove_at(&path)]);
    }
    patch
}

/// A patch of its status: the troubles of nodes that are gone.
fn of_status(object: &DynamicObject, gone: &BTreeSet<String>) -> Vec<Value> {
    let troubled = |node: &&String| object.data.pointer(&format!("/status/nodes/{}", escaped(node))).is_some();
    let removed = gone.iter().filter(troubled).map(|node| remove_at(&format!("/status/nodes/{}", escaped(node))));
    std::iter::once(test("/metadata/uid", json!(object.metadata.uid))).chain(removed).collect()
}

fn test(path: &str, value: Value) -> Value {
    json!({"op": "test", "path": path, "value": value})
}

fn replace(path: &str, value: Value) -> Value {
    json!({"op": "replace", "path": path, "value": value})
}

fn remove_at(path: &str) -> Value {
    json!({"op": "remove", "path": path})
}

/// A key as part of a JSON pointer (RFC 6901).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    fn instance() -> Value {
        json!({
            "metadata": {
                "name": "cam-1", "uid": "u",
                "labels": {format!("node.akri.sh/{}", node_hash("old")): "", "mine": "x"},
                "finalizers": ["example.com/other", "old"],
            },
            "spec": {
                "configurationName": "cam", "cdiName": "akri.sh/cam=1", "capacity": 4,
                "nodes": ["old", "new"],
                "deviceUsage": {"cam-1-0": "old", "cam-1-1": "C:0:old", "cam-1-2": "new", "cam-1-3": ""},
            },
            "status": {"nodes": {"old": {"reason": "NotFound"}, "new": {"reason": "NotFound"}}},
        })
    }

    fn patched(value: &Value, operations: Vec<Value>) -> Value {
        let patch: json_patch::Patch = serde_json::from_value(Value::Array(operations)).unwrap();
        let mut value = value.clone();
        json_patch::patch(&mut value, &patch.0).unwrap();
        value
    }

    #[test]
    fn all_that_a_node_left_goes_and_nothing_else() {
        let before = instance();
        assert_eq!(mentioned(&object(before.clone())), ["new".to_owned(), "old".to_owned()].into());
        let gone = BTreeSet::from(["old".to_owned()]);
        let after = patched(&before, of_object(&object(before.clone()), &gone));
        assert_eq!(after["spec"]["nodes"], json!(["new"]));
        assert_eq!(
            after["spec"]["deviceUsage"],
            json!({"cam-1-0": "", "cam-1-1": "", "cam-1-2": "new", "cam-1-3": ""})
        );
        assert_eq!(after["metadata"]["labels"], json!({"mine": "x"}));
        assert_eq!(after["metadata"]["finalizers"], before["metadata"]["finalizers"], "it is not being deleted");
        let after = patched(&before, of_status(&object(before.clone()), &gone));
        assert_eq!(after["status"]["nodes"], json!({"new": {"reason": "NotFound"}}));
    }

    #[test]
    fn of_an_object_that_is_being_deleted_the_finalizer_goes() {
        let mut before = instance();
        before["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        before["metadata"]["finalizers"] = json!(["old", "orphan", "example.com/other", "new"]);
        assert!(!mentioned(&object(before.clone())).contains("orphan"));
        let after = patched(&before, of_object(&object(before.clone()), &["old".to_owned()].into()));
        assert_eq!(after["metadata"]["finalizers"], json!(["orphan", "example.com/other", "new"]));
    }

    #[test]
    fn an_instance_is_abandoned_when_no_node_sees_it_and_nobody_uses_it() {
        let mut value = instance();
        value["spec"]["nodes"] = json!([]);
        assert!(!is_abandoned(&object(value.clone())), "slots are in use");
        value["spec"]["deviceUsage"] = json!({"cam-1-0": ""});
        assert!(is_abandoned(&object(value.clone())));
        value["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        let at = |time: &str| is_old(&object(value.clone()), time.parse().unwrap());
        assert!(!at("2026-01-01T00:04:59Z") && at("2026-01-01T00:05:01Z"), "its agent may be about to join it");
        value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(!is_abandoned(&object(value)));
        assert!(!is_abandoned(&object(json!({"metadata": {"name": "cam"}, "spec": {}}))), "a Configuration");
    }
}
