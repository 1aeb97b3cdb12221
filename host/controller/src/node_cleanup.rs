//! Removes what nodes left that are lost for good (rule 36, rule 100): their agents can't. A node that is only not ready, and one
//! whose object was deleted while its agent runs, may still use its devices, so that nothing of it is removed.

use std::collections::BTreeSet;
use std::time::Duration;

use akri_api::document::pointer_token;
use akri_api::validate::is_dns_subdomain;
use akri_kube::agent_lease::running_on;
use akri_kube::json_patch::{add, remove, test};
use akri_kube::requests::{Kind, RequestResult, Requests};
use akri_kube::watch::{Change, typed};
use akri_model::agent_lease::{self, GOOD_FOR};
use akri_model::instance_labels::node_label;
use akri_model::names::{Key, Usage};
use akri_model::node_absence::{NodeDecision, NodeObject};
use akri_model::node_report::StaleReports;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;
use tokio::time::Instant;
use tracing::info;

use crate::reconcile::{Again, Context, earlier};
use crate::upstream::removal_of_finalizers;
use crate::views::{InstanceView, NOT_A_NODE, is_out_of_service};
use crate::work::Work;

/// The time for which the Lease of an agent whose node is gone stays after its last renewal: much longer than it says anything.
pub(crate) const UNUSED: Duration = Duration::from_hours(1);

/// The time that an Instance may be without nodes: it is created like that, and its agent joins it next. One whose
/// agent died in between would stay for ever.
const JOINING: Duration = Duration::from_mins(5);

/// The pause between two clean-ups of one object.
const BETWEEN_CLEANUPS: Duration = Duration::from_secs(60);

/// Looks at nodes for one object before it has to wait: anybody may have written thousands of names. Each is up to three requests.
const LOOKS: usize = 128;

/// The pause between so many looks. Thousands fit into the minute that may be between two looks at one node.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

/// The nodes that an object mentions and that are not known to serve.
#[derive(Debug, Default)]
pub(crate) struct AbsentNodes {
    /// Nodes that are lost for good.
    lost: BTreeSet<String>,
    /// Nodes that do not exist, and may still use devices.
    pub(crate) missing: BTreeSet<String>,
    /// The time until the next observation.
    pub(crate) again: Again,
}

/// Returns those of these nodes that are not known to serve. What the watch shows is enough to say that a node exists, never that it
/// does not.
pub(crate) async fn absent_nodes(context: &Context, names: &BTreeSet<String>) -> RequestResult<AbsentNodes> {
    let mut absent = AbsentNodes::default();
    // Only names of nodes may become part of a path: anybody may have written what an object says.
    let names = names.iter().map(String::as_str).filter(|name| is_dns_subdomain(name));
    let mut looks = 0..LOOKS;
    for (name, recent) in context.objects.unknown_nodes(names, Instant::now()) {
        let decision = match recent {
            Some(decision) => decision,
            None if looks.next().is_some() => observe(context, name).await?,
            None => NodeDecision::Keep { next_observation: Some(BETWEEN_LOOKS) },
        };
        match decision {
            NodeDecision::Lost => drop(absent.lost.insert(name.to_owned())),
            NodeDecision::Keep { next_observation: None } => {}
            NodeDecision::Keep { next_observation } => {
                absent.missing.insert(name.to_owned());
                absent.again = earlier(absent.again, next_observation);
            }
        }
    }
    Ok(absent)
}

async fn observe(context: &Context, node: &str) -> RequestResult<NodeDecision> {
    let object = read_node(context, node).await;
    let known = *object.as_ref().unwrap_or(&NodeObject::Unknown);
    let decision = context.objects.observe_node(node, known, Instant::now());
    object.map(|_| decision)
}

