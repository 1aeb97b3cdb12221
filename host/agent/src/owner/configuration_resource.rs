//! The Configuration's own resource, `akri.sh/<configuration>`: "some device of it" (rule 5, rule 13, rule 14).

use std::collections::BTreeMap;

use akri_kubelet::Plugin;
use akri_kubelet::resource::{AdvertisedDevices, AllocateError, Preference, VirtualDevice};
use akri_model::configuration_level::{Denied, Place, Pool};
use akri_model::names::{Identity, Usage};
use tokio::sync::watch;
use tokio::time::Instant;

use super::PublishedInstances;
use super::claims::SlotRequest;
use super::published::{PublishedInstance, REFRESH};

/// The resource and its device plugin.
pub(super) struct ConfigurationResource {
    pub(super) advertised: watch::Sender<AdvertisedDevices>,
    pub(super) plugin: Option<Plugin>,
    /// The time at which the kubelet was last made to write its checkpoint.
    refreshed: Option<Instant>,
}

impl ConfigurationResource {
    pub(super) fn new() -> Self {
        Self { advertised: watch::Sender::new(AdvertisedDevices::default()), plugin: None, refreshed: None }
    }

    /// Sends the list again, on which the kubelet writes its checkpoint, but not too often.
    pub(super) fn refresh(&mut self, all: &PublishedInstances) {
        let now = Instant::now();
        if self.refreshed.is_none_or(|last| now - last >= REFRESH) {
            self.refreshed = Some(now);
            self.advertise(all, true);
        }
    }

    /// Advertises the virtual devices to the kubelet as they are now; `again` even if nothing changed (rule 4).
    pub(super) fn advertise(&self, all: &PublishedInstances, again: bool) {
        if self.plugin.is_none() {
            return;
        }
        let devices: Vec<VirtualDevice> =
            pool(all).ids().into_iter().map(|id| VirtualDevice { id, healthy: true }).collect();
        self.advertised.send_if_modified(|current| {
            let changed = again || current.devices != devices;
            current.devices = devices;
            current.resend += u64::from(again);
            changed
        });
    }
}

/// Returns the slots that a request for the Configuration's resource comes to.
pub(super) fn requests(
    all: &PublishedInstances,
    containers: &[Vec<String>],
    node: &str,
) -> Result<Vec<Vec<SlotRequest>>, AllocateError> {
    let mut pool = pool(all);
    let identities: BTreeMap<&str, &Identity> =
        all.iter().map(|(identity, published)| (published.entry().key.name.as_str(), identity)).collect();
    let find = |place: &Place| {
        let identity = identities.get(place.instance.as_str()).copied().cloned();
        identity
            .map(|identity| (identity, place.slot))
            .ok_or_else(|| AllocateError::NotFound("the device is gone".to_owned()))
    };
    let mut requested = Vec::with_capacity(containers.len());
    for ids in containers {
        let mut slots = Vec::with_capacity(ids.len());
        for assignment in pool.allocate(ids).map_err(refused)? {
            let (identity, slot) = find(&assignment.place)?;
            let usage = Usage::Configuration { vdev: assignment.vdev, node: node.to_owned() };
            let moved_from = assignment.moved_from.as_ref().map(find).transpose()?;
            slots.push(SlotRequest { identity, slot, usage, moved_from });
        }
        requested.push(slots);
    }
    Ok(requested)
}

/// Returns the virtual devices that the kubelet should take.
pub(super) fn prefer(all: &PublishedInstances, preferences: &[Preference]) -> Vec<Vec<String>> {
    let pool = pool(all);
    preferences.iter().map(|wanted| pool.preferred(&wanted.available, &wanted.required, wanted.size)).collect()
}

/// Returns whether all of these virtual devices are held here.
pub(super) fn holds(all: &PublishedInstances, ids: &[String]) -> bool {
    let pool = pool(all);
    !ids.is_empty() && ids.iter().all(|id| pool.place(id).is_some())
}

fn pool(all: &PublishedInstances) -> Pool<'_> {
    let member = |published: &PublishedInstance| published.refusal().is_none();
    Pool::new(all.values().map(|one| (one.entry().key.name.as_str(), &one.slots, member(one))))
}

fn refused(denied: Denied) -> AllocateError {
    match denied {
        Denied::Unknown(_) => AllocateError::InvalidArgument(denied.to_string()),
        Denied::TooFew { .. } => AllocateError::Unavailable(denied.to_string()),
    }
}
