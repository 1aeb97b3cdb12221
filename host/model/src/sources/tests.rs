use proptest::prelude::*;

use super::*;
use crate::device::Device;

const C: DiscoverySource = DiscoverySource::Component;

fn remote(path: &str) -> DiscoverySource {
    DiscoverySource::Remote(Address::Unix(path.to_owned()))
}

fn set(ids: &[&str]) -> DeviceSet {
    let device = |id: &&str| Device { id: (*id).to_owned(), ..Device::default() };
    DeviceSet { devices: ids.iter().map(device).collect(), ..DeviceSet::default() }
}

fn expecting(sources: &[&DiscoverySource]) -> Sources {
    let mut all = Sources::default();
    sources.iter().for_each(|source| all.add((*source).clone(), None, true));
    all
}

fn unavailable(what: &str) -> RoundError {
    RoundError::Unavailable(what.to_owned())
}

fn union(sources: &mut Sources) -> DeviceSet {
    match sources.merge(10) {
        MergedResult::Found(found) => found.set,
        other => panic!("{other:?}"),
    }
}

/// Ids of the union, and what it means not to be there.
fn found(sources: &mut Sources) -> (Vec<String>, AbsenceMeaning) {
    let set = union(sources);
    (set.devices.into_iter().map(|device| device.id).collect(), set.absence)
}

fn kept(missing: &[&str]) -> AbsenceMeaning {
    AbsenceMeaning::Kept(ids(missing).into_iter().collect())
}

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[test]
fn of_a_device_that_two_report_the_first_view_counts() {
    let (a, b) = (remote("/a"), remote("/b"));
    let mut sources = expecting(&[&b, &a, &C]);
    for (source, value) in [(&b, "b"), (&a, "a"), (&C, "c")] {
        let mut set = set(&["d", value]);
        set.devices[0].properties.insert("FROM".to_owned(), value.to_owned());
        sources.record_devices(source, set);
    }
    let set = union(&mut sources);
    assert_eq!(set.devices[0].properties["FROM"], "c", "the component, then by address");
    assert_eq!(set.devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>(), ["d", "c", "a", "b"]);
}

#[test]
fn nothing_is_missing_before_all_who_may_know_it_have_spoken() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    assert_eq!(sources.merge(10), MergedResult::NoReport);
    sources.record_devices(&C, set(&["c1", "c2"]));
    assert_eq!(found(&mut sources), (ids(&["c1", "c2"]), kept(&[])));
    sources.record_devices(&C, set(&["c1"]));
    assert_eq!(found(&mut sources), (ids(&["c1"]), kept(&["c2"])), "it spoke of this one itself");
    assert_eq!(found(&mut sources).1, kept(&[]), "told once");
    sources.record_failure(&a, unavailable("refused"));
    assert_eq!(found(&mut sources).1, kept(&[]), "a failure is no word");
    sources.record_devices(&a, set(&[]));
    assert_eq!(found(&mut sources), (ids(&["c1"]), AbsenceMeaning::Missing));
}

#[test]
fn who_comes_later_only_adds() {
    let a = remote("/a");
    let mut sources = expecting(&[&C]);
    sources.record_devices(&C, set(&["c"]));
    sources.add(a.clone(), Some(false), false);
    assert_eq!(found(&mut sources), (ids(&["c"]), AbsenceMeaning::Missing), "its silence keeps nobody");
    sources.record_devices(&a, set(&["a"]));
    assert_eq!(found(&mut sources).0, ids(&["c", "a"]));
}

#[test]
fn who_fails_keeps_its_devices_and_is_noted() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    sources.record_devices(&C, set(&["c"]));
    sources.record_devices(&a, set(&["a"]));
    sources.record_failure(&a, unavailable("unix:/a: connection refused"));
    let both = union(&mut sources);
    assert_eq!((both.devices.len(), &both.absence), (2, &AbsenceMeaning::Missing));
    assert_eq!(both.notes[0].reason, "Unavailable");
    assert_eq!(both.notes[0].message, "unavailable: unix:/a: connection refused; its devices stay as they are");
    sources.clear_error(&a);
    let both = union(&mut sources);
    assert_eq!((both.devices.len(), both.notes.len()), (2, 0));
}

#[test]
fn devices_of_a_removed_source_are_unknown_until_reported() {
    let (a, b) = (remote("/a"), remote("/b"));
    let mut sources = expecting(&[&a, &b]);
    sources.remove_absent(&C);
    sources.record_devices(&a, set(&["a"]));
    sources.record_devices(&b, set(&["b"]));
    assert_eq!(found(&mut sources).0, ids(&["a", "b"]));
    sources.remove(&b);
    assert_eq!(found(&mut sources), (ids(&["a"]), AbsenceMeaning::Unknown));
    sources.record_devices(&a, set(&["a"]));
    assert_eq!(found(&mut sources), (ids(&["a"]), AbsenceMeaning::Missing));
    sources.remove(&a);
    assert_eq!((sources.merge(10), sources.is_lost()), (MergedResult::NoSource, true));
    sources.add(b.clone(), None, false);
    assert_eq!((sources.merge(10), sources.is_lost()), (MergedResult::NoReport, true), "being there is no word");
    sources.record_devices(&b, set(&[]));
    assert_eq!(found(&mut sources), (ids(&[]), AbsenceMeaning::Missing));
}

