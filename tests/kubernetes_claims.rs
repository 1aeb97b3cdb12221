//! Slots of shared devices between nodes, by compare-and-swap in a real API server.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::process::Command;

use akri_api::Instance;
use akri_grpc::deviceplugin::{AllocateRequest, ContainerAllocateRequest};
use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::cluster::wait_for;
use crate::support::cluster_fixture::{ClusterFixture, Member};
use crate::support::kubelet::View;
use crate::support::node::{akri, is_online, resource_of};

/// Devices that both nodes want at once.
const DEVICES: usize = 100;

/// Claims that a node makes at once; the kubelet makes one after the other.
const AT_ONCE: usize = 10;

/// Returns whether the node got it, or why not.
async fn claim(member: &Member, resource: &str) -> Result<(), String> {
    let container_requests =
        vec![ContainerAllocateRequest { devices_ids: vec![format!("{}-0", &resource["akri.sh/".len()..])] }];
    member
        .kubelet
        .plugin(resource)
        .allocate(AllocateRequest { container_requests })
        .await
        .map(drop)
        .map_err(|status| status.to_string())
}

fn users(instances: &[Instance]) -> BTreeMap<String, usize> {
    let mut users = BTreeMap::new();
    for usage in instances.iter().flat_map(|instance| instance.spec.device_usage.values()) {
        *users.entry(usage.clone()).or_default() += 1;
    }
    users
}

