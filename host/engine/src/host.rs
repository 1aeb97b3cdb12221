//! The host of the components that run in this process: what they share.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use akri_model::datagram::DatagramFilter;
use akri_model::grant::CompileLimits;
use akri_node::multicast::{Listener, OwnSenders};
use akri_node::sysfs::Sysfs;
use tokio::sync::Semaphore;
use wasmtime::component::Linker;
use wasmtime::{Cache, Config, Engine};

use crate::capabilities;
use crate::compile::{self, Artifacts, Compiler, CompilerProgram, Precompiled};
use crate::compiled::{Compiled, ComponentBytes, Library};
use crate::component::{LoadError, LocalComponent};
use crate::network::resolver::{self, Lookup};
use crate::network::tls::Trust;
use crate::round::Round;
use crate::runtime::{self, GuestRuntime};

/// Rounds at once, over all components; the others queue, first come, first served.
pub const ROUNDS_AT_ONCE: usize = 4;
/// The settings of a host of components.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// The absolute path of the directory for compiled components. It is created with mode 0700 and must belong to this
    /// user alone, since its content is executed. None: every load compiles.
    pub cache_dir: Option<PathBuf>,
    /// The program that compiles, which is `akri` (see [`compile_here`](crate::compile_here)); it needs a `cache_dir`. None:
    /// components are compiled in this process, with whatever that takes.
    pub compiler: Option<PathBuf>,
    /// The directory with precompiled components (see [`precompile`](crate::precompile)); it is used in place of the
    /// `compiler`, and only if no other user than root and this one can write to it. It need not exist.
    pub precompiled: Option<PathBuf>,
    /// The mount point of sysfs, usually `/sys`.
    pub sysfs: PathBuf,
    /// udev's database, usually `/run/udev/data`. It need not exist.
    pub udev_data: PathBuf,
}

/// The reason why a host could not be created.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The cache directory can't be used.
    #[error("the cache directory {path}: {why}")]
    CacheDir {
        /// The directory.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// wasmtime refused its settings.
    #[error("the engine could not be set up: {0}")]
    Engine(String),
    /// No threads.
    #[error("the threads for guests could not be started: {0}")]
    Threads(#[source] io::Error),
}

/// Loads components and runs them in this process. Clones share everything.
///
/// When the last clone, component and call are gone, its threads are stopped and joined, which takes up to a second if
/// one of them hangs in the kernel.
#[derive(Clone)]
pub struct LocalHost(Arc<Shared>);

/// Makes a linker.
type Link = fn(&Engine) -> wasmtime::Result<Linker<Round>>;

/// The state shared by the host and its components.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) linker: Linker<Round>,
    pub(crate) library: Library,
    pub(crate) runtime: GuestRuntime,
    pub(crate) rounds: Arc<Semaphore>,
    pub(crate) compiler: Arc<Compiler>,
    /// Components loaded at once.
    pub(crate) loads: Arc<Semaphore>,
    cache: Option<Cache>,
    pub(crate) sysfs: Sysfs,
    pub(crate) lookup: Lookup,
    pub(crate) trust: Arc<Trust>,
    pub(crate) own_senders: OwnSenders,
}

impl Shared {
    /// Loads a component, which the compiler has prepared. Blocks.
    pub(crate) fn load(&self, source: &ComponentBytes) -> Result<Arc<Compiled>, LoadError> {
        let misses = || self.cache.as_ref().map(Cache::cache_misses);
        let before = misses();
        let loaded = self.library.load(&self.engine, &self.linker, source);
        if self.compiler.is_elsewhere() && misses() != before {
            tracing::warn!(digest = source.digest(), "machine code was not found and had to be made here");
        }
        loaded
    }
}

impl LocalHost {
    /// Sets up the engine and starts its threads.
    ///
    /// # Errors
    /// If the engine can't be set up, or the directory for compiled components can't be used.
    pub fn new(config: HostConfig) -> Result<Self, HostError> {
        Self::linking(config, resolver::system(), capabilities::linker, runtime::threads())
    }

