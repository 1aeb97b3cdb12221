//! From the records some rule holds for to devices.

use std::{collections::BTreeMap, path::Path};

use crate::{details::Details, record::Snapshot, resource::ResourceName};

/// The property that holds a device's id.
pub const DEVPATH: &str = "UDEV_DEVPATH";

/// The property that holds a device's node; with `groupRecursive` it is followed by `_` and a number from 0.
pub const DEVNODE: &str = "UDEV_DEVNODE";

/// A device to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The sysfs path without `/sys`; of a group that of its topmost device.
    pub id: String,
    /// Names and values.
    pub properties: Vec<(String, String)>,
    /// The device nodes, in ascending order of sysfs path.
    pub nodes: Vec<String>,
}

/// The devices these details find in a snapshot, in ascending order of id.
pub fn devices(details: &Details, snapshot: &Snapshot, resource: Option<&ResourceName>) -> Vec<Device> {
    let found: BTreeMap<&str, Option<&str>> = snapshot
        .matched()
        .filter(|index| details.rules.iter().any(|rule| rule.holds(snapshot, *index)))
        .filter_map(|index| usable(snapshot, index))
        .collect();
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, node) in &found {
        let id = if details.group_recursive { topmost(path, &found) } else { path };
        groups.entry(id).or_default().extend(node);
    }
    groups.into_iter().map(|(id, nodes)| device(id, &nodes, details.group_recursive, resource)).collect()
}

/// Path and node of the device or, if it has no node, of its nearest ancestor that has one. If there is none either,
/// the device's own path.
fn usable(snapshot: &Snapshot, index: usize) -> Option<(&str, Option<&str>)> {
    let with_node = snapshot.lineage(index).find(|record| record.devnode.is_some());
    with_node.or_else(|| snapshot.get(index)).map(|record| (record.devpath.as_str(), record.devnode.as_deref()))
}

/// The path of the uppermost device found that `path` is, or lies below. Whole components count: `usb1` is not above
/// `usb10`.
fn topmost<'a>(path: &'a str, found: &BTreeMap<&'a str, Option<&str>>) -> &'a str {
    let ancestors = Path::new(path).ancestors().filter_map(Path::to_str);
    ancestors.filter(|ancestor| found.contains_key(ancestor)).last().unwrap_or(path)
}

fn device(id: &str, nodes: &[&str], is_group: bool, resource: Option<&ResourceName>) -> Device {
    let mut properties = vec![(DEVPATH.to_owned(), id.to_owned())];
    for (index, node) in nodes.iter().enumerate() {
        let suffix = if is_group { format!("_{index}") } else { String::new() };
        properties.push((format!("{DEVNODE}{suffix}"), (*node).to_owned()));
        properties.extend(resource.and_then(|name| name.usb(node, &suffix)));
    }
    properties.extend(resource.and_then(|name| name.pci(id)));
    Device { id: id.to_owned(), properties, nodes: nodes.iter().map(|node| (*node).to_owned()).collect() }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
