//! Instances on a real API server: who makes, names, owns and deletes them.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use akri_api::{Instance, condition};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;

use crate::health::get;
use crate::support::brokers::take_out_of_service;
use crate::support::cluster_fixture::{ClusterFixture, Member};
use crate::support::node::{is_online, resource_of, usage, wait_for};
use crate::support::remote::{Answer, Handler};

fn nodes(instance: &Instance) -> Vec<&str> {
    let mut nodes: Vec<&str> = instance.spec.nodes.iter().map(String::as_str).collect();
    nodes.sort_unstable();
    nodes
}

/// Waits until an agent has a line in its metrics.
async fn wait_for_line(address: SocketAddr, line: &str) {
    let has_line = |(_, body): &(String, String)| body.lines().any(|one| one == line);
    wait_for(line, || get(address, "/metrics"), has_line).await;
}

fn managers(instance: &Instance) -> BTreeSet<String> {
    let name = |entry: &ManagedFieldsEntry| entry.manager.clone().unwrap_or_default();
    instance.managed_fields().iter().map(name).collect()
}

#[tokio::test] // rule 23, rule 25
async fn instance_is_deleted_by_its_last_node() {
    let Some(cluster) = ClusterFixture::begin("shared").await else { return };
    cluster.echo(cluster.name(), 2, &["one"], json!({"brokerProperties": {"COLOUR": "black"}})).await;
    let (a, mut b) = (cluster.add("node-a"), cluster.add("node-b"));
    let made = cluster.wait_for_the_instance("both nodes", |i| nodes(i) == ["node-a", "node-b"] && is_online(i)).await;
    let name = made.name_any();
    assert_eq!(made.spec.broker_properties["COLOUR"], "black");
    assert_eq!(usage(&made), [(&*format!("{name}-0"), ""), (&*format!("{name}-1"), "")]);
    let owner = &made.owner_references()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.controller, owner.block_owner_deletion),
        ("Configuration", Some(true), Some(false))
    );
    assert!(made.annotations().contains_key("akri.sh/identity") && made.finalizers().is_empty());
    assert!(managers(&made).len() <= 5, "{:?}", managers(&made));
    let resource = resource_of(&made);
    a.offers(&resource, 2).await;
    b.offers(&resource, 2).await;

    cluster.configurations()
        .patch(cluster.name(), &PatchParams::apply("story").force(), &Patch::Apply(json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration",
            "spec": {"discoveryHandler": {"name": "debugEcho", "discoveryDetails": "descriptions: []"}, "offlineGracePeriod": "0s"},
        })))
        .await
        .unwrap();
    b.agent.take().unwrap().stop();
    cluster
        .wait_for_instances("node-b alone, which does not run", |list| list.len() == 1 && nodes(&list[0]) == ["node-b"])
        .await;
    b.start();
    cluster.wait_for_instances("no Instance", |list| list.is_empty()).await;
}

#[tokio::test] // rule 27
async fn deleted_instance_is_recreated_with_its_claims() {
    let Some(cluster) = ClusterFixture::begin("remade").await else { return };
    cluster.echo(cluster.name(), 2, &["one"], json!({})).await;
    let a = cluster.add("node-a");
    let made = cluster.wait_for_the_instance("the device", is_online).await;
    let resource = resource_of(&made);
    a.offers(&resource, 2).await;
    a.kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    cluster.instances().delete(&made.name_any(), &DeleteParams::default()).await.unwrap();
    let again = |i: &Instance| i.uid() != made.uid() && usage(i).iter().any(|(_, usage)| *usage == "node-a");
    cluster.wait_for_the_instance("another one with the claim", again).await;
    a.kubelet.admit("next", "container", &resource, 1).await.unwrap();
    let both = |i: &Instance| usage(i).iter().all(|(_, usage)| *usage == "node-a");
    cluster.wait_for_the_instance("both claims", both).await;
}

#[tokio::test] // rule 24
async fn spec_changes_reach_all_nodes_while_slots_are_in_use() {
    let Some(cluster) = ClusterFixture::begin("edited").await else { return };
    cluster.echo(cluster.name(), 2, &["one"], json!({})).await;
    let (a, b) = (cluster.add("node-a"), cluster.add("node-b"));
    let made = cluster.wait_for_the_instance("both nodes", |i| nodes(i) == ["node-a", "node-b"]).await;
    let resource = resource_of(&made);
    a.offers(&resource, 2).await;
    b.offers(&resource, 2).await;
    let admitted = b.kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    a.offers(&resource, 1).await;

    cluster.echo(cluster.name(), 3, &["one"], json!({"brokerProperties": {"COLOUR": "red"}})).await;
    let grown =
        |i: &Instance| i.spec.capacity == 3 && i.spec.broker_properties.get("COLOUR").is_some_and(|c| c == "red");
    let grown = cluster.wait_for_the_instance("three slots", |i| grown(i) && i.spec.device_usage.len() == 3).await;
    a.offers(&resource, 2).await;
    b.offers(&resource, 3).await;
    let next = a.kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    assert_eq!(next.response.envs["COLOUR"], "red");

    cluster.echo(cluster.name(), 1, &["one"], json!({})).await;
    let shrunk =
        |i: &Instance| i.spec.capacity == 1 && i.spec.device_usage.values().filter(|u| !u.is_empty()).count() == 2;
    let shrunk = cluster.wait_for_the_instance("only slots in use above the capacity", shrunk).await;
    assert_eq!((shrunk.uid(), shrunk.uid()), (made.uid(), grown.uid()));
    assert!(shrunk.spec.device_usage.contains_key(&admitted.ids[0]));
}

