//! CDI specification files beside the device plugins (rule 8).

use std::fs;

use serde_json::Value;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, name_of, wait_for};

const NULL: &str = "      udevRules:\n      - SUBSYSTEM==\"mem\", KERNEL==\"null\"\n";

fn specs(node: &Node) -> Vec<Value> {
    let Ok(entries) = fs::read_dir(node.path("cdi")) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
    paths.map(|path| serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()).collect()
}

#[tokio::test] // rule 8, rule 26
async fn cdi_spec_exists_as_long_as_its_instance() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_configuration("mem", "udev", NULL, "");
    let agent = node.start_with(&["--cdi-dir", node.path("cdi").to_str().unwrap()]);
    let specs_of = || specs(&node);
    let found = wait_for("a specification", specs_of, |specs| specs.len() == 1).await.remove(0);
    assert_eq!(found["kind"], "akri.sh/mem");
    let edits = &found["devices"][0]["containerEdits"];
    assert_eq!(edits["deviceNodes"][0]["hostPath"], "/dev/null");
    assert!(edits["env"].as_array().unwrap().contains(&"UDEV_DEVNODE=/dev/null".into()));
    let instance = node.wait_for_instances("the Instance", |list| list.len() == 1).await.remove(0);
    assert_eq!(instance.spec.cdi_name, format!("akri.sh/mem={}", found["devices"][0]["name"].as_str().unwrap()));

    let resource = format!("akri.sh/{}", name_of(&instance));
    kubelet.wait_for("a slot", |view| view.resource(&resource).allocatable() == 1).await;
    let admitted = kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    assert!(admitted.response.cdi_devices.is_empty(), "the kubelet is not told by default");
    assert_eq!(admitted.response.devices.len(), 1);

    node.write_configuration("mem", "udev", NULL, "  brokerProperties: {COLOUR: black}\n");
    let coloured = |specs: &Vec<Value>| specs[0]["devices"][0].to_string().contains("COLOUR=black");
    wait_for("the new property", specs_of, coloured).await;
    agent.kill();

    // The kubelet gets the name instead of the edits, if the agent is told so.
    let agent = node.start_with(&["--cdi-dir", node.path("cdi").to_str().unwrap(), "--cdi", "kubelet"]);
    kubelet.remove_pod("pod");
    kubelet.wait_for("an id", |view| view.resource("akri.sh/mem").allocatable() == 1).await;
    let response = kubelet.admit("next", "container", "akri.sh/mem", 1).await.unwrap().response;
    assert_eq!(response.cdi_devices.iter().map(|device| &device.name).collect::<Vec<_>>(), [&instance.spec.cdi_name]);
    assert!(response.devices.is_empty() && response.mounts.is_empty());
    assert_eq!(response.envs["UDEV_DEVNODE"], "/dev/null");
    agent.kill();
    node.remove("manifests/mem.yaml");
    let _agent = node.start_with(&["--cdi-dir", node.path("cdi").to_str().unwrap()]);
    wait_for("no specification", specs_of, Vec::is_empty).await;
}

/// Without a kubelet nobody counts who uses a device, and nobody keeps containers from one that is offline.
#[tokio::test] // rule 8
async fn offline_device_has_no_specification() {
    let node = Node::new();
    let write = |devices: &str| {
        let details = format!("      descriptions: {devices}\n");
        node.write_configuration("cam", "debugEcho", &details, "  offlineGracePeriod: 1h\n");
    };
    write("[one]");
    let _agent = node.start_with(&["--cdi-dir", node.path("cdi").to_str().unwrap()]);
    let specs_of = || specs(&node);
    for devices in [1, 0, 1] {
        write(if devices == 1 { "[one]" } else { "[]" });
        wait_for("the device in reach", specs_of, |specs| specs.len() == devices).await;
        assert_eq!(node.instances().len(), 1);
    }
    let shown = node.akri(&["get", "instances", "--state-dir", node.path("state").to_str().unwrap()]);
    let table = String::from_utf8(shown.stdout).unwrap();
    assert!(table.lines().any(|line| line.split_whitespace().nth(4) == Some("-")), "{table}");
}
