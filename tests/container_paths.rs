//! Device nodes at the paths in containers that a Configuration wants (rule 124).

use std::collections::BTreeMap;
use std::fs;
use std::process::Output;

use akri_grpc::discovery::DeviceSpec;
use serde_json::Value;
use tonic::Code;

use crate::support::kubelet::{AdmissionError, Admitted, Kubelet};
use crate::support::node::{Node, akri, name_of, wait_for};
use crate::support::remote::{Answer, Handler, devices};
use crate::support::udev::Machine;
use crate::support::udev::camera::Camera;

const NULL_AND_ZERO: &str = "      udevRules:\n      - SUBSYSTEM==\"mem\", KERNEL==\"null|zero\"\n";

/// Returns `spec.container` with one rule.
fn paths(host_path: &str, container_path: &str) -> String {
    format!("  container:\n    paths:\n    - hostPath: {host_path}\n      containerPath: '{container_path}'\n")
}

fn nodes(admitted: &Admitted) -> BTreeMap<&str, &str> {
    admitted.response.devices.iter().map(|device| (&*device.host_path, &*device.container_path)).collect()
}

#[tokio::test] // rule 124, rule 16
async fn devices_are_where_their_configuration_wants_them() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_configuration("mem", "udev", NULL_AND_ZERO, &paths("/dev/*", "/dev/plc{{index}}"));
    let agent = node.start();
    let instances = node.wait_for_instances("two devices", |list| list.len() == 2).await;
    kubelet.wait_for("both", |view| view.resource("akri.sh/mem").allocatable() == 2).await;
    let admitted = kubelet.admit("two", "container", "akri.sh/mem", 2).await.unwrap();
    let mut order: Vec<(&str, &str)> =
        instances.iter().map(|i| (name_of(i), i.spec.broker_properties["UDEV_DEVNODE"].as_str())).collect();
    order.sort_unstable();
    let numbered: BTreeMap<&str, &str> = [(order[0].1, "/dev/plc0"), (order[1].1, "/dev/plc1")].into();
    assert_eq!(nodes(&admitted), numbered);
    let envs = &admitted.response.envs;
    assert_eq!(envs["UDEV_DEVNODE"], "/dev/plc0");
    for (name, on_node) in &order {
        let suffix = name.rsplit('-').next().unwrap().to_uppercase();
        assert_eq!(envs[&format!("UDEV_DEVNODE_{suffix}")], numbered[on_node], "{name}");
    }
    assert!(instances.iter().all(|i| i.spec.broker_properties["UDEV_DEVNODE"] != "/dev/plc0"), "they tell of the node");

    // One path is wanted for both.
    kubelet.remove_pod("two");
    node.write_configuration("mem", "udev", NULL_AND_ZERO, &paths("/dev/*", "/dev/plc"));
    let is_placed = || {
        let found = node.discover(&fs::read_to_string(node.path("manifests/mem.yaml")).unwrap(), &[]);
        String::from_utf8(found.stdout).unwrap()
    };
    assert!(is_placed().contains("/dev/null -> /dev/plc\n"), "{}", is_placed());
    agent.wait_for_log("released: no container uses them").await;
    let admit = async |pod: &str, count| {
        kubelet.wait_for("both", |view| view.resource("akri.sh/mem").allocatable() == 2).await;
        kubelet.admit(pod, "container", "akri.sh/mem", count).await
    };
    let conflict = "container path '/dev/plc' is wanted for both '/dev/null' and '/dev/zero'";
    let mut refused = String::new();
    for attempt in 0.. {
        match admit(&format!("both-{attempt}"), 2).await {
            Err(AdmissionError::Refused(code, message)) => {
                assert_eq!(code, Code::FailedPrecondition);
                refused = message;
                break;
            }
            Ok(_) if attempt < 200 => kubelet.remove_pod(&format!("both-{attempt}")), // the round has not ended
            other => panic!("{other:?}"),
        }
    }
    assert!(
        refused.contains(conflict)
            || refused.contains(&conflict.replace("'/dev/null' and '/dev/zero'", "'/dev/zero' and '/dev/null'")),
        "{refused}"
    );
    let one = admit("one", 1).await.unwrap();
    assert_eq!(nodes(&one).into_values().collect::<Vec<_>>(), ["/dev/plc"]);
    assert_eq!(one.response.envs["UDEV_DEVNODE"], "/dev/plc");
}

