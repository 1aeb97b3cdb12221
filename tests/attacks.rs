//! Attacks of several kinds beside innocent handlers: each is delayed by none of them, and nothing is handed out that was not
//! granted.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use akri_api::{DiscoveryHandlerStatus, HandlerState, Instance};
use akri_grpc::discovery::{Device, DeviceSpec, RegisterDiscoveryHandlerRequest};
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::{Bytes, Frame};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, guest, is_online, name_of, resource_of, rss_kib, used, wait_for};
use crate::support::registry::{Body, FakeRegistry, Image, digest_of, fake};
use crate::support::remote::{Answer, Handler, register};

/// Changes the devices of debugEcho, and waits until they are published; returns how long that took.
async fn echo(node: &Node, device: &str) -> Duration {
    let began = Instant::now();
    node.write_echo("echo", 1, &[device]);
    let is_shown = |instance: &Instance| instance.spec.broker_properties.values().any(|value| value == device);
    node.wait_for_instances(device, |list| list.iter().any(is_shown)).await;
    began.elapsed()
}

/// A node that was missing when its device was found, and since is a link to what is not granted.
#[tokio::test] // rule 137, threat 63
async fn node_that_leads_elsewhere_since_is_not_handed_out() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_configuration("cam", "cam", "      -\n", "  capacity: 2\n");
    fs::create_dir(node.path("nodes")).unwrap();
    let nodes = node.path("nodes").canonicalize().unwrap();
    let _agent = node.start_with(&["--remote-path", &format!("{}/**", nodes.display())]);
    let backup = nodes.join("backup");
    let (container_path, host_path) = ("/dev/backup".to_owned(), backup.display().to_string());
    let device_specs = vec![DeviceSpec { container_path, host_path, permissions: "rw".to_owned() }];
    let cam = Handler::start(&node, "cam", "cam", &[]);
    cam.set(Answer::Devices(vec![Device { id: "one".to_owned(), device_specs, ..Device::default() }]));
    cam.register(&node).await.unwrap();
    let found = node.wait_for_instances("the device", |list| list.len() == 1 && is_online(&list[0])).await;
    let (name, resource) = (name_of(&found[0]), resource_of(&found[0]));
    kubelet.wait_for("two slots", |view| view.resource(&resource).allocatable() == 2).await;
    kubelet.admit("before", "container", &resource, 1).await.unwrap();
    symlink("/dev/null", &backup).unwrap();
    let refused = kubelet.admit("after", "container", &resource, 1).await.unwrap_err().to_string();
    assert!(refused.contains("leads to '/dev/null', which is not granted"), "{refused}");
    node.wait_for_instance(name, "one slot", |instance| used(instance).len() == 1).await;
    fs::remove_file(&backup).unwrap();
    kubelet.wait_for("a free slot", |view| view.resource(&resource).allocatable() == 2).await;
    kubelet.admit("again", "container", &resource, 1).await.unwrap();
}

/// Its component can't be loaded, so that nobody knows its `shared`: the remote handler gets no Secrets of its Configurations.
#[tokio::test] // rule 132, threat 58
async fn remote_handler_is_not_asked_beside_a_refused_component() {
    let node = Node::new();
    node.add_guest("");
    node.write_configuration("cam", "guest", "      devices:2\n", "  offlineGracePeriod: 0s\n");
    let agent = node.start();
    node.wait_for_instances("the component's devices", |list| list.len() == 2).await;
    agent.kill();
    node.write("components/guest.wasm", "no component");
    let other = Handler::start(&node, "guest", "other", &["r1"]).shared();
    let agent = node.start();
    other.register(&node).await.unwrap();
    node.wait_for_condition("cam", "HandlerAvailable", "False", "NoHandler").await;
    echo(&node, "foo0").await;
    assert_eq!(other.calls().len(), 0);
    assert_eq!(node.instances().len(), 3, "its devices stay");
    fs::copy(guest(), node.path("components/guest.new")).unwrap();
    fs::rename(node.path("components/guest.new"), node.path("components/guest.wasm")).unwrap();
    agent.wait_for_log("endpoint removed: the component of that name has shared=false").await;
    node.wait_for_condition("cam", "Ready", "True", "Discovered").await;
    assert_eq!(other.calls().len(), 0);
}

