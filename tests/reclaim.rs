//! Slots are released when their pods end, and not before.

use std::fs;
use std::time::{Duration, Instant};

use akri_api::Instance;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Agent, Node, name_of, resource_of, usage};

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
    kubelet.wait_for_polls(POLLS).await; // that may have been the checkpoint alone, which does not name the container
    (node, kubelet, agent)
}

fn is_held(instances: &[Instance]) -> bool {
    instances.iter().any(|instance| usage(instance).iter().any(|(_, usage)| *usage == "C:0:node-a"))
}

#[tokio::test] // rule 7, rule 19
async fn restarts_of_kubelet_and_agent_free_nothing() {
    let (node, mut kubelet, agent) = in_use(&["--reclaim-delay-seconds", "3600"]).await;
    kubelet.stop();
    fs::remove_file(node.path("kubelet/device-plugins/kubelet_internal_checkpoint")).unwrap();
    kubelet.start_again();
    kubelet.wait_for("the camera again", |view| view.resource(CAMERAS).allocatable() == 1).await;
    kubelet.wait_for_polls(POLLS).await;
    assert!(is_held(&node.instances()), "nobody knows yet which pods run");
    let again = kubelet.admit("pod", "container", CAMERAS, 1).await.unwrap();
    assert_eq!(again.ids, ["0"], "the pod gets the slot it has");
    node.wait_for_instances("one claim", is_held).await;
    // The agent starts without a kubelet.
    agent.kill();
    kubelet.stop();
    let _agent = node.start();
    tokio::time::sleep(Duration::from_secs(2)).await; // ten polls
    assert!(is_held(&node.instances()));
    kubelet.start_again();
    kubelet.wait_for("the camera again", |view| view.resource(CAMERAS).allocatable() == 1).await;
    kubelet.readmit("pod").unwrap();
}

#[tokio::test] // rule 4, rule 25
async fn slot_given_twice_or_of_a_removed_device_is_kept_while_used() {
    let (node, kubelet, agent) = in_use(&[]).await;
    kubelet.list_twice("pod", "another");
    agent.wait_for_log("SlotUsedTwice: pods default/another and default/pod have '0' of akri.sh/cam at once").await;
    kubelet.wait_for_polls(POLLS).await;
    assert_eq!(agent.log().matches("SlotUsedTwice").count(), 1);
    assert!(is_held(&node.instances()));
    kubelet.remove_pod("another");

    node.write_echo("cam", 1, &[]);
    agent.wait_for_log("is missing").await;
    kubelet.wait_for_polls(POLLS).await;
    assert!(is_held(&node.instances()), "it has no grace period, and a container that may use it");
    assert_eq!(kubelet.view(|view| view.resource(CAMERAS).allocatable()), 1, "held is healthy");
    kubelet.remove_pod("pod");
    node.wait_for_instances("no Instance", <[_]>::is_empty).await;
    kubelet.wait_for("no id", |view| view.resource(CAMERAS).capacity() == 0).await;
}

#[tokio::test] // rule 7, rule 20, rule 21
async fn claim_is_kept_until_it_was_observed_and_then_released() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_echo("cam", 1, &["one"]);
    let agent = node.start();
    kubelet.wait_for("the camera", |view| view.resource(CAMERAS).allocatable() == 1).await;
    let init = kubelet.admit_init("pod", "init", CAMERAS, 1).await.unwrap(); // the kubelet does not list init containers
    kubelet.wait_for_polls(POLLS).await;
    assert!(is_held(&node.instances()), "the pod may still be starting");
    let app = kubelet.admit("pod", "app", CAMERAS, 1).await.unwrap();
    assert_eq!(app.ids, init.ids, "the slot of its init container");
    assert_eq!(app.response.envs["DEBUG_ECHO_DESCRIPTION"], "one");
    agent.wait_for_log("a container uses it").await;
    kubelet.wait_for_polls(POLLS).await;
    // A renewed claim has to be observed again.
    kubelet.remove_pod("pod");
    let again = kubelet.admit_init("next", "init", CAMERAS, 1).await.unwrap(); // before anyone has noticed
    assert_eq!(again.ids, ["0"]);
    kubelet.wait_for_polls(POLLS).await;
    assert!(is_held(&node.instances()), "that the first pod was seen says nothing about the next one");
    kubelet.admit("next", "app", CAMERAS, 1).await.unwrap();
}

#[tokio::test] // rule 101
async fn slot_of_a_collected_pod_is_kept_while_its_container_ends() {
    let (node, kubelet, _agent) = in_use(&["--release-delay-seconds", "3600"]).await;
    let container = node.path("cgroups/kubepods/besteffort/podpod/0123");
    fs::create_dir_all(&container).unwrap();
    kubelet.wait_for_polls(POLLS).await;
    kubelet.remove_pod("pod");
    kubelet.wait_for_polls(POLLS).await;
    assert!(is_held(&node.instances()), "its container runs out its grace period");
    let again = kubelet.admit_init("next", "init", CAMERAS, 1).await.unwrap();
    assert_eq!(again.ids, ["0"], "on this node the kubelet offers it again, and gets it");
    kubelet.remove_pod("next");
    fs::remove_dir(&container).unwrap();
    node.wait_for_instances("a free slot", |instances| !is_held(instances)).await;
}

#[tokio::test] // rule 101
async fn slot_is_kept_for_a_delay_where_cgroups_are_not_seen() {
    let (node, kubelet, agent) = in_use(&["--release-delay-seconds", "3"]).await;
    kubelet.wait_for_polls(POLLS).await;
    let removed = Instant::now();
    kubelet.remove_pod("pod");
    node.wait_for_instances("a free slot", |instances| !is_held(instances)).await;
    assert!(removed.elapsed() > Duration::from_millis(2500), "{:?}", removed.elapsed());
    agent.wait_for_log("containers that the kubelet no longer lists are not seen").await;
}

