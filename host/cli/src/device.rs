//! The devices of rounds, and what a round changes.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use akri_model::configuration::Configuration;
use akri_model::device::{Device, DeviceSet};
use akri_model::instance::Online;
use akri_model::names::{HashInput, HashLength, Identity, instance_name, resource_name};
use akri_model::plan::{Known, plan};
use serde::Serialize;
use serde_json::{Value, json};

use crate::output::{listing, plain};

/// A discovered device with its resource name.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredDevice {
    configuration: String,
    /// Absent if the Configuration's name is too long.
    resource: Option<String>,
    shared: bool,
    /// The device itself.
    pub device: Device,
}

impl DiscoveredDevice {
    /// Names the device of a Configuration.
    pub fn new(device: Device, configuration: &Configuration, shared: bool, node: &str) -> Self {
        let hash = HashInput::new(&device.id, shared, node).hash(HashLength::Short);
        Self {
            configuration: configuration.key.to_string(),
            resource: instance_name(&configuration.key.name, &hash).map(|name| resource_name(&name)),
            shared,
            device,
        }
    }

    fn resource(&self) -> &str {
        self.resource.as_deref().unwrap_or("(name too long)")
    }
}

/// Returns a table of devices.
pub fn device_table(devices: &[DiscoveredDevice]) -> String {
    let row = |found: &DiscoveredDevice| {
        let device = &found.device;
        vec![
            found.resource().to_owned(),
            found.configuration.clone(),
            distinctive_property(&device.properties),
            plain(&device.id),
        ]
    };
    listing("devices", &["RESOURCE", "CONFIGURATION", "DEVICE", "ID"], devices, row)
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
        let found = |device: &Device| DiscoveredDevice::new(device.clone(), configuration, shared, node);
        let mut changed = Vec::new();
        for identity in &plan.offline {
            changed.extend(self.0.remove(identity).map(|device| DeviceChange::Removed(found(&device))));
        }
        for (identity, device) in plan.publish {
            changed.push(DeviceChange::Added(found(&device)));
            self.0.insert(identity, device);
        }
        for (identity, device) in plan.change {
            let found = found(&device);
            let changes = self.0.get(&identity).map(|was| changes(was, &device)).unwrap_or_default();
            changed.push(DeviceChange::Changed { found, changes });
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
