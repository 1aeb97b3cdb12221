//! The host of components.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use akri_engine::{ComponentBytes, HostError, LoadError, MODULES_DIR, Rates};
use akri_model::grant::{CompileLimits, Isolation};
use tempfile::TempDir;

use crate::compile::Compiler;
use crate::component::{Component, LoadedBytes};
use crate::crash_tracker::CrashTracker;
use crate::process::{ReadablePaths, SandboxProgram};
use crate::sandbox_process::{ProcessContext, SandboxProcess};

/// The settings of a host of components.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// The program in whose processes components are compiled and run.
    pub program: SandboxProgram,
    /// The absolute path of the directory for compiled components. It is created with mode 0700 and must belong to this
    /// user alone, since its content is executed. None: a temporary one.
    pub cache_dir: Option<PathBuf>,
    /// The directory with precompiled components (see [`precompile`](crate::precompile)); it is used only if no other user
    /// than root and this one can write to it. It need not exist.
    pub precompiled: Option<PathBuf>,
    /// The mount point of sysfs, usually `/sys`.
    pub sysfs: PathBuf,
    /// udev's database, usually `/run/udev/data`. It need not exist.
    pub udev_data: PathBuf,
}

/// Loads components and runs them in sandbox processes, which are started when they are needed. Clones share everything.
///
/// When the last clone, component and call are gone, the processes are ended.
#[derive(Clone)]
pub struct Host {
    compiler: Arc<Compiler>,
    crashes: Arc<CrashTracker>,
    context: Arc<ProcessContext>,
    /// The process of all components that have none of their own.
    process: Arc<SandboxProcess>,
}

impl Host {
    /// Sets up a host.
    ///
    /// # Errors
    /// If the directory for compiled components can't be used.
    pub fn new(config: HostConfig) -> Result<Self, HostError> {
        let HostConfig { program, cache_dir, precompiled, sysfs, udev_data } = config;
        let temporary = cache_dir.is_none().then(TempDir::new).transpose();
        let temporary = temporary.map_err(|error| HostError::cache_dir(&std::env::temp_dir(), error))?;
        let temporary_path = || temporary.as_ref().map(|directory| directory.path().join("compiled"));
        let compiled = cache_dir.or_else(temporary_path).unwrap_or_default();
        let compiler = Compiler::open(program.path.clone(), &compiled, precompiled.as_deref())?;
        let paths = ReadablePaths { compiled, sysfs, udev_data };
        // A rule that lets a process read it needs it to be there.
        let modules = paths.compiled.join(MODULES_DIR);
        std::fs::create_dir_all(&modules).map_err(|error| HostError::cache_dir(&modules, error))?;
        let context = Arc::new(ProcessContext { program, paths, rates: Rates::default(), _temporary: temporary });
        let process = Arc::new(SandboxProcess::new("shared".to_owned(), Arc::clone(&context)));
        Ok(Self { compiler: Arc::new(compiler), crashes: Arc::default(), context, process })
    }

    /// Makes a component of its bytes: has them compiled (seconds for a large one, milliseconds from the cache) within bounds,
    /// checks imports and exports, and asks it who it is, in a process of its own if it is to have one. A component that
    /// exceeded the bounds is not compiled again.
    ///
    /// # Errors
    /// If the bytes are no component (at most 64 MiB) or no discovery handler, if compiling exceeds the bounds, if `describe`
    /// fails, or if no process can be started.
    pub async fn load(
        &self,
        bytes: Vec<u8>,
        limits: &CompileLimits,
        isolation: Isolation,
    ) -> Result<Component, LoadError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Self { compiler, crashes, context, process } = self;
        let source = ComponentBytes::new(bytes).await?;
        let was_compiled = compiler.prepare(&source, limits).await?;
        let digest = source.digest.clone();
        let process = match isolation {
            Isolation::Shared => Arc::clone(process),
            Isolation::Own => Arc::new(SandboxProcess::of_component(&digest, Arc::clone(context))),
        };
        let (id, crashes) = (NEXT.fetch_add(1, Ordering::Relaxed), crashes.record_of(&digest));
        let bytes = LoadedBytes::new(source, was_compiled, &context.paths.compiled).await?;
        Component::load(id, bytes, (process, isolation), crashes).await
    }
}
