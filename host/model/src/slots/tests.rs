use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::instance::Version;

const HERE: &str = "here";

fn unavailable(why: &str) -> Result<Claimed, Refusal> {
    Err(Refusal::Unavailable(why.to_owned()))
}

fn by(node: &str) -> Usage {
    Usage::Instance { node: node.into() }
}

fn by_configuration(node: &str) -> Usage {
    Usage::Configuration { vdev: "0".into(), node: node.into() }
}

fn claim(usage: Usage) -> Claim {
    Claim { usage, generation: 0, observation: ClaimObservation::new(0, Duration::ZERO) }
}

fn view(version: u64, slots: &[(u32, Usage)]) -> ApiView {
    let version = Version(version.to_string());
    ApiView::Present(PublishedSlots { uid: "u".into(), version, slots: slots.iter().cloned().collect(), history: 0 })
}

fn shared(slots: &[(u32, Usage)]) -> SlotTable {
    let mut table = SlotTable::new(HERE, Authority::Api, 2);
    table.observe(view(1, slots), claim);
    table
}

fn local(capacity: u32, held: &[(u32, Usage)]) -> SlotTable {
    let mut table = SlotTable::new(HERE, Authority::Journal, capacity);
    for (slot, usage) in held {
        table.restore(*slot, SlotState::Held(claim(usage.clone())));
    }
    table
}

fn patch(table: &SlotTable) -> Option<SlotPatch> {
    match table.next_step(true) {
        Some(SyncStep::Patch(patch)) => Some(patch),
        _ => None,
    }
}

fn label(state: &SlotState) -> String {
    match state {
        SlotState::Free => "free".into(),
        SlotState::Claiming(claim) => format!("claiming {}", claim.usage),
        SlotState::Held(claim) => format!("held {}", claim.usage),
        SlotState::Releasing(usage) => format!("releasing {usage}"),
        SlotState::Elsewhere(usage) => format!("elsewhere {usage}"),
    }
}

fn in_state(state: &str) -> SlotTable {
    let mut table = shared(&[(0, Usage::Free)]);
    match state {
        "free" => {}
        "claiming" => drop(table.claim(0, claim(by(HERE))).unwrap()),
        "held" => table.restore(0, SlotState::Held(claim(by(HERE)))),
        "releasing" => table.restore(0, SlotState::Releasing(by(HERE))),
        _ => table = shared(&[(0, by("there"))]),
    }
    table
}

#[test]
fn view_is_observed_until_there_is_another_version() {
    let mut table = SlotTable::new(HERE, Authority::Api, 1);
    let version = |number: &str| Version(number.to_owned());
    assert!(!table.has_observed("u", &version("1")), "nothing was read");
    table.observe(view(1, &[]), claim);
    assert!(table.has_observed("u", &version("1")));
    for (uid, number) in [("u", "2"), ("another", "1"), ("u", "")] {
        assert!(!table.has_observed(uid, &version(number)), "{uid} {number}");
    }
    table.observe(view(2, &[]), claim);
    assert!(!table.has_observed("u", &version("1")) && table.has_observed("u", &version("2")));
    table.observe(ApiView::Absent, claim);
    assert!(!table.has_observed("u", &version("2")));
}

#[test] // rule 40
fn every_state_follows_what_the_api_server_shows() {
    let unreadable = Usage::read("C:0");
    for (state, shown, expected) in [
        ("free", Usage::Free, "free"),
        ("free", by("there"), "elsewhere there"),
        ("free", by(HERE), "held here"),
        ("free", unreadable.clone(), "elsewhere C:0"),
        ("claiming", Usage::Free, "claiming here"),
        ("claiming", by(HERE), "held here"),
        ("claiming", by_configuration(HERE), "claiming here"),
        ("claiming", by("there"), "elsewhere there"),
        ("held", Usage::Free, "held here"),
        ("held", by("there"), "held here"),
        ("held", by(HERE), "held here"),
        ("releasing", Usage::Free, "free"),
        ("releasing", by(HERE), "releasing here"),
        ("releasing", by("there"), "elsewhere there"),
        ("elsewhere", Usage::Free, "free"),
        ("elsewhere", by("other"), "elsewhere other"),
        ("elsewhere", by(HERE), "held here"),
    ] {
        let mut table = in_state(state);
        table.observe(view(2, &[(0, shown.clone())]), claim);
        assert_eq!(label(table.state(0)), expected, "{state} and '{shown}' is shown");
    }
}

