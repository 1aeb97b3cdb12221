//! Who holds which slot of an Instance (rules 9-12).

use std::collections::BTreeMap;

use crate::names::{Usage, parse_slot_name, slot_name};

/// The slots of one Instance over all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotTable {
    capacity: u32,
    /// Only slots in use. A slot at or above the capacity is one that was in use when the capacity was lowered.
    used: BTreeMap<u32, Usage>,
}

/// Why a slot could not be claimed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// No slot of that number.
    #[error("slot {slot} does not exist: the capacity is {capacity}")]
    NoSuchSlot {
        /// The slot asked for.
        slot: u32,
        /// How many slots there are.
        capacity: u32,
    },
    /// Somebody else has it.
    #[error("slot {slot} is in use by '{usage}'")]
    InUse {
        /// The slot asked for.
        slot: u32,
        /// Its usage string.
        usage: Usage,
    },
}

impl SlotTable {
    /// A table of free slots.
    pub fn new(capacity: u32) -> Self {
        Self { capacity, used: BTreeMap::new() }
    }

    /// Reads `deviceUsage`. Entries that are no slot of this Instance or no usage come back too, to be warned of: they
    /// can't be honoured, and they must not stop the rest.
    pub fn parse(instance: &str, capacity: u32, usage: &BTreeMap<String, String>) -> (Self, Vec<String>) {
        let mut table = Self::new(capacity);
        let mut unreadable = Vec::new();
        for (name, text) in usage {
            match (parse_slot_name(instance, name), text.parse::<Usage>()) {
                (Some(_), Ok(Usage::Free)) => {}
                (Some(slot), Ok(usage)) => {
                    table.used.insert(slot, usage);
                }
                _ => unreadable.push(format!("{name}: {text}")),
            }
        }
        (table, unreadable)
    }

    /// `deviceUsage`: every slot below the capacity, and those in use above it (rule 9).
    pub fn to_usage(&self, instance: &str) -> BTreeMap<String, String> {
        let free = (0..self.capacity).map(|slot| (slot_name(instance, slot), String::new()));
        let used = self.used.iter().map(|(slot, usage)| (slot_name(instance, *slot), usage.to_string()));
        free.chain(used).collect()
    }

    /// Slots for new claims.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Who has the slot.
    pub fn usage(&self, slot: u32) -> &Usage {
        self.used.get(&slot).unwrap_or(&Usage::Free)
    }

    /// Slots in use and by whom.
    pub fn used(&self) -> impl Iterator<Item = (u32, &Usage)> {
        self.used.iter().map(|(slot, usage)| (*slot, usage))
    }

    /// Free slots below the capacity, lowest first.
    pub fn free(&self) -> impl Iterator<Item = u32> {
        (0..self.capacity).filter(|slot| !self.used.contains_key(slot))
    }

    /// Takes a slot. Claiming what one already has is fine: the kubelet offers a slot again after restarts.
    pub fn claim(&mut self, slot: u32, usage: Usage) -> Result<(), ClaimError> {
        match self.used.get(&slot) {
            Some(holder) if *holder == usage => Ok(()),
            Some(holder) => Err(ClaimError::InUse { slot, usage: holder.clone() }),
            None if slot >= self.capacity => Err(ClaimError::NoSuchSlot { slot, capacity: self.capacity }),
            None => {
                self.used.insert(slot, usage);
                Ok(())
            }
        }
    }

    /// Gives a slot back if it is used like that; says whether it was.
    pub fn release(&mut self, slot: u32, usage: &Usage) -> bool {
        let held = self.used.get(&slot) == Some(usage);
        if held {
            self.used.remove(&slot);
        }
        held
    }

