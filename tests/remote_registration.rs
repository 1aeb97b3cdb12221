//! Registering: who may, what with, how often, and what follows at once.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use akri_api::HandlerState;
use akri_api::condition::Condition;
use akri_grpc::discovery::RegisterDiscoveryHandlerRequest;
use tonic::Code;

use crate::support::node::{Node, akri, identities, is_online, rss_kib, wait_for};
use crate::support::remote::{Handler, NETWORK, Program, UDS, agent, register};
use crate::support::skip;

fn request(name: &str, endpoint: &str, endpoint_type: i32) -> RegisterDiscoveryHandlerRequest {
    RegisterDiscoveryHandlerRequest {
        name: name.to_owned(),
        endpoint: endpoint.to_owned(),
        endpoint_type,
        shared: false,
    }
}

/// A Configuration for a handler of the same name, without details.
fn write(node: &Node, name: &str) {
    node.write_configuration(name, name, "      -\n", "  capacity: 2\n  offlineGracePeriod: 0s\n");
}

#[tokio::test] // rule 31
async fn late_handler_is_used_at_once_by_one_stream() {
    let node = Node::new();
    write(&node, "cam");
    let _agent = node.start();
    let missing = node.wait_for_condition("cam", "HandlerAvailable", "False", "NoHandler").await;
    let socket = node.path("handlers/agent-registration.sock").display().to_string();
    let expected = format!("none of that name has registered at {socket}");
    assert!(
        missing.message.contains("no discovery handler 'cam'") && missing.message.contains(&expected),
        "{missing:?}"
    );

    let handler = Handler::start(&node, "cam", "cam", &["one"]);
    for _ in 0..20 {
        handler.register(&node).await.unwrap();
    }
    node.wait_for_instances("its device", |list| list.len() == 1).await;
    node.wait_for_condition("cam", "Ready", "True", "Discovered").await;
    let state = |state| move |all: &Vec<_>| matches!(all.as_slice(), [only] if *only == state);
    let states = || node.remote_handlers().iter().map(|handler| handler.state).collect::<Vec<_>>();
    wait_for("an active endpoint", states, state(HandlerState::Active)).await;

    // Registering again replaces the registration and keeps the stream.
    handler.register(&node).await.unwrap();
    handler.sees(&["one", "two"]).await;
    node.wait_for_instances("both devices", |list| list.len() == 2).await;
    assert_eq!((handler.calls().len(), handler.open_streams()), (1, 1));
    assert_eq!(node.remote_handlers().len(), 1);

    // Without a Configuration the stream is closed.
    node.remove("manifests/cam.yaml");
    wait_for("an endpoint that waits", states, state(HandlerState::Waiting)).await;
    wait_for("the end of the stream", || handler.open_streams(), |open| *open == 0).await;
    write(&node, "cam");
    wait_for("an active endpoint again", states, state(HandlerState::Active)).await;
}

#[tokio::test] // rule 123
async fn refused_registration_is_in_the_condition_until_one_succeeds() {
    let node = Node::new();
    write(&node, "cam");
    write(&node, "other");
    for number in 0..6 {
        node.write_handler(&format!("a-handler-that-is-refused-{number}"), "missing.wasm", "");
    }
    let _agent = node.start_with(&["--allow-network-handlers", "10.1.0.0/16"]);
    let is_none = |condition: &Condition| condition.message.contains("none of that name has registered");
    for name in ["cam", "other"] {
        let missing = node.wait_for_condition(name, "HandlerAvailable", "False", "NoHandler").await;
        assert!(is_none(&missing), "{missing:?}");
    }
    let refused = register(&node, request("cam", "http://10.2.0.7:10000", NETWORK)).await.unwrap_err();
    let reason = "10.2.0.7:10000 is not in a network allowed by --allow-network-handlers";
    assert_eq!(refused.message(), reason);
    let handler_available = |name: &str| node.condition(name, "HandlerAvailable");
    let has_reason = |found: &Option<Condition>| found.as_ref().is_some_and(|found| found.message.contains(reason));
    wait_for("the reason", || handler_available("cam"), has_reason).await;
    assert!(is_none(&handler_available("other").unwrap()), "it was not for that handler");
    let message = handler_available("cam").unwrap().message;
    assert!(
        akri_model::summary::NodeProblem::new("NoHandler", &message).message.contains(reason),
        "a cluster is told as well: {message}"
    );
    let handler = Handler::start(&node, "cam", "cam", &["one"]);
    handler.register(&node).await.unwrap();
    node.wait_for_condition("cam", "Ready", "True", "Discovered").await;
}

