//! Handlers that hang, trap and lie: their devices stay, and nobody else notices.

use std::fs;

use akri_api::Instance;
use akri_api::condition::Condition;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Agent, Node, guest, identities, is_online, resource_of, wait_for};

const LIMITS: &str = "  limits:\n    round: 300ms\n    memory: 8Mi\n    devices: 3\n";

/// Behaviours of a guest, each with the condition that users see.
const BEHAVIOURS: [(&str, &str, &str); 8] = [
    ("loop", "DeadlineExceeded", "did not finish within 300ms"),
    ("sleep", "DeadlineExceeded", "did not finish within 300ms"),
    ("panic", "Trapped", "the guest panics on purpose"),
    ("exit", "Trapped", "exited"),
    ("stack", "Trapped", "the handler trapped"),
    ("memory", "LimitExceeded", "memory: more than 8Mi; limits.memory"),
    ("devices:4", "LimitExceeded", "devices: 4"),
    ("unavailable", "Unavailable", "the camera does not answer"),
];

fn write_guest(node: &Node, name: &str, behaviour: &str) {
    node.write_configuration(name, "guest", &format!("      {behaviour}\n"), "");
}

fn of<'i>(instances: &'i [Instance], configuration: &str) -> Vec<&'i Instance> {
    instances.iter().filter(|instance| instance.spec.configuration_name == configuration).collect()
}

#[tokio::test] // threat 57
async fn failed_rounds_change_nothing_and_affect_no_other() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.add_guest(LIMITS);
    node.write_echo("echo", 1, &["foo0"]);
    for index in 0..BEHAVIOURS.len() {
        write_guest(&node, &format!("guest-{index}"), "devices:2");
    }
    let mut agent = node.start();
    let all = 2 * BEHAVIOURS.len() + 1;
    let found = node.wait_for_instances("every device", |list| list.len() == all).await;

    for (index, (behaviour, ..)) in BEHAVIOURS.iter().enumerate() {
        write_guest(&node, &format!("guest-{index}"), behaviour);
    }
    for (index, (behaviour, reason, message)) in BEHAVIOURS.iter().enumerate() {
        let ready = node.wait_for_condition(&format!("guest-{index}"), "Ready", "False", reason).await;
        assert!(ready.message.contains(message), "{behaviour}: {}", ready.message);
        assert!(ready.message.ends_with("; known devices stay as they are"), "{}", ready.message);
    }
    let during = node.instances();
    assert_eq!(identities(&during), identities(&found));
    assert!(during.iter().all(is_online), "a failed round says nothing about devices");
    let resource = resource_of(of(&during, "guest-0")[0]);
    kubelet.wait_for("a device of the handler that hangs", |view| view.resource(&resource).allocatable() == 1).await;
    kubelet.admit("pod", "container", &resource, 1).await.unwrap();

    // Meanwhile another handler finds and loses devices.
    node.write_echo("echo", 1, &["foo1", "foo2"]);
    node.wait_for_instances("the other handler's devices", |list| {
        let descriptions =
            of(list, "echo").into_iter().map(|i| i.spec.broker_properties["DEBUG_ECHO_DESCRIPTION"].clone());
        let mut descriptions: Vec<String> = descriptions.collect();
        descriptions.sort();
        descriptions == ["foo1", "foo2"]
    })
    .await;

    for index in 0..BEHAVIOURS.len() {
        write_guest(&node, &format!("guest-{index}"), "devices:2");
    }
    for index in 0..BEHAVIOURS.len() {
        node.wait_for_condition(&format!("guest-{index}"), "Ready", "True", "Discovered").await;
    }
    let guests = |list: &[Instance]| {
        identities(list).into_iter().filter(|(name, _)| name.starts_with("guest")).collect::<Vec<_>>()
    };
    assert_eq!(guests(&node.instances()), guests(&found), "the same objects after it all");
    assert!(agent.is_running());
}

async fn is_quarantined(node: &Node) -> Condition {
    node.wait_for_condition("guest", "HandlerAvailable", "False", "Quarantined").await
}

fn failures(agent: &Agent) -> usize {
    let of_guest = |line: &&str| line.contains("round failed: ") && line.contains("configuration=default/guest ");
    agent.log().lines().filter(of_guest).count()
}

