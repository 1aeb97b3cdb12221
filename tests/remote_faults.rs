//! Remote handlers that flood, stall, end, lie and die: their devices stay, and nobody else notices.

use std::time::{Duration, Instant};

use akri_api::{DiscoveryHandlerStatus, HandlerState, Instance};
use akri_grpc::discovery::{Device, DeviceSpec, Mount, RegisterDiscoveryHandlerRequest};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tonic::Status;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, identities, is_online, name_of, resource_of, rss_kib, used, wait_for};
use crate::support::remote::{Answer, Handler, devices, register};
use crate::support::secrecy::assert_shown_nowhere;

/// A Configuration for a handler of the same name.
fn write(node: &Node, name: &str) {
    node.write_configuration(name, name, "      -\n", "  capacity: 2\n  offlineGracePeriod: 0s\n");
}

fn of<'i>(instances: &'i [Instance], configuration: &str) -> Vec<&'i Instance> {
    instances.iter().filter(|instance| instance.spec.configuration_name == configuration).collect()
}

/// A node with a handler `cam` and its devices, a component, and another remote handler.
struct Fixture {
    node: Node,
    agent: crate::support::node::Agent,
    cam: Handler,
    other: Handler,
    found: Vec<(String, String)>,
}

impl Fixture {
    async fn new() -> Self {
        let node = Node::new();
        write(&node, "cam");
        write(&node, "other");
        node.write_echo("echo", 1, &["foo0"]);
        let agent = node.start();
        let cam = Handler::start(&node, "cam", "cam", &["one", "two"]);
        let other = Handler::start(&node, "other", "other", &["o1"]);
        cam.register(&node).await.unwrap();
        other.register(&node).await.unwrap();
        let found = node.wait_for_instances("all devices", |list| list.len() == 4).await;
        let found = of(&found, "cam").into_iter().cloned().collect::<Vec<_>>();
        Self { node, agent, cam, other, found: identities(&found) }
    }

    /// The devices of `cam` are as they were, and the others find and lose theirs.
    async fn goes_on(&mut self, round: usize) {
        let cams: Vec<Instance> = of(&self.node.instances(), "cam").into_iter().cloned().collect();
        assert_eq!(identities(&cams), self.found, "the same objects");
        assert!(cams.iter().all(is_online), "{cams:#?}");
        let (device, file) = (format!("o{round}"), format!("foo{round}"));
        self.other.sees(&[&device]).await;
        self.node.write_echo("echo", 1, &[&file]);
        let seen = |list: &[Instance], configuration: &str, value: &str| {
            let of = of(list, configuration);
            of.len() == 1 && of[0].spec.broker_properties.values().any(|property| property == value)
        };
        let what = "what the others find";
        self.node.wait_for_instances(what, |list| seen(list, "other", &device) && seen(list, "echo", &file)).await;
        assert!(self.agent.is_running());
    }

    async fn is_well_again(&self) {
        let result = || self.node.remote_handlers().into_iter().find(|one| one.handler.as_deref() == Some("cam"));
        let discovered = |found: &Option<DiscoveryHandlerStatus>| {
            found.as_ref().is_some_and(|status| status.last_result.as_deref() == Some("Discovered"))
        };
        wait_for("a good message", result, discovered).await;
        self.node.wait_for_condition("cam", "Ready", "True", "Discovered").await;
    }

    async fn fails(&self, reason: &str, message: &str) {
        let failed = self.node.wait_for_condition("cam", "Ready", "False", reason).await;
        assert!(failed.message.contains(message), "{}", failed.message);
        assert!(failed.message.ends_with("; known devices stay as they are"), "{}", failed.message);
    }
}

