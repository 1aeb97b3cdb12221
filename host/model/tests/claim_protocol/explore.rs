//! Breadth-first search through all schedules.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::world::{Action, World};

/// The result of an exploration.
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) transitions: usize,
}

type Fingerprint = u64;

/// Visits every reachable state once.
///
/// # Panics
/// With the shortest schedule, if a property does not hold.
pub(crate) fn explore(start: World) -> Explored {
    let mut came_from: HashMap<Fingerprint, Option<(Fingerprint, Action)>> = HashMap::new();
    came_from.insert(start.fingerprint(), None);
    let mut calmed = HashSet::new();
    let (mut frontier, mut depth, mut transitions) = (vec![start], 0, 0);
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for world in frontier {
            let own = world.fingerprint();
            for action in world.actions() {
                transitions += 1;
                let after = world.after(&action);
                let broken = world.granted_without_proof(&action).or_else(|| after.violation());
                if let Some(broken) = broken {
                    panic!("{broken}, after {:#?}", schedule(&came_from, own, &action));
                }
                if let Entry::Vacant(entry) = came_from.entry(after.fingerprint()) {
                    entry.insert(Some((own, action.clone())));
                    let calm = after.calm();
                    if calmed.insert(calm.fingerprint())
                        && let Some(broken) = calm.leftover()
                    {
                        panic!("{broken}, after {:#?}", schedule(&came_from, own, &action));
                    }
                    next.push(after);
                }
            }
        }
        frontier = next;
        depth += 1;
    }
    Explored { states: came_from.len(), depth, transitions }
}

fn schedule(
    came_from: &HashMap<Fingerprint, Option<(Fingerprint, Action)>>,
    state: Fingerprint,
    last: &Action,
) -> Vec<Action> {
    let mut schedule = vec![last.clone()];
    let mut at = state;
    while let Some(Some((before, action))) = came_from.get(&at) {
        schedule.push(action.clone());
        at = *before;
    }
    schedule.reverse();
    schedule
}