#[tokio::test] // rule 10
async fn concurrent_claims_of_a_slot_have_one_winner() {
    let Some(cluster) = ClusterFixture::begin("race").await else { return };
    let names: Vec<String> = (0..DEVICES).map(|number| format!("camera-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    cluster.echo(cluster.name(), 1, &names, json!({})).await;
    // These kubelets record no pods, so that polls would release the claims.
    let add = |name| cluster.add_with(name, cluster.story.kubeconfig(), &["--poll-milliseconds=60000"]);
    let (a, b) = (add("node-a"), add("node-b"));
    let all = |list: &[Instance]| list.len() == DEVICES && list.iter().all(|i| i.spec.nodes.len() == 2);
    let instances = cluster.wait_for_instances("all devices on both nodes", all).await;
    let resources: Vec<String> = instances.iter().map(resource_of).collect();
    for member in [&a, &b] {
        let offered = |view: &_| resources.iter().all(|resource| offers(view, resource));
        member.kubelet.wait_for("all resources", offered).await;
    }
    let races = resources.iter().map(async |resource| tokio::join!(claim(&a, resource), claim(&b, resource)));
    let won: Vec<_> = stream::iter(races).buffered(AT_ONCE).collect().await;
    let odd: Vec<_> = won.iter().filter(|(on_a, on_b)| on_a.is_ok() == on_b.is_ok()).collect();
    assert!(odd.is_empty(), "{odd:#?}");
    let of_a = won.iter().filter(|(on_a, _)| on_a.is_ok()).count();
    let expected = BTreeMap::from([("node-a".to_owned(), of_a), ("node-b".to_owned(), DEVICES - of_a)]);
    let expected: BTreeMap<String, usize> = expected.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(users(&cluster.list().await), expected, "the API server says the same");
}

fn offers(view: &View, resource: &str) -> bool {
    view.resource(resource).allocatable() == 1
}

/// Returns the chain of a name, as a user of the cluster sees it.
fn why(cluster: &ClusterFixture, name: &str) -> String {
    let mut command = Command::new(akri());
    command.args(["why", name, "--state-dir", "/nonexistent"]).env("KUBECONFIG", cluster.story.kubeconfig());
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// Runs kubectl's plugin: the program under its name.
fn plugin(cluster: &ClusterFixture, member: &Member, arguments: &[&str]) -> (Option<i32>, String) {
    let name = member.node.path("kubectl-akri");
    if !name.exists() {
        symlink(akri(), &name).unwrap();
    }
    let kubeconfig = cluster.story.kubeconfig();
    let flags = ["--kubeconfig", kubeconfig.to_str().unwrap(), "-n", cluster.story.namespace()];
    let flags = if arguments[0] == "why" { &flags[..2] } else { &flags };
    let output = Command::new(name).args(arguments).args(flags).env_remove("KUBECONFIG").output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// A pod that requests a resource, on a node by its scheduler or by its own wish.
fn pod(name: &str, resource: &str, place: Value) -> Value {
    let container = json!({"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}});
    let mut spec = json!({"containers": [container], "tolerations": [{"operator": "Exists"}]});
    spec.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test] // rule 138
async fn why_names_the_node_that_has_the_slot_and_that_without_agent() {
    let Some(cluster) = ClusterFixture::begin("why").await else { return };
    cluster.echo(cluster.name(), 1, &["one"], json!({})).await;
    let add = |name| cluster.add_with(name, cluster.story.kubeconfig(), &["--poll-milliseconds=60000"]);
    let (a, mut b) = (add("node-a"), add("node-b"));
    let on_both = |list: &[Instance]| list.len() == 1 && list[0].spec.nodes.len() == 2;
    let instances = cluster.wait_for_instances("the device on both nodes", on_both).await;
    let resource = resource_of(&instances[0]);
    a.kubelet.wait_for("the resource", |view| offers(view, &resource)).await;
    claim(&a, &resource).await.unwrap();
    let has_all = |text: &String, words: &[&str]| words.iter().all(|part| text.contains(part));
    let slots = ["ends    slots: all 1 slots of", &resource, "node 'node-a'"];
    wait_for("who has the slot", async || why(&cluster, &resource), |text| has_all(text, &slots)).await;
    assert!(b.agent.take().unwrap().stop());
    let agent = ["ends    agent: NoAgent: no agent runs on node 'node-b'", "DaemonSet"];
    wait_for("the node without an agent", async || why(&cluster, "node-b"), |text| has_all(text, &agent)).await;

    // Its pod is known once the kubelet has it, and would be interrupted; so is one that can't run where it has to.
    let (_, drained) = plugin(&cluster, &a, &["drain", "node-b"]); // other stories have nodes of this name
    assert!(!drained.contains(&resource["akri.sh/".len()..]), "{drained}");
    cluster.story.apply_one(pod("holder", &resource, json!({"nodeName": "node-a"}))).await.unwrap();
    let on_b = json!({"nodeSelector": {"kubernetes.io/hostname": "node-b"}});
    cluster.story.apply_one(pod("stranded", &resource, on_b)).await.unwrap();
    let started = json!({"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}});
    let pods = cluster.story.api::<Pod>();
    pods.patch_status("holder", &PatchParams::default(), &Patch::Merge(started)).await.unwrap();
    let holder = format!("{}/holder", cluster.story.namespace());
    let slots = ["ends    slots: ", &format!("pod {holder} on node 'node-a'")];
    wait_for("the pod that has the slot", async || why(&cluster, &resource), |text| has_all(text, &slots)).await;
    let stranded =
        ["stranded, which requests", "ends    agent: NoAgent: no agent runs on node 'node-b', where it has to run"];
    wait_for("its node", async || why(&cluster, "stranded"), |text| has_all(text, &stranded)).await;
    let row = |table: String, words: &[&str]| {
        table.lines().any(|line| words.iter().all(|word| line.split_whitespace().any(|cell| cell == *word)))
    };
    let slot = format!("{}-0", &resource["akri.sh/".len()..]);
    for (arguments, words) in [
        (&["devices", "node-a"][..], &["node-a", &resource, "Online", "1/1", &holder][..]),
        (&["slots", cluster.name()], &[&slot, "node-a", &holder]),
        (&["drain", "node-a"], &["node-a", &holder, "no", &slot]),
    ] {
        let (code, table) = plugin(&cluster, &a, arguments);
        assert!(row(table.clone(), words), "{arguments:?}: {table}");
        assert_eq!(code, Some(i32::from(arguments[0] == "drain")));
    }
}

#[tokio::test] // rule 28
async fn conflicting_claim_records_an_event_and_keeps_both_pods() {
    let Some(cluster) = ClusterFixture::begin("twice").await else { return };
    cluster.echo(cluster.name(), 1, &["one"], json!({})).await;
    let mut a = cluster.add("node-a");
    let made = cluster.wait_for_the_instance("the device", is_online).await;
    let resource = resource_of(&made);
    a.offers(&resource, 1).await;
    a.kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    let of_a = |i: &Instance| i.spec.device_usage.values().all(|usage| usage == "node-a");
    cluster.wait_for_the_instance("the claim", of_a).await;
    a.kill();
    let slot = format!("{}-0", made.name_any());
    let patch = json!({"spec": {"deviceUsage": {slot: "node-b"}}});
    cluster.instances().patch(&made.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    a.start();
    a.offers(&resource, 1).await;
    a.kubelet.readmit("pod").unwrap();
    let events = cluster.story.api::<Event>();
    let expected_text = async || events.list(&Default::default()).await.unwrap().items;
    let overcommitted =
        |event: &Event| event.reason.as_deref() == Some("SlotOvercommitted") && event.involved_object.uid == made.uid();
    wait_for("the event", expected_text, |events| events.iter().any(overcommitted)).await;
}
