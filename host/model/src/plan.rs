//! The changes that a round of discovery makes to the known devices.

use std::collections::{BTreeMap, BTreeSet};

use crate::device::{AbsenceMeaning, Device, DeviceSet};
use crate::instance::Online;
use crate::names::{HashInput, Identity};

/// A device with an Instance on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known<'a> {
    /// The device as last seen.
    pub device: &'a Device,
    /// The state of the device in the last conclusive round.
    pub online: Online,
    /// Set if it is not handed out now.
    pub withheld: bool,
}

/// The actions after a successful round. A failed round changes nothing (invariant 8).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Devices without an Instance, in the handler's order.
    pub publish: Vec<(Identity, Device)>,
    /// Known devices that changed.
    pub change: Vec<(Identity, Device)>,
    /// Known devices that returned.
    pub online: Vec<Identity>,
    /// Known devices that this round did not see.
    pub offline: Vec<Identity>,
    /// Known devices whose state became unknown.
    pub unknown: Vec<Identity>,
}

/// Compares a round's result with the known devices. A device is missing only if the round neither saw it nor kept its
/// origin nor withheld it.
pub fn plan(set: &DeviceSet, known: &BTreeMap<Identity, Known<'_>>, shared: bool, node: &str) -> Plan {
    let mut plan = Plan::default();
    let mut seen = BTreeSet::new();
    for device in &set.devices {
        let identity = HashInput::new(&device.id, shared, node).identity();
        if !seen.insert(identity.clone()) {
            continue; // two sources report one device: the first one's view counts
        }
        match known.get(&identity) {
            None => plan.publish.push((identity, device.clone())),
            Some(was) => {
                if was.online != Online::True {
                    plan.online.push(identity.clone());
                }
                if was.device != device {
                    plan.change.push((identity, device.clone()));
                }
            }
        }
    }
    for (identity, was) in known.iter().filter(|(identity, _)| !seen.contains(*identity)) {
        match online_when_absent(set, was) {
            Online::False if was.online != Online::False => plan.offline.push(identity.clone()),
            Online::Unknown if was.online == Online::True => plan.unknown.push(identity.clone()),
            _ => {}
        }
    }
    plan
}

