//! This machine's own devices, from the kernel to a container.

use std::fs;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, is_online, usage, wait_for};
use crate::support::zram::Zrams;

const MEMORY: &str = "      udevRules:\n      - SUBSYSTEM==\"mem\", KERNEL==\"null|zero\"\n      permissions: rw\n";

#[tokio::test] // rule 21
async fn container_gets_a_real_device_and_releases_it() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_configuration("mem", "udev", MEMORY, "  brokerProperties: {COLOUR: black}\n");
    let agent = node.start();
    let instances = node.wait_for_instances("two devices", |list| list.len() == 2).await;
    let null = instances.iter().find(|i| i.spec.broker_properties["UDEV_DEVNODE"] == "/dev/null").unwrap();
    let name = null.metadata.name.clone().unwrap();
    let resource = format!("akri.sh/{name}");
    kubelet.wait_for("one slot", |view| view.resource(&resource).allocatable() == 1).await;

    let admitted = kubelet.admit("pod", "container", &resource, 1).await.unwrap();

    let hash = name.strip_prefix("mem-").unwrap().to_uppercase();
    let envs = &admitted.response.envs;
    for (key, value) in
        [("UDEV_DEVNODE", "/dev/null"), ("UDEV_DEVPATH", "/devices/virtual/mem/null"), ("COLOUR", "black")]
    {
        assert_eq!(envs[key], value);
        assert_eq!(envs[&format!("{key}_{hash}")], value);
    }
    let [device] = admitted.response.devices.as_slice() else { panic!("{admitted:?}") };
    assert_eq!((device.host_path.as_str(), device.permissions.as_str()), ("/dev/null", "rw"));
    let slot = format!("{name}-0");
    assert_eq!(admitted.response.annotations[&format!("akri.agent.slot-{slot}")], slot);
    let of_null =
        |list: &[akri_api::Instance]| list.iter().find(|i| i.metadata.name == null.metadata.name).unwrap().clone();
    node.wait_for_instances("the claim", |list| usage(&of_null(list)) == [(slot.as_str(), "node-a")]).await;

    agent.wait_for_log("a container uses it").await;
    kubelet.remove_pod("pod");
    node.wait_for_instances("the release", |list| usage(&of_null(list)) == [(slot.as_str(), "")]).await;
    kubelet.admit("next", "container", &resource, 1).await.unwrap();
}

#[tokio::test] // rule 25
async fn device_appears_disappears_and_returns() {
    let Some(zrams) = Zrams::claim().await else { return };
    let zram = zrams.plug();
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    let name = zram.name();
    let rule = format!("      udevRules:\n      - SUBSYSTEM==\"block\", KERNEL==\"{name}\"\n");
    node.write_configuration("disk", "udev", &rule, "  offlineGracePeriod: 1h\n");
    let _agent = node.start();
    let first = node.wait_for_instances("the device", |list| list.len() == 1 && is_online(&list[0])).await.remove(0);
    let resource = format!("akri.sh/{}", first.metadata.name.as_ref().unwrap());
    kubelet.wait_for("its slot", |view| view.resource(&resource).allocatable() == 1).await;

    zram.unplug();
    node.wait_for_instances("Online=False", |list| list.len() == 1 && !is_online(&list[0])).await;
    kubelet.wait_for("no slot to hand out", |view| view.resource(&resource).allocatable() == 0).await;
    assert_eq!(kubelet.view(|view| view.resource(&resource).unhealthy.len()), 1, "free and offline is Unhealthy");

    let again = zrams.plug();
    assert_eq!(again.name(), name, "the kernel gives the lowest number");
    let back =
        node.wait_for_instances("the device again", |list| list.len() == 1 && is_online(&list[0])).await.remove(0);
    assert_eq!(back.metadata.uid, first.metadata.uid, "the same Instance");
    kubelet.wait_for("its slot again", |view| view.resource(&resource).allocatable() == 1).await;

    // Without a grace period a local device that is gone takes its Instance and its resource with it.
    node.write_configuration("disk", "udev", &rule, "");
    again.unplug();
    node.wait_for_instances("no Instance", <[_]>::is_empty).await;
    kubelet
        .wait_for("an empty list, then the end", |view| {
            let resource = view.resource(&resource);
            resource.lists.last().is_some_and(Vec::is_empty) && !resource.connected
        })
        .await;
    wait_for(
        "no socket but the kubelet's and the Configuration's",
        || fs::read_dir(node.path("kubelet/device-plugins")).unwrap().count(),
        |count| *count <= 3,
    )
    .await;
}
