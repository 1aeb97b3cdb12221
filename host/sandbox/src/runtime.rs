//! The threads guests run on.
//!
//! Guests that only compute would starve everything else on their runtime, so they have one of their own; and tokio
//! looks at its timers only every 61 polls by default, which would be 61 epochs.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use wasmtime::Engine;

/// Guests yield to each other this often.
pub(crate) const TICK: Duration = Duration::from_millis(10);
/// How long the end waits for a thread that hangs in the kernel, reading sysfs.
const PATIENCE: Duration = Duration::from_secs(1);

/// A runtime for guests, and a thread that makes them yield. Dropping it stops and joins both.
#[derive(Debug)]
pub(crate) struct GuestRuntime {
    runtime: Option<Runtime>,
    ticker: Option<(Sender<()>, JoinHandle<()>)>,
}

impl GuestRuntime {
    /// Starts the threads.
    pub(crate) fn start(engine: Engine) -> io::Result<Self> {
        let threads = thread::available_parallelism().map_or(1, |count| count.get().min(2));
        let mut builder = Builder::new_multi_thread();
        let runtime =
            builder.worker_threads(threads).event_interval(1).thread_name("akri-guest").enable_all().build()?;
        let (stop, stopped) = mpsc::channel();
        // It waits anew after each tick, so that late ticks are not made up for.
        let tick = move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                engine.increment_epoch();
            }
        };
        let ticker = thread::Builder::new().name("akri-ticker".to_owned()).spawn(tick)?;
        Ok(Self { runtime: Some(runtime), ticker: Some((stop, ticker)) })
    }

    /// Where to start tasks.
    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.runtime.as_ref().map(Runtime::handle)
    }
}

impl Drop for GuestRuntime {
    fn drop(&mut self) {
        // A runtime may not be waited for inside another one, and that is where the host usually ends. The ticker goes
        // last: without it a guest that computes would not let its thread end.
        if let Some(runtime) = self.runtime.take() {
            let _ = thread::spawn(move || runtime.shutdown_timeout(PATIENCE)).join();
        }
        if let Some((stop, ticker)) = self.ticker.take() {
            drop(stop);
            let _ = ticker.join();
        }
    }
}
