use proptest::prelude::*;

use super::*;
use crate::device::Device;

const C: Source = Source::Component;

fn remote(path: &str) -> Source {
    Source::Remote(Address::Unix(path.to_owned()))
}

fn set(ids: &[&str]) -> DeviceSet {
    let device = |id: &&str| Device { id: (*id).to_owned(), ..Device::default() };
    DeviceSet { devices: ids.iter().map(device).collect(), ..DeviceSet::default() }
}

fn expecting(sources: &[&Source]) -> Sources {
    let mut all = Sources::default();
    sources.iter().for_each(|source| all.appear((*source).clone(), None, true));
    all
}

fn unavailable(what: &str) -> RoundError {
    RoundError::Unavailable(what.to_owned())
}

fn union(sources: &mut Sources) -> DeviceSet {
    match sources.said(10) {
        Said::Found(found) => found.set,
        other => panic!("{other:?}"),
    }
}

/// Ids of the union, and what it means not to be there.
fn found(sources: &mut Sources) -> (Vec<String>, Unlisted) {
    let set = union(sources);
    (set.devices.into_iter().map(|device| device.id).collect(), set.unlisted)
}

fn kept(missing: &[&str]) -> Unlisted {
    Unlisted::Kept(ids(missing).into_iter().collect())
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
        sources.found(source, set);
    }
    let set = union(&mut sources);
    assert_eq!(set.devices[0].properties["FROM"], "c", "the component, then by address");
    assert_eq!(set.devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>(), ["d", "c", "a", "b"]);
}

#[test]
fn nothing_is_missing_before_all_who_may_know_it_have_spoken() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    assert_eq!(sources.said(10), Said::Nothing);
    sources.found(&C, set(&["c1", "c2"]));
    assert_eq!(found(&mut sources), (ids(&["c1", "c2"]), kept(&[])));
    sources.found(&C, set(&["c1"]));
    assert_eq!(found(&mut sources), (ids(&["c1"]), kept(&["c2"])), "it spoke of this one itself");
    assert_eq!(found(&mut sources).1, kept(&[]), "told once");
    sources.failed(&a, unavailable("refused"));
    assert_eq!(found(&mut sources).1, kept(&[]), "a failure is no word");
    sources.found(&a, set(&[]));
    assert_eq!(found(&mut sources), (ids(&["c1"]), Unlisted::Missing));
}

#[test]
fn who_comes_later_only_adds() {
    let a = remote("/a");
    let mut sources = expecting(&[&C]);
    sources.found(&C, set(&["c"]));
    sources.appear(a.clone(), Some(false), false);
    assert_eq!(found(&mut sources), (ids(&["c"]), Unlisted::Missing), "its silence keeps nobody");
    sources.found(&a, set(&["a"]));
    assert_eq!(found(&mut sources).0, ids(&["c", "a"]));
}

#[test]
fn who_fails_keeps_its_devices_and_is_noted() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    sources.found(&C, set(&["c"]));
    sources.found(&a, set(&["a"]));
    sources.failed(&a, unavailable("unix:/a: connection refused"));
    let both = union(&mut sources);
    assert_eq!((both.devices.len(), &both.unlisted), (2, &Unlisted::Missing));
    assert_eq!(both.notes[0].reason, "Unavailable");
    assert_eq!(both.notes[0].message, "unavailable: unix:/a: connection refused; its devices stay as they are");
    sources.recovered(&a);
    let both = union(&mut sources);
    assert_eq!((both.devices.len(), both.notes.len()), (2, 0));
}

#[test]
fn nobody_knows_about_the_devices_of_who_has_gone_until_another_speaks() {
    let (a, b) = (remote("/a"), remote("/b"));
    let mut sources = expecting(&[&a, &b]);
    sources.absent(&C);
    sources.found(&a, set(&["a"]));
    sources.found(&b, set(&["b"]));
    assert_eq!(found(&mut sources).0, ids(&["a", "b"]));
    sources.vanish(&b);
    assert_eq!(found(&mut sources), (ids(&["a"]), Unlisted::Unknown));
    sources.found(&a, set(&["a"]));
    assert_eq!(found(&mut sources), (ids(&["a"]), Unlisted::Missing));
    sources.vanish(&a);
    assert_eq!((sources.said(10), sources.is_lost()), (Said::Nobody, true));
    sources.appear(b.clone(), None, false);
    assert_eq!((sources.said(10), sources.is_lost()), (Said::Nothing, true), "being there is no word");
    sources.found(&b, set(&[]));
    assert_eq!(found(&mut sources), (ids(&[]), Unlisted::Missing));
}