#[tokio::test] // rule 136, threat 66
async fn slow_registry_delays_no_other() {
    let bytes = fs::read(guest()).unwrap();
    let image = Image::of(&bytes);
    let (digest, slowly) = (digest_of(image.manifest.as_bytes()), image.clone());
    let slow = FakeRegistry::start(None, move |request| match request.uri().path().contains("/blobs/") {
        true => trickle(Duration::from_millis(20)),
        false => slowly.answer(request),
    })
    .await;
    let quick = fake(image).await;
    let node = Node::new();
    let write = |object: &str, name: &str, registry: &FakeRegistry| {
        let text = format!(
            "apiVersion: akri.sh/v0\nkind: DiscoveryHandler\nmetadata: {{name: {object}}}\nspec:\n  name: {name}\n  \
             component:\n    image: {}/a@{digest}\n",
            registry.name()
        );
        node.write(&format!("components/{object}.yaml"), &text);
    };
    write("a-slow", "slow", &slow);
    let _agent = node.start_with(&["--insecure-registry", &slow.name(), "--insecure-registry", &quick.name()]);
    let asked = || slow.requests().iter().filter(|line| line.contains("/blobs/")).count();
    wait_for("the slow body", asked, |asked| *asked > 0).await;
    write("guest", "guest", &quick);
    let is_loaded = |status: &DiscoveryHandlerStatus| status.digest.is_some();
    node.wait_for_handler("guest", "the component of the other registry", is_loaded).await;
    let is_pulling = |status: &DiscoveryHandlerStatus| status.state == HandlerState::Loading;
    node.wait_for_handler("a-slow", "the slow one", is_pulling).await;
}

/// A body of one byte each `pause`, without an end.
fn trickle(pause: Duration) -> Response<Body> {
    let bytes = tokio_stream::iter(std::iter::repeat_with(|| Ok(Frame::data(Bytes::from_static(b"x")))));
    Response::new(BodyExt::boxed_unsync(StreamBody::new(Box::pin(bytes.throttle(pause)))))
}

/// Four Configurations of one handler, each with 250 secrets and 150 devices, in the process of another handler.
#[tokio::test] // rule 134, threat 50
async fn many_secrets_and_devices_end_no_shared_process() {
    let node = Node::new();
    node.add_guest("  grants: {secrets: [\"*\"]}\n");
    let words: Vec<String> = (0..250).map(|n| format!("k{n}: a-secret-word-of-many-{n}")).collect();
    let secret =
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: many}}\nstringData: {{{}}}\n", words.join(", "));
    node.write("manifests/secret.yaml", &secret);
    let property = |n| format!("    - {{name: p{n}, valueFrom: {{secretKeyRef: {{name: many, key: k{n}}}}}}}\n");
    let properties: String = (0..250).map(property).collect();
    for number in 0..4 {
        let spec = format!("    discoveryProperties:\n{properties}");
        node.write_configuration(&format!("many-{number}"), "guest", "      devices:150\n", &spec);
    }
    let agent = node.start();
    let devices = |list: &[Instance]| list.iter().filter(|one| one.spec.configuration_name.starts_with("many")).count();
    node.wait_for_instances("many devices", |list| devices(list) == 600).await;
    for number in 0..5 {
        let took = echo(&node, &format!("foo{number}")).await;
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
    let log = agent.log();
    for word in ["sandbox process does not answer", "sandbox process ended", "Quarantined"] {
        assert!(!log.contains(word), "{word}");
    }
}

