//! The seam between a device plugin server and the resource it advertises.

use akri_model::claim_machine::{Preference, Refusal};
use akri_model::edits::ContainerEdits;
use async_trait::async_trait;
use tokio::sync::watch;

/// One device of a resource in the kubelet's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualDevice {
    /// The device ID, at most 63 characters.
    pub id: String,
    /// True if the kubelet may allocate it or let a pod keep it.
    pub healthy: bool,
}

/// The full list of a device plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdvertisedDevices {
    /// Every device, in ascending order of ID.
    pub devices: Vec<VirtualDevice>,
    /// Counts requests to send the list again even if it is unchanged, such as after a failed Allocate (rule 4).
    pub resend: u64,
}

/// A resource that the kubelet can allocate. The device plugin server knows gRPC and sockets, and nothing of Instances
/// or slots.
#[async_trait]
pub trait Resource: Send + Sync + 'static {
    /// Returns the extended resource name, such as `akri.sh/camera-8120fe`.
    fn name(&self) -> &str;

    /// Returns the current list; every change is sent to the kubelet. Its sender has to outlive the plugin.
    fn advertised(&self) -> watch::Receiver<AdvertisedDevices>;

    /// Claims IDs for containers, all or nothing: the changes of one container for each element of the request. The message of a
    /// refusal is shown in the status of the pod.
    ///
    /// It has 2 s (rule 7) and refuses with [`Refusal::Unavailable`] when they are over. The future is dropped
    /// when the kubelet cancels the call, and at the latest after 2.5 s; claims made by then must be undone.
    async fn allocate(&self, containers: Vec<Vec<String>>) -> Result<Vec<ContainerEdits>, Refusal>;

    /// Returns the preferred IDs for each container: `size` of the `available` ones, including the `required` ones.
    /// `size` is at least the number of required and at most that of available IDs.
    async fn preferred(&self, containers: Vec<Preference>) -> Vec<Vec<String>>;

    /// Returns whether all of these IDs are claimed here (PreStartContainer).
    async fn holds(&self, ids: Vec<String>) -> bool;
}
