//! The example handler `upnp`, with devices by async-upnp-client.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use crate::cassettes::keep;
use crate::example_handlers::{Peer, cassettes, replays, root};
use crate::support::namespace::Namespace;
use crate::support::node::{Node, akri, compiled_components, is_online};
use crate::support::skip::{leave_out, skip};

const GRANTS: &str = "  grants:\n    multicast:\n    - {group: 239.255.255.250, port: 1900, interfaces: [lo]}\n";
// The component holds the Python interpreter.
const LIMITS: &str = "  limits:\n    compile: {memory: 1Gi, time: 3m}\n";

/// Starts a device; a line on its standard input ends it.
fn device(namespace: &Namespace, port: &str, kind: &str) -> Peer {
    let mut command = namespace.command(&root().join("target/peers/python/bin/python"));
    command.arg(root().join("tests/peers/upnp_device.py"));
    command.args(["127.0.0.1", port, &format!("urn:schemas-upnp-org:device:{kind}:1"), kind]);
    let mut device = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(device.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n", "{kind}");
    Peer(device)
}

/// A node with the component, which is built and tested.
fn node() -> Option<Node> {
    if std::env::var_os("AKRI_LANGUAGES").is_none() {
        leave_out("left to make languages: it compiles the Python interpreter");
        return None;
    }
    if !root().join("target/peers/python/bin/componentize-py").exists() {
        skip("the peers are not installed: run 'make peers'");
        return None;
    }
    let (node, example) = (Node::new(), root().join("examples/handlers/upnp"));
    ["udev", "debug-echo"].iter().for_each(|other| node.remove(&format!("components/{other}.yaml")));
    let component = node.path("components/upnp.wasm");
    let mut make = Command::new("make");
    make.arg("--directory").arg(&example).arg(format!("OUT={}", node.path("components").display()));
    let made = make.arg("test").arg(&component).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // Besides, it compiles it, which takes longer than the story waits for anything.
    replays(&node, &component, &cassettes("upnp"));
    node.write_handler("upnp", "upnp.wasm", &format!("  interval: 1h\n{GRANTS}{LIMITS}"));
    Some(node)
}

#[tokio::test]
async fn upnp_devices_are_found_recorded_and_followed() {
    let (Some(namespace), Some(node)) = (Namespace::new(), node()) else { return };
    let renderer = device(&namespace, "1400", "MediaRenderer");
    let mut server = device(&namespace, "1401", "MediaServer");

    let cassette = node.path("renderer.jsonl");
    let mut run = namespace.command(&akri());
    run.env("XDG_CACHE_HOME", compiled_components()).args(["handler", "run"]).arg(node.path("components/upnp.wasm"));
    run.arg(root().join("examples/handlers/upnp/configuration.yaml")).arg("--handler-object");
    let output = run.arg(node.path("components/upnp.yaml")).arg("--record").arg(&cassette).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let recorded = fs::read_to_string(&cassette).unwrap();
    let location = "\"UPNP_LOCATION\":\"http://127.0.0.1:1400/device.xml\"";
    assert!(recorded.contains(location) && !recorded.contains("1401"), "{recorded}");
    keep("examples/handlers/upnp", "renderer.jsonl", &cassette);
    replays(&node, &node.path("components/upnp.wasm"), &cassette);

    node.write_configuration("any", "upnp", "      {}\n", "  offlineGracePeriod: 1h\n");
    let _agent = node.start_by(namespace.command(&akri()), &[]);
    let online = |list: &[akri_api::Instance]| list.iter().filter(|instance| is_online(instance)).count();
    node.wait_for_instances("both devices", |list| online(list) == 2).await;
    // No round is due for an hour, but for what devices announce.
    server.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    node.wait_for_instances("one that says goodbye", |list| online(list) == 1).await;
    let _server = device(&namespace, "1401", "MediaServer");
    node.wait_for_instances("its return", |list| online(list) == 2).await;
    drop(renderer);
}
