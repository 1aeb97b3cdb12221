//! `akri why` names the cause of what operators meet, in one command.

use std::fs;

use akri_api::condition::Condition;
use akri_grpc::discovery::RegisterDiscoveryHandlerRequest;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, resource_of, wait_for};
use crate::support::onvif::camera::{Camera, Lock, uuid};
use crate::support::onvif::place::Place;
use crate::support::remote::{NETWORK, register};

/// Lines of a chain.
const LINES: usize = 10;

/// Returns the end of the chain of a name, and what to do.
fn why(node: &Node, name: &str) -> String {
    let state = node.path("state").display().to_string();
    let output = node.akri(&["why", name, "--state-dir", &state]);
    if !output.stderr.is_empty() {
        return format!("{output:?}"); // the agent has not begun
    }
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(text.lines().count() <= LINES, "{text}");
    assert_eq!(output.status.code(), Some(i32::from(text.contains("ends    "))), "{output:?}");
    text
}

/// Waits until the chain of a name ends at a link with these words.
async fn ends(node: &Node, name: &str, link: &str, words: &[&str]) {
    let is_named = |text: &String| {
        text.contains(&format!("ends    {link}: "))
            && words.iter().all(|part| text.contains(part))
            && text.contains("to do   ")
    };
    wait_for(&format!("{name} ends at {link} with {words:?}"), || why(node, name), is_named).await;
}

fn write_rules(node: &Node, name: &str, rule: &str) {
    node.write_configuration(name, "udev", &format!("      udevRules:\n      - {rule}\n"), "");
}

