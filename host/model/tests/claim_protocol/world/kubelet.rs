//! The kubelet of a node: containers, the lists that it shows of them, and its checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use akri_model::claim_machine::{ManagedInstance, Target};
use akri_model::names::{parse_slot_name, resource_name};
use akri_model::reclaim::{ContainerName, SnapshotInfo, UsageSnapshot, Users};
use akri_model::slots::ApiView;

use super::World;
use super::action::Wanted;
use super::damage::Excuse;
use super::node::Node;
use super::setup::Setup;
use crate::bounds::{Mutation, RELEASE_DELAY};

#[derive(Debug, Clone, Default, Hash)]
pub(crate) struct Kubelet {
    pub(crate) pods: Vec<Pod>,
    /// Pods that have ended and that the checkpoint still has.
    pub(crate) stale: BTreeSet<(String, Target, String)>,
    /// UIDs of pods that have ended and that it still lists, without their IDs.
    pub(crate) ended: BTreeSet<String>,
    /// It lists pods that have ended.
    pub(crate) lists_ended: bool,
}

/// A pod with one container that uses a device. It is there for as long as its cgroup.
#[derive(Debug, Clone, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    target: Target,
    /// The ID that the kubelet has given it.
    device: String,
    pub(crate) instance: usize,
    pub(crate) slot: u32,
    pub(crate) init: bool,
    /// It was deleted by force: the kubelet no longer lists it.
    pub(crate) is_terminating: bool,
    /// The kubelet has lost its checkpoint, and lists it without its ID.
    pub(crate) is_forgotten: bool,
    /// A snapshot had it.
    pub(crate) was_observed: bool,
    /// A snapshot lacked it since it had just started.
    pub(crate) was_missed: bool,
    /// The truth was damaged while it ran, in a way that excuses other users of its slot.
    pub(crate) excuse: Excuse,
}

impl Pod {
    pub(super) fn is_virtual(&self, vdev: &str) -> bool {
        self.has(&Target::Configuration, vdev)
    }

    fn has(&self, target: &Target, device: &str) -> bool {
        self.target == *target && self.device == device
    }
}

impl Kubelet {
    /// A container starts with what it got. The kubelet writes its checkpoint.
    pub(super) fn start(
        &mut self,
        target: Target,
        device: String,
        (instance, slot): (usize, u32),
        init: bool,
        number: u8,
    ) {
        self.stale.clear();
        // A pod that was deleted by force before any poll had it has a UID that no agent knows: its slot waits for the delay of
        // rule 101, but not if its ID is given to another pod before.
        let is_unknown = |pod: &&mut Pod| pod.is_terminating && !pod.was_observed && pod.has(&target, &device);
        self.pods.iter_mut().filter(is_unknown).for_each(|pod| pod.excuse = Excuse::ALL);
        self.pods.push(Pod {
            uid: format!("pod-{number}"),
            target,
            device,
            instance,
            slot,
            init,
            is_terminating: false,
            is_forgotten: false,
            was_observed: false,
            was_missed: false,
            excuse: Excuse::NONE,
        });
        self.pods.sort();
    }

    pub(super) fn end(&mut self, index: usize) {
        let pod = self.pods.remove(index);
        if self.lists_ended && !pod.is_terminating && !pod.init {
            self.ended.insert(pod.uid.clone());
        }
        if !pod.is_terminating && !pod.is_forgotten {
            self.stale.insert((pod.uid, pod.target, pod.device));
        }
    }

    /// A pod is deleted by force.
    pub(super) fn force_delete(&mut self, index: usize) {
        let pod = &mut self.pods[index];
        pod.is_terminating = true;
        if !pod.is_forgotten {
            self.stale.insert((pod.uid.clone(), pod.target.clone(), pod.device.clone()));
        }
    }

    /// The kubelet starts without its checkpoint. What no snapshot had is unknown from then on; so is an init container
    /// whose cgroup can't be read.
    pub(super) fn lose_checkpoint(&mut self, has_cgroups: bool) {
        self.stale.clear();
        for pod in &mut self.pods {
            pod.is_forgotten = true;
            if !pod.was_observed || pod.init && !has_cgroups {
                pod.excuse = Excuse::ALL;
            }
        }
    }

    /// Returns whether the kubelet has given an ID to a pod that it knows.
    fn has_given(&self, target: &Target, device: &str) -> bool {
        let is_it = |pod: &Pod| !pod.is_terminating && !pod.is_forgotten && pod.has(target, device);
        self.pods.iter().any(is_it)
    }
}

