//! When a round or a connection that failed is tried again, and when a handler that only does harm is left alone (rule 42).

use std::time::Duration;

use crate::discovery::RoundError;

/// First pause after a failure; it doubles with each further one.
const FIRST: Duration = Duration::from_secs(1);

/// Longest pause after failures.
const LONGEST: Duration = Duration::from_secs(60);

/// Rounds in a row that end by the component's own fault before it is quarantined.
const FAULTS: u32 = 5;

/// Pause between rounds of a quarantined component.
const QUARANTINE: Duration = Duration::from_secs(600);

/// Pauses that grow with each failure in a row, from 1 s to 60 s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after one more failure. `dice` is any number, another one each time: it takes up to a quarter off, so
    /// that what failed together does not come back together.
    pub fn failed(&mut self, dice: u64) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let off = u32::try_from(dice % 256).unwrap_or_default();
        whole - whole / 1024 * off
    }

    /// It worked, or something has changed.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

/// The course of a Configuration's rounds with one handler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retry {
    backoff: Backoff,
    /// Rounds in a row that ended by the component's fault.
    faults: u32,
}

/// What follows a failed round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Only a change can help.
    Wait,
    /// Another round after a pause.
    After(Duration),
    /// The component has failed so often in a row that it gets one round after a long pause, to show whether it has
    /// recovered.
    Quarantine {
        /// Rounds in a row that it failed.
        faults: u32,
        /// Until that round.
        pause: Duration,
    },
}

impl Retry {
    /// A round succeeded, or something has changed: the Configuration, the component, its DiscoveryHandler, a property.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// A round failed. `dice` as for [`Backoff::failed`].
    pub fn failed(&mut self, error: &RoundError, dice: u64) -> Next {
        self.faults = if is_components_fault(error) { self.faults.saturating_add(1) } else { 0 };
        if matches!(error, RoundError::InvalidDetails(_) | RoundError::PropertiesUnresolved(_)) {
            return Next::Wait;
        }
        if self.faults >= FAULTS {
            return Next::Quarantine { faults: self.faults, pause: QUARANTINE };
        }
        Next::After(self.backoff.failed(dice))
    }
}

/// Whether a round ended by what the component did, and not by what it met.
fn is_components_fault(error: &RoundError) -> bool {
    match error {
        RoundError::Trapped(_) | RoundError::DeadlineExceeded(_) | RoundError::LimitExceeded(_) => true,
        RoundError::InvalidDetails(_)
        | RoundError::PropertiesUnresolved(_)
        | RoundError::Quarantined { .. }
        | RoundError::NotGranted(_)
        | RoundError::Unavailable(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What follows each of these rounds, in letters: `t`rap, `d`eadline, `l`imit, `u`navailable, `i`nvalid details,
    /// `n`ot granted; `r` is a reset.
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

    #[test]
    fn what_follows_a_failed_round() {
        for (rounds, expected) in [
            ("uuuuuuuu", "1 2 4 8 16 32 60 60"),
            ("uurun", "1 2 1 2"),
            ("ui", "1 wait"),
            ("tdltd", "1 2 4 8 q5"),
            ("ttttttt", "1 2 4 8 q5 q6 q7"),
            // A round that fails otherwise shows that the component runs.
            ("ttttuttttt", "1 2 4 8 16 32 60 60 60 q5"),
            ("tttttut", "1 2 4 8 q5 16 32"),
            ("tttttrt", "1 2 4 8 q5 1"),
        ] {
            assert_eq!(course(rounds).join(" "), expected, "{rounds}");
        }
    }

    #[test]
    fn pauses_differ_and_are_never_longer_than_a_minute() {
        let mut seen = std::collections::BTreeSet::new();
        for dice in [0, 1, 100, 255, 256, u64::MAX] {
            let mut backoff = Backoff::default();
            let pauses: Vec<Duration> = (0..40).map(|_| backoff.failed(dice)).collect();
            assert!(pauses.iter().all(|pause| (Duration::from_millis(750)..=LONGEST).contains(pause)), "{pauses:?}");
            assert!(pauses[39] >= LONGEST * 3 / 4);
            seen.insert(pauses[39]);
        }
        assert_eq!(seen.len(), 4, "{seen:?}");
    }
}