/// Returns the state of a device that the set does not list. A device that was missing stays missing.
fn online_when_absent(set: &DeviceSet, was: &Known<'_>) -> Online {
    if set.kept.contains(&was.device.origin) || set.withheld.contains(&was.device.id) {
        return was.online;
    }
    // An Instance that this node has not found has no id: it may be any that the round did not tell about. What others found stays as
    // it is (rule 126), and what the journal has lost is withheld.
    if was.device.id.is_empty() && !(set.kept.is_empty() && set.withheld.is_empty()) {
        return if was.withheld { Online::Unknown } else { was.online };
    }
    match &set.absence {
        AbsenceMeaning::Missing => Online::False,
        AbsenceMeaning::Kept(missing) if missing.contains(&was.device.id) => Online::False,
        AbsenceMeaning::Kept(_) => was.online,
        AbsenceMeaning::Unknown => Online::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn device(id: &str, origin: &str) -> Device {
        Device { id: id.into(), origin: origin.into(), ..Device::default() }
    }

    fn identity(id: &str) -> Identity {
        HashInput::new(id, false, "node").identity()
    }

    fn set(ids: &[&str]) -> DeviceSet {
        DeviceSet { devices: ids.iter().map(|id| device(id, "")).collect(), ..DeviceSet::default() }
    }

    fn plan_for(set: &DeviceSet, known: &[(&Device, bool)]) -> Plan {
        let online = |online| if online { Online::True } else { Online::False };
        let known = known.iter().map(|(device, is)| {
            (identity(&device.id), Known { device, online: online(*is), withheld: device.id.is_empty() })
        });
        plan(set, &known.collect(), false, "node")
    }

    #[test]
    fn device_without_id_is_unknown_while_others_are_kept() {
        let unknown = device("", "");
        let known = [(&unknown, true)];
        assert_eq!(plan_for(&set(&["a"]), &known).offline.len(), 1);
        let kept = DeviceSet { kept: ["camera".to_owned()].into(), ..set(&["a"]) };
        let withheld = DeviceSet { withheld: ["b".to_owned()].into(), ..set(&["a"]) };
        for set in [kept, withheld] {
            let plan = plan_for(&set, &known);
            assert_eq!((plan.offline.len(), plan.unknown.len()), (0, 1));
            let of_others = Known { device: &unknown, online: Online::True, withheld: false };
            let plan = super::plan(&set, &[(identity(""), of_others)].into(), false, "node");
            assert_eq!((plan.offline.len(), plan.unknown.len()), (0, 0), "rule 126");
        }
    }

    #[test]
    fn new_devices_are_published_in_order() {
        let plan = plan_for(&set(&["b", "a"]), &[]);
        let ids: Vec<&str> = plan.publish.iter().map(|(_, device)| device.id.as_str()).collect();
        assert_eq!(ids, ["b", "a"]);
    }

    #[test]
    fn unchanged_world_needs_nothing() {
        let a = device("a", "");
        assert_eq!(plan_for(&set(&["a"]), &[(&a, true)]), Plan::default());
    }

    #[test]
    fn missing_device_goes_offline_once() {
        let a = device("a", "");
        assert_eq!(plan_for(&set(&[]), &[(&a, true)]).offline, [identity("a")]);
        assert_eq!(plan_for(&set(&[]), &[(&a, false)]), Plan::default());
    }

    #[test]
    fn device_that_comes_back_changed_is_both() {
        let was = device("a", "");
        let mut now = was.clone();
        now.properties.insert("K".into(), "v".into());
        let round = DeviceSet { devices: vec![now.clone()], ..DeviceSet::default() };
        let plan = plan_for(&round, &[(&was, false)]);
        assert_eq!(plan.online, [identity("a")]);
        assert_eq!(plan.change, [(identity("a"), now)]);
        assert!(plan.publish.is_empty());
    }

    #[test] // rule 35
    fn unreached_devices_stay() {
        let near = device("near", "opc.tcp://a");
        let far = device("far", "opc.tcp://b");
        let round = DeviceSet { kept: ["opc.tcp://b".to_owned()].into(), ..DeviceSet::default() };
        assert_eq!(plan_for(&round, &[(&near, true), (&far, true)]).offline, [identity("near")]);
    }

    #[test] // rule 35
    fn withheld_device_is_neither_published_nor_lost() {
        let a = device("a", "");
        let round = DeviceSet { withheld: ["a".to_owned(), "new".to_owned()].into(), ..DeviceSet::default() };
        assert_eq!(plan_for(&round, &[(&a, true)]), Plan::default());
    }

    #[test]
    fn one_device_reported_twice_is_one() {
        assert_eq!(plan_for(&set(&["a", "a"]), &[]).publish.len(), 1);
    }

    #[test] // rule 31
    fn set_decides_what_absence_means() {
        let a = device("a", "");
        let kept = |missing: &[&str]| AbsenceMeaning::Kept(missing.iter().map(|id| (*id).to_owned()).collect());
        let (none, offline, unknown) = (Plan::default(), [identity("a")], [identity("a")]);
        let offline = Plan { offline: offline.into(), ..Plan::default() };
        let unknown = Plan { unknown: unknown.into(), ..Plan::default() };
        use Online::{False, True, Unknown};
        for (absence, was, expected) in [
            (AbsenceMeaning::Missing, True, &offline),
            (AbsenceMeaning::Missing, Unknown, &offline),
            (AbsenceMeaning::Missing, False, &none),
            (kept(&[]), True, &none),
            (kept(&[]), Unknown, &none),
            (kept(&["a"]), True, &offline),
            (kept(&["a"]), Unknown, &offline),
            (kept(&["b"]), True, &none),
            (AbsenceMeaning::Unknown, True, &unknown),
            (AbsenceMeaning::Unknown, Unknown, &none),
            (AbsenceMeaning::Unknown, False, &none),
        ] {
            let set = DeviceSet { absence: absence.clone(), ..DeviceSet::default() };
            let known = [(identity("a"), Known { device: &a, online: was, withheld: false })].into();
            assert_eq!(&plan(&set, &known, false, "node"), expected, "{absence:?} {was:?}");
        }
    }

    #[test]
    fn unknown_device_is_online_when_it_is_seen() {
        let a = device("a", "");
        let known = [(identity("a"), Known { device: &a, online: Online::Unknown, withheld: false })].into();
        assert_eq!(plan(&set(&["a"]), &known, false, "node").online, [identity("a")]);
    }

    proptest! {
        #[test]
        fn after_a_plan_exactly_the_seen_devices_are_online(
            seen in prop::collection::btree_set("[a-e]", 0..5), before in prop::collection::btree_map("[a-e]", any::<bool>(), 0..5)
        ) {
            let ids: Vec<&str> = seen.iter().map(String::as_str).collect();
            let devices: Vec<(Device, bool)> = before.iter().map(|(id, online)| (device(id, ""), *online)).collect();
            let known: Vec<(&Device, bool)> = devices.iter().map(|(device, online)| (device, *online)).collect();
            let plan = plan_for(&set(&ids), &known);
            let mut online: BTreeSet<Identity> =
                before.iter().filter(|(_, online)| **online).map(|(id, _)| identity(id)).collect();
            online.extend(plan.publish.into_iter().map(|(identity, _)| identity));
            online.extend(plan.online);
            online.retain(|identity| !plan.offline.contains(identity));
            prop_assert_eq!(online, seen.iter().map(|id| identity(id)).collect::<BTreeSet<_>>());
        }
    }
}