/// Reads a Node and, if it is missing, the Lease of its agent: the watch of Leases may have stalled, and an agent that runs would seem
/// to be gone.
async fn read_node(context: &Context, node: &str) -> RequestResult<NodeObject> {
    if let Some(found) = context.requests.get::<Node>(&Key::new("", node)).await? {
        let is_lost = typed::<Node>(&found).is_ok_and(|node| is_out_of_service(&node));
        return Ok(if is_lost { NodeObject::OutOfService } else { NodeObject::Exists });
    }
    for name in [agent_lease::name(node), agent_lease::former_name(node)] {
        let lease = context.requests.get::<Lease>(&Key::new(&*context.lease_namespace, name)).await?;
        let lease = lease.and_then(|lease| typed(&lease).ok());
        lease.into_iter().for_each(|lease| context.objects.take_leases(Change::Put(lease)));
    }
    Ok(NodeObject::Missing)
}

/// Deletes the Lease of an agent if its node does not exist and nobody has renewed it for so long: nodes of a cluster that grows and shrinks
/// have ever new names. It has no owner that could do that, because it has to outlive a Node object that is deleted by mistake.
pub(crate) async fn delete_unused_lease(context: &Context, key: &Key, after: Duration) -> RequestResult<Again> {
    let unused = context.objects.unused_lease(&key.name).filter(|(node, _)| is_dns_subdomain(node));
    let Some((node, unrenewed)) = unused else { return Ok(None) };
    if unrenewed < after {
        return Ok(Some(after - unrenewed));
    }
    let (requests, key) = (&context.requests, Key::new(&*context.lease_namespace, &*key.name));
    let Some(object) = requests.get::<Lease>(&key).await? else { return Ok(None) };
    let is_held = typed(&object).is_ok_and(|lease| running_on(&lease).is_some()); // its watch may have stalled
    if is_held || requests.get::<Node>(&Key::new("", &*node)).await?.is_some() {
        return Ok(Some(after));
    }
    info!(lease = %key, "deleted: its node is gone");
    delete_version::<Lease>(requests, &key, &object).await.map(|()| None)
}

/// Removes the entries, slots, labels, problems, and finalizers of upstream Akri in an object, of those of the mentioned nodes
/// that are lost. Returns whether there are any. An Instance without nodes and usage is deleted (rule 25). An object that was cleaned
/// rests, so that an agent that undoes the clean-up does so rarely.
pub(crate) async fn clean_up<K: Kind>(context: &Context, work: &Work, absent: &mut AbsentNodes) -> RequestResult<bool> {
    let (requests, lost, key) = (&context.requests, &absent.lost, work.key());
    if lost.is_empty() {
        return Ok(false);
    }
    if let Some(rest) = context.objects.cleaned.left(work, Instant::now()) {
        absent.again = earlier(absent.again, Some(rest));
        return Ok(false);
    }
    let Some(object) = requests.get::<K>(key).await? else { return Ok(true) };
    let (problems, rest) = (status_operations(&object, lost), object_operations(&object, lost));
    let (has_problems, has_rest) = (problems.len() > 1, rest.len() > 1);
    if has_problems {
        requests.patch_status::<K>(key, Value::Array(problems)).await?;
    }
    let left = if has_rest { Some(requests.json_patch::<K>(key, Value::Array(rest)).await?) } else { None };
    if has_problems || has_rest {
        context.objects.cleaned.begin([work.clone()], BETWEEN_CLEANUPS, Instant::now());
    }
    if let Some(left) = left {
        info!(object = %key, nodes = ?lost, "removed what nodes left that are lost");
        if InstanceView::read(left.clone()).is_some_and(|instance| instance.is_abandoned()) {
            delete_version::<K>(requests, key, &left).await?;
        }
    }
    Ok(true)
}

/// Removes the reports of nodes whose agents do not run from the status of an object, which the agents of these nodes can't.
/// Returns whether there are any.
pub(crate) async fn remove_stale_reports<K: Kind>(
    context: &Context,
    key: &Key,
    stale: &StaleReports,
) -> RequestResult<bool> {
    if stale.nodes.is_empty() {
        return Ok(false);
    }
    let Some(object) = context.requests.get::<K>(key).await? else { return Ok(true) };
    let left = status_operations(&object, &stale.nodes);
    if left.len() > 1 {
        context.requests.patch_status::<K>(key, Value::Array(left)).await?;
        let reports = stale.nodes.iter().map(|node| (key.clone(), node.clone()));
        context.objects.removed_reports.begin(reports, GOOD_FOR, Instant::now());
        info!(object = %key, nodes = ?stale.nodes, "removed what nodes report whose agents do not run");
    }
    Ok(true)
}

