//! What it takes to load components, and what loaded ones take.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use akri_sandbox::{Call, Component};
use akri_tests::node::built_components;

use crate::measure::{Samples, Table};
use crate::round::host;

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("Loading `udev.wasm`");
    let udev = fs::read(built_components().join("udev.wasm")).unwrap();
    table.row("the first time", &first_loads(&udev).await, "target: ≤ 1 s");
    table.row("from the cache", &cached_loads(&udev).await, "target: ≤ 10 ms");
    for (what, memory, beside) in resident(&udev).await {
        table.value(what, memory, beside);
    }
    table
}

/// Loads that compile, each with an empty cache.
async fn first_loads(bytes: &[u8]) -> Samples {
    let mut samples = Vec::new();
    for _ in 0..5 {
        let cache = tempfile::tempdir().unwrap();
        samples.push(load(&cache.path().join("compiled"), bytes).await);
    }
    Samples::new(samples)
}

/// Loads of what the same cache has already, each in a host of its own, as after a restart.
async fn cached_loads(bytes: &[u8]) -> Samples {
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path().join("compiled");
    load(&cache, bytes).await;
    let mut samples = Vec::new();
    for _ in 0..50 {
        samples.push(load(&cache, bytes).await);
    }
    Samples::new(samples)
}

async fn load(cache: &Path, bytes: &[u8]) -> Duration {
    let host = host(Some(cache.to_owned()));
    let bytes = bytes.to_owned();
    let start = Instant::now();
    let component = host.load(bytes).await;
    let taken = start.elapsed();
    component.unwrap();
    taken
}

/// Memory of this process with so many handlers loaded, each after a round, from a cache as in an agent that was restarted.
async fn resident(bytes: &[u8]) -> Vec<(String, String, String)> {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("compiled");
    load(&cache, bytes).await;
    let without = kibibytes();
    let host = host(Some(cache));
    let (mut loaded, mut rows): (Vec<Component>, _) = (Vec::new(), Vec::new());
    for count in [1, 10, 100] {
        while loaded.len() < count {
            let component = host.load(bytes.to_owned()).await.unwrap();
            let _ = component.discover(Call::default()).await; // that it has no details does not matter
            loaded.push(component);
        }
        let (now, what) = (kibibytes(), if count == 1 { "handler" } else { "handlers" });
        let each = (now.saturating_sub(without)) as f64 / count as f64 / 1024.0;
        rows.push((format!("RSS with {count} {what} loaded"), mebibytes(now), format!("{each:.2} MiB each")));
    }
    rows
}

fn mebibytes(kibibytes: u64) -> String {
    format!("{:.1} MiB", kibibytes as f64 / 1024.0)
}

/// Resident memory of this process.
fn kibibytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
