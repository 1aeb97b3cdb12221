//! A queue of keys to reconcile. A key is handed out to one worker at a time, at most once for any number of reasons, and
//! again later if it failed: with backoff of its own, so that a failing object holds up no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use akri_model::names::Key;
use akri_model::retry::Backoff;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Least time between a failure and the next try, whatever happens to the object: what fails may cause events itself.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// An object to reconcile.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// A Configuration.
    Configuration(Key),
    /// An Instance.
    Instance(Key),
    /// A DiscoveryHandler, whose key has no namespace.
    Handler(Key),
}

/// The queue.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// The time at which each waiting key is due.
    due: BTreeMap<Work, Instant>,
    order: BTreeSet<(Instant, Work)>,
    /// Keys that a worker has.
    running: BTreeSet<Work>,
    /// Keys whose last reconcile failed, and when they may be tried again at the earliest.
    failing: BTreeMap<Work, (Backoff, Instant)>,
}

impl State {
    fn push(&mut self, work: Work, at: Instant) {
        let at = self.failing.get(&work).map_or(at, |(_, earliest)| at.max(*earliest));
        if let Some(before) = self.due.get(&work).copied() {
            if before <= at {
                return;
            }
            self.order.remove(&(before, work.clone()));
        }
        self.due.insert(work.clone(), at);
        self.order.insert((at, work));
    }

    /// The first key that is due and that no worker has; or when to look again.
    fn pop(&mut self, now: Instant) -> Result<Work, Option<Instant>> {
        let free = self.order.iter().find(|(_, work)| !self.running.contains(work)).cloned();
        match free {
            Some((at, work)) if at <= now => {
                self.order.remove(&(at, work.clone()));
                self.due.remove(&work);
                self.running.insert(work.clone());
                Ok(work)
            }
            free => Err(free.map(|(at, _)| at)),
        }
    }

    fn done(&mut self, work: Work, again: Option<Duration>, now: Instant) {
        self.running.remove(&work);
        self.failing.remove(&work);
        if let Some(after) = again {
            self.push(work, now + after);
        }
    }

    fn failed(&mut self, work: Work, jitter: u64, now: Instant) -> Duration {
        self.running.remove(&work);
        let mut backoff = self.failing.get(&work).map(|(backoff, _)| *backoff).unwrap_or_default();
        let pause = backoff.failed(jitter);
        self.failing.insert(work.clone(), (backoff, now + LEAST_PAUSE.min(pause)));
        self.push(work, now + pause);
        pause
    }
}

impl Queue {
    /// Adds a key. One that waits already is due at the earlier of both times.
    pub(crate) fn push_after(&self, work: Work, after: Duration) {
        self.state().push(work, Instant::now() + after);
        self.changed.notify_one();
    }

    /// Adds a key that is due now.
    pub(crate) fn push(&self, work: Work) {
        self.push_after(work, Duration::ZERO);
    }

    /// Waits for a key that is due. The caller gives it back with [`Queue::done`].
    pub(crate) async fn next(&self) -> Work {
        loop {
            let changed = self.changed.notified();
            let found = self.state().pop(Instant::now());
            match found {
                Ok(work) => {
                    self.changed.notify_one(); // another worker may take the next one
                    return work;
                }
                Err(None) => changed.await,
                Err(Some(at)) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    /// Gives a key back after success; it is due again after a pause, if one is given.
    pub(crate) fn done(&self, work: Work, again: Option<Duration>) {
        self.state().done(work, again, Instant::now());
        self.changed.notify_one();
    }

    /// Gives a key back after a failure; it is due again after its backoff, which is returned. `jitter` is any number.
    pub(crate) fn failed(&self, work: Work, jitter: u64) -> Duration {
        let pause = self.state().failed(work, jitter, Instant::now());
        self.changed.notify_one();
        pause
    }

    /// The number of keys that wait.
    pub(crate) fn len(&self) -> usize {
        self.state().due.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(name: &str) -> Work {
        Work::Instance(Key::new("default", name))
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test] // rule 60
    fn key_is_handed_out_once_for_many_reasons() {
        let (mut state, now) = (State::default(), Instant::now());
        state.push(work("a"), now);
        state.push(work("a"), now + seconds(9));
        state.push(work("b"), now);
        assert_eq!([state.pop(now), state.pop(now)], [Ok(work("a")), Ok(work("b"))]);
        assert_eq!(state.pop(now), Err(None));
    }

    #[test]
    fn key_that_a_worker_has_waits_for_it() {
        let (mut state, now) = (State::default(), Instant::now());
        state.push(work("a"), now);
        assert_eq!(state.pop(now), Ok(work("a")));
        state.push(work("a"), now);
        state.push(work("b"), now);
        assert_eq!(state.pop(now), Ok(work("b")), "others are not held up");
        assert_eq!(state.pop(now), Err(None));
        state.done(work("a"), None, now);
        assert_eq!(state.pop(now), Ok(work("a")), "what changed meanwhile is not forgotten");
    }

    #[test]
    fn earlier_time_wins() {
        let (mut state, now) = (State::default(), Instant::now());
        for after in [60, 5, 30] {
            state.push(work("a"), now + seconds(after));
        }
        assert_eq!(state.pop(now), Err(Some(now + seconds(5))));
        assert_eq!(state.pop(now + seconds(5)), Ok(work("a")));
        state.done(work("a"), Some(seconds(7)), now);
        assert_eq!(state.pop(now + seconds(6)), Err(Some(now + seconds(7))), "a success can ask for another look");
    }

    #[test] // rule 60
    fn failing_key_backs_off_alone() {
        let (mut state, mut now) = (State::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..4 {
            state.push(work("bad"), now);
            now += seconds(10);
            assert_eq!(state.pop(now), Ok(work("bad")));
            pauses.push(state.failed(work("bad"), 0, now).as_secs());
            state.push(work("bad"), now);
            state.push(work("good"), now);
            assert_eq!(state.pop(now), Ok(work("good")), "its own events do not make it busy");
            state.done(work("good"), None, now);
            assert_eq!(state.pop(now), Err(Some(now + LEAST_PAUSE)));
        }
        assert_eq!(pauses, [1, 2, 4, 8]);
        now += seconds(10);
        assert_eq!(state.pop(now), Ok(work("bad")));
        state.done(work("bad"), None, now);
        state.push(work("bad"), now);
        assert_eq!(state.pop(now), Ok(work("bad")), "a success ends the backoff");
    }

    #[tokio::test]
    async fn waiting_worker_gets_what_is_pushed() {
        let queue = std::sync::Arc::new(Queue::default());
        let waiting = tokio::spawn({
            let queue = std::sync::Arc::clone(&queue);
            async move { [queue.next().await, queue.next().await] }
        });
        queue.push(work("a"));
        queue.push_after(work("b"), Duration::from_millis(5));
        assert_eq!(waiting.await.unwrap(), [work("a"), work("b")]);
    }
}
