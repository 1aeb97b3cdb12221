//! The kubelet's requests in slots: those for an Instance's own resource, and those for the Configuration's (rule 14).

use std::cmp::Reverse;

use super::{ClaimMachine, ManagedInstance};
use crate::configuration_level::{Assignment, Place, Pool};
use crate::names::{Identity, Usage, parse_slot_name};
use crate::slots::{Refusal, SlotState};

/// The owner of a resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// An Instance's.
    Instance(Identity),
    /// The Configuration's.
    Configuration,
}

/// One container of a GetPreferredAllocation request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preference {
    /// IDs the kubelet may choose from.
    pub available: Vec<String>,
    /// IDs that must be included.
    pub required: Vec<String>,
    /// The number of IDs to choose.
    pub size: usize,
}

/// A slot that one container is to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlotRequest {
    pub(super) identity: Identity,
    pub(super) slot: u32,
    pub(super) usage: Usage,
    /// A slot that the same virtual device gives up for it.
    pub(super) moved_from: Option<(Identity, u32)>,
}

impl ClaimMachine {
    /// Returns the slots that a request comes to, by container.
    pub(super) fn slot_requests(
        &self,
        target: &Target,
        containers: &[Vec<String>],
    ) -> Result<Vec<Vec<SlotRequest>>, Refusal> {
        if containers.is_empty() || containers.iter().any(Vec::is_empty) {
            return Err(Refusal::Invalid("a container asks for no device".to_owned()));
        }
        match target {
            Target::Configuration => self.configuration_requests(containers),
            Target::Instance(identity) => {
                let instance = self.get(identity).ok_or_else(Refusal::gone)?;
                let request = |id: &String| instance_request(instance, id, &self.node);
                containers.iter().map(|ids| ids.iter().map(request).collect()).collect()
            }
        }
    }

    fn configuration_requests(&self, containers: &[Vec<String>]) -> Result<Vec<Vec<SlotRequest>>, Refusal> {
        let mut pool = self.pool();
        let found = |Place { instance: (_, identity), slot }: Place<(&str, &Identity)>| (identity.clone(), slot);
        let request = |Assignment { vdev, place, moved_from }| {
            let (identity, slot) = found(place);
            let usage = Usage::Configuration { vdev, node: self.node.clone() };
            SlotRequest { identity, slot, usage, moved_from: moved_from.map(found) }
        };
        let requests = |ids: &Vec<String>| Ok(pool.allocate(ids)?.into_iter().map(request).collect());
        containers.iter().map(requests).collect()
    }

    fn pool(&self) -> Pool<(&str, &Identity)> {
        Pool::new(self.instances.iter().map(|(identity, one)| {
            let key = (one.entry().key.name.as_str(), identity);
            (key, &one.slots, one.refusal().is_none())
        }))
    }

    /// Returns the virtual devices of the Configuration's resource.
    pub fn virtual_devices(&self) -> Vec<String> {
        self.pool().ids()
    }

    /// Returns the IDs that the kubelet should take, by container.
    pub fn prefer(&self, target: &Target, containers: &[Preference]) -> Vec<Vec<String>> {
        match target {
            Target::Configuration => {
                let pool = self.pool();
                let prefer = |wanted: &Preference| pool.preferred(&wanted.available, &wanted.required, wanted.size);
                containers.iter().map(prefer).collect()
            }
            Target::Instance(identity) => {
                let instance = self.get(identity);
                instance.map(|one| containers.iter().map(|wanted| prefer(one, wanted)).collect()).unwrap_or_default()
            }
        }
    }

    /// Returns whether all of these IDs are claimed through the resource here.
    pub fn holds(&self, target: &Target, ids: &[String]) -> bool {
        let pool = self.pool();
        let holds = |id: &String| match target {
            Target::Configuration => pool.place(id).is_some(),
            Target::Instance(identity) => self
                .get(identity)
                .is_some_and(|one| parse_slot_name(&one.entry().key.name, id).is_some_and(|slot| is_held(one, slot))),
        };
        !ids.is_empty() && ids.iter().all(holds)
    }
}

fn instance_request(instance: &ManagedInstance, id: &str, node: &str) -> Result<SlotRequest, Refusal> {
    let name = &instance.entry().key.name;
    let slot = parse_slot_name(name, id);
    let slot = slot.ok_or_else(|| Refusal::Invalid(format!("'{id}' is no slot of '{name}'")))?;
    let usage = Usage::Instance { node: node.to_owned() };
    Ok(SlotRequest { identity: instance.entry().identity.clone(), slot, usage, moved_from: None })
}

/// Returns the IDs that the kubelet should take: the required ones, then the slots last used here, then the lowest. Slots
/// that other nodes have come last: the kubelet may know an older list.
fn prefer(instance: &ManagedInstance, preference: &Preference) -> Vec<String> {
    let rank = |id: &String| {
        let slot = parse_slot_name(&instance.entry().key.name, id).unwrap_or(u32::MAX);
        let last_used = instance.recent.iter().position(|recent| *recent == slot);
        let taken = !is_held(instance, slot) && *instance.slots.state(slot) != SlotState::Free;
        (!preference.required.contains(id), taken, Reverse(last_used), slot)
    };
    let mut ids = preference.available.clone();
    ids.sort_by_key(rank);
    ids.truncate(preference.size);
    ids
}

fn is_held(instance: &ManagedInstance, slot: u32) -> bool {
    matches!(instance.slots.state(slot), SlotState::Held(claim) if claim.usage.vdev().is_none())
}
