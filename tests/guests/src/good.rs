//! Behaviours of a good handler.

use crate::akri::discovery::types::{DeviceSpec, DiscoveryError, Mount};
use crate::akri::discovery::{logging, properties, round, udev};
use crate::behaviour::Good;
use crate::{Round, device, hint, number};

pub(crate) fn discover(behaviour: Good, argument: &str) -> Round {
    match behaviour {
        Good::Devices => Ok(many(number(argument, 1))),
        Good::Everything => Ok(vec![full()]),
        Good::MissingNode => Ok(vec![misspelt()]),
        Good::Properties => Ok(vec![device("properties", read_properties())]),
        Good::DetailsJson => Ok(vec![device(round::details_json().unwrap_or_default(), Vec::new())]),
        Good::Remaining => Ok(vec![device(round::remaining().to_string(), Vec::new())]),
        Good::Keep => Ok(keep_two(argument)),
        Good::Note => Ok(note_once()),
        Good::Log => Ok(log_once(argument)),
        Good::Udev => find(argument),
        Good::Unavailable => Err(DiscoveryError::Unavailable("the camera does not answer".to_owned())),
        Good::NotGranted => Err(DiscoveryError::NotGranted("udev: subsystem tty".to_owned())),
    }
}

fn many(count: usize) -> Vec<crate::Device> {
    let properties = |i: usize| (0..5).map(|p| (format!("PROPERTY_{p}"), format!("value-{i}-{p}"))).collect();
    (0..count).map(|i| device(format!("device-{i}"), properties(i))).collect()
}

fn full() -> crate::Device {
    let path = |name: &str| (format!("/in/{name}"), format!("/dev/{name}"));
    let (mount_to, mount_from) = path("mount");
    let (node_to, node_from) = path("node");
    crate::Device {
        id: "full".to_owned(),
        origin: "somewhere".to_owned(),
        properties: vec![hint("A", "1"), hint("B", "2")],
        mounts: vec![Mount { container_path: mount_to, host_path: mount_from, read_only: true }],
        device_specs: vec![DeviceSpec { container_path: node_to, host_path: node_from, permissions: "rw".to_owned() }],
        hints: vec![hint("unknown", "ignored")],
    }
}

/// A device with a node that is not there, and with two properties of one name.
fn misspelt() -> crate::Device {
    let path = || "/dev/akri-nope".to_owned();
    let spec = DeviceSpec { container_path: path(), host_path: path(), permissions: "rw".to_owned() };
    crate::Device { device_specs: vec![spec], ..device("misspelt", vec![hint("A", "1"), hint("A", "2")]) }
}

fn read_properties() -> Vec<(String, String)> {
    let value = |name: &str| properties::get(name).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let mut all: Vec<_> = properties::names().into_iter().map(|n| (n.clone(), value(&n).unwrap_or_default())).collect();
    all.push(hint("ABSENT", if properties::get("absent").is_none() { "none" } else { "some" }));
    all
}

/// Keeps two origins; or finds a device of the first one.
fn keep_two(argument: &str) -> Vec<crate::Device> {
    if argument == "found" {
        return vec![crate::Device { origin: "http://camera-1".to_owned(), ..device("camera", Vec::new()) }];
    }
    round::keep("http://camera-1");
    round::keep("http://camera-2");
    vec![device("reached", Vec::new())]
}

fn note_once() -> Vec<crate::Device> {
    round::note("http://camera-1", "Unreachable", "camera 1 did not answer");
    vec![device("noted", Vec::new())]
}

fn log_once(text: &str) -> Vec<crate::Device> {
    logging::log(logging::Level::Info, "guest", text);
    println!("stdout {text}");
    eprintln!("stderr {text}");
    vec![device("logged", Vec::new())]
}

/// Every device of a subsystem, with three attributes and its parents, page by page.
fn find(subsystem: &str) -> Result<Vec<crate::Device>, DiscoveryError> {
    let query = udev::Query::new();
    query.match_subsystem(subsystem);
    for name in ["dev", "uevent", "size"] {
        query.read_attribute(name);
    }
    let snapshot = query.run().map_err(refused)?;
    let mut devices = Vec::new();
    loop {
        let page = snapshot.next(16);
        if page.is_empty() {
            return Ok(devices);
        }
        devices.extend(page.into_iter().map(|e| device(e.devpath, e.attributes)));
    }
}

fn refused(error: crate::akri::discovery::types::AccessError) -> DiscoveryError {
    use crate::akri::discovery::types::AccessError::{Limit, NotGranted, Unavailable};
    match error {
        NotGranted(what) => DiscoveryError::NotGranted(what),
        Limit(what) | Unavailable(what) => DiscoveryError::Unavailable(what),
    }
}