    /// Sets up an engine for calls with a [`Tape`](crate::Tape), and starts its thread.
    ///
    /// # Errors
    /// If the engine can't be set up, or the directory for compiled components can't be used.
    pub fn taping(config: HostConfig) -> Result<Self, HostError> {
        // With one thread, the clock of a replay is asked only where the guest has gone as far as it can.
        Self::linking(config, resolver::system(), capabilities::taped_linker, 1)
    }

    /// Resolves DNS names by `lookup`.
    #[cfg(test)]
    pub(crate) fn resolving(config: HostConfig, lookup: Lookup) -> Result<Self, HostError> {
        Self::linking(config, lookup, capabilities::linker, runtime::threads())
    }

    fn linking(config: HostConfig, lookup: Lookup, linker: Link, threads: usize) -> Result<Self, HostError> {
        let cache = config.cache_dir.as_deref().map(open_cache).transpose()?;
        let failed = |error: wasmtime::Error| HostError::Engine(format!("{error:#}"));
        let engine = Engine::new(&engine_config(cache.clone())).map_err(failed)?;
        let compiler = compiler(&config, &engine)?;
        let linker = linker(&engine).map_err(failed)?;
        let runtime = GuestRuntime::start(engine.clone(), threads).map_err(HostError::Threads)?;
        Ok(Self(Arc::new(Shared {
            engine,
            linker,
            library: Library::default(),
            runtime,
            rounds: Arc::new(Semaphore::new(ROUNDS_AT_ONCE)),
            compiler: Arc::new(Compiler::new(compiler)),
            loads: Arc::new(Semaphore::new(1)),
            cache,
            sysfs: Sysfs { root: config.sysfs, udev_data: config.udev_data },
            lookup,
            trust: Arc::default(),
            own_senders: OwnSenders::default(),
        })))
    }

    /// Makes a component of its bytes: has them compiled (seconds for a large one, milliseconds from the cache), checks
    /// imports and exports, and asks it who it is.
    ///
    /// # Errors
    /// If they are no component (at most 64 MiB), if it is no discovery handler, or if `describe` fails.
    pub async fn load(&self, bytes: Vec<u8>) -> Result<LocalComponent, LoadError> {
        self.load_within(bytes, &CompileLimits::default()).await
    }

    /// Loads a component within bounds on compiling, which hold where a program of its own compiles. A component that exceeded
    /// them is not compiled again.
    ///
    /// # Errors
    /// If the bytes are no component (at most 64 MiB) or no discovery handler, if compiling exceeds the bounds, or if `describe`
    /// fails.
    pub async fn load_within(&self, bytes: Vec<u8>, limits: &CompileLimits) -> Result<LocalComponent, LoadError> {
        LocalComponent::load(self.0.clone(), bytes, limits).await
    }

    /// Runs a future and its tasks on the threads for guests. Calls whose methods end in `_here` may be made there.
    ///
    /// # Errors
    /// If it panicked.
    pub fn block_on<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, HostError> {
        let failed = || HostError::Threads(io::Error::other("a thread has ended"));
        let (sender, ended) = mpsc::channel();
        let task = async move { sender.send(future.await) };
        self.0.runtime.spawn(task).ok_or_else(failed)?;
        ended.recv().map_err(|_| failed())
    }

    /// Receives what is sent to a multicast group, but for what this host's rounds send.
    pub fn listen(&self, group: SocketAddr, interfaces: &[String], filters: Vec<DatagramFilter>) -> Listener {
        Listener::new(group, interfaces, filters, self.0.own_senders.clone())
    }
}

impl Compiler {
    /// Makes a compiler for components that other processes load, from the directory that the settings name.
    ///
    /// # Errors
    /// If there is no such directory, or if it can't be used.
    pub fn for_processes(config: &HostConfig) -> Result<Self, HostError> {
        let missing = || HostError::Engine("compiled components have to be kept for sandbox processes".to_owned());
        let compiled = config.cache_dir.as_deref().ok_or_else(missing)?;
        own_directory(compiled).map_err(|why| HostError::CacheDir { path: compiled.to_owned(), why })?;
        // It runs nothing: machine code is kept by its settings.
        let engine = Engine::new(&engine_config(None)).map_err(|error| HostError::Engine(format!("{error:#}")))?;
        Ok(Self::new(compiler(config, &engine)?))
    }
}

