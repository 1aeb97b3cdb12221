//! The host of components, wherever they run, and devices that a person names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use akri_engine::{Compiler, HostConfig, HostError, LocalHost};
use akri_model::grant::{CompileLimits, Grants, Isolation};
use akri_node::sysfs::{self, Bounds, Sysfs, is_granted};

use crate::component::Component;
use crate::load_error::LoadError;
use crate::worker::{ReadablePaths, WorkerProgram, Workers};

/// Longest duration of [`Host::find`].
const FIND: Duration = Duration::from_secs(10);
/// Bytes of the devices it looks at.
const FOUND: usize = 32 << 20;

/// A device of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundDevice {
    /// The sysfs path without its mount point.
    pub devpath: String,
    /// Such as `tty`.
    pub subsystem: Option<String>,
}

impl FoundDevice {
    /// Returns whether a handler with these grants may see it.
    pub fn is_granted(&self, grants: &Grants) -> bool {
        is_granted(&grants.udev_subsystems, self.subsystem.as_deref())
    }
}

/// Sysfs could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FindError(String);

/// Loads components and runs them. Clones share everything.
///
/// When the last clone, component and call are gone, its threads and processes are stopped, which takes up to a second if
/// a thread hangs in the kernel.
#[derive(Clone)]
pub struct Host {
    backend: Backend,
    sysfs: Sysfs,
}

#[derive(Clone)]
enum Backend {
    /// Components run in this process.
    Local(LocalHost),
    /// They run in others.
    Workers(Arc<Workers>),
}

impl Host {
    /// Sets up a host that runs components in this process.
    ///
    /// # Errors
    /// If the engine can't be set up, or the directory for compiled components can't be used.
    pub fn new(config: HostConfig) -> Result<Self, HostError> {
        let sysfs = sysfs_of(&config);
        Ok(Self { backend: Backend::Local(LocalHost::new(config)?), sysfs })
    }

    /// Sets up a host for calls with a [`Tape`](crate::Tape), which runs components in this process.
    ///
    /// # Errors
    /// If the engine can't be set up, or the directory for compiled components can't be used.
    pub fn taping(config: HostConfig) -> Result<Self, HostError> {
        let sysfs = sysfs_of(&config);
        Ok(Self { backend: Backend::Local(LocalHost::taping(config)?), sysfs })
    }

    /// Sets up a host that runs components in processes of that program, started when they are needed. The settings have to
    /// name a directory for compiled components and a program that compiles.
    ///
    /// # Errors
    /// If the directory can't be used.
    pub fn with_workers(config: HostConfig, program: WorkerProgram) -> Result<Self, HostError> {
        let (compiler, sysfs) = (Compiler::for_processes(&config)?, sysfs_of(&config));
        let compiled = config.cache_dir.unwrap_or_default();
        let paths = ReadablePaths { compiled, sysfs: config.sysfs, udev_data: config.udev_data };
        let workers = Workers::new(compiler, program, paths).map_err(HostError::Threads)?;
        Ok(Self { backend: Backend::Workers(Arc::new(workers)), sysfs })
    }

    /// Makes a component of its bytes: has them compiled (seconds for a large one, milliseconds from the cache), checks
    /// imports and exports, and asks it who it is.
    ///
    /// # Errors
    /// If they are no component (at most 64 MiB), if it is no discovery handler, or if `describe` fails.
    pub async fn load(&self, bytes: Vec<u8>) -> Result<Component, LoadError> {
        self.load_within(bytes, &CompileLimits::default()).await
    }

    /// Loads a component within bounds on compiling, which hold where a program of its own compiles. A component that exceeded
    /// them is not compiled again.
    ///
    /// # Errors
    /// If the bytes are no component (at most 64 MiB) or no discovery handler, if compiling exceeds the bounds, or if `describe`
    /// fails.
    pub async fn load_within(&self, bytes: Vec<u8>, limits: &CompileLimits) -> Result<Component, LoadError> {
        self.load_isolated(bytes, limits, Isolation::Shared).await
    }

    /// Loads a component within bounds on compiling, in a process of its own if it is to have one and components run in other
    /// processes.
    ///
    /// # Errors
    /// If the bytes are no component (at most 64 MiB) or no discovery handler, if compiling exceeds the bounds, if `describe`
    /// fails, or if no process can be started.
    pub async fn load_isolated(
        &self,
        bytes: Vec<u8>,
        limits: &CompileLimits,
        isolation: Isolation,
    ) -> Result<Component, LoadError> {
        match &self.backend {
            Backend::Local(host) => Ok(host.load_within(bytes, limits).await?.into()),
            Backend::Workers(workers) => Ok(workers.load(bytes, limits, isolation).await?.into()),
        }
    }

    /// Returns whether a component is isolated as it should be, which matters only if components run in other processes.
    pub fn isolates(&self, component: &Component, isolation: Isolation) -> bool {
        matches!(self.backend, Backend::Local(_)) || component.isolation() == isolation
    }

    /// The devices that a person's `name` means, at most 16: a node below `/dev` or a link to it, a path of sysfs, or a
    /// name in the kernel, which more than one subsystem may have given. Empty if there is none.
    ///
    /// # Errors
    /// If sysfs can't be read, or not within ten seconds.
    pub async fn find(&self, name: &str) -> Result<Vec<FoundDevice>, FindError> {
        let (sysfs, name) = (self.sysfs.clone(), name.to_owned());
        let bounds = Bounds { bytes: FOUND, until: Instant::now() + FIND };
        let found = tokio::task::spawn_blocking(move || sysfs.find(&name, &bounds)).await;
        let found = found.map_err(|error| FindError(error.to_string()))?.map_err(|stop| FindError(stop.to_string()))?;
        let device = |entry: sysfs::Entry| FoundDevice { devpath: entry.devpath, subsystem: entry.subsystem };
        Ok(found.into_iter().map(device).collect())
    }
}

fn sysfs_of(config: &HostConfig) -> Sysfs {
    Sysfs { root: config.sysfs.clone(), udev_data: config.udev_data.clone() }
}
