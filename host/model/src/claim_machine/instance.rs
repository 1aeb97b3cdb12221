//! One Instance: its device, its slots and the claims of this node.

use std::collections::{BTreeMap, BTreeSet};

use super::{Moment, Record};
use crate::broker_info::ClaimDirectory;
use crate::claim::{Entry, journaled, restore};
use crate::configuration::Configuration;
use crate::container_paths;
use crate::device::{AbsenceMeaning, Device, DeviceSet};
use crate::edits::ContainerEdits;
use crate::instance::{Instance, Online, Version};
use crate::names::{Identity, Usage, cdi_name, resource_name, short_name, slot_name};
use crate::plan::Known;
use crate::reclaim::{SlotUse, SnapshotEffect, UsageSnapshot};
use crate::slots::{Authority, SlotTable, SyncStep};

/// One Instance and everything this node keeps about it.
#[derive(Debug, Clone, Hash)]
pub struct ManagedInstance {
    /// Its journal entry without the claims; [`ManagedInstance::journal_entry`] has both.
    pub(super) entry: Entry,
    /// The usage of its slots, on all nodes.
    pub(super) slots: SlotTable,
    /// The edits that containers of this node got, by slot.
    pub(super) edits: BTreeMap<u32, ContainerEdits>,
    /// Slots in the order they were last claimed here, the latest last.
    pub(super) recent: Vec<u32>,
    /// Set if containers get the device by its CDI name.
    pub(super) by_cdi: bool,
    /// A step towards agreement with the API server is on its way.
    pub(super) is_in_step: bool,
    records: Records,
    /// Directories of containers that come with the next record.
    pub(super) directories: Vec<ClaimDirectory>,
}

/// The records of an Instance in the journal, by number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Records {
    /// The last one, which may not have been handed out yet.
    last: u64,
    /// The last one on disk.
    written: u64,
    /// The last one that could not be written.
    failed: u64,
    /// The one that has the last release: before it is on disk, no slot is given back.
    of_release: u64,
}

/// The result of observing the claims of an Instance.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Slots that no container uses any more, with their last users.
    pub(super) ended: Vec<SlotUse>,
    /// Slots of which other users were observed than before, with the new ones.
    pub(super) seen: Vec<SlotUse>,
    /// Set if the kubelet has to write its checkpoint.
    pub(super) needs_refresh: bool,
}

impl ManagedInstance {
    /// Returns an Instance as the journal has it. `damaged` says that the journal has lost something.
    pub fn new(entry: Entry, node: &str, damaged: bool, moment: Moment) -> Self {
        let authority = match (entry.shared, damaged) {
            (true, _) => Authority::Api,
            (false, true) => Authority::DamagedJournal,
            (false, false) => Authority::Journal,
        };
        Self::with_authority(entry, node, authority, moment)
    }

    pub(super) fn with_authority(mut entry: Entry, node: &str, authority: Authority, moment: Moment) -> Self {
        let (claims, others) = (std::mem::take(&mut entry.claims), std::mem::take(&mut entry.others));
        let mut slots = SlotTable::new(node, authority, entry.capacity);
        slots.restore_others(&others);
        restore(&mut slots, &claims, moment.epoch, moment.now);
        let edits = claims.into_iter().map(|(slot, claim)| (slot, claim.edits)).collect();
        let (recent, by_cdi, is_in_step, records, directories) = Default::default();
        Self { entry, slots, edits, recent, by_cdi, is_in_step, records, directories }
    }

    /// Its journal entry without the claims.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Its slots.
    pub fn slots(&self) -> &SlotTable {
        &self.slots
    }

    /// Returns its journal entry with the claims.
    pub fn journal_entry(&self) -> Entry {
        let (claims, others) = (journaled(&self.slots, &self.edits), self.slots.others());
        Entry { claims, others, ..self.entry.clone() }
    }

    /// Returns whether containers of this node use it.
    pub fn is_used(&self) -> bool {
        self.slots.claims().next().is_some()
    }

    /// Returns whether a container of this node uses it by the resource that has its name.
    pub fn is_held_by_name(&self) -> bool {
        self.slots.claims().any(|(_, claim)| claim.usage.vdev().is_none())
    }

