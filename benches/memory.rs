//! The memory of an agent with the five built-in handlers and 200 devices, by what it is for; of one more Configuration; and whether
//! rounds leave something behind.

use std::collections::BTreeMap;
use std::fs;
use std::process::id;
use std::time::Duration;

use akri_sandbox::Call;
use akri_tests::kubelet::Kubelet;
use akri_tests::node::{Agent, Node, built_components, rss_kib};
use tokio::time::sleep;

use crate::measure::Table;
use crate::round::host;

const DEVICES: usize = 200;
const MORE: usize = 50;
const ROUNDS: usize = 100_000;

/// Time for what follows a start.
const SETTLED: Duration = Duration::from_secs(10);

pub(crate) async fn measure() -> Table {
    let mut table = Table::new(format!("Memory (RSS) of an agent with five handlers and {DEVICES} local devices"));
    let node = node();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    drop(started(&node, &kubelet).await); // components are compiled now
    let agent = started(&node, &kubelet).await;
    let all = rss_kib(agent.pid());
    table.value("all of it", mebibytes(all), "target: ≤ 40 MiB");
    for (what, kib) in by_cause(agent.pid()) {
        table.value(format!("of it {what}"), mebibytes(kib), "");
    }
    for number in 0..MORE {
        node.write_echo(&format!("more-{number}"), 1, &["one"]);
    }
    node.wait_for_instances("those of all Configurations", |list| list.len() == DEVICES + MORE).await;
    sleep(SETTLED).await;
    let more = (rss_kib(agent.pid()) as f64 - all as f64) / 1024.0 / MORE as f64;
    table.value("one more Configuration with a device", format!("{more:.2} MiB"), "target: ≤ 0.1 MiB");
    let (before, after) = rounds().await;
    let growth = (after as f64 - before as f64) / 1024.0;
    table.value(
        format!("growth over {ROUNDS} rounds of a component"),
        format!("{growth:.2} MiB"),
        format!("from {} after 1,000 rounds", mebibytes(before)),
    );
    table
}

fn node() -> Node {
    let node = Node::new();
    node.make_echo_local();
    for handler in ["udev", "debug-echo", "opcua", "onvif", "mdns"] {
        let object = fs::read_to_string(built_components().join(format!("{handler}.yaml"))).unwrap();
        let scope = if handler == "debug-echo" { "  shared: false\n" } else { "" };
        node.write(&format!("components/{handler}.yaml"), &format!("{object}{scope}"));
        let file = format!("{}.wasm", handler.replace('-', "_"));
        fs::copy(built_components().join(&file), node.path("components").join(file)).unwrap();
    }
    let names: Vec<String> = (0..DEVICES).map(|number| format!("device-{number}")).collect();
    node.write_echo("echo", 1, &names.iter().map(String::as_str).collect::<Vec<_>>());
    node
}

async fn started(node: &Node, kubelet: &Kubelet) -> Agent {
    let agent = node.start();
    for handler in ["udev", "debugEcho", "opcua", "onvif", "mdns"] {
        agent.wait_for_log(&format!(r#"handler="{handler}""#)).await;
    }
    let is_offered = |view: &akri_tests::kubelet::View| {
        view.resources.values().filter(|resource| resource.connected && resource.allocatable() == 1).count() >= DEVICES
    };
    kubelet.wait_for("all devices", is_offered).await;
    sleep(SETTLED).await;
    agent
}

/// Returns the resident memory of a process by the kind of its mappings, the largest first.
fn by_cause(pid: u32) -> Vec<(&'static str, usize)> {
    let (mut causes, mut cause) = (BTreeMap::<&str, usize>::new(), "other");
    for line in fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [range, permissions, _, _, _, ..] if range.contains('-') => {
                cause = of_mapping(permissions, fields.get(5).copied().unwrap_or_default());
            }
            ["Rss:", kib, ..] => *causes.entry(cause).or_default() += kib.parse::<usize>().unwrap(),
            _ => {}
        }
    }
    let mut causes: Vec<_> = causes.into_iter().filter(|(_, kib)| *kib > 0).collect();
    causes.sort_by_key(|(_, kib)| std::cmp::Reverse(*kib));
    causes
}

fn of_mapping(permissions: &str, path: &str) -> &'static str {
    match (permissions, path) {
        (_, "[heap]") => "the main heap",
        (_, path) if path.starts_with("[stack") => "the main stack",
        ("r-xp", path) if path.ends_with("/akri") => "the program's code",
        (_, path) if path.ends_with("/akri") => "the program's constants and data",
        (_, path) if path.contains("/compiled") => "compiled components, mapped from files",
        ("r-xp", "") => "compiled components, in memory",
        (_, path) if path.contains(".so") => "libc",
        ("rw-p", "") => "heaps of threads, stacks, pools",
        _ => "other mappings",
    }
}

/// Runs rounds in this process. Returns its memory after the first thousand and at the end.
async fn rounds() -> (usize, usize) {
    let host = host(None);
    let echo = host.load(fs::read(built_components().join("debug_echo.wasm")).unwrap()).await.unwrap();
    let details = r#"{"descriptions":["foo0"]}"#.to_owned();
    let mut early = 0;
    for round in 0..ROUNDS {
        if round == 1000 {
            early = rss_kib(id());
        }
        let details_json = Some(details.clone());
        let call =
            Call { subject: "default/bench".to_owned(), details: details.clone(), details_json, ..Call::default() };
        assert_eq!(echo.discover(call).await.unwrap().devices.len(), 1);
    }
    (early, rss_kib(id()))
}

fn mebibytes(kib: usize) -> String {
    format!("{:.1} MiB", kib as f64 / 1024.0)
}