/// Deletes an Instance, unless an agent has changed meanwhile what that depends on.
pub(crate) async fn delete_if(
    requests: &Requests,
    key: &Key,
    why: &str,
    is_still_so: impl Fn(&InstanceView) -> bool,
) -> RequestResult<()> {
    let Some(object) = requests.get::<akri_api::Instance>(key).await? else { return Ok(()) };
    if InstanceView::read(object.clone()).is_some_and(|live| is_still_so(&live)) {
        info!(instance = %key, "{why}");
        delete_version::<akri_api::Instance>(requests, key, &object).await?;
    }
    Ok(())
}

/// Returns the time until an Instance without nodes is deleted; `None` if it is not abandoned.
pub(crate) fn abandoned_for(instance: &InstanceView) -> Option<Duration> {
    let age = Duration::from_secs(u64::try_from(Timestamp::now().as_second() - instance.created).unwrap_or_default());
    instance.is_abandoned().then(|| JOINING.saturating_sub(age))
}

/// Deletes this very version of an object, and nothing that somebody made of it meanwhile.
async fn delete_version<K: Kind>(requests: &Requests, key: &Key, object: &DynamicObject) -> RequestResult<()> {
    requests.delete::<K>(key, &object.uid().unwrap_or_default(), object.resource_version()).await.map(drop)
}

/// Returns a patch of the object itself, which tests what it removes.
fn object_operations(object: &DynamicObject, deleted: &BTreeSet<String>) -> Vec<Value> {
    let mut patch = vec![test("/metadata/uid", &object.metadata.uid)];
    let all = object.data.pointer("/spec/nodes").and_then(Value::as_array);
    let all: Vec<&str> = all.into_iter().flatten().filter_map(Value::as_str).collect();
    let left: Vec<&str> = all.iter().copied().filter(|node| !deleted.contains(*node)).collect();
    if left.len() < all.len() {
        patch.extend([test("/spec/nodes", all), add("/spec/nodes", left)]);
    }
    let is_theirs = |usage: &str| Usage::read(usage).node().is_some_and(|user| deleted.contains(user));
    let usage = object.data.pointer("/spec/deviceUsage").and_then(Value::as_object);
    let usages = usage.into_iter().flatten().filter_map(|(slot, usage)| Some((slot, usage.as_str()?)));
    for (slot, usage) in usages.filter(|(_, usage)| is_theirs(usage)) {
        let path = format!("/spec/deviceUsage/{}", pointer_token(slot));
        patch.extend([test(&path, usage), add(&path, "")]);
    }
    for label in deleted.iter().map(|node| node_label(node)).filter(|label| object.labels().contains_key(label)) {
        patch.push(remove(&format!("/metadata/labels/{}", pointer_token(&label))));
    }
    // Finalizers of upstream Akri's are names of nodes; here only those of an object that is being deleted count.
    let is_deleting = object.metadata.deletion_timestamp.is_some();
    let is_foreign = |name: &&str| is_deleting && deleted.contains(*name) && !NOT_A_NODE.contains(name);
    let foreign = object.finalizers().iter().map(String::as_str).filter(is_foreign).collect();
    patch.extend(removal_of_finalizers(object.finalizers(), &foreign));
    patch
}

