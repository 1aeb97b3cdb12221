//! The cost of agents for the API server, in requests and not in times. Nodes without machines: the real owners and
//! publishers, on a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_cluster::kubernetes::Kubernetes;
use akri_cluster::{Cluster, CreateOutcome};
use akri_model::instance::{Instance, Online, Version};
use akri_model::instance_labels::{MANY_NODES_LABEL, is_node_label};
use akri_model::names::{HashInput, HashLength, Identity, Key};
use akri_model::node_report::report_delay;
use akri_model::slots::free_usage;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;
use tokio::time::sleep;

use crate::support::api_metrics::ApiMetrics;
use crate::support::brokers::pod_broker;
use crate::support::cluster::wait_for;
use crate::support::cluster_fixture::ClusterFixture;
use crate::support::fleet::{Fleet, FleetNode};
use crate::support::recorder::{Recorded, Recorder};

/// Time for what follows at once to be sent.
const AT_ONCE: Duration = Duration::from_millis(1500);

/// The nodes of the story. The controller has to know that they exist.
async fn add_node(cluster: &ClusterFixture, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    cluster.story.apply_one(object).await.unwrap();
}

async fn remove_nodes(cluster: &ClusterFixture, names: &[String]) {
    let api = Api::<Node>::all(cluster.story.client());
    for name in names {
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// Returns the writes since a request, but for the renewal of Leases.
fn writes(recorder: &Recorder, since: usize) -> Vec<Recorded> {
    let mut requests = recorder.since(since);
    requests.retain(|request| request.writes() && request.resource != "leases");
    requests
}

/// Returns the writes since a request, once there are so many and others could have come.
async fn writes_at_once(recorder: &Recorder, since: usize, count: usize) -> Vec<Recorded> {
    wait_for("the writes", async || writes(recorder, since).len(), |written| *written >= count).await;
    sleep(AT_ONCE).await;
    writes(recorder, since)
}

fn of_instances(recorder: &Recorder) -> u64 {
    recorder.events().get("instances").copied().unwrap_or_default()
}

#[tokio::test] // rule 77, rule 78
async fn requests_of_a_fleet_are_few() {
    let Some(cluster) = ClusterFixture::begin("fleet").await else { return };
    let fleet = Fleet::new(&cluster.story.kubeconfig()).await;
    let (shared, local) = (format!("{}-shared", cluster.name()), format!("{}-local", cluster.name()));
    cluster.echo(&shared, 2, &["one", "two"], json!({})).await;
    cluster.echo(&local, 2, &["three", "four"], json!({})).await;
    let names = ["a", "b", "c"].map(|node| format!("{}-{node}", cluster.name()));
    let mut nodes = Vec::new();
    for name in &names {
        add_node(&cluster, name).await;
        nodes.push(fleet.node(name, cluster.name()).await);
    }
    for node in &nodes {
        node.offers(4).await;
    }
    let all_nodes = |list: &[akri_api::Instance]| list.iter().map(|instance| instance.spec.nodes.len()).sum::<usize>();
    cluster.wait_for_instances("all devices", |list| list.len() == 8 && all_nodes(list) == 12).await;
    sleep(AT_ONCE).await;
    let recorder = &fleet.recorder;
    let start = recorder.since(0);
    for request in start.iter().filter(|request| request.verb == "list") {
        let is_its = |other: &&Recorded| (&other.actor, &other.resource) == (&request.actor, &request.resource);
        let all: Vec<&Recorded> = start.iter().filter(is_its).collect();
        let is_consistent = ["configurations", "discoveryhandlers", "nodes"].contains(&request.resource.as_str())
            || request.uri.contains("other-name");
        assert_eq!(request.uri.contains("resourceVersion=0"), !is_consistent, "{request:?} of {all:#?}");
    }
    for request in
        start.iter().filter(|request| matches!(request.verb, "list" | "watch") && request.resource == "instances")
    {
        assert!(request.uri.contains("labelSelector=node.akri.sh"), "{request:?}");
    }
    let events = async || writes(recorder, 0).iter().filter(|request| request.resource == "events").count();
    wait_for("an Event of each Instance", events, |count| *count >= 8).await;
    let (found, made): (Vec<_>, Vec<_>) =
        writes(recorder, 0).into_iter().partition(|request| request.resource == "events");
    assert_eq!(found.len(), 8, "an Event of each Instance, of the node that made it: {found:#?}");
    // One POST for a local device. For a shared one each node may try to be the first, and all but one join.
    assert!(made.len() <= 6 + 2 * (3 + 2), "{made:#?}");
    let read = start.iter().filter(|request| request.verb == "get" && request.resource == "instances").count();
    assert!(read <= 2 * 2, "the others read what there is: {read}");
    let joins = made.iter().filter(|request| request.verb == "patch" && request.resource == "instances").count();
    assert_eq!(joins, 0, "the controller joins them");

    let resource = &nodes[0].resources(&local)[0];
    let mark = recorder.count();
    nodes[0].claim(resource, 0).await;
    nodes[0].claim(resource, 1).await;
    sleep(AT_ONCE).await;
    assert_eq!(writes(recorder, mark), [], "claims on a local device are the journal's");
    let written = writes_at_once(recorder, mark, 1).await;
    assert_eq!(written.len(), 1, "both claims are published at once: {written:#?}");

    let resource = &nodes[0].resources(&shared)[0];
    let (mark, events) = (recorder.count(), of_instances(recorder));
    nodes[0].claim(resource, 0).await;
    wait_for("the events", async || of_instances(recorder) - events, |count| *count >= 3).await;
    let written = writes_at_once(recorder, mark, 1).await;
    assert_eq!((written.len(), of_instances(recorder) - events), (1, 3), "one write, one event a node: {written:#?}");

    let mark = recorder.count();
    nodes[0].stop().await;
    let stopped = writes(recorder, mark);
    assert_eq!(stopped, [], "everything was published before");
    let mark = recorder.count();
    fleet.start(&mut nodes[0]).await;
    nodes[0].offers(4).await;
    sleep(AT_ONCE).await;
    let restart = recorder.since(mark);
    let about = |verb: &str| restart.iter().filter(|r| r.verb == verb && r.resource == "instances").count();
    let started = ["list", "get", "create", "patch"].map(about);
    assert_eq!(started, [2, 0, 0, 0], "its own Instances are listed once, and those of many: {restart:#?}");

    invalid_edits(&cluster, &shared).await;
    for node in &mut nodes {
        node.stop().await;
    }
    for configuration in [&shared, &local] {
        cluster.configurations().delete(configuration, &DeleteParams::default()).await.unwrap();
    }
    remove_nodes(&cluster, &names).await;
}

/// Makes the handler find the devices of a Configuration, or not find them, on all nodes.
async fn show(cluster: &ClusterFixture, state: &str) {
    let metadata = json!({"name": "availability"});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"state": state}});
    cluster.story.apply_one(map).await.unwrap();
}