#[tokio::test] // rule 102
async fn running_container_keeps_its_slot_without_a_checkpoint() {
    let (node, mut kubelet, mut agent) = in_use(&[]).await;
    for _ in 0..2 {
        kubelet.lose_checkpoint();
        kubelet.wait_for("the camera again", |view| view.resource(CAMERAS).allocatable() == 1).await;
        kubelet.wait_for_polls(POLLS).await;
        assert!(is_held(&node.instances()), "the kubelet lists its container without the device");
        agent.kill();
        agent = node.start(); // it knows the container from its journal
    }
}

#[tokio::test] // rule 102, rule 105
async fn slot_of_an_ended_pod_is_free_though_listed_and_polls_fail() {
    let (node, kubelet, _agent) = in_use(&["--reclaim-delay-seconds", "1"]).await;
    kubelet.wait_for_polls(POLLS).await;
    kubelet.end_pod("pod");
    node.wait_for_instances("a free slot", |instances| !is_held(instances)).await;
    assert!(kubelet.view(|view| view.bare.contains(&("pod".into(), "container".into()))), "its object stays");
    kubelet.wait_for("the camera again", |view| view.resource(CAMERAS).allocatable() == 1).await;
    kubelet.admit("next", "container", CAMERAS, 1).await.unwrap();
    node.wait_for_instances("the next claim", is_held).await;
    kubelet.wait_for_polls(POLLS).await;

    // Each third poll fails, and begins no delay as a restart does.
    kubelet.fail_lists(3);
    kubelet.remove_pod("next");
    node.wait_for_instances("a free slot again", |instances| !is_held(instances)).await;
}

#[tokio::test] // rule 102
async fn cgroups_show_after_restarts_whether_a_pod_has_ended() {
    let (node, mut kubelet, agent) = in_use(&[]).await;
    let container = node.path("cgroups/kubepods/besteffort/podpod/0123");
    fs::create_dir_all(&container).unwrap();
    kubelet.wait_for_polls(POLLS).await;
    agent.kill();
    kubelet.restart();
    kubelet.end_pod("pod");
    let _agent = node.start(); // neither it nor this kubelet has seen the container with its slot
    kubelet.wait_for("the camera again", |view| view.resource(CAMERAS).allocatable() == 1).await;
    kubelet.wait_for_polls(POLLS).await;
    assert!(is_held(&node.instances()), "its container runs");
    fs::remove_dir(&container).unwrap();
    node.wait_for_instances("a free slot", |instances| !is_held(instances)).await;
}

#[tokio::test] // rule 102
async fn slot_of_a_pod_that_returns_with_another_resource_is_free() {
    let (node, mut kubelet, agent) = in_use(&[]).await;
    node.write_echo("door", 1, &["two"]);
    kubelet.wait_for("the door", |view| view.resource("akri.sh/door").allocatable() == 1).await;
    agent.kill();
    kubelet.restart();
    kubelet.remove_pod("pod");
    let _agent = node.start();
    kubelet.wait_for("the door again", |view| view.resource("akri.sh/door").allocatable() == 1).await;
    kubelet.admit("pod", "container", "akri.sh/door", 1).await.unwrap();
    let is_free = |instances: &[Instance]| {
        let used: Vec<_> = instances.iter().filter(|one| usage(one)[0].1 == "C:0:node-a").map(name_of).collect();
        matches!(used[..], [name] if name.starts_with("door-"))
    };
    node.wait_for_instances("the door's slot in use alone", is_free).await;
}

/// The agent takes over what is published and in the checkpoint, and gives it back.
#[tokio::test] // rule 104, rule 108
async fn checkpoint_with_a_pod_that_does_not_exist_holds_no_slot() {
    let (node, kubelet, agent) = in_use(&[]).await;
    agent.kill();
    let checkpoint = node.path("kubelet/device-plugins/kubelet_internal_checkpoint");
    kubelet
        .wait_for("a checkpoint", |_| fs::read_to_string(&checkpoint).is_ok_and(|text| text.contains("\"pod\"")))
        .await;
    kubelet.remove_pod("pod"); // the checkpoint has it still
    fs::remove_file(node.path("state/journal.jsonl")).unwrap();
    let agent = node.start();
    agent.wait_for_log("has a claim of this node that the journal lacks").await;
    agent.wait_for_log("released: no container uses them").await;
    node.wait_for_instances("a free slot", |instances| !is_held(instances)).await;
}

#[tokio::test] // rule 104
async fn slot_is_released_though_the_plugin_that_gave_it_is_closed() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    let configuration = |resources: &str| {
        let details = "      descriptions:\n      - \"one\"\n";
        node.write_configuration("cam", "debugEcho", details, &format!("  capacity: 1\n  resources: {resources}\n"));
    };
    configuration("both");
    let agent = node.start();
    let instances = node.wait_for_instances("the camera", |list| list.len() == 1).await;
    let resource = resource_of(&instances[0]);
    kubelet.wait_for("the camera", |view| view.resource(&resource).allocatable() == 1).await;
    kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    agent.wait_for_log("a container uses it").await;
    configuration("configuration");
    kubelet.wait_for("the closed resource", |view| view.resource(&resource).capacity() == 0).await;
    kubelet.remove_pod("pod");
    let is_free = |list: &[Instance]| list.iter().all(|one| usage(one).iter().all(|(_, usage)| usage.is_empty()));
    node.wait_for_instances("a free slot", is_free).await;
}
