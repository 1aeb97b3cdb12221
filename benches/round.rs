//! What one round of a component costs: a fresh store with every capability linked, the call, the devices checked and
//! converted. And what it takes to load a component.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use akri_model::grant::Limits;
use akri_sandbox::{Call, Component, Host, HostConfig};
use akri_tests::node::{built_components, guest};

use crate::measure::{Samples, Table, repeat};

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("A component");
    let guest = host(None).load(fs::read(guest()).unwrap()).await.unwrap();
    for (what, devices, count, target) in [
        ("a round that finds 1 device", 1, 2000, "target: p50 ≤ 80 µs"),
        ("100 devices", 100, 1000, ""),
        ("10,000 devices", 10_000, 100, "target: p50 ≤ 30 ms"),
    ] {
        table.row(what, &repeat(count, || one_round(&guest, devices)).await, target);
    }
    let udev = fs::read(built_components().join("udev.wasm")).unwrap();
    table.row("first load of `udev.wasm`", &first_loads(&udev).await, "target: ≤ 1 s");
    table.row("load from cache", &cached_loads(&udev).await, "target: ≤ 10 ms");
    table
}

/// The test guest makes devices with five properties each.
async fn one_round(guest: &Component, devices: usize) {
    let limits = Limits { devices: 10_000, ..Limits::default() };
    let details = format!("devices:{devices}");
    let call = Call { subject: "default/bench".to_owned(), details, limits, ..Call::default() };
    let set = guest.discover(call).await.unwrap();
    assert_eq!(set.devices.len(), devices);
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

pub(crate) fn host(cache_dir: Option<PathBuf>) -> Host {
    Host::new(HostConfig { cache_dir, sysfs: "/sys".into(), udev_data: "/run/udev/data".into() }).unwrap()
}