#[tokio::test] // rule 92
async fn failing_handler_is_quarantined_until_a_change() {
    let node = Node::new();
    node.add_guest("  limits:\n    devices: 5\n");
    node.write_configuration("guest", "guest", "      devices:1\n", "");
    node.write_configuration("other", "guest", "      devices:2\n", "");
    let agent = node.start();
    let found = node.wait_for_instances("every device", |list| list.len() == 3).await;

    node.write_configuration("guest", "guest", "      panic\n", "");
    let quarantined = is_quarantined(&node).await;
    for part in [
        "quarantined after 5 failed rounds; the next one is in 10 minutes, or at once when the component, its \
         DiscoveryHandler or the Configuration changes; the last one failed: the handler trapped: ",
        "the guest panics on purpose",
    ] {
        assert!(quarantined.message.contains(part), "{part}: {}", quarantined.message);
    }
    let ready = node.wait_for_condition("guest", "Ready", "False", "Quarantined").await;
    assert!(ready.message.ends_with("; known devices stay as they are"), "{}", ready.message);
    assert_eq!(identities(&node.instances()), identities(&found));
    assert!(node.instances().iter().all(is_online));
    wait_for("all five failures in the log", || failures(&agent), |count| *count == 5).await;
    assert_eq!(node.condition("other", "Ready").unwrap().status, "True", "with another Configuration it works");

    // An edit of the object gives it another chance, which it does not take.
    node.write_handler("guest", "guest.wasm", "  interval: 200ms\n  limits:\n    devices: 6\n");
    wait_for("another round", || failures(&agent), |count| *count == 6).await;
    node.wait_for_condition("guest", "Ready", "False", "Trapped").await;
    node.wait_for_condition("guest", "HandlerAvailable", "True", "Running").await;
    // So does one of the Configuration, at once: the third failure would be 2 s away.
    node.write_configuration("guest", "guest", "      devices:1\n", "");
    node.wait_for_condition("guest", "Ready", "True", "Discovered").await;
    assert_eq!(identities(&node.instances()), identities(&found), "as if nothing had been");
}

#[tokio::test] // rule 91, threat 55
async fn broken_component_does_not_replace_the_running_one() {
    let node = Node::new();
    node.add_guest(LIMITS);
    write_guest(&node, "guest", "devices:1");
    let agent = node.start();
    let found = node.wait_for_instances("a device", |list| list.len() == 1).await;
    let file = node.path("components/guest.wasm").display().to_string();
    let original = fs::read(guest()).unwrap();
    let other = fs::read(node.path("components/debug_echo.wasm")).unwrap();
    let half = original[..original.len() / 2].to_vec();
    for (bytes, expected) in [
        (b"#!/bin/sh\nexit 0\n".to_vec(), format!("component '{file}': no WebAssembly file: ")),
        (half, format!("component '{file}': not a WebAssembly component: ")),
        (b"\0asm\x01\0\0\0".to_vec(), format!("component '{file}': not a WebAssembly component: ")),
        (b"\0asm\x0d\0\x01\0".to_vec(), format!("component '{file}': not a discovery handler for this host: ")),
        (other, "the component is the handler 'debugEcho', the DiscoveryHandler is for 'guest'".to_owned()),
    ] {
        replace(&node, &bytes);
        let refused =
            |log: &String| log.lines().any(|l| l.contains("DiscoveryHandler refused") && l.contains(&expected));
        wait_for(&expected, || agent.log(), refused).await;
        node.remove("components/guest.wasm");
        agent.wait_for_log(&format!("cannot read component '{file}': No such file")).await;
    }
    // The one that runs still finds what it is told to find.
    write_guest(&node, "guest", "devices:2");
    let found_more = node.wait_for_instances("another device", |list| list.len() == 2).await;
    assert!(identities(&found_more).contains(&identities(&found)[0]));
    assert_eq!(agent.log().matches("handler ready handler=\"guest\"").count(), 1);

    // Another version: the same component with a custom section.
    replace(&node, &[original.as_slice(), b"\0\x05\x04test"].concat());
    let swapped = |log: &String| log.matches("handler ready handler=\"guest\"").count() == 2;
    wait_for("the new version", || agent.log(), swapped).await;
    write_guest(&node, "guest", "devices:3");
    let found_all = node.wait_for_instances("a third device", |list| list.len() == 3).await;
    assert!(identities(&found_more).iter().all(|known| identities(&found_all).contains(known)));
    node.wait_for_condition("guest", "Ready", "True", "Discovered").await;
}

