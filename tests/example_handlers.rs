//! The handlers in `examples/handlers/`, with devices that other people wrote.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use akri_api::Instance;

use crate::support::namespace::Namespace;
use crate::support::node::{Node, akri, is_online};
use crate::support::skip::skip;

/// A peer in Python; it is killed on drop.
struct Peer(Child);

impl Peer {
    /// Starts a script and waits until it is ready. `None`, with the reason printed, where it can't be run.
    fn start(namespace: &Namespace, script: &str, arguments: &[&str]) -> Option<Self> {
        let python = root().join("target/peers/python/bin/python");
        if !python.exists() {
            skip("the peers are not installed: run 'make peers'");
            return None;
        }
        let mut command: Command = namespace.command(&python);
        command
            .arg(root().join("tests/peers").join(script))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "{script}");
        Some(Self(process))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended already
        let _ = self.0.wait();
    }
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn property<'a>(instance: &'a Instance, name: &str) -> Option<&'a str> {
    instance.spec.broker_properties.get(name).map(String::as_str)
}

/// Serves connections that send these bytes and then nothing.
fn serve_bytes(namespace: &Namespace, address: &'static str, bytes: &'static [u8]) {
    let (ready, is_ready) = std::sync::mpsc::channel();
    // It ends with the process, as its namespace does.
    namespace.run(move || {
        let listener = TcpListener::bind(address).unwrap();
        ready.send(()).unwrap();
        let mut connections: Vec<TcpStream> = Vec::new();
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let _ = connection.write_all(bytes); // the handler may have gone
            connections.push(connection);
        }
    });
    is_ready.recv().unwrap();
}

#[tokio::test]
async fn modbus_units_are_identified_and_followed() {
    let Some(namespace) = Namespace::new() else { return };
    let Some(plc) = Peer::start(&namespace, "modbus_server.py", &["127.0.0.1", "1502", "Acme", "PLC-7"]) else {
        return;
    };
    serve_bytes(&namespace, "127.0.0.2:1502", b"");
    serve_bytes(&namespace, "127.0.0.3:1502", &[0xff; 300]);
    let node = Node::new();
    ["udev", "debug-echo"].iter().for_each(|other| node.remove(&format!("components/{other}.yaml")));
    let component = root().join("handlers/target/wasm32-wasip2/release/modbus.wasm");
    std::fs::copy(component, node.path("components/modbus.wasm")).unwrap();
    let grant = "  grants:\n    tcp:\n    - {networks: [127.0.0.0/8], ports: [1502]}\n";
    node.write_handler("modbus", "modbus.wasm", &format!("  interval: 200ms\n{grant}"));
    // Nothing listens at the last.
    let servers = "      servers: ['127.0.0.1:1502', '127.0.0.2:1502', '127.0.0.3:1502', '127.0.0.4:1502']\n";
    node.write_configuration(
        "plc",
        "modbus",
        &format!("{servers}      unitIds: [1, 7]\n"),
        "  offlineGracePeriod: 1h\n",
    );
    let _agent = node.start_by(namespace.command(&akri()), &[]);
    let online = |list: &[Instance]| list.iter().filter(|instance| is_online(instance)).count();
    let mut units = node.wait_for_instances("both units", |list| online(list) == 2).await;
    units.sort_by_key(|unit| property(unit, "MODBUS_UNIT_ID").map(str::to_owned));
    for (unit, number) in units.iter().zip(["1", "7"]) {
        for (name, value) in [
            ("HOST", "127.0.0.1"),
            ("PORT", "1502"),
            ("UNIT_ID", number),
            ("VENDOR", "Acme"),
            ("PRODUCT_CODE", "PLC-7"),
            ("REVISION", "2.1"),
        ] {
            assert_eq!(property(unit, &format!("MODBUS_{name}")), Some(value));
        }
    }
    let notes = node.wait_for_condition("plc", "DiscoveryComplete", "False", "NoAnswer").await.message;
    for (server, why) in [
        ("127.0.0.2:1502/1", "nothing came within 2s"),
        ("127.0.0.3:1502/1", "the answer is no identification of this unit"),
    ] {
        assert!(notes.contains(server) && notes.contains(why), "{notes}");
    }
    assert!(!notes.contains("127.0.0.4"), "it refuses connections, and so has no devices: {notes}");
    drop(plc);
    node.wait_for_instances("no unit online", |list| list.len() == 2 && online(list) == 0).await;
}
