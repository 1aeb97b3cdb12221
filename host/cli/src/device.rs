//! The devices of rounds, and what a round changes.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use akri_model::configuration::Configuration;
use akri_model::container_paths;
use akri_model::device::{Device, DeviceSet};
use akri_model::edits::ContainerEdits;
use akri_model::instance::Online;
use akri_model::instance_names::{NameProblem, wanted};
use akri_model::names::{HashInput, HashLength, Identity, instance_name, resource_name};
use akri_model::plan::{Known, plan};
use serde::Serialize;
use serde_json::{Value, json};

use crate::output::{Columns, plain};

/// A discovered device with its resource name.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredDevice {
    configuration: String,
    /// Absent if the Configuration's name is too long.
    resource: Option<String>,
    /// The reason for another name than the Configuration wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_problem: Option<String>,
    shared: bool,
    /// The device itself, with paths as a container with nothing else gets them.
    pub device: Device,
}

impl DiscoveredDevice {
    /// Names the devices of a Configuration.
    pub fn all(devices: &[Device], configuration: &Configuration, shared: bool, node: &str) -> Vec<Self> {
        let input = |device: &Device| HashInput::new(&device.id, shared, node);
        let wanted = wanted(configuration, devices.iter().map(|device| (input(device).identity(), device)), |_| None);
        let found = |device: &Device| {
            let hashed = instance_name(&configuration.key.name, &input(device).hash(HashLength::Short));
            let (name, problem) = match wanted.get(&input(device).identity()) {
                Some(Ok(name)) => (Some(name.clone()), None),
                None | Some(Err(NameProblem::NoTemplate)) => (hashed, None),
                Some(Err(problem)) => (hashed, Some(problem.to_string())),
            };
            Self {
                configuration: configuration.key.to_string(),
                resource: name.map(|name| resource_name(&name)),
                name_problem: problem,
                shared,
                device: numbered(device),
            }
        };
        devices.iter().map(found).collect()
    }

    /// Returns what a container gets at other paths than the node has, as lines of a table have it.
    fn paths(&self) -> Vec<String> {
        let nodes = self.device.device_specs.iter().map(|spec| (&spec.host_path, &spec.container_path));
        let mounts = self.device.mounts.iter().map(|mount| (&mount.host_path, &mount.container_path));
        let moved = nodes.chain(mounts).filter(|(host_path, container_path)| host_path != container_path);
        moved.map(|(host_path, container_path)| plain(&format!("{host_path} -> {container_path}"))).collect()
    }

    /// Returns the cells of a table; the last one is empty for a device whose paths are the node's.
    fn row(&self) -> Vec<String> {
        let property = distinctive_property(&self.device.properties);
        let paths = self.paths().join(", ");
        vec![self.resource().to_owned(), self.configuration.clone(), property, plain(&self.device.id), paths]
    }

    fn resource(&self) -> &str {
        self.resource.as_deref().unwrap_or("(name too long)")
    }
}

/// A table of devices that is printed in parts.
#[derive(Debug)]
pub struct DeviceTable {
    columns: Columns,
    has_paths: bool,
    has_header: bool,
}

impl DeviceTable {
    /// Creates a table for devices that may have other paths in containers.
    pub fn new(has_paths: bool) -> Self {
        Self { columns: Columns::default(), has_paths, has_header: false }
    }

    /// Returns the rows of more devices; before the first ones a header.
    pub fn rows(&mut self, devices: &[DiscoveredDevice]) -> String {
        let header = ["RESOURCE", "CONFIGURATION", "DEVICE", "ID", "PATHS"].map(str::to_owned);
        let header = header.into_iter().take(4 + usize::from(self.has_paths)).collect();
        let header: Option<Vec<String>> = Some(header).filter(|_| !self.has_header && !devices.is_empty());
        self.has_header |= header.is_some();
        let rows: Vec<Vec<String>> = devices.iter().map(DiscoveredDevice::row).collect();
        self.columns.lines(header.iter().chain(&rows))
    }

    /// Returns a line instead of a table without rows.
    pub fn end(&self) -> &'static str {
        if self.has_header { "" } else { "no devices\n" }
    }
}

/// Returns a table of devices.
pub fn device_table(devices: &[DiscoveredDevice]) -> String {
    let mut table = DeviceTable::new(devices.iter().any(|found| !found.paths().is_empty()));
    table.rows(devices) + table.end()
}

/// Returns the reasons why devices have other names than their Configuration wants.
pub fn name_problems(devices: &[DiscoveredDevice]) -> Vec<String> {
    let problem = |found: &DiscoveredDevice| {
        let (id, problem) = (plain(&found.device.id), plain(found.name_problem.as_deref()?));
        Some(format!("{}: device '{id}' is {}: {problem}", found.configuration, found.resource()))
    };
    devices.iter().filter_map(problem).collect()
}

