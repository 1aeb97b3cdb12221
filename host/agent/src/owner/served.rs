//! The kubelet's view of an Instance or a Configuration, beside the decisions about its slots.

use akri_kubelet::Plugin;
use akri_kubelet::resource::{AdvertisedDevices, VirtualDevice};
use akri_model::claim_machine::{ManagedInstance, Pacing};
use akri_model::instance::Online;
use tokio::sync::watch;
use tokio::time::Instant;

/// A resource of this node.
#[derive(Default)]
pub(super) struct ServedResource {
    /// The devices that the kubelet sees.
    pub(super) advertised: watch::Sender<AdvertisedDevices>,
    /// The device plugin, unless none is wanted.
    pub(super) plugin: Option<Plugin>,
}

impl ServedResource {
    /// Advertises IDs and whether they are healthy; `again` even if nothing changed (rule 4).
    pub(super) fn advertise(&self, ids: impl IntoIterator<Item = (String, bool)>, again: bool) {
        let devices: Vec<VirtualDevice> = ids.into_iter().map(|(id, healthy)| VirtualDevice { id, healthy }).collect();
        self.advertised.send_if_modified(|current| {
            let changed = again || current.devices != devices;
            current.devices = devices;
            current.resend += u64::from(again);
            changed
        });
    }
}

/// An Instance's own resource, and the times that are kept of it.
pub(super) struct ServedInstance {
    pub(super) resource: ServedResource,
    /// The time since which its device has been missing.
    pub(super) missing_since: Option<Instant>,
    /// The pauses between steps towards the API server.
    pub(super) pacing: Pacing,
}

impl ServedInstance {
    pub(super) fn new(instance: &ManagedInstance) -> Self {
        let missing_since = (instance.entry().online == Online::False).then(Instant::now);
        Self { resource: ServedResource::default(), missing_since, pacing: Pacing::default() }
    }
}