fn edits(node: &Node) -> Vec<Value> {
    let Ok(entries) = fs::read_dir(node.path("cdi")) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
    let specs = paths.map(|path| serde_json::from_str::<Value>(&fs::read_to_string(path).unwrap()).unwrap());
    specs.map(|spec| spec["devices"][0]["containerEdits"].clone()).collect()
}

#[tokio::test] // rule 124, rule 8
async fn cdi_devices_are_where_their_configuration_wants_them() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    let null = NULL_AND_ZERO.replace("|zero", "");
    node.write_configuration("mem", "udev", &null, &paths("/dev/null", "/dev/plc"));
    let cdi = node.path("cdi");
    let _agent = node.start_with(&["--cdi-dir", cdi.to_str().unwrap(), "--cdi", "kubelet"]);
    let suffix = |edits: &Value| edits["env"][0].as_str().unwrap().split('=').next().unwrap().to_owned();
    let found = wait_for("a specification", || edits(&node), |edits| edits.len() == 1).await.remove(0);
    assert_eq!(
        (&found["deviceNodes"][0]["path"], &found["deviceNodes"][0]["hostPath"]),
        (&"/dev/plc".into(), &"/dev/null".into())
    );
    assert!(found["env"].to_string().contains("=/dev/plc\""), "{found} {}", suffix(&found));
    kubelet.wait_for("an id", |view| view.resource("akri.sh/mem").allocatable() == 1).await;
    let admitted = kubelet.admit("named", "container", "akri.sh/mem", 1).await.unwrap();
    assert_eq!((admitted.response.cdi_devices.len(), admitted.response.devices.len()), (1, 0));
    assert_eq!(admitted.response.envs["UDEV_DEVNODE"], "/dev/plc");

    // What depends on the container is in the answer, and in the file as for a container with nothing else.
    kubelet.remove_pod("named");
    node.write_configuration("mem", "udev", &null, &paths("/dev/null", "/dev/plc{{index}}"));
    let numbered = |edits: &Vec<Value>| edits[0]["deviceNodes"][0]["path"] == "/dev/plc0";
    wait_for("the number", || edits(&node), numbered).await;
    kubelet.wait_for("an id", |view| view.resource("akri.sh/mem").allocatable() == 1).await;
    let admitted = kubelet.admit("numbered", "container", "akri.sh/mem", 1).await.unwrap();
    assert!(admitted.response.cdi_devices.is_empty());
    assert_eq!(nodes(&admitted), [("/dev/null", "/dev/plc0")].into());
}

#[tokio::test] // rule 124, rule 35, threat 12
async fn paths_beyond_the_grant_withhold_a_device() {
    let node = Node::new();
    let _agent = node.start();
    let null = NULL_AND_ZERO.replace("|zero", "");
    for (host_path, container_path, expected) in [
        (
            "/dev/null",
            "/etc/ld.so.preload",
            "path '/etc/ld.so.preload' in the container is not covered by grants.containerPaths",
        ),
        ("/dev/null", "/dev/shm/x", "path '/dev/shm/x' in the container is not covered by grants.containerPaths"),
        ("/dev/null", "/dev/{{SERIAL}}", "the device has no property 'SERIAL'; it has UDEV_DEVNODE, UDEV_DEVPATH"),
        ("/dev/null", "/dev{{UDEV_DEVPATH}}/../..", "spec.container.paths[0].containerPath: "),
    ] {
        node.write_configuration("mem", "udev", &null, &paths(host_path, container_path));
        let messages = || {
            let condition = ["DiscoveryComplete", "Ready"].map(|kind| node.condition("mem", kind));
            condition.into_iter().flatten().map(|condition| condition.message).collect::<String>()
                + &fs::read_to_string(node.path("state/problems.json")).unwrap_or_default()
        };
        wait_for(expected, messages, |message| message.contains(expected)).await;
        assert_eq!(node.instances(), []);
    }
    let text = fs::read_to_string(node.path("manifests/mem.yaml")).unwrap();
    let refused = node.discover(&text.replace("/dev{{UDEV_DEVPATH}}/../..", "/dev/{{SERIAL}}"), &[]);
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(stderr.contains("the device has no property 'SERIAL'"), "{stderr}");
}

