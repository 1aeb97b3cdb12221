//! Devices that come and go are noticed by the kernel's word, not by looking every now and then. All handlers here have an
//! interval of an hour.

use std::net::TcpListener;
use std::time::Duration;

use akri_agent::journal::Journal;
use akri_api::Instance;
use rustix::process::{Pid, Signal, kill_process};

use crate::health::get;
use crate::support::kubelet::{Admitted, Kubelet, View};
use crate::support::node::{Agent, Node, akri, all_devices, is_online, resource_of, wait_for};
use crate::support::udev::Machine;
use crate::support::udev::camera::Camera;
use crate::support::zram::Zrams;

/// The rule that knows the nodes which capture. On real cameras a program of udev's asks the driver, which made-up ones
/// don't have.
const CAPTURE: &str = "SUBSYSTEM==\"video4linux\", ATTR{index}==\"0\", ENV{ID_V4L_CAPABILITIES}=\":capture:\"\n";

/// A rule for cameras that only udevd's data can match.
const CAMERAS: &str = r#"      udevRules:
      - SUBSYSTEM=="video4linux", ENV{ID_V4L_CAPABILITIES}=="*:capture:*", ENV{ID_SERIAL}=="Acme_HD_Pro_Webcam_C920_CAM*"
"#;

/// A camera as a whole: its USB node and the one that captures.
const CAMERAS_WITH_ALL_NODES: &str = r#"      udevRules:
      - SUBSYSTEM=="usb", ENV{DEVTYPE}=="usb_device", ATTR{idVendor}=="046d"
      - SUBSYSTEM=="video4linux", ENV{ID_V4L_CAPABILITIES}=="*:capture:*"
      groupRecursive: true
"#;

fn node_with_long_interval() -> Node {
    let node = Node::new();
    let grants = format!("  grants:\n    udev:\n      subsystems: [\"*\"]\n{}", all_devices());
    node.write_handler("udev", "udev.wasm", &format!("{grants}  interval: 1h\n"));
    node
}

/// Returns the number of rounds for all Configurations.
fn rounds(agent: &Agent) -> usize {
    agent.log().matches("round done").count()
}

fn property<'a>(instance: &'a Instance, name: &str) -> &'a str {
    instance.spec.broker_properties.get(name).map(String::as_str).unwrap_or_default()
}

fn online(instances: &[Instance]) -> usize {
    instances.iter().filter(|instance| is_online(instance)).count()
}

#[tokio::test] // rule 25
async fn real_device_is_followed_without_udevd() {
    let Some(zrams) = Zrams::claim().await else { return };
    let node = node_with_long_interval();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    let name = zrams.next_name();
    let rule = format!("      udevRules:\n      - SUBSYSTEM==\"block\", KERNEL==\"{name}\"\n");
    node.write_configuration("disk", "udev", &rule, "  offlineGracePeriod: 1h\n");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agent = node.start_with(&["--listen", &address.to_string()]);
    agent.wait_for_log("round done").await;
    for uid in [None, node.instances().pop()] {
        let zram = zrams.plug();
        let plugged = node.wait_for_instances("the device", |list| online(list) == 1).await.remove(0);
        assert_eq!(property(&plugged, "UDEV_DEVNODE"), format!("/dev/{name}"));
        assert!(uid.is_none_or(|uid: Instance| uid.metadata.uid == plugged.metadata.uid), "the same Instance");
        let resource = resource_of(&plugged);
        kubelet.wait_for("its slot", |view| view.resource(&resource).allocatable() == 1).await;
        zram.unplug();
        kubelet.wait_for("no slot to hand out", |view| view.resource(&resource).allocatable() == 0).await;
        assert_eq!(kubelet.view(|view| view.resource(&resource).unhealthy.len()), 1, "free and offline is Unhealthy");
        node.wait_for_instances("Online=False", |list| list.len() == 1 && online(list) == 0).await;
    }

    // The device was new once; that it came back is not measured.
    assert!(get(address, "/metrics").1.contains("akri_plug_to_offer_seconds_count 1\n"));

    // Without a grace period a local device that is gone takes its Instance and its resource with it.
    let zram = zrams.plug();
    let plugged = node.wait_for_instances("the device", |list| online(list) == 1).await.remove(0);
    let resource = resource_of(&plugged);
    kubelet.wait_for("its slot", |view| view.resource(&resource).allocatable() == 1).await;
    node.write_configuration("disk", "udev", &rule, "");
    zram.unplug();
    node.wait_for_instances("no Instance", <[_]>::is_empty).await;
    let is_gone = |view: &View| {
        let resource = view.resource(&resource);
        resource.lists.last().is_some_and(Vec::is_empty) && !resource.connected
    };
    kubelet.wait_for("an empty list, then the end", is_gone).await;
    wait_for("no socket but the Configuration's", || node.sockets().len(), |count| *count <= 1).await;
}

