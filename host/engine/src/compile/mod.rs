//! Compiling components in a process of their own.
//!
//! A compiler takes what a component makes it take: minutes for some nested loops, gigabytes for one table. So it runs in a
//! child that has nothing: no environment, no network, no file but one directory, and bounds on memory and processor time
//! that end it, and it alone.
//!
//! ```text
//! agent ── component ──► `akri handler compile` ── machine code ──► artifacts: sealed, then loaded by the agent
//! image ── machine code made with it ──────────────────────────────────► artifacts
//! ```

mod artifacts;
mod child;
mod precompiled;

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use akri_confine::confine_compiler;
use akri_model::grant::CompileLimits;
use tokio::sync::Semaphore;
use wasmtime::{Cache, CacheConfig, Engine};

pub(crate) use self::artifacts::Artifacts;
pub use self::artifacts::MODULES_DIR;
pub(crate) use self::child::compile;
pub(crate) use self::precompiled::Precompiled;
pub use self::precompiled::{PrecompileError, precompile};
use crate::compiled::ComponentBytes;
use crate::host::engine_config;

/// An error of compiling a component.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// It took more memory than it may.
    #[error("compiling it takes more than {} MiB of memory; limits.compile.memory of its DiscoveryHandler allows more", .0 >> 20)]
    Memory(usize),
    /// It took more time than it may.
    #[error(
        "compiling it takes more than {0:?} of processor time; limits.compile.time of its DiscoveryHandler allows more"
    )]
    Time(Duration),
    /// It is no component.
    #[error("{0}")]
    Invalid(String),
    /// The compiler could not be run, or what it made could not be kept: the component may be without fault.
    #[error("it can't be compiled here: {0}")]
    Unavailable(String),
}

/// Compiles the components of a host, and remembers failures.
#[derive(Debug)]
pub struct Compiler {
    /// None: this process, with whatever that takes.
    child: Option<CompilerProgram>,
    /// Compilers at once.
    turns: Arc<Semaphore>,
    /// Failures by digest and limits; these are not retried.
    failed: Mutex<HashMap<(String, CompileLimits), CompileError>>,
}

/// A program that compiles, and where what it makes is kept.
#[derive(Debug)]
pub(crate) struct CompilerProgram {
    pub(crate) path: PathBuf,
    pub(crate) artifacts: Artifacts,
    /// Machine code that ships with the program, which is used instead of compiling.
    pub(crate) precompiled: Option<Precompiled>,
}

impl CompilerProgram {
    /// Returns whether there is code for a component, which may have been compiled ahead.
    fn has(&self, digest: &str) -> bool {
        self.artifacts.has(digest) || self.adopt_precompiled(digest)
    }

    fn adopt_precompiled(&self, digest: &str) -> bool {
        let Some(precompiled) = &self.precompiled else { return false };
        let adopt = || {
            let scratch = self.artifacts.scratch()?;
            let found = precompiled.copy(digest, &scratch)?;
            if found {
                self.artifacts.adopt(digest, &scratch)?;
            }
            Ok::<bool, io::Error>(found)
        };
        match adopt() {
            Ok(found) => {
                if found {
                    tracing::info!(digest, "using precompiled code");
                }
                found
            }
            Err(error) => {
                tracing::warn!(digest, "precompiled code is not used: {error}");
                false
            }
        }
    }
}

impl Compiler {
    /// Compiles by that program, or in this process.
    pub(crate) fn new(child: Option<CompilerProgram>) -> Self {
        // One processor is left for what runs.
        let at_once = std::thread::available_parallelism().map_or(1, |count| (count.get() / 2).max(1));
        Self { child, turns: Arc::new(Semaphore::new(at_once)), failed: Mutex::default() }
    }

