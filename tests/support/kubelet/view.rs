//! What tests see of a kubelet.

use std::collections::{BTreeMap, BTreeSet};

use super::admission::Admitted;

/// The state of a kubelet, since its last start but for the pods.
#[derive(Debug, Default)]
pub struct View {
    /// By resource name.
    pub resources: BTreeMap<String, ResourceView>,
    /// How many registrations were refused as [`super::Kubelet::refuse_registrations`] asks for.
    pub refused: usize,
    /// What containers have got, by pod, container and resource.
    pub pods: BTreeMap<(String, String, String), Admitted>,
}

impl View {
    /// The resource, or an empty one if the kubelet never heard of it.
    pub fn resource(&self, name: &str) -> ResourceView {
        self.resources.get(name).cloned().unwrap_or_default()
    }
}

/// One message of ListAndWatch: id and whether it is healthy.
pub type List = Vec<(String, bool)>;

/// One resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceView {
    /// Ids a pod may get or keep; their number is the node's allocatable.
    pub healthy: BTreeSet<String>,
    /// Ids of the others; the node's capacity is both together.
    pub unhealthy: BTreeSet<String>,
    /// Whether the plugin's connection stands.
    pub connected: bool,
    /// How often it was registered.
    pub registrations: usize,
    /// The socket of the last registration, in the device-plugins directory.
    pub endpoint: String,
    /// Whether the plugin offers GetPreferredAllocation and asks for PreStartContainer.
    pub options: (bool, bool),
    /// How often the end of an old connection marked a new registration unhealthy.
    pub late_disconnects: usize,
    /// Every list that came.
    pub lists: Vec<List>,
}

impl ResourceView {
    /// The number of healthy devices.
    pub fn allocatable(&self) -> usize {
        self.healthy.len()
    }

    /// The number of all devices.
    pub fn capacity(&self) -> usize {
        self.healthy.len() + self.unhealthy.len()
    }
}
