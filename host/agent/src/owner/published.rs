//! An Instance as this node knows it: the device, its slots, this node's claims, and what the kubelet is told.

use std::collections::{BTreeMap, BTreeSet};

use akri_model::claim::{Claim, Entry};
use akri_model::configuration::Configuration;
use akri_model::device::{Device, DeviceSet, Unlisted};
use akri_model::edits::{ContainerEdits, SlotRef};
use akri_model::instance::{Instance, Online};
use akri_model::names::{Usage, cdi_name, hash_of_instance, parse_slot_name, slot_name};
use akri_model::plan::Known;
use akri_model::reclaim::{Look, Sightings};
use akri_model::slots::SlotTable;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::cluster::Occurrence;
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
    /// Whether the API has said who uses the slots, since the start; it has the truth for shared devices.
    pub(super) agreed: bool,
    /// Whether somebody deleted the Instance: it has to be made again (rule 27).
    pub(super) lost: bool,
    /// Whether containers get the device by its CDI name.
    pub(super) by_cdi: bool,
}

impl Published {
    /// An Instance as the journal remembers it.
    pub(super) fn new(entry: Entry, claims: &Claims) -> Self {
        let mut slots = SlotTable::new(entry.capacity);
        let mut sightings = BTreeMap::new();
        for (slot, claim) in &entry.claims {
            take(&mut slots, *slot, claim.usage.parse().unwrap_or_default());
            sightings.insert(*slot, Sightings::new(claim.generation, claims.epoch(), claims.now()));
        }
        let missing_since = (entry.online == Online::False).then(Instant::now);
        let advertised = watch::Sender::new(Advertised::default());
        let agreed = !entry.shared;
        Self {
            entry,
            slots,
            missing_since,
            recent: Vec::new(),
            sightings,
            advertised,
            plugin: None,
            agreed,
            lost: false,
            by_cdi: false,
        }
    }

    /// A claim on a slot, with what a container gets for it from the device as it is now (rule 17).
    pub(super) fn new_claim(&self, configuration: &Configuration, slot: u32, usage: &Usage, generation: u64) -> Claim {
        let device = &self.entry.device;
        let named = SlotRef { instance: &self.entry.key.name, hash: self.hash(), slot };
        let edits =
            ContainerEdits::of_slot(device, &configuration.broker_view(&device.properties), named, usage.vdev());
        let edits = if self.by_cdi { edits.by_cdi(self.cdi_name()) } else { edits };
        Claim { usage: usage.to_string(), edits, generation, doubtful: false }
    }

    /// Keeps a claim that no look has judged yet.
    pub(super) fn hold(&mut self, slot: u32, claim: Claim, claims: &Claims) {
        self.sightings.insert(slot, Sightings::new(claim.generation, claims.epoch(), claims.now()));
        self.entry.claims.insert(slot, claim);
        self.recent.retain(|known| *known != slot);
        self.recent.push(slot);
    }

    /// Ends a claim of this node here; what other nodes are told is for the caller to do.
    pub(super) fn forget_claim(&mut self, slot: u32) {
        if let Some(claim) = self.entry.claims.remove(&slot) {
            self.slots.release(slot, &claim.usage.parse().unwrap_or_default());
            self.sightings.remove(&slot);
        }
    }

    /// Keeps a claim whose fate nobody knows: the kubelet was told that it failed, and no one gets the slot until the API
    /// has answered (rule 11).
    pub(super) fn doubt(&mut self, slot: u32, mut claim: Claim) {
        claim.doubtful = true;
        self.take_slot(slot, claim.usage.parse().unwrap_or_default());
        self.entry.claims.insert(slot, claim);
    }

    /// Whether the API has to say who uses the slots, or what became of a claim.
    pub(super) fn waits(&self) -> bool {
        !self.agreed || self.lost || self.entry.claims.values().any(|claim| claim.doubtful)
    }

    /// Marks a slot as used whatever the capacity is now: somebody may be using it.
    pub(super) fn take_slot(&mut self, slot: u32, usage: Usage) {
        take(&mut self.slots, slot, usage);
    }

    /// Takes over what other nodes use now; says whether that is new. Claims of this node are in its own record.
    pub(super) fn set_others(&mut self, usage: &BTreeMap<String, String>, node: &str) -> bool {
        let mut slots = SlotTable::new(self.entry.capacity);
        for (slot, claim) in &self.entry.claims {
            take(&mut slots, *slot, claim.usage.parse().unwrap_or_default());
        }
        for (name, text) in usage {
            let others = text.parse::<Usage>().ok().filter(|usage| usage.node().is_some_and(|other| other != node));
            if let (Some(slot), Some(usage)) = (parse_slot_name(&self.entry.key.name, name), others) {
                take(&mut slots, slot, usage);
            }
        }
        std::mem::replace(&mut self.slots, slots.clone()) != slots
    }