/// Returns a patch of its status that removes the problems of these nodes, if they are still the same.
fn status_operations(object: &DynamicObject, deleted: &BTreeSet<String>) -> Vec<Value> {
    let removed = deleted.iter().filter_map(|node| {
        let path = format!("/status/nodes/{}", pointer_token(node));
        object.data.pointer(&path).map(|entry| [test(&path, entry), remove(&path)])
    });
    std::iter::once(test("/metadata/uid", &object.metadata.uid)).chain(removed.flatten()).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use akri_kube::events::EventRecorder;
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tokio::time::sleep;

    use super::*;
    use crate::metrics::Metrics;
    use crate::object_index::ObjectIndex;
    use crate::reconcile::Unhurried;
    use crate::views::NodeView;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    fn instance() -> Value {
        json!({
            "metadata": {
                "name": "cam-1", "uid": "u",
                "labels": {node_label("old"): "", "mine": "x"},
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

    fn view(value: Value) -> InstanceView {
        InstanceView::read(object(value)).unwrap()
    }

    /// A client of an API server that has this object under this path, and no other. It also returns the methods of requests about it.
    fn api_server(path: &'static str, object: Value) -> (Client, Arc<Mutex<Vec<http::Method>>>) {
        let requested = Arc::new(Mutex::new(Vec::new()));
        let methods = Arc::clone(&requested);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let missing = json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"});
            let is_it = request.uri().path() == path;
            methods.lock().unwrap().extend(is_it.then(|| request.method().clone()));
            let (code, value) = if is_it { (200, object.clone()) } else { (404, missing) };
            let response = http::Response::builder().status(code).body(Body::from(value.to_string().into_bytes()));
            async { Ok::<_, Infallible>(response.unwrap()) }
        });
        (Client::new(service, "akri-system"), requested)
    }

    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/akri-system/leases/akri-agent-node-a";

    fn lease(renewed: &str) -> Value {
        let metadata = json!({"name": "akri-agent-node-a", "uid": "u", "resourceVersion": "7"});
        json!({"metadata": metadata, "spec": {"holderIdentity": "node-a", "renewTime": renewed}})
    }

    fn context(client: Client) -> Context {
        Context {
            objects: ObjectIndex::default(),
            requests: Requests::new(client.clone(), "controller", Duration::from_secs(5)),
            events: EventRecorder::start(client, "controller", "one".to_owned(), "RunBroker"),
            metrics: Metrics::default(),
            unhurried: Unhurried::limiter(),
            lease_namespace: "akri-system".to_owned(),
        }
    }

    #[tokio::test] // rule 109
    async fn lease_whose_node_is_gone_is_deleted_after_a_time() {
        let (old, now) = ("2026-01-01T00:00:00.000000Z", format!("{:.6}", Timestamp::now()));
        for (live, left, expected) in [
            (old, None, &[http::Method::GET, http::Method::DELETE][..]),
            (&now, Some(Duration::from_millis(100)), &[http::Method::GET]), // its watch has stalled
        ] {
            let (client, requested) = api_server(LEASE, lease(live));
            let (context, key) = (context(client), Key::new("", "akri-agent-node-a"));
            let again = async |after| delete_unused_lease(&context, &key, after).await.unwrap();
            let (soon, pause) = (Duration::from_millis(100), Duration::from_millis(150));
            context.objects.take_leases(Change::Put(serde_json::from_value(lease(old)).unwrap()));
            assert!(again(UNUSED).await > Some(UNUSED - Duration::from_mins(1)));
            let node: Node = serde_json::from_value(json!({"metadata": {"name": "node-a"}})).unwrap();
            context.objects.take_nodes(Change::Put(NodeView::of(&node)));
            sleep(pause).await;
            assert_eq!((again(soon).await, requested.lock().unwrap().len()), (None, 0), "its node exists");
            context.objects.take_nodes(Change::Deleted(Box::new(node.metadata)));
            assert_eq!(context.objects.queue.next().await, Work::Lease(key.clone()));
            assert_eq!(again(soon).await, left);
            assert_eq!(*requested.lock().unwrap(), expected, "{live}");
        }
    }

    #[tokio::test] // rule 100
    async fn lease_of_a_missing_node_is_read_and_not_only_watched() {
        let (client, _) = api_server(LEASE, lease("2026-01-01T00:00:00.000000Z"));
        let context = context(client);
        let lease = || context.objects.lease_renewed("node-a");
        assert_eq!(lease(), None, "its watch has stalled");
        assert_eq!(read_node(&context, "node-a").await.unwrap(), NodeObject::Missing);
        assert!(lease().is_some());
    }

    /// The watch may be behind.
    #[tokio::test] // rule 25, rule 65
    async fn instance_that_is_used_meanwhile_is_not_deleted() {
        for (usage, expected) in [("", &[http::Method::GET, http::Method::DELETE][..]), ("new", &[http::Method::GET])] {
            let mut live = instance();
            live["spec"]["nodes"] = json!([]);
            live["spec"]["deviceUsage"] = json!({"cam-1-0": usage});
            let (client, requested) = api_server("/apis/akri.sh/v0/namespaces/default/instances/cam-1", live);
            let requests = Requests::new(client, "controller", Duration::from_secs(5));
            delete_if(&requests, &Key::new("default", "cam-1"), "", |live| live.is_abandoned()).await.unwrap();
            assert_eq!(*requested.lock().unwrap(), expected, "{usage}");
        }
    }

    #[test] // rule 103
    fn users_that_do_not_watch_an_instance_lack_its_label() {
        let mut used = instance();
        assert_eq!(view(used.clone()).unlabelled, [].into(), "all have joined");
        used["spec"]["nodes"] = json!([]);
        assert_eq!(view(used).unlabelled, ["new".to_owned()].into());
    }

    #[test] // rule 36
    fn all_that_a_node_left_is_removed_and_nothing_else() {
        let before = instance();
        assert_eq!(view(before.clone()).mentions(), ["new".to_owned(), "old".to_owned()].into());
        let deleted = BTreeSet::from(["old".to_owned()]);
        let after = patched(&before, object_operations(&object(before.clone()), &deleted));
        assert_eq!(after["spec"]["nodes"], json!(["new"]));
        assert_eq!(
            after["spec"]["deviceUsage"],
            json!({"cam-1-0": "", "cam-1-1": "", "cam-1-2": "new", "cam-1-3": ""})
        );
        assert_eq!(after["metadata"]["labels"], json!({"mine": "x"}));
        assert_eq!(after["metadata"]["finalizers"], before["metadata"]["finalizers"], "it is not being deleted");
        let after = patched(&before, status_operations(&object(before.clone()), &deleted));
        assert_eq!(after["status"]["nodes"], json!({"new": {"reason": "NotFound"}}));
        let mut changed = before.clone();
        changed["status"]["nodes"]["old"] = json!({"reason": "NoHandler"});
        let patch = Value::Array(status_operations(&object(before), &deleted));
        let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
        assert!(json_patch::patch(&mut changed, &patch.0).is_err(), "its agent has returned");
    }

    #[test] // rule 36
    fn finalizer_of_a_node_is_removed_from_a_deleted_object() {
        let mut before = instance();
        before["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        before["metadata"]["finalizers"] = json!(["old", "orphan", "example.com/other", "new"]);
        assert!(!view(before.clone()).mentions().contains("orphan"));
        let after = patched(&before, object_operations(&object(before.clone()), &["old".to_owned()].into()));
        assert_eq!(after["metadata"]["finalizers"], json!(["orphan", "example.com/other", "new"]));
    }

    #[test] // rule 36
    fn instance_is_abandoned_without_nodes_and_users() {
        let mut value = instance();
        value["spec"]["nodes"] = json!([]);
        assert!(!view(value.clone()).is_abandoned(), "slots are in use");
        value["spec"]["deviceUsage"] = json!({"cam-1-0": ""});
        assert!(view(value.clone()).is_abandoned());
        value["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(view(value.clone()).created, 1_767_225_600);
        let aged = |age: i64| {
            let created = Timestamp::from_second(Timestamp::now().as_second() - age).unwrap();
            let mut value = value.clone();
            value["metadata"]["creationTimestamp"] = json!(created.to_string());
            abandoned_for(&view(value)).unwrap().as_secs()
        };
        assert!(aged(10) >= 285 && aged(301) == 0, "its agent may be about to join it");
        value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(!view(value.clone()).is_abandoned());
        assert!(
            InstanceView::read(object(json!({"metadata": {"name": "cam"}, "spec": {}}))).is_none(),
            "a Configuration"
        );
    }
}
