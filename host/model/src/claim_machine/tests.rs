use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::claim::{ClaimState, JournaledClaim};
use crate::device::{Device, Mount};
use crate::instance::{Online, Version};
use crate::names::{HashInput, HashLength, Key, instance_name, slot_name};
use crate::reclaim::{ObservedUsers, SnapshotInfo};
use crate::slots::{PublishedSlots, SlotState};

const HERE: &str = "here";

fn configuration(broker_info: bool) -> Arc<Configuration> {
    Arc::new(Configuration {
        key: Key::new("default", "cam"),
        uid: "c".into(),
        generation: 1,
        handler: "onvif".into(),
        capacity: 2,
        broker_info,
        ..Configuration::default()
    })
}

fn moment(generation: u64) -> Moment {
    Moment { now: Duration::ZERO, epoch: 1, generation }
}

fn identity(device: &str) -> Identity {
    HashInput::new(device, true, HERE).identity()
}

fn name(device: &str) -> String {
    instance_name("cam", &HashInput::new(device, true, HERE).hash(HashLength::Short)).unwrap()
}

fn id(device: &str, slot: u32) -> String {
    slot_name(&name(device), slot)
}

fn entry(device: &str, shared: bool) -> Entry {
    let mount = Mount { container_path: "/cam".into(), host_path: format!("/dev/{device}"), read_only: true };
    Entry {
        key: Key::new("default", name(device)),
        uid: String::new(),
        identity: identity(device),
        configuration: "cam".into(),
        configuration_uid: "c".into(),
        shared,
        capacity: 2,
        device: Device { id: device.into(), mounts: vec![mount], ..Device::default() },
        online: Online::True,
        withheld: false,
        claims: Default::default(),
        others: Default::default(),
    }
}

fn by(node: &str) -> Usage {
    Usage::Instance { node: node.into() }
}

fn view(version: u64, slots: &[(u32, &str)]) -> ApiView {
    let slots = slots.iter().map(|(slot, text)| (*slot, Usage::read(text))).collect();
    ApiView::Present(PublishedSlots { uid: "u".into(), version: Version(version.to_string()), history: 0, slots })
}

/// A machine whose Instances are shown free, and the effects of that forgotten.
fn machine_of(entries: Vec<Entry>, broker_info: bool) -> ClaimMachine {
    let mut machine = ClaimMachine::new(HERE.into(), configuration(broker_info), "/info".into());
    for entry in entries {
        let (identity, shared) = (entry.identity.clone(), entry.shared);
        machine.insert(ManagedInstance::new(entry, HERE, false, moment(0)));
        if shared {
            machine.observe(&identity, view(1, &[(0, ""), (1, "")]), moment(0));
        }
    }
    record_all(&mut machine, true);
    machine
}

fn shared(devices: &[&str]) -> ClaimMachine {
    machine_of(devices.iter().map(|device| entry(device, true)).collect(), false)
}

fn local(device: &str) -> ClaimMachine {
    machine_of(vec![entry(device, false)], false)
}

/// Takes the effects, and says of each record that it is written, or not. Returns all effects.
fn record_all(machine: &mut ClaimMachine, is_written: bool) -> Vec<Effect> {
    let mut all = Vec::new();
    loop {
        let effects = machine.effects();
        if effects.is_empty() {
            return all;
        }
        for effect in &effects {
            if let Effect::Record(record) = effect {
                machine.recorded(&record.identity, record.revision, is_written, moment(100));
            }
        }
        all.extend(effects);
    }
}

fn allocate(machine: &mut ClaimMachine, target: Target, ids: &[String], generation: u64) -> AllocationId {
    machine.allocate(target, vec![ids.to_vec()], moment(generation))
}

fn show(machine: &mut ClaimMachine, view: ApiView) {
    machine.observe(&identity("a"), view, moment(50));
}

fn answers(effects: &[Effect]) -> Vec<Result<usize, String>> {
    let answer = |effect: &Effect| match effect {
        Effect::Answer(_, Ok(edits)) => Some(Ok(edits.len())),
        Effect::Answer(_, Err(refusal)) => Some(Err(format!("{refusal:?}"))),
        _ => None,
    };
    effects.iter().filter_map(answer).collect()
}

