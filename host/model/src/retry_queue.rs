//! A queue of keys of what is to be done. A key is handed out to one worker at a time, at most once for any number of reasons, and
//! again after a failure, with a backoff of its own, so that a failing key delays no other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::retry::{Backoff, RetryPolicy};

/// The queue.
#[derive(Debug)]
pub struct RetryQueue<K> {
    policy: RetryPolicy,
    /// The time at which each waiting key is due.
    due: BTreeMap<K, Instant>,
    order: BTreeSet<(Instant, K)>,
    /// Keys that a worker has.
    running: BTreeSet<K>,
    /// Keys whose last attempt failed, and the earliest time of the next one: what fails may cause changes of its own.
    failing: BTreeMap<K, (Backoff, Instant)>,
}

impl<K: Ord + Clone> RetryQueue<K> {
    /// Returns an empty queue whose keys are retried by a policy.
    pub fn new(policy: RetryPolicy) -> Self {
        let (due, order, running, failing) = Default::default();
        Self { policy, due, order, running, failing }
    }

    /// Adds a key. A waiting key is due at the earlier of both times; a failing key waits for its first pause at least.
    pub fn push(&mut self, key: K, at: Instant) {
        let at = self.failing.get(&key).map_or(at, |(_, earliest)| at.max(*earliest));
        if let Some(before) = self.due.get(&key).copied() {
            if before <= at {
                return;
            }
            self.order.remove(&(before, key.clone()));
        }
        self.due.insert(key.clone(), at);
        self.order.insert((at, key));
    }

    /// Hands out the first key that is due and that no worker has.
    ///
    /// # Errors
    /// If there is none: the time at which the next one is due.
    pub fn pop(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        let free = self.order.iter().find(|(_, key)| !self.running.contains(key)).cloned();
        match free {
            Some((at, key)) if at <= now => {
                self.order.remove(&(at, key.clone()));
                self.due.remove(&key);
                self.running.insert(key.clone());
                Ok(key)
            }
            free => Err(free.map(|(at, _)| at)),
        }
    }

    /// Takes a key back after a success; it is due again at a time, if one is given.
    pub fn done(&mut self, key: K, again: Option<Instant>) {
        self.running.remove(&key);
        self.failing.remove(&key);
        if let Some(at) = again {
            self.push(key, at);
        }
    }

    /// Takes a key back after a failure; it is due again after its backoff, which is returned. `jitter` is any number.
    pub fn failed(&mut self, key: K, jitter: u64, now: Instant) -> Duration {
        self.running.remove(&key);
        let before = self.failing.get(&key).map(|(backoff, _)| *backoff);
        let mut backoff = before.unwrap_or(Backoff::new(self.policy));
        let pause = backoff.failed(jitter);
        self.failing.insert(key.clone(), (backoff, now + pause.min(self.policy.first)));
        if let Some(at) = self.due.remove(&key) {
            self.order.remove(&(at, key.clone()));
            self.push(key.clone(), at); // what changed meanwhile waits, too
        }
        self.push(key, now + pause);
        pause
    }

    /// Returns the number of keys that wait.
    pub fn waiting(&self) -> usize {
        self.due.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> (RetryQueue<&'static str>, Instant) {
        (RetryQueue::new(RetryPolicy::RECONCILE), Instant::now())
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test] // rule 60
    fn key_is_handed_out_once_for_many_reasons() {
        let (mut queue, now) = queue();
        queue.push("a", now);
        queue.push("a", now + seconds(9));
        queue.push("b", now);
        assert_eq!([queue.pop(now), queue.pop(now)], [Ok("a"), Ok("b")]);
        assert_eq!(queue.pop(now), Err(None));
    }

    #[test]
    fn key_that_a_worker_has_waits_for_it() {
        let (mut queue, now) = queue();
        queue.push("a", now);
        assert_eq!(queue.pop(now), Ok("a"));
        queue.push("a", now);
        queue.push("b", now);
        assert_eq!(queue.pop(now), Ok("b"), "others are not held up");
        assert_eq!(queue.pop(now), Err(None));
        queue.done("a", None);
        assert_eq!(queue.pop(now), Ok("a"), "what changed meanwhile is not forgotten");
    }

    #[test]
    fn earlier_time_wins() {
        let (mut queue, now) = queue();
        for after in [60, 5, 30] {
            queue.push("a", now + seconds(after));
        }
        assert_eq!(queue.pop(now), Err(Some(now + seconds(5))));
        assert_eq!(queue.pop(now + seconds(5)), Ok("a"));
        queue.done("a", Some(now + seconds(7)));
        assert_eq!(queue.pop(now + seconds(6)), Err(Some(now + seconds(7))), "it is due again after a success");
    }

    #[test] // rule 60
    fn failing_key_backs_off_alone() {
        let (mut queue, mut now) = queue();
        let mut pauses = Vec::new();
        for _ in 0..4 {
            queue.push("bad", now);
            now += seconds(10);
            assert_eq!(queue.pop(now), Ok("bad"));
            pauses.push(queue.failed("bad", 0, now).as_secs());
            queue.push("bad", now);
            queue.push("good", now);
            assert_eq!(queue.pop(now), Ok("good"), "its own changes do not make it busy");
            queue.done("good", None);
            assert_eq!(queue.pop(now), Err(Some(now + seconds(1))));
        }
        assert_eq!(pauses, [1, 2, 4, 8]);
        now += seconds(10);
        assert_eq!(queue.pop(now), Ok("bad"));
        queue.push("bad", now);
        queue.failed("bad", 0, now);
        assert_eq!(queue.pop(now), Err(Some(now + seconds(1))), "nor do those of the attempt itself");
        now += seconds(1);
        assert_eq!(queue.pop(now), Ok("bad"));
        queue.done("bad", None);
        queue.push("bad", now);
        assert_eq!(queue.pop(now), Ok("bad"), "a success ends the backoff");
    }
}