#[test] // rule 9, rule 40, rule 42
fn claim_is_granted_confirmed_or_refused_by_state() {
    let cases = [
        ("free", Ok(Claimed::Pending)),
        ("held", Ok(Claimed::Held)),
        ("claiming", unavailable("slot 0 waits for the API server to confirm an earlier change")),
        ("releasing", unavailable("slot 0 waits for the API server to confirm an earlier change")),
        ("elsewhere", Err(Refusal::in_use(0, &by("there")))),
    ];
    for (state, expected) in cases {
        assert_eq!(in_state(state).claim(0, claim(by(HERE))), expected, "{state}");
    }
    let other = in_state("held").claim(0, claim(by_configuration(HERE)));
    assert_eq!(other, Err(Refusal::in_use(0, &by(HERE))));
    let beyond = Err(Refusal::NotFound("slot 2 does not exist: the capacity is 2".to_owned()));
    assert_eq!(in_state("free").claim(2, claim(by(HERE))), beyond);
}

#[test]
fn shared_slots_are_closed_until_the_api_server_answers() {
    let mut table = SlotTable::new(HERE, Authority::Api, 1);
    assert_eq!(table.claim(0, claim(by(HERE))), unavailable("the API server has not told who uses slot 0"));
    assert_eq!((table.instance_level(true), table.free().next()), (vec![(0, false)], None));
    table.observe(view(1, &[]), claim);
    assert_eq!((table.instance_level(true), table.free().next()), (vec![(0, true)], Some(0)));
    table.observe(ApiView::Absent, claim);
    assert_eq!(table.instance_level(true), [(0, false)]);
}

#[test] // rule 41
fn next_patch_claims_first_and_releases_by_version() {
    let mut table = shared(&[(0, by(HERE)), (1, Usage::Free)]);
    table.release(0);
    table.claim(1, claim(by_configuration(HERE))).unwrap();
    let next = patch(&table).unwrap();
    assert_eq!(next.version, None, "a claim only expects its slot to be free");
    assert_eq!(next.changes, [(1, (Some(Usage::Free), by_configuration(HERE)))].into());
    table.observe(view(2, &[(0, by(HERE)), (1, by_configuration(HERE))]), claim);
    let next = patch(&table).unwrap();
    assert_eq!(next.version, Some(Version("2".into())), "a late release must not end a later claim");
    assert_eq!(next.changes, [(0, (Some(by(HERE)), Usage::Free))].into());
    table.observe(view(3, &[(0, Usage::Free), (1, by_configuration(HERE))]), claim);
    assert_eq!(table.next_step(true), None);
}

#[test]
fn next_patch_adds_a_missing_key_by_version() {
    let mut table = shared(&[]);
    table.claim(1, claim(by(HERE))).unwrap();
    let next = patch(&table).unwrap();
    assert_eq!((next.version, next.changes), (Some(Version("1".into())), [(1, (None, by(HERE)))].into()));
}

#[test]
fn held_slot_is_claimed_again_unless_another_node_has_it() {
    let mut table = in_state("held");
    let wanted = |table: &SlotTable| patch(table).map(|patch| patch.changes);
    assert_eq!(wanted(&table), Some([(0, (Some(Usage::Free), by(HERE)))].into()));
    let there = view(2, &[(0, by("there"))]);
    assert_eq!(table.observe(there.clone(), claim), [SlotEvent::Overcommitted(0, by("there"))]);
    assert_eq!(wanted(&table), None);
    let another_container = table.claim(0, claim(by(HERE)));
    assert_eq!(another_container, Err(Refusal::in_use(0, &by("there"))));
    assert_eq!(table.observe(there, claim), [], "it is told once");
}

