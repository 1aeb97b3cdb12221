//! Sandbox processes, started when they are needed and again after they have ended.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use akri_model::discovery::RoundError;
use akri_model::grant::{CompileLimits, Isolation};
use akri_model::retry::{Backoff, jitter};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::sleep_until;
use tracing::warn;

use super::component::RemoteComponent;
use super::connection::Connection;
use super::process::{ReadablePaths, WorkerProgram};
use super::protocol::Request;
use crate::compile::{CompileJob, Compiler};
use crate::compiled::judge;
use crate::component::{COMPONENT, LoadError};
use crate::host::ROUNDS;

/// First and longest pause before a process is started again.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);
/// A process that ran for so long has shown that it can.
const STABLE: Duration = Duration::from_secs(60);
/// Interval of checks whether a process still reads the files that are there.
const CHECK: Duration = Duration::from_secs(1);

/// The sandbox processes of a host.
pub(crate) struct Workers {
    compiler: Arc<Compiler>,
    program: Arc<WorkerProgram>,
    pub(crate) paths: Arc<ReadablePaths>,
    shared: Arc<Worker>,
    next_id: AtomicU64,
}

impl Workers {
    pub(crate) fn new(compiler: Compiler, program: WorkerProgram, paths: ReadablePaths) -> io::Result<Self> {
        // A rule that lets a process read it needs it to be there.
        let modules = paths.compiled.join(crate::compile::MODULES);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(modules)?;
        let (program, paths) = (Arc::new(program), Arc::new(paths));
        let shared = Arc::new(Worker::new("shared".to_owned(), Arc::clone(&program), Arc::clone(&paths)));
        Ok(Self { compiler: Arc::new(compiler), program, paths, shared, next_id: AtomicU64::new(1) })
    }

    /// Compiles a component, and loads it in the shared process or in one of its own.
    pub(crate) async fn load(
        &self,
        bytes: Vec<u8>,
        limits: &CompileLimits,
        isolation: Isolation,
    ) -> Result<RemoteComponent, LoadError> {
        if bytes.len() > COMPONENT {
            return Err(LoadError::TooLarge(bytes.len()));
        }
        let stopped = |why: &dyn std::fmt::Display| LoadError::Unavailable(why.to_string());
        let bytes = Arc::new(bytes);
        let judged = {
            let bytes = Arc::clone(&bytes);
            tokio::task::spawn_blocking(move || judge(&bytes)).await.map_err(|error| stopped(&error))?
        };
        let digest = judged?.digest;
        let job = CompileJob { digest: digest.clone(), bytes: Arc::clone(&bytes), limits: limits.clone() };
        let was_compiled = self.compiler.prepare(job).await?;
        let worker = match isolation {
            Isolation::Shared => Arc::clone(&self.shared),
            Isolation::Own => {
                let name: String = digest.chars().take(12).collect();
                Arc::new(Worker::new(name, Arc::clone(&self.program), Arc::clone(&self.paths)))
            }
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        RemoteComponent::load(id, worker, digest, &bytes, isolation, was_compiled).await
    }
}

/// A sandbox process, whichever runs at the moment.
pub(crate) struct Worker {
    name: String,
    program: Arc<WorkerProgram>,
    pub(super) paths: Arc<ReadablePaths>,
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
    fn new(name: String, program: Arc<WorkerProgram>, paths: Arc<ReadablePaths>) -> Self {
        let state = State {
            connection: None,
            backoff: Backoff::new(FIRST, LONGEST),
            earliest: tokio::time::Instant::now(),
            checked: Instant::now(),
        };
        let rounds = Arc::new(Semaphore::new(ROUNDS));
        Self { name, program, paths, rounds, state: Mutex::new(state) }
    }

    /// Returns a process like this one for a component that may have ended it.
    pub(super) fn probation(&self) -> Self {
        Self::new(format!("probation of {}", self.name), Arc::clone(&self.program), Arc::clone(&self.paths))
    }

    /// Returns the connection to the process, which is started if none runs.
    pub(super) async fn connect(&self) -> Result<Arc<Connection>, RoundError> {
        let mut state = self.state.lock().await;
        if let Some(connection) = self.usable(&mut state) {
            return Ok(connection);
        }
        sleep_until(state.earliest).await;
        let opened = Connection::open(&self.name, &self.program, &self.paths);
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
            if self.paths.fingerprint() != connection.fingerprint {
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

/// The directory in which sources of components are kept while they are loaded.
pub(super) fn source_directory(paths: &ReadablePaths) -> PathBuf {
    paths.compiled.clone()
}
