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

fn expecting(sources: &[&DiscoverySource]) -> SourceStates {
    let mut all = SourceStates::default();
    sources.iter().for_each(|source| all.add((*source).clone(), None, true));
    all
}

fn unavailable(what: &str) -> RoundError {
    RoundError::Unavailable(what.to_owned())
}

fn apply(sources: &mut SourceStates, source: &DiscoverySource, update: SourceUpdate) {
    sources.apply(SourceEvent { source: source.clone(), generation: 1, event_at: None, update }, Instant::now());
}

fn report(sources: &mut SourceStates, source: &DiscoverySource, set: DeviceSet) {
    apply(sources, source, SourceUpdate::Found { set, shared: None });
}

fn fail(sources: &mut SourceStates, source: &DiscoverySource, error: RoundError) {
    apply(sources, source, SourceUpdate::Failed(error));
}

fn failed(error: RoundError) -> MergedResult {
    MergedResult { status: Some(DiscoveryStatus::Failed(error)), devices: None }
}

fn no_handler() -> RoundError {
    RoundError::NoHandler("none".to_owned())
}

fn without_component(sources: &mut SourceStates) {
    apply(sources, &C, SourceUpdate::NoComponent("none".to_owned()));
}

/// The result of sources without devices: all known ones are unknown.
fn lost(status: Option<DiscoveryStatus>) -> MergedResult {
    let set = DeviceSet { absence: AbsenceMeaning::Unknown, ..DeviceSet::default() };
    MergedResult { status, devices: Some(MergedDevices { set, ..MergedDevices::default() }) }
}

fn union(sources: &mut SourceStates) -> DeviceSet {
    let merged = sources.merge(10);
    assert!(matches!(merged.status, Some(DiscoveryStatus::Found { .. })), "{merged:?}");
    merged.devices.unwrap().set
}

/// Ids of the union, and the meaning of an absent id.
fn found(sources: &mut SourceStates) -> (Vec<String>, AbsenceMeaning) {
    let set = union(sources);
    (set.devices.into_iter().map(|device| device.id).collect(), set.absence)
}

fn kept(missing: &[&str]) -> AbsenceMeaning {
    AbsenceMeaning::Kept(ids(missing).into_iter().collect())
}

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[test] // rule 31
fn of_a_device_that_two_report_the_first_view_counts() {
    let (a, b) = (remote("/a"), remote("/b"));
    let mut sources = expecting(&[&b, &a, &C]);
    for (source, value) in [(&b, "b"), (&a, "a"), (&C, "c")] {
        let mut set = set(&["d", value]);
        set.devices[0].properties.insert("FROM".to_owned(), value.to_owned());
        report(&mut sources, source, set);
    }
    let set = union(&mut sources);
    assert_eq!(set.devices[0].properties["FROM"], "c", "the component, then by address");
    assert_eq!(set.devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>(), ["d", "c", "a", "b"]);
}

#[test] // rule 31
fn device_is_missing_once_all_its_sources_have_reported() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    assert_eq!(sources.merge(10), MergedResult::default());
    report(&mut sources, &C, set(&["c1", "c2"]));
    assert_eq!(found(&mut sources), (ids(&["c1", "c2"]), kept(&[])));
    report(&mut sources, &C, set(&["c1"]));
    assert_eq!(found(&mut sources), (ids(&["c1"]), kept(&["c2"])), "it spoke of this one itself");
    assert_eq!(found(&mut sources).1, kept(&[]), "told once");
    fail(&mut sources, &a, unavailable("refused"));
    assert_eq!(found(&mut sources).1, kept(&[]), "a failure is no word");
    report(&mut sources, &a, set(&[]));
    assert_eq!(found(&mut sources), (ids(&["c1"]), AbsenceMeaning::Missing));
}

#[test] // rule 31
fn who_comes_later_only_adds() {
    let a = remote("/a");
    let mut sources = expecting(&[&C]);
    report(&mut sources, &C, set(&["c"]));
    sources.add(a.clone(), Some(false), false);
    assert_eq!(found(&mut sources), (ids(&["c"]), AbsenceMeaning::Missing), "its silence keeps nobody");
    report(&mut sources, &a, set(&["a"]));
    assert_eq!(found(&mut sources).0, ids(&["c", "a"]));
}