#[test] // rule 41
fn outdated_view_changes_nothing() {
    let mut table = shared(&[(0, by(HERE))]);
    table.release(0);
    table.observe(view(3, &[(0, Usage::Free)]), claim);
    assert_eq!(table.observe(view(2, &[(0, by(HERE))]), claim), []);
    assert_eq!(table.state(0), &SlotState::Free);
}

#[test] // rule 106
fn view_of_another_history_is_never_outdated() {
    let restored = |history, version, slots: &[(u32, Usage)]| match view(version, slots) {
        ApiView::Present(published) => ApiView::Present(PublishedSlots { history, ..published }),
        other => other,
    };
    let mut table = shared(&[]);
    table.observe(view(9, &[(0, by("there"))]), claim);
    table.observe(restored(1, 2, &[(0, Usage::Free)]), claim);
    assert_eq!(label(table.state(0)), "free", "the cluster was restored");
    table.observe(view(10, &[(0, by("there"))]), claim);
    assert_eq!(label(table.state(0)), "free", "this was read before");
    table.observe(restored(1, 3, &[(0, by("there"))]), claim);
    assert_eq!(label(table.state(0)), "elsewhere there");
}

#[test]
fn view_of_an_earlier_instance_is_outdated() {
    let mut table = shared(&[]);
    table.observe(successor(5, &[(0, by("there"))]), claim);
    table.observe(view(4, &[]), claim);
    assert_eq!(label(table.state(0)), "elsewhere there", "versions grow over all objects");
}

#[test]
fn own_claim_that_is_not_known_is_adopted() {
    let mut table = SlotTable::new(HERE, Authority::Api, 2);
    let events = table.observe(view(1, &[(0, by(HERE)), (1, by("there"))]), claim);
    assert_eq!(events, [SlotEvent::Adopted(0)]);
    assert_eq!(table.claims().count(), 1);
}

#[test]
fn local_claim_is_decided_by_the_journal() {
    let mut table = local(2, &[]);
    assert_eq!(table.claim(0, claim(by(HERE))), Ok(Claimed::Pending));
    table.confirm_local(0);
    assert_eq!(label(table.state(0)), "held here");
    table.observe(view(1, &[(0, by("there"))]), claim);
    assert_eq!(label(table.state(0)), "held here", "the API server has a copy");
    assert_eq!(table.next_step(true), None);
    table.release(0);
    assert_eq!(table.state(0), &SlotState::Free);
}

#[test]
fn damaged_journal_takes_over_what_the_api_server_has_once() {
    let mut table = SlotTable::new(HERE, Authority::DamagedJournal, 2);
    assert_eq!(table.claim(0, claim(by(HERE))), unavailable("the API server has not told who uses slot 0"));
    table.observe(view(1, &[(0, by(HERE)), (1, by("there"))]), claim);
    assert_eq!((label(table.state(0)), label(table.state(1))), ("held here".into(), "free".into()));
    table.release(0);
    table.observe(view(2, &[(0, by(HERE))]), claim);
    assert_eq!(label(table.state(0)), "free", "from now on the journal decides");
}

#[test] // rule 11, rule 42
fn abandoned_claim_closes_the_slot_until_it_is_shown_free() {
    let mut table = in_state("claiming");
    table.abandon(0);
    assert_eq!(table.instance_level(true)[0], (0, false));
    assert_eq!(table.next_step(true), Some(SyncStep::Read), "the API server shows it free, as of an older version");
    table.observe(view(2, &[(0, by(HERE))]), claim);
    assert!(patch(&table).is_some(), "the claim took effect after all");
    table.observe(view(3, &[]), claim);
    assert_eq!(table.instance_level(true)[0], (0, true));
}

#[test] // rule 41
fn slot_is_given_back_only_once_that_is_recorded() {
    let mut table = shared(&[(0, by(HERE)), (1, by(HERE))]);
    table.release(0);
    assert_eq!(table.next_step(false), None);
    assert!(patch(&table).is_some());
    table.claim(1, claim(by(HERE))).unwrap();
    table.observe(view(2, &[(0, by(HERE))]), claim);
    let Some(SyncStep::Patch(claims)) = table.next_step(false) else { panic!("claims wait for no release") };
    assert_eq!(claims.changes, [(1, (None, by(HERE)))].into());
}

