//! The deadline of a call: how long a round may take, and who ends it.
//!
//! A round may take `limits.round` of its DiscoveryHandler (`akri_api::limits`), counted from its turn.
//!
//! 1. What a guest waits for in the host ends a second earlier ([`Deadline::last_wait`]), so that it can return what it has.
//! 2. At the deadline the guest is dropped where it waits ([`Deadline::enforce`]), and interrupted where it computes
//!    ([`Deadline::is_over`], asked every 10 ms). The call returns [`RoundError::DeadlineExceeded`] or
//!    [`RoundError::StillComputing`].
//! 3. A sandbox process that has not answered after [`time_to_answer`] is killed by the agent.

use std::time::{Duration, Instant};

use akri_model::discovery::RoundError;
use akri_model::grant::{LONGEST_ROUND, Limits};

/// Time of a sandbox process for its answer, beside the time of the round: for large results, and on a busy node.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest time between the last wait and the deadline.
const LONGEST_MARGIN: Duration = Duration::from_secs(1);

/// The moment at which a call ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) limit: Duration,
    end: Instant,
}

impl Deadline {
    /// Returns the deadline of a call that begins now.
    pub(crate) fn of(limits: &Limits) -> Self {
        let limit = limits.round.min(LONGEST_ROUND);
        Self { limit, end: Instant::now() + limit }
    }

    /// Returns whether it has passed.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Returns the time left.
    pub(crate) fn remaining(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Returns the end of all waits in the host: a second before the deadline, or a tenth of a short round.
    pub(crate) fn last_wait(&self) -> Instant {
        self.end.checked_sub(self.margin()).unwrap_or(self.end)
    }

    /// Returns the time left for waits in the host.
    pub(crate) fn remaining_wait(&self) -> Duration {
        self.remaining().saturating_sub(self.margin())
    }

    /// Returns the time between the last wait and the end.
    pub(crate) fn margin(&self) -> Duration {
        (self.limit / 10).min(LONGEST_MARGIN)
    }

    /// Awaits a guest, and drops it at the deadline.
    pub(crate) async fn enforce<T>(self, guest: impl Future<Output = Result<T, RoundError>>) -> Result<T, RoundError> {
        let ended = tokio::time::timeout_at(self.end.into(), guest).await;
        ended.unwrap_or(Err(RoundError::DeadlineExceeded(self.limit)))
    }
}

/// Returns the time after which a process that has not answered a call is killed.
pub fn time_to_answer(limits: &Limits) -> Duration {
    limits.round.min(LONGEST_ROUND) + ANSWER
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline(round: Duration) -> Deadline {
        Deadline::of(&Limits { round, ..Limits::default() })
    }

    #[test]
    fn waits_end_before_the_deadline() {
        for (round, margin) in [(100, 10), (5_000, 500), (10_000, 1000), (300_000, 1000)] {
            let deadline = deadline(Duration::from_millis(round));
            assert_eq!(deadline.end - deadline.last_wait(), Duration::from_millis(margin));
        }
    }

    #[test]
    fn longest_round_has_an_end() {
        let deadline = deadline(Duration::MAX);
        assert!(!deadline.is_over() && deadline.remaining() <= LONGEST_ROUND);
        assert_eq!(time_to_answer(&Limits { round: Duration::MAX, ..Limits::default() }), LONGEST_ROUND + ANSWER);
    }

    #[tokio::test] // rule 92
    async fn waiting_guest_is_dropped_at_the_deadline() {
        let ended = deadline(Duration::from_millis(10)).enforce(std::future::pending::<Result<(), RoundError>>()).await;
        assert_eq!(ended, Err(RoundError::DeadlineExceeded(Duration::from_millis(10))));
    }
}
