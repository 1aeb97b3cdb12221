//! An Instance as this node knows it: the device, its slots, this node's claims, and the list for the kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_cluster::ObjectEvent;
use akri_kubelet::Plugin;
use akri_kubelet::resource::{AdvertisedDevices, VirtualDevice};
use akri_model::claim::{Entry, journaled, restore};
use akri_model::configuration::Configuration;
use akri_model::device::{AbsenceMeaning, Device, DeviceSet};
use akri_model::edits::{ContainerEdits, SlotRef};
use akri_model::instance::{Instance, Online, Version};
use akri_model::names::{Usage, cdi_name, hash_of_instance, slot_name};
use akri_model::plan::Known;
use akri_model::reclaim::{Evidence, SnapshotEffect, SnapshotInfo};
use akri_model::slots::{ApiView, Authority, Claim, PublishedSlots, SlotTable, read_usage};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::api_sync::SyncState;
use super::reservations::RESERVED;
use crate::pod_resources_poller::{ClaimTracker, UsageSnapshot};

/// Pause between requests to the kubelet to write its checkpoint: each costs it an fsync.
pub(super) const REFRESH: Duration = Duration::from_secs(10);

/// One Instance and everything this node keeps about it.
pub(super) struct PublishedInstance {
    /// Its journal entry without the claims; [`PublishedInstance::journal_entry`] has both.
    entry: Entry,
    /// The usage of its slots, on all nodes.
    pub(super) slots: SlotTable,
    /// The edits that containers of this node got, by slot.
    pub(super) edits: BTreeMap<u32, ContainerEdits>,
    /// The time since which its device has been missing.
    pub(super) missing_since: Option<Instant>,
    /// Slots in the order they were last claimed here, the latest last.
    pub(super) recent: Vec<u32>,
    /// The devices that the kubelet sees.
    pub(super) advertised: watch::Sender<AdvertisedDevices>,
    /// The device plugin, unless the Configuration wants none.
    pub(super) plugin: Option<Plugin>,
    /// Set if containers get the device by its CDI name.
    pub(super) by_cdi: bool,
    /// The progress of synchronising with the API server.
    pub(super) sync: SyncState,
    /// The time at which the kubelet was last made to write its checkpoint.
    refreshed: Option<Instant>,
    /// The UID of the Instance whose slots are kept for others, and the end of that.
    reserved: Option<(String, Instant)>,
}

/// The result of observing the claims of an Instance.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Slots that no container uses any more.
    pub(super) ended: Vec<u32>,
    /// Set if a claim was observed in use for the first time.
    pub(super) seen: bool,
    /// Resources whose list has to be sent again: the Instance's own, and the Configuration's.
    pub(super) refresh: (bool, bool),
}

impl PublishedInstance {
    /// Returns an Instance as the journal has it. `damaged` says that the journal has lost something.
    pub(super) fn new(mut entry: Entry, node: &str, tracker: &ClaimTracker, damaged: bool) -> Self {
        let authority = match (entry.shared, damaged) {
            (true, _) => Authority::Api,
            (false, true) => Authority::DamagedJournal,
            (false, false) => Authority::Journal,
        };
        let claims = std::mem::take(&mut entry.claims);
        let mut slots = SlotTable::new(node, authority, entry.capacity);
        restore(&mut slots, &claims, tracker.epoch(), tracker.now());
        let missing_since = (entry.online == Online::False).then(Instant::now);
        Self {
            entry,
            slots,
            edits: claims.into_iter().map(|(slot, claim)| (slot, claim.edits)).collect(),
            missing_since,
            recent: Vec::new(),
            advertised: watch::Sender::new(AdvertisedDevices::default()),
            plugin: None,
            by_cdi: false,
            sync: SyncState::default(),
            refreshed: None,
            reserved: None,
        }
    }

    /// Returns its journal entry without the claims.
    pub(super) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Returns its journal entry with the claims.
    pub(super) fn journal_entry(&self) -> Entry {
        Entry { claims: journaled(&self.slots, &self.edits), ..self.entry.clone() }
    }

    /// Removes entries of `edits` whose slots are not claimed.
    pub(super) fn forget_edits(&mut self) {
        let held: BTreeSet<u32> = self.slots.claims().map(|(slot, _)| slot).collect();
        self.edits.retain(|slot, _| held.contains(slot));
    }

