//! Names of everything in a world.

use std::collections::BTreeMap;
use std::sync::Arc;

use akri_model::claim::Entry;
use akri_model::configuration::Configuration;
use akri_model::device::Device;
use akri_model::instance::Online;
use akri_model::names::{HashInput, HashLength, Identity, Key, Usage, instance_name};

use crate::bounds::Bounds;

pub(crate) const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];
const CONFIGURATION: &str = "cam";

/// The parts of a world that never change.
pub(crate) struct Setup {
    pub(crate) bounds: Bounds,
    pub(crate) devices: Vec<SharedDevice>,
}

/// A device that all nodes see.
pub(crate) struct SharedDevice {
    id: String,
    pub(crate) identity: Identity,
    pub(crate) name: String,
}

impl Setup {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let device = |index: usize| {
            let id = format!("device-{index}");
            let input = HashInput::new(&id, true, "");
            let name = instance_name(CONFIGURATION, &input.hash(HashLength::Short)).unwrap();
            SharedDevice { id, identity: input.identity(), name }
        };
        Self { bounds, devices: (0..bounds.instances).map(device).collect() }
    }

    pub(crate) fn configuration(uid: String, capacity: u32) -> Arc<Configuration> {
        Arc::new(Configuration { key: Key::new("default", CONFIGURATION), uid, capacity, ..Configuration::default() })
    }

    /// Returns the entry of a device without claims.
    pub(crate) fn entry(&self, instance: usize, configuration: &Configuration) -> Entry {
        let device = &self.devices[instance];
        Entry {
            key: Key::new("default", &*device.name),
            uid: String::new(),
            identity: device.identity.clone(),
            configuration: CONFIGURATION.to_owned(),
            configuration_uid: configuration.uid.clone(),
            shared: true,
            capacity: configuration.capacity,
            device: Device { id: device.id.clone(), ..Device::default() },
            online: Online::True,
            withheld: false,
            claims: BTreeMap::new(),
            others: Default::default(),
        }
    }

    /// Returns the index of a device.
    pub(crate) fn index(&self, identity: &Identity) -> usize {
        self.devices.iter().position(|device| device.identity == *identity).unwrap()
    }
}

/// Returns the index of the node that uses a slot.
pub(crate) fn user(usage: &Usage) -> Option<usize> {
    let node = usage.node()?;
    NODES.iter().position(|name| *name == node)
}