    /// Notes that it has to be recorded, and shown if `shows`.
    pub(super) fn mark(&mut self, identity: &Identity, shows: bool, changed: &mut BTreeMap<Identity, bool>) {
        let marked = changed.entry(identity.clone()).or_insert_with(|| {
            self.records.last += 1;
            false
        });
        *marked |= shows;
    }

    /// Returns the record that was noted.
    pub(super) fn record(&mut self) -> Record {
        let held: BTreeSet<u32> = self.slots.claims().map(|(slot, _)| slot).collect();
        self.edits.retain(|slot, _| held.contains(slot));
        let identity = self.entry.identity.clone();
        let (entry, revision) = (self.journal_entry(), self.records.last);
        Record { identity, entry, revision, directories: std::mem::take(&mut self.directories) }
    }

    pub(super) fn recorded(&mut self, revision: u64, is_written: bool) {
        let last = if is_written { &mut self.records.written } else { &mut self.records.failed };
        *last = revision.max(*last);
    }

    /// The number of the record that has what was changed last.
    pub(super) fn revision(&self) -> u64 {
        self.records.last
    }

    /// Returns whether a record is on disk; `None` if it could not be written.
    pub(super) fn is_recorded(&self, revision: u64) -> Option<bool> {
        let is_written = self.records.written >= revision;
        (is_written || self.records.failed < revision).then_some(is_written)
    }

    /// Returns whether the last record could not be written. A later one that is on its way has what an earlier one lacks.
    pub(super) fn is_unrecorded(&self) -> bool {
        self.records.failed == self.records.last && self.records.failed > self.records.written
    }

    /// Gives back a slot. The API server gets to know once that is recorded (rule 41).
    pub(super) fn release(&mut self, slot: u32, identity: &Identity, changed: &mut BTreeMap<Identity, bool>) {
        self.slots.release(slot);
        self.mark(identity, true, changed);
        self.records.of_release = self.records.last;
    }

    /// Gives up a pending claim: the kubelet was told that it failed.
    pub(super) fn abandon(&mut self, slot: u32, identity: &Identity, changed: &mut BTreeMap<Identity, bool>) {
        self.slots.abandon(slot);
        self.mark(identity, true, changed);
        self.records.of_release = self.records.last;
    }

    /// Starts the next step. Without `may_join` an Instance is not made again.
    pub(super) fn start_step(&mut self, may_join: bool) -> Option<SyncStep> {
        if self.is_in_step {
            return None; // its end brings the Instance here again
        }
        let step = self.slots.next_step(self.records.written >= self.records.of_release);
        let step = step.filter(|step| may_join || *step != SyncStep::Create);
        self.is_in_step = step.is_some();
        step
    }

    /// Returns whether a step is on its way.
    pub fn is_in_step(&self) -> bool {
        self.is_in_step
    }

    /// Makes up the edits of a claim that the journal lacks.
    pub(super) fn restore_edits(&mut self, slot: u32, configuration: &Configuration) {
        let usage = self.slots.claims().find(|(held, _)| *held == slot).map(|(_, claim)| claim.usage.clone());
        let mut edits = self.edits_for(configuration, slot, &usage.unwrap_or_default());
        container_paths::number([&mut edits]);
        self.edits.insert(slot, edits);
    }

    /// Returns what a container gets for a slot from the device as it is now (rule 17). Its paths have no numbers yet.
    pub(super) fn edits_for(&self, configuration: &Configuration, slot: u32, usage: &Usage) -> ContainerEdits {
        let device = &self.entry.device;
        let properties = configuration.broker_view(&device.properties);
        let edits = ContainerEdits::of_device(device, &properties, self.hash())
            .with_slot(&slot_name(&self.entry.key.name, slot), usage.vdev());
        if self.by_cdi && !edits.is_unnumbered() { edits.by_cdi(self.cdi_name()) } else { edits }
    }

    /// Notes that a slot was claimed here last, with the directory that its container needs.
    pub(super) fn claimed(&mut self, slot: u32, directory: Option<ClaimDirectory>) {
        self.directories.extend(directory);
        self.recent.retain(|known| *known != slot);
        self.recent.push(slot);
    }

    pub(super) fn resize(&mut self, capacity: u32) {
        self.entry.capacity = capacity;
        self.slots.resize(capacity);
    }

