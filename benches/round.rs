//! The cost of one round of a component: a new store with every capability linked, the call, and checking and
//! converting the devices.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use akri_model::grant::Limits;
use akri_sandbox::{Call, Component, Host, HostConfig, WorkerProgram};
use akri_tests::node::{akri, built_components, guest, rss_kib};

use crate::measure::{Table, repeat};

/// Measures in a task, as in an agent, where a round's end does not have to wake another thread.
pub(crate) async fn measure() -> Table {
    tokio::spawn(measure_all()).await.unwrap()
}

async fn measure_all() -> Table {
    let mut table = Table::new("A round of a component");
    let own = rounds(&mut table, "", &host(None)).await;
    let compiled = tempfile::tempdir().unwrap();
    let isolated = rounds(&mut table, ", in a sandbox process", &workers(compiled.path().join("compiled"))).await;
    for (what, own, isolated) in own.iter().zip(&isolated).map(|((what, own), (_, isolated))| (what, own, isolated)) {
        let ratio = isolated.as_secs_f64() / own.as_secs_f64();
        table.value(format!("a sandbox process, {what}"), format!("{ratio:.2} ×"), "of the p50 without one");
    }
    table
}

/// Measures rounds, and returns their medians.
async fn rounds(table: &mut Table, place: &str, host: &Host) -> Vec<(&'static str, Duration)> {
    let echo = host.load(fs::read(built_components().join("debug_echo.wasm")).unwrap()).await.unwrap();
    let target = if place.is_empty() { "target: p50 ≤ 80 µs" } else { "target: p50 ≤ 150 µs" };
    let samples = repeat(2000, || echo_round(&echo)).await;
    table.row(format!("`debugEcho`, which finds 1 device{place}"), &samples, target);
    let mut medians = vec![("`debugEcho`", samples.median())];
    let guest = host.load(fs::read(guest()).unwrap()).await.unwrap();
    let large = if place.is_empty() { "target: p50 ≤ 30 ms" } else { "target: 1.3 × without one" };
    for (what, devices, count, target) in [
        ("one that imports all of WASI, 1 device", 1, 2000, ""),
        ("100 devices", 100, 1000, ""),
        ("10,000 devices", 10_000, 100, large),
    ] {
        let samples = repeat(count, || one_round(&guest, devices)).await;
        table.row(format!("{what}{place}"), &samples, target);
        medians.push((what, samples.median()));
    }
    for pid in children() {
        let memory = format!("{:.1} MiB", rss_kib(pid) as f64 / 1024.0);
        table.value("memory of the sandbox process", memory, "after these rounds");
    }
    medians
}

async fn echo_round(echo: &Component) {
    let details = r#"{"descriptions":["foo0"]}"#;
    let details_json = Some(details.to_owned());
    let call =
        Call { subject: "default/bench".to_owned(), details: details.to_owned(), details_json, ..Call::default() };
    assert_eq!(echo.discover(call).await.unwrap().devices.len(), 1);
}

/// Runs one round of the test guest, whose devices have five properties each.
async fn one_round(guest: &Component, devices: usize) {
    let limits = Limits { devices: 10_000, ..Limits::default() };
    let details = format!("devices:{devices}");
    let call = Call { subject: "default/bench".to_owned(), details, limits, ..Call::default() };
    let set = guest.discover(call).await.unwrap();
    assert_eq!(set.devices.len(), devices);
}

pub(crate) fn host(cache_dir: Option<PathBuf>) -> Host {
    Host::new(HostConfig {
        cache_dir,
        compiler: None,
        precompiled: None,
        sysfs: "/sys".into(),
        udev_data: "/run/udev/data".into(),
    })
    .unwrap()
}

/// A host that has components run in processes of the program.
pub(crate) fn workers(compiled: PathBuf) -> Host {
    let config = HostConfig {
        cache_dir: Some(compiled),
        compiler: Some(akri()),
        precompiled: None,
        sysfs: "/sys".into(),
        udev_data: "/run/udev/data".into(),
    };
    Host::with_workers(config, WorkerProgram { path: akri(), arguments: Vec::new(), memory_bytes: 384 << 20 }).unwrap()
}

/// The processes that this one has started and that still run.
pub(crate) fn children() -> Vec<u32> {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("children")).ok());
    children.flat_map(|all| all.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}