impl World {
    /// Returns what the kubelet of a node may ask for: the healthy IDs that no pod has.
    pub(super) fn offered(&self, node: &Node) -> Vec<Wanted> {
        let Some(machine) = &node.machine else { return Vec::new() };
        // Glue of the owner: it waits for the first list before it serves.
        if machine.instances().values().any(|one| *one.slots().api() == ApiView::Unknown) {
            return Vec::new();
        }
        let kinds: &[bool] = if self.setup.bounds.init { &[false, true] } else { &[false] };
        let mut offered = Vec::new();
        for (instance, device) in self.setup.devices.iter().enumerate() {
            let target = Target::Instance(device.identity.clone());
            let advertised = machine.get(&device.identity).map(ManagedInstance::advertised).unwrap_or_default();
            for (id, is_healthy) in advertised {
                let slot = parse_slot_name(&device.name, &id).unwrap();
                if is_healthy && !node.kubelet.has_given(&target, &id) {
                    offered.extend(kinds.iter().map(|init| Wanted::Slot { instance, slot, init: *init }));
                }
            }
        }
        if self.setup.bounds.virtual_devices {
            let free = machine.virtual_devices().into_iter();
            let free = free.filter(|id| !node.kubelet.has_given(&Target::Configuration, id));
            let numbers = free.filter_map(|id| id.parse().ok()).take(1);
            offered.extend(
                numbers.flat_map(|number| kinds.iter().map(move |init| Wanted::Virtual { number, init: *init })),
            );
        }
        offered
    }

    /// Returns what containers use now. A list that is not `complete` has no pods; one that lags lacks those that have just
    /// started.
    pub(super) fn snapshot(&self, number: usize, complete: bool, lags: bool) -> UsageSnapshot {
        let node = &self.nodes[number];
        let mutation = self.setup.bounds.mutation;
        let (mut listed, mut checkpoint) = (Users::new(), Users::new());
        let (mut without_devices, mut running) = (BTreeSet::new(), BTreeSet::new());
        for pod in &node.kubelet.pods {
            running.insert(pod.uid.clone());
            if pod.is_terminating || !complete || lags && !pod.was_observed {
                continue;
            }
            if pod.is_forgotten && !pod.init {
                without_devices.insert(container(&pod.uid));
            }
            if !pod.is_forgotten {
                if !pod.init {
                    insert(&mut listed, &self.setup, &pod.target, &pod.device, container(&pod.uid));
                }
                insert(&mut checkpoint, &self.setup, &pod.target, &pod.device, pod.uid.clone());
            }
        }
        if complete {
            without_devices.extend(node.kubelet.ended.iter().map(|uid| container(uid)));
        }
        for (uid, target, device) in &node.kubelet.stale {
            insert(&mut checkpoint, &self.setup, target, device, uid.clone());
        }
        if mutation == Some(Mutation::Rule102) {
            without_devices.clear();
        }
        let is_blind = mutation == Some(Mutation::Rule101);
        let info = SnapshotInfo {
            generation: node.generation,
            epoch: node.epoch,
            at: node.clock,
            settled: node.settled,
            refreshable: node.is_refreshable || mutation == Some(Mutation::Rule104),
            is_renewed: true,
            release_delay: if is_blind { Duration::ZERO } else { RELEASE_DELAY },
        };
        UsageSnapshot {
            info,
            listed: Arc::new(listed),
            without_devices: Arc::new(without_devices),
            checkpoint: node.has_checkpoint.then(|| Arc::new(checkpoint)),
            running: (node.has_cgroups && !is_blind).then(|| Arc::new(running)),
        }
    }

    pub(super) fn apply_snapshot(&mut self, number: usize, snapshot: &UsageSnapshot) {
        let node = self.node_mut(number);
        for pod in &mut node.kubelet.pods {
            let container = |user: &ContainerName| user.pod == pod.uid;
            let is_listed = snapshot.listed.values().flat_map(BTreeMap::values).flatten().any(container);
            let is_noted =
                |users: &Users<String>| users.values().flat_map(BTreeMap::values).any(|uids| uids.contains(&pod.uid));
            pod.was_observed |= is_listed || snapshot.checkpoint.as_ref().is_some_and(|users| is_noted(users));
        }
        if let Some(machine) = &mut node.machine {
            machine.apply_snapshot(snapshot);
        }
    }

    /// The agent polls. A failed poll does not count (rule 105).
    pub(super) fn poll(&mut self, number: usize, complete: bool) {
        let node = self.node_mut(number);
        if node.is_flaky && self.setup.bounds.mutation == Some(Mutation::Rule105) {
            let node = self.node_mut(number);
            (node.epoch, node.settled) = (node.epoch + 1, false);
        }
        let snapshot = self.snapshot(number, complete, false);
        self.apply_snapshot(number, &snapshot);
    }
}

impl Node {
    /// The kubelet gets a list, and writes its checkpoint.
    pub(super) fn refresh_checkpoint(&mut self) {
        if self.is_refreshable {
            self.kubelet.stale.clear();
        }
    }
}

fn container(uid: &str) -> ContainerName {
    ContainerName { namespace: "n".into(), pod: uid.into(), container: "c".into() }
}

fn insert<T: Ord>(users: &mut Users<T>, setup: &Setup, target: &Target, device: &str, user: T) {
    let resource = match target {
        Target::Instance(identity) => resource_name(&setup.devices[setup.index(identity)].name),
        Target::Configuration => resource_name("cam"),
    };
    users.entry(resource).or_default().entry(device.to_owned()).or_default().insert(user);
}