#[test]
fn who_was_never_there_takes_nothing_along() {
    let mut sources = expecting(&[&C]);
    sources.remove_absent(&C);
    assert_eq!((sources.merge(10), sources.is_lost()), (MergedResult::NoSource, false));
}

#[test]
fn who_is_silent_for_long_no_longer_answers_for_its_devices() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    sources.record_devices(&C, set(&["c"]));
    sources.expire(&a);
    assert_eq!(found(&mut sources), (ids(&["c"]), AbsenceMeaning::Unknown));
    sources.record_devices(&C, set(&["c"]));
    assert_eq!(found(&mut sources), (ids(&["c"]), AbsenceMeaning::Missing));
    sources.expire(&a);
    assert!(!sources.is_lost(), "it had none");
}

#[test]
fn without_any_device_the_first_failure_counts() {
    let (a, b) = (remote("/a"), remote("/b"));
    let mut sources = expecting(&[&a, &b]);
    sources.record_failure(&b, unavailable("b"));
    assert_eq!(sources.merge(10), MergedResult::Failed(unavailable("b"), None));
    sources.record_failure(&a, unavailable("a"));
    assert_eq!(sources.merge(10), MergedResult::Failed(unavailable("a"), None));
}

#[test]
fn what_was_found_just_before_a_failure_is_told_once() {
    let mut sources = expecting(&[&C]);
    sources.record_devices(&C, set(&["c"]));
    sources.record_failure(&C, unavailable("c"));
    let MergedResult::Failed(_, Some(found)) = sources.merge(10) else { panic!() };
    assert_eq!(found.set.devices.len(), 1);
    assert_eq!(sources.merge(10), MergedResult::Failed(unavailable("c"), None));
}

#[test]
fn a_component_that_disagrees_about_shared_is_not_used() {
    let a = remote("/a");
    let mut sources = Sources::default();
    sources.add(C, Some(true), true);
    sources.add(a.clone(), Some(false), true);
    sources.record_devices(&C, set(&["c"]));
    sources.record_devices(&a, set(&["a"]));
    let MergedResult::Found(MergedDevices { set, shared }) = sources.merge(10) else { panic!() };
    assert_eq!((set.devices.len(), shared), (1, Some(false)));
    let expected_text =
        "the component says shared=true, but unix:/a serves the handler as shared=false; it is not used";
    assert!(set.notes[0].message.contains(expected_text), "{:?}", set.notes);
}

#[test]
fn what_the_first_withholds_the_second_does_not_hand_out() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    sources.record_devices(&C, DeviceSet { withheld: ["d".to_owned()].into(), ..DeviceSet::default() });
    sources.record_devices(&a, set(&["d"]));
    let set = union(&mut sources);
    assert_eq!((set.devices.len(), set.withheld.len()), (0, 1));
}

#[test]
fn notes_are_united_and_bounded() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    let note = || Note { origin: String::new(), reason: "Dead".to_owned(), message: "no answer".to_owned() };
    let noted = || DeviceSet { notes: vec![note(); 8], notes_dropped: 1, ..DeviceSet::default() };
    sources.record_devices(&C, noted());
    sources.record_devices(&a, noted());
    let set = union(&mut sources);
    assert_eq!((set.notes.len(), set.notes_dropped), (10, 8));
}

proptest! {
    /// Whatever happens to sources that have all spoken: a device is in the union as long as one of them lists it.
    #[test]
    fn a_device_is_there_while_anyone_lists_it(
        words in prop::collection::vec((0..4_usize, prop::option::of(prop::collection::btree_set("[a-d]", 0..4))), 1..20)
    ) {
        let all = [C, remote("/a"), remote("/b"), remote("/c")];
        let mut sources = expecting(&all.iter().collect::<Vec<_>>());
        let mut last: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for (n, word) in words {
            match word {
                Some(listed) => {
                    sources.record_devices(&all[n], set(&listed.iter().map(String::as_str).collect::<Vec<_>>()));
                    last.insert(n, listed);
                }
                None => sources.record_failure(&all[n], unavailable("x")),
            }
            let expected: BTreeSet<String> = last.values().flatten().cloned().collect();
            if let MergedResult::Found(MergedDevices { set, .. }) = sources.merge(10) {
                let ids: BTreeSet<String> = set.devices.iter().map(|device| device.id.clone()).collect();
                prop_assert_eq!(ids.len(), set.devices.len());
                prop_assert_eq!(ids, expected);
                prop_assert_eq!(set.absence == AbsenceMeaning::Missing, last.len() == all.len());
            }
        }
    }
}
