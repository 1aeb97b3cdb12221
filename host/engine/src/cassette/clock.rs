//! The clock of a replay: it stands while the guest computes, and goes on to the next event when all wait for one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::Notify;

use super::call::Micros;

/// Time that passes with each look at the clock, so that a guest that waits by looking comes to an end.
const LOOK: Nanos = 1_000;
/// An event that never comes.
pub(super) const NEVER: Nanos = Nanos::MAX;

/// Nanoseconds since the round began.
pub(super) type Nanos = u64;

/// Time of one round. All that waits in it waits here.
#[derive(Debug)]
pub(super) struct Clock {
    state: Mutex<State>,
    /// The round ends here.
    end: Nanos,
    stuck: Notify,
}

#[derive(Debug, Default)]
struct State {
    now: Nanos,
    waiting: BTreeSet<(Nanos, u64)>,
    numbered: u64,
    /// Tasks that may yet wait, or make an event.
    busy: u32,
}

impl Clock {
    pub(super) fn new(end: Nanos) -> Self {
        Self { state: Mutex::default(), end, stuck: Notify::new() }
    }

    /// The time, without any passing.
    pub(super) fn now(&self) -> Nanos {
        self.state().now
    }

    /// The time as the guest sees it.
    pub(super) fn read(&self) -> Nanos {
        let mut state = self.state();
        state.now = state.now.saturating_add(LOOK);
        state.now
    }

    /// Time left in the round.
    pub(super) fn left(&self) -> Nanos {
        self.end.saturating_sub(self.now())
    }

    /// Waits until then. Time goes on if nobody waits for an earlier event, and nothing else is under way.
    pub(super) async fn until(&self, due: Nanos) {
        self.wait(due, 0).await;
    }

    /// The same, and time stands from then on until the result is dropped.
    pub(super) async fn until_busy(self: &Arc<Self>, due: Nanos) -> Busy {
        self.wait(due, 1).await;
        Busy(self.clone())
    }

    async fn wait(&self, due: Nanos, busy: u32) {
        let due = if due > self.end { NEVER } else { due };
        let waiter = Waiter::new(self, due);
        loop {
            if waiter.is_over(busy) {
                return;
            }
            // Whatever else the guest waits for is asked in the same turn, and says so here.
            pause().await;
            if waiter.advance(busy) {
                return;
            }
            if waiter.is_hopeless() {
                self.stuck.notify_one();
                std::future::pending::<()>().await;
            }
        }
    }

    /// Nothing that the guest waits for comes before the end of the round.
    pub(super) async fn stuck(&self) {
        self.stuck.notified().await;
    }

    /// Time stands until this is dropped.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.state().busy += 1;
        Busy(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
pub(super) fn nanos(at: Micros) -> Nanos {
    at.saturating_mul(1000)
}

struct Waiter<'c> {
    clock: &'c Clock,
    key: (Nanos, u64),
}

impl<'c> Waiter<'c> {
    fn new(clock: &'c Clock, due: Nanos) -> Self {
        let mut state = clock.state();
        state.numbered += 1;
        let key = (due, state.numbered);
        state.waiting.insert(key);
        Self { clock, key }
    }

    /// Returns whether it is past, and has time stand then.
    fn is_over(&self, busy: u32) -> bool {
        let mut state = self.clock.state();
        let is_over = state.now >= self.key.0;
        state.busy += if is_over { busy } else { 0 };
        is_over
    }

    /// Lets time pass, if this is the next event.
    fn advance(&self, busy: u32) -> bool {
        let mut state = self.clock.state();
        if state.busy > 0 || self.key.0 == NEVER || state.waiting.first() != Some(&self.key) {
            return false;
        }
        state.now = state.now.max(self.key.0);
        state.busy += busy;
        true
    }

    fn is_hopeless(&self) -> bool {
        let state = self.clock.state();
        state.busy == 0 && self.key.0 == NEVER && state.waiting.first() == Some(&self.key)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.clock.state().waiting.remove(&self.key);
    }
}

/// Something is under way.
#[derive(Debug)]
pub(super) struct Busy(Arc<Clock>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.busy = state.busy.saturating_sub(1);
    }
}