#[tokio::test] // rule 31
async fn ended_and_failed_streams_change_nothing() {
    let mut fixture = Fixture::new().await;
    let long = "x".repeat(4097);
    let with = |change: fn(&mut Device, String), value: &str| {
        let mut all = devices(&["one", "three"]);
        change(&mut all[1], value.to_owned());
        Answer::Devices(all)
    };
    let many: Vec<String> = (0..100_000).map(|n| format!("{n:06}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let large =
        Device { id: "d".into(), properties: [("K".to_owned(), "x".repeat(5 << 20))].into(), ..Device::default() };
    let cases = [
        (Answer::End, "Unavailable", "the handler ended the stream"),
        (Answer::Fail(Status::unavailable("no camera")), "Unavailable", "Unavailable: no camera"),
        (Answer::Fail(Status::unimplemented("")), "Unavailable", "Unimplemented"),
        (Answer::Fail(Status::internal("a\u{1b}[2Jb\nc")), "Unavailable", "Internal: a [2Jb c"),
        (Answer::Fail(Status::invalid_argument("no such camera")), "InvalidDetails", "no such camera"),
        (Answer::Devices(devices(&many)), "LimitExceeded", "devices: 100000 (at most 4096)"),
        (Answer::Devices(vec![large]), "LimitExceeded", "message length too large"),
        (with(|device, id| device.id = id, ""), "LimitExceeded", "its id is empty"),
        (with(|device, id| device.id = id, &long), "LimitExceeded", "its id: 4097 bytes (at most 4096)"),
        (
            with(|device, value| device.properties = [("K".to_owned(), value)].into(), &long),
            "LimitExceeded",
            "a property's value: 4097 bytes",
        ),
    ];
    for (round, (answer, reason, message)) in cases.into_iter().enumerate() {
        fixture.cam.answer(answer).await;
        fixture.fails(reason, message).await;
        fixture.goes_on(round + 1).await;
        fixture.cam.set(Answer::Devices(devices(&["one", "two"])));
        fixture.cam.register(&fixture.node).await.unwrap(); // which is worth another try at once
        fixture.is_well_again().await;
    }
    assert!(rss_kib(fixture.agent.pid()) < 300 << 10, "{} KiB", rss_kib(fixture.agent.pid()));
}

/// A socket at which everyone who connects is sent the first words, and then the others for ever; without any, it hangs up.
fn send_forever(node: &Node, name: &str, first: Vec<u8>, others: Vec<u8>) -> JoinHandle<()> {
    let listener = UnixListener::bind(node.path("handlers").join(format!("{name}.sock"))).unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (first, others) = (first.clone(), others.clone());
            tokio::spawn(async move {
                let mut printed = stream.write_all(&first).await;
                while printed.is_ok() && !others.is_empty() {
                    printed = stream.write_all(&others).await;
                }
            });
        }
    })
}

