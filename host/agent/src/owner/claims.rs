//! Claims on the slots of one Instance through its own resource.

use std::collections::BTreeMap;

use akri_model::claim::Claim;
use akri_model::configuration::Configuration;
use akri_model::edits::{ContainerEdits, SlotRef, merge};
use akri_model::names::{Usage, parse_slot_name, slot_name};
use akri_model::reclaim::Sightings;
use akri_model::slots::{ClaimError, SlotTable};
use tracing::warn;

use super::Context;
use super::published::Published;
use crate::cluster::Swapped;
use crate::plugin::resource::{Preference, Refused};

/// An Instance before a claim, to go back to.
pub(super) struct Before {
    slots: SlotTable,
    claims: BTreeMap<u32, Claim>,
    recent: Vec<u32>,
}

/// Claims slots for containers, all or nothing. The claim is decided in memory, accepted by the API server if the device
/// is shared, and on disk, before the kubelet hears of it.
pub(super) async fn allocate(
    context: &Context,
    configuration: &Configuration,
    published: &mut Published,
    containers: &[Vec<String>],
) -> Result<(Vec<ContainerEdits>, Before), Refused> {
    let before = Before::of(published);
    let result = claim(context, configuration, published, containers, &before).await;
    match result {
        Ok(edits) => Ok((edits, before)),
        Err(refused) => {
            undo(context, published, before).await;
            Err(refused)
        }
    }
}

/// Goes back to how things were before a claim.
pub(super) async fn undo(context: &Context, published: &mut Published, before: Before) {
    let fresh: Vec<u32> = published.entry.claims.keys().filter(|s| !before.claims.contains_key(s)).copied().collect();
    let written = published.entry.claims != before.claims;
    published.slots = before.slots;
    published.entry.claims = before.claims;
    published.recent = before.recent;
    if published.entry.shared {
        give_back(context, published, &fresh).await;
    }
    if written && let Err(error) = context.journal.put(published.entry.clone()).await {
        warn!(instance = %published.entry.key, "{error}");
    }
}

async fn claim(
    context: &Context,
    configuration: &Configuration,
    published: &mut Published,
    containers: &[Vec<String>],
    before: &Before,
) -> Result<Vec<ContainerEdits>, Refused> {
    let requested = slots_of(published, containers)?;
    let mut answers = Vec::with_capacity(requested.len());
    for slots in &requested {
        answers.push(claim_slots(context, configuration, published, slots)?);
    }
    if published.entry.shared {
        let fresh = published.entry.claims.keys().filter(|slot| !before.claims.contains_key(slot));
        let fresh: Vec<u32> = fresh.copied().collect();
        take(context, published, &fresh).await?;
    }
    let journaled = context.journal.put(published.entry.clone()).await;
    journaled.map(|()| answers).map_err(|error| Refused::Internal(error.to_string()))
}

/// The slots each container asks for.
fn slots_of(published: &Published, containers: &[Vec<String>]) -> Result<Vec<Vec<u32>>, Refused> {
    let name = &published.entry.key.name;
    let slot = |id: &String| {
        parse_slot_name(name, id).ok_or_else(|| Refused::InvalidArgument(format!("'{id}' is no slot of '{name}'")))
    };
    if containers.is_empty() || containers.iter().any(Vec::is_empty) {
        return Err(Refused::InvalidArgument("a container asks for no device".to_owned()));
    }
    containers.iter().map(|ids| ids.iter().map(slot).collect()).collect()
}

/// Claims the slots of one container and merges what they give it.
fn claim_slots(
    context: &Context,
    configuration: &Configuration,
    published: &mut Published,
    slots: &[u32],
) -> Result<ContainerEdits, Refused> {
    let mut edits = BTreeMap::new();
    for slot in slots {
        let claim = claim_slot(context, configuration, published, *slot)?;
        edits.insert(slot_name(&published.entry.key.name, *slot), claim.edits);
    }
    merge(&edits).map_err(|conflict| Refused::FailedPrecondition(conflict.to_string()))
}

fn claim_slot(
    context: &Context,
    configuration: &Configuration,
    published: &mut Published,
    slot: u32,
) -> Result<Claim, Refused> {
    let usage = Usage::Instance { node: context.node.clone() };
    let entry = &published.entry;
    if !entry.online && published.slots.usage(slot) != &usage {
        return Err(Refused::Unavailable(format!("the device of '{}' is offline", entry.key.name)));
    }
    published.slots.claim(slot, usage.clone()).map_err(|error| match error {
        ClaimError::NoSuchSlot { .. } => Refused::NotFound(error.to_string()),
        ClaimError::InUse { .. } => Refused::Unavailable(error.to_string()),
    })?;
    let properties = configuration.broker_view(&entry.device.properties);
    let named = SlotRef { instance: &entry.key.name, hash: published.hash(), slot };
    let claim = Claim {
        usage: usage.to_string(),
        edits: ContainerEdits::of_slot(&entry.device, &properties, named, None),
        generation: context.claims.next_generation(),
        doubtful: false,
    };
    published.entry.claims.insert(slot, claim.clone());
    published.touch(slot);
    let sightings = Sightings::new(claim.generation, context.claims.epoch(), context.claims.now());
    published.sightings.insert(slot, sightings);
    Ok(claim)
}

/// Makes claims on a shared device true for all nodes (RULES 10).
async fn take(context: &Context, published: &mut Published, slots: &[u32]) -> Result<(), Refused> {
    for slot in slots {
        let name = slot_name(&published.entry.key.name, *slot);
        match context.cluster.swap_usage(&published.entry.key, &name, "", &context.node).await {
            Ok(Swapped::Done) => {}
            Ok(Swapped::Differs(usage)) if usage == context.node => {}
            Ok(Swapped::Differs(usage)) => {
                return Err(Refused::Unavailable(format!("slot {slot} is in use by '{usage}'")));
            }
            Err(error) => return Err(Refused::Unavailable(format!("the claim could not be published: {error}"))),
        }
    }
    Ok(())
}

/// Makes slots of a shared device free for all nodes again, where they are ours.
pub(super) async fn give_back(context: &Context, published: &Published, slots: &[u32]) {
    for slot in slots {
        let name = slot_name(&published.entry.key.name, *slot);
        if let Err(error) = context.cluster.swap_usage(&published.entry.key, &name, &context.node, "").await {
            warn!(instance = %published.entry.key, slot, "not released yet: {error}");
        }
    }
}

/// The ids the kubelet had better take: what it must, then the slots last used here, then the lowest.
pub(super) fn prefer(published: &Published, wish: &Preference) -> Vec<String> {
    let name = &published.entry.key.name;
    let rank = |id: &String| {
        let slot = parse_slot_name(name, id).unwrap_or(u32::MAX);
        let last_used = published.recent.iter().position(|recent| *recent == slot);
        (!wish.required.contains(id), std::cmp::Reverse(last_used), slot)
    };
    let mut ids = wish.available.clone();
    ids.sort_by_key(rank);
    ids.truncate(wish.size);
    ids
}

/// Whether all of these ids are claimed through the Instance's own resource here.
pub(super) fn holds(published: &Published, ids: &[String], node: &str) -> bool {
    let ours = Usage::Instance { node: node.to_owned() };
    let held = |id: &String| {
        parse_slot_name(&published.entry.key.name, id).is_some_and(|slot| *published.slots.usage(slot) == ours)
    };
    !ids.is_empty() && ids.iter().all(held)
}

impl Before {
    fn of(published: &Published) -> Self {
        Self {
            slots: published.slots.clone(),
            claims: published.entry.claims.clone(),
            recent: published.recent.clone(),
        }
    }
}