#[test] // rule 31
fn who_fails_keeps_its_devices_and_is_noted() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    report(&mut sources, &C, set(&["c"]));
    report(&mut sources, &a, set(&["a"]));
    fail(&mut sources, &a, unavailable("unix:/a: connection refused"));
    let both = union(&mut sources);
    assert_eq!((both.devices.len(), &both.absence), (2, &AbsenceMeaning::Missing));
    assert_eq!(both.notes[0].reason, "Unavailable");
    assert_eq!(both.notes[0].message, "unavailable: unix:/a: connection refused; its devices stay as they are");
    apply(&mut sources, &a, SourceUpdate::Connected);
    let both = union(&mut sources);
    assert_eq!((both.devices.len(), both.notes.len()), (2, 0));
}

fn remove(sources: &mut SourceStates, removed: &DiscoverySource) {
    assert!(sources.retain_remote(|address| DiscoverySource::Remote(address.clone()) != *removed));
}

#[test] // rule 31
fn devices_of_a_removed_source_are_unknown_until_reported() {
    let (a, b) = (remote("/a"), remote("/b"));
    let mut sources = expecting(&[&a, &b]);
    without_component(&mut sources);
    report(&mut sources, &a, set(&["a"]));
    report(&mut sources, &b, set(&["b"]));
    assert_eq!(found(&mut sources).0, ids(&["a", "b"]));
    remove(&mut sources, &b);
    assert_eq!(found(&mut sources), (ids(&["a"]), AbsenceMeaning::Unknown));
    report(&mut sources, &a, set(&["a"]));
    assert_eq!(found(&mut sources), (ids(&["a"]), AbsenceMeaning::Missing));
    remove(&mut sources, &a);
    assert_eq!(sources.merge(10), lost(Some(DiscoveryStatus::Failed(no_handler()))));
    sources.add(b.clone(), None, false);
    assert_eq!(sources.merge(10), lost(None), "it has not reported");
    report(&mut sources, &b, set(&[]));
    assert_eq!(found(&mut sources), (ids(&[]), AbsenceMeaning::Missing));
}

#[test]
fn removed_source_takes_no_devices_of_a_failing_one_along() {
    let (a, b) = (remote("/a"), remote("/b"));
    let mut sources = expecting(&[&a, &b]);
    without_component(&mut sources);
    report(&mut sources, &a, set(&["a"]));
    report(&mut sources, &b, set(&["b"]));
    fail(&mut sources, &a, unavailable("connection refused"));
    remove(&mut sources, &b);
    let MergedResult { status, devices } = sources.merge(10);
    assert_eq!(status, Some(DiscoveryStatus::Failed(unavailable("connection refused"))));
    let set = devices.unwrap().set;
    assert_eq!((set.devices[0].id.as_str(), set.devices.len(), set.absence), ("a", 1, AbsenceMeaning::Unknown));
}

#[test]
fn who_was_never_there_takes_nothing_along() {
    let mut sources = expecting(&[&C]);
    assert!(sources.awaits_component());
    without_component(&mut sources);
    assert!(!sources.awaits_component());
    assert_eq!(sources.merge(10), failed(no_handler()));
    let mut sources = expecting(&[&C]);
    fail(&mut sources, &C, unavailable("c"));
    assert!(!sources.awaits_component());
}

#[test] // rule 31
fn devices_of_a_silent_source_are_unknown_after_the_timeout() {
    let (a, timeout) = (remote("/a"), Duration::from_secs(300));
    let mut sources = expecting(&[&C, &a]);
    report(&mut sources, &C, set(&["c"]));
    apply(&mut sources, &a, SourceUpdate::Connected);
    let connected = sources.silent_since().unwrap();
    sources.expire_silent(connected + timeout / 2, timeout);
    assert_eq!(found(&mut sources), (ids(&["c"]), kept(&[])));
    sources.expire_silent(connected + timeout, timeout);
    assert_eq!((found(&mut sources), sources.silent_since()), ((ids(&["c"]), AbsenceMeaning::Unknown), None));
    report(&mut sources, &C, set(&["c"]));
    assert_eq!(found(&mut sources), (ids(&["c"]), AbsenceMeaning::Missing));
    apply(&mut sources, &a, SourceUpdate::Connected);
    sources.expire_silent(sources.silent_since().unwrap() + timeout, timeout);
    assert_eq!(found(&mut sources), (ids(&["c"]), AbsenceMeaning::Missing), "it had none");
}