#[tokio::test] // rule 24, rule 26
async fn configuration_is_replaced_and_edited_while_a_node_is_down() {
    let Some(cluster) = ClusterFixture::begin("deleted").await else { return };
    cluster.echo(cluster.name(), 1, &["one"], json!({})).await;
    let (mut a, mut b) = (cluster.add("node-a"), cluster.add("node-b"));
    let made = cluster.wait_for_the_instance("both nodes", |i| nodes(i) == ["node-a", "node-b"]).await;
    let resource = resource_of(&made);
    b.offers(&resource, 1).await;
    b.kill();
    cluster.delete(cluster.name()).await;
    a.offers(&resource, 0).await;
    cluster.echo(cluster.name(), 1, &["one"], json!({})).await;
    let again = cluster.wait_for_the_instance("another Instance", |i| nodes(i) == ["node-a"]).await;
    assert_ne!(again.uid(), made.uid());
    b.start();
    cluster.wait_for_the_instance("both nodes", |i| i.uid() == again.uid() && nodes(i) == ["node-a", "node-b"]).await;

    // The first node's agent goes without a word, and its Lease ends.
    let resource = resource_of(&again);
    b.offers(&resource, 1).await;
    let of_configuration = format!("akri.sh/{}", cluster.name());
    b.kubelet.wait_for("its resource", |view| view.resource(&of_configuration).connected).await;
    a.kill();
    cluster.echo(cluster.name(), 3, &["one"], json!({"resources": "instance"})).await;
    b.kubelet.wait_for("the edit", |view| !view.resource(&of_configuration).connected).await;
    assert_eq!(cluster.list().await[0].spec.capacity, 1, "the other node leaves it to the first");
    cluster.end_lease("node-a").await;
    let grown = cluster.wait_for_the_instance("three slots", |i| i.spec.device_usage.len() == 3).await;
    assert_eq!((grown.spec.capacity, grown.uid()), (3, again.uid()));
    b.offers(&resource, 3).await;
}

