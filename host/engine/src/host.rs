//! The host of the components that run in this process: what they share.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use akri_model::datagram::DatagramFilter;
use akri_node::multicast::{Listener, OwnSenders};
use akri_node::sysfs::Sysfs;
use tokio::sync::{Mutex, Semaphore};
use wasmtime::component::Linker;
use wasmtime::{Cache, Config, Engine};

use crate::capabilities;
use crate::compiled::{ComponentBytes, Library};
use crate::component::{LoadError, LocalComponent};
use crate::machine_code::{self, own_directory};
use crate::network::resolver::{self, Lookup};
use crate::network::tls::Trust;
use crate::platform::Platform;
use crate::round::Round;
use crate::runtime::{self, GuestRuntime};

/// Rounds at once, over all components; the others queue, first come, first served.
pub const ROUNDS_AT_ONCE: usize = 4;

/// The settings of a host of components.
#[derive(Debug, Clone)]
pub struct LocalHostConfig {
    /// The absolute path of the directory for compiled components. It is created with mode 0700 and must belong to this
    /// user alone, since its content is executed. None: every load compiles.
    pub cache_dir: Option<PathBuf>,
    /// The mount point of sysfs, usually `/sys`.
    pub sysfs: PathBuf,
    /// udev's database, usually `/run/udev/data`. It need not exist.
    pub udev_data: PathBuf,
}

/// The reason why a host could not be created, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HostError(String);

impl HostError {
    /// Returns the error of a directory for compiled components that can't be used.
    pub fn cache_dir(path: &Path, why: impl Display) -> Self {
        Self(format!("the cache directory {}: {why}", path.display()))
    }

    /// Returns the error of settings that wasmtime refused.
    pub fn engine(why: impl Display) -> Self {
        Self(format!("the engine could not be set up: {why:#}"))
    }

    fn threads(why: impl Display) -> Self {
        Self(format!("the threads for guests could not be started: {why}"))
    }
}

/// Loads components and runs them in this process. Clones share everything.
///
/// When the last clone, component and call are gone, its threads are stopped and joined, which takes up to a second if
/// one of them hangs in the kernel.
#[derive(Clone)]
pub struct LocalHost(Arc<Shared>);

/// The state shared by the host and its components.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) linker: Linker<Round>,
    /// Held while a component is loaded.
    pub(crate) compiled: Arc<Mutex<Library>>,
    pub(crate) runtime: GuestRuntime,
    pub(crate) rounds: Arc<Semaphore>,
    pub(crate) sysfs: Sysfs,
    pub(crate) lookup: Lookup,
    pub(crate) trust: Arc<Trust>,
    pub(crate) own_senders: OwnSenders,
}

impl LocalHost {
    /// Sets up the engine and starts its threads.
    ///
    /// # Errors
    /// If the engine can't be set up, or the directory for compiled components can't be used.
    pub fn new(config: LocalHostConfig) -> Result<Self, HostError> {
        Self::linking(config, resolver::system(), runtime::threads(), |_| Ok(()))
    }

    /// Sets up an engine for calls with a [`Tape`](crate::Tape), whose crate replaces functions by `replace`, and starts its
    /// thread.
    ///
    /// # Errors
    /// If the engine can't be set up, or the directory for compiled components can't be used.
    pub fn taping(
        config: LocalHostConfig,
        replace: impl FnOnce(&mut Linker<Round>) -> wasmtime::Result<()>,
    ) -> Result<Self, HostError> {
        // With one thread, the clock of a replay is asked only where the guest has gone as far as it can.
        Self::linking(config, resolver::system(), 1, replace)
    }

    /// Resolves DNS names by `lookup`.
    #[cfg(test)]
    pub(crate) fn resolving(config: LocalHostConfig, lookup: Lookup) -> Result<Self, HostError> {
        Self::linking(config, lookup, runtime::threads(), |_| Ok(()))
    }

