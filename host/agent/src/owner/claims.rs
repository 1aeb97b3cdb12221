//! Claims: what an Allocate of either kind of resource does to the slots of Instances.

use std::collections::{BTreeMap, BTreeSet};

use akri_model::claim::Claim;
use akri_model::configuration::Configuration;
use akri_model::edits::{ContainerEdits, merge};
use akri_model::names::{Identity, Usage, parse_slot_name, slot_name};
use akri_model::reclaim::Sightings;
use akri_model::slots::{ClaimError, SlotTable};
use tracing::warn;

use super::Context;
use super::published::Published;
use crate::cluster::Swapped;
use crate::plugin::resource::{Preference, Refused};

/// Who has which slots of the Configuration's Instances.
pub(super) type AllPublished = BTreeMap<Identity, Published>;

/// A slot that one container is to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) identity: Identity,
    pub(super) slot: u32,
    pub(super) usage: Usage,
    /// A slot the same virtual device gives up for it.
    pub(super) moved_from: Option<(Identity, u32)>,
}

/// Instances before a claim, to go back to.
#[derive(Default)]
pub(super) struct Undo {
    before: BTreeMap<Identity, Before>,
}

struct Before {
    slots: SlotTable,
    claims: BTreeMap<u32, Claim>,
    sightings: BTreeMap<u32, Sightings>,
    recent: Vec<u32>,
}

impl Undo {
    /// The Instances a claim touched.
    pub(super) fn touched(&self) -> impl Iterator<Item = &Identity> {
        self.before.keys()
    }
}

/// Gives containers the slots they are to get, all or nothing. A claim is decided in memory, accepted by the API server if
/// the device is shared, and on disk, before the kubelet hears of it.
pub(super) async fn claim(
    context: &Context,
    configuration: &Configuration,
    all: &mut AllPublished,
    containers: &[Vec<Wish>],
) -> Result<(Vec<ContainerEdits>, Undo), Refused> {
    let mut undo = Undo::default();
    let answers = decide(context, configuration, all, containers, &mut undo);
    let done = match answers {
        Ok(answers) => settle(context, all, &undo).await.map(|()| answers),
        Err(refused) => Err(refused),
    };
    match done {
        Ok(answers) => Ok((answers, undo)),
        Err(refused) => {
            go_back(context, all, undo).await;
            Err(refused)
        }
    }
}

/// Goes back to how things were before a claim.
pub(super) async fn go_back(context: &Context, all: &mut AllPublished, undo: Undo) {
    for (identity, before) in undo.before {
        let Some(published) = all.get_mut(&identity) else { continue };
        let claimed = std::mem::replace(&mut published.entry.claims, before.claims);
        published.slots = before.slots;
        published.sightings = before.sightings;
        published.recent = before.recent;
        if published.entry.shared {
            give_back(context, published, claimed.clone()).await;
        }
        if claimed != published.entry.claims
            && let Err(error) = context.journal.put(published.entry.clone()).await
        {
            warn!(instance = %published.entry.key, "{error}");
        }
    }
}

/// Makes the slots of a shared device what they were before claims that came to nothing. Where the API does not answer, it
/// has to be asked later.
async fn give_back(context: &Context, published: &mut Published, claimed: BTreeMap<u32, Claim>) {
    let before = published.entry.claims.clone();
    let slots: BTreeSet<u32> = before.keys().chain(claimed.keys()).copied().collect();
    for slot in slots {
        let (from, to) = (usage_of(&claimed, slot), usage_of(&before, slot));
        if from == to || swap(context, published, slot, &from, &to).await.is_ok() {
            continue;
        }
        warn!(instance = %published.entry.key, slot, "nobody knows who the slot belongs to now");
        match claimed.get(&slot) {
            Some(claim) => published.doubt(slot, claim.clone()),
            None => published.agreed = false, // a slot that was given up, for another one
        }
    }
}

fn usage_of(claims: &BTreeMap<u32, Claim>, slot: u32) -> String {
    claims.get(&slot).map(|claim| claim.usage.clone()).unwrap_or_default()
}

/// Decides in memory.
fn decide(
    context: &Context,
    configuration: &Configuration,
    all: &mut AllPublished,
    containers: &[Vec<Wish>],
    undo: &mut Undo,
) -> Result<Vec<ContainerEdits>, Refused> {
    let container = |wishes: &Vec<Wish>| {
        let mut edits = BTreeMap::new();
        for wish in wishes {
            if let Some((identity, slot)) = &wish.moved_from {
                leave(all, identity, *slot, undo);
            }
            let published = touch(all, &wish.identity, undo)?;
            let claim = claim_slot(context, configuration, published, wish)?;
            edits.insert(slot_name(&published.entry.key.name, wish.slot), claim.edits);
        }
        merge(&edits).map_err(|conflict| Refused::FailedPrecondition(conflict.to_string()))
    };
    containers.iter().map(container).collect()
}