#[tokio::test] // rule 31
async fn non_grpc_server_is_reported_and_affects_no_other() {
    let mut fixture = Fixture::new().await;
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let settings = frame(4, 0, 0, &[]);
    let headers_without_end = [&settings[..], &frame(1, 0, 1, &[0x88])].concat();
    let one_more = frame(9, 0, 1, &[&[0x40, 1, b'a', 0x7f, 0x80, 1][..], &[b'b'; 255]].concat());
    let cases = [
        ("hangs-up", vec![], vec![]),
        ("http1", b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".to_vec(), vec![]),
        ("noise", vec![], vec![0xa5; 65_536]),
        ("pushes", settings.clone(), frame(5, 4, 1, &[0, 0, 0, 2, 0x88])),
        ("headers", headers_without_end, one_more),
    ];
    let before = rss_kib(fixture.agent.pid());
    let mut senders = Vec::new();
    for (round, (name, first, others)) in cases.into_iter().enumerate() {
        senders.push(send_forever(&fixture.node, name, first, others));
        write(&fixture.node, name);
        let endpoint = fixture.node.path("handlers").join(format!("{name}.sock")).display().to_string();
        let request = RegisterDiscoveryHandlerRequest { name: name.to_owned(), endpoint, ..Default::default() };
        register(&fixture.node, request).await.unwrap();
        fixture.node.wait_for_condition(name, "Ready", "False", "Unavailable").await;
        fixture.goes_on(round + 1).await;
    }
    let grown = rss_kib(fixture.agent.pid()).saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB more");
    senders.iter().for_each(JoinHandle::abort);
}

#[tokio::test] // rule 31
async fn flood_is_reduced_to_its_last_message_and_silence_is_none() {
    let mut fixture = Fixture::new().await;
    let before = rss_kib(fixture.agent.pid());
    let names: Vec<String> = (0..100).map(|n| format!("device-{n}")).collect();
    let end = Instant::now() + Duration::from_secs(3);
    let mut sent = 0;
    while Instant::now() < end {
        // A hundred devices in every other message: none of them is ever true for long.
        let flood: Vec<&str> = names.iter().map(String::as_str).collect();
        fixture.cam.sees(if sent % 2 == 0 { &flood } else { &["one", "two"] }).await;
        sent += 1;
    }
    fixture.cam.sees(&["one", "two", "three"]).await;
    let settled = |list: &[Instance]| of(list, "cam").len() == 3 && of(list, "cam").iter().all(|i| is_online(i));
    fixture.node.wait_for_instances("the last message", settled).await;
    let grown = rss_kib(fixture.agent.pid()).saturating_sub(before);
    assert!(grown < 128 << 10, "{sent} messages, {grown} KiB more");
    fixture.found = identities(&of(&fixture.node.instances(), "cam").into_iter().cloned().collect::<Vec<_>>());
    fixture.goes_on(1).await;

    // A handler that stalls keeps its devices.
    let calls = fixture.cam.calls().len();
    fixture.cam.answer(Answer::Silence).await;
    fixture.goes_on(2).await;
    // Even a new stream without a word changes nothing.
    write_details(&fixture.node, "other details");
    wait_for("another call", || fixture.cam.calls().len(), |now| *now > calls).await;
    assert_eq!(fixture.cam.calls().last().unwrap().discovery_details, "other details");
    fixture.goes_on(3).await;
    fixture.cam.sees(&["one"]).await;
    fixture.node.wait_for_instances("those that are gone", |list| of(list, "cam").len() == 1).await;
    nothing_is_known_of_a_handler_without_a_message(&fixture.node).await;
}

/// A handler that has never sent anything is connected, and that is all that is known of it.
async fn nothing_is_known_of_a_handler_without_a_message(node: &Node) {
    write(node, "mute");
    let mute = Handler::start(node, "mute", "mute", &[]);
    mute.set(Answer::Silence);
    mute.register(node).await.unwrap();
    for condition in ["Ready", "HandlerAvailable"] {
        node.wait_for_condition("mute", condition, "Unknown", "NothingReported").await;
    }
    let status = || node.remote_handlers().into_iter().find(|one| one.handler.as_deref() == Some("mute"));
    let is_active = |found: &Option<DiscoveryHandlerStatus>| {
        found.as_ref().is_some_and(|status| status.state == HandlerState::Active)
    };
    let found = wait_for("an active endpoint", status, is_active).await.unwrap();
    assert_eq!((found.devices, found.last_result), (0, None));
    mute.sees(&["m1"]).await;
    node.wait_for_instances("a device", |list| of(list, "mute").len() == 1).await;
}

fn write_details(node: &Node, details: &str) {
    let spec = "  capacity: 2\n  offlineGracePeriod: 0s\n";
    node.write_configuration("cam", "cam", &format!("      {details}\n"), spec);
}

#[tokio::test] // rule 31
async fn restarted_handler_keeps_its_instances() {
    let mut fixture = Fixture::new().await;
    let kubelet = Kubelet::start(&fixture.node.path("kubelet"));
    let instance = of(&fixture.node.instances(), "cam")[0].clone();
    let resource = resource_of(&instance);
    kubelet.wait_for("two slots", |view| view.resource(&resource).allocatable() == 2).await;
    let admitted = kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    for round in 1..=3 {
        fixture.cam = Handler::start(&fixture.node, "nobody", "elsewhere", &[]); // the old one is dropped, and so killed
        fixture.fails("Unavailable", "unix:").await;
        fixture.goes_on(round).await;
        assert_eq!(kubelet.view(|view| view.resource(&resource).allocatable()), 2, "and they are handed out");
        // It registers anew, as Akri's handlers do, or it does not.
        fixture.cam = Handler::start(&fixture.node, "cam", "cam", &["one", "two"]);
        if round == 1 {
            fixture.cam.register(&fixture.node).await.unwrap();
        }
        fixture.node.wait_for_condition("cam", "Ready", "True", "Discovered").await;
    }
    let after = fixture.node.wait_for_instance(name_of(&instance), "the claim", |i| used(i) == admitted.ids).await;
    assert_eq!(identities(&[after]), identities(&[instance]));
}

#[tokio::test] // rule 31
async fn changed_properties_and_details_reopen_the_stream() {
    let node = Node::new();
    let properties = "    discoveryProperties:\n    - name: plain\n      value: one\n    - name: password\n      \
                      valueFrom:\n        secretKeyRef: {name: cam, key: password}\n";
    let secret = |password: &str| {
        format!("apiVersion: v1\nkind: Secret\nmetadata:\n  name: cam\nstringData:\n  password: {password}\n")
    };
    node.write_configuration("cam", "cam", "      some details\n", properties);
    let agent = node.start();
    let cam = Handler::start(&node, "cam", "cam", &["one"]);
    cam.register(&node).await.unwrap();
    let unresolved = node.wait_for_condition("cam", "PropertiesResolved", "False", "PropertiesUnresolved").await;
    assert!(unresolved.message.contains("Secret default/cam does not exist"), "{}", unresolved.message);
    assert_eq!(cam.calls().len(), 0);

    for (calls, password) in ["hunter2", "correct-horse"].into_iter().enumerate() {
        node.write("manifests/secret.yaml", &secret(password));
        wait_for("another call", || cam.calls().len(), |now| *now > calls).await;
        let call = cam.calls().pop().unwrap();
        let property = |name: &str| String::from_utf8(call.discovery_properties[name].vec.clone().unwrap()).unwrap();
        assert_eq!((call.discovery_details.trim(), call.discovery_properties.len()), ("some details", 2));
        assert_eq!((property("plain").as_str(), property("password").as_str()), ("one", password));
    }
    node.wait_for_instances("its device", |list| list.len() == 1).await;
    wait_for("one stream", || cam.open_streams(), |open| *open == 1).await;
    assert_eq!(cam.calls().len(), 2);

    node.remove("manifests/secret.yaml");
    node.wait_for_condition("cam", "PropertiesResolved", "False", "PropertiesUnresolved").await;
    assert!(node.instances().iter().all(is_online));
    assert!(!agent.log().contains("hunter2") && !agent.log().contains("correct-horse"));
}

#[tokio::test] // rule 31, threat 50
async fn secret_repeated_by_a_handler_is_hidden() {
    let node = Node::new();
    let properties = "    discoveryProperties:\n    - name: password\n      valueFrom:\n        \
                      secretKeyRef: {name: cam, key: password}\n";
    node.write_configuration("cam", "cam", "      -\n", properties);
    let secret = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: cam\nstringData:\n  password: hunter2\n";
    node.write("manifests/secret.yaml", secret);
    let agent = node.start();
    let cam = Handler::start(&node, "cam", "cam", &[]);
    let mut all = devices(&["one", "two"]);
    all[0].properties.insert("URL".to_owned(), "rtsp://admin:hunter2@camera/".to_owned());
    cam.set(Answer::Devices(all));
    cam.register(&node).await.unwrap();
    let incomplete = node.wait_for_condition("cam", "DiscoveryComplete", "False", "DiscoveryIncomplete").await;
    let expected = "device 'one': a property contains the secret 'password'";
    assert!(incomplete.message.contains(expected), "{}", incomplete.message);
    node.wait_for_instances("the other device", |list| list.len() == 1).await;

    cam.answer(Answer::Fail(Status::unavailable("the camera refuses 'hunter2'"))).await;
    let failed = node.wait_for_condition("cam", "Ready", "False", "Unavailable").await;
    assert!(failed.message.contains("(withheld: it contains a secret)"), "{}", failed.message);
    assert_shown_nowhere(&node, &agent, "hunter2");
}

#[tokio::test] // rule 137
async fn unlisted_path_is_withheld_unless_allowed() {
    let node = Node::new();
    write(&node, "cam");
    let path = |path: &str| path.to_owned();
    let node_at =
        |host: &str| DeviceSpec { container_path: path("/dev/x"), host_path: path(host), permissions: path("rw") };
    let mount_of = |host: &str| Mount { container_path: path("/x"), host_path: path(host), read_only: true };
    let mut all = devices(&["null", "passwd", "etc", "socket", "good"]);
    all[0].device_specs = vec![node_at("/dev/null")];
    all[1].device_specs = vec![node_at("/etc/passwd")];
    all[2].mounts = vec![mount_of("/etc")];
    all[3].mounts = vec![mount_of("/run/docker.sock")];
    let cam = Handler::start(&node, "cam", "cam", &[]);
    cam.set(Answer::Devices(all));
    let agent = node.start();
    cam.register(&node).await.unwrap();
    let found = node.wait_for_instances("what is allowed", |list| list.len() == 1).await;
    let incomplete = node.wait_for_condition("cam", "DiscoveryComplete", "False", "DiscoveryIncomplete").await;
    let expected = "device 'passwd': path '/etc/passwd' is not covered by --remote-path of the agent, which may be given more than once";
    assert!(incomplete.message.contains(expected), "{}", incomplete.message);
    assert!(agent.stop());
    let agent = node.start_with(&["--remote-path", "/dev/null", "--remote-path", "/dev/video*"]);
    node.wait_for_instances("what is listed", |list| list.len() == 2).await;
    assert!(agent.stop());
    let _agent = node.start_with(&["--trust-remote-paths"]);
    let trusted = node.wait_for_instances("all of them", |list| list.len() == 5).await;
    assert!(identities(&found).iter().all(|one| identities(&trusted).contains(one)));
}