#[test] // rule 103
fn absent_instance_is_made_again_with_what_others_have() {
    let mut table = shared(&[(0, by("there")), (1, by(HERE))]);
    table.release(1);
    table.observe(ApiView::Absent, claim);
    assert_eq!((label(table.state(0)), label(table.state(1))), ("elsewhere there".into(), "free".into()));
    assert_eq!(table.to_usage("i"), [("i-0".into(), "there".into()), ("i-1".into(), String::new())].into());
    let mut unreadable = shared(&[(0, Usage::read("C:0"))]);
    unreadable.observe(ApiView::Absent, claim);
    assert_eq!(unreadable.to_usage("i")["i-0"], "", "no agent would ever give it back");
}

#[test] // rule 103, rule 106
fn answer_of_before_the_deletion_does_not_count() {
    let mut table = shared(&[]);
    table.observe(view(3, &[(0, by("there"))]), claim);
    table.observe(ApiView::Absent, claim);
    table.observe(view(2, &[]), claim);
    assert_eq!((table.api(), label(table.state(0))), (&ApiView::Absent, "elsewhere there".into()));
    let ApiView::Present(restored) = view(2, &[]) else { panic!() };
    table.observe(ApiView::Present(PublishedSlots { history: 1, ..restored }), claim);
    assert_eq!(label(table.state(0)), "free", "the store was restored");
}

/// A view of the Instance that takes the place of the first.
fn successor(version: u64, used: &[(u32, Usage)]) -> ApiView {
    match view(version, used) {
        ApiView::Present(published) => ApiView::Present(PublishedSlots { uid: "another".into(), ..published }),
        other => other,
    }
}

#[test] // rule 103
fn usage_of_others_is_carried_over_until_it_is_released() {
    let mut table = shared(&[(0, by("there")), (1, by("away"))]);
    table.observe(ApiView::Absent, claim);
    table.observe(successor(2, &[(0, Usage::Free), (1, Usage::Free)]), claim);
    assert_eq!(table.free().count(), 0, "{table:?}");
    assert!(table.claim(0, claim(by(HERE))).is_err());
    let carried = patch(&table).unwrap();
    let expected = [(0, (Some(Usage::Free), by("there"))), (1, (Some(Usage::Free), by("away")))];
    assert_eq!((carried.uid.as_str(), carried.changes), ("another", expected.into()));
    table.observe(successor(3, &[(0, by("there"))]), claim);
    assert_eq!(table.carried, [1].into());
    table.observe(successor(4, &[]), claim);
    assert_eq!(table.free().collect::<Vec<_>>(), [0], "its agent gave it back");
    table.observe(successor(5, &[(1, by("away"))]), claim);
    table.observe(successor(6, &[]), claim);
    assert_eq!(table.free().collect::<Vec<_>>(), [0, 1]);
}

#[test] // rule 103
fn carried_usage_ends_when_another_node_has_the_slot() {
    for (shown, expected) in [(by("third"), "elsewhere third"), (by(HERE), "held here")] {
        let mut table = shared(&[(0, by("there"))]);
        table.observe(successor(2, &[]), claim);
        table.observe(successor(3, &[(0, shown)]), claim);
        assert_eq!((label(table.state(0)), table.carried.len()), (expected.into(), 0));
    }
}

#[test] // rule 103
fn usage_of_others_survives_a_restart() {
    let others = shared(&[(0, by("there")), (1, by(HERE))]).others();
    assert_eq!((others.uid.as_str(), others.slots.clone()), ("u", [(0, by("there"))].into()));
    let restored = || {
        let mut table = SlotTable::new(HERE, Authority::Api, 2);
        table.restore_others(&others);
        table
    };
    let mut same = restored();
    same.observe(view(9, &[]), claim);
    assert_eq!(same.free().collect::<Vec<_>>(), [0, 1], "the Instance that was known shows it free");
    let mut other = restored();
    other.observe(successor(9, &[]), claim);
    assert_eq!(other.free().collect::<Vec<_>>(), [1], "an Instance that was made meanwhile");
    let mut absent = restored();
    absent.observe(ApiView::Absent, claim);
    assert_eq!(absent.to_usage("i")["i-0"], "there");
}

