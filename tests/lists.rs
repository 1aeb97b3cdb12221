//! The lists that the kubelet gets of an Instance's slots.

use akri_api::Instance;
use akri_grpc::deviceplugin::{AllocateRequest, ContainerAllocateRequest};
use tonic::Code;

use crate::support::kubelet::{AdmissionError, Kubelet};
use crate::support::node::{Agent, Node, is_online, name_of, resource_of, used};

/// A device that belongs to its node, with three slots, and time before a missing device is gone.
struct Fixture {
    node: Node,
    kubelet: Kubelet,
    agent: Agent,
    instance: Instance,
    resource: String,
}

impl Fixture {
    async fn new() -> Self {
        let node = Node::new();
        node.make_echo_local();
        let kubelet = Kubelet::start(&node.path("kubelet"));
        write(&node, 3, "[foo0]");
        let agent = node.start();
        let instance = node.wait_for_instances("the device", |list| list.len() == 1).await.remove(0);
        let resource = resource_of(&instance);
        kubelet.wait_for("three slots", |view| view.resource(&resource).allocatable() == 3).await;
        Self { node, kubelet, agent, instance, resource }
    }

    /// Waits until the kubelet knows these slots and no other: number and whether it is healthy.
    async fn shows(&self, what: &str, slots: &[(u32, bool)]) {
        let id = |slot: &u32| format!("{}-{slot}", name_of(&self.instance));
        let wanted: Vec<(String, bool)> = slots.iter().map(|(slot, healthy)| (id(slot), *healthy)).collect();
        self.kubelet.wait_for(what, |view| view.resource(&self.resource).lists.last() == Some(&wanted)).await;
    }

    async fn allocate(&self, ids: &[&str]) -> Result<(), Code> {
        let devices_ids = ids.iter().map(|id| format!("{}-{id}", name_of(&self.instance))).collect();
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] };
        self.kubelet.plugin(&self.resource).allocate(request).await.map(drop).map_err(|status| status.code())
    }
}

fn write(node: &Node, capacity: u32, devices: &str) {
    let details = format!("      descriptions: {devices}\n");
    let spec = format!("  capacity: {capacity}\n  offlineGracePeriod: 1h\n");
    node.write_configuration("echo", "debugEcho", &details, &spec);
}

#[tokio::test] // rule 2, rule 4, rule 12
async fn missing_device_keeps_slots_and_last_used_is_preferred() {
    let fixture = Fixture::new().await;
    let Fixture { node, kubelet, agent, instance, resource } = &fixture;
    let first = kubelet.admit("first", "container", resource, 1).await.unwrap();
    kubelet.admit("second", "container", resource, 2).await.unwrap();
    fixture.shows("held here is Healthy", &[(0, true), (1, true), (2, true)]).await;
    let all = node.wait_for_instance(name_of(instance), "three claims", |i| used(i).len() == 3).await;
    agent.sees_in_use(&used(&all).into_iter().map(str::to_owned).collect::<Vec<_>>()).await;
    assert_eq!(first.ids, [format!("{}-0", name_of(instance))], "the lowest first");

    // Offline: what is held stays Healthy, or its pod could not be admitted again; what is free is not to be had.
    write(node, 3, "[]");
    node.wait_for_instance(name_of(instance), "Online=False", |i| !is_online(i)).await;
    fixture.shows("offline and all held", &[(0, true), (1, true), (2, true)]).await;
    kubelet.remove_pod("second");
    fixture.shows("offline, two slots released", &[(0, true), (1, false), (2, false)]).await;
    assert_eq!(kubelet.view(|view| view.resource(resource).allocatable()), 1);
    let none = AdmissionError::TooFew { resource: resource.clone(), requested: 1, available: 0 };
    assert_eq!(kubelet.admit("late", "container", resource, 1).await, Err(none));
    assert_eq!(fixture.allocate(&["1"]).await, Err(Code::Unavailable), "should the kubelet ask all the same");
    kubelet.readmit("first").unwrap();

    write(node, 3, "[foo0]");
    fixture.shows("online again", &[(0, true), (1, true), (2, true)]).await;
    let third = kubelet.admit("third", "container", resource, 2).await.unwrap();
    agent.sees_in_use(&third.ids).await;

    // Of free slots the one that was used last is given, and not the lowest.
    for (pod, left) in [("first", 2), ("third", 0)] {
        kubelet.remove_pod(pod);
        node.wait_for_instance(name_of(instance), "the release", |i| used(i).len() == left).await;
    }
    fixture.shows("all free", &[(0, true), (1, true), (2, true)]).await;
    let next = kubelet.admit("next", "container", resource, 1).await.unwrap();
    assert!(third.ids.contains(&next.ids[0]), "{next:?}");
}