#[tokio::test]
async fn invalid_registration_is_refused_with_a_reason() {
    let node = Node::new();
    let agent = node.start_with(&["--allow-network-handlers", "10.1.0.0/16,10.2.0.0/16"]);
    let handlers = node.path("handlers").canonicalize().unwrap();
    let inside = |name: &str| handlers.join(name).display().to_string();
    symlink("/etc", handlers.join("way-out")).unwrap();
    let long = "x".repeat(300);
    let cases = [
        (request("cam", &inside("cam.sock"), 2), Code::InvalidArgument, "endpoint_type 2 is unknown"),
        (request("cam", &inside("cam.sock"), -1), Code::InvalidArgument, "0 is UDS, 1 is NETWORK"),
        (request("", &inside("cam.sock"), UDS), Code::InvalidArgument, "name"),
        (request(&long, &inside("cam.sock"), UDS), Code::InvalidArgument, "name"),
        (request("a b", &inside("cam.sock"), UDS), Code::InvalidArgument, "name"),
        (request("\u{1b}[2J", &inside("cam.sock"), UDS), Code::InvalidArgument, "name"),
        (request("cam", "", UDS), Code::InvalidArgument, "absolute path"),
        (request("cam", "cam.sock", UDS), Code::InvalidArgument, "absolute path"),
        (request("cam", &inside("../cam.sock"), UDS), Code::InvalidArgument, "absolute path"),
        (request("cam", &inside(&long), UDS), Code::InvalidArgument, "absolute path"),
        (request("cam", "/run/docker.sock", UDS), Code::PermissionDenied, "is not in the handler directory"),
        (request("cam", &inside("way-out/cam.sock"), UDS), Code::PermissionDenied, "is not in the handler directory"),
        (request("cam", &inside("agent-registration.sock"), UDS), Code::PermissionDenied, "is not in the handler"),
        (request("cam", "http://10.3.0.1:80", NETWORK), Code::PermissionDenied, "--allow-network-handlers"),
        (request("cam", "http://169.254.169.254:80", NETWORK), Code::PermissionDenied, "--allow-network-handlers"),
        (request("cam", "http://[::ffff:10.3.0.1]:80", NETWORK), Code::PermissionDenied, "10.3.0.1:80"),
        (request("cam", "https://10.1.0.1:80", NETWORK), Code::InvalidArgument, "TLS"),
        (request("cam", "http://localhost:80", NETWORK), Code::InvalidArgument, "names"),
        (request("cam", &inside("cam.sock"), NETWORK), Code::InvalidArgument, "http://ADDRESS:PORT"),
    ];
    for (request, code, expected) in cases {
        let status = register(&node, request.clone()).await.unwrap_err();
        assert_eq!(status.code(), code, "{request:?} {status}");
        assert!(status.message().contains(expected), "{request:?} {status}");
    }
    assert_eq!(node.remote_handlers(), []);
    register(&node, request("cam", "http://10.2.0.1:80", NETWORK)).await.unwrap();
    register(&node, request("cam", &inside("cam.sock"), UDS)).await.unwrap();
    assert!(!agent.log().contains("\u{1b}[2J"), "no name speaks to the terminal");
}

