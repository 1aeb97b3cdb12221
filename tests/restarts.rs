//! Agents and kubelets that end, in whatever way, and start again.

use std::fs;
use std::process::Command;
use std::time::Duration;

use akri_api::Instance;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Agent, Node, akri, identities, is_online, name_of, resource_of, usage, used, wait_for};

/// A node with two devices of two slots each, made by a handler whose devices are shared by nodes or not.
fn node_with_echo(shared: bool) -> Node {
    let node = Node::new();
    if !shared {
        node.make_echo_local();
    }
    node.write_echo("echo", 2, &["foo0", "foo1"]);
    node
}

#[tokio::test] // rule 28
async fn killed_agent_returns_with_its_instances_and_claims() {
    for shared in [true, false] {
        let node = node_with_echo(shared);
        let mut kubelet = Kubelet::start(&node.path("kubelet"));
        let agent = if shared { node.start() } else { node.start_relative() }; // paths may be relative: the same directories
        let found = node.wait_for_instances("two devices", |list| list.len() == 2).await;
        let resource = resource_of(&found[0]);
        kubelet.wait_for("two slots", |view| view.resource(&resource).allocatable() == 2).await;
        let admitted = kubelet.admit("pod", "container", &resource, 1).await.unwrap();
        let slot = admitted.ids[0].as_str();
        let claimed = node.wait_for_instance(name_of(&found[0]), "a claim", |i| used(i) == [slot]).await;
        assert_eq!(claimed.spec.shared, shared);
        agent.kill();

        // Alone first, then together with the kubelet, which has to find its pod's device before it admits the pod anew.
        let agent = node.start();
        kubelet.wait_for("another registration", |view| view.resource(&resource).registrations == 2).await;
        kubelet.wait_for("two slots again", |view| view.resource(&resource).allocatable() == 2).await;
        kubelet.stop();
        agent.kill();
        kubelet.start_again();
        let _agent = node.start();
        kubelet.wait_for("two slots once more", |view| view.resource(&resource).allocatable() == 2).await;
        kubelet.readmit("pod").unwrap();
        assert_eq!(kubelet.admit("pod", "container", &resource, 1).await.unwrap(), admitted, "from the checkpoint");
        let other = kubelet.admit("other", "container", &resource, 1).await.unwrap();
        assert_ne!(other.ids, admitted.ids, "a slot in use is not given away");
        node.wait_for_instance(name_of(&found[0]), "both claims", |i| used(i).len() == 2).await;
        assert_eq!(identities(&node.instances()), identities(&found), "the same objects");
        assert_eq!(usage(&node.instance(name_of(&found[1])).unwrap()), usage(&found[1]), "the other device is free");
    }
}

#[tokio::test]
async fn signals_of_supervisors_end_the_agent_in_order() {
    let node = Node::new();
    for signal in [Signal::HUP, Signal::USR1, Signal::USR2, Signal::ALARM] {
        let mut as_a_shell_does = Command::new("env"); // whoever runs the tests may ignore SIGHUP
        as_a_shell_does.arg("--default-signal").arg(akri());
        let agent = node.start_by(as_a_shell_does, &[]);
        agent.wait_for_log("agent started").await;
        assert!(agent.stop_by(signal), "{signal:?}");
    }
    let mut below_nohup = Command::new("sh");
    below_nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(akri());
    let mut agent = node.start_by(below_nohup, &[]);
    agent.wait_for_log("agent started").await;
    kill_process(Pid::from_raw(agent.pid().cast_signed()).unwrap(), Signal::HUP).unwrap();
    sleep(Duration::from_millis(300)).await;
    assert!(agent.is_running() && agent.stop());
}

#[tokio::test] // rule 6, rule 17
async fn devices_are_served_before_and_without_a_handler() {
    let node = Node::new();
    let mut kubelet = Kubelet::start(&node.path("kubelet"));
    let details = "      udevRules:\n      - SUBSYSTEM==\"mem\", KERNEL==\"null\"\n      permissions: rw\n";
    node.write_configuration("mem", "udev", details, "  capacity: 2\n");
    let agent = node.start();
    let found = node.wait_for_instances("the device", |list| list.len() == 1).await;
    let resource = resource_of(&found[0]);
    kubelet.wait_for("two slots", |view| view.resource(&resource).allocatable() == 2).await;
    let first = kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    node.wait_for_instance(name_of(&found[0]), "the claim", |i| used(i) == first.ids).await;
    kubelet.stop();
    agent.kill();

    // No component, no DiscoveryHandler: nothing that could run a round.
    fs::rename(node.path("components"), node.path("elsewhere")).unwrap();
    kubelet.start_again();
    let agent = node.start();
    kubelet.wait_for("two slots without a handler", |view| view.resource(&resource).allocatable() == 2).await;
    kubelet.readmit("pod").unwrap();
    let second = kubelet.admit("second", "container", &resource, 1).await.unwrap();
    assert_eq!(second.response.devices, first.response.devices, "with its device node, from the journal");
    assert_eq!(second.response.envs["UDEV_DEVNODE"], "/dev/null");
    let ready = node.wait_for_condition("mem", "Ready", "False", "NoHandler").await;
    assert!(ready.message.starts_with("no discovery handler 'udev'; "), "{}", ready.message);
    assert!(ready.message.contains("; none is ready"), "{}", ready.message);
    assert!(!agent.log().contains("round done"), "no handler has run");
    assert_eq!(identities(&node.instances()), identities(&found));

    fs::rename(node.path("elsewhere"), node.path("components")).unwrap();
    drop(agent);
    let _agent = node.start();
    node.wait_for_condition("mem", "Ready", "True", "Discovered").await;
    let after = node.wait_for_instance(name_of(&found[0]), "both claims", |i| used(i).len() == 2).await;
    assert!(is_online(&after) && identities(&[after]) == identities(&found));
}