#[test]
fn connected_source_without_a_report_is_silent() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    apply(&mut sources, &a, SourceUpdate::Connected);
    assert_eq!(sources.merge(10), MergedResult { status: Some(DiscoveryStatus::Silent), devices: None });
    fail(&mut sources, &C, unavailable("c"));
    assert_eq!(sources.merge(10), failed(unavailable("c")));
    report(&mut sources, &a, set(&[]));
    assert_eq!((union(&mut sources).devices, sources.silent_since()), (Vec::new(), None));
}

#[test]
fn without_any_device_the_first_failure_counts() {
    let (a, b) = (remote("/a"), remote("/b"));
    let mut sources = expecting(&[&a, &b]);
    fail(&mut sources, &b, unavailable("b"));
    assert_eq!(sources.merge(10), failed(unavailable("b")));
    fail(&mut sources, &a, unavailable("a"));
    assert_eq!(sources.merge(10), failed(unavailable("a")));
}

#[test]
fn result_before_a_failure_is_delivered_once() {
    let mut sources = expecting(&[&C]);
    report(&mut sources, &C, set(&["c"]));
    fail(&mut sources, &C, unavailable("c"));
    let merged = sources.merge(10);
    assert_eq!((merged.status, merged.devices.unwrap().set.devices.len()), (failed(unavailable("c")).status, 1));
    assert_eq!(sources.merge(10), failed(unavailable("c")));
}

/// A digest that is not pinned any more, a name that another object owns: it may be back any time.
#[test] // rule 133
fn refused_component_keeps_its_devices() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    report(&mut sources, &a, set(&["a"]));
    fail(&mut sources, &C, no_handler());
    assert_eq!(found(&mut sources), (ids(&["a"]), kept(&[])), "it has not reported since the start");
    report(&mut sources, &C, set(&["c"]));
    fail(&mut sources, &C, no_handler());
    let both = union(&mut sources);
    assert_eq!((both.devices.len(), &both.absence), (2, &AbsenceMeaning::Missing));
    assert!(both.notes[0].message.ends_with("; its devices stay as they are"), "{:?}", both.notes);
    without_component(&mut sources);
    assert_eq!(found(&mut sources), (ids(&["a"]), AbsenceMeaning::Unknown), "its object is deleted");
}

#[test]
fn device_withheld_by_one_source_is_withheld() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    report(&mut sources, &C, DeviceSet { withheld: ["d".to_owned()].into(), ..DeviceSet::default() });
    report(&mut sources, &a, set(&["d"]));
    let set = union(&mut sources);
    assert_eq!((set.devices.len(), set.withheld.len()), (0, 1));
}

#[test]
fn notes_are_united_and_bounded() {
    let a = remote("/a");
    let mut sources = expecting(&[&C, &a]);
    let note = || Note { origin: String::new(), reason: "Dead".to_owned(), message: "no answer".to_owned() };
    let noted = || DeviceSet { notes: vec![note(); 8], notes_dropped: 1, ..DeviceSet::default() };
    report(&mut sources, &C, noted());
    report(&mut sources, &a, noted());
    let set = union(&mut sources);
    assert_eq!((set.notes.len(), set.notes_dropped), (10, 8));
}

proptest! {
    /// Whatever happens to sources that have all spoken: a device is in the union as long as one of them lists it.
    #[test]
    fn device_is_there_while_anyone_lists_it(
        words in prop::collection::vec((0..4_usize, prop::option::of(prop::collection::btree_set("[a-d]", 0..4))), 1..20)
    ) {
        let all = [C, remote("/a"), remote("/b"), remote("/c")];
        let mut sources = expecting(&all.iter().collect::<Vec<_>>());
        let mut last: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for (n, word) in words {
            match word {
                Some(listed) => {
                    report(&mut sources, &all[n], set(&listed.iter().map(String::as_str).collect::<Vec<_>>()));
                    last.insert(n, listed);
                }
                None => fail(&mut sources, &all[n], unavailable("x")),
            }
            let expected: BTreeSet<String> = last.values().flatten().cloned().collect();
            let merged = sources.merge(10);
            if let (Some(DiscoveryStatus::Found { .. }), Some(MergedDevices { set, .. })) = (merged.status, merged.devices) {
                let ids: BTreeSet<String> = set.devices.iter().map(|device| device.id.clone()).collect();
                prop_assert_eq!(ids.len(), set.devices.len());
                prop_assert_eq!(ids, expected);
                prop_assert_eq!(set.absence == AbsenceMeaning::Missing, last.len() == all.len());
            }
        }
    }
}