#[tokio::test] // rule 31
async fn registrations_beyond_the_limit_are_refused() {
    let node = Node::new();
    write(&node, "cam");
    let agent_process = node.start();
    // Endpoints that nobody serves make room for others.
    for n in 0..100 {
        let endpoint = node.path(&format!("handlers/nobody-{n}.sock"));
        if n % 2 == 0 {
            drop(UnixListener::bind(&endpoint).unwrap()); // as one that was killed leaves it
        }
        register(&node, request(&format!("h{}", n / 10), endpoint.to_str().unwrap(), UDS)).await.unwrap();
    }
    let handler = Handler::start(&node, "cam", "cam", &["one"]);
    handler.register(&node).await.unwrap();
    node.wait_for_instances("its device", |list| list.len() == 1).await;
    let memory = rss_kib(agent_process.pid());
    // Sockets that somebody serves.
    let real: Vec<_> = (0..70).map(|n| UnixListener::bind(node.path(&format!("handlers/{n}.sock"))).unwrap()).collect();
    let mut client = agent(&node).await;
    let mut refused = 0;
    for n in 0..2_000 {
        if n % 1_000 == 0 {
            client = agent(&node).await; // a connection is not for ever
        }
        let endpoint = node.path(&format!("handlers/{}.sock", n % real.len()));
        let registered =
            client.register_discovery_handler(request(&format!("h{n}"), endpoint.to_str().unwrap(), UDS)).await;
        if let Err(status) = registered {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            refused += 1;
        }
    }
    assert_eq!(refused, 2_000 - 63);
    handler.sees(&["one", "two"]).await;
    node.wait_for_instances("another device", |list| list.len() == 2).await;
    let one_name = request("cam", node.path("handlers/0.sock").to_str().unwrap(), UDS);
    assert_eq!(register(&node, one_name).await.unwrap_err().code(), Code::ResourceExhausted);
    let grown = rss_kib(agent_process.pid()).saturating_sub(memory);
    assert!(grown < 64 << 10, "{grown} KiB more");
    assert!(agent_process.log().lines().count() < 1000, "and the log is no flood");
}

#[tokio::test] // rule 31
async fn disagreement_about_shared_is_refused_naming_both() {
    let node = Node::new();
    node.make_echo_local();
    node.write_echo("echo", 1, &["foo0"]);
    write(&node, "cam");
    let _agent = node.start();
    let echo = node.wait_for_instances("the component's device", |list| list.len() == 1).await;
    let other = Handler::start(&node, "debugEcho", "other", &["foo1"]).shared();
    let status = other.register(&node).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(
        status.message(),
        "'debugEcho' is registered as shared=true, but the component of that name serves it as shared=false"
    );
    assert_eq!(identities(&node.instances()), identities(&echo));

    let first = Handler::start(&node, "cam", "one", &["one"]);
    first.register(&node).await.unwrap();
    let second = Handler::start(&node, "cam", "two", &["two"]).shared();
    let status = second.register(&node).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("but unix:") && status.message().contains("one.sock"), "{status}");
}

#[tokio::test] // rule 136, threat 67
async fn held_connections_make_room_and_frames_fill_no_log() {
    let node = Node::new();
    let agent = node.start();
    let handler = Handler::start(&node, "cam", "cam", &["one"]);
    handler.register(&node).await.unwrap();
    let socket = node.path("handlers/agent-registration.sock");
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut connection = UnixStream::connect(&socket).unwrap();
        connection.write_all(b"PRI *").unwrap();
        held.push(connection);
    }
    handler.register(&node).await.unwrap();
    held[0].set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // A connection closed with bytes unread is reset.
    let end = held[0].read_to_end(&mut Vec::new()).or_else(|error| match error.kind() {
        ErrorKind::ConnectionReset => Ok(0),
        _ => Err(error),
    });
    assert!(end.as_ref().is_ok_and(|bytes| *bytes < 64), "the oldest has not been closed: {end:?}");
    let mut connection = UnixStream::connect(&socket).unwrap();
    let ping_ack = b"\0\0\x08\x06\x01\0\0\0\0unasked!".repeat(1000);
    connection.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    connection.write_all(&ping_ack).unwrap();
    handler.register(&node).await.unwrap();
    let log = agent.log();
    assert!(log.lines().count() < 500, "{}", log.lines().last().unwrap_or_default());
}