/// An Instance that is about to change; how it was is remembered.
fn touch<'a>(all: &'a mut AllPublished, identity: &Identity, undo: &mut Undo) -> Result<&'a mut Published, Refused> {
    let published = all.get_mut(identity).ok_or_else(|| Refused::NotFound("the device is gone".to_owned()))?;
    undo.before.entry(identity.clone()).or_insert_with(|| Before {
        slots: published.slots.clone(),
        claims: published.entry.claims.clone(),
        sightings: published.sightings.clone(),
        recent: published.recent.clone(),
    });
    Ok(published)
}

fn leave(all: &mut AllPublished, identity: &Identity, slot: u32, undo: &mut Undo) {
    let Ok(published) = touch(all, identity, undo) else { return };
    published.forget_claim(slot);
}

fn claim_slot(
    context: &Context,
    configuration: &Configuration,
    published: &mut Published,
    wish: &Wish,
) -> Result<Claim, Refused> {
    let entry = &published.entry;
    let held = *published.slots.usage(wish.slot) == wish.usage && !entry.withheld;
    if let Some(why) = published.refusal().filter(|_| !held) {
        return Err(Refused::Unavailable(format!("the device of '{}' {why}", entry.key.name)));
    }
    published.slots.claim(wish.slot, wish.usage.clone()).map_err(|error| match error {
        ClaimError::NoSuchSlot { .. } => Refused::NotFound(error.to_string()),
        ClaimError::InUse { .. } => Refused::Unavailable(error.to_string()),
    })?;
    let claim = published.new_claim(configuration, wish.slot, &wish.usage, context.claims.next_generation());
    published.hold(wish.slot, claim.clone(), &context.claims);
    Ok(claim)
}

/// Makes what was decided true: for other nodes where they see the device, and for this node after a crash.
async fn settle(context: &Context, all: &AllPublished, undo: &Undo) -> Result<(), Refused> {
    for (identity, before) in &undo.before {
        let Some(published) = all.get(identity) else { continue };
        if published.entry.shared {
            swap_all(context, published, &before.claims).await?;
        }
        let journaled = context.journal.put(published.entry.clone()).await;
        journaled.map_err(|error| Refused::Internal(error.to_string()))?;
    }
    Ok(())
}

/// Makes this node's claims on a shared device true for all nodes, where they differ from what they were (rule 10).
pub(super) async fn swap_all(
    context: &Context,
    published: &Published,
    before: &BTreeMap<u32, Claim>,
) -> Result<(), Refused> {
    let now = &published.entry.claims;
    let slots: BTreeSet<u32> = before.keys().chain(now.keys()).copied().collect();
    for slot in slots {
        let (from, to) = (usage_of(before, slot), usage_of(now, slot));
        if from != to {
            swap(context, published, slot, &from, &to).await?;
        }
    }
    Ok(())
}

async fn swap(context: &Context, published: &Published, slot: u32, from: &str, to: &str) -> Result<(), Refused> {
    let name = slot_name(&published.entry.key.name, slot);
    match context.cluster.swap_usage(&published.entry.key, &name, from, to).await {
        Ok(Swapped::Done) => Ok(()),
        Ok(Swapped::Differs(usage)) if usage == to => Ok(()),
        // What we give back and no longer have is given back.
        Ok(Swapped::Differs(_)) if to.is_empty() => Ok(()),
        Ok(Swapped::Differs(usage)) => Err(Refused::Unavailable(format!("slot {slot} is in use by '{usage}'"))),
        Err(error) => Err(Refused::Unavailable(format!("the claim could not be published: {error}"))),
    }
}

/// The slots a request for an Instance's own resource names.
pub(super) fn instance_wishes(
    published: &Published,
    containers: &[Vec<String>],
    node: &str,
) -> Result<Vec<Vec<Wish>>, Refused> {
    let name = &published.entry.key.name;
    let wish = |id: &String| {
        let slot = parse_slot_name(name, id);
        let slot = slot.ok_or_else(|| Refused::InvalidArgument(format!("'{id}' is no slot of '{name}'")))?;
        let usage = Usage::Instance { node: node.to_owned() };
        Ok(Wish { identity: published.entry.identity.clone(), slot, usage, moved_from: None })
    };
    containers.iter().map(|ids| ids.iter().map(wish).collect()).collect()
}

/// The ids the kubelet had better take: what it must, then the slots last used here, then the lowest. Slots that somebody
/// else has come last: the kubelet may not have heard of it yet.
pub(super) fn prefer(published: &Published, wish: &Preference, node: &str) -> Vec<String> {
    let name = &published.entry.key.name;
    let rank = |id: &String| {
        let slot = parse_slot_name(name, id).unwrap_or(u32::MAX);
        let last_used = published.recent.iter().position(|recent| *recent == slot);
        let usage = published.slots.usage(slot);
        let taken = !usage.is_free() && *usage != Usage::Instance { node: node.to_owned() };
        (!wish.required.contains(id), taken, std::cmp::Reverse(last_used), slot)
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
