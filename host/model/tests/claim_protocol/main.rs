//! The claim protocol, explored (rule 111, rule 112): nodes with the claim machine that the agent runs, around a modelled
//! API server, network, kubelet and controller, with everything that may go wrong at any time.
//!
//! [`bounds::Fault`] lists the faults, [`world::Action`] what happens without one. `EXPLORE_VERBOSE=1` shows progress.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a model that breaks its own bounds must fail"
)]

mod bounds;
mod explore;
mod world;

use bounds::{Bounds, Mutation};
use explore::explore;
use world::World;

const PAIR: Bounds = Bounds {
    nodes: 2,
    instances: 1,
    slots: 1,
    pods: 1,
    faults: 2,
    virtual_devices: false,
    init: false,
    mutation: None,
};

fn explore_all(bounds: Bounds) {
    let start = World::new(bounds);
    let explored = explore(&start);
    println!("{bounds:?}: {} states, depth {}, {:.1?}", explored.states, explored.depth, explored.time);
    if let Some(failure) = explored.failure {
        panic!("{}", failure.test(&start));
    }
    assert!(explored.states > 1_000, "the model does nothing");
}

/// A schedule that failed once.
#[test]
fn pasted() {
    use bounds::Edit::*;
    use bounds::Fault::*;
    use world::Action::*;
    use world::Wanted::*;
    explore::replay(
        &World::new(Bounds {
            nodes: 2,
            instances: 1,
            slots: 1,
            pods: 1,
            faults: 2,
            virtual_devices: false,
            init: false,
            mutation: None,
        }),
        &[
            Fault(EditUsage(0, 0, OtherNode)),
            Fault(EditUsage(0, 0, OtherNode)),
            Poll(1, true),
            Wait(1),
            Poll(1, true),
            Deliver(0),
            Allocate(0, Slot { instance: 0, slot: 0, init: false }),
            Allocate(1, Slot { instance: 0, slot: 0, init: false }),
            Deliver(1),
        ],
    );
}

#[test] // rule 112
fn one_fault() {
    explore_all(Bounds { faults: 1, ..PAIR });
}

#[test] // rule 112
fn every_pair_of_faults_shares_or_loses_no_slot() {
    explore_all(PAIR);
}

#[test] // rule 112
fn no_rule_can_be_switched_off() {
    use Mutation::{Rule100, Rule101, Rule102, Rule103, Rule104, Rule105, Rule106};
    for mutation in [Rule100, Rule101, Rule102, Rule103, Rule104, Rule105, Rule106] {
        let start = World::new(Bounds { mutation: Some(mutation), ..PAIR });
        let explored = explore(&start);
        let failure = explored.failure.unwrap_or_else(|| panic!("{mutation:?} is not missed"));
        println!("{mutation:?}: {} states, {:.1?}: {}", explored.states, explored.time, failure.violation);
    }
}
