//! The cost of one round of a component: a new store with every capability linked, the call, and checking and
//! converting the devices.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use akri_engine::{LocalComponent, LocalHost};
use akri_model::grant::{CompileLimits, Isolation, Limits};
use akri_sandbox::{Call, Component, Host, HostConfig, SandboxProgram};
use akri_tests::node::{akri, built_components, guest, rss_kib};

use crate::measure::{Table, repeat};

/// Measures in a task, as in an agent, where a round's end does not have to wake another thread.
pub(crate) async fn measure() -> Table {
    tokio::spawn(measure_all()).await.unwrap()
}

/// Loads a component in the sandbox process that it shares with others.
pub(crate) async fn load(host: &Host, bytes: Vec<u8>) -> Component {
    host.load(bytes, &CompileLimits::default(), Isolation::Shared).await.unwrap()
}

async fn measure_all() -> Table {
    let mut table = Table::new("A round of a component");
    let (echo, guest) = (read(&built_components().join("debug_echo.wasm")), read(&guest()));
    let local = host(None);
    let (local_echo, local_guest) = (local.load(echo.clone()).await.unwrap(), local.load(guest.clone()).await.unwrap());
    let without = rounds(&mut table, "", Subject::Local(local_echo), Subject::Local(local_guest)).await;
    let sandbox = sandbox(None);
    let (echo, guest) = (load(&sandbox, echo).await, load(&sandbox, guest).await);
    let place = ", in a sandbox process";
    let with = rounds(&mut table, place, Subject::Sandboxed(echo), Subject::Sandboxed(guest)).await;
    for pid in children() {
        let memory = format!("{:.1} MiB", rss_kib(pid) as f64 / 1024.0);
        table.value("memory of the sandbox process", memory, "after these rounds");
    }
    for ((what, without), (_, with)) in without.iter().zip(&with) {
        let ratio = with.as_secs_f64() / without.as_secs_f64();
        table.value(format!("a sandbox process, {what}"), format!("{ratio:.2} ×"), "of the p50 of the engine alone");
    }
    table
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

/// A component, in this process or in another one.
enum Subject {
    Local(LocalComponent),
    Sandboxed(Component),
}

impl Subject {
    async fn round(&self, details: &str, devices: usize) {
        let limits = Limits { devices: 10_000, ..Limits::default() };
        let (subject, details) = ("default/bench".to_owned(), details.to_owned());
        let call = Call { subject, details_json: Some(details.clone()), details, limits, ..Call::default() };
        let set = match self {
            Self::Local(component) => component.discover(call).await,
            Self::Sandboxed(component) => component.discover(call).await,
        };
        assert_eq!(set.unwrap().devices.len(), devices);
    }
}

/// Measures rounds of `debugEcho`, and of the test guest with five properties for each device. Returns their medians.
async fn rounds(table: &mut Table, place: &str, echo: Subject, guest: Subject) -> Vec<(&'static str, Duration)> {
    let small = if place.is_empty() { "target: p50 ≤ 80 µs" } else { "target: p50 ≤ 150 µs" };
    let large = if place.is_empty() { "target: p50 ≤ 30 ms" } else { "target: 1.3 × without one" };
    let samples = repeat(2000, || echo.round(r#"{"descriptions":["foo0"]}"#, 1)).await;
    table.row(format!("`debugEcho`, which finds 1 device{place}"), &samples, small);
    let mut medians = vec![("`debugEcho`", samples.median())];
    for (what, devices, count, target) in [
        ("one that imports all of WASI, 1 device", 1, 2000, ""),
        ("100 devices", 100, 1000, ""),
        ("10,000 devices", 10_000, 100, large),
    ] {
        let details = format!("devices:{devices}");
        let samples = repeat(count, || guest.round(&details, devices)).await;
        table.row(format!("{what}{place}"), &samples, target);
        medians.push((what, samples.median()));
    }
    medians
}

/// The engine alone, in this process.
pub(crate) fn host(cache_dir: Option<PathBuf>) -> LocalHost {
    LocalHost::new(akri_engine::LocalHostConfig { cache_dir, sysfs: "/sys".into(), udev_data: "/run/udev/data".into() })
        .unwrap()
}

/// A host whose components run in processes of the program.
pub(crate) fn sandbox(cache_dir: Option<PathBuf>) -> Host {
    Host::new(HostConfig {
        program: SandboxProgram { path: akri(), arguments: Vec::new(), memory_bytes: 384 << 20 },
        cache_dir,
        precompiled: None,
        sysfs: "/sys".into(),
        udev_data: "/run/udev/data".into(),
    })
    .unwrap()
}

/// The processes that this one has started and that still run.
pub(crate) fn children() -> Vec<u32> {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("children")).ok());
    children.flat_map(|all| all.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}