#[tokio::test] // rule 31
async fn network_handler_is_served_if_allowed() {
    let node = Node::new();
    write(&node, "cam");
    let handler = Handler::start_on_network("cam", &["one"]).await;
    let agent = node.start();
    let refused = handler.register(&node).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    agent.kill();
    let agent = node.start_with(&["--allow-network-handlers", "127.0.0.0/8"]);
    handler.register(&node).await.unwrap();
    node.wait_for_instances("its device", |list| list.len() == 1).await;
    agent.kill();
    // It is remembered, and found again without registering.
    let agent = node.start_with(&["--allow-network-handlers", "127.0.0.0/8"]);
    handler.sees(&["one", "two"]).await;
    node.wait_for_instances("another device", |list| list.len() == 2).await;
    agent.kill();
    // What is no longer allowed is not dialled.
    let calls = handler.calls().len();
    let agent = node.start();
    agent.wait_for_log("registration not restored").await;
    node.wait_for_condition("cam", "Ready", "False", "NoHandler").await;
    assert_eq!(handler.calls().len(), calls);
    assert!(node.instances().iter().all(is_online), "its devices stay as they are");
}

#[tokio::test]
async fn only_allowed_users_may_register_and_serve() {
    if !skip::is_root() {
        return;
    }
    let node = Node::new();
    let everyone = fs::Permissions::from_mode(0o777);
    fs::set_permissions(node.path("handlers"), everyone.clone()).unwrap();
    fs::set_permissions(node.path("handlers").parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = node.path("handlers/agent-registration.sock");
    let mode = || fs::symlink_metadata(&socket).map(|socket| socket.permissions().mode() & 0o777).ok();
    let program = |directory: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "4711", "--clear-groups"]).arg(akri().with_file_name("remote-handler")).arg("files");
        Program::start(command, &node.path(directory))
    };
    node.write_configuration("files", "files", &format!("      {}\n", node.path("manifests").display()), "");

    let agent = node.start_with(&["--allow-handler-uid", "4712"]);
    wait_for("a socket that others may open", mode, |mode| *mode == Some(0o666)).await;
    let _refused = program("handlers");
    agent.wait_for_log("user id 4711 may not serve discovery handlers; allow it with --allow-handler-uid 4711").await;
    // An allowed process registers in its name: the user of the listener counts, too. It waits for an agent of its own.
    fs::create_dir(node.path("handlers/deeper")).unwrap();
    fs::set_permissions(node.path("handlers/deeper"), everyone).unwrap();
    let handler = program("handlers/deeper");
    let socket_of_handler = node.path("handlers/deeper/files.sock");
    wait_for("its server", || UnixStream::connect(&socket_of_handler).is_ok(), |is_served| *is_served).await;
    register(&node, request("files", socket_of_handler.to_str().unwrap(), UDS)).await.unwrap();
    let failed = node.wait_for_condition("files", "Ready", "False", "Unavailable").await;
    assert!(failed.message.contains("user id 4711 may not serve discovery handlers"), "{}", failed.message);
    assert!(node.instances().is_empty());
    drop((agent, handler));

    let _agent = node.start_with(&["--allow-handler-uid", "4711"]);
    let _handler = program("handlers");
    node.wait_for_instances("its device", |list| list.len() == 1).await;
    drop(_agent);
    let _agent = node.start();
    wait_for("a socket for root alone", mode, |mode| *mode == Some(0o660)).await;
}

#[tokio::test]
async fn registration_socket_is_bound_when_it_can_be() {
    let node = Node::new();
    fs::remove_dir(node.path("handlers")).unwrap();
    fs::write(node.path("handlers"), "in the way").unwrap();
    node.write_echo("echo", 1, &["foo0"]);
    write(&node, "cam");
    let agent = node.start();
    agent.wait_for_log("remote discovery handlers can't register").await;
    node.wait_for_instances("a device", |list| list.len() == 1).await;
    assert!(agent.log().contains("set another directory with --handlers-dir"));
    // Later there is one.
    fs::remove_file(node.path("handlers")).unwrap();
    agent.wait_for_log("discovery handlers can register").await;
    let handler = Handler::start(&node, "cam", "cam", &["one"]);
    handler.register(&node).await.unwrap();
    node.wait_for_instances("both devices", |list| list.len() == 2).await;
    // Somebody removes the socket.
    node.remove("handlers/agent-registration.sock");
    agent.wait_for_log("the registration socket is lost; binding it again").await;
    handler.register(&node).await.unwrap();
    assert!(agent.stop());
    assert!(!node.path("handlers/agent-registration.sock").exists(), "it goes with the agent");
}
