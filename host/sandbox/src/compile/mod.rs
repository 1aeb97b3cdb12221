//! Compiling components in a process of their own.
//!
//! A compiler takes what a component makes it take: minutes for some nested loops, gigabytes for one table. So it runs in a
//! child that has nothing: no environment, no network, no file but one directory, and bounds on memory and processor time
//! that end it, and it alone.
//!
//! ```text
//! agent ── component ──► `akri handler compile` ── machine code ──► artifacts: recorded, then loaded by sandbox processes
//! image ── machine code made with it ──────────────────────────────────► artifacts
//! ```

mod artifacts;
mod child;
mod precompiled;
mod queue;

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use akri_engine::{
    ComponentBytes, HostError, LoadError, MAX_COMPONENT, Platform, compile_into, own_directory, settings_hash,
};
use akri_model::grant::CompileLimits;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use self::artifacts::Artifacts;
pub use self::child::compile;
pub use self::precompiled::precompile;
use self::queue::{CompileQueue, QueuePermit};
use crate::confine::confine_compiler;

/// Processor time of the first attempts. A component that needs more waits again, behind those with fewer attempts: one that
/// uses up all its time does not delay those that need little.
const FIRST_ATTEMPTS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Compiles the components of a host, and remembers failures.
#[derive(Debug)]
pub(crate) struct Compiler {
    program: PathBuf,
    artifacts: Artifacts,
    /// Machine code that ships with the program, which is used instead of compiling.
    precompiled: Option<PathBuf>,
    queue: CompileQueue,
    /// Failures by digest and limits; these are not retried.
    failed: Mutex<HashMap<(String, CompileLimits), LoadError>>,
}

/// A component to be compiled.
#[derive(Debug)]
struct CompileJob {
    digest: String,
    bytes: Arc<Vec<u8>>,
    limits: CompileLimits,
}

impl Compiler {
    /// Opens a directory for machine code that the program makes, or that is in the directory of `precompiled` code.
    ///
    /// # Errors
    /// If the directory can't be used.
    pub(crate) fn open(program: PathBuf, directory: &Path, precompiled: Option<&Path>) -> Result<Self, HostError> {
        own_directory(directory).map_err(|why| HostError::cache_dir(directory, why))?;
        let engine = settings_hash(Platform::here()).map_err(HostError::engine)?;
        let artifacts = Artifacts::open(directory, engine, Platform::here())
            .map_err(|error| HostError::cache_dir(directory, error))?;
        artifacts.prune();
        let precompiled = precompiled.map(Path::to_owned);
        Ok(Self { program, artifacts, precompiled, queue: CompileQueue::default(), failed: Mutex::default() })
    }

    /// Makes sure that there is machine code for a component. Returns whether it was compiled now. A component that has machine
    /// code waits for nothing.
    ///
    /// # Errors
    /// If it can't be compiled within the limits.
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        source: &ComponentBytes,
        limits: &CompileLimits,
    ) -> Result<bool, LoadError> {
        let (digest, bytes) = (source.digest.clone(), Arc::clone(&source.bytes));
        let job = Arc::new(CompileJob { digest, bytes, limits: limits.clone() });
        if self.has_code(&job).await? {
            return Ok(false);
        }
        let first = FIRST_ATTEMPTS.into_iter().filter(|time| *time < limits.time);
        for (attempt, time) in first.chain([limits.time]).enumerate() {
            let permit = self.queue.permit(attempt, job.bytes.len()).await;
            // Another object may be of the same component.
            if self.has_code(&job).await? {
                return Ok(false);
            }
            if attempt == 0 {
                tracing::info!(digest = job.digest, bytes = job.bytes.len(), program = %self.program.display(), "compiling a component");
            }
            match self.compile(&job, time, permit).await {
                Err(LoadError::Time(_)) if time < limits.time => {
                    tracing::debug!(
                        digest = job.digest,
                        "compiling takes more than {time:?}; it is tried again after others"
                    );
                }
                compiled => return compiled.map(|()| true),
            }
        }
        Err(LoadError::Time(limits.time))
    }

    /// Returns whether there is machine code for a component, which may have been compiled ahead.
    ///
    /// # Errors
    /// If it could not be compiled before.
    async fn has_code(self: &Arc<Self>, job: &Arc<CompileJob>) -> Result<bool, LoadError> {
        if let Some(failure) = self.failed.lock().get(&(job.digest.clone(), job.limits.clone())) {
            return Err(failure.clone());
        }
        let (compiler, job) = (Arc::clone(self), Arc::clone(job));
        let check = move || compiler.artifacts.has(&job.digest) || compiler.adopt_precompiled(&job.digest);
        spawn_blocking(check).await.map_err(|error| LoadError::Unavailable(error.to_string()))
    }

    fn adopt_precompiled(&self, digest: &str) -> bool {
        let Some(precompiled) = &self.precompiled else { return false };
        let adopt = || {
            let scratch = self.artifacts.scratch()?;
            let found = precompiled::copy(precompiled, &self.artifacts, digest, &scratch)?;
            if found {
                self.artifacts.adopt(digest, &scratch)?;
                tracing::info!(digest, "using precompiled code");
            }
            Ok::<bool, io::Error>(found)
        };
        adopt().unwrap_or_else(|error| {
            tracing::warn!(digest, "precompiled code is not used: {error}");
            false
        })
    }

    /// Compiles within this processor time. The turn ends with the compiler's process, also if nobody waits for it any more.
    async fn compile(
        self: &Arc<Self>,
        job: &Arc<CompileJob>,
        time: Duration,
        permit: QueuePermit,
    ) -> Result<(), LoadError> {
        let (compiler, job) = (Arc::clone(self), Arc::clone(job));
        let compile = move || {
            let _permit = permit;
            compiler.compile_now(&job, time)
        };
        spawn_blocking(compile).await.unwrap_or_else(|error| Err(LoadError::Unavailable(error.to_string())))
    }

    fn compile_now(&self, job: &CompileJob, time: Duration) -> Result<(), LoadError> {
        let unavailable = |error: io::Error| LoadError::Unavailable(error.to_string());
        let scratch = self.artifacts.scratch().map_err(unavailable)?;
        let limits = CompileLimits { time, ..job.limits.clone() };
        let compiled =
            child::compile(&self.program, &job.bytes, Platform::here(), &limits, job.limits.time, scratch.path());
        let is_final = match &compiled {
            Err(LoadError::Time(_)) => time == job.limits.time,
            Err(LoadError::Memory(_) | LoadError::Refused(_)) => true,
            Err(LoadError::Unavailable(_)) | Ok(()) => false,
        };
        if let Some(error) = compiled.as_ref().err().filter(|_| is_final) {
            self.failed.lock().insert((job.digest.clone(), job.limits.clone()), error.clone());
        }
        compiled?;
        self.artifacts.adopt(&job.digest, &scratch).map_err(unavailable)
    }
}

/// Compiles the component that comes on standard input for a platform, into a directory, within these limits. It is what
/// `akri handler compile` does, before it has started any thread: the limits are those of this process from then on.
///
/// # Errors
/// If the component is invalid, or the process can't be confined.
pub fn compile_here(output: &Path, platform: Platform, limits: &CompileLimits) -> Result<(), String> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(MAX_COMPONENT as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read the component: {error}"))?;
    confine_compiler(output, limits)?;
    compile_into(output, &bytes, platform)
}
