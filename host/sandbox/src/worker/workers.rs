//! Sandbox processes, started when they are needed and again after they have ended.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use akri_engine::{Compiler, ComponentBytes, MODULES_DIR, ROUNDS_AT_ONCE, Rates};
use akri_model::discovery::RoundError;
use akri_model::grant::{CompileLimits, Isolation};
use akri_model::retry::{Backoff, RetryPolicy, jitter};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep_until;
use tracing::warn;

use super::component::WorkerComponent;
use super::connection::Connection;
use super::process::{ReadablePaths, WorkerProgram};
use super::protocol::Request;
use crate::load_error::LoadError;

/// A process that ran for so long has shown that it can.
const STABLE: Duration = Duration::from_secs(60);
/// Interval of checks whether a process still reads the files that are there.
const CHECK: Duration = Duration::from_secs(1);

/// Processes at once for components that may have ended theirs.
const PROBATIONS: usize = 2;

/// The sandbox processes of a host.
pub(crate) struct Workers {
    compiler: Arc<Compiler>,
    pub(crate) context: Arc<WorkerContext>,
    shared: Arc<Worker>,
    next_id: AtomicU64,
}

impl Workers {
    pub(crate) fn new(compiler: Compiler, program: WorkerProgram, paths: ReadablePaths) -> io::Result<Self> {
        // A rule that lets a process read it needs it to be there.
        let modules = paths.compiled.join(MODULES_DIR);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(modules)?;
        let context = Arc::new(WorkerContext::new(program, paths));
        let shared = Arc::new(Worker::new("shared".to_owned(), Arc::clone(&context)));
        Ok(Self { compiler: Arc::new(compiler), context, shared, next_id: AtomicU64::new(1) })
    }

    /// Compiles a component, and loads it in the shared process or in one of its own.
    pub(crate) async fn load(
        &self,
        bytes: Vec<u8>,
        limits: &CompileLimits,
        isolation: Isolation,
    ) -> Result<WorkerComponent, LoadError> {
        let source = ComponentBytes::new(bytes).await?;
        let was_compiled = self.compiler.prepare(&source, limits).await?;
        let digest = source.digest().to_owned();
        let worker = match isolation {
            Isolation::Shared => Arc::clone(&self.shared),
            Isolation::Own => {
                let name: String = digest.chars().take(12).collect();
                Arc::new(Worker::new(name, Arc::clone(&self.context)))
            }
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        WorkerComponent::load(id, worker, digest, source.bytes(), isolation, was_compiled).await
    }
}

/// The state shared by all sandbox processes of a host.
pub(crate) struct WorkerContext {
    program: WorkerProgram,
    pub(crate) paths: ReadablePaths,
    /// The budget of their own log lines.
    rates: Rates,
    probations: Arc<Semaphore>,
}

impl WorkerContext {
    pub(super) fn new(program: WorkerProgram, paths: ReadablePaths) -> Self {
        Self { program, paths, rates: Rates::default(), probations: Arc::new(Semaphore::new(PROBATIONS)) }
    }
}

/// A process for one call of a component that may have ended another. It ends with this.
pub(super) struct Probation {
    pub(super) worker: Worker,
    _turn: OwnedSemaphorePermit,
}

/// A sandbox process, whichever runs at the moment.
pub(crate) struct Worker {
    name: String,
    pub(super) context: Arc<WorkerContext>,
    /// Turns of rounds.
    pub(super) rounds: Arc<Semaphore>,
    state: Mutex<State>,
}

struct State {
    connection: Option<Arc<Connection>>,
    backoff: Backoff,
    earliest: tokio::time::Instant,
    checked: Instant,
}

impl Worker {
    pub(super) fn new(name: String, context: Arc<WorkerContext>) -> Self {
        let state = State {
            connection: None,
            backoff: Backoff::new(RetryPolicy::SANDBOX),
            earliest: tokio::time::Instant::now(),
            checked: Instant::now(),
        };
        let rounds = Arc::new(Semaphore::new(ROUNDS_AT_ONCE));
        Self { name, context, rounds, state: Mutex::new(state) }
    }

    /// Returns a process like this one for a component that may have ended it. Waits while there are too many.
    pub(super) async fn probation(&self) -> Result<Probation, RoundError> {
        let turn = Arc::clone(&self.context.probations).acquire_owned().await;
        let turn = turn.map_err(|error| RoundError::Unavailable(error.to_string()))?;
        let worker = Self::new(format!("probation of {}", self.name), Arc::clone(&self.context));
        Ok(Probation { worker, _turn: turn })
    }

    /// Returns the connection to the process, which is started if none runs.
    pub(super) async fn connect(&self) -> Result<Arc<Connection>, RoundError> {
        let mut state = self.state.lock().await;
        if let Some(connection) = self.usable(&mut state) {
            return Ok(connection);
        }
        sleep_until(state.earliest).await;
        let WorkerContext { program, paths, rates, .. } = &*self.context;
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

    /// Forgets a component.
    pub(super) fn forget(&self, component: u64) {
        // Where a process is being started, the component is not loaded.
        if let Some(connection) = self.state.try_lock().ok().and_then(|state| state.connection.clone()) {
            connection.try_send(&Request::Unload { component });
        }
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
                tracing::info!(
                    sandbox = self.name,
                    "files that the sandbox process reads were replaced; starting another"
                );
                return None;
            }
        }
        state.connection = Some(Arc::clone(&connection));
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test] // rule 92, threat 18
    async fn few_probation_processes_run_at_once() {
        let program = WorkerProgram { path: "/bin/false".into(), arguments: Vec::new(), memory_bytes: 1 };
        let paths = ReadablePaths { compiled: "/".into(), sysfs: "/".into(), udev_data: "/".into() };
        let context = Arc::new(WorkerContext::new(program, paths));
        let (shared, own) =
            (Worker::new("shared".to_owned(), Arc::clone(&context)), Worker::new("own".to_owned(), context));
        let mut some: Vec<Probation> = Vec::new();
        for worker in [&shared, &own] {
            some.push(worker.probation().await.unwrap());
        }
        assert!(timeout(Duration::from_millis(20), shared.probation()).await.is_err(), "of all processes together");
        some.pop();
        assert!(timeout(Duration::from_secs(20), shared.probation()).await.unwrap().is_ok());
    }
}
