//! The pauses between steps of one Instance towards the API server.

use std::time::{Duration, Instant};

use crate::retry::{Backoff, RetryPolicy};

/// The time that an Instance has to be in agreement before earlier failures are forgotten: one that is cleaned up by others
/// again and again is repeated ever more rarely (rule 100).
const STEADY: Duration = Duration::from_secs(60);

/// The steps of one Instance that failed, or were undone by others.
#[derive(Debug)]
pub struct Pacing {
    backoff: Backoff,
    /// The earliest time of the next attempt.
    retry_at: Option<Instant>,
    /// The time of the last agreement.
    agreed_at: Option<Instant>,
}

impl Default for Pacing {
    fn default() -> Self {
        Self { backoff: Backoff::new(RetryPolicy::SLOTS), retry_at: None, agreed_at: None }
    }
}

impl Pacing {
    /// A step may be taken at once: an Allocate waits for it, or the last one has changed something.
    pub fn try_at_once(&mut self) {
        self.retry_at = None;
    }

    /// The API server shows what this node wants.
    pub fn agreed(&mut self, now: Instant) {
        self.agreed_at.get_or_insert(now);
        self.retry_at = None;
    }

    /// A step has changed nothing, or others have undone what was agreed.
    pub fn failed(&mut self, now: Instant, jitter: u64) {
        if self.agreed_at.take().is_some_and(|at| now.saturating_duration_since(at) >= STEADY) {
            self.backoff.reset();
        }
        self.retry_at = Some(now + self.backoff.failed(jitter));
    }

    /// The earliest time of the next step, if it has to wait.
    pub fn retry_at(&self, now: Instant) -> Option<Instant> {
        self.retry_at.filter(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Event {
        Failed,
        Agreed,
        AtOnce,
    }

    /// Events with their times in milliseconds.
    type Events = &'static [(u64, Event)];

    #[test] // rule 100
    fn steps_that_others_undo_are_repeated_ever_more_rarely() {
        use Event::{Agreed, AtOnce, Failed};
        let cases: [(&str, Events, Option<u64>); 8] = [
            ("nothing has failed", &[], None),
            ("a failure", &[(0, Failed)], Some(50)),
            ("two in a row", &[(0, Failed), (50, Failed)], Some(100)),
            ("an Allocate does not wait for it", &[(0, Failed), (10, AtOnce)], None),
            ("nor does it make up for it", &[(0, Failed), (10, AtOnce), (20, Failed)], Some(100)),
            ("an agreement that was undone soon", &[(0, Failed), (60, Agreed), (1_000, Failed)], Some(100)),
            ("one that lasted", &[(0, Failed), (60, Agreed), (60_060, Failed)], Some(50)),
            ("one that is repeated lasts", &[(0, Failed), (60, Agreed), (50_000, Agreed), (60_060, Failed)], Some(50)),
        ];
        for (case, events, expected) in cases {
            let (mut pacing, start) = (Pacing::default(), Instant::now());
            let mut now = start;
            for (at, event) in events {
                now = start + Duration::from_millis(*at);
                match event {
                    Failed => pacing.failed(now, 0),
                    Agreed => pacing.agreed(now),
                    AtOnce => pacing.try_at_once(),
                }
            }
            let pause = pacing.retry_at(now).map(|at| at - now);
            assert_eq!(pause, expected.map(Duration::from_millis), "{case}");
        }
        // Joined, cleaned up by others, joined again: at most one try in five seconds in the end.
        let (mut pacing, mut now) = (Pacing::default(), Instant::now());
        for _ in 0..20 {
            pacing.try_at_once();
            pacing.agreed(now);
            pacing.failed(now, 0);
            now = pacing.retry_at(now).unwrap();
        }
        pacing.failed(now, 0);
        assert_eq!(pacing.retry_at(now).unwrap() - now, RetryPolicy::SLOTS.longest);
    }
}