#[tokio::test] // threat 64
async fn thousands_of_broken_manifests_delay_no_good_one() {
    let node = Node::new();
    for number in 0..10_000 {
        let text =
            format!("apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: broken-{number}}}\nspec: 3\n");
        fs::write(node.path(&format!("manifests/broken-{number}.yaml")), text).unwrap();
    }
    let agent = node.start();
    for device in ["foo0", "foo1"] {
        let took = echo(&node, device).await;
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
    let lines = agent.log().lines().filter(|line| line.contains("broken-")).count();
    assert!(lines <= 40, "{lines} lines of ten and a count for each reading");
    agent.kill();
    let _agent = node.start();
    let took = echo(&node, "foo2").await;
    assert!(took < Duration::from_secs(30), "after a restart: {took:?}");
}

/// A Configuration whose devices have 300,000 slots between them, at once and by an edit.
#[tokio::test] // threat 68
async fn slots_of_a_configuration_are_bounded() {
    let node = Node::new();
    let devices: Vec<String> = (0..300).map(|number| format!("d{number}")).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    node.write_echo("many", 1000, &devices);
    let _agent = node.start();
    node.wait_for_condition("many", "Ready", "False", "NotPublished").await;
    let slots = |list: &[Instance]| list.iter().map(|one| one.spec.capacity).sum::<i64>();
    let is_most = |list: &[Instance]| (250_000..=262_144).contains(&slots(list));
    node.wait_for_instances("as many as fit", |list| list.len() == 262 && is_most(list)).await;
    node.write_echo("many", 1, &devices);
    node.wait_for_instances("all with one slot", |list| list.len() == 300 && slots(list) == 300).await;
    node.write_echo("many", 1000, &devices);
    node.wait_for_instances("fewer slots than wanted", |list| list.len() == 300 && is_most(list)).await;
    assert!(echo(&node, "foo0").await < Duration::from_secs(20));
}

/// A server in whose name everyone who connects is sent the first words, and then the others for ever. What it gets, it reads.
fn flood(node: &Node, name: &str, first: Vec<u8>, others: Vec<u8>) -> JoinHandle<()> {
    let listener = UnixListener::bind(node.path("handlers").join(format!("{name}.sock"))).unwrap();
    tokio::spawn(async move {
        loop {
            let (mut reader, mut writer) = split(listener.accept().await.unwrap().0);
            let (first, others) = (first.clone(), others.repeat(64));
            tokio::spawn(async move {
                let mut buffer = vec![0; 1 << 16];
                while reader.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
            });
            tokio::spawn(async move {
                let mut sent = writer.write_all(&first).await;
                while sent.is_ok() {
                    sent = writer.write_all(&others).await;
                }
            });
        }
    })
}

/// Remote handlers that flood the agent with frames of HTTP/2.
#[tokio::test] // rule 136, threat 65
async fn floods_of_frames_by_servers_affect_no_other() {
    let node = Node::new();
    let agent = node.start();
    let other = Handler::start(&node, "other", "other", &["o0"]);
    node.write_configuration("other", "other", "      -\n", "  offlineGracePeriod: 0s\n");
    other.register(&node).await.unwrap();
    node.wait_for_instances("its device", |list| list.len() == 1).await;
    let before = rss_kib(agent.pid());
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let settings = frame(4, 0, 0, &[]);
    let mut floods = Vec::new();
    for (name, others) in [
        ("ping", frame(6, 0, 0, &[7; 8])),
        ("settings", frame(4, 0, 0, &[0, 3, 0, 0, 0, 100])),
        ("reset", frame(3, 0, 1, &[0, 0, 0, 8])),
        ("window", frame(8, 0, 0, &[0, 0, 0, 1])),
        ("data", frame(0, 0, 1, &[])),
        ("going-away", frame(7, 0, 0, &[0; 8])),
    ] {
        floods.push(flood(&node, name, settings.clone(), others));
        node.write_configuration(name, name, "      -\n", "");
        let endpoint = node.path("handlers").join(format!("{name}.sock")).display().to_string();
        let request = RegisterDiscoveryHandlerRequest { name: name.to_owned(), endpoint, ..Default::default() };
        register(&node, request).await.unwrap();
    }
    for round in 1..6 {
        let began = Instant::now();
        let device = format!("o{round}");
        other.sees(&[&device]).await;
        let is_shown =
            |list: &[Instance]| list.iter().any(|one| one.spec.broker_properties.values().any(|v| *v == device));
        node.wait_for_instances("another device", is_shown).await;
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert!(echo(&node, &format!("foo{round}")).await < Duration::from_secs(20));
    }
    let grown = rss_kib(agent.pid()).saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB more");
    floods.iter().for_each(JoinHandle::abort);
}