fn is_online(instance: &akri_api::Instance) -> Option<bool> {
    let condition = akri_api::condition::find(&instance.status.as_ref()?.conditions, "Online")?;
    Some(condition.status == "True")
}

#[tokio::test] // rule 23, rule 113, rule 114
async fn many_nodes_join_and_miss_a_device_by_few_writes() {
    let Some(cluster) = ClusterFixture::begin("joins").await else { return };
    show(&cluster, "ONLINE").await;
    let reference = json!({"name": "availability", "namespace": cluster.story.namespace(), "key": "state"});
    let handler = json!({
        "name": "debugEcho", "discoveryDetails": r#"{"descriptions": ["one"]}"#,
        "discoveryProperties": [{"name": "availability", "valueFrom": {"configMapKeyRef": reference}}],
    });
    let mut spec = json!({"discoveryHandler": handler, "capacity": 8, "offlineGracePeriod": "1h"});
    spec["brokerSpec"] = pod_broker(json!({}))["brokerSpec"].take();
    cluster.configure(cluster.name(), spec.clone()).await;
    let fleet = Fleet::new(&cluster.story.kubeconfig()).await;
    let names: Vec<String> = (0..8).map(|number| format!("{}-{number}", cluster.name())).collect();
    let mut nodes = Vec::new();
    for name in &names {
        add_node(&cluster, name).await;
        nodes.push(fleet.node(name, cluster.name()).await);
    }
    for node in &nodes {
        node.offers(1).await;
    }
    let made = cluster.wait_for_the_instance("all nodes", |instance| instance.spec.nodes.len() == 8).await;
    assert_eq!(made.labels().len(), 9, "each node watches it, and one list finds those of its Configuration");
    let recorder = &fleet.recorder;
    let patches = |since| writes(recorder, since).into_iter().filter(|request| request.verb == "patch");
    assert_eq!(patches(0).filter(|request| request.resource == "instances").count(), 0, "the controller joins them");
    let key = Key::new(cluster.story.namespace(), made.name_any());
    let resource = nodes[0].resources(cluster.name()).remove(0);
    let mut users: Vec<usize> = (0..8).collect();
    users.sort_by_key(|number| std::cmp::Reverse(report_delay(&names[*number], &key)));
    users.truncate(4);
    for (slot, user) in (0..).zip(&users) {
        nodes[*user].claim(&resource, slot).await;
    }

    show(&cluster, "OFFLINE").await;
    let away =
        cluster.wait_for_the_instance("that nobody sees it", |instance| is_online(instance) == Some(false)).await;
    let written = away.status.map(|status| status.nodes).unwrap_or_default();
    assert!((1..=3).contains(&written.len()), "{written:?} miss it, the others are counted");
    assert!(users.iter().all(|user| !written.contains_key(&names[*user])), "they wait for the others");

    // Their containers keep their slots, so that they stay. Brokers do not, also that of the fourth, which is only counted.
    let brokers = async || cluster.story.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
    wait_for("a broker for each node", brokers, |pods| pods.len() == 8).await;
    spec["offlineGracePeriod"] = json!("1s");
    cluster.configure(cluster.name(), spec).await;
    wait_for("no broker", brokers, Vec::is_empty).await;
    cluster.wait_for_the_instance("its users", |instance| instance.spec.nodes.len() == users.len()).await;
    let mark = recorder.count();
    show(&cluster, "ONLINE").await;
    let is_back = |instance: &akri_api::Instance| {
        let written = instance.status.as_ref().map(|status| status.nodes.len());
        is_online(instance) == Some(true) && written == Some(0)
    };
    cluster.wait_for_the_instance("the device again", is_back).await;
    let removed = patches(mark).filter(|request| request.resource == "instances/status").count();
    assert!(removed <= 9, "of three at most each tries thrice: {removed}");
    for node in &mut nodes {
        node.stop().await;
    }
    cluster.configurations().delete(cluster.name(), &DeleteParams::default()).await.unwrap();
    remove_nodes(&cluster, &names).await;
}

