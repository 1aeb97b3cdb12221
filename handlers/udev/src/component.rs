//! The component: the exports of the world, and the calls to the host.

use crate::device::{self, Extras};
use crate::rule::{Filter, Rule};
use crate::{INTERVAL_MS, NAME, details::Details, explain, query, query::Query, record};
use crate::{record::Snapshot, resource::ResourceName};
use akri_handler::host::{self, AccessError, keep, log, logging::Level, note, properties, reason, udev};
use akri_handler::{Description, Device, Failure, Handler, Problem};

/// Devices that are named as left out.
const LEFT_OUT: usize = 64;
/// Entries fetched at once.
const PAGE: u32 = 1000;

struct Udev;
akri_handler::export!(Udev);
akri_handler::details_schema!("../details.schema.json");

impl Handler for Udev {
    type Details = Details;

    const DESCRIPTION: Description = Description::new(NAME, env!("CARGO_PKG_VERSION")).interval_ms(INTERVAL_MS);

    fn parse(json: Option<&str>) -> Result<Details, Vec<Problem>> {
        Details::parse(json)
    }

    fn triggers(details: &Details) -> Vec<(String, String)> {
        let wake = query::wake_subsystems(&details.rules);
        wake.into_iter().map(|subsystem| ("uevent".into(), subsystem)).collect()
    }

    fn discover(details: Details) -> Result<Vec<Device>, Failure> {
        if let Some(devpath) = properties::get(explain::EXPLAIN) {
            explain(&details.rules, String::from_utf8_lossy(&devpath).trim());
        }
        if details.rules.is_empty() {
            return Ok(Vec::new());
        }
        for hint in details.rules.iter().flat_map(|rule| &rule.filters).filter_map(Filter::hint) {
            note("", "RuleMatchesNothing", &hint);
        }
        let resource = properties::get("devicePluginResourceName").and_then(|value| ResourceName::parse(&value));
        let extras = Extras { resource, vfio: vfio_wanted() };
        let mut query = Query::covering(&details.rules);
        query.attributes.extend(details.properties.iter().cloned());
        if extras.vfio {
            query.attributes.insert(device::IOMMU_GROUP.to_owned());
        }
        let snapshot = run_query(&query)?;
        let found = device::devices(&details, &snapshot, &extras);
        note_left_out(&details.rules, &snapshot);
        Ok(found.into_iter().map(|device| reported(device, details.permissions.as_str())).collect())
    }
}

/// Returns whether the `/dev/vfio` nodes of PCI devices are requested, for a virtual machine.
fn vfio_wanted() -> bool {
    properties::get("vfioPassthrough").is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(b"true"))
}

/// Reports devices of the wanted subsystems and names that no rule holds for.
fn note_left_out(rules: &[Rule], snapshot: &Snapshot) {
    let left_out = snapshot.matched().filter_map(|index| {
        let name = snapshot.get(index)?.devnode.clone().or_else(|| Some(snapshot.get(index)?.sysname.clone()))?;
        Some((explain::left_out_by(rules, snapshot, index)?, name))
    });
    left_out.take(LEFT_OUT).for_each(|(filter, name)| host::left_out(&filter, [name]));
}

/// Logs how the rules apply to one device. Errors do not affect the round.
fn explain(rules: &[Rule], devpath: &str) {
    let log_line = |line: &str| log(Level::Info, explain::EXPLAIN, line);
    let snapshot = match run_query(&Query::device(devpath, rules)) {
        Ok(snapshot) => snapshot,
        Err(error) => return log_line(&reason(error)),
    };
    let is_asked_for = |index: &usize| snapshot.get(*index).is_some_and(|record| record.devpath == devpath);
    match snapshot.matched().find(is_asked_for) {
        Some(index) => {
            explain::explain(rules, &snapshot, index).iter().for_each(|line| log_line(line));
            let mut query = Query::covering(rules);
            query.attributes.insert(explain::SERIAL_NUMBER.to_owned());
            let found = run_query(&query).unwrap_or_default(); // the round itself tells why
            explain::differences(rules, &found, devpath).iter().for_each(|line| log_line(line));
        }
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
    let unreadable = pages.unreadable();
    for devpath in &unreadable {
        note(devpath, "DeviceUnreadable", "the device is there and could not be read");
    }
    device::possible_ids(&unreadable).into_iter().for_each(keep);
    let skipped = pages.skipped();
    if skipped > 0 {
        note("", "DevicesSkipped", &format!("{skipped} entries of sysfs lead to no device or are too many"));
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

fn reported(device: device::Device, permissions: &str) -> Device {
    // An unreadable device is kept by its path or that of an ancestor.
    let reported = Device { origin: device.id.clone(), properties: device.properties, ..Device::new(device.id) };
    let reported = device.nodes.into_iter().fold(reported, |reported, node| reported.node(node, permissions));
    device.vfio_nodes.into_iter().fold(reported, |reported, node| reported.node(node, "rwm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_the_cassettes_come_to_their_results() {
        akri_handler::testing::play::<Udev>("cassettes");
    }
}
