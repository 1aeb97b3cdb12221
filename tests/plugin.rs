//! Device plugins and the kubelet: registrations, lists and calls, many resources, restarts.

use std::fs;

use akri_grpc::deviceplugin::{AllocateRequest, ContainerAllocateRequest, PreStartContainerRequest};
use akri_kubelet::pod_resources;
use akri_model::reclaim::ContainerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::Code;

use crate::support::kubelet::{AdmissionError, Authority, Kubelet, Options, View};

use fake_resource::{FakeResource, Node};

mod fake_resource;

#[tokio::test] // rule 1, rule 2
async fn resource_is_registered_listed_and_allocated() {
    for authority in [Authority::Localhost, Authority::Path] {
        let node = Node::new();
        let kubelet = Kubelet::start_with(node.path(), Options { authority, ..Options::default() });
        let fake_resource = FakeResource::new("camera-8120fe", 3);
        let _plugin = node.serve(&fake_resource);
        kubelet.wait_for("three devices", |view| view.resource(&fake_resource.name).allocatable() == 3).await;
        assert_eq!(kubelet.view(|view| view.resource(&fake_resource.name).options), (true, false), "{authority:?}");

        let admitted = kubelet.admit("pod", "container", &fake_resource.name, 2).await.unwrap();
        assert_eq!(admitted.ids, ["camera-8120fe-1", "camera-8120fe-2"], "the preferred ones");
        assert_eq!(admitted.response.envs["IDS"], "camera-8120fe-1,camera-8120fe-2");
        assert_eq!(fake_resource.requests(), [[admitted.ids.clone()]], "one call for a single container");

        let listed = pod_resources::list(node.path(), "akri.sh/").await.unwrap();
        let name = ContainerName { namespace: "default".into(), pod: "pod".into(), container: "container".into() };
        let users = admitted.ids.into_iter().map(|id| (id, [name.clone()].into())).collect();
        assert_eq!(listed.users, [(fake_resource.name.clone(), users)].into());
        assert_eq!(listed.containers, [name].into());
    }
}

#[tokio::test] // rule 7
async fn restarted_kubelet_gets_every_resource_and_pods_stay() {
    for authority in [Authority::Localhost, Authority::Path] {
        let node = Node::new();
        let mut kubelet = Kubelet::start_with(node.path(), Options { authority, ..Options::default() });
        let fake_resources: Vec<_> = (0..20).map(|i| FakeResource::new(&format!("device-{i}"), 2)).collect();
        let _plugins: Vec<_> = fake_resources.iter().map(|fake_resource| node.serve(fake_resource)).collect();
        let held = fake_resources[7].name.clone();
        kubelet.wait_for("a device", |view| view.resource(&held).allocatable() == 2).await;
        let admitted = kubelet.admit("pod", "container", &held, 1).await.unwrap();
        let all = |view: &View| {
            view.resources.len() == 20 && view.resources.values().all(|resource| resource.allocatable() == 2)
        };
        for _ in 0..3 {
            kubelet.wait_for("all resources", all).await;
            kubelet.restart();
            assert!(kubelet.view(|view| view.pods.len() == 1 && view.resources.len() == 20));
        }
        kubelet.wait_for("all resources", all).await;
        kubelet.readmit("pod").unwrap();
        assert_eq!(kubelet.admit("pod", "container", &held, 1).await.unwrap(), admitted, "from the checkpoint");
        assert_eq!(fake_resources[7].requests().len(), 1, "nothing is allocated twice");
        node.registered(20).await;
        assert_eq!(node.sockets().len(), 20);
    }
}

