//! The memory of an agent with the five built-in handlers and 200 devices, as the kubelet counts it and by what it is for; of one more
//! Configuration; and whether claims and rounds leave something behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::time::Duration;

use akri_engine::Call;
use akri_grpc::deviceplugin::{AllocateRequest, ContainerAllocateRequest};
use akri_tests::kubelet::Kubelet;
use akri_tests::node::{Agent, Node, akri, built_components, rss_kib};
use tokio::time::sleep;

use crate::measure::Table;
use crate::round::host;

const DEVICES: usize = 200;
const MORE: usize = 50;
const ROUNDS: usize = 100_000;
const CLAIMS: usize = 10_000;

/// Claims, or rounds, after which growth is measured.
const EARLY: usize = 1000;

/// Time for what follows a start.
const SETTLED: Duration = Duration::from_secs(10);

pub(crate) async fn measure() -> Table {
    let mut table = Table::new(format!("Memory of an agent with five handlers and {DEVICES} shared devices"));
    let node = node();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    drop(started(node.start()).await); // components are compiled now
    let group = Group::new();
    let agent = started(node.start_by(group.command(&node), &[])).await;
    group.rows(&mut table, "at rest");
    node.write_echo("echo", 1, &names(DEVICES).iter().map(String::as_str).collect::<Vec<_>>());
    let is_offered = |view: &akri_tests::kubelet::View| {
        view.resources.values().filter(|resource| resource.connected && resource.allocatable() == 1).count() >= DEVICES
    };
    kubelet.wait_for("all devices", is_offered).await;
    sleep(SETTLED).await;
    group.rows(&mut table, &format!("with {DEVICES} devices"));
    let processes = Processes::of(agent.pid());
    let all = processes.resident();
    table.value("agent and sandbox process, RSS", mebibytes(all.rss), "");
    table.value("of it memory of their own (RssAnon)", mebibytes(all.anonymous), "target: ≤ 40 MiB");
    table.value("of it mapped from files", mebibytes(all.rss - all.anonymous), "the kernel can drop it");
    for (what, agent, sandbox) in processes.by_cause() {
        let each = [agent, sandbox].map(|part| format!("{} of its own", mebibytes(part.anonymous)));
        let beside =
            format!("agent {} ({}), sandbox {} ({})", mebibytes(agent.rss), each[0], mebibytes(sandbox.rss), each[1]);
        table.value(format!("of it {what}"), mebibytes(agent.rss + sandbox.rss), beside);
    }
    let each = |more: Resident, before: Resident, count: usize| {
        format!("{:.3} MiB", (more.anonymous as f64 - before.anonymous as f64) / 1024.0 / count as f64)
    };
    for number in 0..MORE {
        node.write_echo(&format!("more-{number}"), 1, &["one"]);
    }
    node.wait_for_instances("those of all Configurations", |list| list.len() == DEVICES + MORE).await;
    sleep(SETTLED).await;
    let configurations = processes.resident();
    table.value("one more Configuration with a device", each(configurations, all, MORE), "target: ≤ 0.1 MiB");
    node.write_echo("echo", 1, &names(DEVICES * 2).iter().map(String::as_str).collect::<Vec<_>>());
    node.wait_for_instances("more devices", |list| list.len() == DEVICES * 2 + MORE).await;
    sleep(SETTLED).await;
    table.value("one more device", each(processes.resident(), configurations, DEVICES), "of which one resource");
    claims(&kubelet, EARLY).await;
    let early = processes.resident();
    claims(&kubelet, CLAIMS - EARLY).await;
    let growth = (processes.resident().anonymous as f64 - early.anonymous as f64) / 1024.0;
    table.value(
        format!("growth over {CLAIMS} claims"),
        format!("{growth:.2} MiB"),
        format!("from {} after {EARLY}", mebibytes(early.anonymous)),
    );
    let (before, after) = rounds().await;
    let growth = (after as f64 - before as f64) / 1024.0;
    table.value(
        format!("growth over {ROUNDS} rounds of a component"),
        format!("{growth:.2} MiB"),
        format!("from {} after 1,000 rounds", mebibytes(before)),
    );
    table
}

/// Claims devices one after the other, as the kubelet does for a container that never starts: the next claim of a slot replaces the last.
async fn claims(kubelet: &Kubelet, count: usize) {
    let slots: Vec<(String, String)> = kubelet.view(|view| {
        let of_devices = view.resources.iter().filter(|(name, _)| name.starts_with("akri.sh/echo-"));
        of_devices.map(|(name, resource)| (name.clone(), resource.healthy.iter().next().unwrap().clone())).collect()
    });
    for (resource, slot) in slots.iter().cycle().take(count) {
        let request = ContainerAllocateRequest { devices_ids: vec![slot.clone()] };
        let request = AllocateRequest { container_requests: vec![request] };
        kubelet.plugin(resource).allocate(request).await.unwrap();
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("device-{number}")).collect()
}

fn node() -> Node {
    let node = Node::new();
    for handler in ["udev", "debug-echo", "opcua", "onvif", "mdns"] {
        let object = fs::read_to_string(built_components().join(format!("{handler}.yaml"))).unwrap();
        node.write(&format!("components/{handler}.yaml"), &object);
        let file = format!("{}.wasm", handler.replace('-', "_"));
        fs::copy(built_components().join(&file), node.path("components").join(file)).unwrap();
    }
    node
}

