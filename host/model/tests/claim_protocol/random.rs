//! Random schedules beyond what can be visited wholly, and the search for a short one among those that fail.

use std::time::{Duration, Instant};

use crate::bounds::Bounds;
use crate::explore::{Failure, run};
use crate::world::{Action, World};

/// Actions of one schedule.
const STEPS: usize = 120;

/// A generator of random numbers that a seed repeats (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }
}

/// Runs schedules of random bounds until the time is over. Returns how many there were, or a test of one that failed.
pub(crate) fn explore_at_random(bounds: &[Bounds], seed: u64, time: Duration) -> Result<usize, String> {
    let began = Instant::now();
    let mut schedules = 0;
    while began.elapsed() < time {
        let mut random = Random(seed.wrapping_add(schedules as u64).wrapping_mul(0x2545_f491_4f6c_dd1d));
        let start = World::new(bounds[random.below(bounds.len())]);
        if let Err(failure) = run_at_random(&start, &mut random) {
            return Err(shorten(&start, failure).test(&start));
        }
        schedules += 1;
    }
    Ok(schedules)
}

fn run_at_random(start: &World, random: &mut Random) -> Result<(), Failure> {
    let (mut world, mut schedule) = (start.clone(), Vec::new());
    for _ in 0..STEPS {
        let actions = world.actions();
        let (faults, others): (Vec<Action>, Vec<Action>) =
            actions.into_iter().partition(|action| matches!(action, Action::Fault(_)));
        // Faults are many, and would all happen at the beginning.
        let choice = if !faults.is_empty() && (others.is_empty() || random.below(8) == 0) { faults } else { others };
        if choice.is_empty() {
            break;
        }
        let action = choice[random.below(choice.len())];
        world = world.after(action);
        schedule.push(action);
        if let Some(violation) = world.violation() {
            return Err(Failure { violation: violation.to_owned(), schedule });
        }
    }
    match world.leftover() {
        Some(violation) => Err(Failure { violation, schedule }),
        None => Ok(()),
    }
}

/// Leaves out actions for as long as the rest still fails.
pub(crate) fn shorten(start: &World, mut failure: Failure) -> Failure {
    let mut length = failure.schedule.len().div_ceil(2);
    while length > 0 {
        let mut at = 0;
        while at < failure.schedule.len() {
            let mut shorter = failure.schedule.clone();
            shorter.drain(at..shorter.len().min(at + length));
            match run(start, &shorter) {
                Err(shortened) => failure = shortened,
                Ok(_) => at += length,
            }
        }
        length /= 2;
    }
    failure
}