#[tokio::test] // rule 138
async fn why_names_what_hides_devices_of_the_kernel() {
    let node = Node::new();
    let grants = "  interval: 1h\n  grants:\n    udev: {subsystems: [mem]}\n    devicePaths: [/dev/zero]\n";
    node.write_handler("udev", "udev.wasm", grants);
    write_rules(&node, "path", r#"'SUBSYSTEM=="mem", KERNEL=="full"'"#);
    write_rules(&node, "subsystem", r#"'SUBSYSTEM=="tty", KERNEL=="ttyS0"'"#);
    write_rules(&node, "rule", r#"'SUBSYSTEM=="mem", KERNEL=="null", ATTR{colour}=="red"'"#);
    write_rules(&node, "typo", r#"'SUBSYSTEM="mem"'"#);
    write_rules(&node, "zero", r#"'SUBSYSTEM=="mem", KERNEL=="zero"'"#);
    let paths = |name: &str, paths: [&str; 2]| {
        let rule = |path: &str| format!("    - {{hostPath: '{path}', containerPath: '/dev/{{{{index}}}}'}}\n");
        let rules = "      udevRules:\n      - 'SUBSYSTEM==\"mem\", KERNEL==\"zero\"'\n";
        let spec = format!("  container:\n    paths:\n{}", paths.map(rule).concat());
        node.write_configuration(name, "udev", rules, &spec);
    };
    paths("twice", ["/dev/zero", "/dev/z*"]);
    paths("unmatched", ["/dev/zero", "/dev/plc*"]);
    let _agent = node.start();
    let field = "of DiscoveryHandler 'udev' (";
    let path = ["'/dev/full' is not covered by grants.devicePaths", field, "devicePaths: ['/dev/full'] would allow it"];
    ends(&node, "/dev/full", "devices", &path).await;
    let subsystem = ["devices of subsystem 'tty'", "grants.udev", field, "{subsystems: ['tty']} would allow it"];
    ends(&node, "subsystem", "devices", &subsystem).await;
    ends(&node, "/dev/null", "devices", &["left out by rule 1, ATTR{colour}==\"red\": '/dev/null'"]).await;
    ends(&node, "default/typo", "details", &["udevRules[0]: '=' assigns"]).await;
    ends(&node, "/dev/zero", "devices", &["'/dev/zero' matches '/dev/zero' and '/dev/z*'", "default/twice"]).await;
    ends(
        &node,
        "/dev/plc*",
        "devices",
        &["left out by `container.paths`, since no device has such a path: '/dev/plc*'"],
    )
    .await;
    ends(&node, "/dev/nothing", "devices", &["/dev/nothing: no object is about it", "more, of default/"]).await;
}

#[tokio::test] // rule 138
async fn why_names_what_a_configuration_lacks() {
    let node = Node::new();
    node.add_guest("");
    node.write_configuration("broken", "guest", "      panic\n", "");
    node.write_configuration("absent", "modbus", "      {}\n", "");
    node.write_echo("taken", 1, &["one"]);
    let other = fs::read_to_string(node.path("manifests/taken.yaml")).unwrap();
    node.write("manifests/other.yaml", &other.replace("  name: taken\n", "  name: taken\n  namespace: other\n"));
    node.write_configuration("cam", "remote", "      {}\n", "");
    let secret =
        "    discoveryProperties:\n    - {name: p, valueFrom: {secretKeyRef: {name: cameras, key: password}}}\n";
    node.write_configuration("secret", "debugEcho", "      descriptions: []\n", secret);
    let agent = node.start_with(&["--allow-network-handlers", "10.1.0.0/16"]);
    ends(&node, "secret", "properties", &["'p'", "Secret default/cameras"]).await;
    ends(&node, "absent", "handler", &["no discovery handler 'modbus'"]).await;
    ends(&node, "default/taken", "Instance", &["Configuration other/taken, which was first", "rename one"]).await;
    ends(&node, "broken", "handler", &["quarantined after 5 failed rounds"]).await;
    let request = RegisterDiscoveryHandlerRequest {
        name: "remote".to_owned(),
        endpoint: "http://10.2.0.7:10000".to_owned(),
        endpoint_type: NETWORK,
        shared: true,
    };
    register(&node, request).await.unwrap_err();
    ends(&node, "cam", "handler", &["10.2.0.7:10000 is not in a network allowed by --allow-network-handlers"]).await;
    node.write("manifests/bad.yaml", "kind: Configuratoin\n");
    ends(&node, "bad.yaml", "manifest", &["bad.yaml:1", "Configuratoin"]).await;
    node.write(
        "manifests/bad.yaml",
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {name: never}\nspec: {capcity: 1}\n",
    );
    ends(&node, "never", "manifest", &["bad.yaml", "did you mean 'capacity'?", "default/never"]).await;
    assert!(agent.stop());
    ends(&node, "secret", "agent", &["no agent runs on"]).await;
    node.remove("manifests/other.yaml");
    let _again = node.start();
    let kept = ["Configuration 'taken' is in no valid manifest", "bad.yaml", "correct the file"];
    ends(&node, "one", "manifest", &kept).await;
}

#[tokio::test] // rule 138
async fn why_names_the_kubelet_and_the_pod_that_has_the_slot() {
    let node = Node::new();
    node.write_echo("cam", 1, &["one"]);
    let agent = node.start();
    let instances = node.wait_for_instances("the device", |list| list.len() == 1).await;
    ends(&node, "one", "kubelet", &["no kubelet listens on", "no pod is offered the devices"]).await;
    let kubelet = Kubelet::start(&node.path("kubelet"));
    kubelet.wait_for("the camera", |view| view.resource("akri.sh/cam").allocatable() == 1).await;
    wait_for("a chain that holds", || why(&node, "one"), |text| text.contains("to do   nothing")).await;
    kubelet.admit("pod", "container", "akri.sh/cam", 1).await.unwrap();
    agent.wait_for_log("a container uses it").await;
    let resource = resource_of(&instances[0]);
    for name in [resource.as_str(), "cam", "one"] {
        ends(&node, name, "slots", &["all 1 slots of", "pod default/pod (container container)", "capacity"]).await;
    }
    node.write_echo("cam", 1, &[]);
    ends(&node, &resource, "Instance", &["is offline"]).await;
}

#[tokio::test] // rule 138
async fn why_names_the_filter_and_the_password_of_cameras() {
    let cameras = [Camera::new(0), Camera::with_lock(1, Lock::Token("correct horse"))];
    let Some(place) = Place::new(cameras) else { return };
    let filter = format!("streamUri: true\nuuids: {{action: Exclude, items: ['{}']}}", uuid(0));
    place.write_cameras(&filter, &[("username_default", "admin", false), ("password_default", "wrong horse", true)]);
    let _agent = place.start();
    ends(&place.node, &uuid(0), "devices", &["left out by the filter on its UUID"]).await;
    let complete = || place.node.condition("camera", "DiscoveryComplete");
    let refused = |found: &Option<Condition>| found.as_ref().is_some_and(|found| found.message.contains("refuses"));
    wait_for("the password refused", complete, refused).await;
    let chain = why(&place.node, "camera");
    assert!(chain.contains("refuses") && chain.contains("password_default"), "{chain}");
}
