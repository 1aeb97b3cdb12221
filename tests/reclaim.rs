//! Slots are released when their pods end, and not before.

use std::fs;
use std::time::Duration;

use akri_api::Instance;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Agent, Node, usage};

const CAMERAS: &str = "akri.sh/cam";

/// Three polls, and one that shows that the third was processed.
const POLLS: usize = 4;

/// A node with one camera of one slot that a pod holds, and whose agent has seen it in use.
async fn in_use(flags: &[&str]) -> (Node, Kubelet, Agent) {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_echo("cam", 1, &["one"]);
    let agent = node.start_with(flags);
    kubelet.wait_for("the camera", |view| view.resource(CAMERAS).allocatable() == 1).await;
    kubelet.admit("pod", "container", CAMERAS, 1).await.unwrap();
    agent.wait_for_log("a container uses it").await;
    (node, kubelet, agent)
}

fn is_held(instances: &[Instance]) -> bool {
    instances.iter().any(|instance| usage(instance).iter().any(|(_, usage)| *usage == "C:0:node-a"))
}

#[tokio::test] // rule 7, rule 19
async fn empty_pod_list_after_kubelet_restart_frees_nothing() {
    let (node, mut kubelet, _agent) = in_use(&["--reclaim-delay-seconds", "3600"]).await;
    kubelet.stop();
    fs::remove_file(node.path("kubelet/device-plugins/kubelet_internal_checkpoint")).unwrap();
    kubelet.start_again();
    kubelet.wait_for("the camera again", |view| view.resource(CAMERAS).allocatable() == 1).await;
    kubelet.wait_for_polls(POLLS).await;
    assert!(is_held(&node.instances()), "nobody knows yet which pods run");
    let again = kubelet.admit("pod", "container", CAMERAS, 1).await.unwrap();
    assert_eq!(again.ids, ["0"], "the pod gets the slot it has");
    node.wait_for_instances("one claim", is_held).await;
}

#[tokio::test] // rule 19
async fn agent_started_without_kubelet_frees_nothing() {
    let (node, mut kubelet, agent) = in_use(&[]).await;
    agent.kill();
    kubelet.stop();
    let _agent = node.start();
    tokio::time::sleep(Duration::from_secs(2)).await; // ten polls
    assert!(is_held(&node.instances()));
    kubelet.start_again();
    kubelet.wait_for("the camera again", |view| view.resource(CAMERAS).allocatable() == 1).await;
    kubelet.readmit("pod").unwrap();
}

#[tokio::test] // rule 21
async fn claim_never_seen_in_use_is_kept_and_offered_again() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_echo("cam", 1, &["one"]);
    let _agent = node.start();
    kubelet.wait_for("the camera", |view| view.resource(CAMERAS).allocatable() == 1).await;
    kubelet.admit_init("pod", "init", CAMERAS, 1).await.unwrap(); // the kubelet does not list init containers
    kubelet.wait_for_polls(POLLS).await;
    assert!(is_held(&node.instances()), "the pod may still be starting");
    kubelet.admit("pod", "app", CAMERAS, 1).await.unwrap();
}

#[tokio::test] // rule 4, rule 25
async fn slot_of_a_removed_device_is_kept_until_its_pod_ends() {
    let (node, kubelet, agent) = in_use(&[]).await;
    node.write_echo("cam", 1, &[]);
    agent.wait_for_log("is missing").await;
    kubelet.wait_for_polls(POLLS).await;
    assert!(is_held(&node.instances()), "it has no grace period, and a container that may use it");
    assert_eq!(kubelet.view(|view| view.resource(CAMERAS).allocatable()), 1, "held is healthy");
    kubelet.remove_pod("pod");
    node.wait_for_instances("no Instance", <[_]>::is_empty).await;
    kubelet.wait_for("no id", |view| view.resource(CAMERAS).capacity() == 0).await;
}

#[tokio::test] // rule 20
async fn renewed_claim_must_be_observed_again() {
    let (node, kubelet, _agent) = in_use(&[]).await;
    kubelet.remove_pod("pod");
    let again = kubelet.admit_init("next", "init", CAMERAS, 1).await.unwrap(); // before anyone has noticed
    assert_eq!(again.ids, ["0"]);
    kubelet.wait_for_polls(POLLS).await;
    assert!(is_held(&node.instances()), "that the first pod was seen says nothing about the next one");
    kubelet.admit("next", "app", CAMERAS, 1).await.unwrap();
}

#[tokio::test]
async fn duplicate_allocation_is_reported_once_and_kept() {
    let (node, kubelet, agent) = in_use(&[]).await;
    kubelet.list_twice("pod", "another");
    agent.wait_for_log("SlotUsedTwice: pods default/another and default/pod have '0' of akri.sh/cam at once").await;
    kubelet.wait_for_polls(POLLS).await;
    assert_eq!(agent.log().matches("SlotUsedTwice").count(), 1);
    assert!(is_held(&node.instances()));
}