    /// Returns the known device, for the comparison with a round.
    pub fn known(&self) -> Known<'_> {
        Known { device: &self.entry.device, online: self.entry.online, withheld: self.entry.withheld }
    }

    /// The hash its name ends in, or the whole of a name that the Configuration chose.
    pub fn hash(&self) -> &str {
        short_name(&self.entry.configuration, &self.entry.key.name)
    }

    fn cdi_name(&self) -> String {
        cdi_name(&self.entry.configuration, self.hash())
    }

    /// Returns the reason for refusing the device to containers now, if there is one.
    pub fn refusal(&self) -> Option<&'static str> {
        match () {
            () if self.entry.withheld => Some("is withheld: see the status of its Configuration"),
            () if self.entry.online == Online::False => Some("is offline"),
            () if self.entry.online == Online::Unknown => Some("may be offline: its discovery handler has gone"),
            () => None,
        }
    }

    /// Returns whether the device would be withheld after a round: a withheld device stays so until all its sources have reported, and one
    /// without an id until a round has found it.
    pub fn is_withheld_by(&self, set: &DeviceSet) -> bool {
        let id = &self.entry.device.id;
        let unclear = id.is_empty() || set.absence != AbsenceMeaning::Missing;
        set.withheld.contains(id) || self.entry.withheld && unclear
    }

    /// Withholds the device from new containers, or not.
    pub fn set_withheld(&mut self, withheld: bool) {
        self.entry.withheld = withheld;
    }

    /// Takes the device as it looks now. A container that runs keeps what it got, since the kubelet replays its answer. Returns
    /// whether one keeps a device node that has changed (rule 18).
    pub fn set_device(&mut self, device: Device) -> bool {
        let moved = self.entry.device.device_specs != device.device_specs && self.is_used();
        self.entry.device = device;
        moved
    }

    /// Takes from a round whether the device is there.
    pub fn set_online(&mut self, online: Online) {
        self.entry.online = online;
    }

    /// Returns the slots of its own resource and whether each is healthy.
    pub fn advertised(&self) -> Vec<(String, bool)> {
        let list = self.slots.instance_level(self.refusal().is_none());
        list.into_iter().map(|(slot, healthy)| (slot_name(&self.entry.key.name, slot), healthy)).collect()
    }

    /// Returns the Instance to publish.
    pub fn instance(&self, configuration: &Configuration, node: &str) -> Instance {
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

    /// Applies a snapshot to its claims, and gives back the slots whose containers are gone.
    pub(super) fn apply_snapshot(&mut self, of_configuration: &str, snapshot: &UsageSnapshot) -> Observed {
        let mut observed = Observed::default();
        let own = resource_name(&self.entry.key.name);
        let is_decided = |(slot, claim): (u32, &crate::slots::Claim)| {
            let is_observed = !claim.usage.ends_by_call(); // rule 110
            (is_observed && claim.generation <= snapshot.info.generation).then(|| (slot, claim.usage.clone()))
        };
        for (slot, usage) in self.slots.claims().filter_map(is_decided).collect::<Vec<_>>() {
            let (resource, id) = match usage.vdev() {
                Some(vdev) => (of_configuration, vdev.to_owned()),
                None => (&*own, slot_name(&self.entry.key.name, slot)),
            };
            let evidence = snapshot.evidence(resource, &id);
            let Some(observation) = self.slots.observation_mut(slot) else { continue };
            let newcomer = evidence.newcomer(observation.users());
            match observation.observe(evidence) {
                SnapshotEffect::Keep => {}
                SnapshotEffect::Seen => observed.seen.push((slot, newcomer)),
                SnapshotEffect::Refresh => observed.needs_refresh = true,
                SnapshotEffect::Ended { lingers: true } if self.entry.shared => {}
                SnapshotEffect::Ended { .. } => {
                    observed.ended.push((slot, observation.users().containers.first().cloned()));
                }
            }
        }
        observed
    }

    /// Ends the claims of a device without an Instance that no container uses any more. Returns their slots, and whether the
    /// kubelet has to write its checkpoint before others can be judged.
    pub(super) fn end_claims(&mut self, snapshot: &UsageSnapshot) -> (Vec<u32>, bool) {
        let observed = self.apply_snapshot(&resource_name(&self.entry.configuration), snapshot);
        let ended: Vec<u32> = observed.ended.into_iter().map(|(slot, _)| slot).collect();
        ended.iter().for_each(|slot| self.slots.release(*slot));
        (ended, observed.needs_refresh)
    }
}
