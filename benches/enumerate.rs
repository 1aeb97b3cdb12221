//! The udev component on this machine's sysfs, compared with a program without a sandbox that reads the same files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use akri_engine::{Call, LocalComponent};
use akri_model::grant::{Grants, Limits};
use akri_tests::node::built_components;
use serde_json::json;

use crate::measure::{Table, repeat};
use crate::round::host;

/// Rounds of each.
const COUNT: usize = 200;
/// Attributes read by the component because of the rule below, besides `uevent`.
const ATTRIBUTES: [&str; 2] = ["dev", "power/control"];

pub(crate) async fn measure() -> Table {
    let wasm = fs::read(built_components().join("udev.wasm")).unwrap();
    let udev = host(None).load(wasm).await.unwrap();
    let sandboxed = repeat(COUNT, || find(&udev)).await;
    let native = repeat(COUNT, async || read_all()).await;
    let (devices, found) = (read_all().0, find(&udev).await);
    let ratio = sandboxed.median().as_secs_f64() / native.median().as_secs_f64();
    let mut table = Table::new(format!("All {devices} devices of sysfs, `uevent` and {} attributes", ATTRIBUTES.len()));
    table.row(format!("the udev component ({found} found)"), &sandboxed, format!("{ratio:.2} × plain reads"));
    table.row("plain reads of the same files", &native, "");
    table
}

/// Runs a round that examines every device, since nothing narrows it. Rules that don't match still read everything.
async fn find(udev: &LocalComponent) -> usize {
    let rule = format!(r#"ATTR{{{}}}=="?*", ATTR{{{}}}!="?""#, ATTRIBUTES[0], ATTRIBUTES[1]);
    let details = json!({ "udevRules": [rule] }).to_string();
    let call = Call {
        subject: "default/bench".to_owned(),
        details_json: Some(details.clone()),
        details,
        grants: Grants { udev_subsystems: vec!["*".to_owned()], ..Grants::default() },
        limits: Limits { devices: 65_536, ..Limits::default() },
        ..Call::default()
    };
    udev.discover(call).await.unwrap().devices.len()
}

/// Reads from each device of all classes and buses, and from its ancestors, what the component gets. Returns the number
/// of devices and of bytes.
fn read_all() -> (usize, usize) {
    let mut devices = BTreeSet::new();
    for directory in directories() {
        let links = fs::read_dir(directory).into_iter().flatten().flatten();
        for device in links.filter_map(|link| link.path().canonicalize().ok()) {
            let with_those_above = device.ancestors().take_while(|path| path.starts_with("/sys/devices/"));
            devices.extend(with_those_above.filter(|path| path.join("uevent").exists()).map(Path::to_owned));
        }
    }
    let bytes = devices.iter().map(|device| read(device)).sum();
    (devices.len(), bytes)
}

fn directories() -> Vec<PathBuf> {
    let below = |path: &str| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    below("/sys/class").chain(below("/sys/bus").map(|bus| bus.join("devices"))).collect()
}

fn read(device: &Path) -> usize {
    let uevent = fs::read(device.join("uevent")).map_or(0, |text| text.len());
    let attributes = ATTRIBUTES.map(|name| fs::read(device.join(name)).map_or(0, |text| text.len()));
    uevent + attributes.iter().sum::<usize>()
}