#[tokio::test] // rule 4, rule 6
async fn sigterm_keeps_claims_and_a_second_agent_waits_unregistered() {
    let node = node_with_echo(true);
    let kubelet = Kubelet::start(&node.path("kubelet"));
    let agent = node.start();
    let found = node.wait_for_instances("two devices", |list| list.len() == 2).await;
    let resource = resource_of(&found[1]);
    kubelet.wait_for("two slots", |view| view.resource(&resource).allocatable() == 2).await;
    let admitted = kubelet.admit("pod", "container", &resource, 2).await.unwrap();
    assert_eq!(node.sockets().len(), kubelet.view(|view| view.resources.len()));

    assert!(agent.stop(), "it ends well");

    assert!(node.sockets().is_empty());
    assert_eq!(identities(&node.instances()), identities(&found));
    assert_eq!(used(&node.instance(name_of(&found[1])).unwrap()), admitted.ids, "published before the end");
    kubelet.wait_for("the end of the connection", |view| !view.resource(&resource).connected).await;
    let kept = kubelet.view(|view| view.resource(&resource));
    assert_eq!((kept.capacity(), kept.allocatable()), (2, 0));
    assert!(kubelet.view(|view| view.resource(&resource).lists.iter().all(|list| !list.is_empty())), "nothing is gone");
    let agent = node.start();
    kubelet.wait_for("two slots again", |view| view.resource(&resource).allocatable() == 2).await;
    assert_eq!(identities(&node.instances()), identities(&found));
    second_agent_waits_unregistered_and_takes_over(&node, &kubelet, agent, &found).await;
}

async fn second_agent_waits_unregistered_and_takes_over(
    node: &Node,
    kubelet: &Kubelet,
    first: Agent,
    found: &[Instance],
) {
    let resource = resource_of(&found[0]);
    kubelet.wait_for("two slots", |view| view.resource(&resource).allocatable() == 2).await;
    kubelet.admit("other", "container", &resource, 1).await.unwrap();
    let registrations = || kubelet.view(|view| view.resource(&resource).registrations);
    let before = registrations();

    let mut second = node.start();
    let third = node.start();
    let expected = format!("is locked by the agent with pid {}; waiting for it to end", first.pid());
    second.wait_for_log(&expected).await;
    third.wait_for_log(&expected).await;
    assert!(third.stop(), "one that waits ends when told to");
    assert!(second.is_running() && !second.log().contains("agent started"));
    assert_eq!(registrations(), before);

    first.kill();
    second.wait_for_log("agent started").await;
    kubelet.wait_for("the second's registration", |view| view.resource(&resource).registrations == before + 1).await;
    kubelet.wait_for("two slots again", |view| view.resource(&resource).allocatable() == 2).await;
    assert_eq!(identities(&node.instances()), identities(found));
    assert_eq!(used(&node.instance(name_of(&found[0])).unwrap()).len(), 1, "with the first's claim");
}

#[tokio::test] // rule 26
async fn status_of_a_configuration_goes_with_its_file() {
    let node = Node::new();
    let names = || node.configurations().iter().map(|one| one.metadata.name.clone().unwrap()).collect::<Vec<_>>();
    for name in ["kept", "removed"] {
        node.write_echo(name, 1, &["one"]);
    }
    let agent = node.start();
    wait_for("both", names, |names| *names == ["kept", "removed"]).await;
    assert!(agent.stop());
    node.remove("manifests/removed.yaml");
    let kept = fs::read_to_string(node.path("manifests/kept.yaml")).unwrap();
    node.write("manifests/other.yaml", &kept.replace("  name: kept\n", "  name: kept\n  namespace: other\n"));
    let _agent = node.start();
    wait_for("the one of that name", names, |names| *names == ["kept", "kept"]).await;
    assert!(!node.path("state/configurations/default/removed.json").exists());
    for file in ["other", "kept"] {
        node.remove(&format!("manifests/{file}.yaml"));
    }
    wait_for("none", names, Vec::is_empty).await;
    let files = || fs::read_dir(node.path("state/configurations/other")).unwrap().count();
    wait_for("no file", files, |count| *count == 0).await;
}
