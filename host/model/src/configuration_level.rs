//! The resource of a whole Configuration: virtual devices that stand for "some device of it" (rule 13, rule 14, rule 15, after the
//! published Akri design "configuration-level resources").
//!
//! A virtual device that is held stands for one slot of one Instance and keeps its number. A free virtual device stands for
//! none: which Instance it becomes is decided when it is allocated. There are as many free ones as Instances with a free
//! slot, so that a container can ask for as many devices as it can get distinct ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::slots::{Refusal, SlotState, SlotTable};

/// The Instances of a Configuration as this node sees them, by a key `K` that sorts by name.
#[derive(Debug, Clone)]
pub struct Pool<K> {
    instances: BTreeMap<K, Member>,
    /// Slots this node holds through the Configuration's resource, by virtual device.
    held: BTreeMap<String, Place<K>>,
}

#[derive(Debug, Clone)]
struct Member {
    free: BTreeSet<u32>,
    /// Slots that are held here and in use elsewhere (rule 28).
    contested: BTreeSet<u32>,
    online: bool,
}

/// A slot of an Instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<K> {
    /// The Instance's key.
    pub instance: K,
    /// The slot's number.
    pub slot: u32,
}

/// A virtual device of an Allocate, with its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment<K> {
    /// The virtual device.
    pub vdev: String,
    /// The slot it stands for now.
    pub place: Place<K>,
    /// The slot it stood for before and gave up.
    pub moved_from: Option<Place<K>>,
}

impl<K: Copy + Ord> Pool<K> {
    /// Returns the pool of the Instances that this node sees: key, slots, and whether the device can be handed out.
    pub fn new<'s>(instances: impl Iterator<Item = (K, &'s SlotTable, bool)>) -> Self {
        let mut pool = Self { instances: BTreeMap::new(), held: BTreeMap::new() };
        for (instance, slots, online) in instances {
            for (slot, claim) in slots.claims() {
                let Some(vdev) = claim.usage.vdev() else { continue };
                let place = pool.held.entry(vdev.to_owned()).or_insert(Place { instance, slot });
                // While a virtual device moves it has a slot that it leaves and one that is not confirmed: the confirmed one counts.
                if matches!(slots.state(slot), SlotState::Held(_)) {
                    *place = Place { instance, slot };
                }
            }
            let held = slots.claims().map(|(slot, _)| slot);
            let contested = held.filter(|slot| slots.other_user(*slot).is_some()).collect();
            pool.instances.insert(instance, Member { free: slots.free().collect(), contested, online });
        }
        pool
    }

    /// The virtual devices the kubelet is offered, in ascending order: those held here, and the smallest other numbers, one
    /// for each Instance that is online with a free slot. All are healthy: a held one may be in use by a running pod.
    pub fn ids(&self) -> Vec<String> {
        let free = self.instances.values().filter(|member| member.has_room()).count();
        let numbers = (0u32..).map(|number| number.to_string()).filter(|id| !self.held.contains_key(id));
        let mut ids: Vec<String> = numbers.take(free).chain(self.held.keys().cloned()).collect();
        ids.sort_by_key(|id| (id.parse::<u32>().unwrap_or(u32::MAX), id.clone()));
        ids
    }

    /// Returns the Instance and slot of a held virtual device.
    pub fn place(&self, vdev: &str) -> Option<&Place<K>> {
        self.held.get(vdev)
    }

    /// Gives one container distinct Instances for its virtual devices: held ones keep theirs where that is possible, then
    /// the others get those with most free slots. Changes nothing if it is denied.
    pub fn allocate(&mut self, vdevs: &[String]) -> Result<Vec<Assignment<K>>, Refusal> {
        let vdevs: BTreeSet<&String> = vdevs.iter().collect();
        let mut after = self.clone();
        let mut taken = BTreeSet::new();
        let mut assignments = Vec::new();
        let (held, new): (Vec<&String>, Vec<&String>) = vdevs.iter().partition(|id| self.held.contains_key(**id));
        let mut moved = Vec::new();
        for vdev in held {
            match after.keep(vdev, &mut taken) {
                Some(assignment) => assignments.push(assignment),
                None => moved.push(vdev),
            }
        }
        for vdev in moved.into_iter().chain(ascending(new)?) {
            let Some(assignment) = after.place_anew(vdev, &mut taken) else {
                return Err(too_few(vdevs.len(), assignments.len()));
            };
            assignments.push(assignment);
        }
        *self = after;
        Ok(assignments)
    }

    /// A held virtual device keeps its slot unless that is in use elsewhere, or its Instance offline or already in the container.
    fn keep(&self, vdev: &str, taken: &mut BTreeSet<K>) -> Option<Assignment<K>> {
        let place = *self.held.get(vdev)?;
        let member = self.instances.get(&place.instance)?;
        let kept = member.online && !member.contested.contains(&place.slot) && taken.insert(place.instance);
        kept.then(|| Assignment { vdev: vdev.to_owned(), place, moved_from: None })
    }

    /// A slot of the Instance with most free slots, of those not in the container yet; ties go by name.
    fn place_anew(&mut self, vdev: &str, taken: &mut BTreeSet<K>) -> Option<Assignment<K>> {
        let free = self.instances.iter_mut().filter(|(key, member)| member.has_room() && !taken.contains(*key));
        let (instance, member) = free.max_by_key(|(key, member)| (member.free.len(), Reverse(**key)))?;
        let place = Place { instance: *instance, slot: member.free.pop_first()? };
        taken.insert(place.instance);
        let moved_from = self.held.insert(vdev.to_owned(), place); // the slot that it leaves is free once it has been released
        Some(Assignment { vdev: vdev.to_owned(), place, moved_from })
    }

    /// The `size` virtual devices the kubelet had better take of the `available` ones: what it must, then free ones, which
    /// become the Instances with most free slots, then held ones of distinct Instances.
    pub fn preferred(&self, available: &[String], required: &[String], size: usize) -> Vec<String> {
        let mut instances = BTreeSet::new();
        let mut ranked: Vec<(bool, bool, bool, u32, &String)> = Vec::new();
        for id in available {
            let place = self.held.get(id);
            let repeated = place.is_some_and(|place| !instances.insert(place.instance));
            let number = id.parse().unwrap_or(u32::MAX);
            ranked.push((!required.contains(id), place.is_some(), repeated, number, id));
        }
        ranked.sort_unstable();
        ranked.into_iter().take(size).map(|(.., id)| id.clone()).collect()
    }
}

