//! The server with a real component, and everything it may be sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use akri_engine::{ForwardedLine, LocalHost, LocalHostConfig};
use akri_model::discovery::RoundError;
use akri_model::grant::{Grants, Limits};
use proptest::prelude::*;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{LARGEST_ANSWER, serve};
use crate::frame;
use crate::protocol::{Arguments, Export, LARGEST_REPLY, ReceivedDevices, Reply, Request, decode, encode};

/// The guest of the tests, which `make guests` builds.
fn bytes() -> Vec<u8> {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/guests/target/wasm32-wasip2/release/akri_guest.wasm");
    let path = std::env::var_os("AKRI_GUESTS").map_or_else(|| built.into(), std::path::PathBuf::from);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; `make guests` builds it", path.display()))
}

fn host() -> LocalHost {
    let (sysfs, udev_data) = ("/sys".into(), "/run/udev/data".into());
    LocalHost::new(LocalHostConfig { cache_dir: None, sysfs, udev_data }).unwrap()
}

/// An agent's end of a connection to a server in this process.
struct Agent {
    stream: UnixStream,
    server: JoinHandle<std::io::Result<()>>,
}

impl Agent {
    fn new(host: LocalHost, largest_answer: usize) -> Self {
        let (stream, theirs) = UnixStream::pair().unwrap();
        Self { stream, server: tokio::spawn(serve(theirs, host, largest_answer)) }
    }

    async fn with_guest(largest_answer: usize) -> Self {
        let mut agent = Self::new(host(), largest_answer);
        agent.send(&Request::Load { call: 1, component: 7 }, &bytes()).await;
        let (reply, _) = agent.receive().await;
        let Reply::Loaded { call: 1, result: Ok(loaded) } = reply else { panic!("{reply:?}") };
        assert_eq!(loaded.description.name, "guest");
        assert!(loaded.exported.starts_with("akri:discovery/handler@"));
        agent
    }

    async fn send(&mut self, request: &Request, payload: &[u8]) {
        self.stream.write_all(&encode(request, payload).unwrap()).await.unwrap();
    }

    async fn discover(&mut self, call: u64, arguments: Arguments) {
        let (component, export, arguments) = (7, Export::Discover, Box::new(arguments));
        self.send(&Request::Call { call, component, export, arguments }, &[]).await;
    }

    async fn receive(&mut self) -> (Reply, Vec<u8>) {
        let read = timeout(Duration::from_secs(120), frame::read(&mut self.stream, LARGEST_REPLY));
        let frame = read.await.unwrap().unwrap().unwrap();
        let (reply, payload) = decode::<Reply>(&frame).unwrap();
        (reply, payload.to_vec())
    }

    /// Receives what is no line of a log.
    async fn receive_result(&mut self) -> (Reply, Vec<u8>) {
        loop {
            let received = self.receive().await;
            if !matches!(received.0, Reply::Log { .. }) {
                return received;
            }
        }
    }
}

fn arguments(details: &str) -> Arguments {
    Arguments {
        subject: format!("test/{details}"),
        details: details.to_owned(),
        details_json: None,
        properties: BTreeMap::new(),
        secrets: BTreeMap::new(),
        grants: Grants::default(),
        limits: Limits::default(),
        cache: Arc::default(),
        rates: 1,
    }
}

#[tokio::test]
async fn server_runs_rounds_beside_each_other() {
    let mut agent = Agent::with_guest(LARGEST_ANSWER).await;
    agent.discover(2, arguments("sleep")).await;
    agent.discover(3, arguments("devices:3")).await;
    let (reply, payload) = agent.receive_result().await;
    let Reply::Discovered { call: 3, devices: 3, result: Ok(_), cache: None, .. } = reply else { panic!("{reply:?}") };
    let mut devices = ReceivedDevices::default();
    assert_eq!(devices.add_some(&payload).unwrap(), b"");
    assert_eq!(devices.devices.len(), 3);
    agent.send(&Request::Cancel { call: 2 }, &[]).await;
    let (reply, _) = agent.receive_result().await;
    assert!(matches!(reply, Reply::Discovered { call: 2, result: Err(_), .. }), "{reply:?}");
    agent.discover(4, arguments("panic")).await;
    let (reply, _) = agent.receive_result().await;
    assert!(matches!(reply, Reply::Discovered { call: 4, result: Err(_), .. }), "{reply:?}");
}

#[tokio::test]
async fn server_sends_many_devices_in_parts() {
    let mut agent = Agent::with_guest(LARGEST_ANSWER).await;
    let limits = Limits { devices: 2000, ..Limits::default() };
    agent.discover(2, Arguments { limits, ..arguments("devices:1500") }).await;
    let (mut devices, mut parts) = (ReceivedDevices::default(), 0);
    loop {
        let (reply, payload) = agent.receive().await;
        let mut rest = payload.as_slice();
        while !rest.is_empty() {
            rest = devices.add_some(rest).unwrap();
        }
        match reply {
            Reply::Devices { call: 2 } => parts += 1,
            Reply::Discovered { call: 2, result: Ok(_), .. } => break,
            other => panic!("{other:?}"),
        }
    }
    let ids: Vec<String> = devices.devices.into_iter().map(|device| device.id).collect();
    let expected: Vec<String> = (0..1500).map(|number| format!("device-{number}")).collect();
    assert_eq!((parts, ids), (2, expected));
}

