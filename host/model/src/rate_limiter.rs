//! A rate limiter of writes, each for another object. It decides when a write is due; it does not wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time after which a reservation is forgotten that its key has not used.
const KEPT: Duration = Duration::from_secs(60);

/// Gives each key a time of its own, at least a pause after that of the key before.
#[derive(Debug)]
pub struct RateLimiter<K> {
    /// The time from one reservation to the next.
    pause: Duration,
    next: Option<Instant>,
    reserved: BTreeMap<K, Instant>,
}

impl<K: Ord + Clone> RateLimiter<K> {
    /// Returns a limiter that lets one key pass in each `pause`.
    pub const fn new(pause: Duration) -> Self {
        Self { pause, next: None, reserved: BTreeMap::new() }
    }

    /// Returns the time that a key has to wait, by its reservation or a new one; `None` if it passes now, which uses the reservation.
    pub fn wait(&mut self, key: &K, now: Instant) -> Option<Duration> {
        let at = self.reserved.get(key).copied().unwrap_or_else(|| self.reserve(now));
        if at <= now {
            self.reserved.remove(key);
            return None;
        }
        self.reserved.insert(key.clone(), at);
        Some(at - now)
    }

    fn reserve(&mut self, now: Instant) -> Instant {
        self.reserved.retain(|_, at| *at + KEPT > now);
        let at = self.next.map_or(now, |next| next.max(now));
        self.next = Some(at + self.pause);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 116
    fn many_keys_pass_one_by_one_and_one_alone_at_once() {
        let (mut limiter, start) = (RateLimiter::new(Duration::from_millis(20)), Instant::now());
        let mut wait =
            |key, millis| limiter.wait(&key, start + Duration::from_millis(millis)).map(|left| left.as_millis());
        assert_eq!([wait("a", 0), wait("b", 0), wait("c", 0)], [None, Some(20), Some(40)]);
        assert_eq!([wait("c", 10), wait("b", 25), wait("b", 25)], [Some(30), None, Some(35)], "it has one reservation");
        assert_eq!([wait("c", 40), wait("b", 60), wait("a", 500)], [None, None, None]);
        assert_eq!([wait("b", 500), wait("c", 60_600)], [Some(20), None]);
        assert!(limiter.reserved.is_empty(), "a reservation that nobody uses is forgotten");
    }
}