    /// The slots as the Configuration's resource may use them: none are free before the API has said so, and a doubtful
    /// one belongs to no virtual device.
    pub(super) fn slots_for_whole(&self, node: &str) -> SlotTable {
        let mut slots = self.slots.clone();
        for (slot, claim) in self.entry.claims.iter().filter(|(_, claim)| claim.doubtful) {
            slots.release(*slot, &claim.usage.parse().unwrap_or_default());
            take(&mut slots, *slot, Usage::Instance { node: node.to_owned() });
        }
        if !self.agreed {
            slots.resize(0);
        }
        slots
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

    /// Why no container may be given the device now, if so.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        match () {
            () if self.entry.withheld => Some("is withheld: see the status of its Configuration"),
            () if self.entry.online == Online::False => Some("is offline"),
            () if self.entry.online == Online::Unknown => Some("may be offline: its discovery handler has gone"),
            () if !self.agreed => Some("waits for the API's word on its slots"),
            () => None,
        }
    }

    /// Whether the last round withheld the device; one that nothing is known of is, and one that was stays so until all
    /// who may know it have spoken. Says whether that is new.
    pub(super) fn set_withheld(&mut self, set: &DeviceSet) -> bool {
        let id = &self.entry.device.id;
        let unclear = self.entry.withheld && set.unlisted != Unlisted::Missing;
        let withheld = id.is_empty() || set.withheld.contains(id) || unclear;
        std::mem::replace(&mut self.entry.withheld, withheld) != withheld
    }

    fn cdi_name(&self) -> String {
        cdi_name(&self.entry.configuration, self.hash())
    }

    /// The device looks different now. A container that runs keeps what it got, for the kubelet replays its answer; that is
    /// told if it is another device node (rule 18).
    pub(super) fn set_device(&mut self, device: Device) -> Option<Occurrence> {
        let moved = self.entry.device.device_specs != device.device_specs && !self.entry.claims.is_empty();
        self.entry.device = device;
        moved.then(|| {
            self.occurrence("DeviceNodeChanged", "containers that use the device keep its old node".to_owned())
        })
    }

    /// Something that happened to it.
    pub(super) fn occurrence(&self, reason: &'static str, message: String) -> Occurrence {
        warn!(instance = %self.entry.key, "{reason}: {message}");
        let Entry { key, uid, .. } = &self.entry;
        Occurrence { kind: "Instance", key: key.clone(), uid: uid.clone(), reason, message }
    }

    /// The last round saw the device, or did not, or nobody can tell any more.
    pub(super) fn set_online(&mut self, online: Online) {
        self.entry.online = online;
        self.missing_since = (online == Online::False).then(Instant::now);
        let news = match online {
            Online::True => "device is back",
            Online::False => "device is missing",
            Online::Unknown => "device is unknown: its discovery handler has gone",
        };
        info!(instance = %self.entry.key, "{news}");
    }

    /// Tells the kubelet about the slots as they are now; `again` even if nothing changed (rule 4).
    pub(super) fn advertise(&self, node: &str, again: bool) {
        let id = |slot| slot_name(&self.entry.key.name, slot);
        let list = self.slots.instance_level(node, self.refusal().is_none());
        let doubtful = |slot: u32| self.entry.claims.get(&slot).is_some_and(|claim| claim.doubtful);
        let device = |(slot, healthy)| VirtualDevice { id: id(slot), healthy: healthy && !doubtful(slot) };
        let devices: Vec<VirtualDevice> = list.into_iter().map(device).collect();
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
            cdi_name: self.cdi_name(),
            capacity: entry.capacity,
            properties: configuration.broker_view(&entry.device.properties),
            shared: entry.shared,
            nodes: vec![node.to_owned()],
            device_usage: self.slots.to_usage(&entry.key.name),
            online: entry.online,
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
}

/// A claim takes its slot whatever the capacity is now. If somebody else has it, their container keeps what it got and
/// nothing is killed.
fn take(slots: &mut SlotTable, slot: u32, usage: Usage) {
    let capacity = slots.capacity();
    slots.resize(capacity.max(slot.saturating_add(1)));
    let _ = slots.claim(slot, usage);
    slots.resize(capacity);
}
