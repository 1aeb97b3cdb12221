//! Services on the network, announced by zeroconf: found, chosen by filters, followed when they change, and not confused by
//! what others send.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use akri_api::Instance;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::support::namespace::Namespace;
use crate::support::node::{Agent, Node, akri, built_components, is_online, wait_for};
use crate::support::skip::skip;

/// A node in an isolated network.
struct Place {
    node: Node,
    namespace: Namespace,
}

impl Place {
    fn new(interval: &str) -> Option<Self> {
        let place = Self { node: Node::new(), namespace: Namespace::new()? };
        std::fs::copy(built_components().join("mdns.wasm"), place.node.path("components/mdns.wasm")).unwrap();
        ["udev", "debug-echo"].iter().for_each(|other| place.node.remove(&format!("components/{other}.yaml")));
        let groups = ["224.0.0.251", "ff02::fb"]
            .map(|group| format!("    - {{group: \"{group}\", port: 5353, interfaces: [lo]}}\n"));
        let spec = format!("  interval: {interval}\n  grants:\n    multicast:\n{}", groups.concat());
        place.node.write_handler("mdns", "mdns.wasm", &spec);
        Some(place)
    }

    fn write_services(&self, details: &str) {
        let details: String = details.lines().map(|line| format!("      {line}\n")).collect();
        let details = format!("{details}      discoveryTimeoutSeconds: 1\n");
        self.node.write_configuration("service", "mdns", &details, "  offlineGracePeriod: 1h\n");
    }

    fn start(&self) -> Agent {
        self.node.start_by(self.namespace.command(&akri()), &[])
    }

    /// Waits until these instances of services, and no others, are online.
    async fn wait_for_online(&self, expected: &[&str]) -> Vec<Instance> {
        let online = |list: &[Instance]| -> Vec<String> {
            let online = list.iter().filter(|instance| is_online(instance));
            let mut names: Vec<String> = online.map(|i| property(i, "INSTANCE").unwrap().to_owned()).collect();
            names.sort_unstable();
            names
        };
        self.node.wait_for_instances(&format!("{expected:?}"), |list| online(list) == expected).await
    }
}

fn property<'a>(instance: &'a Instance, name: &str) -> Option<&'a str> {
    instance.spec.broker_properties.get(&format!("MDNS_{name}")).map(String::as_str)
}

/// Services announced by zeroconf. They vanish without a goodbye on drop.
struct Zeroconf {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Zeroconf {
    /// Starts it. `None`, with the reason printed, where it can't be run.
    fn start(namespace: &Namespace) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let python = root.join("target/peers/python/bin/python");
        if !python.exists() {
            skip("the peers are not installed: run 'make peers'");
            return None;
        }
        let mut command = namespace.command(&python);
        command.arg(root.join("tests/peers/mdns_services.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut zeroconf = Self { process, input, output };
        zeroconf.expect("ready");
        Some(zeroconf)
    }

    fn expect(&mut self, word: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), word);
    }

    fn change(&mut self, change: &Value) {
        writeln!(self.input, "{change}").unwrap();
        self.expect("done");
    }

    fn add(&mut self, name: &str, kind: &str, port: u16, txt: &Value) {
        self.change(&json!({"add": name, "type": kind, "port": port, "txt": txt}));
    }
}