    /// Returns what a container gets for a slot from the device as it is now (rule 17).
    pub(super) fn edits_for(&self, configuration: &Configuration, slot: u32, usage: &Usage) -> ContainerEdits {
        let device = &self.entry.device;
        let named = SlotRef { instance: &self.entry.key.name, hash: self.hash(), slot };
        let edits =
            ContainerEdits::of_slot(device, &configuration.broker_view(&device.properties), named, usage.vdev());
        if self.by_cdi { edits.by_cdi(self.cdi_name()) } else { edits }
    }

    /// Returns whether what the API server shows was taken over already: no other version of it has come since.
    pub(super) fn has_observed(&self, shown: &Instance) -> bool {
        self.slots.has_observed(&shown.uid, &shown.version)
    }

    /// Returns until when slots are kept for others: a minute from when the Instance was first seen.
    pub(super) fn reserved_until(&mut self) -> Option<Instant> {
        let ApiView::Present(PublishedSlots { uid, .. }) = self.slots.api() else { return None };
        if self.slots.reserved().is_empty() {
            self.reserved = None;
        } else if self.reserved.as_ref().is_none_or(|(of, _)| of != uid) {
            self.reserved = Some((uid.clone(), Instant::now() + RESERVED));
        }
        self.reserved.as_ref().map(|(_, until)| *until)
    }

    /// Notes that a slot was claimed here last.
    pub(super) fn used(&mut self, slot: u32) {
        self.recent.retain(|known| *known != slot);
        self.recent.push(slot);
    }

    /// Changes the capacity; slots in use above it stay.
    pub(super) fn resize(&mut self, capacity: u32) {
        self.entry.capacity = capacity;
        self.slots.resize(capacity);
    }

