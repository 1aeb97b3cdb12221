//! The threads guests run on.
//!
//! Guests that only compute would starve everything else on their runtime, so they have one of their own; and tokio
//! looks at its timers only every 61 polls by default, which would be 61 epochs.

use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::runtime::{Builder, Handle, Runtime};
use wasmtime::Engine;

/// Guests yield to each other this often.
pub const TICK: Duration = Duration::from_millis(10);
/// Longest wait at the end for a thread that hangs in the kernel, reading sysfs.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A runtime for guests, and a thread that makes them yield. Dropping it stops and joins both.
#[derive(Debug)]
pub(crate) struct GuestRuntime {
    runtime: Option<Runtime>,
    ticker: Option<JoinHandle<()>>,
    activity: Arc<GuestActivity>,
}

/// The number of computing guests: ticks are needed only while there are some.
#[derive(Debug, Default)]
pub(crate) struct GuestActivity {
    state: Mutex<ActivityState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ActivityState {
    /// Guests on a thread now; those that wait for something are not.
    computing: usize,
    ticks: u64,
    stopped: bool,
}

/// Threads for guests on this machine.
pub(crate) fn threads() -> usize {
    thread::available_parallelism().map_or(1, |count| count.get().min(2))
}

impl GuestRuntime {
    /// Starts so many threads for guests, and the one that makes them yield.
    pub(crate) fn start(engine: Engine, threads: usize) -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let runtime =
            builder.worker_threads(threads).event_interval(1).thread_name("akri-guest").enable_all().build()?;
        let activity = Arc::<GuestActivity>::default();
        let of_ticker = Arc::clone(&activity);
        // It waits anew after each tick, so that late ticks are not made up for.
        let tick = move || {
            while of_ticker.wait_for_guests() {
                thread::sleep(TICK);
                engine.increment_epoch();
            }
        };
        let ticker = thread::Builder::new().name("akri-ticker".to_owned()).spawn(tick)?;
        Ok(Self { runtime: Some(runtime), ticker: Some(ticker), activity })
    }

    /// Returns the threads for guests; `None` at the end of the host.
    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.runtime.as_ref().map(Runtime::handle)
    }

    /// Returns the count of computing guests.
    pub(crate) fn activity(&self) -> Arc<GuestActivity> {
        Arc::clone(&self.activity)
    }
}

impl GuestActivity {
    /// Runs a guest, which computes while it is polled. Returns `None` if the host panicked in it.
    pub(crate) async fn run<T>(&self, guest: impl Future<Output = T>) -> Option<T> {
        let mut guest = pin!(guest);
        poll_fn(|context| {
            let _computing = self.enter();
            match catch_unwind(AssertUnwindSafe(|| guest.as_mut().poll(context))) {
                Ok(polled) => polled.map(Some),
                Err(_) => Poll::Ready(None),
            }
        })
        .await
    }

    /// A guest computes until the result is dropped.
    fn enter(&self) -> Computing<'_> {
        let mut state = self.state.lock();
        state.computing += 1;
        if state.computing == 1 {
            self.changed.notify_one();
        }
        Computing(self)
    }

    /// Waits until a guest computes, and counts the tick that follows. Returns false at the end.
    fn wait_for_guests(&self) -> bool {
        let waiting = |state: &mut ActivityState| state.computing == 0 && !state.stopped;
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, waiting);
        state.ticks += 1;
        !state.stopped
    }

    fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_one();
    }
}

/// A guest that computes.
struct Computing<'a>(&'a GuestActivity);

impl Drop for Computing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().computing -= 1;
    }
}

impl Drop for GuestRuntime {
    fn drop(&mut self) {
        // A runtime may not be waited for inside another one, and that is where the host usually ends. The ticker goes
        // last: without it a guest that computes would not let its thread end.
        if let Some(runtime) = self.runtime.take() {
            let _ = thread::spawn(move || runtime.shutdown_timeout(JOIN_TIMEOUT)).join();
        }
        self.activity.stop();
        if let Some(ticker) = self.ticker.take() {
            let _ = ticker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ticker_rests_unless_a_guest_computes() {
        let runtime = GuestRuntime::start(Engine::default(), threads()).unwrap();
        let ticks = |activity: &GuestActivity| activity.state.lock().ticks;
        let activity = runtime.activity();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let guest = async move {
            let _ = started.send(());
            std::future::pending::<()>().await;
        };
        let waiting = runtime.handle().unwrap().spawn(async move { activity.run(guest).await });
        has_started.await.unwrap();
        while runtime.activity.state.lock().computing > 0 {
            tokio::time::sleep(TICK).await;
        }
        let before = ticks(&runtime.activity);
        tokio::time::sleep(10 * TICK).await;
        assert_eq!(ticks(&runtime.activity), before, "it waits");
        let activity = runtime.activity();
        let busy = runtime.handle().unwrap().spawn(async move {
            let compute = async {
                while ticks(&activity) < before + 3 {
                    thread::yield_now();
                }
            };
            activity.run(compute).await
        });
        busy.await.unwrap();
        waiting.abort();
    }
}
