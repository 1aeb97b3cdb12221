//! `debugEcho` as a component in the agent and as a separate process over gRPC.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use akri_engine::{Call, LocalComponent};
use akri_grpc::discovery::discovery_handler_client::DiscoveryHandlerClient;
use akri_grpc::discovery::{DiscoverRequest, DiscoverResponse};
use akri_tests::node::{Node, built_components, rss_kib};
use akri_tests::remote::Handler;
use serde_json::json;
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint};

use crate::measure::{Samples, Table, repeat};
use crate::round::host;

type Client = DiscoveryHandlerClient<Channel>;

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("debugEcho as a component, and as a process over gRPC");
    let directory = tempfile::tempdir().unwrap();
    let component = load(directory.path(), "debug_echo.wasm").await;
    let process = Process::start(&directory.path().join("echo.sock"));
    let client = process.client().await;
    for (what, devices, count) in [("1 device", 1, 2000), ("1,000 devices", 1000, 200)] {
        let details = details(devices);
        let rounds = repeat(count, || round(&component, &details)).await;
        let calls = repeat(count, || call(client.clone(), &details)).await;
        let ratio = rounds.median().as_secs_f64() / calls.median().as_secs_f64();
        table.row(format!("a round of the component, {what}"), &rounds, format!("{ratio:.1} × the process"));
        table.row(format!("a call of the process, {what}"), &calls, "");
    }
    table.row("a process from its start to its first answer", &starts(directory.path()).await, "");
    let one_more = memory_of_one_more(directory.path()).await;
    table.value(
        "memory of one more component between its rounds",
        mebibytes(one_more),
        "`udev.wasm`, loaded from cache",
    );
    table.value("memory of the process", mebibytes(rss_kib(process.child.id())), "");
    let (alone, beside, memory) = health().await;
    table.row("`/healthz` of an agent at rest", &alone, "");
    table.row("beside 9,000 new devices of three remote handlers", &beside, format!("agent at most {memory}"));
    table
}

/// Returns how long `/healthz` takes at rest and during the first minute of 9,000 devices, and the memory of the agent then.
async fn health() -> (Samples, Samples, String) {
    let node = Node::new();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agent = node.start_with(&["--listen", &address.to_string()]);
    agent.wait_for_log("agent started").await;
    let alone = probe(address, Duration::from_secs(5), agent.pid()).await;
    let names: Vec<String> = (0..3000).map(|number| format!("device-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut handlers = Vec::new();
    for name in ["a", "b", "c"] {
        node.write_configuration(name, name, "      -\n", "");
        let handler = Handler::start(&node, name, name, &names);
        handler.register(&node).await.unwrap();
        handlers.push(handler);
    }
    let beside = probe(address, Duration::from_secs(60), agent.pid()).await;
    assert!(node.instances().len() > 1000, "they have been published");
    (alone.0, beside.0, mebibytes(beside.1))
}

/// Asks for `/healthz` twenty times a second, and returns how long each answer takes, and the largest resident memory of a process.
async fn probe(address: SocketAddr, time: Duration, pid: u32) -> (Samples, usize) {
    let ask = move || {
        let (end, mut taken, mut memory) = (Instant::now() + time, Vec::new(), 0);
        while Instant::now() < end {
            let began = Instant::now();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            taken.push(began.elapsed());
            memory = memory.max(rss_kib(pid));
            std::thread::sleep(Duration::from_millis(50));
        }
        (Samples::new(taken), memory)
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

async fn load(cache: &Path, file: &str) -> LocalComponent {
    let bytes = fs::read(built_components().join(file)).unwrap();
    host(Some(cache.join("compiled"))).load(bytes).await.unwrap()
}

fn details(devices: usize) -> String {
    let descriptions: Vec<String> = (0..devices).map(|n| format!("device-{n}")).collect();
    json!({"descriptions": descriptions}).to_string()
}

async fn round(component: &LocalComponent, details: &str) -> usize {
    let (details, details_json) = (details.to_owned(), Some(details.to_owned()));
    let call = Call { subject: "default/bench".to_owned(), details, details_json, ..Call::default() };
    component.discover(call).await.unwrap().devices.len()
}

async fn call(mut client: Client, details: &str) -> DiscoverResponse {
    let request = DiscoverRequest { discovery_details: details.to_owned(), ..DiscoverRequest::default() };
    let mut stream = client.discover(request).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap()
}

/// Returns the memory that a second component adds to a host after a first.
async fn memory_of_one_more(directory: &Path) -> usize {
    load(directory, "udev.wasm").await; // compiled, and in the cache
    let host = host(Some(directory.join("compiled")));
    let first = host.load(fs::read(built_components().join("debug_echo.wasm")).unwrap()).await.unwrap();
    for _ in 0..100 {
        round(&first, &details(1)).await;
    }
    let bytes = fs::read(built_components().join("udev.wasm")).unwrap();
    let before = rss_kib(std::process::id());
    let _one_more = host.load(bytes).await.unwrap();
    rss_kib(std::process::id()).saturating_sub(before)
}

async fn starts(directory: &Path) -> Samples {
    let mut samples = Vec::new();
    for n in 0..50 {
        let start = Instant::now();
        let process = Process::start(&directory.join(format!("{n}.sock")));
        call(process.client().await, &details(1)).await;
        samples.push(start.elapsed());
    }
    Samples::new(samples)
}

fn mebibytes(kib: usize) -> String {
    format!("{:.1} MiB", kib as f64 / 1024.0)
}

/// The handler process; it is killed on drop.
struct Process {
    child: Child,
    socket: String,
}

impl Process {
    fn start(socket: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_echo-handler")).arg(socket).stdin(Stdio::null()).spawn().unwrap();
        Self { child, socket: format!("unix://{}", socket.display()) }
    }

    /// Returns a connection, as soon as the process accepts one.
    async fn client(&self) -> Client {
        let endpoint = Endpoint::from_shared(self.socket.clone()).unwrap();
        loop {
            match endpoint.connect().await {
                Ok(channel) => return Client::new(channel),
                Err(_) => sleep(Duration::from_micros(100)).await,
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}
