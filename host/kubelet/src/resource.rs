//! The seam between a device plugin server and the resource it advertises.

use std::collections::BTreeMap;

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
    /// The resource was removed: an empty list is sent and the stream is closed.
    pub closed: bool,
}

/// The reason for a refused Allocate. The message is shown in the status of the pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// The request is invalid: an ID that can't belong to this resource.
    #[error("{0}")]
    InvalidArgument(String),
    /// The device does not exist, or no longer.
    #[error("{0}")]
    NotFound(String),
    /// The slot is taken, or its device is offline.
    #[error("{0}")]
    Unavailable(String),
    /// The devices can't be used together in one container.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The agent failed, for example to write its journal.
    #[error("{0}")]
    Internal(String),
}

/// A resource that the kubelet can allocate. The device plugin server knows gRPC and sockets, and nothing of Instances
/// or slots.
#[async_trait]
pub trait Resource: Send + Sync + 'static {
    /// Returns the extended resource name, such as `akri.sh/camera-8120fe`.
    fn name(&self) -> &str;

    /// Returns the current list; every change is sent to the kubelet. If its sender is dropped without setting
    /// `closed`, the plugin ends and the kubelet keeps the devices.
    fn advertised(&self) -> watch::Receiver<AdvertisedDevices>;

    /// Claims IDs for containers, all or nothing: one response for each element of the request.
    ///
    /// It has 2 s (rule 7) and refuses with [`AllocateError::Unavailable`] when they are over. The future is dropped
    /// when the kubelet cancels the call, and at the latest after 2.5 s; claims made by then must be undone.
    async fn allocate(&self, containers: Vec<Vec<String>>) -> Result<Vec<ContainerResponse>, AllocateError>;

    /// Returns the preferred IDs for each container: `size` of the `available` ones, including the `required` ones.
    /// `size` is at least the number of required and at most that of available IDs.
    async fn preferred(&self, containers: Vec<Preference>) -> Vec<Vec<String>>;

    /// Returns whether all of these IDs are claimed here (PreStartContainer).
    async fn holds(&self, ids: Vec<String>) -> bool;
}

/// The changes that Allocate makes to one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerResponse {
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Bind mounts.
    pub mounts: Vec<Mount>,
    /// Device nodes.
    pub devices: Vec<DeviceNode>,
    /// Annotations the container runtime gets.
    pub annotations: BTreeMap<String, String>,
    /// Fully qualified CDI device names.
    pub cdi_devices: Vec<String>,
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Path in the container.
    pub container_path: String,
    /// Path on the node.
    pub host_path: String,
    /// Set if the container may only read.
    pub read_only: bool,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNode {
    /// Path in the container.
    pub container_path: String,
    /// Path on the node.
    pub host_path: String,
    /// A combination of `r`, `w` and `m`.
    pub permissions: String,
}

/// One container of a GetPreferredAllocation request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preference {
    /// IDs the kubelet may choose from.
    pub available: Vec<String>,
    /// IDs that must be included.
    pub required: Vec<String>,
    /// The number of IDs to choose.
    pub size: usize,
}