#[tokio::test] // rule 124, rule 32
async fn nodes_of_remote_handlers_are_placed_and_moved_by_edits() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    let write = |container_path: &str| {
        node.write_configuration("remote", "remote", "      -\n", &paths("/dev/ttyUSB*", container_path));
    };
    write("/dev/{{NAME}}");
    let _agent = node.start();
    let handler = Handler::start(&node, "remote", "remote", &[]);
    let spec = DeviceSpec {
        container_path: "/dev/ttyUSB77".to_owned(),
        host_path: "/dev/ttyUSB77".to_owned(),
        permissions: "rw".to_owned(),
    };
    let mut device = devices(&["one"]).remove(0);
    device.device_specs.push(spec);
    handler.set(Answer::Devices(vec![device]));
    handler.register(&node).await.unwrap();
    for (pod, path) in [("first", "/dev/one"), ("second", "/dev/one-two")] {
        kubelet.wait_for("its slot", |view| view.resource("akri.sh/remote").allocatable() == 1).await;
        let calls = handler.calls().len();
        if pod == "second" {
            write("/dev/{{NAME}}-two");
            wait_for("another stream", || handler.calls().len(), |now| *now > calls).await;
        }
        let placed = || {
            let instances = fs::read_to_string(node.path("state/journal.jsonl")).unwrap_or_default();
            instances.lines().last().unwrap_or_default().contains(&format!("\"containerPath\":\"{path}\""))
        };
        wait_for(path, placed, |placed| *placed).await;
        let admitted = kubelet.admit(pod, "container", "akri.sh/remote", 1).await.unwrap();
        assert_eq!(nodes(&admitted), [("/dev/ttyUSB77", path)].into());
        kubelet.remove_pod(pod);
    }
}

/// Runs `akri discover` on a machine, and returns what it prints.
fn discover(machine: &Machine, node: &Node, flags: &[&str]) -> Output {
    let mut command = machine.command(&akri());
    command.arg("discover").arg(node.path("manifests/camera.yaml")).arg("--components").arg(node.path("components"));
    command.env("XDG_CACHE_HOME", node.path("cache")).args(flags).output().unwrap()
}

#[tokio::test] // rule 124, rule 125
async fn links_of_udevd_and_serial_numbers_name_devices() {
    let Some(mut machine) = Machine::new() else { return };
    machine.start_udevd("").await;
    machine.plug(&[Camera::in_port(1), Camera::in_port(2)]);
    machine.wait_until_idle().await;
    let node = Node::new();
    let details = "      udevRules:\n      - SUBSYSTEM==\"video4linux\", ATTR{index}==\"0\"\n      properties: [ID_SERIAL_SHORT, idVendor]\n";
    let spec = paths("/dev/v4l/by-id/*CAM00002-video-index0", "/dev/camera-{{UDEV_IDVENDOR}}");
    let spec = format!("{spec}  instanceName: camera-{{{{UDEV_ID_SERIAL_SHORT}}}}\n");
    node.write_configuration("camera", "udev", details, &spec);
    let output = discover(&machine, &node, &[]);
    let table = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows[0],
        ["RESOURCE", "CONFIGURATION", "DEVICE", "ID", "PATHS"],
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!((rows[1][0], rows[1].len()), ("akri.sh/camera-cam00001", 4), "{table}");
    assert_eq!(
        (rows[2][0], &rows[2][4..]),
        ("akri.sh/camera-cam00002", &["/dev/video2", "->", "/dev/camera-046d"][..]),
        "{table}"
    );

    let explained = discover(&machine, &node, &["--explain", "/dev/video0"]);
    let explained = String::from_utf8(explained.stdout).unwrap();
    let apart = "told apart from 1 other devices that are found by ";
    let line = explained.lines().find(|line| line.contains(apart)).unwrap_or_else(|| panic!("{explained}"));
    for filter in ["ENV{ID_SERIAL_SHORT}==\"CAM00001\"", "ATTRS{serial}==\"CAM00001\"", "KERNELS==\"1-1\""] {
        assert!(line.contains(filter), "{line}");
    }
}