    /// Returns whether compiling is done elsewhere.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.child.is_some()
    }

    /// Makes sure that the engine finds machine code for a component, unless it has to make that itself. Waits for its turn
    /// only if there is none yet. Returns whether it was compiled now.
    ///
    /// # Errors
    /// If it can't be compiled within the limits.
    pub async fn prepare(
        self: &Arc<Self>,
        source: &ComponentBytes,
        limits: &CompileLimits,
    ) -> Result<bool, CompileError> {
        let Some(child) = &self.child else { return Ok(true) };
        let job =
            CompileJob { digest: source.digest().to_owned(), bytes: source.bytes().clone(), limits: limits.clone() };
        let stopped = |error: &dyn std::fmt::Display| CompileError::Unavailable(error.to_string());
        if let Some(failure) = self.failure(&job) {
            return Err(failure);
        }
        let has = |compiler: &Arc<Self>, digest: String| {
            let compiler = Arc::clone(compiler);
            let look = move || compiler.child.as_ref().is_some_and(|child| child.has(&digest));
            tokio::task::spawn_blocking(look)
        };
        if has(self, job.digest.clone()).await.map_err(|error| stopped(&error))? {
            return Ok(false);
        }
        let _turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|error| stopped(&error))?;
        // Another object may be of the same component.
        if has(self, job.digest.clone()).await.map_err(|error| stopped(&error))? {
            return Ok(false);
        }
        tracing::info!(digest = job.digest, bytes = job.bytes.len(), program = %child.path.display(), "compiling a component");
        let compiler = Arc::clone(self);
        let compile = tokio::task::spawn_blocking(move || compiler.compile(&job));
        compile.await.map_err(|error| stopped(&error))?.map(|()| true)
    }

    fn compile(&self, job: &CompileJob) -> Result<(), CompileError> {
        let Some(CompilerProgram { path, artifacts, .. }) = &self.child else { return Ok(()) };
        let unavailable = |error: io::Error| CompileError::Unavailable(error.to_string());
        let scratch = artifacts.scratch().map_err(unavailable)?;
        let compiled = compile(path, &job.bytes, &job.limits, scratch.path());
        if let Err(error @ (CompileError::Memory(_) | CompileError::Time(_) | CompileError::Invalid(_))) = &compiled {
            self.failed().insert((job.digest.clone(), job.limits.clone()), error.clone());
        }
        compiled?;
        artifacts.adopt(&job.digest, &scratch).map_err(unavailable)
    }

    fn failure(&self, job: &CompileJob) -> Option<CompileError> {
        self.failed().get(&(job.digest.clone(), job.limits.clone())).cloned()
    }

    fn failed(&self) -> MutexGuard<'_, HashMap<(String, CompileLimits), CompileError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A component to be compiled.
#[derive(Debug, Clone)]
struct CompileJob {
    digest: String,
    bytes: Arc<Vec<u8>>,
    limits: CompileLimits,
}

/// Compiles the component that comes on standard input, or is in `file`, into a directory, within these limits. It is what
/// `akri handler compile` does, before it has started any thread: the limits are those of this process from then on.
///
/// # Errors
/// If the component is invalid, or the process can't be confined.
pub fn compile_here(file: Option<&Path>, output: &Path, limits: &CompileLimits) -> Result<(), String> {
    let bytes = read(file).map_err(|error| format!("cannot read the component: {error}"))?;
    confine_compiler(output, limits)?;
    let failed = |error: wasmtime::Error| format!("{error:#}");
    let cache = cache(output.to_owned()).map_err(failed)?;
    let engine = Engine::new(&engine_config(Some(cache))).map_err(failed)?;
    wasmtime::component::Component::from_binary(&engine, &bytes).map_err(failed)?;
    Ok(())
}

fn read(file: Option<&Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = crate::component::COMPONENT as u64 + 1;
    match file {
        Some(file) => std::fs::File::open(file)?.take(most).read_to_end(&mut bytes)?,
        None => io::stdin().lock().take(most).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

/// Opens the engine's cache of machine code. Files are never recompressed, since they are sealed.
pub(crate) fn cache(directory: PathBuf) -> wasmtime::Result<Cache> {
    let mut config = CacheConfig::new();
    config.with_directory(directory).with_optimized_compression_usage_counter_threshold(u64::MAX);
    Cache::new(config)
}