#[test]
fn who_was_never_there_takes_nothing_along() {
    let mut sources = expecting(&[&C]);
    sources.absent(&C);
    assert_eq!((sources.said(10), sources.is_lost()), (Said::Nobody, false));
}

#[test]
fn who_is_silent_for_long_no_longer_answers_for_its_devices() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    sources.found(&C, set(&["c"]));
    sources.silent(&a);
    assert_eq!(found(&mut sources), (ids(&["c"]), Unlisted::Unknown));
    sources.found(&C, set(&["c"]));
    assert_eq!(found(&mut sources), (ids(&["c"]), Unlisted::Missing));
    sources.silent(&a);
    assert!(!sources.is_lost(), "it had none");
}

#[test]
fn without_any_device_the_first_failure_counts() {
    let (a, b) = (remote("/a"), remote("/b"));
    let mut sources = expecting(&[&a, &b]);
    sources.failed(&b, unavailable("b"));
    assert_eq!(sources.said(10), Said::Failed(unavailable("b"), None));
    sources.failed(&a, unavailable("a"));
    assert_eq!(sources.said(10), Said::Failed(unavailable("a"), None));
}

#[test]
fn what_was_found_just_before_a_failure_is_told_once() {
    let mut sources = expecting(&[&C]);
    sources.found(&C, set(&["c"]));
    sources.failed(&C, unavailable("c"));
    let Said::Failed(_, Some(found)) = sources.said(10) else { panic!() };
    assert_eq!(found.set.devices.len(), 1);
    assert_eq!(sources.said(10), Said::Failed(unavailable("c"), None));
}

#[test]
fn a_component_that_disagrees_about_shared_is_not_used() {
    let a = remote("/a");
    let mut sources = Sources::default();
    sources.appear(C, Some(true), true);
    sources.appear(a.clone(), Some(false), true);
    sources.found(&C, set(&["c"]));
    sources.found(&a, set(&["a"]));
    let Said::Found(Found { set, shared }) = sources.said(10) else { panic!() };
    assert_eq!((set.devices.len(), shared), (1, Some(false)));
    let told = "the component says shared=true, but unix:/a serves the handler as shared=false; it is not used";
    assert!(set.notes[0].message.contains(told), "{:?}", set.notes);
}

#[test]
fn what_the_first_withholds_the_second_does_not_hand_out() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    sources.found(&C, DeviceSet { withheld: ["d".to_owned()].into(), ..DeviceSet::default() });
    sources.found(&a, set(&["d"]));
    let set = union(&mut sources);
    assert_eq!((set.devices.len(), set.withheld.len()), (0, 1));
}

#[test]
fn notes_are_united_and_bounded() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    let note = || Note { origin: String::new(), reason: "Dead".to_owned(), message: "no answer".to_owned() };
    let noted = || DeviceSet { notes: vec![note(); 8], notes_dropped: 1, ..DeviceSet::default() };
    sources.found(&C, noted());
    sources.found(&a, noted());
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
                    sources.found(&all[n], set(&listed.iter().map(String::as_str).collect::<Vec<_>>()));
                    last.insert(n, listed);
                }
                None => sources.failed(&all[n], unavailable("x")),
            }
            let expected: BTreeSet<String> = last.values().flatten().cloned().collect();
            if let Said::Found(Found { set, .. }) = sources.said(10) {
                let ids: BTreeSet<String> = set.devices.iter().map(|device| device.id.clone()).collect();
                prop_assert_eq!(ids.len(), set.devices.len());
                prop_assert_eq!(ids, expected);
                prop_assert_eq!(set.unlisted == Unlisted::Missing, last.len() == all.len());
            }
        }
    }
}
