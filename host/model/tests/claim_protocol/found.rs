//! Schedules that failed once. The exploration prints a new one in this form.

use crate::PAIR;
use crate::bounds::Bounds;
use crate::bounds::Edit::OtherNode;
use crate::bounds::Fault::{
    Crash, DelayAnswer, DeleteInstance, EditCapacity, EditUsage, ForceDelete, HideCgroups, ListEnded, LoseCheckpoint,
    RestartKubelet, Restore, SlowDisk, StallWatch,
};
use crate::explore::replay;
use crate::world::Action::{Allocate, Converge, Deliver, End, Fault, Poll, ResumeWatch, Start, Wait};
use crate::world::Wanted::{Slot, Virtual};

const LARGE: Bounds = Bounds { pods: 3, faults: 4, virtual_devices: true, init: true, ..PAIR };

#[test] // rule 28
fn edited_slot_gets_no_second_container() {
    let slot = Slot { instance: 0, slot: 0, init: false };
    let edited = [Fault(EditUsage(0, 0, OtherNode)), Fault(EditUsage(0, 0, OtherNode))];
    replay(PAIR, &[&edited[..], &[Allocate(0, slot), Allocate(1, slot)]].concat());
    // Its second user gives it back before the first one has claimed it again.
    let released = [Poll(1, true), Wait(1), Poll(1, true), Deliver(0)];
    replay(PAIR, &[&edited[..], &released, &[Allocate(0, slot), Allocate(1, slot), Deliver(1)]].concat());
}

#[test] // rule 10
fn claim_that_is_edited_before_it_is_on_disk_is_not_granted() {
    let slot = Slot { instance: 0, slot: 0, init: false };
    let edit = Fault(EditUsage(0, 0, OtherNode));
    replay(PAIR, &[Fault(SlowDisk(0)), Allocate(0, slot), Deliver(0), edit, Allocate(1, slot)]);
}

#[test] // rule 102
fn forgotten_container_keeps_a_slot_that_is_offered_again() {
    let wanted = Virtual { number: 0, init: true };
    let forgotten = [Allocate(1, wanted), Deliver(0), Poll(1, true), Fault(LoseCheckpoint(1))];
    replay(LARGE, &[&forgotten[..], &[Allocate(1, wanted), End(1, 0)]].concat());
}

#[test] // rule 102
fn ended_pod_that_is_listed_keeps_no_slot() {
    let slot = Slot { instance: 0, slot: 0, init: false };
    let observed = [Allocate(0, slot), Deliver(0), Poll(0, true)];
    replay(PAIR, &[&[Fault(ListEnded(0))], &observed[..]].concat());
    let restarted = [Fault(RestartKubelet(0)), End(0, 0), Converge(0), Poll(0, true), Poll(0, true)];
    replay(PAIR, &[&[Fault(ListEnded(0))], &observed[..], &restarted].concat());
    let lost = [Fault(LoseCheckpoint(0)), Converge(0), Poll(0, true), Poll(0, true), Allocate(1, slot)];
    replay(PAIR, &[&[Fault(HideCgroups(0))], &observed[..], &lost].concat());
}

#[test] // rule 101
fn terminating_init_container_keeps_its_slot_for_the_delay() {
    let slot = |init| Slot { instance: 0, slot: 0, init };
    let terminating =
        [Allocate(1, slot(true)), Deliver(0), Wait(1), Fault(ForceDelete(1, 0)), Poll(1, true), Poll(1, true)];
    let other = [Deliver(0), Allocate(0, slot(false)), Deliver(0)];
    replay(LARGE, &[&[Fault(HideCgroups(1))], &terminating[..], &other].concat());
}

#[test] // rule 101
fn terminating_container_keeps_a_slot_that_an_earlier_pod_had() {
    let slot = |init| Slot { instance: 0, slot: 0, init };
    let first = [Allocate(1, slot(false)), Deliver(0), End(1, 0), Poll(1, true)];
    let second = [Allocate(1, slot(true)), Fault(ForceDelete(1, 0)), Poll(1, true), Poll(1, true)];
    replay(LARGE, &[&first[..], &second, &[Deliver(0), Allocate(0, slot(false)), Deliver(0)]].concat());
}

#[test] // rule 106
fn restored_capacity_gives_no_slot_to_two() {
    let slot = |slot, init| Slot { instance: 0, slot, init };
    let virtual_device = |number, init| Virtual { number, init };
    let before = [Allocate(0, virtual_device(0, true)), Allocate(1, slot(0, false)), Allocate(2, slot(1, true))];
    let late = [Deliver(1), Allocate(1, virtual_device(0, false)), Fault(Restore), Deliver(0), Deliver(0), Deliver(0)];
    let after = [Allocate(0, virtual_device(1, true)), Deliver(1), End(0, 0), Deliver(0)];
    let end = [Allocate(0, virtual_device(0, false)), Deliver(0), Allocate(2, slot(1, false))];
    let bounds = Bounds { nodes: 3, slots: 1, ..LARGE };
    replay(bounds, &[&[Fault(EditCapacity)], &before[..], &late, &after, &end].concat());
}

/// A node that did not know of a claim makes the Instance again, and one that knows it starts again before it has said so.
#[test] // rule 103
fn carried_usage_survives_a_restart() {
    let slot = Slot { instance: 0, slot: 0, init: false };
    let used = [Fault(StallWatch(2)), Allocate(1, slot), Deliver(0), Fault(Crash(1)), Fault(DeleteInstance(0))];
    let made_by_third = [ResumeWatch(2), Deliver(1), Deliver(0)];
    let restarted =
        [Fault(Crash(0)), Start(0), Allocate(0, slot), Deliver(0), Allocate(0, slot), Deliver(0), Deliver(0)];
    let bounds = Bounds { nodes: 3, faults: 4, pods: 2, ..PAIR };
    replay(bounds, &[&used[..], &made_by_third, &restarted].concat());
}

/// An answer comes after the watch has shown that the Instance was deleted, and lacks what the watch showed before.
#[test] // rule 103
fn late_answer_of_a_deleted_instance_frees_no_slot() {
    let slot = |init| Slot { instance: 0, slot: 1, init };
    let used =
        [Allocate(0, Virtual { number: 0, init: false }), Allocate(1, slot(true)), Fault(DelayAnswer(0)), Deliver(1)];
    let made_again = [Fault(DeleteInstance(0)), Deliver(0), Deliver(0), Allocate(0, slot(false))];
    replay(Bounds { slots: 2, ..LARGE }, &[&used[..], &made_again].concat());
}