#[tokio::test] // rule 92
async fn too_large_answer_is_an_error_of_its_round_alone() {
    let mut agent = Agent::with_guest(16 << 10).await;
    for (call, devices, are_sent) in [(2, 1500, false), (3, 500, false), (4, 3, true)] {
        let limits = Limits { devices: 2000, ..Limits::default() };
        agent.discover(call, Arguments { limits, ..arguments(&format!("devices:{devices}")) }).await;
        let (mut reply, mut bytes) = (agent.receive().await, 0);
        while reply.0 == (Reply::Devices { call }) {
            bytes += reply.1.len();
            reply = agent.receive().await;
        }
        assert!(bytes < 16 << 10, "{bytes}");
        let Reply::Discovered { call: answered, result, .. } = reply.0 else { panic!("{reply:?}") };
        assert_eq!((answered, result.is_ok()), (call, are_sent));
        assert!(are_sent || matches!(result, Err(RoundError::LimitExceeded(_))), "{result:?}");
    }
}

#[tokio::test]
async fn server_forwards_log_lines_before_the_answer() {
    let mut agent = Agent::with_guest(LARGEST_ANSWER).await;
    agent.discover(2, arguments("log")).await;
    let (mut lines, mut ended) = (0, false);
    while !ended {
        match agent.receive().await.0 {
            Reply::Log { call: 2, line: ForwardedLine::Written { .. } } => lines += 1,
            Reply::Discovered { call: 2, .. } => ended = true,
            other => panic!("{other:?}"),
        }
    }
    assert!(lines > 0);
}

#[tokio::test] // threat 15
async fn server_keeps_few_log_lines_that_nobody_reads() {
    const FLOOD: u64 = 20_000;
    let mut agent = Agent::with_guest(LARGEST_ANSWER).await;
    let (mut pause, mut kept) = (Duration::ZERO, 0);
    for call in [2, 3] {
        let limits = Limits { log_lines: 20_000, round: Duration::from_secs(3600), ..Limits::default() };
        agent.discover(call, Arguments { limits, ..arguments("log-flood:20000") }).await;
        tokio::time::sleep(pause).await; // the second time the guest has ended, and nothing was read
        let (start, mut dropped) = (Instant::now(), 0);
        kept = 0;
        loop {
            match agent.receive().await.0 {
                Reply::Log { line: ForwardedLine::Written { .. }, .. } => kept += 1,
                Reply::Log { line: ForwardedLine::Dropped(count), .. } => dropped += count,
                Reply::Discovered { .. } => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(kept + dropped, FLOOD);
        pause = start.elapsed() * 3 + Duration::from_secs(2);
    }
    assert!(kept < FLOOD / 2, "{kept} of {FLOOD} were kept");
}

#[tokio::test]
async fn server_ends_with_its_connection() {
    let agent = Agent::new(host(), LARGEST_ANSWER);
    drop(agent.stream);
    timeout(Duration::from_secs(10), agent.server).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn unknown_components_and_malformed_requests_are_refused() {
    let mut agent = Agent::new(host(), LARGEST_ANSWER);
    agent.discover(1, arguments("devices:1")).await;
    let (reply, _) = agent.receive().await;
    assert!(matches!(reply, Reply::Discovered { call: 1, result: Err(_), .. }), "{reply:?}");
    agent.send(&Request::Load { call: 2, component: 1 }, b"no component").await;
    let (reply, _) = agent.receive().await;
    assert!(matches!(reply, Reply::Loaded { call: 2, result: Err(_) }), "{reply:?}");
    agent.stream.write_all(&[3, 0, 0, 0, 255, 255, 255]).await.unwrap();
    let ended = timeout(Duration::from_secs(10), agent.server).await.unwrap().unwrap();
    assert!(ended.unwrap_err().to_string().contains("malformed"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test] // threat 22
    fn server_survives_arbitrary_requests(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut agent = Agent::new(shared_host(), LARGEST_ANSWER);
            let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
            let _ = agent.stream.write_all(&[&length[..], &bytes].concat()).await;
            drop(agent.stream);
            let ended = timeout(Duration::from_secs(20), agent.server).await.unwrap();
            assert!(ended.is_ok(), "it panicked");
        });
    }
}

/// A host, the same for all cases.
fn shared_host() -> LocalHost {
    static HOST: std::sync::LazyLock<LocalHost> = std::sync::LazyLock::new(host);
    HOST.clone()
}