async fn started(agent: Agent) -> Agent {
    for handler in ["udev", "debugEcho", "opcua", "onvif", "mdns"] {
        agent.wait_for_log(&format!(r#"handler="{handler}""#)).await;
    }
    sleep(SETTLED).await;
    agent
}

/// A control group of the agent and its sandbox processes, whose memory is counted as that of a pod. Root alone can make one.
struct Group(Option<PathBuf>);

impl Group {
    fn new() -> Self {
        let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new); // version 1, version 2
        let root = roots.into_iter().find(|root| root.join("cgroup.procs").exists());
        let group = root.map(|root| root.join(format!("akri-bench-{}", id())));
        Self(group.filter(|group| fs::create_dir(group).is_ok() && group.join("memory.stat").exists()))
    }

    /// Returns a command for a copy of the program, whose pages are in nobody's memory yet.
    fn command(&self, node: &Node) -> Command {
        let program = node.path("akri");
        let copied = Command::new("dd")
            .args([format!("if={}", akri().display()), format!("of={}", program.display())])
            .args(["bs=1M", "oflag=direct", "status=none"])
            .status();
        assert!(copied.unwrap().success());
        let mut command = Command::new("sh");
        let door = self.0.as_ref().map_or(PathBuf::from("/dev/null"), |group| group.join("cgroup.procs"));
        command.args(["-c", r#"chmod 755 "$1"; echo $$ >"$0"; exec "$@""#]).args([door, program]);
        command.env("MALLOC_ARENA_MAX", "1"); // as in the chart
        command
    }

    /// Adds rows for what a kubelet sees: all memory but inactive pages of files, and of that what no file has.
    fn rows(&self, table: &mut Table, when: &str) {
        let Some(group) = &self.0 else { return table.value("a pod: skipped, not root", "", "") };
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap();
        let of = |names: [&str; 2]| {
            let value = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            names.into_iter().find_map(value).unwrap().parse::<usize>().unwrap()
        };
        let used = ["memory.usage_in_bytes", "memory.current"]
            .iter()
            .find_map(|file| fs::read_to_string(group.join(file)).ok());
        let used: usize = used.unwrap().trim().parse().unwrap();
        let kib = |bytes: usize| mebibytes(bytes / 1024);
        let working_set = used - of(["total_inactive_file", "inactive_file"]);
        let anonymous = of(["total_rss", "anon"]);
        table.value(
            format!("working set of the pod, {when}"),
            kib(working_set),
            format!("anonymous {}", kib(anonymous)),
        );
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.0.as_ref().map(fs::remove_dir); // processes may still end in it
    }
}

/// Resident memory, in KiB.
#[derive(Debug, Clone, Copy, Default)]
struct Resident {
    rss: usize,
    /// Memory that no file has: the kernel can't drop it.
    anonymous: usize,
}

impl Resident {
    fn plus(self, other: Self) -> Self {
        Self { rss: self.rss + other.rss, anonymous: self.anonymous + other.anonymous }
    }
}

/// An agent and the processes that it started.
pub(crate) struct Processes {
    pub(crate) agent: u32,
    pub(crate) sandboxes: Vec<u32>,
}

impl Processes {
    pub(crate) fn of(agent: u32) -> Self {
        let pids =
            fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let parent = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
        };
        Self { agent, sandboxes: pids.filter(|pid| parent(pid) == Some(agent)).collect() }
    }

    fn resident(&self) -> Resident {
        let causes = self.by_cause().into_iter();
        causes.map(|(_, agent, sandbox)| agent.plus(sandbox)).fold(Resident::default(), Resident::plus)
    }

    /// Returns what the agent and its sandbox processes have, by the kind of mapping, the largest first.
    fn by_cause(&self) -> Vec<(&'static str, Resident, Resident)> {
        let mut causes = BTreeMap::<&str, (Resident, Resident)>::new();
        for (cause, resident) in mappings(self.agent) {
            let (agent, _) = causes.entry(cause).or_default();
            *agent = agent.plus(resident);
        }
        for (cause, resident) in self.sandboxes.iter().flat_map(|pid| mappings(*pid)) {
            let (_, sandbox) = causes.entry(cause).or_default();
            *sandbox = sandbox.plus(resident);
        }
        let mut causes: Vec<_> = causes.into_iter().map(|(cause, (agent, sandbox))| (cause, agent, sandbox)).collect();
        causes.retain(|(_, agent, sandbox)| agent.rss + sandbox.rss > 0);
        causes.sort_by_key(|(_, agent, sandbox)| std::cmp::Reverse(agent.rss + sandbox.rss));
        causes
    }
}

/// Returns the mappings of a process.
fn mappings(pid: u32) -> Vec<(&'static str, Resident)> {
    let mut mappings: Vec<(&'static str, Resident)> = Vec::new();
    for line in fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [range, permissions, _, _, _, ..] if range.contains('-') => {
                let cause = of_mapping(permissions, fields.get(5).copied().unwrap_or_default());
                mappings.push((cause, Resident::default()));
            }
            ["Rss:", kib, ..] => mappings.last_mut().unwrap().1.rss = kib.parse().unwrap(),
            ["Anonymous:", kib, ..] => mappings.last_mut().unwrap().1.anonymous = kib.parse().unwrap(),
            _ => {}
        }
    }
    mappings
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
        if round == EARLY {
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