#[tokio::test] // rule 23, rule 77, rule 126
async fn camera_of_50_nodes_is_asked_by_two() {
    let Some(cluster) = ClusterFixture::begin("asked").await else { return };
    show(&cluster, "ONLINE").await;
    let reference = json!({"name": "availability", "namespace": cluster.story.namespace(), "key": "state"});
    let handler = json!({
        "name": "debugEcho", "discoveryDetails": r#"{"descriptions": ["one"]}"#,
        "discoveryProperties": [{"name": "availability", "valueFrom": {"configMapKeyRef": reference}}],
    });
    let selector = json!({"of-story": cluster.name()});
    let mut spec =
        json!({"discoveryHandler": handler, "capacity": 2, "discoverOn": {"count": 2, "nodeSelector": selector}});
    cluster.configure(cluster.name(), spec.clone()).await;
    let fleet = Fleet::new(&cluster.story.kubeconfig()).await;
    let names: Vec<String> = (0..50).map(|number| format!("{}-{number}", cluster.name())).collect();
    let mut nodes = Vec::new();
    for name in &names {
        let metadata = json!({"name": name, "labels": selector});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
        cluster.story.apply_one(node).await.unwrap();
        nodes.push(fleet.node(name, cluster.name()).await);
    }
    for node in &nodes {
        node.offers(1).await;
    }
    let all = |i: &akri_api::Instance| i.spec.nodes.len() == 50 && is_online(i) == Some(true);
    let made = cluster.wait_for_the_instance("all nodes", all).await;
    let size = serde_json::to_string(&made).unwrap().len();
    assert!(size < 8 << 10, "{size} bytes: {made:?}");
    let rounds = |nodes: &[FleetNode]| nodes.iter().map(FleetNode::rounds).sum::<usize>();
    assert_eq!(rounds(&nodes), 2, "a camera gets 1/25 of the requests");
    let recorder = &fleet.recorder;
    let read_by = |since: usize| {
        let of_values = recorder.since(since).into_iter().filter(|request| request.resource == "configmaps");
        of_values.map(|request| request.actor).collect::<BTreeSet<String>>()
    };
    let chosen = async || {
        let status = cluster.configurations().get(cluster.name()).await.unwrap().status.unwrap();
        status.discover_on.into_iter().collect::<BTreeSet<String>>()
    };
    let first = chosen().await;
    assert_eq!(read_by(0), first, "others read no credentials");
    let resource = nodes[0].resources(cluster.name()).remove(0);
    nodes.iter().find(|node| !first.contains(&node.name)).unwrap().claim(&resource, 0).await;

    let (mark, gone) = (recorder.count(), first.first().unwrap());
    nodes.iter_mut().find(|node| node.name == *gone).unwrap().stop().await;
    let lease: Api<Lease> = Api::default_namespaced(cluster.story.client());
    lease.delete(&format!("akri-agent-{gone}"), &DeleteParams::default()).await.unwrap();
    let second = wait_for("another node", chosen, |now| now.len() == 2 && !now.contains(gone)).await;
    wait_for("its round", async || rounds(&nodes), |rounds| *rounds == 3).await;
    assert_eq!(read_by(mark), second.difference(&first).cloned().collect(), "it reads credentials now");
    let kept = cluster.wait_for_the_instance("the Instance", |i| is_online(i) == Some(true)).await;
    assert_eq!(kept.uid(), made.uid());
    let others = recorder.since(mark).into_iter().filter(|request| request.resource == "instances/status");
    assert_eq!(others.count(), 0, "no node says that it misses the device");

    spec.as_object_mut().unwrap().remove("discoverOn");
    cluster.configure(cluster.name(), spec).await;
    wait_for("all nodes ask", async || rounds(&nodes), |rounds| *rounds >= 3 + 49).await;

    let is_relabelled = |instance: &akri_api::Instance| {
        let labels = instance.labels();
        labels.contains_key(MANY_NODES_LABEL) && !labels.keys().any(|label| is_node_label(label))
    };
    let made = cluster.wait_for_the_instance("one label in place of 50", is_relabelled).await;
    let size = serde_json::to_string(&made).unwrap().len();
    assert!(size < 5 << 10, "{size} bytes: {made:?}");
    let users: BTreeSet<&String> = made.spec.device_usage.values().filter(|user| !user.is_empty()).collect();
    let mut others = nodes.iter().filter(|node| node.name != *gone && !users.contains(&node.name));
    others.next().unwrap().claim(&resource, 1).await;
    for other in others {
        other.offers(0).await;
    }
    for node in nodes.iter_mut().filter(|node| node.name != *gone) {
        node.stop().await;
    }
    cluster.configurations().delete(cluster.name(), &DeleteParams::default()).await.unwrap();
    remove_nodes(&cluster, &names).await;
}

