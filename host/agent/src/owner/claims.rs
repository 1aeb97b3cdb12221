//! The kubelet's requests for an Instance's own resource, in slots.

use std::cmp::Reverse;

use akri_kubelet::resource::{AllocateError, Preference};
use akri_model::names::{Identity, Usage, parse_slot_name};
use akri_model::slots::SlotState;

use super::published::PublishedInstance;

/// A slot that one container is to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlotRequest {
    pub(super) identity: Identity,
    pub(super) slot: u32,
    pub(super) usage: Usage,
    /// A slot that the same virtual device gives up for it.
    pub(super) moved_from: Option<(Identity, u32)>,
}

/// Returns the slots that a request for an Instance's own resource names.
pub(super) fn instance_requests(
    published: &PublishedInstance,
    containers: &[Vec<String>],
    node: &str,
) -> Result<Vec<Vec<SlotRequest>>, AllocateError> {
    let name = &published.entry().key.name;
    let request = |id: &String| {
        let slot = parse_slot_name(name, id);
        let slot = slot.ok_or_else(|| AllocateError::InvalidArgument(format!("'{id}' is no slot of '{name}'")))?;
        let usage = Usage::Instance { node: node.to_owned() };
        Ok(SlotRequest { identity: published.entry().identity.clone(), slot, usage, moved_from: None })
    };
    containers.iter().map(|ids| ids.iter().map(request).collect()).collect()
}

/// Returns the IDs that the kubelet should take: the required ones, then the slots last used here, then the lowest. Slots
/// that other nodes have come last: the kubelet may know an older list.
pub(super) fn prefer(published: &PublishedInstance, preference: &Preference) -> Vec<String> {
    let name = &published.entry().key.name;
    let rank = |id: &String| {
        let slot = parse_slot_name(name, id).unwrap_or(u32::MAX);
        let last_used = published.recent.iter().position(|recent| *recent == slot);
        let taken = !is_held(published, slot) && *published.slots.state(slot) != SlotState::Free;
        (!preference.required.contains(id), taken, Reverse(last_used), slot)
    };
    let mut ids = preference.available.clone();
    ids.sort_by_key(rank);
    ids.truncate(preference.size);
    ids
}

/// Returns whether all of these IDs are claimed through the Instance's own resource here.
pub(super) fn holds(published: &PublishedInstance, ids: &[String]) -> bool {
    let held =
        |id: &String| parse_slot_name(&published.entry().key.name, id).is_some_and(|slot| is_held(published, slot));
    !ids.is_empty() && ids.iter().all(held)
}

fn is_held(published: &PublishedInstance, slot: u32) -> bool {
    matches!(published.slots.state(slot), SlotState::Held(claim) if claim.usage.vdev().is_none())
}