#[tokio::test] // rule 3
async fn late_or_refusing_kubelet_is_tried_again_and_pods_wait() {
    let node = Node::fresh(tempfile::tempdir().unwrap());
    let fake_resource = FakeResource::new("unsteady", 3);
    let plugin = node.serve(&fake_resource);
    let mut counts = node.plugins.counts();
    counts.wait_for(|counts| (counts.wanted, counts.registered) == (1, 0)).await.unwrap();
    assert!(!node.path().join("device-plugins").exists(), "the kubelet makes its directory itself");
    let mut kubelet = Kubelet::start(node.path());
    kubelet.wait_for("three devices", |view| view.resource(&fake_resource.name).allocatable() == 3).await;
    kubelet.stop();
    node.registered(0).await;
    kubelet.start_again();
    kubelet.wait_for("three devices again", |view| view.resource(&fake_resource.name).allocatable() == 3).await;

    for pod in ["hasty", "late", "early"] {
        kubelet.admit(pod, "container", &fake_resource.name, 1).await.unwrap();
    }
    kubelet.refuse_registrations(true);
    kubelet.restart();
    let name = fake_resource.name.clone();
    assert_eq!(kubelet.readmit("hasty"), Err(AdmissionError::NoHealthy(name.clone())));
    kubelet.wait_for("two attempts", |view| view.refused >= 2).await;
    let counts = *node.plugins.counts().borrow();
    assert_eq!((counts.wanted, counts.registered), (1, 0));
    assert!(node.sockets().len() <= 1, "an attempt cleans up after itself");
    fake_resource.set_health(1, false);
    kubelet.refuse_registrations(false);
    kubelet.wait_for("two healthy devices", |view| view.resource(&name).allocatable() == 2).await;
    assert_eq!(kubelet.readmit("late"), Err(AdmissionError::NoLongerHealthy(name.clone())));
    assert_eq!(kubelet.readmit("early"), Ok(()));
    let unknown = kubelet.admit("other", "container", "akri.sh/unknown", 1).await;
    assert_eq!(unknown, Err(AdmissionError::Unregistered("akri.sh/unknown".into())));
    plugin.close().await;
}

#[tokio::test] // rule 3
async fn lost_socket_is_bound_again_also_with_a_late_disconnect() {
    for late_disconnect in [false, true] {
        let node = Node::new();
        let kubelet = Kubelet::start_with(node.path(), Options { late_disconnect, ..Options::default() });
        let fake_resource = FakeResource::new("lost", 1);
        let _plugin = node.serve(&fake_resource);
        kubelet.wait_for("one device", |view| view.resource(&fake_resource.name).allocatable() == 1).await;
        let first = kubelet.view(|view| view.resource(&fake_resource.name).endpoint);
        fs::remove_file(node.path().join("device-plugins").join(&first)).unwrap();
        let is_back = |view: &View| {
            let resource = view.resource(&fake_resource.name);
            let after_disconnect = resource.late_disconnects > 0 && resource.registrations == 3;
            let is_steady = !late_disconnect || after_disconnect;
            resource.endpoint != first && resource.connected && resource.allocatable() == 1 && is_steady
        };
        kubelet.wait_for("another socket with one device", is_back).await;
        assert_eq!(node.sockets().len(), 1);
        kubelet.admit("pod", "container", &fake_resource.name, 1).await.unwrap();
    }
}

/// A second after registering, when its list is due again, the kubelet says that it has it (rule 49).
#[tokio::test] // rule 49
async fn list_that_the_kubelet_has_kept_is_not_sent_again() {
    let node = Node::new();
    let kubelet = Kubelet::start(node.path());
    let (kept, lost) = (FakeResource::new("kept", 12), FakeResource::new("lost", 2));
    kept.set_health(1, false);
    let _plugins = [node.serve(&kept), node.serve(&lost)];
    let listed = |view: &View| [&kept, &lost].map(|fake_resource| view.resource(&fake_resource.name).lists.len());
    kubelet.wait_for("both lists", |view| listed(view) == [1, 1]).await;
    kubelet.forget_health(&lost.name);
    let is_back =
        |view: &View| view.resource(&lost.name).registrations == 2 && view.resource(&lost.name).allocatable() == 2;
    kubelet.wait_for("the one that it has lost, registered again", is_back).await;
    kubelet.wait_for("the questions of both", |view| view.allocatable_answers > 0).await;
    assert_eq!(kubelet.view(|view| listed(view)), [1, 2]);
}

