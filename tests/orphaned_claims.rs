//! Claims of containers whose Configuration is deleted while they run (rule 43).

use akri_api::Instance;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Agent, Node, resource_of, usage};

fn users(instance: &Instance) -> Vec<&str> {
    usage(instance).into_iter().map(|(_, usage)| usage).collect()
}

/// A node whose agent polls often, with one camera of one slot that a pod uses.
async fn in_use() -> (Node, Kubelet, Agent, String) {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_echo("cam", 1, &["one"]);
    let agent = start(&node);
    let instances = node.wait_for_instances("the camera", |list| list.len() == 1).await;
    let resource = resource_of(&instances[0]);
    kubelet.wait_for("the camera", |view| view.resource(&resource).allocatable() == 1).await;
    kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    agent.wait_for_log("a container uses it").await;
    (node, kubelet, agent, resource)
}

fn start(node: &Node) -> Agent {
    node.start_with(&["--poll-milliseconds", "100"])
}

async fn delete_configuration(node: &Node, kubelet: &Kubelet, resource: &str) {
    node.remove("manifests/cam.yaml");
    node.wait_for_instances("no Instance", <[_]>::is_empty).await;
    kubelet.wait_for("no device", |view| view.resource(resource).capacity() == 0).await;
}

#[tokio::test] // rule 43
async fn claims_outlive_a_configuration_and_end_with_their_pods() {
    let (node, kubelet, agent, resource) = in_use().await;
    delete_configuration(&node, &kubelet, &resource).await;
    agent.kill(); // also an agent that starts in between knows them
    let agent = start(&node);
    node.write_echo("cam", 1, &["one"]);
    node.wait_for_instances("the claim", |list| list.len() == 1 && users(&list[0]) == ["node-a"]).await;
    kubelet.wait_for("the held slot", |view| view.resource(&resource).allocatable() == 1).await;
    let refused = kubelet.admit("other", "container", "akri.sh/cam", 1).await;
    assert!(refused.is_err(), "the only slot is in use: {refused:?}");
    kubelet.readmit("pod").unwrap();

    // The pod ends while there is no Configuration.
    kubelet.wait_for_polls(4).await; // the agent that started has seen its container
    delete_configuration(&node, &kubelet, &resource).await;
    kubelet.remove_pod("pod");
    agent.wait_for_log("claims without an Instance have ended").await;
    node.write_echo("cam", 1, &["one"]);
    node.wait_for_instances("a free slot", |list| list.len() == 1 && users(&list[0]) == [""]).await;
    kubelet.wait_for("the free slot", |view| view.resource(&resource).allocatable() == 1).await;
    kubelet.admit("next", "container", &resource, 1).await.unwrap();
}

#[tokio::test] // rule 45
async fn init_container_keeps_its_slot_by_the_checkpoint() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_echo("cam", 1, &["one"]);
    let agent = start(&node);
    kubelet.wait_for("the camera", |view| view.resource("akri.sh/cam").allocatable() == 1).await;
    kubelet.admit_init("pod", "init", "akri.sh/cam", 1).await.unwrap();
    kubelet.wait_for_polls(10).await;
    assert_eq!(users(&node.instances()[0]), ["C:0:node-a"], "PodResources does not list it, and the checkpoint does");
    kubelet.remove_pod("pod");
    node.wait_for_instances("a free slot", |list| users(&list[0]) == [""]).await;
    drop(agent);
}