impl Drop for Zeroconf {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended already
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn services_are_filtered_and_followed() {
    let Some(place) = Place::new("300ms") else { return };
    let Some(mut zeroconf) = Zeroconf::start(&place.namespace) else { return };
    zeroconf.add("Hall", "_ipp._tcp", 631, &json!({"ty": "Laser 5", "duplex": "T"}));
    zeroconf.add("Attic 2", "_ipp._tcp", 631, &json!({"ty": "Ink"}));
    zeroconf.add("Hall", "_http._tcp", 80, &json!({}));
    let _agent = place.start();
    for (details, expected) in [
        ("services: [_ipp._tcp, _http._tcp]", &["Attic 2", "Hall", "Hall"][..]),
        ("services: [_ipp._tcp, _http._tcp]\ntxt: {items: ['ty=Laser*', 'ty=Ink']}", &["Attic 2", "Hall"]),
        ("services: [_ipp._tcp]\ntxt: {action: Exclude, items: [duplex]}", &["Attic 2"]),
        ("services: [_ipp._tcp]\ninstances: {items: ['h*']}", &["Hall"]),
    ] {
        place.write_services(details);
        place.wait_for_online(expected).await;
    }
    let uid = |list: &[Instance]| {
        let hall = list.iter().find(|instance| property(instance, "PORT") == Some("631") && is_online(instance));
        hall.and_then(|instance| instance.metadata.uid.clone())
    };
    let before = uid(&place.node.instances());
    let txt = json!({"ty": "Laser 6"});
    zeroconf.change(&json!({"update": "Hall", "type": "_ipp._tcp", "port": 631, "txt": txt}));
    let is_changed = |list: &[Instance]| list.iter().any(|instance| property(instance, "TXT_TY") == Some("Laser 6"));
    let changed = place.node.wait_for_instances("the new TXT record", is_changed).await;
    assert!(before.is_some() && uid(&changed) == before, "the Instance is the same");
    drop(zeroconf);
    place.wait_for_online(&[]).await;
}

/// A sender in the network that repeats datagrams until it is dropped.
struct Sender {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    fn start(namespace: &Namespace, datagrams: Vec<Vec<u8>>) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = namespace.run(move || {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
            socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 5353)).into()).unwrap();
            let socket = UdpSocket::from(socket);
            while !ended.load(Ordering::Relaxed) {
                for datagram in &datagrams {
                    socket.send_to(datagram, "224.0.0.251:5353").unwrap();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { end, thread: Some(thread) }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join); // what went wrong in it is on standard error
    }
}

/// With an interval of an hour nothing but an announcement or a goodbye can start a round.
#[tokio::test] // rule 92
async fn announcements_start_rounds_and_hostile_responses_harm_none() {
    let Some(place) = Place::new("1h") else { return };
    let Some(mut zeroconf) = Zeroconf::start(&place.namespace) else { return };
    zeroconf.add("Hall", "_ipp._tcp", 631, &json!({}));
    let header = [0, 0, 0x84, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let circle = [&header[..], b"\x04_ipp\xc0\x0c", &[0, 12, 0, 1, 0, 0, 0, 9, 0, 2, 0xc0, 12]].concat();
    let endless = [&header[..], &[0xc0, 12]].concat();
    let many = [&[0, 0, 0x84, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..], &[0; 8_000]].concat();
    let sender =
        Sender::start(&place.namespace, vec![circle, endless, many, vec![], vec![0xff; 9_000], b"_ipp".to_vec()]);
    place.write_services("services: [_ipp._tcp]");
    let agent = place.start();
    place.wait_for_online(&["Hall"]).await;
    let observe = || place.node.condition("service", "DiscoveryComplete").map(|condition| condition.message);
    let is_reported = |message: &Option<String>| message.as_ref().is_some_and(|text| text.contains("were skipped"));
    wait_for("a note of the responses skipped", observe, is_reported).await;
    let rounds = agent.log().matches("round done").count();
    assert!(rounds < 12, "{rounds} rounds: each datagram starts one");
    drop(sender);
    zeroconf.add("Attic", "_ipp._tcp", 631, &json!({}));
    place.wait_for_online(&["Attic", "Hall"]).await;
    place.node.wait_for_condition("service", "DiscoveryComplete", "True", "Complete").await;

    zeroconf.add("Hall web", "_http._tcp", 80, &json!({}));
    zeroconf.add("Printer", "_ipp._tcp", 631, &json!({"ty": "Laser", "id": "\u{0}\u{ff}"}));
    let online = place.wait_for_online(&["Attic", "Hall", "Printer"]).await;
    let printer = online.iter().find(|instance| property(instance, "INSTANCE") == Some("Printer")).unwrap();
    for (name, value) in [
        ("SERVICE", "_ipp._tcp"),
        ("HOST", "host.local"),
        ("PORT", "631"),
        ("ADDRESSES", "127.0.0.1"),
        ("TXT_TY", "Laser"),
        ("TXT_ID_HEX", "00ff"),
    ] {
        assert_eq!(property(printer, name), Some(value), "{name}");
    }
    zeroconf.change(&json!({"remove": "Printer"}));
    place.wait_for_online(&["Attic", "Hall"]).await;
}
