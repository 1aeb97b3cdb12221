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
mod found;
mod random;
mod world;

use std::time::{Duration, UNIX_EPOCH};

use bounds::{Bounds, Mutation};
use explore::explore;
use random::{explore_at_random, shorten};
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
        panic!("{}", shorten(&start, failure).test(&start));
    }
    assert!(explored.states > 1_000, "the model does nothing");
}

#[test] // rule 111, rule 112
fn random_schedules() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("EXPLORE_SECONDS").unwrap_or(5);
    let seed = number("EXPLORE_SEED").unwrap_or_else(|| UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    println!("EXPLORE_SEED={seed}");
    let large = Bounds {
        nodes: 3,
        instances: 2,
        slots: 2,
        pods: 3,
        faults: 4,
        virtual_devices: true,
        init: true,
        mutation: None,
    };
    let bounds = [
        large,
        Bounds { slots: 1, ..large },
        Bounds { nodes: 2, instances: 1, ..large },
        Bounds { nodes: 3, instances: 1, slots: 1, ..large },
        Bounds { nodes: 2, instances: 1, slots: 1, pods: 2, ..large },
    ];
    match explore_at_random(&bounds, seed, Duration::from_secs(seconds)) {
        Ok(schedules) => println!("{schedules} random schedules of up to four faults"),
        Err(failure) => panic!("{failure}"),
    }
}

#[test] // rule 112
fn every_pair_of_faults_shares_or_loses_no_slot() {
    explore_all(PAIR);
}

#[test] // rule 112
fn one_fault_with_two_pods_shares_or_loses_no_slot() {
    explore_all(Bounds { faults: 1, pods: 2, ..PAIR });
}

#[test] // rule 112
fn one_fault_with_two_slots_shares_or_loses_no_slot() {
    explore_all(Bounds { faults: 1, slots: 2, ..PAIR });
}

#[test] // rule 112
fn one_fault_with_init_containers_shares_or_loses_no_slot() {
    explore_all(Bounds { faults: 1, virtual_devices: true, init: true, ..PAIR });
}

/// Switches each rule off: an exploration that can't fail proves nothing.
#[test] // rule 112
fn no_rule_can_be_switched_off() {
    use Mutation::{Rule19, Rule100, Rule101, Rule102, Rule103, Rule104, Rule105, Rule106};
    let of_two = [(Rule19, 2), (Rule102, 2), (Rule103, 2)];
    let of_one = [Rule100, Rule101, Rule104, Rule105, Rule106].map(|mutation| (mutation, 1));
    let faults = of_two.into_iter().chain(of_one);
    for (mutation, faults) in faults {
        let start = World::new(Bounds { mutation: Some(mutation), faults, ..PAIR });
        let explored = explore(&start);
        let failure = explored.failure.unwrap_or_else(|| panic!("{mutation:?} is not missed"));
        println!("{mutation:?}: {} states, {:.1?}: {}", explored.states, explored.time, failure.test(&start));
    }
}
