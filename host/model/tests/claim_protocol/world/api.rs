//! The API server: Instances, the Configuration and Node objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use akri_model::instance::Version;
use akri_model::names::Usage;
use akri_model::slots::{ApiView, PublishedSlots, SlotPatch};

use super::setup::{Setup, user};

/// Versions and UIDs are numbers of these ranges, so that fingerprints can tell them from other texts.
pub(crate) const VERSIONS: u64 = 5_000_000_000;
pub(crate) const UIDS: u64 = 6_000_000_000;

/// The distance of versions in a row. Those of a restored store lie between: that it reaches the very number that an Instance had
/// before, just when a request comes that was computed from that, is left out.
const STRIDE: u64 = 8;

/// Everything that the API server has.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) instances: Vec<Option<Published>>,
    /// The number of Instances and Configurations that were made.
    pub(super) made: u64,
    pub(crate) version: u64,
    restores: u64,
    /// The number in the Configuration's UID.
    pub(crate) configuration: u64,
    pub(crate) capacity: u32,
    pub(crate) node_objects: [bool; 3],
    pub(super) backup: Arc<Backup>,
}

/// An Instance.
#[derive(Clone, Hash)]
pub(crate) struct Published {
    pub(crate) uid: u64,
    pub(super) version: u64,
    /// The UID of its Configuration.
    pub(crate) configuration: u64,
    pub(crate) slots: BTreeMap<u32, Usage>,
    /// The nodes that see it, by index.
    pub(super) nodes: BTreeSet<usize>,
    /// The nodes whose Leases say that they want to be among these. A Lease outlives its agent.
    pub(super) joining: BTreeSet<usize>,
    /// It was made again, or edited: a claim may count that it does not show.
    pub(crate) is_damaged: bool,
}

/// A backup.
pub(super) struct Backup {
    instances: Vec<Option<Published>>,
    version: u64,
    configuration: u64,
    capacity: u32,
}

/// A request to make an Instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Creation {
    pub(crate) configuration_uid: String,
    pub(crate) slots: BTreeMap<u32, Usage>,
}

impl Api {
    /// All Instances exist, and all nodes see them.
    pub(super) fn new(setup: &Setup) -> Self {
        let bounds = setup.bounds;
        let slots: BTreeMap<u32, Usage> = (0..bounds.slots).map(|slot| (slot, Usage::Free)).collect();
        let published = |index: usize| Published {
            uid: UIDS + 1 + index as u64,
            version: VERSIONS + 1,
            configuration: UIDS,
            slots: slots.clone(),
            nodes: (0..bounds.nodes).collect(),
            joining: BTreeSet::new(),
            is_damaged: false,
        };
        let instances: Vec<Option<Published>> = (0..bounds.instances).map(|index| Some(published(index))).collect();
        let (version, capacity) = (VERSIONS + 1, bounds.slots);
        let backup = Backup { instances: instances.clone(), version, configuration: UIDS, capacity };
        let made = bounds.instances as u64;
        let backup = Arc::new(backup);
        Self { instances, made, version, restores: 0, configuration: UIDS, capacity, node_objects: [true; 3], backup }
    }

    pub(crate) fn configuration_uid(&self) -> String {
        self.configuration.to_string()
    }

    pub(super) fn backup_version(&self) -> u64 {
        self.backup.version
    }

    /// Goes back to the backup.
    pub(super) fn restore(&mut self) {
        self.instances = self.backup.instances.clone();
        self.instances.iter_mut().flatten().for_each(|published| published.is_damaged = true);
        self.restores += 1;
        self.version = self.backup.version + self.restores;
        (self.configuration, self.capacity) = (self.backup.configuration, self.backup.capacity);
    }

    pub(super) fn next_version(&mut self) -> u64 {
        self.version += STRIDE;
        self.version
    }

    fn next_uid(&mut self) -> u64 {
        self.made += 1;
        UIDS + self.made
    }

    /// Returns an Instance as a GET shows it.
    pub(super) fn get(&self, instance: usize, history: u64) -> ApiView {
        self.instances[instance].as_ref().map_or(ApiView::Absent, |published| {
            ApiView::Present(PublishedSlots {
                uid: published.uid.to_string(),
                version: Version(published.version.to_string()),
                history,
                slots: published.slots.clone(),
            })
        })
    }

