//! The journal's record of a device and its claims, which survives `kill -9` (rule 28).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::edits::ContainerEdits;
use crate::instance::Online;
use crate::names::{Identity, Key, Usage};
use crate::reclaim::{ClaimObservation, ObservedUsers};
use crate::slots::{Claim, OtherUsage, SlotState, SlotTable};

/// One Instance in this node's journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The Instance.
    pub key: Key,
    /// The Instance's UID.
    pub uid: String,
    /// The identity of the device.
    pub identity: Identity,
    /// Its Configuration's name.
    pub configuration: String,
    /// Its Configuration's UID.
    pub configuration_uid: String,
    /// True if several nodes see it.
    pub shared: bool,
    /// The number of slots.
    pub capacity: u32,
    /// The device as last seen by this node. A claim hands it out (rule 17).
    pub device: Device,
    /// The state of the device in the last conclusive round.
    pub online: Online,
    /// Its device must not be handed out now: the last round withheld it, or nothing is known of it since the journal was
    /// lost. Containers that use it keep it.
    #[serde(default)]
    pub withheld: bool,
    /// Claims of this node by slot.
    pub claims: Claims,
    /// The usage by other nodes when it was last seen (rule 103).
    #[serde(default, skip_serializing_if = "has_no_slots")]
    pub others: OtherUsage,
}

impl Entry {
    /// Its Configuration.
    pub fn configuration_key(&self) -> Key {
        Key::new(self.key.namespace.clone(), self.configuration.clone())
    }
}

fn has_no_slots(others: &OtherUsage) -> bool {
    others.slots.is_empty()
}

/// The claims of this node on one Instance, by slot.
pub type Claims = BTreeMap<u32, JournaledClaim>;

/// A slot that a container of this node uses, may use, or that is being given back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "StoredClaim")]
pub struct JournaledClaim {
    /// The usage of the slot.
    pub usage: Usage,
    /// The edits that the container got. It keeps them for as long as it runs (rule 18).
    pub edits: ContainerEdits,
    /// See [`Claim::generation`].
    pub generation: u64,
    /// The users that were observed (rule 47, rule 102).
    #[serde(flatten)]
    pub users: ObservedUsers,
    /// Its state.
    pub state: ClaimState,
}

/// The state of a claim in the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClaimState {
    /// It was written before the API server confirmed it. The kubelet may have been told that it succeeded.
    Pending,
    /// It is confirmed.
    #[default]
    Held,
    /// It is being given back.
    Releasing,
}

/// A claim as any version has written it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredClaim {
    usage: Usage,
    edits: ContainerEdits,
    generation: u64,
    #[serde(flatten)]
    users: ObservedUsers,
    #[serde(default)]
    state: ClaimState,
    /// Version 0.1: the API server had not answered, and the kubelet was told that the claim failed.
    #[serde(default, rename = "doubtful")]
    unconfirmed: bool,
}

impl From<StoredClaim> for JournaledClaim {
    fn from(stored: StoredClaim) -> Self {
        let StoredClaim { usage, edits, generation, users, state, unconfirmed } = stored;
        let state = if unconfirmed { ClaimState::Releasing } else { state };
        Self { usage, edits, generation, users, state }
    }
}

/// Returns what the journal has to hold of a table. `edits` has what containers got.
pub fn journaled(table: &SlotTable, edits: &BTreeMap<u32, ContainerEdits>) -> Claims {
    let edits = |slot| edits.get(&slot).cloned().unwrap_or_default();
    let entry = |slot, claim: &Claim, state| {
        let Claim { usage, generation, observation } = claim.clone();
        JournaledClaim { usage, edits: edits(slot), generation, users: observation.users().clone(), state }
    };
    let claim = |(slot, state): (u32, &SlotState)| match state {
        SlotState::Free | SlotState::Elsewhere(_) => None,
        SlotState::Claiming(claim) => Some((slot, entry(slot, claim, ClaimState::Pending))),
        SlotState::Held(claim) => Some((slot, entry(slot, claim, ClaimState::Held))),
        SlotState::Releasing(usage) => {
            let (edits, users, state) = (ContainerEdits::default(), ObservedUsers::default(), ClaimState::Releasing);
            Some((slot, JournaledClaim { usage: usage.clone(), edits, generation: 0, users, state }))
        }
    };
    table.taken().filter_map(claim).collect()
}

/// Takes claims from the journal into a table. `epoch` and `now` are the kubelet epoch and the time at which observing them
/// starts anew.
pub fn restore(table: &mut SlotTable, claims: &Claims, epoch: u64, now: Duration) {
    for (slot, claim) in claims {
        let observation = ClaimObservation::restored(claim.users.clone(), epoch, now);
        let restored = Claim { usage: claim.usage.clone(), generation: claim.generation, observation };
        table.restore(
            *slot,
            match claim.state {
                ClaimState::Pending => SlotState::Claiming(restored),
                ClaimState::Held => SlotState::Held(restored),
                ClaimState::Releasing => SlotState::Releasing(restored.usage),
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Authority;

    #[test]
    fn claims_of_version_0_1_are_read() {
        let text = r#"{"usage":"C:0:a","edits":{},"generation":3,"doubtful":true}"#;
        let claim: JournaledClaim = serde_json::from_str(text).unwrap();
        assert_eq!((claim.state, claim.users.seen), (ClaimState::Releasing, false));
        let held: JournaledClaim = serde_json::from_str(r#"{"usage":"a","edits":{},"generation":3}"#).unwrap();
        assert_eq!(held.state, ClaimState::Held);
        let unknown = serde_json::from_str::<JournaledClaim>(r#"{"usage":"C:0","edits":{},"generation":3}"#);
        assert!(unknown.is_err(), "a usage that cannot be read is an error, not a free slot");
    }

    #[test]
    fn tables_survive_the_journal() {
        let usage = |node: &str| Usage::Instance { node: node.into() };
        let claim = |usage| Claim { usage, generation: 7, observation: ClaimObservation::new(1, Duration::ZERO) };
        let mut table = SlotTable::new("a", Authority::Api, 3);
        table.restore(0, SlotState::Held(claim(usage("a"))));
        table.restore(1, SlotState::Claiming(claim(usage("a"))));
        table.restore(2, SlotState::Releasing(usage("a")));
        let mut again = SlotTable::new("a", Authority::Api, 3);
        restore(&mut again, &journaled(&table, &BTreeMap::new()), 1, Duration::ZERO);
        assert_eq!(again, table);
    }
}
