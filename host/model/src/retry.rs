//! Backoff of all that is retried, and quarantine of handlers that only fail (rule 92).

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use crate::discovery::RoundError;

/// The pauses between attempts: the first one doubles with each further failure in a row, up to the longest one. All policies of
/// this program are here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl RetryPolicy {
    /// Rounds of discovery, the streams of remote handlers, and the creation of Instances.
    pub const DISCOVERY: Self = Self::of_millis(1_000, 60_000);
    /// Loads of components.
    pub const LOAD: Self = Self::of_millis(1_000, 300_000);
    /// Starts of a sandbox process.
    pub const SANDBOX: Self = Self::of_millis(100, 30_000);
    /// Changes of the slots of a shared Instance that changed nothing.
    pub const SLOTS: Self = Self::of_millis(50, 5_000);
    /// Writes of Instances and reports.
    pub const PUBLISH: Self = Self::of_millis(200, 5_000);
    /// Checks of Instances that the agent of another node has to write, which may have stopped since.
    pub const LEFT_TO_OTHER_NODE: Self = Self::of_millis(30_000, 600_000);
    /// Registrations with the kubelet.
    pub const REGISTRATION: Self = Self::of_millis(250, 15_000);
    /// Watches of objects. The longest pause is short, so that the end of an outage is noticed soon.
    pub const WATCH: Self = Self::of_millis(800, 5_000);
    /// Renewals of the Lease of an agent.
    pub const LEASE: Self = Self::of_millis(5_000, 5_000);
    /// Reconciles of the controller.
    pub const RECONCILE: Self = Self::of_millis(1_000, 60_000);
    /// Pods of brokers that end.
    pub const BROKER_POD: Self = Self::of_millis(10_000, 300_000);

    const fn of_millis(first: u64, longest: u64) -> Self {
        Self { first: Duration::from_millis(first), longest: Duration::from_millis(longest) }
    }

    /// Returns the pause after so many failures in a row.
    pub fn pause(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(10);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

/// Failures in a row by the component's own fault that lead to quarantine.
const FAULTS: u32 = 5;

/// Pause between rounds of a quarantined component.
const QUARANTINE: Duration = Duration::from_secs(600);

/// Returns a random number for [`Backoff::failed`] and [`Retry::failed`], which are pure. Nothing else here is random.
pub fn jitter() -> u64 {
    RandomState::new().hash_one(())
}

/// Takes up to a quarter off a pause, so that what began together is not repeated together.
pub fn jittered(pause: Duration, jitter: u64) -> Duration {
    let off = u32::try_from(jitter % 256).unwrap_or_default();
    pause - pause / 1024 * off
}

/// The failures in a row of something that is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    policy: RetryPolicy,
    failures: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(RetryPolicy::DISCOVERY)
    }
}

impl Backoff {
    /// Returns a backoff without a failure so far.
    pub const fn new(policy: RetryPolicy) -> Self {
        Self { policy, failures: 0 }
    }

    /// Returns the pause after one more failure, less up to a quarter.
    pub fn failed(&mut self, jitter: u64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        jittered(self.policy.pause(self.failures), jitter)
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
    /// The last time that a round ended its process, which good rounds don't make up for.
    process_ended: Option<Instant>,
}

impl Retry {
    /// Resets the state after a change of the Configuration, the component, its DiscoveryHandler or a property.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Records a success.
    pub fn succeeded(&mut self) {
        *self = Self { process_ended: self.process_ended, ..Self::default() };
    }

