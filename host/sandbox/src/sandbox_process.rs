//! Sandbox processes, started when they are needed and again after they have ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use akri_engine::{ROUNDS_AT_ONCE, Rates};
use akri_model::discovery::RoundError;
use akri_model::retry::{Backoff, RetryPolicy, jitter};
use tempfile::TempDir;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::sleep_until;
use tracing::{info, warn};

use super::connection::Connection;
use super::process::{ReadablePaths, SandboxProgram};

/// A process that ran for so long has shown that it can.
const STABLE: Duration = Duration::from_secs(60);
/// Interval of checks whether a process still reads the files that are there.
const CHECK: Duration = Duration::from_secs(1);

/// The state shared by all sandbox processes of a host.
pub(crate) struct ProcessContext {
    pub(crate) program: SandboxProgram,
    pub(crate) paths: ReadablePaths,
    /// The budget of their own log lines.
    pub(crate) rates: Rates,
    /// The directory of compiled components, if it ends with the host.
    pub(crate) _temporary: Option<TempDir>,
}

/// A sandbox process, whichever runs at the moment.
pub(crate) struct SandboxProcess {
    name: String,
    pub(crate) context: Arc<ProcessContext>,
    /// Turns of calls.
    pub(crate) permits: Arc<Semaphore>,
    state: Mutex<State>,
}

struct State {
    connection: Option<Arc<Connection>>,
    backoff: Backoff,
    earliest: tokio::time::Instant,
    checked: Instant,
}

impl SandboxProcess {
    pub(crate) fn new(name: String, context: Arc<ProcessContext>) -> Self {
        let state = State {
            connection: None,
            backoff: Backoff::new(RetryPolicy::SANDBOX),
            earliest: tokio::time::Instant::now(),
            checked: Instant::now(),
        };
        Self { name, context, permits: Arc::new(Semaphore::new(ROUNDS_AT_ONCE)), state: Mutex::new(state) }
    }

    /// Returns the process of one component, which has a part of its digest as name.
    pub(crate) fn of_component(digest: &str, context: Arc<ProcessContext>) -> Self {
        Self::new(digest.chars().take(12).collect(), context)
    }

    /// Returns the connection to the process, which is started if none runs.
    pub(crate) async fn connect(&self) -> Result<Arc<Connection>, RoundError> {
        let mut state = self.state.lock().await;
        if let Some(connection) = self.usable(&mut state) {
            return Ok(connection);
        }
        sleep_until(state.earliest).await;
        let ProcessContext { program, paths, rates, .. } = &*self.context;
        let opened = Connection::open(&self.name, program, paths, rates.clone());
        let connection = opened.map_err(|error| {
            state.earliest = tokio::time::Instant::now() + state.backoff.failed(jitter());
            warn!(sandbox = self.name, "the sandbox process can't be started: {error}");
            RoundError::Unavailable(format!("the sandbox process can't be started: {error}"))
        })?;
        state.connection = Some(Arc::clone(&connection));
        state.checked = Instant::now();
        Ok(connection)
    }

    /// Returns the connection that is open, unless the files it may read have been replaced: then it ends with the calls in
    /// it.
    fn usable(&self, state: &mut State) -> Option<Arc<Connection>> {
        let connection = state.connection.take()?;
        if connection.is_closed() {
            if connection.since.elapsed() >= STABLE {
                state.backoff.reset();
            }
            state.earliest = tokio::time::Instant::now() + state.backoff.failed(jitter());
            return None;
        }
        if state.checked.elapsed() >= CHECK {
            state.checked = Instant::now();
            if self.context.paths.fingerprint() != connection.fingerprint {
                info!(sandbox = self.name, "files that the sandbox process reads were replaced; starting another");
                return None;
            }
        }
        state.connection = Some(Arc::clone(&connection));
        Some(connection)
    }
}
