//! The cost of one round of a component: a new store with every capability linked, the call, and checking and
//! converting the devices.

use std::fs;
use std::path::PathBuf;

use akri_model::grant::Limits;
use akri_sandbox::{Call, Component, Host, HostConfig};
use akri_tests::node::{built_components, guest};

use crate::measure::{Table, repeat};

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("A round of a component");
    let host = host(None);
    let echo = host.load(fs::read(built_components().join("debug_echo.wasm")).unwrap()).await.unwrap();
    table.row("`debugEcho`, which finds 1 device", &repeat(2000, || echo_round(&echo)).await, "target: p50 ≤ 80 µs");
    let guest = host.load(fs::read(guest()).unwrap()).await.unwrap();
    for (what, devices, count, target) in [
        ("one that imports all of WASI, 1 device", 1, 2000, ""),
        ("100 devices", 100, 1000, ""),
        ("10,000 devices", 10_000, 100, "target: p50 ≤ 30 ms"),
    ] {
        table.row(what, &repeat(count, || one_round(&guest, devices)).await, target);
    }
    table
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