impl Member {
    fn has_room(&self) -> bool {
        self.online && !self.free.is_empty()
    }
}

/// Virtual devices that are not held have to be numbers, and are served in that order. A number that is not in the current
/// list is fine: the kubelet may know an older list.
fn ascending(vdevs: Vec<&String>) -> Result<impl Iterator<Item = &String>, Refusal> {
    let number = |vdev: &String| {
        let number: Option<u32> = vdev.parse().ok().filter(|number: &u32| number.to_string() == *vdev);
        number.ok_or_else(|| unknown(vdev))
    };
    let numbered: Result<BTreeMap<u32, &String>, Refusal> =
        vdevs.into_iter().map(|vdev| Ok((number(vdev)?, vdev))).collect();
    numbered.map(BTreeMap::into_values)
}

fn unknown(vdev: &str) -> Refusal {
    Refusal::Invalid(format!("'{vdev}' is no virtual device of this Configuration"))
}

fn too_few(wanted: usize, possible: usize) -> Refusal {
    Refusal::Unavailable(format!(
        "the container wants {wanted} different devices, and {possible} have a free slot or one that it holds"
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::instance::Version;
    use crate::names::Usage;
    use crate::reclaim::ClaimObservation;
    use crate::slots::{ApiView, Authority, Claim, PublishedSlots};

    const HERE: &str = "node-a";

    fn vdev(vdev: &str, node: &str) -> Usage {
        Usage::Configuration { vdev: vdev.into(), node: node.into() }
    }

    fn table(capacity: u32, used: &[(u32, Usage)]) -> SlotTable {
        let mut slots = SlotTable::new(HERE, Authority::Api, capacity);
        let published = PublishedSlots { slots: used.iter().cloned().collect(), ..PublishedSlots::default() };
        let claim = |usage| Claim { usage, generation: 0, observation: ClaimObservation::new(0, Duration::ZERO) };
        slots.observe(ApiView::Present(published), claim);
        slots
    }

    /// Cameras with their slots in use, as `camera` → `(slot, usage)`.
    fn pool(capacity: u32, cameras: &[(&'static str, &[(u32, Usage)])]) -> Pool<&'static str> {
        let tables: Vec<(&str, SlotTable)> =
            cameras.iter().map(|(name, used)| (*name, table(capacity, used))).collect();
        Pool::new(tables.iter().map(|(name, slots)| (*name, slots, true)))
    }

    fn ask(pool: &mut Pool<&str>, ids: &[&str]) -> Result<Vec<(String, String)>, Refusal> {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let assignments = pool.allocate(&ids)?;
        let mut places: Vec<_> = assignments.into_iter().map(|a| (a.vdev, a.place.instance.to_owned())).collect();
        places.sort();
        Ok(places)
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    // The worked examples of the published design: two cameras with two slots each.

    #[test] // rule 13, rule 15
    fn all_free_is_one_id_for_each_camera() {
        // The design's first listing shows four ids for this node; its own later text, which we follow, gives two.
        assert_eq!(pool(2, &[("cam1", &[]), ("cam2", &[])]).ids(), ["0", "1"]);
    }

    #[test] // rule 14, rule 28
    fn held_id_moves_if_another_node_has_its_slot() {
        let mut contested = table(1, &[(0, vdev("0", HERE))]);
        let slots = [(0, Usage::Instance { node: "node-b".to_owned() })].into();
        let shown = PublishedSlots { slots, version: Version("7".to_owned()), ..PublishedSlots::default() };
        contested.observe(ApiView::Present(shown), |_| unreachable!());
        let tables = [("cam1", contested), ("cam2", table(1, &[]))];
        let mut pool = Pool::new(tables.iter().map(|(name, slots)| (*name, slots, true)));
        assert_eq!(ask(&mut pool, &["0"]).unwrap(), pairs(&[("0", "cam2")]));
    }

    #[test] // rule 13, rule 15
    fn held_id_keeps_its_number_beside_the_free_ones() {
        assert_eq!(pool(2, &[("cam1", &[(0, vdev("4", HERE))]), ("cam2", &[])]).ids(), ["0", "1", "4"]);
    }

    #[test] // rule 15
    fn ids_beside_a_held_one_get_the_other_camera() {
        let start = pool(2, &[("cam1", &[]), ("cam2", &[(0, vdev("3", HERE))])]);
        assert_eq!(ask(&mut start.clone(), &["0", "3"]), Ok(pairs(&[("0", "cam1"), ("3", "cam2")])));
        let mut two_containers = start.clone();
        assert_eq!(ask(&mut two_containers, &["0", "1"]), Ok(pairs(&[("0", "cam1"), ("1", "cam2")])));
        assert_eq!(ask(&mut two_containers, &["3"]), Ok(pairs(&[("3", "cam2")])));
        let denied = ask(&mut start.clone(), &["0", "1", "3"]);
        assert_eq!(denied, Err(too_few(3, 2)));
    }

    #[test] // rule 15
    fn all_claimed_are_all_advertised_and_one_camera_is_not_two() {
        let cam1 = [(0, vdev("0", HERE)), (1, vdev("1", HERE))];
        let cam2 = [(0, vdev("2", HERE)), (1, vdev("3", HERE))];
        let mut full = pool(2, &[("cam1", &cam1), ("cam2", &cam2)]);
        assert_eq!(full.ids(), ["0", "1", "2", "3"]);
        assert!(ask(&mut full, &["0", "1"]).is_err(), "both are on one camera and there is no room on the other");
        assert_eq!(ask(&mut full, &["0", "2"]), Ok(pairs(&[("0", "cam1"), ("2", "cam2")])));
        let mut after_reclaim = pool(2, &[("cam1", &[]), ("cam2", &[(1, vdev("3", HERE))])]);
        assert_eq!(after_reclaim.ids(), ["0", "1", "3"]);
        assert!(ask(&mut after_reclaim, &["0", "1"]).is_ok());
    }

    #[test] // rule 15
    fn three_of_two_cameras_are_never_admitted() {
        let mut pool = pool(4, &[("cam1", &[]), ("cam2", &[])]);
        assert!(ask(&mut pool, &["0", "1", "2"]).is_err());
        assert_eq!(pool.ids(), ["0", "1"], "a denied request changes nothing");
    }

    #[test] // rule 14
    fn held_id_moves_only_if_it_has_to() {
        let twins = [(0, vdev("0", HERE)), (1, vdev("1", HERE))];
        let mut both = pool(2, &[("cam1", &twins), ("cam2", &[])]);
        let ids = ["0".to_owned(), "1".to_owned()];
        let moved = both.allocate(&ids).unwrap().pop().unwrap();
        let place = |instance, slot| Place { instance, slot };
        assert_eq!(moved.place, place("cam2", 0));
        assert_eq!(moved.moved_from, Some(place("cam1", 1)));
        assert_eq!(both.ids(), ["0", "1", "2"], "the slot it left is free once it has been released");
    }

    #[test] // rule 13, rule 14
    fn offline_camera_is_neither_counted_nor_given() {
        let (cam1, cam2) = (table(2, &[(0, vdev("0", HERE))]), table(2, &[]));
        let mut pool = Pool::new([("cam1", &cam1, false), ("cam2", &cam2, true)].into_iter());
        assert_eq!(pool.ids(), ["0", "1"], "what is held stays, for the pod that may run");
        assert_eq!(ask(&mut pool, &["0"]), Ok(pairs(&[("0", "cam2")])), "a new user gets one that works");
    }

    #[test] // rule 14
    fn camera_with_most_free_slots_comes_first() {
        let busy = [(0, vdev("0", "node-b"))];
        let mut pool = pool(2, &[("cam1", &busy), ("cam2", &[]), ("cam3", &[])]);
        assert_eq!(ask(&mut pool, &["0"]), Ok(pairs(&[("0", "cam2")])));
        assert_eq!(ask(&mut pool, &["1"]), Ok(pairs(&[("1", "cam3")])));
    }

    #[test] // rule 14
    fn id_of_an_older_list_is_served_and_nonsense_is_not() {
        let mut cameras = pool(1, &[("cam1", &[])]);
        assert_eq!(ask(&mut cameras, &["17"]), Ok(pairs(&[("17", "cam1")])));
        for id in ["", "x", "01", "-1", "+1", "99999999999"] {
            assert_eq!(ask(&mut cameras, &[id]), Err(unknown(id)));
        }
    }

    #[test] // rule 13
    fn akris_longer_ids_are_kept_as_they_are() {
        let mut cameras = pool(2, &[("cam1", &[(0, vdev("akri-onvif-0", HERE))])]);
        assert_eq!(cameras.ids(), ["0", "akri-onvif-0"]);
        assert_eq!(ask(&mut cameras, &["akri-onvif-0"]), Ok(pairs(&[("akri-onvif-0", "cam1")])));
    }

    #[test] // rule 14
    fn kubelet_is_steered_to_distinct_cameras() {
        let twins = [(0, vdev("7", HERE)), (1, vdev("8", HERE))];
        let pool = pool(2, &[("cam1", &twins), ("cam2", &[(0, vdev("9", HERE))])]);
        let available = ["7", "8", "9", "0"].map(str::to_owned);
        assert_eq!(pool.preferred(&available, &[], 3), ["0", "7", "9"]);
        assert_eq!(pool.preferred(&available, &["8".to_owned()], 2), ["8", "0"]);
    }

    proptest! {
        #[test] // rule 14
        fn container_gets_distinct_cameras_or_is_denied(
            used in prop::collection::vec((0usize..3, 0u32..2, 0u32..5, any::<bool>()), 0..6),
            online in prop::collection::vec(any::<bool>(), 3),
            wanted in prop::collection::btree_set(0u32..6, 1..4),
        ) {
            let names = ["cam1", "cam2", "cam3"];
            let mut used_slots = vec![BTreeMap::new(); 3];
            let mut held = BTreeSet::new();
            for (camera, slot, id, here) in used {
                if used_slots[camera].contains_key(&slot) || (here && !held.insert(id)) { continue; }
                let node = if here { HERE } else { "node-b" };
                used_slots[camera].insert(slot, vdev(&id.to_string(), node));
            }
            let tables: Vec<SlotTable> =
                used_slots.into_iter().map(|used| table(2, &used.into_iter().collect::<Vec<_>>())).collect();
            let members = names.iter().zip(&tables).zip(&online).map(|((name, table), online)| (*name, table, *online));
            let mut pool = Pool::new(members);
            let before = pool.clone();
            let ids: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            // A camera is possible if it is online and has room, or is held by one of the ids.
            let possible = names.iter().filter(|name| {
                let member = &before.instances[*name];
                let ours = ids.iter().any(|id| before.place(id).is_some_and(|place| place.instance == **name));
                member.online && (member.has_room() || ours)
            }).count();
            match pool.allocate(&ids) {
                Ok(assignments) => {
                    let places: BTreeSet<&str> = assignments.iter().map(|a| a.place.instance).collect();
                    prop_assert_eq!(places.len(), ids.len());
                    for id in before.held.keys().filter(|id| !ids.contains(id)) {
                        prop_assert_eq!(before.place(id), pool.place(id), "others keep theirs");
                    }
                }
                Err(_) => {
                    prop_assert!(possible < ids.len());
                    prop_assert_eq!(pool.ids(), before.ids());
                }
            }
        }
    }
}
