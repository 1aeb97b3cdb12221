//! The view of a kubelet for tests.

use std::collections::{BTreeMap, BTreeSet};

use super::admission::Admitted;

/// The state of a kubelet since its last start; pods are kept across restarts.
#[derive(Debug, Default)]
pub struct View {
    /// By resource name.
    pub resources: BTreeMap<String, ResourceView>,
    /// Number of refused registrations, see [`super::Kubelet::refuse_registrations`].
    pub refused: usize,
    /// Number of answers to List of PodResources.
    pub polls: usize,
    /// Number of answers to GetAllocatableResources.
    pub allocatable_answers: usize,
    /// Allocated devices by pod, container and resource.
    pub pods: BTreeMap<(String, String, String), Admitted>,
    /// Containers by pod that are listed without devices: they run although the checkpoint with those was lost, or have ended.
    pub bare: BTreeSet<(String, String)>,
    /// Each so-manieth List of PodResources fails; none if it is 0.
    pub failing_list: usize,
}

impl View {
    /// Lists the containers of some pods from now on without their devices.
    pub(super) fn list_bare(&mut self, is_wanted: impl Fn(&str) -> bool) {
        let listed = self.pods.iter().filter(|((pod, ..), admitted)| !admitted.init && is_wanted(pod));
        self.bare.extend(listed.map(|((pod, container, _), _)| (pod.clone(), container.clone())));
    }

    /// Returns the resource, or an empty one if it is unknown.
    pub fn resource(&self, name: &str) -> ResourceView {
        self.resources.get(name).cloned().unwrap_or_default()
    }
}

/// One ListAndWatch message: IDs and their health.
pub type List = Vec<(String, bool)>;

/// One resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceView {
    /// Healthy IDs; their number is the node's allocatable.
    pub healthy: BTreeSet<String>,
    /// Unhealthy IDs; the node's capacity includes both.
    pub unhealthy: BTreeSet<String>,
    /// Set while the plugin is connected.
    pub connected: bool,
    /// Number of registrations.
    pub registrations: usize,
    /// The socket of the last registration, in the device-plugins directory.
    pub endpoint: String,
    /// The plugin's options: GetPreferredAllocation and PreStartContainer.
    pub options: (bool, bool),
    /// The number of new registrations that the late end of an old connection marked unhealthy.
    pub late_disconnects: usize,
    /// All received lists.
    pub lists: Vec<List>,
}

impl ResourceView {
    /// Returns the number of healthy devices.
    pub fn allocatable(&self) -> usize {
        self.healthy.len()
    }

    /// Returns the number of all devices.
    pub fn capacity(&self) -> usize {
        self.healthy.len() + self.unhealthy.len()
    }
}
