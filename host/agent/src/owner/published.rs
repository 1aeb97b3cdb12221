//! An Instance as this node knows it: the device, its slots, this node's claims, and what the kubelet is told.

use std::collections::{BTreeMap, BTreeSet};

use akri_model::claim::{Claim, Entry};
use akri_model::configuration::Configuration;
use akri_model::instance::{Instance, Online};
use akri_model::names::{Usage, cdi_name, hash_of_instance, slot_name};
use akri_model::plan::Known;
use akri_model::reclaim::{Look, Sightings};
use akri_model::slots::SlotTable;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

use crate::plugin::Plugin;
use crate::plugin::resource::{Advertised, VirtualDevice};
use crate::reclaim::Claims;

/// Device plugin ids.
type Ids = BTreeSet<String>;

/// One Instance and everything this node keeps about it.
pub(super) struct Published {
    /// What the journal says of it.
    pub(super) entry: Entry,
    /// Who uses its slots, on any node.
    pub(super) slots: SlotTable,
    /// Since when its device has been missing.
    pub(super) missing_since: Option<Instant>,
    /// Slots in the order they were last claimed here, the latest last.
    pub(super) recent: Vec<u32>,
    /// What looks at pods say of each claim.
    pub(super) sightings: BTreeMap<u32, Sightings>,
    /// What the kubelet is told.
    pub(super) advertised: watch::Sender<Advertised>,
    /// The device plugin, unless the Configuration wants none.
    pub(super) plugin: Option<Plugin>,
}

impl Published {
    /// An Instance as the journal remembers it, with the slots other nodes use.
    pub(super) fn new(entry: Entry, others: &BTreeMap<String, String>, claims: &Claims) -> Self {
        let (mut slots, _) = SlotTable::parse(&entry.key.name, entry.capacity, others);
        let mut sightings = BTreeMap::new();
        for (slot, claim) in &entry.claims {
            restore(&mut slots, *slot, claim);
            sightings.insert(*slot, Sightings::new(claim.generation, claims.epoch(), claims.now()));
        }
        let missing_since = (!entry.online).then(Instant::now);
        let advertised = watch::Sender::new(Advertised::default());
        Self { entry, slots, missing_since, recent: Vec::new(), sightings, advertised, plugin: None }
    }

    /// Another capacity; slots in use above it stay.
    pub(super) fn resize(&mut self, capacity: u32) {
        self.entry.capacity = capacity;
        self.slots.resize(capacity);
    }

    /// For comparing with a round.
    pub(super) fn known(&self) -> Known<'_> {
        Known { device: &self.entry.device, online: self.entry.online }
    }

    /// The hash its name ends in.
    pub(super) fn hash(&self) -> &str {
        hash_of_instance(&self.entry.configuration, &self.entry.key.name).unwrap_or_default()
    }

    /// Tells the kubelet about the slots as they are now; `again` even if nothing changed (RULES 4).
    pub(super) fn advertise(&self, node: &str, again: bool) {
        let id = |slot| slot_name(&self.entry.key.name, slot);
        let list = self.slots.instance_level(node, self.entry.online);
        let devices: Vec<VirtualDevice> =
            list.into_iter().map(|(slot, healthy)| VirtualDevice { id: id(slot), healthy }).collect();
        self.advertised.send_if_modified(|current| {
            let changed = again || current.devices != devices;
            current.devices = devices;
            current.resend += u64::from(again);
            changed
        });
    }

    /// What is published of it.
    pub(super) fn instance(&self, configuration: &Configuration, node: &str) -> Instance {
        let entry = &self.entry;
        Instance {
            key: entry.key.clone(),
            uid: entry.uid.clone(),
            identity: Some(entry.identity.clone()),
            configuration: entry.configuration.clone(),
            configuration_uid: entry.configuration_uid.clone(),
            cdi_name: cdi_name(&entry.configuration, self.hash()),
            capacity: entry.capacity,
            properties: configuration.broker_view(&entry.device.properties),
            shared: entry.shared,
            nodes: vec![node.to_owned()],
            device_usage: self.slots.to_usage(&entry.key.name),
            online: if entry.online { Online::True } else { Online::False },
        }
    }

    /// Takes a look at what containers use into account, through its own resource or the Configuration's; returns the
    /// slots whose claims have ended.
    pub(super) fn judge(&mut self, own: Option<&Ids>, whole: Option<&Ids>, look: &Look) -> Vec<u32> {
        let mut ended = Vec::new();
        for (slot, claim) in &self.entry.claims {
            let Some(sightings) = self.sightings.get_mut(slot) else { continue };
            let in_use = match claim.usage.parse() {
                Ok(Usage::Configuration { vdev, .. }) => whole.is_some_and(|ids| ids.contains(&vdev)),
                _ => own.is_some_and(|ids| ids.contains(&slot_name(&self.entry.key.name, *slot))),
            };
            let before = sightings.is_seen();
            if sightings.judge(in_use, look) {
                ended.push(*slot);
            } else if sightings.is_seen() && !before {
                debug!(instance = %self.entry.key, slot, "a container uses it");
            }
        }
        ended
    }

    /// Remembers that a slot was used, for the kubelet's next choice.
    pub(super) fn touch(&mut self, slot: u32) {
        self.recent.retain(|known| *known != slot);
        self.recent.push(slot);
    }
}

/// A claim of the journal takes its slot whatever the capacity is now: a container may be using it.
fn restore(slots: &mut SlotTable, slot: u32, claim: &Claim) {
    let Ok(usage) = claim.usage.parse::<Usage>() else { return };
    let capacity = slots.capacity();
    slots.resize(capacity.max(slot.saturating_add(1)));
    let _ = slots.claim(slot, usage); // if another node has it, its container keeps what it got and nothing is killed
    slots.resize(capacity);
}
