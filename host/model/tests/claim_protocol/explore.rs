//! Breadth-first search through all schedules, on all cores.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bounds::Bounds;
use crate::world::{Action, ENDINGS, World};

const SHARDS: usize = 64;

/// Worlds that a thread takes at a time.
const CHUNK: usize = 64;

/// Worlds that are expanded together. Those that wait are large, and the fewer the deeper the search goes first.
const BLOCK: usize = 1024;

/// The result of an exploration.
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) time: Duration,
    pub(crate) failure: Option<Failure>,
}

/// A property that does not hold.
pub(crate) struct Failure {
    pub(crate) violation: String,
    pub(crate) schedule: Vec<Action>,
}

/// Worlds by fingerprint, each with the one that it came from.
struct Seen(Vec<Mutex<HashMap<u64, u64, Unhashed>>>);

/// Worlds that end well.
struct Calm(Vec<Mutex<HashSet<u64, Unhashed>>>);

type Unhashed = BuildHasherDefault<Identity>;

#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

impl Seen {
    /// Notes a world. Returns whether it is new.
    fn insert(&self, fingerprint: u64, came_from: u64) -> bool {
        let mut shard = self.0[fingerprint as usize % SHARDS].lock().unwrap();
        let is_new = !shard.contains_key(&fingerprint);
        if is_new {
            shard.insert(fingerprint, came_from);
        }
        is_new
    }

    fn came_from(&self, fingerprint: u64) -> u64 {
        self.0[fingerprint as usize % SHARDS].lock().unwrap()[&fingerprint]
    }

    /// Returns a schedule that leads to a world.
    fn schedule(&self, start: &World, fingerprint: u64) -> Vec<Action> {
        let mut fingerprints = vec![fingerprint];
        while self.came_from(fingerprints[fingerprints.len() - 1]) != 0 {
            fingerprints.push(self.came_from(fingerprints[fingerprints.len() - 1]));
        }
        let (mut world, mut schedule) = (start.clone(), Vec::new());
        for next in fingerprints.iter().rev().skip(1) {
            let leads = |action: &Action| world.after(*action).fingerprint() == *next;
            let action = world.actions().into_iter().find(leads).unwrap();
            world = world.after(action);
            schedule.push(action);
        }
        schedule
    }
}

impl Calm {
    /// Returns the leftover of a world, unless that is known to end well.
    fn leftover(&self, world: &World) -> Option<String> {
        ENDINGS.into_iter().find_map(|ending| {
            let mut way = Vec::new();
            let leftover = world.leftover_after(ending, |fingerprint| {
                let fingerprint = fingerprint ^ ending as u64;
                way.push(fingerprint);
                self.0[fingerprint as usize % SHARDS].lock().unwrap().contains(&fingerprint)
            });
            if leftover.is_none() {
                for fingerprint in way {
                    self.0[fingerprint as usize % SHARDS].lock().unwrap().insert(fingerprint);
                }
            }
            leftover
        })
    }
}

/// Visits every reachable world once, until a property does not hold: breadth first within a block.
pub(crate) fn explore(start: &World) -> Explored {
    let began = Instant::now();
    let shards = || (0..SHARDS).map(|_| Mutex::default()).collect();
    let (seen, calm) = (Seen(shards()), Calm((0..SHARDS).map(|_| Mutex::default()).collect()));
    seen.insert(start.fingerprint(), 0);
    let (mut waiting, mut depth, mut states) = (vec![(0, vec![start.clone()])], 0, 1);
    // What a missing rule leads to is not deep.
    let together = if start.bounds().mutation.is_some() { usize::MAX } else { BLOCK };
    let mut failure = None;
    while failure.is_none()
        && let Some((at, mut level)) = waiting.pop()
    {
        let block = level.split_off(level.len().saturating_sub(together));
        if !level.is_empty() {
            waiting.push((at, level));
        }
        let (next, failed) = expand(block, &seen, &calm);
        failure = failed.map(|(from, action, violation)| {
            let mut schedule = seen.schedule(start, from);
            schedule.extend(action);
            Failure { violation, schedule }
        });
        (states, depth) = (states + next.len(), depth.max(at));
        if std::env::var_os("EXPLORE_VERBOSE").is_some() {
            println!("depth {at}: {states} states, {} new, {:?}", next.len(), began.elapsed());
        }
        if !next.is_empty() {
            waiting.push((at + 1, next));
        }
    }
    Explored { states, depth, time: began.elapsed(), failure }
}

type Found = (u64, Option<Action>, String);

/// Returns the worlds that are one action away and new.
fn expand(frontier: Vec<World>, seen: &Seen, calm: &Calm) -> (Vec<World>, Option<Found>) {
    let (next, failed) = (Mutex::new(Vec::new()), Mutex::new(None));
    let (taken, frontier) = (AtomicUsize::new(0), frontier);
    let work = || {
        let mut found = Vec::new();
        loop {
            let at = taken.fetch_add(CHUNK, Ordering::Relaxed);
            if at >= frontier.len() || failed.lock().unwrap().is_some() {
                break;
            }
            for world in &frontier[at..frontier.len().min(at + CHUNK)] {
                if let Err(failure) = expand_one(world, seen, calm, &mut found) {
                    failed.lock().unwrap().get_or_insert(failure);
                }
            }
        }
        next.lock().unwrap().append(&mut found);
    };
    let threads = thread::available_parallelism().map_or(2, usize::from);
    if frontier.len() <= CHUNK {
        work();
    } else {
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    }
    (next.into_inner().unwrap(), failed.into_inner().unwrap())
}

fn expand_one(world: &World, seen: &Seen, calm: &Calm, found: &mut Vec<World>) -> Result<(), Found> {
    let from = world.fingerprint();
    for action in world.actions() {
        let after = world.after(action);
        if let Some(violation) = after.violation() {
            return Err((from, Some(action), violation.to_owned()));
        }
        let fingerprint = after.fingerprint();
        if seen.insert(fingerprint, from) {
            if let Some(leftover) = calm.leftover(&after) {
                return Err((from, Some(action), leftover));
            }
            found.push(after);
        }
    }
    Ok(())
}

impl Failure {
    /// Returns a test that fails in the same way.
    pub(crate) fn test(&self, start: &World) -> String {
        let mut test =
            format!("{}\n\n#[test]\nfn schedule() {{\n    replay({:?}, &[\n", self.violation, start.bounds());
        for action in &self.schedule {
            let _ = writeln!(test, "        {action:?},");
        }
        test.push_str("    ]);\n}\n");
        test
    }
}

/// Runs a schedule.
///
/// # Panics
/// If a property does not hold.
pub(crate) fn replay(bounds: Bounds, schedule: &[Action]) {
    if let Err(failure) = run(&World::new(bounds), schedule) {
        panic!("{}", failure.violation);
    }
}

/// Runs a schedule, and looks after each action whether the world ends well. Actions that can't happen are left out, as the rest
/// of a schedule whose defect was mended, also of the
/// schedule that is returned.
pub(crate) fn run(start: &World, schedule: &[Action]) -> Result<(), Failure> {
    let (mut world, mut done) = (start.clone(), Vec::new());
    for action in schedule {
        if !world.actions().contains(action) {
            continue;
        }
        world = world.after(*action);
        done.push(*action);
        if std::env::var_os("EXPLORE_VERBOSE").is_some() {
            println!("{action:?}\n  {}", world.summary());
        }
        let violation = world.violation().map(str::to_owned).or_else(|| world.leftover());
        if let Some(violation) = violation {
            return Err(Failure { violation, schedule: done });
        }
    }
    Ok(())
}