    /// Changes slots, if they are as expected.
    pub(super) fn patch(&mut self, instance: usize, patch: &SlotPatch) {
        let version = self.version + STRIDE;
        let Some(published) = &mut self.instances[instance] else { return };
        let is_same = |version: &Version| version.0 == published.version.to_string();
        let expected = |(slot, (from, _)): (&u32, &(Option<Usage>, Usage))| {
            // A JSON Patch can't test that a key is missing: the version stands for that.
            from.is_none() || published.slots.get(slot) == from.as_ref()
        };
        let applies = patch.uid == published.uid.to_string()
            && patch.version.as_ref().is_none_or(is_same)
            && patch.changes.iter().all(expected);
        if applies {
            published.version = version;
            published.slots.extend(patch.changes.iter().map(|(slot, (_, to))| (*slot, to.clone())));
            self.version = version;
        }
    }

    /// Makes an Instance for a node, unless there is one.
    pub(super) fn create(&mut self, instance: usize, node: usize, wanted: &Creation) {
        if self.instances[instance].is_none() {
            let (uid, version) = (self.next_uid(), self.next_version());
            let configuration = wanted.configuration_uid.parse().unwrap();
            let (slots, nodes, joining) = (wanted.slots.clone(), [node].into(), BTreeSet::new());
            let made = Published { uid, version, configuration, slots, nodes, joining, is_damaged: true };
            self.instances[instance] = Some(made);
        }
    }

    /// A node says that it wants to join an Instance that another has made. Returns whether it has to.
    pub(super) fn announce(&mut self, instance: usize, node: usize) -> bool {
        let published = self.instances[instance].as_mut();
        published.is_some_and(|published| !published.nodes.contains(&node) && published.joining.insert(node))
    }

    /// The controller joins a node that has said so (rule 23).
    pub(super) fn join(&mut self, instance: usize, node: usize) {
        let version = self.version + STRIDE;
        let Some(published) = &mut self.instances[instance] else { return };
        if published.joining.remove(&node) && published.nodes.insert(node) {
            published.version = version;
            self.version = version;
        }
    }

    pub(super) fn is_joining(&self, instance: usize, node: usize) -> bool {
        self.instances[instance].as_ref().is_some_and(|published| published.joining.contains(&node))
    }

    pub(super) fn delete(&mut self, instance: usize) {
        self.instances[instance] = None;
        self.next_version();
    }

    pub(super) fn replace_configuration(&mut self) {
        self.configuration = self.next_uid();
        self.next_version();
    }

    /// Changes the usage of a slot, whatever it is.
    pub(super) fn edit(&mut self, instance: usize, slot: u32, usage: Usage) {
        let version = self.next_version();
        if let Some(published) = &mut self.instances[instance] {
            published.slots.insert(slot, usage);
            (published.version, published.is_damaged) = (version, true);
        }
    }

    /// Returns whether there are other slots than the capacity asks for, beside those in use.
    pub(super) fn has_wrong_keys(&self, published: &Published) -> bool {
        let is_missing = (0..self.capacity).any(|slot| !published.slots.contains_key(&slot));
        is_missing || published.slots.iter().any(|(slot, usage)| *slot >= self.capacity && usage.is_free())
    }

    /// Adds the slots that the capacity asks for, and removes free ones above it (rule 24).
    pub(super) fn publish_capacity(&mut self) {
        let capacity = self.capacity;
        let wrong: Vec<usize> = (0..self.instances.len())
            .filter(|index| self.instances[*index].as_ref().is_some_and(|published| self.has_wrong_keys(published)))
            .collect();
        for index in wrong {
            let version = self.next_version();
            let Some(published) = &mut self.instances[index] else { continue };
            published.version = version;
            published.slots.retain(|slot, usage| *slot < capacity || !usage.is_free());
            for slot in 0..capacity {
                published.slots.entry(slot).or_default();
            }
        }
    }

    /// Returns whether an Instance has a node among its nodes or users.
    pub(super) fn mentions(&self, _setup: &Setup, node: usize) -> bool {
        let is_used = |published: &Published| published.slots.values().any(|usage| user(usage) == Some(node));
        self.instances.iter().flatten().any(|published| published.nodes.contains(&node) || is_used(published))
    }

    /// Removes a node from all Instances (rule 100).
    pub(super) fn clean_up(&mut self, node: usize) {
        for index in 0..self.instances.len() {
            let version = self.next_version();
            let Some(published) = &mut self.instances[index] else { continue };
            published.nodes.remove(&node);
            published.joining.remove(&node);
            published.version = version;
            published
                .slots
                .values_mut()
                .filter(|usage| user(usage) == Some(node))
                .for_each(|usage| *usage = Usage::Free);
            published.is_damaged = true; // its agent may come back
            if published.nodes.is_empty() {
                self.instances[index] = None;
            }
        }
    }

    pub(super) fn has_node(&self, instance: usize, node: usize) -> bool {
        self.instances[instance].as_ref().is_some_and(|published| published.nodes.contains(&node))
    }
}
