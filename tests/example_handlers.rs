//! The handlers in `examples/handlers/`, with devices that other people wrote.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use akri_api::Instance;
use serde_json::{Value, json};

use crate::support::namespace::Namespace;
use crate::support::node::{Node, akri, is_online, wait_for};
use crate::support::skip::{is_left_to_make_test, leave_out, skip};
use crate::support::udev::sysfs::{Device, Sysfs};

/// A peer in Python; it is killed on drop.
pub(crate) struct Peer(pub(crate) Child);

impl Peer {
    /// Starts a script and waits until it is ready. `None`, with the reason printed, where it can't be run.
    pub(crate) fn start(namespace: &Namespace, script: &str, arguments: &[&str]) -> Option<Self> {
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

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn property<'a>(instance: &'a Instance, name: &str) -> Option<&'a str> {
    instance.spec.broker_properties.get(name).map(String::as_str)
}

/// The component of the example in Rust, which is built with the built-in handlers.
pub(crate) fn modbus() -> PathBuf {
    root().join("handlers/target/wasm32-wasip2/release/modbus.wasm")
}

/// Plays cassettes, which needs neither network nor grants.
pub(crate) fn replays(node: &Node, component: &Path, cassettes: &Path) {
    let paths = [component, cassettes].map(|path| path.display().to_string());
    let output = node.akri(&["handler", "test", &paths[0], "--cassette", &paths[1]]);
    let played = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{played}{}", String::from_utf8_lossy(&output.stderr));
    let files = std::fs::read_dir(cassettes).map_or(1, Iterator::count);
    assert!(played.lines().count() == files && files > 0, "{played}");
}

pub(crate) fn cassettes(example: &str) -> PathBuf {
    root().join("examples/handlers").join(example).join("cassettes")
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

/// Serves unit 7 behind a gateway that is silent about all others.
pub(crate) fn serve_unit_7(namespace: &Namespace, address: &'static str) {
    let (ready, is_ready) = std::sync::mpsc::channel();
    namespace.run(move || {
        let listener = TcpListener::bind(address).unwrap();
        ready.send(()).unwrap();
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            std::thread::spawn(move || {
                let mut request = [0; 11];
                while connection.read_exact(&mut request).is_ok() {
                    if request[6] == 7 {
                        let body = b"\x07\x2b\x0e\x01\x83\0\0\x01\0\x04Acme";
                        let answer = [&request[..2], &[0, 0, 0, body.len() as u8], body].concat();
                        let _ = connection.write_all(&answer); // the handler may have gone
                    }
                }
            });
        }
    });
    is_ready.recv().unwrap();
}

/// Serves a gateway that reports of each unit that it does not answer.
fn serve_no_units(namespace: &Namespace, address: &'static str) {
    namespace.run(move || {
        for connection in TcpListener::bind(address).unwrap().incoming() {
            let mut connection = connection.unwrap();
            std::thread::spawn(move || {
                let mut request = [0; 11];
                while connection.read_exact(&mut request).is_ok() {
                    let answer = [&request[..2], &[0, 0, 0, 3, request[6], 0xab, 0x0b]].concat();
                    let _ = connection.write_all(&answer); // the handler may have gone
                }
            });
        }
    });
}

#[tokio::test]
async fn modbus_units_are_identified_and_followed() {
    let Some(namespace) = Namespace::new() else { return };
    let Some(plc) = Peer::start(&namespace, "modbus_server.py", &["127.0.0.1", "1502", "Acme", "PLC-7"]) else {
        return;
    };
    serve_bytes(&namespace, "127.0.0.2:1502", b"");
    serve_bytes(&namespace, "127.0.0.3:1502", &[0xff; 300]);
    serve_unit_7(&namespace, "127.0.0.5:1502");
    let node = Node::new();
    ["udev", "debug-echo"].iter().for_each(|other| node.remove(&format!("components/{other}.yaml")));
    std::fs::copy(modbus(), node.path("components/modbus.wasm")).unwrap();
    let grant = "  grants:\n    tcp:\n    - {networks: [127.0.0.0/8], ports: [1502]}\n";
    node.write_handler("modbus", "modbus.wasm", &format!("  interval: 200ms\n{grant}"));
    // Nothing listens at 127.0.0.4.
    let servers: Vec<String> = (1..=5).map(|number| format!("'127.0.0.{number}:1502'")).collect();
    let servers = format!("      servers: [{}]\n", servers.join(", "));
    node.write_configuration(
        "plc",
        "modbus",
        &format!("{servers}      unitIds: [1, 7]\n"),
        "  offlineGracePeriod: 1h\n",
    );
    let _agent = node.start_by(namespace.command(&akri()), &[]);
    let online = |list: &[Instance]| list.iter().filter(|instance| is_online(instance)).count();
    let mut units = node.wait_for_instances("three units", |list| online(list) == 3).await;
    units.sort_by_key(|unit| property(unit, "MODBUS_HOST").map(str::to_owned));
    let behind_gateway = units.pop().unwrap();
    assert_eq!(property(&behind_gateway, "MODBUS_HOST"), Some("127.0.0.5"));
    assert_eq!(property(&behind_gateway, "MODBUS_UNIT_ID"), Some("7"), "it comes after a silent one");
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
    let notes = node.wait_for_condition("plc", "DiscoveryComplete", "False", "DiscoveryIncomplete").await.message;
    for (server, why) in [
        ("127.0.0.2:1502/1", "nothing came within 2s"),
        ("127.0.0.3:1502/1", "its answer is malformed, or of another request"),
        ("127.0.0.5:1502/1", "nothing came within 2s"),
    ] {
        assert!(notes.contains(server) && notes.contains(why), "{notes}");
    }
    assert!(notes.contains("127.0.0.4:1502: the server was not reached: connection refused"), "{notes}");
    // Refused is not gone: it may be a restart.
    drop(plc);
    let refused = "127.0.0.1:1502, 127.0.0.4:1502: the server was not reached: connection refused";
    let message = || node.condition("plc", "DiscoveryComplete").map(|condition| condition.message).unwrap_or_default();
    wait_for("a note", message, |message| message.contains(refused)).await;
    assert_eq!(node.instances().iter().filter(|unit| is_online(unit)).count(), 3);
    serve_no_units(&namespace, "127.0.0.1:1502");
    node.wait_for_instances("one unit online", |list| list.len() == 3 && online(list) == 1).await;
}

