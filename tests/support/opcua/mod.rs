//! OPC UA peers: servers and discovery servers by asyncua and node-opcua, and hostile ones.

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
use super::skip::{is_left_to_make_test, skip};

/// Time for a peer to start: some create certificates, and several start at once.
const START: Duration = Duration::from_secs(120);

/// The grant of the stories' handler: loopback, by any name.
pub const LOOPBACK: &str = "  grants:
    tcp:
    - networks: [127.0.0.0/8, '::1']
      ports: [1-65535]
    names: ['*']
";

/// Creates a node with the handler and an interval of 300 ms.
pub fn node() -> Node {
    let node = Node::new();
    add_handler(&node, &format!("  interval: 300ms\n{LOOPBACK}  limits:\n    round: 30s\n    notes: 32\n"));
    node
}

/// Adds the handler to a node; `spec` is indented lines of YAML.
pub fn add_handler(node: &Node, spec: &str) {
    fs::copy(built_components().join("opcua.wasm"), node.path("components/opcua.wasm")).unwrap();
    node.write_handler("opcua", "opcua.wasm", spec);
}

/// Writes a Configuration named `plant` with these discovery URLs; `rest` is more lines of its details.
pub fn write_configuration(node: &Node, discovery_urls: &[&str], rest: &str) {
    let urls: Vec<String> = discovery_urls.iter().map(|url| format!("          - {url}\n")).collect();
    let urls = urls.concat();
    let details = format!("      opcuaDiscoveryMethod:\n        standard:\n          discoveryUrls:\n{urls}{rest}");
    node.write_configuration("plant", "opcua", &details, "");
}

/// Runs a round of `akri discover` with that Configuration.
pub fn discover(node: &Node, discovery_urls: &[&str], rest: &str) -> Output {
    write_configuration(node, discovery_urls, rest);
    let text = fs::read_to_string(node.path("manifests/plant.yaml")).unwrap();
    node.discover(&text, &["-o", "json"])
}

/// Returns the ids of the devices of a round, in ascending order.
pub fn found(output: &Output) -> Vec<String> {
    let devices: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let mut ids: Vec<String> =
        devices.iter().map(|device| device["device"]["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

/// Returns the warnings of a round, without the progress that a slow machine prints.
pub fn warnings(output: &Output) -> String {
    let lines = std::str::from_utf8(&output.stderr).unwrap().lines();
    lines.filter(|line| !line.starts_with("loading ")).map(|line| format!("{line}\n")).collect()
}

/// Returns a loopback address that no other story or run uses.
pub fn machine() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high & 0x3f, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the URL of a server.
pub fn url(machine: Ipv4Addr, port: u16) -> String {
    format!("opc.tcp://{machine}:{port}/")
}

/// Returns an entry of a discovery server.
pub fn entry(name: &str, url: &str) -> Value {
    json!({"uri": format!("urn:{name}"), "name": name, "urls": [url]})
}

/// Starts a discovery server by asyncua that lists these entries.
pub async fn discovery_server(url: &str, entries: &[Value]) -> Option<Peer> {
    let wanted = json!({"url": url, "uri": "urn:lds", "name": "LDS", "type": "DiscoveryServer", "entries": entries});
    Peer::asyncua(&wanted).await
}

/// Starts a server by asyncua that does not register.
pub async fn server(name: &str, url: &str) -> Option<Peer> {
    Peer::asyncua(&json!({"url": url, "uri": format!("urn:{name}"), "name": name})).await
}

/// Returns the durations measured by `tests/peers/opcua_client.py` for that many rounds and servers.
///
/// # Panics
/// If fewer servers answer, or asyncua is not installed.
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

/// Returns a free port; the next one is most likely free, too.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A peer process; it is killed on drop.
pub struct Peer {
    child: Child,
}

impl Peer {
    /// Starts a peer by asyncua. `wanted` is the input of `tests/peers/opcua_asyncua.py`. `None`, with the reason
    /// printed, if it is not installed.
    pub async fn asyncua(wanted: &Value) -> Option<Self> {
        let mut command = Command::new(installed("python/bin/python")?);
        command.arg(script("opcua_asyncua.py")).arg(wanted.to_string());
        Some(Self::start(&mut command).await)
    }

    /// Starts a peer by node-opcua in its own network. `wanted` is the input of `tests/peers/opcua_node.js`.
    /// Certificates are created once per name.
    pub async fn node_opcua(network: &Namespace, name: &str, wanted: &Value) -> Option<Self> {
        let modules = installed("node/node_modules")?;
        let mut command = network.command(Path::new("node"));
        command.arg(script("opcua_node.js")).arg(certificates(name)).arg(wanted.to_string());
        Some(Self::start(command.env("NODE_PATH", modules)).await)
    }

    /// Starts a command and waits until it is ready.
    async fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let (sender, ready) = oneshot::channel();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        std::thread::spawn(move || {
            let _ = lines.any(|line| line == "ready").then(|| sender.send(())); // nobody may be waiting any more
            lines.for_each(drop);
        });
        let peer = Self { child };
        timeout(START, ready).await.expect("a peer starts in time").expect("a peer says that it is ready");
        peer
    }

    /// Stops it with SIGTERM and waits for its end.
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

/// Returns the directory of a node-opcua peer's certificate and key.
pub fn certificates(name: &str) -> PathBuf {
    peers().join("opcua-certificates").join(name)
}

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers")
}

fn installed(path: &str) -> Option<PathBuf> {
    if is_left_to_make_test() {
        return None;
    }
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