/// The settings of every engine: machine code of one can be run by the others.
pub(crate) fn engine_config(cache: Option<Cache>) -> Config {
    let mut config = Config::new();
    // Handlers are synchronous; what only concurrent ones need stays off, should a feature ever bring it in.
    config.concurrency_support(false).epoch_interruption(true).cache(cache);
    // Nobody debugs handlers here, and what would help is a seventh of what they take: backtraces name functions without it.
    config.generate_address_map(false).native_unwind_info(false);
    if let Some(target) = BASELINE {
        let set = config.target(target);
        debug_assert!(set.is_ok(), "{target} is unknown");
    }
    config
}

/// The target of all machine code, whose naming keeps the compiler from using what the processor at hand has beyond the
/// architecture's baseline: code that is made with the image runs on every node. None: the processor at hand.
const BASELINE: Option<&str> = if cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
    Some("x86_64-unknown-linux-gnu")
} else if cfg!(all(target_arch = "aarch64", target_os = "linux", target_env = "gnu")) {
    Some("aarch64-unknown-linux-gnu")
} else {
    None
};

fn open_cache(path: &Path) -> Result<Cache, HostError> {
    let refused = |why: String| HostError::CacheDir { path: path.to_owned(), why };
    own_directory(path).map_err(refused)?;
    compile::cache(path.to_owned()).map_err(|error| refused(format!("{error:#}")))
}

/// The program that compiles, if another one does.
fn compiler(config: &HostConfig, engine: &Engine) -> Result<Option<CompilerProgram>, HostError> {
    let (Some(path), Some(directory)) = (&config.compiler, &config.cache_dir) else { return Ok(None) };
    let refused = |error: io::Error| HostError::CacheDir { path: directory.clone(), why: error.to_string() };
    let artifacts = Artifacts::open(directory, engine).map_err(refused)?;
    let precompiled = config.precompiled.as_deref().map(|directory| Precompiled::new(directory, engine));
    Ok(Some(CompilerProgram { path: path.clone(), artifacts, precompiled }))
}

/// Makes the directory, or makes sure that nobody else can enter it. What others could write to is made anew.
fn own_directory(path: &Path) -> Result<(), String> {
    if !path.is_absolute() {
        return Err("the path has to be absolute".to_owned());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| error.to_string())?;
    let metadata = path.metadata().map_err(|error| error.to_string())?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("it belongs to user {}", metadata.uid()));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    tracing::warn!(directory = %path.display(), "others can enter the directory of compiled components (mode {mode:o}); closing it");
    let closed = if mode & 0o022 == 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700))
    } else {
        fs::remove_dir_all(path).and_then(|()| DirBuilder::new().mode(0o700).create(path))
    };
    closed.map_err(|error| format!("its mode is {mode:o}, and it cannot be closed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_needs_no_more_than_the_baseline() {
        let engine = Engine::new(&engine_config(None)).unwrap();
        let code = engine.precompile_component(b"\0asm\x0d\0\x01\0").unwrap();
        // The name of a processor's feature is followed by the kind of its value (2: a boolean) and the value.
        let starts = (0..code.len()).filter(|start| code[*start..].starts_with(b"has_"));
        let values =
            starts.map(|start| code[start..].iter().skip_while(|byte| byte.is_ascii_graphic()).take(2).collect());
        let values: Vec<Vec<&u8>> = values.collect();
        assert!(values.len() > 3 && values.iter().all(|value| *value == [&2, &0]), "{values:?}");
    }

    #[test]
    fn a_cache_directory_is_made_for_us_alone() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("a/b");
        own_directory(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700);
        own_directory(&path).unwrap();
    }

    #[test]
    fn a_cache_directory_that_others_can_enter_is_closed() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("compiled");
        for (mode, is_kept) in [(0o755, true), (0o770, false), (0o702, false)] {
            own_directory(&path).unwrap();
            fs::write(path.join("code"), "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            own_directory(&path).unwrap();
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700, "{mode:o}");
            assert_eq!(path.join("code").exists(), is_kept, "what others could write is not run: {mode:o}");
        }
    }

    #[test]
    fn a_cache_directory_that_can_t_be_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(own_directory(&file.path().join("below")).is_err());
        assert!(own_directory(Path::new("relative")).unwrap_err().contains("absolute"));
    }
}
