//! The Configuration's own resource, `akri.sh/<configuration>`: "some device of it" (rules 5, 13, 14).

use std::collections::BTreeMap;

use akri_model::configuration_level::{Denied, Place, Pool};
use akri_model::instance::Online;
use akri_model::names::{Identity, Usage};
use tokio::sync::watch;

use super::claims::{AllPublished, Wish};
use crate::plugin::Plugin;
use crate::plugin::resource::{Advertised, Preference, Refused, VirtualDevice};

/// The resource and its device plugin.
pub(super) struct Whole {
    pub(super) advertised: watch::Sender<Advertised>,
    pub(super) plugin: Option<Plugin>,
}

impl Whole {
    pub(super) fn new() -> Self {
        Self { advertised: watch::Sender::new(Advertised::default()), plugin: None }
    }

    /// Tells the kubelet about the virtual devices as they are now; `again` even if nothing changed (rule 4).
    pub(super) fn advertise(&self, all: &AllPublished, node: &str, again: bool) {
        if self.plugin.is_none() {
            return;
        }
        let devices: Vec<VirtualDevice> =
            pool(all, node).ids().into_iter().map(|id| VirtualDevice { id, healthy: true }).collect();
        self.advertised.send_if_modified(|current| {
            let changed = again || current.devices != devices;
            current.devices = devices;
            current.resend += u64::from(again);
            changed
        });
    }
}

/// The slots that a request for the Configuration's resource comes to.
pub(super) fn wishes(all: &AllPublished, containers: &[Vec<String>], node: &str) -> Result<Vec<Vec<Wish>>, Refused> {
    let mut pool = pool(all, node);
    let identities: BTreeMap<&str, &Identity> =
        all.iter().map(|(identity, published)| (published.entry.key.name.as_str(), identity)).collect();
    let find = |place: &Place| {
        let identity = identities.get(place.instance.as_str()).copied().cloned();
        identity
            .map(|identity| (identity, place.slot))
            .ok_or_else(|| Refused::NotFound("the device is gone".to_owned()))
    };
    let mut requested = Vec::with_capacity(containers.len());
    for ids in containers {
        let mut wishes = Vec::with_capacity(ids.len());
        for assignment in pool.allocate(ids).map_err(refused)? {
            let (identity, slot) = find(&assignment.place)?;
            let usage = Usage::Configuration { vdev: assignment.vdev, node: node.to_owned() };
            let moved_from = assignment.moved_from.as_ref().map(find).transpose()?;
            wishes.push(Wish { identity, slot, usage, moved_from });
        }
        requested.push(wishes);
    }
    Ok(requested)
}

/// The virtual devices the kubelet had better take.
pub(super) fn prefer(all: &AllPublished, wishes: &[Preference], node: &str) -> Vec<Vec<String>> {
    let pool = pool(all, node);
    wishes.iter().map(|wish| pool.preferred(&wish.available, &wish.required, wish.size)).collect()
}

/// Whether all of these virtual devices are held here.
pub(super) fn holds(all: &AllPublished, ids: &[String], node: &str) -> bool {
    let pool = pool(all, node);
    !ids.is_empty() && ids.iter().all(|id| pool.place(id).is_some())
}

fn pool<'a>(all: &'a AllPublished, node: &'a str) -> Pool<'a> {
    let member = |published: &'a super::Published| {
        (
            published.entry.key.name.as_str(),
            published.slots_for_whole(node),
            published.entry.online == Online::True && !published.entry.withheld,
        )
    };
    Pool::new(node, all.values().map(member))
}

fn refused(denied: Denied) -> Refused {
    match denied {
        Denied::Unknown(_) => Refused::InvalidArgument(denied.to_string()),
        Denied::TooFew { .. } => Refused::Unavailable(denied.to_string()),
    }
}
