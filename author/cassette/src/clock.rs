//! The clock of a replay: it stands while the guest computes, and goes on to the next event when all wait for one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Poll;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::call::Micros;

/// Time that passes when the guest reads the clock, so that a guest that polls the clock comes to an end.
const READ: Nanos = 1_000;
/// An event that never comes.
pub(crate) const NEVER: Nanos = Nanos::MAX;
/// Polls in a row without a change after which nothing comes any more.
const QUIET: u32 = 100;

/// Nanoseconds since the round began.
pub(crate) type Nanos = u64;

/// Time of one round. All that waits in it waits here.
#[derive(Debug)]
pub(crate) struct Clock {
    state: Mutex<ClockState>,
    /// The round ends here.
    end: Nanos,
    /// Notified when the round can't go on.
    pub(crate) stuck: Notify,
}

#[derive(Debug, Default)]
struct ClockState {
    now: Nanos,
    waiting: BTreeSet<(Nanos, u64)>,
    numbered: u64,
    /// Set while the guest computes: it may yet wait for an earlier event.
    is_computing: bool,
    /// Counts the events, and the steps of the guest.
    steps: u64,
}

impl Clock {
    /// Returns a clock that stands at the start of a round, which ends at `end`.
    pub(crate) fn new(end: Nanos) -> Self {
        Self { state: Mutex::default(), end, stuck: Notify::new() }
    }

    /// The time, without any passing.
    pub(crate) fn now(&self) -> Nanos {
        self.state.lock().now
    }

    /// The time as the guest sees it.
    pub(crate) fn read(&self) -> Nanos {
        let mut state = self.state.lock();
        state.now = state.now.saturating_add(READ);
        state.now
    }

    /// Time left in the round.
    pub(crate) fn left(&self) -> Nanos {
        self.end.saturating_sub(self.now())
    }

    /// Waits until then, from this call on. Time goes on if nobody waits for an earlier event. The round can't go on if all that
    /// the guest waits for is after its end.
    pub(crate) fn until(self: &Arc<Self>, due: Nanos) -> impl Future<Output = ()> + use<> {
        let mut waiter = Waiter::new(self, if due > self.end { NEVER } else { due });
        async move {
            loop {
                if waiter.is_over() {
                    return;
                }
                // Whatever else the guest waits for is asked in the same turn, and says so here.
                pause().await;
                if waiter.advance() {
                    return;
                }
                if waiter.is_hopeless() {
                    waiter.clock.stuck.notify_one();
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    /// Notes that the guest computes, or calls the host. Time stands while it computes.
    pub(crate) fn set_computing(&self, is_computing: bool) {
        let mut state = self.state.lock();
        state.is_computing = is_computing;
        state.steps += 1;
    }

    /// Returns what makes time stand until it is dropped: it waits for the start of the round, so that no event is before it.
    pub(crate) fn busy(self: &Arc<Self>) -> Waiter {
        Waiter::new(self, 0)
    }
}

/// Lets others run. tokio's own would put this task before those that wait for a thread, in a runtime that looks for events
/// after each task, as that of guests does.
async fn pause() {
    let mut paused = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The time in a cassette.
pub(crate) fn nanos(at: Micros) -> Nanos {
    at.saturating_mul(1000)
}

/// Something that waits for an event, until it is dropped.
pub(crate) struct Waiter {
    clock: Arc<Clock>,
    key: (Nanos, u64),
    /// The steps at its last poll, and the polls since they changed.
    steps: u64,
    quiet: u32,
}

impl Waiter {
    fn new(clock: &Arc<Clock>, due: Nanos) -> Self {
        let mut state = clock.state.lock();
        state.numbered += 1;
        let key = (due, state.numbered);
        state.waiting.insert(key);
        Self { clock: clock.clone(), key, steps: state.steps, quiet: 0 }
    }

    fn is_over(&self) -> bool {
        self.clock.state.lock().now >= self.key.0
    }

    /// Lets time pass, if this is the next event and nothing has happened since the last poll: the guest gets one event at a
    /// time.
    fn advance(&mut self) -> bool {
        let mut state = self.clock.state.lock();
        self.quiet = if state.steps == self.steps { self.quiet.saturating_add(1) } else { 0 };
        self.steps = state.steps;
        if self.quiet == 0 || self.key.0 == NEVER || !state.is_next(self.key) {
            return false;
        }
        state.now = state.now.max(self.key.0);
        state.steps += 1;
        true
    }

    fn is_hopeless(&self) -> bool {
        self.quiet >= QUIET && self.key.0 == NEVER && self.clock.state.lock().is_next(self.key)
    }
}

impl ClockState {
    /// Returns whether all wait, and for nothing before this.
    fn is_next(&self, key: (Nanos, u64)) -> bool {
        !self.is_computing && self.waiting.first() == Some(&key)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.clock.state.lock().waiting.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use super::*;

    /// Waits for the first of two moments, as a guest does that polls both.
    async fn first(clock: &Arc<Clock>, one: Nanos, other: Nanos) -> (bool, bool) {
        let (mut one, mut other) = (pin!(clock.until(one)), pin!(clock.until(other)));
        std::future::poll_fn(|context| {
            match (one.as_mut().poll(context).is_ready(), other.as_mut().poll(context).is_ready()) {
                (false, false) => Poll::Pending,
                ready => Poll::Ready(ready),
            }
        })
        .await
    }

    #[tokio::test] // rule 76
    async fn events_come_one_at_a_time() {
        for other in [12, 70, NEVER] {
            let clock = Arc::new(Clock::new(60));
            assert_eq!(first(&clock, 10, other).await, (true, false), "{other}");
            assert_eq!(first(&clock, other, 20).await, (other == 12, other != 12), "{other}");
            assert_eq!(clock.now(), if other == 12 { 12 } else { 20 });
        }
    }

    #[tokio::test] // rule 76
    async fn time_stands_while_the_guest_computes() {
        let clock = Arc::new(Clock::new(60));
        for instant in [10, NEVER] {
            clock.set_computing(true);
            let waiting = tokio::time::timeout(Duration::from_millis(20), clock.until(instant));
            assert!(waiting.await.is_err() && clock.now() == 0);
        }
        clock.set_computing(false);
        tokio::select! {
            () = clock.until(NEVER) => unreachable!(),
            () = clock.stuck.notified() => {}
        }
        clock.until(10).await;
        assert_eq!(clock.now(), 10);
    }
}
