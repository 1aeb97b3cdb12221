//! This machine's own devices, from the kernel to a container.

use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, usage};

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