#[tokio::test] // rule 35
async fn device_outside_its_grant_is_withheld() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    // It names the node /dev/node and the mount /dev/mount.
    node.add_guest("  grants:\n    devicePaths: [/dev/bus/**]\n    containerPaths: [/in/**]\n");
    write_guest(&node, "guest", "everything");
    write_guest(&node, "plain", "devices:1");
    let mut agent = node.start();
    let incomplete = node.wait_for_condition("guest", "DiscoveryComplete", "False", "NothingFound").await;
    let file = node.path("components/guest.yaml").display().to_string();
    let holder = format!("DiscoveryHandler 'guest' ({file})");
    let refusal = format!("device 'full': path '/dev/node' is not covered by grants.devicePaths of {holder}");
    assert_eq!(incomplete.message, format!("somewhere: {refusal}; devicePaths: ['/dev/node'] would allow it"));
    let plain = node.wait_for_instances("the other Configuration's device", |list| list.len() == 1).await;
    kubelet.wait_for("it", |view| view.resource(&resource_of(&plain[0])).allocatable() == 1).await;
    assert_eq!(of(&plain, "guest").len(), 0);
    assert!(kubelet.view(|view| view.resources.keys().all(|name| !name.starts_with("akri.sh/guest-"))));

    node.add_guest(
        "  grants:\n    devicePaths: [/dev/node]\n    containerPaths: [/in/**]\n    mountPaths: [/dev/mount]\n",
    );
    let granted = node.wait_for_instances("the device", |list| list.len() == 2).await;
    // There is no such node here, which an administrator should know.
    let missing = node.wait_for_condition("guest", "DiscoveryComplete", "False", "DiscoveryIncomplete").await;
    let expected = "somewhere: device 'full': there is no '/dev/node', which its containers need";
    assert_eq!(missing.message, expected);
    let resource = resource_of(of(&granted, "guest")[0]);
    kubelet.wait_for("its slot", |view| view.resource(&resource).allocatable() == 1).await;
    let admitted = kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    assert_eq!(admitted.response.devices[0].host_path, "/dev/node");
    assert_eq!(admitted.response.mounts[0].host_path, "/dev/mount");

    // A grant that is taken back: who has the device keeps it, and nobody else gets it.
    node.add_guest("  grants:\n    devicePaths: [/dev/node]\n    containerPaths: [/in/**]\n    mountPaths: []\n");
    node.wait_for_condition("guest", "DiscoveryComplete", "False", "NothingFound").await;
    assert_eq!(kubelet.view(|view| view.resource(&resource).allocatable()), 1, "held is healthy");
    agent.wait_for_log("a container uses it").await;
    kubelet.remove_pod("pod");
    kubelet.wait_for("a slot to nobody", |view| view.resource(&resource).allocatable() == 0).await;
    assert_eq!(node.instances().len(), 2, "the Instance stays");
    node.add_guest(
        "  grants:\n    devicePaths: [/dev/node]\n    containerPaths: [/in/**]\n    mountPaths: [/dev/mount]\n",
    );
    kubelet.wait_for("its slot again", |view| view.resource(&resource).allocatable() == 1).await;

    // A path that leads out of every grant.
    node.add_guest("  grants:\n    devicePaths: [/dev/**]\n    containerPaths: [/in/**]\n    mountPaths: [/dev/**]\n");
    write_guest(&node, "escaping", "escaping-paths");
    let incomplete = node.wait_for_condition("escaping", "DiscoveryComplete", "False", "NothingFound").await;
    assert!(incomplete.message.contains("'/dev/../etc/passwd'"), "{}", incomplete.message);
    assert!(of(&node.instances(), "escaping").is_empty() && agent.is_running());
}

fn replace(node: &Node, bytes: &[u8]) {
    fs::write(node.path("components/guest.wasm.new"), bytes).unwrap();
    fs::rename(node.path("components/guest.wasm.new"), node.path("components/guest.wasm")).unwrap();
}