    /// Changes the capacity. A slot in use above a lowered capacity stays until it is released.
    pub fn resize(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    /// What the kubelet of `node` is told of the Instance's own resource: each slot and whether it is healthy
    /// (rule 12). A slot held here stays healthy even when the device is offline, or its pod could not be admitted
    /// again after a kubelet restart.
    pub fn instance_level(&self, node: &str, online: bool) -> Vec<(u32, bool)> {
        let free = self.free().map(|slot| (slot, online));
        let used = self.used().map(|(slot, usage)| (slot, is_instance_claim(usage, node)));
        let mut list: Vec<(u32, bool)> = free.chain(used).collect();
        list.sort_unstable();
        list
    }
}

fn is_instance_claim(usage: &Usage, of: &str) -> bool {
    matches!(usage, Usage::Instance { node } if node == of)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn by(node: &str) -> Usage {
        Usage::Instance { node: node.into() }
    }

    fn by_configuration(node: &str) -> Usage {
        Usage::Configuration { vdev: "0".into(), node: node.into() }
    }

    #[test]
    fn every_key_below_the_capacity_always_exists() {
        let mut table = SlotTable::new(3);
        table.claim(1, by("a")).unwrap();
        let usage = table.to_usage("cam-1");
        let expected = [("cam-1-0", ""), ("cam-1-1", "a"), ("cam-1-2", "")];
        assert_eq!(usage, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    }

    #[test]
    fn unreadable_usage_is_reported_and_the_rest_kept() {
        let usage = [("cam-1-0", "a"), ("cam-2-0", "a"), ("cam-1-1", "C:0"), ("cam-1-2", "")];
        let (table, unreadable) =
            SlotTable::parse("cam-1", 4, &usage.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert_eq!(table.used().collect::<Vec<_>>(), [(0, &by("a"))]);
        assert_eq!(unreadable, ["cam-1-1: C:0", "cam-2-0: a"]);
    }

    #[test]
    fn a_taken_slot_is_refused_and_ones_own_is_not() {
        let mut table = SlotTable::new(1);
        table.claim(0, by("a")).unwrap();
        assert_eq!(table.claim(0, by("a")), Ok(()));
        assert_eq!(table.claim(0, by("b")), Err(ClaimError::InUse { slot: 0, usage: by("a") }));
        assert_eq!(table.claim(0, by_configuration("a")), Err(ClaimError::InUse { slot: 0, usage: by("a") }));
        assert_eq!(table.claim(1, by("a")), Err(ClaimError::NoSuchSlot { slot: 1, capacity: 1 }));
    }

    #[test]
    fn health_of_instance_level_slots() {
        let mut table = SlotTable::new(5);
        table.claim(0, by("here")).unwrap();
        table.claim(1, by("there")).unwrap();
        table.claim(2, by_configuration("here")).unwrap();
        table.claim(4, by("here")).unwrap();
        table.resize(4);
        for (online, expected) in [
            (true, [(0, true), (1, false), (2, false), (3, true), (4, true)]),
            (false, [(0, true), (1, false), (2, false), (3, false), (4, true)]),
        ] {
            assert_eq!(table.instance_level("here", online), expected, "online: {online}");
        }
    }

    #[test]
    fn a_slot_above_a_lowered_capacity_stays_until_released() {
        let mut table = SlotTable::new(2);
        table.claim(1, by("a")).unwrap();
        table.resize(1);
        assert_eq!(table.to_usage("i").len(), 2);
        assert!(table.release(1, &by("a")));
        assert_eq!(table.instance_level("a", true), [(0, true)]);
        assert!(table.claim(1, by("a")).is_err());
    }

    proptest! {
        #[test]
        fn claim_then_release_is_identity(capacity in 1u32..8, before in prop::collection::vec(0u32..8, 0..6), slot in 0u32..8) {
            let mut table = SlotTable::new(capacity);
            for taken in before { let _ = table.claim(taken, by("other")); }
            let start = table.clone();
            if table.claim(slot, by("me")).is_ok() {
                prop_assert!(table.release(slot, &by("me")));
            }
            prop_assert_eq!(table, start);
        }

        #[test]
        fn a_slot_never_has_two_owners(claims in prop::collection::vec((0u32..4, "[ab]"), 0..20)) {
            let mut table = SlotTable::new(4);
            let mut owner: BTreeMap<u32, String> = BTreeMap::new();
            for (slot, node) in claims {
                if table.claim(slot, by(&node)).is_ok() {
                    prop_assert_eq!(owner.entry(slot).or_insert_with(|| node.clone()), &node);
                }
            }
        }

        #[test]
        fn usage_survives_writing_and_reading(capacity in 0u32..6, claims in prop::collection::vec((0u32..6, any::<bool>()), 0..6)) {
            let mut table = SlotTable::new(capacity);
            for (slot, direct) in claims {
                let _ = table.claim(slot, if direct { by("a") } else { by_configuration("a") });
            }
            let (read, unreadable) = SlotTable::parse("i", capacity, &table.to_usage("i"));
            prop_assert_eq!(read, table);
            prop_assert!(unreadable.is_empty());
        }
    }
}
