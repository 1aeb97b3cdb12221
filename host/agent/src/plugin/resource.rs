//! What a device plugin needs to know of the thing it advertises.

use akri_model::edits::ContainerEdits;
use async_trait::async_trait;
use tokio::sync::watch;

/// One virtual device of a resource, as the kubelet sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualDevice {
    /// The device plugin id, at most 63 characters.
    pub id: String,
    /// Whether the kubelet may hand it out or let a pod keep it.
    pub healthy: bool,
}

/// The full list a device plugin advertises.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advertised {
    /// Every virtual device, in ascending order of id.
    pub devices: Vec<VirtualDevice>,
    /// Counts what demands that the list is sent again although it may be equal, such as a failed Allocate (rule 4).
    pub resend: u64,
    /// The resource is gone: the list, empty by then, is sent once more and the stream is closed.
    pub closed: bool,
}

/// Why an Allocate was refused. The message reaches the person who reads the pod's status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The request itself is wrong: an id that can't be one of this resource.
    #[error("{0}")]
    InvalidArgument(String),
    /// No such device, or no longer.
    #[error("{0}")]
    NotFound(String),
    /// The slot is taken, or its device is offline.
    #[error("{0}")]
    Unavailable(String),
    /// The devices can't be used together in one container.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The agent could not do it, such as a journal that can't be written.
    #[error("{0}")]
    Internal(String),
}

/// A resource the kubelet can hand out. The device plugin server in front of it knows gRPC and sockets, and nothing of
/// Instances or slots.
#[async_trait]
pub trait Resource: Send + Sync + 'static {
    /// The extended resource's name, such as `akri.sh/camera-8120fe`.
    fn name(&self) -> &str;

    /// The current list; a change of any kind is to be sent to the kubelet. When its sender is dropped without `closed`
    /// having been set, the plugin ends and no device is taken away.
    fn advertised(&self) -> watch::Receiver<Advertised>;

    /// Claims ids for containers, all or nothing: one element of edits for each element of the request.
    ///
    /// It has 2 s (rule 7) and refuses with [`Refused::Unavailable`] if they don't suffice. The future is dropped when
    /// the kubelet hangs up, and at the latest after 2.5 s; what it claimed by then has to be undone all the same, for
    /// nobody will use it.
    async fn allocate(&self, containers: Vec<Vec<String>>) -> Result<Vec<ContainerEdits>, Refused>;

    /// For each container, which `size` of the `available` ids the kubelet had better take, `required` ones among them.
    /// `size` is at least the number of required and at most that of available ids.
    async fn preferred(&self, containers: Vec<Preference>) -> Vec<Vec<String>>;

    /// Whether all of these ids are claimed here (PreStartContainer).
    async fn holds(&self, ids: Vec<String>) -> bool;
}

/// One container of a GetPreferredAllocation request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preference {
    /// Ids the kubelet could take.
    pub available: Vec<String>,
    /// Ids it has to take.
    pub required: Vec<String>,
    /// How many it wants in all.
    pub size: usize,
}