    /// Records a failure, and returns what to report and the pause before the next round; `None` waits for a change. A component that has
    /// failed repeatedly runs one round after a long pause, to detect recovery. `jitter` as for [`Backoff::failed`].
    pub fn failed(&mut self, error: RoundError, now: Instant, jitter: u64) -> (RoundError, Option<Duration>) {
        let ended_again = matches!(error, RoundError::ProcessEnded(_))
            && self.process_ended.replace(now).is_some_and(|before| now.duration_since(before) < QUARANTINE);
        self.faults = if is_components_fault(&error) { self.faults.saturating_add(1) } else { 0 };
        if matches!(error, RoundError::InvalidDetails(_) | RoundError::PropertiesUnresolved(_)) {
            return (error, None);
        }
        if self.faults >= FAULTS || ended_again {
            let (faults, last) = (self.faults.max(2), Box::new(error));
            return (RoundError::Quarantined { faults, last, pause: QUARANTINE }, Some(QUARANTINE));
        }
        (error, Some(self.backoff.failed(jitter)))
    }
}

/// Returns whether the failure is the component's fault, and not that of its environment.
fn is_components_fault(error: &RoundError) -> bool {
    match error {
        RoundError::Trapped(_)
        | RoundError::ProcessEnded(_)
        | RoundError::DeadlineExceeded(_)
        | RoundError::StillComputing { .. }
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
    /// `i`nvalid details, `n`ot granted, `p`rocess ended; `g` is a good round, `r` a reset, `+` a pause of ten minutes.
    fn course(rounds: &str) -> Vec<String> {
        let mut retry = Retry::default();
        let (mut course, mut now) = (Vec::new(), Instant::now());
        for round in rounds.chars() {
            let error = match round {
                't' => RoundError::Trapped("unreachable".into()),
                'd' => RoundError::DeadlineExceeded(Duration::from_secs(1)),
                'l' => RoundError::LimitExceeded("devices".into()),
                'u' => RoundError::Unavailable("no answer".into()),
                'i' => RoundError::InvalidDetails(Vec::new()),
                'n' => RoundError::NotGranted("udev".into()),
                'p' => RoundError::ProcessEnded("by signal 9".into()),
                '+' => {
                    now += QUARANTINE;
                    continue;
                }
                'g' => {
                    retry.succeeded();
                    continue;
                }
                _ => {
                    retry.reset();
                    continue;
                }
            };
            course.push(match retry.failed(error, now, 0) {
                (RoundError::Quarantined { faults, .. }, _) => format!("q{faults}"),
                (_, pause) => pause.map_or("wait".to_owned(), |pause| pause.as_secs().to_string()),
            });
        }
        course
    }

    #[test] // rule 92
    fn failed_round_is_retried_with_backoff() {
        for (rounds, expected) in [
            ("uuuuuuuu", "1 2 4 8 16 32 60 60"),
            ("uurun", "1 2 1 2"),
            ("ui", "1 wait"),
            ("tdltd", "1 2 4 8 q5"),
            ("ttttttt", "1 2 4 8 q5 q6 q7"),
            // A failure of another kind shows that the component runs.
            ("ttttuttttt", "1 2 4 8 16 32 60 60 60 q5"),
            ("tttttut", "1 2 4 8 q5 16 32"),
            ("tttttrt", "1 2 4 8 q5 1"),
            ("ttttgt", "1 2 4 8 1"),
        ] {
            assert_eq!(course(rounds).join(" "), expected, "{rounds}");
        }
    }

    #[test] // rule 135
    fn good_rounds_between_ends_of_the_process_forgive_nothing() {
        for (rounds, expected) in
            [("pggp", "1 q2"), ("pup", "1 2 q2"), ("pg+p", "1 1"), ("prp", "1 1"), ("pppp", "1 q2 q3 q4")]
        {
            assert_eq!(course(rounds).join(" "), expected, "{rounds}");
        }
    }

    #[test] // rule 92
    fn pauses_differ_and_are_never_longer_than_a_minute() {
        let (longest, mut seen) = (RetryPolicy::DISCOVERY.longest, std::collections::BTreeSet::new());
        for jitter in [0, 1, 100, 255, 256, u64::MAX] {
            let mut backoff = Backoff::new(RetryPolicy::DISCOVERY);
            let pauses: Vec<Duration> = (0..40).map(|_| backoff.failed(jitter)).collect();
            assert!(pauses.iter().all(|pause| (Duration::from_millis(750)..=longest).contains(pause)), "{pauses:?}");
            assert!(pauses[39] >= longest * 3 / 4);
            seen.insert(pauses[39]);
        }
        assert_eq!(seen.len(), 4, "{seen:?}");
    }
}