/// A serial line of an adapter in a port, as the kernel describes it, and what udev's rules add to its database.
fn plug_adapter(sysfs: &Sysfs, data: &Path, port: u32, variables: &[(&str, &str)]) {
    let name = format!("ttyUSB{port}");
    sysfs.add(&Device {
        devpath: format!("/devices/pci0000:00/0000:00:14.0/usb1/1-{port}/1-{port}:1.0/{name}/tty/{name}"),
        subsystem: "tty",
        class: true,
        properties: vec![("MAJOR", "188".to_owned()), ("MINOR", port.to_string()), ("DEVNAME", name)],
        ..Device::default()
    });
    let path = ("ID_PATH", format!("pci-0000:00:14.0-usb-0:{port}:1.0"));
    let fixed = [("ID_BUS", "usb".to_owned()), ("ID_USB_INTERFACE_NUM", "00".to_owned()), path];
    let lines = fixed.iter().map(|(name, value)| format!("E:{name}={value}\n"));
    let lines = lines.chain(variables.iter().map(|(name, value)| format!("E:{name}={value}\n")));
    std::fs::write(data.join(format!("c188:{port}")), lines.collect::<String>()).unwrap();
}

#[test]
fn usb_serial_adapters_are_found_by_their_ids() {
    if is_left_to_make_test() {
        return; // it needs tools from a package registry
    }
    if !root().join("target/peers/python/bin/python").exists() {
        return skip("the peers are not installed: run 'make peers'");
    }
    let (node, example) = (Node::new(), root().join("examples/handlers/usb-serial"));
    let component = node.path("build/usb_serial.wasm");
    let mut make = Command::new("make");
    make.arg("--directory")
        .arg(&example)
        .arg(format!("OUT={}", node.path("build").display()))
        .arg("test")
        .arg(&component);
    let made = make.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(made.stdout.windows(4).any(|line| line == b"\nok\n"), "its own test");

    replays(&node, &component, &cassettes("usb-serial"));
    let (sysfs, data) = (Sysfs::new(node.path("sys")), node.path("data"));
    std::fs::create_dir(&data).unwrap();
    let ftdi = [("ID_VENDOR_ID", "0403"), ("ID_MODEL_ID", "6001"), ("ID_VENDOR", "FTDI"), ("ID_MODEL", "FT232R")];
    let serial = [("ID_SERIAL", "FTDI_FT232R_A50285BI"), ("ID_SERIAL_SHORT", "A50285BI")];
    plug_adapter(&sysfs, &data, 1, &[&ftdi[..], &serial].concat());
    plug_adapter(&sysfs, &data, 2, &[("ID_VENDOR_ID", "10c4"), ("ID_MODEL_ID", "ea60"), ("ID_SERIAL", "CP2102")]);
    plug_adapter(&sysfs, &data, 3, &[("ID_VENDOR_ID", "067b"), ("ID_MODEL_ID", "2303"), ("ID_SERIAL", "PL2303")]);
    // Adapters that were all delivered with one serial number.
    let same = [("ID_SERIAL", "FTDI_FT232R_0001"), ("ID_SERIAL_SHORT", "0001")];
    [4, 5].into_iter().for_each(|port| plug_adapter(&sysfs, &data, port, &[&ftdi[..], &same].concat()));
    let path = |path: &Path| path.display().to_string();
    let run = |configuration: &Path| {
        node.akri(&[
            "handler",
            "run",
            &path(&component),
            &path(configuration),
            "--handler-object",
            &path(&example.join("handler.yaml")),
            "--sysfs",
            &path(&node.path("sys")),
            "--udev-data",
            &path(&data),
            "-o",
            "json",
        ])
    };
    let output = run(&example.join("configuration.yaml"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut devices: Vec<&Value> =
        report[0]["devices"].as_array().unwrap().iter().map(|found| &found["device"]).collect();
    devices.sort_by_key(|device| device["id"].to_string());
    let ids: Vec<&Value> = devices.iter().map(|device| &device["id"]).collect();
    let expected = [
        "FTDI_FT232R_A50285BI/00",
        "pci-0000:00:14.0-usb-0:2:1.0/00",
        "pci-0000:00:14.0-usb-0:4:1.0/00",
        "pci-0000:00:14.0-usb-0:5:1.0/00",
    ];
    assert_eq!(ids, expected, "{report:#}");
    let properties = json!({
        "SERIAL_DEVNODE": "/dev/ttyUSB1", "SERIAL_VENDOR": "FTDI", "SERIAL_MODEL": "FT232R", "SERIAL_NUMBER": "A50285BI",
    });
    assert_eq!(devices[0]["properties"], properties);
    let bad = std::fs::read_to_string(example.join("configuration.yaml")).unwrap().replace("10c4:*", "ttyUSB0");
    node.write("bad.yaml", &bad);
    let refused = run(&node.path("bad.yaml"));
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("line 3 is no rule such as 0403:6001"), "{error}");
}

#[tokio::test]
async fn http_inventory_is_fetched_when_it_changes() {
    if std::env::var_os("AKRI_LANGUAGES").is_none() {
        return leave_out("left to make languages: it compiles the JavaScript engine");
    }
    let Some(namespace) = Namespace::new() else { return };
    let python = root().join("target/peers/python/bin/python");
    if !python.exists() {
        return skip("the peers are not installed: run 'make peers'");
    }
    if !root().join("target/peers/javascript/installed").exists() {
        return skip("componentize-js is not installed: run 'make languages'");
    }
    let (node, component) = (Node::new(), "components/http_inventory.wasm");
    let mut make = Command::new("make");
    make.arg("--directory").arg(root().join("examples/handlers/http-inventory"));
    make.arg(format!("OUT={}", node.path("components").display())).arg("test").arg(node.path(component));
    let made = make.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // Besides, it compiles it, which takes longer than the story waits for anything.
    replays(&node, &node.path(component), &cassettes("http-inventory"));

    let mut server = namespace.command(&python);
    server.arg(root().join("tests/peers/http_inventory.py")).args(["8000", "right-token"]);
    let mut server = Peer(server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut input = server.0.stdin.take().unwrap();
    let statuses = Arc::new(Mutex::new(Vec::<String>::new()));
    let output = BufReader::new(server.0.stdout.take().unwrap());
    let mut lines = output.lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let seen = Arc::clone(&statuses);
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|status| seen.lock().unwrap().push(status)));
    let count = |status: &str| statuses.lock().unwrap().iter().filter(|seen| *seen == status).count();

    ["udev", "debug-echo"].iter().for_each(|other| node.remove(&format!("components/{other}.yaml")));
    let grants = "  grants:\n    http:\n    - {networks: [127.0.0.0/8], ports: [8000]}\n    secrets: [token]\n";
    let limits = "  limits:\n    compile: {memory: 1Gi, time: 3m}\n";
    node.write_handler("http-inventory", "http_inventory.wasm", &format!("  interval: 300ms\n{grants}{limits}"));
    let write_token = |token: &str| {
        let metadata = json!({"name": "inventory"});
        let data = json!({"token": token});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data});
        node.write("manifests/secret.json", &secret.to_string());
    };
    write_token("right-token");
    let property =
        "    discoveryProperties:\n    - {name: token, valueFrom: {secretKeyRef: {name: inventory, key: token}}}\n";
    let details = "      url: http://127.0.0.1:8000/devices\n";
    node.write_configuration("machine", "http-inventory", details, &format!("{property}  offlineGracePeriod: 1h\n"));
    let press = |line: &str| json!({"id": "press-7", "properties": {"PRESS_LINE": line}});
    writeln!(input, "{}", json!([press("3"), {"id": "saw-1"}])).unwrap();
    let agent = node.start_by(namespace.command(&akri()), &[]);
    let online = |list: &[Instance]| list.iter().filter(|instance| is_online(instance)).count();
    node.wait_for_instances("both machines", |list| online(list) == 2).await;
    wait_for("rounds that transfer nothing", || count("304"), |count| *count >= 2).await;
    writeln!(input, "{}", json!([press("4")])).unwrap();
    let is_moved = |list: &[Instance]| list.iter().any(|instance| property_is(instance, "PRESS_LINE", "4"));
    node.wait_for_instances("the change", |list| online(list) == 1 && is_moved(list)).await;
    // Neither a broken inventory nor a wrong token takes a device.
    writeln!(input, "[{{").unwrap();
    agent.wait_for_log("round failed: unavailable: the inventory is malformed").await;
    writeln!(input, "{}", json!([press("4")])).unwrap();
    write_token("wrong-token");
    wait_for("a refusal", || count("401"), |count| *count >= 1).await;
    assert_eq!(online(&node.instances()), 1);
}

fn property_is(instance: &Instance, name: &str, value: &str) -> bool {
    property(instance, name) == Some(value)
}
