//! The claim protocol, explored exhaustively: two nodes, two slots of one shared Instance, an API server behind a network
//! that loses, repeats and delays, kubelets with app and init containers, and agents that crash at every step (rule 50).
//!
//! The nodes run the functions of this crate that the agent runs. `EXPLORE_FAULTS=N` and `EXPLORE_ALLOCATES=N` go deeper.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a model that breaks its own bounds must fail"
)]

mod explore;
mod world;

use explore::explore;
use world::World;

fn limit(name: &str, default: u8) -> u8 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn explore_all(slots: u32, faults: u8, allocates: u8) {
    let (faults, allocates) = (limit("EXPLORE_FAULTS", faults), limit("EXPLORE_ALLOCATES", allocates));
    let explored = explore(World::new(slots, faults, allocates));
    println!(
        "{slots} slots, {faults} faults, {allocates} pods a node: {} states, {} transitions, depth {}",
        explored.states, explored.transitions, explored.depth
    );
    assert!(explored.states > 10_000, "the model does nothing");
}

#[test] // rule 50
fn two_nodes_never_share_or_lose_one_of_two_slots() {
    explore_all(2, 1, 1);
}

#[test] // rule 50
fn two_nodes_never_share_or_lose_a_slot_used_twice() {
    explore_all(1, 1, 2);
}