    fn linking(
        config: LocalHostConfig,
        lookup: Lookup,
        threads: usize,
        replace: impl FnOnce(&mut Linker<Round>) -> wasmtime::Result<()>,
    ) -> Result<Self, HostError> {
        let cache = config.cache_dir.map(open_cache).transpose()?;
        let engine = Engine::new(&engine_config(cache, Platform::here())).map_err(HostError::engine)?;
        let mut linker = capabilities::linker(&engine).map_err(HostError::engine)?;
        linker.allow_shadowing(true);
        replace(&mut linker).map_err(HostError::engine)?;
        linker.allow_shadowing(false);
        let runtime = GuestRuntime::start(engine.clone(), threads).map_err(HostError::threads)?;
        Ok(Self(Arc::new(Shared {
            engine,
            linker,
            compiled: Arc::default(),
            runtime,
            rounds: Arc::new(Semaphore::new(ROUNDS_AT_ONCE)),
            sysfs: Sysfs { root: config.sysfs, udev_data: config.udev_data },
            lookup,
            trust: Arc::default(),
            own_senders: OwnSenders::default(),
        })))
    }

    /// Makes a component of its bytes: compiles them (seconds for a large one, milliseconds from the cache), checks imports and
    /// exports, and asks it for its description.
    ///
    /// # Errors
    /// If they are no component (at most 64 MiB), if it is no discovery handler, or if `describe` fails.
    pub async fn load(&self, bytes: Vec<u8>) -> Result<LocalComponent, LoadError> {
        LocalComponent::load(self.0.clone(), ComponentBytes::new(bytes).await?).await
    }

    /// Runs a future and its tasks on the threads for guests. Calls whose methods end in `_here` may be made there.
    ///
    /// # Errors
    /// If it panicked.
    pub fn block_on<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, HostError> {
        let failed = || HostError::threads("a thread has ended");
        let threads = self.0.runtime.handle().ok_or_else(failed)?;
        threads.block_on(threads.spawn(future)).map_err(|_| failed())
    }

    /// Receives what is sent to a multicast group, but for what this host's rounds send.
    pub fn listen(&self, group: SocketAddr, interfaces: &[String], filters: Vec<DatagramFilter>) -> Listener {
        Listener::new(group, interfaces, filters, self.0.own_senders.clone())
    }
}

/// The settings of every engine of a platform: machine code of one can be run by the others.
pub(crate) fn engine_config(cache: Option<Cache>, platform: Platform) -> Config {
    let mut config = Config::new();
    // Handlers are synchronous; what only concurrent ones need stays off, should a feature ever bring it in.
    config.concurrency_support(false).epoch_interruption(true).cache(cache);
    // Nobody debugs handlers here, and what would help is a seventh of what they take: backtraces name functions without it.
    config.generate_address_map(false).native_unwind_info(false);
    if let Some(target) = platform.target {
        let set = config.target(target);
        debug_assert!(set.is_ok(), "{target} is unknown");
    }
    config
}

fn open_cache(path: PathBuf) -> Result<Cache, HostError> {
    own_directory(&path).map_err(|why| HostError::cache_dir(&path, why))?;
    machine_code::cache(path.clone()).map_err(|error| HostError::cache_dir(&path, format!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::PLATFORMS;

    #[test]
    fn machine_code_needs_no_more_than_the_baseline() {
        for platform in PLATFORMS {
            let engine = Engine::new(&engine_config(None, platform)).unwrap();
            let code = engine.precompile_component(b"\0asm\x0d\0\x01\0").unwrap();
            // The name of a processor's feature is followed by the kind of its value (2: a boolean) and the value.
            let starts = (0..code.len()).filter(|start| code[*start..].starts_with(b"has_"));
            let values =
                starts.map(|start| code[start..].iter().skip_while(|byte| byte.is_ascii_graphic()).take(2).collect());
            let values: Vec<Vec<&u8>> = values.collect();
            let has_features = platform.target != Some("pulley32");
            assert_eq!(values.len() > 3, has_features, "{platform}: {values:?}");
            assert!(values.iter().all(|value| *value == [&2, &0]), "{platform}: {values:?}");
        }
    }
}