fn patch(machine: &mut ClaimMachine, device: &str) -> Option<BTreeMap<u32, (Option<Usage>, Usage)>> {
    match machine.start_step(&identity(device))? {
        SyncStep::Patch(patch) => Some(patch.changes),
        step => panic!("{step:?}"),
    }
}

#[test] // rule 7, rule 9, rule 14
fn refusal_has_a_reason_and_resends_the_list() {
    let (cam, of_configuration) = (Target::Instance(identity("a")), Target::Configuration);
    let instance = name("a");
    type Prepare = fn(&mut ClaimMachine);
    let nothing: Prepare = |_| {};
    let cases: [(Prepare, Target, Vec<String>, String); 15] = [
        (nothing, cam.clone(), vec![], r#"Invalid("a container asks for no device")"#.into()),
        (nothing, cam.clone(), vec!["x".into()], format!(r#"Invalid("'x' is no slot of '{instance}'")"#)),
        (nothing, cam.clone(), vec![id("a", 7)], r#"NotFound("slot 7 does not exist: the capacity is 2")"#.into()),
        (nothing, Target::Instance(identity("z")), vec![id("z", 0)], r#"NotFound("the device is gone")"#.into()),
        (
            |machine| machine.change(&identity("a")).unwrap().set_online(Online::False),
            cam.clone(),
            vec![id("a", 0)],
            format!(r#"Unavailable("the device of '{instance}' is offline")"#),
        ),
        (
            |machine| machine.change(&identity("a")).unwrap().set_online(Online::Unknown),
            cam.clone(),
            vec![id("a", 0)],
            format!(r#"Unavailable("the device of '{instance}' may be offline: its discovery handler has gone")"#),
        ),
        (
            |machine| machine.change(&identity("a")).unwrap().set_withheld(true),
            cam.clone(),
            vec![id("a", 0)],
            format!(r#"Unavailable("the device of '{instance}' is withheld: see the status of its Configuration")"#),
        ),
        (
            |machine| show(machine, view(2, &[(0, "there")])),
            cam.clone(),
            vec![id("a", 0)],
            r#"Unavailable("slot 0 is in use by node 'there'")"#.into(),
        ),
        (
            |machine| show(machine, view(2, &[(0, "C:0")])),
            cam.clone(),
            vec![id("a", 0)],
            r#"Unavailable("slot 0 is in use by 'C:0', which names no node")"#.into(),
        ),
        (
            |machine| show(machine, ApiView::Absent),
            cam.clone(),
            vec![id("a", 0)],
            r#"Unavailable("the API server has not told who uses slot 0")"#.into(),
        ),
        (
            |machine| {
                allocate(machine, Target::Instance(identity("a")), &[id("a", 0)], 1);
            },
            cam.clone(),
            vec![id("a", 0)],
            r#"Unavailable("slot 0 waits for the API server to confirm an earlier change")"#.into(),
        ),
        (nothing, cam, vec![id("a", 0), id("a", 2)], r#"NotFound("slot 2 does not exist: the capacity is 2")"#.into()),
        (
            nothing,
            of_configuration.clone(),
            vec!["x".into()],
            r#"Invalid("'x' is no virtual device of this Configuration")"#.into(),
        ),
        (
            nothing,
            of_configuration.clone(),
            ["0", "1", "2"].map(str::to_owned).to_vec(),
            r#"Unavailable("the container wants 3 different devices, and 2 have a free slot or one that it holds")"#
                .into(),
        ),
        (
            nothing,
            of_configuration,
            ["0", "1"].map(str::to_owned).to_vec(),
            r#"Conflict("container path '/cam' is wanted for both '/dev/a' and '/dev/b'")"#.into(),
        ),
    ];
    for (prepare, target, ids, expected) in cases {
        let mut machine = shared(&["a", "b"]);
        prepare(&mut machine);
        record_all(&mut machine, true);
        let before: Vec<_> = machine.instances().values().map(|one| one.slots().clone()).collect();
        allocate(&mut machine, target.clone(), &ids, 2);
        let effects = machine.effects();
        assert_eq!(answers(&effects), [Err(expected)]);
        assert!(effects.contains(&Effect::Resend(target)), "the kubelet may know an older list: {effects:?}");
        let after: Vec<_> = machine.instances().values().map(|one| one.slots().clone()).collect();
        assert_eq!(before, after, "{ids:?} left something behind");
    }
}

#[test] // rule 10, rule 42
fn shared_claim_is_granted_once_recorded_and_shown() {
    for record_first in [true, false] {
        let mut machine = shared(&["a"]);
        allocate(&mut machine, Target::Instance(identity("a")), &[id("a", 1)], 1);
        let confirm = |machine: &mut ClaimMachine| show(machine, view(2, &[(1, HERE)]));
        assert_eq!(patch(&mut machine, "a"), Some([(1, (Some(Usage::Free), by(HERE)))].into()));
        let effects = if record_first {
            assert_eq!(answers(&record_all(&mut machine, true)), []);
            confirm(&mut machine);
            machine.effects()
        } else {
            confirm(&mut machine);
            assert!(answers(&machine.clone().effects()).is_empty(), "it is not on disk");
            record_all(&mut machine, true)
        };
        assert_eq!(answers(&effects), [Ok(1)], "record first: {record_first}");
        machine.answered(1, true);
        assert_eq!(machine.get(&identity("a")).unwrap().journal_entry().claims[&1].state, ClaimState::Held);
    }
}

#[test] // rule 10
fn local_claim_is_granted_once_recorded() {
    let mut machine = local("a");
    allocate(&mut machine, Target::Instance(identity("a")), &[id("a", 0)], 1);
    assert_eq!(machine.start_step(&identity("a")), None, "no API server is needed");
    let state = |machine: &ClaimMachine| machine.get(&identity("a")).unwrap().slots().state(0).clone();
    assert!(matches!(state(&machine), SlotState::Claiming(_)));
    assert_eq!(answers(&record_all(&mut machine, true)), [Ok(1)]);
    assert!(matches!(state(&machine), SlotState::Held(_)));
}

#[test] // rule 14
fn virtual_device_that_loses_a_slot_tries_others() {
    let devices = ["a", "b", "c", "d", "e"];
    let mut machine = shared(&devices);
    allocate(&mut machine, Target::Configuration, &["0".into()], 1);
    record_all(&mut machine, true);
    let mut tried = BTreeSet::new();
    for attempt in 1..=4 {
        let claiming = |one: &ManagedInstance| one.slots().claims().next().is_some();
        let (identity, _) = machine.instances().iter().find(|(_, one)| claiming(one)).unwrap();
        let identity = identity.clone();
        assert!(tried.insert(identity.clone()), "another device each time");
        let taken = view(9, &[(0, "there"), (1, "there")]);
        machine.observe(&identity, taken, moment(attempt + 1));
        let answered = answers(&record_all(&mut machine, true));
        match attempt {
            4 => assert_eq!(answered, [Err(r#"Unavailable("slot 0 is in use by node 'there'")"#.into())]),
            _ => assert_eq!(answered, [], "attempt {attempt}"),
        }
    }
    assert!(machine.instances().values().all(|one| one.slots().is_idle()));
}

#[test] // rule 7
fn slot_of_the_instance_resource_is_lost_for_good() {
    let mut machine = shared(&["a"]);
    allocate(&mut machine, Target::Instance(identity("a")), &[id("a", 0)], 1);
    machine.observe(&identity("a"), view(2, &[(0, "there")]), moment(2));
    let lost = r#"Unavailable("slot 0 is in use by node 'there'")"#;
    assert_eq!(answers(&record_all(&mut machine, true)), [Err(lost.into())]);
}

#[test] // rule 10
fn slot_that_was_edited_before_it_is_recorded_is_lost() {
    let mut machine = shared(&["a"]);
    allocate(&mut machine, Target::Instance(identity("a")), &[id("a", 0)], 1);
    show(&mut machine, view(2, &[(0, HERE)]));
    show(&mut machine, view(3, &[(0, "there")]));
    let lost = r#"Unavailable("slot 0 is in use by node 'there'")"#;
    assert_eq!(answers(&record_all(&mut machine, true)), [Err(lost.into())]);
}

#[test] // rule 7, rule 46
fn held_slot_is_granted_again_unless_the_api_server_lacks_it() {
    let held = || {
        let claims = shared(&["a"]);
        let mut machine = ClaimMachine::new(HERE.into(), configuration(false), "/info".into());
        let mut entry = claims.get(&identity("a")).unwrap().journal_entry();
        let (edits, users, state) = (Default::default(), Default::default(), ClaimState::Held);
        entry.claims.insert(0, crate::claim::JournaledClaim { usage: by(HERE), edits, generation: 1, users, state });
        machine.insert(ManagedInstance::new(entry, HERE, false, moment(0)));
        machine
    };
    let cases = [
        (ApiView::Unknown, true),
        (view(2, &[(0, HERE)]), true),
        (view(2, &[(0, "C:1:here")]), true),
        (view(2, &[(0, "")]), false),
        (ApiView::Absent, false),
    ];
    for (shown, is_granted) in cases {
        let mut machine = held();
        show(&mut machine, shown.clone());
        allocate(&mut machine, Target::Instance(identity("a")), &[id("a", 0)], 3);
        assert_eq!(answers(&record_all(&mut machine, true)).len(), usize::from(is_granted), "{shown:?}");
        show(&mut machine, view(4, &[(0, HERE)]));
        assert_eq!(answers(&record_all(&mut machine, true)).len(), usize::from(!is_granted), "{shown:?}");
    }
}

#[test] // rule 7
fn containers_of_one_allocate_are_granted_together() {
    let (a, both) = (Target::Instance(identity("a")), vec![vec![id("a", 0)], vec![id("a", 1)]]);
    let mut machine = shared(&["a"]);
    machine.allocate(a.clone(), both.clone(), moment(1));
    record_all(&mut machine, true);
    machine.observe(&identity("a"), view(2, &[(0, HERE), (1, "")]), moment(2));
    assert_eq!(answers(&record_all(&mut machine, true)), [], "one is not confirmed");
    machine.observe(&identity("a"), view(3, &[(0, HERE), (1, HERE)]), moment(3));
    assert_eq!(answers(&record_all(&mut machine, true)), [Ok(2)]);

    let mut machine = shared(&["a"]);
    machine.allocate(a.clone(), both, moment(1));
    record_all(&mut machine, true);
    machine.observe(&identity("a"), view(2, &[(0, HERE), (1, "there")]), moment(2));
    assert_eq!(answers(&record_all(&mut machine, true)).len(), 1);
    assert_eq!(patch(&mut machine, "a"), Some([(0, (Some(by(HERE)), Usage::Free))].into()), "the other one goes back");

    let mut machine = shared(&["a", "b"]);
    machine.allocate(Target::Configuration, vec![vec!["0".into()], vec!["1".into()]], moment(1));
    record_all(&mut machine, true);
    for (device, version) in [("a", 2), ("b", 3)] {
        let claims = machine.get(&identity(device)).unwrap().slots().claims();
        let usage: Vec<(u32, String)> = claims.map(|(slot, claim)| (slot, claim.usage.to_string())).collect();
        let shown: Vec<(u32, &str)> = usage.iter().map(|(slot, text)| (*slot, text.as_str())).collect();
        machine.observe(&identity(device), view(version, &shown), moment(version));
    }
    assert_eq!(answers(&record_all(&mut machine, true)), [Ok(2)]);
}

#[test] // rule 39
fn directories_come_with_the_record_of_their_claim() {
    let mut machine = machine_of(vec![entry("a", true), entry("b", true)], true);
    let directories = |effects: Vec<Effect>| -> Vec<String> {
        let records = effects.into_iter().filter_map(|effect| match effect {
            Effect::Record(record) => Some(record.directories),
            _ => None,
        });
        records.flatten().map(|directory| directory.to_string()).collect()
    };
    allocate(&mut machine, Target::Instance(identity("a")), &[id("a", 0), id("a", 9)], 1);
    machine.change(&identity("a"));
    assert_eq!(directories(record_all(&mut machine, true)), [""; 0], "a refused claim needs none");
    allocate(&mut machine, Target::Instance(identity("a")), &[id("a", 0)], 2);
    assert_eq!(directories(record_all(&mut machine, true)), [format!("default.{}.2", id("a", 0))]);
    machine.change(&identity("a"));
    assert_eq!(directories(record_all(&mut machine, true)), [""; 0], "it is created once");
}

#[test] // rule 28
fn record_that_fails_refuses_the_allocate_and_is_repeated() {
    let mut machine = local("a");
    allocate(&mut machine, Target::Instance(identity("a")), &[id("a", 0)], 1);
    let record = |machine: &mut ClaimMachine| {
        let records = machine.effects().into_iter().rev().find_map(|effect| match effect {
            Effect::Record(record) => Some(record),
            _ => None,
        });
        records.unwrap()
    };
    let first = record(&mut machine);
    machine.recorded(&first.identity, first.revision, false, moment(2));
    assert!(!machine.has_unrecorded(), "the claim is taken back: another record is on its way");
    let effects = machine.effects();
    let why = "the claim can't be recorded; see the agent's log";
    assert_eq!(answers(&effects), [Err(format!("Internal({why:?})"))]);
    let Some(Effect::Record(second)) = effects.last() else { panic!("{effects:?}") };
    machine.recorded(&second.identity, second.revision, false, moment(3));
    assert!(machine.has_unrecorded());
    machine.record_again();
    let third = record(&mut machine);
    assert!(third.entry.claims.is_empty());
    machine.record_again();
    assert_eq!(machine.effects(), [], "the third is on its way");
    machine.recorded(&third.identity, third.revision, true, moment(4));
    assert!(!machine.has_unrecorded());
}

#[test] // rule 7, rule 11
fn expired_allocate_is_refused_and_its_slot_given_back() {
    for (is_written, silent) in [(true, "the API server"), (false, "the journal")] {
        let mut machine = shared(&["a"]);
        let allocation = allocate(&mut machine, Target::Instance(identity("a")), &[id("a", 0)], 1);
        if is_written {
            record_all(&mut machine, true);
        }
        machine.expire(allocation);
        let expected = format!("{silent} did not confirm the claim within 2s");
        assert_eq!(answers(&machine.effects()), [Err(format!("Unavailable({expected:?})"))]);
        machine.observe(&identity("a"), view(2, &[(0, HERE)]), moment(2));
        assert_eq!(machine.start_step(&identity("a")), None, "that is not recorded yet");
        machine.recorded(&identity("a"), 9, true, moment(5));
        assert_eq!(patch(&mut machine, "a"), Some([(0, (Some(by(HERE)), Usage::Free))].into()));
    }
}

#[test] // rule 7
fn answer_that_nobody_received_ends_new_claims_only() {
    let mut machine = local("a");
    let target = Target::Instance(identity("a"));
    let first = allocate(&mut machine, target.clone(), &[id("a", 0)], 1);
    record_all(&mut machine, true);
    machine.answered(first, true);
    let second = allocate(&mut machine, target.clone(), &[id("a", 0), id("a", 1)], 2);
    assert_eq!(answers(&record_all(&mut machine, true)), [Ok(1)]);
    machine.answered(second, false);
    assert!(machine.effects().contains(&Effect::Resend(target)));
    let held: Vec<u32> = machine.get(&identity("a")).unwrap().slots().claims().map(|(slot, _)| slot).collect();
    assert_eq!(held, [0], "the container that had slot 0 before may run");
}

/// A snapshot in which no container uses anything.
fn nothing_runs() -> UsageSnapshot {
    let info = SnapshotInfo {
        generation: 2,
        epoch: 1,
        at: Duration::from_secs(100),
        settled: true,
        refreshable: true,
        is_renewed: true,
        release_delay: Duration::ZERO,
    };
    let (listed, without_devices) = (Arc::default(), Arc::default());
    UsageSnapshot { info, listed, without_devices, checkpoint: Some(Arc::default()), running: None }
}

#[test] // rule 110
fn use_through_a_resource_claim_ends_by_no_observation() {
    let mut entry = entry("a", false);
    let usage = Usage::ResourceClaim { claim: "u".into(), node: HERE.into() };
    let (edits, users) = (ContainerEdits::default(), ObservedUsers::default());
    entry.claims.insert(0, JournaledClaim { usage, edits, generation: 1, users, state: ClaimState::Held });
    let mut machine = machine_of(vec![entry], false);
    (0..5).for_each(|_| machine.apply_snapshot(&nothing_runs()));
    assert_eq!(machine.effects(), []);
    assert!(matches!(machine.get(&identity("a")).unwrap().slots().state(0), SlotState::Held(_)));
}

#[test] // rule 41
fn slot_is_given_back_once_that_is_recorded() {
    let mut machine = shared(&["a"]);
    allocate(&mut machine, Target::Instance(identity("a")), &[id("a", 0)], 1);
    machine.observe(&identity("a"), view(2, &[(0, HERE)]), moment(2));
    record_all(&mut machine, true);
    machine.answered(1, true);
    record_all(&mut machine, true);
    let snapshot = nothing_runs();
    machine.apply_snapshot(&snapshot);
    assert_eq!(machine.effects(), [Effect::RefreshCheckpoint]);
    machine.apply_snapshot(&snapshot);
    let effects = machine.effects();
    assert!(effects.contains(&Effect::Notify(identity("a"), Notice::Released(vec![(0, None)]))), "{effects:?}");
    assert_eq!(machine.start_step(&identity("a")), None, "that is not recorded yet");
    let Some(Effect::Record(record)) = effects.last() else { panic!("{effects:?}") };
    assert_eq!(record.entry.claims[&0].state, ClaimState::Releasing);
    machine.recorded(&record.identity, record.revision, true, moment(4));
    assert_eq!(patch(&mut machine, "a"), Some([(0, (Some(by(HERE)), Usage::Free))].into()));
    assert_eq!(machine.start_step(&identity("a")), None, "one step at a time");
}

#[test] // rule 7
fn allocate_of_a_slot_that_is_given_back_waits_for_it() {
    let by_configuration = (Target::Configuration, vec!["0".to_owned(), "1".to_owned()]);
    for (target, ids) in [(Target::Instance(identity("a")), vec![id("a", 0), id("a", 1)]), by_configuration] {
        let mut machine = machine_of(vec![entry("a", true), entry("b", true)], false);
        machine.observe(&identity("b"), view(2, &[(0, "there"), (1, "there")]), moment(1));
        for (generation, id) in ids.iter().enumerate() {
            allocate(&mut machine, target.clone(), std::slice::from_ref(id), generation as u64 + 1);
        }
        let claims = match target {
            Target::Instance(_) => view(2, &[(0, HERE), (1, HERE)]),
            Target::Configuration => view(2, &[(0, "C:0:here"), (1, "C:1:here")]),
        };
        show(&mut machine, claims);
        record_all(&mut machine, true);
        (1..=2).for_each(|id| machine.answered(id, true));
        let snapshot = UsageSnapshot { info: SnapshotInfo { generation: 3, ..nothing_runs().info }, ..nothing_runs() };
        (0..2).for_each(|_| machine.apply_snapshot(&snapshot));
        record_all(&mut machine, true);

        let again = allocate(&mut machine, target.clone(), &ids[..1], 60);
        let expiring = allocate(&mut machine, target.clone(), &ids[1..], 61);
        assert_eq!(answers(&record_all(&mut machine, true)), [], "{target:?}");
        machine.expire(expiring);
        let late = "Unavailable(\"the API server did not confirm the release of a slot within 2s\")".to_owned();
        assert_eq!(answers(&record_all(&mut machine, true)), [Err(late)]);
        show(&mut machine, view(3, &[(0, ""), (1, "")]));
        assert_eq!(answers(&record_all(&mut machine, true)), [], "the claim is not shown");
        let claim = machine.get(&identity("a")).unwrap().slots().claims().next().unwrap().1.usage.to_string();
        show(&mut machine, view(4, &[(0, &claim), (1, "")]));
        assert_eq!(answers(&record_all(&mut machine, true)), [Ok(1)]);
        machine.answered(again, true);
    }
}

#[test] // rule 45, rule 108
fn claims_of_the_checkpoint_take_free_slots_only() {
    let mut machine = shared(&["a"]);
    machine.observe(&identity("a"), view(2, &[(0, "there"), (1, "")]), moment(1));
    record_all(&mut machine, true);
    let lost = [(0, by(HERE)), (1, by(HERE))].into();
    assert_eq!(machine.restore_lost(&identity("a"), &lost, moment(2)), [1]);
    assert_eq!(machine.restore_lost(&identity("a"), &lost, moment(3)), [0; 0]);
    assert_eq!(patch(&mut machine, "a"), Some([(1, (Some(Usage::Free), by(HERE)))].into()));
}