#[tokio::test]
async fn cameras_are_published_after_udevd_finished() {
    let Some(mut machine) = Machine::new() else { return };
    machine.start_udevd(CAPTURE).await;
    let cameras = [Camera::in_port(1), Camera::in_port(2)];
    machine.plug(&cameras[..1]);
    machine.wait_until_idle().await;
    let node = node_with_long_interval();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_configuration("camera", "udev", CAMERAS, "");
    let _agent = node.start_by(machine.command(&akri()), &[]);
    let first = node.wait_for_instances("the camera that was there", |list| list.len() == 1).await.remove(0);

    machine.plug(&cameras[1..]);
    let both = node.wait_for_instances("the camera that came", |list| list.len() == 2).await;
    let mut found: Vec<&str> = both.iter().map(|instance| property(instance, "UDEV_DEVNODE")).collect();
    found.sort_unstable();
    assert_eq!(found, cameras.map(|camera| camera.video_node()));
    let second = both.iter().find(|instance| instance.metadata.uid != first.metadata.uid).unwrap();
    for instance in &both {
        kubelet.wait_for("a slot of each", |view| view.resource(&resource_of(instance)).allocatable() == 1).await;
    }

    machine.unplug(&cameras[1..]);
    node.wait_for_instances("the camera that stayed", |list| {
        list.len() == 1 && list[0].metadata.uid == first.metadata.uid
    })
    .await;
    kubelet.wait_for("the end of its resource", |view| !view.resource(&resource_of(second)).connected).await;
}

#[tokio::test]
async fn burst_of_600_uevents_causes_few_rounds() {
    let Some(mut machine) = Machine::new() else { return };
    machine.start_udevd(CAPTURE).await;
    let node = node_with_long_interval();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_configuration("camera", "udev", CAMERAS, "  offlineGracePeriod: 1h\n");
    let agent = node.start_by(machine.command(&akri()), &[]);
    agent.wait_for_log("round done").await;
    let cameras: Vec<Camera> = (1..=126).map(Camera::in_port).collect();

    let before = rounds(&agent);
    machine.plug(&cameras);
    let instances = node.wait_for_instances("every camera", |list| list.len() == cameras.len()).await;
    let mut nodes: Vec<String> = instances.iter().map(|i| property(i, "UDEV_DEVNODE").to_owned()).collect();
    let mut expected: Vec<String> = cameras.iter().map(Camera::video_node).collect();
    nodes.sort_unstable();
    expected.sort_unstable();
    assert_eq!(nodes, expected);
    kubelet
        .wait_for("every slot", |view| instances.iter().all(|i| view.resource(&resource_of(i)).allocatable() == 1))
        .await;
    let plugged = rounds(&agent) - before;
    eprintln!("{plugged} rounds for {} uevents", cameras.len() * 5);
    assert!(plugged < cameras.len(), "{plugged} rounds");

    machine.unplug(&cameras[..63]);
    machine.plug(&cameras[..20]);
    node.wait_for_instances("half of them and some", |list| list.len() == 126 && online(list) == 83).await;
}