#[tokio::test] // rule 36, rule 100
async fn removed_node_leaves_nothing_behind() {
    let Some(cluster) = ClusterFixture::begin("departed").await else { return };
    cluster.story.apply_one(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-c"}})).await.unwrap();
    cluster.echo(cluster.name(), 3, &["shared"], json!({})).await;
    let own = format!("{}-own", cluster.name());
    cluster.configure(&own, json!({"discoveryHandler": {"name": "cam", "discoveryDetails": ""}})).await;
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let flags = vec!["--listen", address.to_string().leak()].leak();
    let (a, b) = (cluster.add("node-a"), cluster.add("node-b"));
    let mut c = cluster.add_with("node-c", cluster.story.kubeconfig(), flags);
    let cam = Handler::start(&c.node, "cam", "cam", &["of the node"]);
    cam.register(&c.node).await.unwrap();
    let both = |all: &[Instance]| all.len() == 2 && all.iter().any(|i| nodes(i) == ["node-a", "node-b", "node-c"]);
    let made = cluster.wait_for_instances("both devices", both).await;
    let (shared, alone): (Vec<_>, Vec<_>) = made.iter().partition(|instance| instance.spec.shared);
    for instance in [shared[0], alone[0]] {
        c.offers(&resource_of(instance), usage(instance).len()).await;
        c.kubelet.admit(&instance.name_any(), "container", &resource_of(instance), 1).await.unwrap();
    }
    a.offers(&resource_of(shared[0]), 2).await;
    let used = |i: &Instance| usage(i).iter().any(|(_, user)| *user == "node-c");
    cluster.wait_for_instances("both claims", |all| all.iter().all(used)).await;

    // A Node that is deleted by mistake takes nothing from its containers, nor from its agent.
    let machines: Api<Node> = Api::all(cluster.story.client());
    machines.delete("node-c", &DeleteParams::default()).await.unwrap();
    let is_noted = |i: &Instance| {
        i.status.as_ref().is_some_and(|status| condition::find(&status.conditions, "UsageKnown").is_some())
    };
    let missing = |all: &[Instance]| both(all) && all.iter().all(used) && all.iter().all(is_noted);
    let versions = |all: &[Instance]| all.iter().map(kube::ResourceExt::resource_version).collect::<BTreeSet<_>>();
    let before = versions(&cluster.wait_for_instances("both claims of a missing Node", missing).await);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(versions(&cluster.list().await), before, "agent and controller do not take turns");
    let missing_node = cluster.wait_for_condition(cluster.name(), "Ready", "False", "NodeMissing").await;
    assert!(
        missing_node.message.starts_with("node-c: the Node object of this node is missing"),
        "{}",
        missing_node.message
    );
    wait_for_line(address, "akri_node_missing 1").await;
    cam.sees(&[]).await;
    cluster.story.apply_one(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-c"}})).await.unwrap();
    let again = |all: &[Instance]| both(all) && all.iter().all(used) && !all.iter().any(is_noted);
    cluster.wait_for_instances("the Node again", again).await;
    cluster.wait_for_instances("what went meanwhile", |all| !all.iter().all(is_online)).await;
    cluster.wait_for_condition(cluster.name(), "Ready", "True", "Discovered").await;
    wait_for_line(address, "akri_node_missing 0").await;
    for member in [&a, &b] {
        member.offers(&resource_of(shared[0]), 2).await;
    }
    b.kubelet.admit("guest", "container", &resource_of(shared[0]), 1).await.unwrap();
    a.offers(&resource_of(shared[0]), 1).await;

    c.kill();
    take_out_of_service(&cluster.story, "node-c").await;
    let left =
        cluster.wait_for_the_instance("what the others see", |i| nodes(i) == ["node-a", "node-b"] && !used(i)).await;
    assert_eq!(left.uid(), shared[0].uid());
    assert_eq!(left.labels().len(), 3, "of both nodes, and of the Configuration: {:?}", left.labels());
    a.offers(&resource_of(shared[0]), 2).await;
}

/// A Configuration is replaced while a node is away whose container runs on. Its slot is nobody else's, whoever starts meanwhile. When its
/// agent is back, and the device is no longer seen there, the slot is free once the container has ended.
#[tokio::test] // rule 103
async fn slot_of_an_absent_node_is_free_once_its_agent_returns() {
    let Some(cluster) = ClusterFixture::begin("carried").await else { return };
    cluster.story.apply_one(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-c"}})).await.unwrap();
    let handler = json!({"name": "cam", "discoveryDetails": ""});
    let spec = json!({"discoveryHandler": handler, "capacity": 2, "offlineGracePeriod": "0s"});
    cluster.configure(cluster.name(), spec.clone()).await;
    let (mut a, mut b) = (cluster.add("node-a"), cluster.add("node-b"));
    let cam = |member: &Member| Handler::start(&member.node, "cam", "cam", &["one"]).shared();
    let (of_a, of_b) = (cam(&a), cam(&b));
    of_a.register(&a.node).await.unwrap();
    of_b.register(&b.node).await.unwrap();
    let made = cluster.wait_for_the_instance("both nodes", |i| nodes(i) == ["node-a", "node-b"]).await;
    let resource = resource_of(&made);
    b.offers(&resource, 2).await;
    b.kubelet.admit("stays", "container", &resource, 1).await.unwrap();
    a.offers(&resource, 1).await;
    b.kill();

    cluster.delete(cluster.name()).await;
    cluster.configure(cluster.name(), spec).await;
    let users = |i: &Instance| usage(i).into_iter().map(|(_, user)| user.to_owned()).collect::<BTreeSet<_>>();
    let carried = |i: &Instance| i.uid() != made.uid() && users(i) == ["".into(), "node-b".into()].into();
    cluster.wait_for_the_instance("another Instance with the claim", carried).await;
    a.kill();
    a.start();
    let c = cluster.add("node-c");
    let of_c = cam(&c);
    of_c.register(&c.node).await.unwrap();
    let joined = |i: &Instance| carried(i) && nodes(i) == ["node-a", "node-c"];
    cluster.wait_for_the_instance("the third node", joined).await;
    for member in [&a, &c] {
        member.offers(&resource, 1).await;
    }
    c.kubelet.admit("guest", "container", &resource, 1).await.unwrap();
    a.offers(&resource, 0).await;
    assert_eq!(users(&cluster.list().await[0]), ["node-b".into(), "node-c".into()].into());

    of_b.set(Answer::Devices(Vec::new()));
    b.start();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(users(&cluster.list().await[0]), ["node-b".into(), "node-c".into()].into(), "its container runs");
    b.kubelet.remove_pod("stays");
    let left = |i: &Instance| {
        nodes(i) == ["node-a", "node-c"] && users(i) == ["".into(), "node-c".into()].into() && i.labels().len() == 3
    };
    cluster.wait_for_the_instance("the end of the claim", left).await;
    a.offers(&resource, 1).await;
    sleep(Duration::from_secs(2)).await;
    assert!(left(&cluster.list().await[0]), "agent and controller do not take turns");
}
