//! A rate limiter of writes, each for another object. It decides when a write is due; it does not wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time after which a reservation is forgotten that its key has not used.
const KEPT: Duration = Duration::from_secs(60);

/// The time without a new key after which no more of them are about to come.
const GATHERED: Duration = Duration::from_millis(500);

/// The divisor of the pace while keys come.
const SLOWER: u32 = 10;

/// Gives each key a time of its own, at least a pause after that of the key before; the pause is ten times as long while keys come.
#[derive(Debug)]
pub struct RateLimiter<K> {
    /// The time from one reservation to the next.
    pause: Duration,
    clock: Clock,
    next: Duration,
    reserved: BTreeMap<K, Duration>,
    /// The time at which old reservations were forgotten.
    pruned: Duration,
}

impl<K: Ord + Clone> RateLimiter<K> {
    /// Returns a limiter that lets one key pass in each `pause`.
    pub const fn new(pause: Duration) -> Self {
        let clock = Clock { time: Duration::ZERO, read: None, slow_until: None };
        Self { pause, clock, next: Duration::ZERO, reserved: BTreeMap::new(), pruned: Duration::ZERO }
    }

    /// Returns the time that a key has to wait, by its reservation or a new one; `None` if it passes now, which uses the reservation.
    pub fn wait(&mut self, key: &K, now: Instant) -> Option<Duration> {
        let time = self.clock.read(now);
        let at = self.reserved.get(key).copied().unwrap_or_else(|| self.reserve(time, now));
        if at <= time {
            self.reserved.remove(key);
            return None;
        }
        self.reserved.insert(key.clone(), at);
        Some(self.clock.until(at, now))
    }

    /// Returns a time of its own, but the last one that is kept if all before are taken: who makes keys without end delays no other for
    /// longer.
    fn reserve(&mut self, time: Duration, now: Instant) -> Duration {
        if self.next < time + KEPT {
            self.clock.slow_until = Some(now + GATHERED);
        }
        if time >= self.pruned + KEPT {
            self.reserved.retain(|_, at| *at + KEPT > time);
            self.pruned = time;
        }
        let at = self.next.clamp(time, time + KEPT);
        self.next = at + self.pause;
        at
    }
}

/// A clock that is slow at times.
#[derive(Debug)]
struct Clock {
    /// The time that it showed when it was read.
    time: Duration,
    read: Option<Instant>,
    slow_until: Option<Instant>,
}

impl Clock {
    fn read(&mut self, now: Instant) -> Duration {
        let (before, now) = (self.read.unwrap_or(now), self.read.map_or(now, |before| before.max(now)));
        let slow = self.slow_until.map_or(Duration::ZERO, |until| until.min(now).saturating_duration_since(before));
        self.time += (now - before).saturating_sub(slow) + slow / SLOWER;
        self.read = Some(now);
        self.time
    }

    /// Returns the time until it shows that time, if nothing makes it slow for longer.
    fn until(&self, at: Duration, now: Instant) -> Duration {
        let left = at.saturating_sub(self.time);
        let slow = self.slow_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        if left < slow / SLOWER { left * SLOWER } else { slow + left.saturating_sub(slow / SLOWER) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test] // rule 116
    fn many_keys_pass_one_by_one_and_one_alone_at_once() {
        let (mut limiter, start) = (RateLimiter::new(Duration::from_millis(10)), Instant::now());
        let mut wait =
            |key, millis| limiter.wait(&key, start + Duration::from_millis(millis)).map(|left| left.as_millis());
        assert_eq!([wait("a", 0), wait("b", 0), wait("c", 0)], [None, Some(100), Some(200)]);
        assert_eq!(
            [wait("c", 50), wait("b", 100), wait("b", 100)],
            [Some(150), None, Some(200)],
            "one reservation each"
        );
        assert_eq!([wait("c", 200), wait("b", 300)], [None, None]);
        assert_eq!([wait("a", 1000), wait("b", 1000), wait("c", 1000)], [None, Some(100), Some(200)]);
        assert_eq!((0..100).filter_map(|key| wait(["d", "e"][key % 2], 1000)).max(), Some(400));
        assert_eq!([wait("e", 1500), wait("f", 61_600), wait("g", 61_600)], [None, None, Some(100)]);
        assert_eq!(limiter.reserved.keys().copied().collect::<Vec<_>>(), ["g"], "what nobody uses is forgotten");
    }

    #[test] // rule 116
    fn keys_without_end_delay_none_for_long() {
        let (mut limiter, start) = (RateLimiter::new(Duration::from_millis(10)), Instant::now());
        for key in 0..100_000_u64 {
            let wait = limiter.wait(&key, start + Duration::from_millis(key * 50)).unwrap_or_default();
            assert!(wait <= GATHERED + KEPT, "{wait:?}");
        }
        assert!(limiter.reserved.len() < 30_000, "{}", limiter.reserved.len());
    }

    #[test] // rule 116
    fn keys_pass_at_a_tenth_of_the_pace_while_others_come() {
        let (mut limiter, start) = (RateLimiter::new(Duration::from_millis(10)), Instant::now());
        let mut waiting: Vec<(u64, u64)> = Vec::new();
        let mut passed = Vec::new();
        for millis in 0..20_000 {
            let now = start + Duration::from_millis(millis);
            waiting.extend((millis < 5000 && millis % 5 == 0).then_some((millis / 5, millis)));
            waiting.retain_mut(|(key, at)| {
                let wait = if *at <= millis { limiter.wait(key, now) } else { return true };
                *at = millis + wait.map_or(0, |wait| wait.as_millis() as u64 + 1);
                passed.extend(wait.is_none().then_some(millis));
                wait.is_some()
            });
        }
        let within = |from, until| passed.iter().filter(|at| (from..until).contains(*at)).count();
        assert!((50..=60).contains(&within(0, 5500)), "{}", within(0, 5500));
        assert!((90..=110).contains(&within(7000, 8000)), "{}", within(7000, 8000));
        assert_eq!(passed.len(), 1000);
    }

    proptest! {
        #[test] // rule 116
        fn key_has_a_bounded_wait_and_passes(steps in prop::collection::vec((0_u8..20, 0_u64..400), 1..200)) {
            let (mut limiter, mut now) = (RateLimiter::new(Duration::from_millis(10)), Instant::now());
            for (key, pause) in steps {
                now += Duration::from_millis(pause);
                let wait = limiter.wait(&key, now);
                prop_assert!(wait.is_none_or(|wait| !wait.is_zero() && wait <= GATHERED + Duration::from_millis(10) * 20));
            }
            let passes = (0..50).any(|_| limiter.wait(&255, now).inspect(|wait| now += *wait).is_none());
            prop_assert!(passes);
        }
    }
}