fn numbered(device: &Device) -> Device {
    let mut edits = ContainerEdits::of_device(device, &BTreeMap::new(), "");
    container_paths::number([&mut edits]);
    Device { device_specs: edits.device_specs, mounts: edits.mounts, ..device.clone() }
}

/// Returns the most informative property of a device: its node, its address, or the first one.
pub fn distinctive_property(properties: &BTreeMap<String, String>) -> String {
    let known = ["UDEV_DEVNODE", "UDEV_DEVNODE_0", "ONVIF_DEVICE_SERVICE_URL", "OPCUA_DISCOVERY_URL", "UDEV_DEVPATH"];
    let value = known.iter().find_map(|name| properties.get(*name)).or_else(|| properties.values().next());
    value.map_or_else(|| "-".to_owned(), |value| plain(value))
}

/// The known devices of a Configuration.
#[derive(Debug, Default)]
pub struct KnownDevices(BTreeMap<Identity, Device>);

/// A change of a device. It is shown as a line that begins with `+`, `-` or `~`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum DeviceChange {
    /// A device is new.
    Added(DiscoveredDevice),
    /// A device is gone.
    Removed(DiscoveredDevice),
    /// A device has other properties than before.
    Changed {
        /// The device.
        #[serde(flatten)]
        found: DiscoveredDevice,
        /// The fields that differ.
        changes: Vec<FieldChange>,
    },
}

/// A changed field of a device; a missing value is null.
#[derive(Debug, PartialEq, Serialize)]
pub struct FieldChange {
    field: String,
    from: Value,
    to: Value,
}

impl KnownDevices {
    /// Applies the result of a round as the agent would. Returns what it changes.
    pub fn update(
        &mut self,
        set: &DeviceSet,
        configuration: &Configuration,
        shared: bool,
        node: &str,
    ) -> Vec<DeviceChange> {
        let online = |(identity, device): (&Identity, _)| {
            (identity.clone(), Known { device, online: Online::True, withheld: false })
        };
        let plan = plan(set, &self.0.iter().map(online).collect(), shared, node);
        let known: BTreeMap<&str, &Device> =
            self.0.values().chain(&set.devices).map(|device| (device.id.as_str(), device)).collect();
        let all: Vec<Device> = known.into_values().cloned().collect();
        let named = DiscoveredDevice::all(&all, configuration, shared, node).into_iter();
        let named: BTreeMap<String, DiscoveredDevice> = named.map(|found| (found.device.id.clone(), found)).collect();
        let found = |device: &Device| named.get(&device.id).cloned();
        let mut changed = Vec::new();
        for identity in &plan.offline {
            changed.extend(self.0.remove(identity).and_then(|device| found(&device)).map(DeviceChange::Removed));
        }
        for (identity, device) in plan.publish {
            changed.extend(found(&device).map(DeviceChange::Added));
            self.0.insert(identity, device);
        }
        for (identity, device) in plan.change {
            let changes = self.0.get(&identity).map(|was| changes(was, &device)).unwrap_or_default();
            changed.extend(found(&device).map(|found| DeviceChange::Changed { found, changes }));
            self.0.insert(identity, device);
        }
        changed
    }
}

/// Returns the fields that differ.
fn changes(was: &Device, now: &Device) -> Vec<FieldChange> {
    let names = was.properties.keys().chain(now.properties.keys().filter(|name| !was.properties.contains_key(*name)));
    let properties =
        names.map(|name| (name.as_str(), json!(was.properties.get(name)), json!(now.properties.get(name))));
    let others = [
        ("origin", json!(was.origin), json!(now.origin)),
        ("mounts", json!(was.mounts), json!(now.mounts)),
        ("deviceSpecs", json!(was.device_specs), json!(now.device_specs)),
    ];
    let differ = properties.chain(others).filter(|(_, from, to)| from != to);
    differ.map(|(field, from, to)| FieldChange { field: field.to_owned(), from, to }).collect()
}

impl Display for DeviceChange {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let (sign, found, changes) = match self {
            Self::Added(found) => ('+', found, &[][..]),
            Self::Removed(found) => ('-', found, &[][..]),
            Self::Changed { found, changes } => ('~', found, changes.as_slice()),
        };
        let (property, id) = (distinctive_property(&found.device.properties), plain(&found.device.id));
        write!(formatter, "{sign} {} {property} {id}", found.resource())?;
        for FieldChange { field, from, to } in changes {
            write!(formatter, "  {}", plain(&format!("{field}: {from} -> {to}")))?;
        }
        Ok(())
    }
}
