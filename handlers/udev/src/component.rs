//! The component: the exports of the world, and the calls to the host.

use crate::device::{self, Extras};
use crate::rule::{Filter, Rule};
use crate::{INTERVAL_MS, NAME, details::Details, explain, query, query::Query, record};
use crate::{record::Snapshot, resource::ResourceName};
use bindings::akri::discovery::types::{AccessError, Device, DeviceSpec, DiscoveryError, Problem};
use bindings::akri::discovery::{logging, logging::Level, properties, round, udev};
use bindings::exports::akri::discovery::handler::{Description, Guest};

#[allow(
    unsafe_code,
    unreachable_pub,
    missing_docs,
    clippy::allow_attributes_without_reason,
    reason = "generated: the calls over the component boundary move raw memory"
)]
mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "discovery-handler" });
    export!(Udev with_types_in self);

    use super::Udev;
}

/// Entries fetched at once.
const PAGE: u32 = 1000;

struct Udev;

impl Guest for Udev {
    fn describe() -> Description {
        Description {
            name: NAME.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            shared: false,
            hints: vec![("interval-ms".into(), INTERVAL_MS.to_string())],
        }
    }

    fn validate(_details: String) -> Result<Vec<(String, String)>, Vec<Problem>> {
        let wake = query::wake_subsystems(&details()?.rules);
        Ok(wake.into_iter().map(|subsystem| ("uevent".into(), subsystem)).collect())
    }

    fn discover(_details: String) -> Result<Vec<Device>, DiscoveryError> {
        let details = details().map_err(DiscoveryError::InvalidDetails)?;
        if let Some(devpath) = properties::get(explain::EXPLAIN) {
            explain(&details.rules, String::from_utf8_lossy(&devpath).trim());
        }
        if details.rules.is_empty() {
            return Ok(Vec::new());
        }
        for hint in details.rules.iter().flat_map(|rule| &rule.filters).filter_map(Filter::hint) {
            round::note("", "RuleMatchesNothing", &hint);
        }
        let resource = properties::get("devicePluginResourceName").and_then(|value| ResourceName::parse(&value));
        let extras = Extras { resource, vfio: vfio_wanted() };
        let mut query = Query::covering(&details.rules);
        if extras.vfio {
            query.attributes.insert(device::IOMMU_GROUP.to_owned());
        }
        let snapshot = run_query(&query).map_err(refused)?;
        let found = device::devices(&details, &snapshot, &extras);
        Ok(found.into_iter().map(|device| reported(device, details.permissions.as_str())).collect())
    }
}

fn details() -> Result<Details, Vec<Problem>> {
    Details::parse(round::details_json().as_deref()).map_err(|problems| problems.into_iter().map(problem).collect())
}

fn problem(problem: handler_details::Problem) -> Problem {
    Problem { path: problem.path, reason: problem.reason.into(), message: problem.message }
}

/// Returns whether the `/dev/vfio` nodes of PCI devices are requested, for a virtual machine.
fn vfio_wanted() -> bool {
    properties::get("vfioPassthrough").is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(b"true"))
}

/// Logs how the rules apply to one device. Errors do not affect the round.
fn explain(rules: &[Rule], devpath: &str) {
    let log_line = |line: &str| logging::log(Level::Info, explain::EXPLAIN, line);
    let snapshot = match run_query(&Query::device(devpath, rules)) {
        Ok(snapshot) => snapshot,
        Err(AccessError::NotGranted(why) | AccessError::Limit(why) | AccessError::Unavailable(why)) => {
            return log_line(&why);
        }
    };
    let is_asked_for = |index: &usize| snapshot.get(*index).is_some_and(|record| record.devpath == devpath);
    match snapshot.matched().find(is_asked_for) {
        Some(index) => explain::explain(rules, &snapshot, index).iter().for_each(|line| log_line(line)),
        None => log_line("there is no such device, or its subsystem is not granted"),
    }
}

/// Runs a query and fetches all pages.
fn run_query(query: &Query) -> Result<Snapshot, AccessError> {
    let pages = ask(query).run()?;
    let mut snapshot = Snapshot::default();
    loop {
        let page = pages.next(PAGE);
        if page.is_empty() {
            break;
        }
        snapshot.extend(page.into_iter().map(record));
    }
    for devpath in pages.unreadable() {
        round::note(&devpath, "DeviceUnreadable", "the device is there and could not be read");
        round::keep(&devpath);
    }
    let skipped = pages.skipped();
    if skipped > 0 {
        round::note("", "DevicesSkipped", &format!("{skipped} entries of sysfs lead to no device or are too many"));
    }
    Ok(snapshot)
}

fn ask(query: &Query) -> udev::Query {
    let request = udev::Query::new();
    query.subsystems.iter().for_each(|glob| request.match_subsystem(glob));
    query.sysnames.iter().for_each(|glob| request.match_sysname(glob));
    query.devpaths.iter().for_each(|glob| request.match_devpath(glob));
    query.attributes.iter().for_each(|name| request.read_attribute(name));
    request.include_ancestors();
    request
}

fn record(entry: udev::Entry) -> record::Record {
    record::Record {
        devpath: entry.devpath,
        parent: entry.parent.and_then(|index| usize::try_from(index).ok()),
        matched: entry.matched,
        sysname: entry.sysname,
        subsystem: entry.subsystem,
        driver: entry.driver,
        devnode: entry.devnode,
        properties: entry.properties,
        tags: entry.tags,
        attributes: entry.attributes,
    }
}

/// Converts a host error. A limit is not the fault of the details: with fewer devices the next round may succeed.
fn refused(error: AccessError) -> DiscoveryError {
    match error {
        AccessError::NotGranted(what) => DiscoveryError::NotGranted(what),
        AccessError::Limit(what) | AccessError::Unavailable(what) => DiscoveryError::Unavailable(what),
    }
}

fn reported(device: device::Device, permissions: &str) -> Device {
    let spec = |(node, permissions): (String, &str)| DeviceSpec {
        container_path: node.clone(),
        host_path: node,
        permissions: permissions.to_owned(),
    };
    let nodes = device.nodes.into_iter().map(|node| (node, permissions));
    let vfio_nodes = device.vfio_nodes.into_iter().map(|node| (node, "rwm"));
    Device {
        origin: device.id.clone(), // an unreadable device is kept by its path
        id: device.id,
        properties: device.properties,
        mounts: Vec::new(),
        device_specs: nodes.chain(vfio_nodes).map(spec).collect(),
        hints: Vec::new(),
    }
}