/// Edits that the API server can't refuse: the handler refuses the first on every node, and no agent can take over the second.
async fn invalid_edits(cluster: &ClusterFixture, configuration: &str) {
    for (details, grace, mistake) in [("nonsense: [", "0s", "discoveryDetails"), ("{}", "soon", "offlineGracePeriod")] {
        let handler = json!({"name": "debugEcho", "discoveryDetails": details});
        let before = ApiMetrics::read(&cluster.story.client()).await;
        cluster
            .configure(configuration, json!({"discoveryHandler": handler, "capacity": 2, "offlineGracePeriod": grace}))
            .await;
        let is_shown = async || {
            let found = cluster.configurations().get(configuration).await.unwrap();
            let conditions = found.status.map(|status| status.conditions).unwrap_or_default();
            conditions.iter().any(|condition| condition.status == "False" && condition.message.contains(mistake))
        };
        wait_for("the mistake in the status", is_shown, |message| *message).await;
        sleep(Duration::from_secs(4)).await; // nodes report within 3 s
        let after = ApiMetrics::read(&cluster.story.client()).await;
        let written = after.writes(&["configurations", "status"]) - before.writes(&["configurations", "status"]);
        // The first is that nobody has looked yet.
        assert!((1.0..=4.0).contains(&written), "{written} status writes for {mistake}");
    }
}

#[tokio::test] // rule 22
async fn device_of_many_nodes_keeps_its_longer_name() {
    let Some(cluster) = ClusterFixture::begin("longer").await else { return };
    let name = format!("{}-shared", cluster.name());
    cluster.echo(&name, 1, &["one"], json!({})).await;
    let uid = cluster.configurations().get(&name).await.unwrap().uid().unwrap();
    let names = ["a", "b"].map(|node| format!("{}-{node}", cluster.name()));
    for name in &names {
        add_node(&cluster, name).await;
    }
    // Another device had the short name when the first node found this one, and has gone since.
    let input = HashInput::new("one", true, "");
    let hash = input.hash(HashLength::Medium);
    let longer = format!("{name}-{hash}");
    let (recorder, state) = (Recorder::default(), tempfile::tempdir().unwrap());
    let first =
        Kubernetes::start(recorder.client(&cluster.story.kubeconfig(), &names[0]).await, &names[0], state.path());
    let wanted = Instance {
        identity: Some(input.identity()),
        ..instance(&cluster, Key::new(cluster.story.namespace(), &longer), &name, uid, 1)
    };
    assert!(matches!(first.create(&wanted).await.unwrap(), CreateOutcome::New(_)));
    let fleet = Fleet::new(&cluster.story.kubeconfig()).await;
    let mut second = fleet.node(&names[1], cluster.name()).await;
    let joined = |list: &[akri_api::Instance]| list.len() == 1 && list[0].spec.nodes.len() == 2;
    let found = cluster.wait_for_instances("one Instance of both nodes", joined).await;
    assert_eq!(found[0].name_any(), longer);
    second.stop().await;
    cluster.configurations().delete(&name, &DeleteParams::default()).await.unwrap();
    remove_nodes(&cluster, &names).await;
}

