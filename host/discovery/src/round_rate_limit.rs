//! A rate limit for rounds started by events.

use std::time::Duration;

use tokio::time::Instant;

/// Pause after a round before an event starts another one.
const SHORTEST: Duration = Duration::from_millis(10);

/// The longest such pause, reached in a continuous burst.
const LONGEST: Duration = Duration::from_millis(30);

/// Limits the rate of rounds. The first event starts a round at once. While events keep arriving during rounds, the
/// pause after each round doubles up to a limit: the 600 events of a hub being plugged in cause two rounds if they
/// arrive at once, and about thirty a second while udevd keeps sending them.
#[derive(Debug)]
pub(crate) struct RoundRateLimit {
    ended: Instant,
    pause: Duration,
}

impl RoundRateLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self { ended: now, pause: SHORTEST }
    }

    /// Records the end of a round, whatever started it.
    pub(crate) fn round_ended(&mut self, now: Instant) {
        self.ended = now;
    }

    /// Returns when the round for an event at `now` may start.
    pub(crate) fn start(&mut self, now: Instant) -> Instant {
        let earliest = self.ended + self.pause;
        if earliest <= now {
            self.pause = SHORTEST;
            return now;
        }
        self.pause = (self.pause * 2).min(LONGEST);
        earliest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the starts of rounds that take `round`, for events at these times, all in milliseconds.
    fn starts(round: u64, events: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let origin = Instant::now();
        let at = |ms| origin + Duration::from_millis(ms);
        let mut limit = RoundRateLimit::new(origin);
        let mut starts: Vec<u64> = Vec::new();
        for event in events {
            let in_the_last_round = starts.last().is_some_and(|start| event < *start);
            if in_the_last_round {
                continue;
            }
            let free = starts.last().map_or(0, |start| start + round);
            let start = limit.start(at(event.max(free))).duration_since(origin);
            starts.push(u64::try_from(start.as_millis()).unwrap());
            limit.round_ended(origin + start + Duration::from_millis(round));
        }
        starts
    }

    #[test]
    fn event_at_rest_starts_a_round_at_once() {
        assert_eq!(starts(5, [1000, 1100, 1200, 5000]), [1000, 1100, 1200, 5000]);
    }

    #[test]
    fn events_in_quick_succession_share_a_second_round() {
        assert_eq!(starts(5, (0..600).map(|_| 1000)), [1000, 1015]);
        assert_eq!(starts(5, [1000, 1001, 1002, 1014]), [1000, 1015]);
    }

    #[test]
    fn long_burst_shares_rounds_and_delays_none_long() {
        let burst = 1000..3000;
        let starts = starts(5, burst.clone());
        assert!(starts.len() < 60, "2,000 events: {starts:?}");
        for event in burst {
            let seen = starts.iter().find(|start| **start >= event).copied().unwrap_or_else(|| panic!("{event}"));
            assert!(seen - event <= 35, "{event} {seen}");
        }
    }

    #[test]
    fn event_after_a_burst_is_served_at_once() {
        let starts = starts(5, (1000..3000).chain([4000, 4100]));
        assert_eq!(starts[starts.len() - 2..], [4000, 4100]);
    }
}