#[tokio::test] // rule 1, rule 2, rule 16
async fn unused_calls_and_peers_without_http2_affect_no_other() {
    let node = Node::new();
    let kubelet = Kubelet::start(node.path());
    let fake_resource = FakeResource::new("odd", 2);
    let _plugin = node.serve(&fake_resource);
    kubelet.wait_for("two devices", |view| view.resource(&fake_resource.name).allocatable() == 2).await;
    let admitted = kubelet.admit("pod", "container", &fake_resource.name, 1).await.unwrap();
    let mut plugin = kubelet.plugin(&fake_resource.name);

    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    plugin.pre_start_container(PreStartContainerRequest { devices_ids: admitted.ids }).await.unwrap();
    let unclaimed = PreStartContainerRequest { devices_ids: ids(&["odd-0"]) };
    assert_eq!(plugin.pre_start_container(unclaimed).await.unwrap_err().code(), Code::NotFound);

    let allocate = |containers: Vec<Vec<String>>| AllocateRequest {
        container_requests: containers
            .into_iter()
            .map(|devices_ids| ContainerAllocateRequest { devices_ids })
            .collect(),
    };
    let two = plugin.allocate(allocate(vec![ids(&["odd-0"]), ids(&["odd-1"])])).await.unwrap().into_inner();
    let envs: Vec<_> = two.container_responses.iter().map(|response| response.envs["IDS"].as_str()).collect();
    assert_eq!(envs, ["odd-0", "odd-1"], "one response per container");
    let too_many = plugin.allocate(allocate(vec![vec!["odd-0".into(); 5000]])).await.unwrap_err();
    assert_eq!(too_many.code(), Code::InvalidArgument);
    let too_long = plugin.allocate(allocate(vec![vec!["x".repeat(3 << 20)]])).await.unwrap_err();
    assert_eq!(too_long.code(), Code::OutOfRange);
    assert_eq!(fake_resource.requests().len(), 2);

    for garbage in
        [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff", b""]
    {
        let mut peer = UnixStream::connect(&node.sockets()[0]).await.unwrap();
        peer.write_all(garbage).await.unwrap();
        peer.shutdown().await.unwrap();
        // It is hung up on, with or without a word.
        let _ = peer.read_to_end(&mut Vec::new()).await;
    }
    kubelet.admit("next", "container", &fake_resource.name, 1).await.unwrap();
}

/// Registers many and prints how long it took, for people: nothing depends on the time.
async fn many(count: usize) {
    let node = Node::new();
    let mut kubelet = Kubelet::start(node.path());
    let fake_resources: Vec<_> = (0..count).map(|i| FakeResource::new(&format!("device-{i:06}"), 2)).collect();
    let start = Instant::now();
    let plugins: Vec<_> = fake_resources.iter().map(|fake_resource| node.serve(fake_resource)).collect();
    node.registered(count).await;
    let registered = start.elapsed();
    let all = |view: &View| {
        view.resources.len() == count && view.resources.values().all(|resource| resource.allocatable() == 2)
    };
    kubelet.wait_for("all devices of all resources", all).await;
    let listed = start.elapsed();
    let start = Instant::now();
    kubelet.restart();
    kubelet.wait_for("all devices again", all).await;
    let again = start.elapsed();
    println!("{count} resources: registered {registered:?}, listed {listed:?}, back after a restart {again:?}");
    node.registered(count).await;
    assert_eq!(node.sockets().len(), count);
    let start = Instant::now();
    node.plugins.shutdown().await;
    println!("{count} resources: closed {:?}", start.elapsed());
    drop(plugins);
}

#[tokio::test(flavor = "multi_thread")] // rule 3
async fn thousand_resources_are_served() {
    many(1000).await;
}