#[test] // rule 103
fn carried_usage_survives_a_restart_until_it_is_shown() {
    let mut table = shared(&[(0, by("there")), (1, by("shown"))]);
    table.observe(successor(2, &[(1, by("shown"))]), claim);
    let restored = |table: &SlotTable| {
        let stored: OtherUsage = serde_json::from_str(&serde_json::to_string(&table.others()).unwrap()).unwrap();
        let mut restored = SlotTable::new(HERE, Authority::Api, 2);
        restored.restore_others(&stored);
        restored
    };
    let mut again = restored(&table);
    again.observe(successor(3, &[]), claim);
    assert_eq!(again.free().collect::<Vec<_>>(), [1], "only the other one was given back meanwhile");
    assert_eq!(patch(&again).unwrap().changes, [(0, (None, by("there")))].into());
    again.observe(successor(4, &[(0, by("there"))]), claim);
    let mut shown = restored(&again);
    shown.observe(successor(5, &[]), claim);
    assert_eq!(shown.free().collect::<Vec<_>>(), [0, 1], "its agent gave it back");
}

#[test] // rule 12
fn health_of_instance_level_slots() {
    let mut table = SlotTable::new(HERE, Authority::Api, 4);
    let used = [(0, by(HERE)), (1, by("there")), (2, by_configuration(HERE)), (4, by(HERE))];
    table.observe(view(1, &used), claim);
    for (online, expected) in [
        (true, [(0, true), (1, false), (2, false), (3, true), (4, true)]),
        (false, [(0, true), (1, false), (2, false), (3, false), (4, true)]),
    ] {
        assert_eq!(table.instance_level(online), expected, "online: {online}");
    }
}

#[test] // rule 9
fn slot_above_a_lowered_capacity_stays_until_released() {
    let mut table = local(2, &[(1, by(HERE))]);
    table.resize(1);
    assert_eq!(table.to_usage("i").len(), 2);
    table.release(1);
    assert_eq!(table.instance_level(true), [(0, true)]);
    assert!(table.claim(1, claim(by(HERE))).is_err());
}

#[test] // rule 9
fn every_key_below_the_capacity_always_exists() {
    let usage = local(3, &[(1, by(HERE))]).to_usage("cam-1");
    let expected = [("cam-1-0", ""), ("cam-1-1", "here"), ("cam-1-2", "")];
    assert_eq!(usage, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
}

#[test] // rule 40
fn unreadable_usage_is_never_free() {
    let usage = [("cam-1-0", "a"), ("cam-2-0", "a"), ("cam-1-1", "C:0"), ("cam-1-2", "")];
    let (slots, unknown) = read_usage("cam-1", &usage.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    assert_eq!(unknown, ["cam-2-0"]);
    let unreadable = Usage::Unreadable("C:0".into());
    assert_eq!(slots, [(0, by("a")), (1, unreadable), (2, Usage::Free)].into());
}

proptest! {
    #[test]
    fn usage_survives_writing_and_reading(capacity in 0u32..6, used in prop::collection::btree_map(0u32..6, any::<bool>(), 0..6)) {
        let used: Vec<(u32, Usage)> =
            used.into_iter().map(|(slot, direct)| (slot, if direct { by(HERE) } else { by_configuration(HERE) })).collect();
        let table = local(capacity, &used);
        let (read, unknown) = read_usage("i", &table.to_usage("i"));
        let taken: Vec<(u32, Usage)> = read.into_iter().filter(|(_, usage)| !usage.is_free()).collect();
        prop_assert_eq!(taken, used);
        prop_assert!(unknown.is_empty());
    }
}