    /// Returns the known device, for the comparison with a round.
    pub(super) fn known(&self) -> Known<'_> {
        Known { device: &self.entry.device, online: self.entry.online }
    }

    /// The hash its name ends in.
    pub(super) fn hash(&self) -> &str {
        hash_of_instance(&self.entry.configuration, &self.entry.key.name).unwrap_or_default()
    }

    /// Returns the reason for refusing the device to containers now, if there is one.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        match () {
            () if self.entry.withheld => Some("is withheld: see the status of its Configuration"),
            () if self.entry.online == Online::False => Some("is offline"),
            () if self.entry.online == Online::Unknown => Some("may be offline: its discovery handler has gone"),
            () => None,
        }
    }

    /// Takes from a round whether the device is withheld. An unknown device is withheld, and a withheld device stays so until
    /// all its sources have reported. Returns whether that is new.
    pub(super) fn set_withheld(&mut self, set: &DeviceSet) -> bool {
        let id = &self.entry.device.id;
        let unclear = self.entry.withheld && set.absence != AbsenceMeaning::Missing;
        let withheld = id.is_empty() || set.withheld.contains(id) || unclear;
        std::mem::replace(&mut self.entry.withheld, withheld) != withheld
    }

    fn cdi_name(&self) -> String {
        cdi_name(&self.entry.configuration, self.hash())
    }

    /// Takes the device as it looks now. A container that runs keeps what it got, since the kubelet replays its answer; a
    /// changed device node is worth an Event (rule 18).
    pub(super) fn set_device(&mut self, device: Device) -> Option<ObjectEvent> {
        let moved = self.entry.device.device_specs != device.device_specs && self.slots.claims().next().is_some();
        self.entry.device = device;
        moved.then(|| {
            self.object_event("DeviceNodeChanged", "containers that use the device keep its old node".to_owned())
        })
    }

    /// Returns an event of the Instance, and logs it.
    pub(super) fn object_event(&self, reason: &'static str, message: String) -> ObjectEvent {
        warn!(instance = %self.entry.key, "{reason}: {message}");
        let Entry { key, uid, .. } = &self.entry;
        ObjectEvent { kind: "Instance", key: key.clone(), uid: uid.clone(), reason, message }
    }

    /// Takes from a round whether the device is there.
    pub(super) fn set_online(&mut self, online: Online) {
        self.entry.online = online;
        self.missing_since = (online == Online::False).then(Instant::now);
        let change = match online {
            Online::True => "the device is back",
            Online::False => "the device is missing",
            Online::Unknown => "the device is unknown: its discovery handler has gone",
        };
        info!(instance = %self.entry.key, "{change}");
    }

    /// Advertises the slots to the kubelet as they are now; `again` even if nothing changed (rule 4).
    pub(super) fn advertise(&self, again: bool) {
        let id = |slot| slot_name(&self.entry.key.name, slot);
        let list = self.slots.instance_level(self.refusal().is_none());
        let devices: Vec<VirtualDevice> =
            list.into_iter().map(|(slot, healthy)| VirtualDevice { id: id(slot), healthy }).collect();
        self.advertised.send_if_modified(|current| {
            let changed = again || current.devices != devices;
            current.devices = devices;
            current.resend += u64::from(again);
            changed
        });
    }

    /// Returns the Instance to publish.
    pub(super) fn instance(&self, configuration: &Configuration, node: &str) -> Instance {
        let entry = &self.entry;
        Instance {
            key: entry.key.clone(),
            uid: entry.uid.clone(),
            version: Version::default(),
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

    /// Takes the Instance as the API server shows it, or that it does not exist. Returns the slots that this node turned out
    /// to have, what is worth an Event, and whether anything changed.
    pub(super) fn observe(
        &mut self,
        shown: Option<&Instance>,
        tracker: &ClaimTracker,
    ) -> (Vec<u32>, Vec<ObjectEvent>, bool) {
        use akri_model::slots::SlotEvent::{Adopted, Overcommitted};
        let before = (self.slots.clone(), self.entry.uid.clone());
        let claim = |usage| {
            let (generation, observation) = (tracker.next_generation(), tracker.observation());
            Claim { usage, generation, observation }
        };
        let events = self.slots.observe(self.view(shown), claim);
        if let Some(shown) = shown {
            self.entry.uid.clone_from(&shown.uid);
        }
        let (mut adopted, mut object_events) = (Vec::new(), Vec::new());
        for event in events {
            match event {
                Adopted(slot) => adopted.push(slot),
                Overcommitted(slot, by) => {
                    let message = format!("slot {slot} is in use on this node and claimed by '{by}'");
                    object_events.push(self.object_event("SlotOvercommitted", message));
                }
            }
        }
        let changed = !before.0.taken().eq(self.slots.taken())
            || matches!(before.0.api(), ApiView::Present(_)) != matches!(self.slots.api(), ApiView::Present(_))
            || before.1 != self.entry.uid;
        (adopted, object_events, changed)
    }

    fn view(&self, shown: Option<&Instance>) -> ApiView {
        let Some(shown) = shown else { return ApiView::Absent };
        let (slots, unknown) = read_usage(&shown.key.name, &shown.device_usage);
        if !unknown.is_empty() {
            debug!(instance = %shown.key, "deviceUsage has keys that are no slots: {}", unknown.join(", "));
        }
        ApiView::Present(PublishedSlots { uid: shown.uid.clone(), version: shown.version.clone(), slots })
    }

    /// Applies a snapshot to its claims. `own` is the name of its resource.
    pub(super) fn apply_snapshot(
        &mut self,
        own: &str,
        configuration_resource: &str,
        snapshot: &UsageSnapshot,
        info: &SnapshotInfo,
    ) -> Observed {
        let mut observed = Observed::default();
        let claims: Vec<(u32, Usage)> = self
            .slots
            .claims()
            .filter(|(_, claim)| claim.generation <= info.generation)
            .map(|(slot, claim)| (slot, claim.usage.clone()))
            .collect();
        for (slot, usage) in claims {
            let evidence = self.evidence(own, configuration_resource, snapshot, slot, &usage);
            let effect = self.slots.observation_mut(slot).map(|observation| observation.observe(evidence, info));
            match effect {
                None | Some(SnapshotEffect::Keep) => {}
                Some(SnapshotEffect::Seen) => {
                    debug!(instance = %self.entry.key, slot, "a container uses it");
                    observed.seen = true;
                }
                Some(SnapshotEffect::Refresh) if usage.vdev().is_some() => observed.refresh.1 = true,
                Some(SnapshotEffect::Refresh) => observed.refresh.0 = true,
                Some(SnapshotEffect::Ended) => observed.ended.push(slot),
            }
        }
        observed
    }

    fn evidence(
        &self,
        own: &str,
        configuration_resource: &str,
        snapshot: &UsageSnapshot,
        slot: u32,
        usage: &Usage,
    ) -> Evidence {
        let (resource, id) = match usage.vdev() {
            Some(vdev) => (configuration_resource, vdev.to_owned()),
            None => (own, slot_name(&self.entry.key.name, slot)),
        };
        let has =
            |in_use: &crate::pod_resources_poller::InUse| in_use.get(resource).is_some_and(|ids| ids.contains(&id));
        Evidence::new(has(&snapshot.in_use), snapshot.checkpoint.as_deref().map(has))
    }

    /// Sends the list again, on which the kubelet writes its checkpoint, but not too often.
    pub(super) fn refresh(&mut self) {
        let now = Instant::now();
        if self.refreshed.is_none_or(|last| now - last >= REFRESH) {
            self.refreshed = Some(now);
            self.advertise(true);
        }
    }
}
