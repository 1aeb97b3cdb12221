//! Conversion of matching records to devices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::{details::Details, record::Snapshot, resource::ResourceName};

/// The property that holds a device's id.
pub const DEVPATH: &str = "UDEV_DEVPATH";

/// The property that holds a device's node; with `groupRecursive` it is followed by `_` and a number from 0.
pub const DEVNODE: &str = "UDEV_DEVNODE";

/// The attribute (a link, for the host) that names a PCI device's IOMMU group.
pub const IOMMU_GROUP: &str = "iommu_group";

/// Maximum number of ids that are kept: the default limit of the host.
const MAX_KEPT: usize = 4096;

/// A device to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The sysfs path without `/sys`; for a group that of its topmost device.
    pub id: String,
    /// Names and values.
    pub properties: Vec<(String, String)>,
    /// The device nodes, in ascending order of sysfs path.
    pub nodes: Vec<String>,
    /// The nodes for passing the device to a virtual machine.
    pub vfio_nodes: Vec<String>,
}

/// Optional parts of a device.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// The KubeVirt resource name, for its variables.
    pub resource: Option<ResourceName>,
    /// Set if VFIO nodes are included.
    pub vfio: bool,
}

/// The records of a path.
#[derive(Debug, Clone, Copy)]
struct Found<'a> {
    /// The index of the device that a rule matches.
    index: usize,
    node: Option<&'a str>,
    /// The group of the device or of its nearest ancestor with one.
    iommu_group: Option<&'a str>,
}

/// Returns the devices in a snapshot that match the details, in ascending order of id.
pub fn devices(details: &Details, snapshot: &Snapshot, extras: &Extras) -> Vec<Device> {
    let found: BTreeMap<&str, Found<'_>> = snapshot
        .matched()
        .filter(|index| details.rules.iter().any(|rule| rule.holds(snapshot, *index)))
        .filter_map(|index| usable(snapshot, index))
        .collect();
    let mut groups: BTreeMap<&str, Vec<Found<'_>>> = BTreeMap::new();
    for (path, with) in &found {
        let id = if details.group_recursive { topmost(path, &found) } else { path };
        groups.entry(id).or_default().push(*with);
    }
    let device = |(id, members): (&str, Vec<Found<'_>>)| {
        let mut device = device(id, &members, details.group_recursive, extras);
        device.properties.extend(copied(&details.properties, snapshot, &members));
        device
    };
    groups.into_iter().map(device).collect()
}

/// Returns the udev properties and sysfs attributes of these names, each as the nearest of a member and its ancestors has it.
fn copied(names: &[String], snapshot: &Snapshot, members: &[Found<'_>]) -> BTreeMap<String, String> {
    let value = |name: &str| {
        let lineages = members.iter().flat_map(|member| snapshot.lineage(member.index));
        let mut values = lineages.filter_map(|record| record.property(name).or_else(|| record.attribute(name)));
        values.next().map(|value| value.trim_end().to_owned())
    };
    let own = [DEVPATH, DEVNODE];
    let named = names.iter().map(|name| (format!("UDEV_{}", name.to_ascii_uppercase()), name));
    let named = named.filter(|(property, _)| !own.iter().any(|own| property.starts_with(own)));
    named.filter_map(|(property, name)| Some((property, value(name)?))).collect()
}

/// Returns path and node of the device or of its nearest ancestor with a node; without one, the device's own path.
fn usable(snapshot: &Snapshot, index: usize) -> Option<(&str, Found<'_>)> {
    let with_node = snapshot.lineage(index).find(|record| record.devnode.is_some());
    let record = with_node.or_else(|| snapshot.get(index))?;
    let iommu_group = snapshot.lineage(index).find_map(|record| record.attribute(IOMMU_GROUP));
    Some((record.devpath.as_str(), Found { index, node: record.devnode.as_deref(), iommu_group }))
}

/// Returns the ids that devices which can't be read may have: their own paths, and those of ancestors, which may have the
/// node or be the topmost of a group.
pub fn possible_ids(unreadable: &[String]) -> BTreeSet<&str> {
    let ancestors = unreadable.iter().flat_map(|path| Path::new(path).ancestors().skip(1)).filter_map(Path::to_str);
    let ancestors: BTreeSet<&str> = ancestors.filter(|path| *path != "/").collect();
    unreadable.iter().map(String::as_str).chain(ancestors).take(MAX_KEPT).collect()
}

/// Returns the topmost path in `found` that is `path` or an ancestor of it. Whole components are compared: `usb1` is
/// not an ancestor of `usb10`.
fn topmost<'a>(path: &'a str, found: &BTreeMap<&'a str, Found<'_>>) -> &'a str {
    let ancestors = Path::new(path).ancestors().filter_map(Path::to_str);
    ancestors.filter(|ancestor| found.contains_key(ancestor)).last().unwrap_or(path)
}

fn device(id: &str, members: &[Found<'_>], is_group: bool, extras: &Extras) -> Device {
    let mut properties = vec![(DEVPATH.to_owned(), id.to_owned())];
    let nodes: Vec<String> = members.iter().filter_map(|member| member.node).map(str::to_owned).collect();
    for (index, node) in nodes.iter().enumerate() {
        let suffix = if is_group { format!("_{index}") } else { String::new() };
        properties.push((format!("{DEVNODE}{suffix}"), node.clone()));
        properties.extend(extras.resource.as_ref().and_then(|name| name.usb(node, &suffix)));
    }
    properties.extend(extras.resource.as_ref().and_then(|name| name.pci(id)));
    let vfio_nodes = if extras.vfio { vfio_nodes(members) } else { Vec::new() };
    Device { id: id.to_owned(), properties, nodes, vfio_nodes }
}

/// Returns the nodes of the IOMMU groups, and the VFIO control node.
fn vfio_nodes(members: &[Found<'_>]) -> Vec<String> {
    let is_number = |group: &&str| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit());
    let groups: BTreeSet<&str> = members.iter().filter_map(|member| member.iommu_group).filter(is_number).collect();
    let all = groups.into_iter().chain(["vfio"]).map(|name| format!("/dev/vfio/{name}"));
    let nodes: Vec<String> = all.collect();
    if nodes.len() > 1 { nodes } else { Vec::new() }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