#[tokio::test] // rule 18
async fn replugged_camera_keeps_its_instance() {
    let Some(mut machine) = Machine::new() else { return };
    machine.start_udevd(CAPTURE).await;
    let (before, other) = (Camera::in_port(1), Camera::in_port(2));
    let after = Camera { number: 77, video: 40, ..before };
    machine.plug(&[before, other]);
    machine.wait_until_idle().await;
    let node = node_with_long_interval();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_configuration("camera", "udev", CAMERAS_WITH_ALL_NODES, "  capacity: 2\n");
    let agent = node.start_by(machine.command(&akri()), &[]);
    let list = node.wait_for_instances("both", |list| list.len() == 2).await;
    let camera = list.iter().find(|instance| property(instance, "UDEV_DEVPATH") == before.devpath()).unwrap();
    let (name, resource) = (camera.metadata.name.clone().unwrap(), resource_of(camera));
    kubelet.wait_for("its slots", |view| view.resource(&resource).allocatable() == 2).await;
    let paths = |admitted: &Admitted| -> Vec<String> {
        admitted.response.devices.iter().map(|device| device.host_path.clone()).collect()
    };
    let first = kubelet.admit("first", "container", &resource, 1).await.unwrap();
    assert_eq!(paths(&first), [before.usb_node(), before.video_node()]);
    agent.wait_for_log("a container uses it").await;

    machine.unplug(&[before]);
    node.wait_for_instance(&name, "Online=False", |instance| !is_online(instance)).await;
    machine.plug(&[after]);
    let back = node.wait_for_instance(&name, "the camera again", is_online).await;
    assert_eq!(back.metadata.uid, camera.metadata.uid, "the same Instance");

    node.wait_for_instance(&name, "its new node", |i| property(i, "UDEV_DEVNODE_1") == after.video_node()).await;
    kubelet.wait_for("both slots again", |view| view.resource(&resource).allocatable() == 2).await;
    let second = kubelet.admit("second", "container", &resource, 1).await.unwrap();
    assert_eq!(paths(&second), [after.usb_node(), after.video_node()]);
    assert!(agent.stop(), "the agent stops");
    let (_, journaled) = Journal::open(&node.path("state")).unwrap();
    let entry = journaled.into_values().find(|entry| entry.key.name == name).unwrap();
    let kept = entry.claims.into_values().map(|claim| claim.edits.device_specs);
    let kept: Vec<Vec<String>> = kept.map(|specs| specs.into_iter().map(|spec| spec.host_path).collect()).collect();
    assert_eq!(kept, [paths(&first), paths(&second)], "the first container keeps what it got");
}

#[tokio::test]
async fn unreachable_udevd_is_waited_for() {
    let Some(zrams) = Zrams::claim().await else { return };
    let Some(mut machine) = Machine::with_real_devices() else { return };
    machine.start_udevd("SUBSYSTEM==\"block\", KERNEL==\"zram*\", ENV{STORY}=\"told\"\n").await;
    let node = node_with_long_interval();
    let rule = "      udevRules:\n      - SUBSYSTEM==\"block\", ENV{STORY}==\"told\"\n";
    node.write_configuration("disk", "udev", rule, "");
    let agent = node.start_by(machine.command_in_pod(&akri()), &[]);
    agent.wait_for_log("round done").await;
    let zram = zrams.plug();
    let device = node.wait_for_instances("the device as udevd sees it", |list| list.len() == 1).await.remove(0);
    assert_eq!(property(&device, "UDEV_DEVNODE"), format!("/dev/{}", zram.name()));
    zram.unplug();
    node.wait_for_instances("no device", <[_]>::is_empty).await;
}

#[tokio::test]
async fn lost_uevents_cause_a_full_round_and_unrelated_ones_none() {
    let Some(machine) = Machine::new() else { return };
    let node = node_with_long_interval();
    let rule = "      udevRules:\n      - SUBSYSTEM==\"video4linux\", ATTR{index}==\"0\"\n";
    node.write_configuration("camera", "udev", rule, "");
    let agent = node.start_by(machine.command(&akri()), &[]);
    agent.wait_for_log("round done").await;
    let before = rounds(&agent);
    for uevent in [
        &b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=net\0"[..],
        b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=\0",
        b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=video4\xfflinux\0",
        b"\0\0\0",
        b"x",
        b"libudev\0\xfe\xed\xca\xfe\0\0\0\0",
    ] {
        machine.inject(uevent);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rounds(&agent), before, "unrelated and invalid ones");
    machine.plug(&[Camera::in_port(1)]);
    node.wait_for_instances("the camera that came after them", |list| list.len() == 1).await;

    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    machine.plug_silently(&Camera::in_port(2));
    let filler = "x".repeat(1500);
    let uevent = format!("add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=net\0FILLER={filler}\0");
    for _ in 0..20_000 {
        machine.inject(uevent.as_bytes());
    }
    assert_eq!(node.instances().len(), 1);
    kill_process(pid, Signal::CONT).unwrap();
    agent.wait_for_log("uevents were lost").await;
    node.wait_for_instances("the camera without a uevent", |list| list.len() == 2).await;
}
