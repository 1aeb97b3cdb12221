//! The duration of loading components, and the memory of loaded ones.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use akri_engine::{Call, LocalComponent};
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

/// Measures loads that compile, each with an empty cache.
async fn first_loads(bytes: &[u8]) -> Samples {
    let mut samples = Vec::new();
    for _ in 0..5 {
        let cache = tempfile::tempdir().unwrap();
        samples.push(load(&cache.path().join("compiled"), bytes).await);
    }
    Samples::new(samples)
}

/// Measures loads from the cache, each in a new host, as after a restart.
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

/// Measures the memory of this process with many handlers loaded from the cache, each after a round, as after a restart
/// of the agent.
async fn resident(bytes: &[u8]) -> Vec<(String, String, String)> {
    let mut rows = Vec::new();
    for (kind, differ) in [("different", true), ("made of one component", false)] {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path().join("compiled");
        let components: Vec<Vec<u8>> =
            (0..100_u8).map(|number| variant(bytes, if differ { number } else { 0 })).collect();
        compile(&cache, &components).await;
        let (without, host) = (kibibytes(), host(Some(cache)));
        let mut loaded: Vec<LocalComponent> = Vec::new();
        for count in [1, 10, 100] {
            while let Some(bytes) = components.get(loaded.len()).filter(|_| loaded.len() < count) {
                loaded.push(host.load(bytes.clone()).await.unwrap());
                let _ = loaded.last().unwrap().discover(Call::default()).await; // without details it finds nothing
            }
            let each = kibibytes().saturating_sub(without) as f64 / count as f64;
            let what = format!("RSS with {count} loaded, {kind}");
            rows.push((what, mebibytes(kibibytes() as f64), format!("{} each", mebibytes(each))));
        }
    }
    rows
}

/// Returns an equivalent component that differs by a custom section.
fn variant(bytes: &[u8], number: u8) -> Vec<u8> {
    [bytes, &[0, 2, 1, b'a' + number % 26, 0, 2, 1, b'a' + number / 26]].concat()
}

/// Compiles components into the cache without keeping them in this process.
async fn compile(cache: &Path, components: &[Vec<u8>]) {
    let host = host(Some(cache.to_owned()));
    for bytes in components {
        host.load(bytes.clone()).await.unwrap();
    }
}

fn mebibytes(kibibytes: f64) -> String {
    format!("{:.2} MiB", kibibytes / 1024.0)
}

/// Returns the resident memory of this process.
fn kibibytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
