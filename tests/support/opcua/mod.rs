//! OPC UA peers: servers and discovery servers by asyncua and node-opcua, and ones that break the rules.

pub mod hostile;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::namespace::Namespace;
use super::node::{Node, built_components};
use super::skip::skip;

/// How long a peer may take to start: some make certificates, and several start at once.
const START: Duration = Duration::from_secs(120);

/// What the stories' handler may reach: loopback, by whatever name.
pub const LOOPBACK: &str = "  grants:
    tcp:
    - networks: [127.0.0.0/8, '::1']
      ports: [1-65535]
    names: ['*']
";

/// A node with the handler: rounds every 300 ms.
pub fn node() -> Node {
    let node = Node::new();
    add_handler(&node, &format!("  interval: 300ms\n{LOOPBACK}  limits:\n    round: 30s\n    notes: 32\n"));
    node
}

/// Adds the handler to a node; `spec` is lines of YAML with their indentation.
pub fn add_handler(node: &Node, spec: &str) {
    fs::copy(built_components().join("opcua.wasm"), node.path("components/opcua.wasm")).unwrap();
    node.write_handler("opcua", "opcua.wasm", spec);
}

/// A Configuration named `plant` with these discovery URLs; `rest` is more lines of its details.
pub fn write_configuration(node: &Node, discovery_urls: &[&str], rest: &str) {
    let urls: Vec<String> = discovery_urls.iter().map(|url| format!("          - {url}\n")).collect();
    let urls = urls.concat();
    let details = format!("      opcuaDiscoveryMethod:\n        standard:\n          discoveryUrls:\n{urls}{rest}");
    node.write_configuration("plant", "opcua", &details, "");
}

/// A round of `akri discover` with that Configuration.
pub fn discover(node: &Node, discovery_urls: &[&str], rest: &str) -> Output {
    write_configuration(node, discovery_urls, rest);
    let text = fs::read_to_string(node.path("manifests/plant.yaml")).unwrap();
    node.discover(&text, &["-o", "json"])
}

/// The ids of the devices of a round, in ascending order.
pub fn found(output: &Output) -> Vec<String> {
    let devices: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let mut ids: Vec<String> =
        devices.iter().map(|device| device["device"]["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

/// What a round says beside its devices.
pub fn warnings(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A machine on loopback that no other story uses, nor another run of them.
pub fn machine() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high & 0x3f, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The URL of a server.
pub fn url(machine: Ipv4Addr, port: u16) -> String {
    format!("opc.tcp://{machine}:{port}/")
}

/// An entry of a discovery server.
pub fn entry(name: &str, url: &str) -> Value {
    json!({"uri": format!("urn:{name}"), "name": name, "urls": [url]})
}

/// A discovery server by asyncua that lists these, registered or not, from then on.
pub async fn discovery_server(url: &str, entries: &[Value]) -> Option<Peer> {
    let wanted = json!({"url": url, "uri": "urn:lds", "name": "LDS", "type": "DiscoveryServer", "entries": entries});
    Peer::asyncua(&wanted).await
}

/// A server by asyncua that registers nowhere.
pub async fn server(name: &str, url: &str) -> Option<Peer> {
    Peer::asyncua(&json!({"url": url, "uri": format!("urn:{name}"), "name": name})).await
}

/// What `tests/peers/opcua_client.py` takes for so many rounds in which so many servers have to answer.
///
/// # Panics
/// If fewer do, or asyncua is not installed.
pub fn ask_by_asyncua(url: &str, rounds: usize, servers: usize) -> Vec<Duration> {
    let mut command = Command::new(installed("python/bin/python").unwrap());
    let output = command.arg(script("opcua_client.py")).args([url, &rounds.to_string()]).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let taken = lines.lines().map(|line| line.split_once(' ').unwrap());
    let taken = taken.inspect(|(there, _)| assert_eq!(*there, servers.to_string()));
    let taken: Vec<Duration> = taken.map(|(_, seconds)| Duration::from_secs_f64(seconds.parse().unwrap())).collect();
    assert_eq!(taken.len(), rounds, "{}", String::from_utf8_lossy(&output.stderr));
    taken
}

/// A port that nobody uses; nor, most likely, the one after it.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A peer as a process; killed when this goes.
pub struct Peer {
    child: Child,
}

impl Peer {
    /// By asyncua. `wanted` is what `tests/peers/opcua_asyncua.py` reads. None, with the reason, if it is not installed.
    pub async fn asyncua(wanted: &Value) -> Option<Self> {
        let mut command = Command::new(installed("python/bin/python")?);
        command.arg(script("opcua_asyncua.py")).arg(wanted.to_string());
        Some(Self::start(&mut command).await)
    }

    /// By node-opcua, in a network of its own. `wanted` is what `tests/peers/opcua_node.js` reads. The certificate of a
    /// name is made once.
    pub async fn node_opcua(network: &Namespace, name: &str, wanted: &Value) -> Option<Self> {
        let modules = installed("node/node_modules")?;
        let mut command = network.command(Path::new("node"));
        command.arg(script("opcua_node.js")).arg(certificates(name)).arg(wanted.to_string());
        Some(Self::start(command.env("NODE_PATH", modules)).await)
    }

    /// Returns when it says that it is ready.
    async fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let (say, ready) = oneshot::channel();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        std::thread::spawn(move || {
            let _ = lines.any(|line| line == "ready").then(|| say.send(())); // nobody may be waiting any more
            lines.for_each(drop);
        });
        let peer = Self { child };
        timeout(START, ready).await.expect("a peer starts in time").expect("a peer says that it is ready");
        peer
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}

/// Where a peer of node-opcua keeps its certificate and key.
pub fn certificates(name: &str) -> PathBuf {
    peers().join("opcua-certificates").join(name)
}

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers")
}

fn installed(path: &str) -> Option<PathBuf> {
    let path = peers().join(path);
    if !path.exists() {
        skip(&format!("there is no {}: run 'make peers'", path.display()));
        return None;
    }
    Some(path)
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}