/// A shared Instance without nodes.
fn instance(
    cluster: &ClusterFixture,
    key: Key,
    configuration: &str,
    configuration_uid: String,
    capacity: u32,
) -> Instance {
    Instance {
        cdi_name: format!("akri.sh/{configuration}=abcdef"),
        uid: String::new(),
        version: Version::default(),
        identity: Some(Identity::from_text("0123456789abcdef0123456789abcdef")),
        configuration: configuration.to_owned(),
        configuration_uid,
        capacity,
        properties: BTreeMap::from([("ADDRESS".to_owned(), format!("rtsp://{}.example/stream", cluster.name()))]),
        shared: true,
        nodes: Vec::new(),
        device_usage: free_usage(&key.name, capacity),
        online: Online::True,
        key,
    }
}

#[tokio::test] // rule 77
async fn node_with_many_devices_lists_what_others_have_made() {
    let Some(cluster) = ClusterFixture::begin("listed").await else { return };
    let devices: Vec<String> = (0..100).map(|number| format!("device-{number}")).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    cluster.echo(cluster.name(), 1, &devices, json!({})).await;
    let fleet = Fleet::new(&cluster.story.kubeconfig()).await;
    let names = ["a", "b"].map(|node| format!("{}-{node}", cluster.name()));
    let mut nodes = Vec::new();
    let mut mark = 0;
    for name in &names {
        mark = fleet.recorder.count();
        add_node(&cluster, name).await;
        nodes.push(fleet.node(name, cluster.name()).await);
        nodes[nodes.len() - 1].offers(devices.len()).await;
    }
    let sent = fleet.recorder.since(mark);
    let about = |verb: &str, uri: &str| {
        let about = sent.iter().filter(|r| r.actor == names[1] && r.verb == verb && r.resource == "instances");
        about.filter(|request| request.uri.contains(uri)).count()
    };
    // No list of all Instances by etcd for each device, of which there may be thousands.
    let other_names = || sent.iter().filter(|r| r.actor == names[1] && r.uri.contains("other-name"));
    let by_etcd = other_names().filter(|request| !request.uri.contains("resourceVersion=")).count();
    let listed = about("list", "shared-") - other_names().count();
    let (created, read) = (about("create", ""), about("get", ""));
    assert!(by_etcd <= 4, "{by_etcd} consistent lists");
    // At most 32 are on their way when the sixteenth is refused, and 15 were before.
    assert!(created <= 15 + 32 && read <= created && listed <= 2, "{created} refused, {read} read, {listed} lists");

    // Of two nodes that find devices at once one makes most of them, and the other lists what it has made.
    cluster.configurations().delete(cluster.name(), &DeleteParams::default()).await.unwrap();
    for node in &nodes {
        node.offers(0).await;
    }
    let mark = fleet.recorder.count();
    let devices: Vec<String> = (0..300).map(|number| format!("more-{number}")).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    cluster.echo(cluster.name(), 1, &devices, json!({})).await;
    for node in &nodes {
        node.offers(devices.len()).await;
    }
    let sent = fleet.recorder.since(mark);
    let created = names.each_ref().map(|name| {
        sent.iter().filter(|r| r.actor == *name && r.verb == "create" && r.resource == "instances").count()
    });
    // Each makes about half of them until its sixteenth is refused, the one that goes on until that happens again.
    let refused = created.iter().sum::<usize>() - devices.len();
    assert!(refused <= 3 * (15 + 32), "{created:?}");
    for node in &mut nodes {
        node.stop().await;
    }
    cluster.configurations().delete(cluster.name(), &DeleteParams::default()).await.unwrap();
    remove_nodes(&cluster, &names).await;
}
