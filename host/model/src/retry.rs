//! Backoff of rounds and connections that failed, and quarantine of handlers that only fail (rule 92).

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use crate::discovery::RoundError;

/// First pause after a failure; it doubles with each further one.
const FIRST: Duration = Duration::from_secs(1);

/// Longest pause after failures.
const LONGEST: Duration = Duration::from_secs(60);

/// Failures in a row by the component's own fault that lead to quarantine.
const FAULTS: u32 = 5;

/// Pause between rounds of a quarantined component.
const QUARANTINE: Duration = Duration::from_secs(600);

/// Returns a random number for [`Backoff::failed`] and [`Retry::failed`], which are pure. Nothing else here is random.
pub fn jitter() -> u64 {
    RandomState::new().hash_one(())
}

/// Pauses that double with each failure in a row, by default from 1 s to 60 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(FIRST, LONGEST)
    }
}

impl Backoff {
    /// Returns pauses of another length.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Returns the pause after one more failure. `jitter` takes up to a quarter off, so that what failed together does
    /// not come back together.
    pub fn failed(&mut self, jitter: u64) -> Duration {
        let whole = self.first.saturating_mul(1 << self.failures.min(10)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        let off = u32::try_from(jitter % 256).unwrap_or_default();
        whole - whole / 1024 * off
    }

    /// Resets the backoff after a success or a change.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// The retry state of a Configuration with one handler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retry {
    backoff: Backoff,
    /// Rounds in a row that ended by the component's fault.
    faults: u32,
}

/// The action after a failed round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Wait for a change.
    Wait,
    /// Retry after a pause.
    After(Duration),
    /// The component has failed repeatedly: run one round after a long pause, to detect recovery.
    Quarantine {
        /// Number of failures in a row.
        faults: u32,
        /// The pause before that round.
        pause: Duration,
    },
}

impl Retry {
    /// Resets the state after a success, or after a change of the Configuration, the component, its DiscoveryHandler or
    /// a property.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Records a failure and returns the next action. `jitter` as for [`Backoff::failed`].
    pub fn failed(&mut self, error: &RoundError, jitter: u64) -> Next {
        self.faults = if is_components_fault(error) { self.faults.saturating_add(1) } else { 0 };
        if matches!(error, RoundError::InvalidDetails(_) | RoundError::PropertiesUnresolved(_)) {
            return Next::Wait;
        }
        if let RoundError::Quarantined { pause, .. } = error {
            return Next::After(*pause);
        }
        if self.faults >= FAULTS {
            return Next::Quarantine { faults: self.faults, pause: QUARANTINE };
        }
        Next::After(self.backoff.failed(jitter))
    }
}

/// Returns whether the failure is the component's fault, and not that of its environment.
fn is_components_fault(error: &RoundError) -> bool {
    match error {
        RoundError::Trapped(_)
        | RoundError::DeadlineExceeded(_)
        | RoundError::LimitExceeded(_)
        | RoundError::InvalidResult(_) => true,
        RoundError::NoHandler(_)
        | RoundError::InvalidDetails(_)
        | RoundError::PropertiesUnresolved(_)
        | RoundError::Quarantined { .. }
        | RoundError::NotGranted(_)
        | RoundError::Unavailable(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the actions after a sequence of rounds, in letters: `t`rap, `d`eadline, `l`imit, `u`navailable,
    /// `i`nvalid details, `n`ot granted, `q`uarantined elsewhere for 10 minutes; `r` is a reset.
    fn course(rounds: &str) -> Vec<String> {
        let mut retry = Retry::default();
        let mut course = Vec::new();
        for round in rounds.chars() {
            let error = match round {
                't' => RoundError::Trapped("unreachable".into()),
                'd' => RoundError::DeadlineExceeded(Duration::from_secs(1)),
                'l' => RoundError::LimitExceeded("devices".into()),
                'u' => RoundError::Unavailable("no answer".into()),
                'i' => RoundError::InvalidDetails(Vec::new()),
                'n' => RoundError::NotGranted("udev".into()),
                'q' => {
                    let last = Box::new(RoundError::Trapped("unreachable".into()));
                    RoundError::Quarantined { faults: 2, last, pause: QUARANTINE }
                }
                _ => {
                    retry.reset();
                    continue;
                }
            };
            course.push(match retry.failed(&error, 0) {
                Next::Wait => "wait".to_owned(),
                Next::After(pause) => pause.as_secs().to_string(),
                Next::Quarantine { faults, .. } => format!("q{faults}"),
            });
        }
        course
    }

    #[test] // rule 92
    fn what_follows_a_failed_round() {
        for (rounds, expected) in [
            ("uuuuuuuu", "1 2 4 8 16 32 60 60"),
            ("uurun", "1 2 1 2"),
            ("ui", "1 wait"),
            ("tdltd", "1 2 4 8 q5"),
            ("tqqu", "1 600 600 2"),
            ("ttttttt", "1 2 4 8 q5 q6 q7"),
            // A failure of another kind shows that the component runs.
            ("ttttuttttt", "1 2 4 8 16 32 60 60 60 q5"),
            ("tttttut", "1 2 4 8 q5 16 32"),
            ("tttttrt", "1 2 4 8 q5 1"),
        ] {
            assert_eq!(course(rounds).join(" "), expected, "{rounds}");
        }
    }

    #[test] // rule 92
    fn pauses_differ_and_are_never_longer_than_a_minute() {
        let mut seen = std::collections::BTreeSet::new();
        for jitter in [0, 1, 100, 255, 256, u64::MAX] {
            let mut backoff = Backoff::default();
            let pauses: Vec<Duration> = (0..40).map(|_| backoff.failed(jitter)).collect();
            assert!(pauses.iter().all(|pause| (Duration::from_millis(750)..=LONGEST).contains(pause)), "{pauses:?}");
            assert!(pauses[39] >= LONGEST * 3 / 4);
            seen.insert(pauses[39]);
        }
        assert_eq!(seen.len(), 4, "{seen:?}");
    }
}
