//! Publishes what brokers report of their devices (rule 39): the container of each claim gets a directory, whose files
//! appear in the status of the Instance.

mod directories;
mod reader;
mod reporter;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use akri_cluster::Cluster;
use akri_model::broker_info::ClaimDirectory;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::journal::Journal;
use crate::publisher::Publisher;
use directories::Directories;
use reporter::Reporter;

/// Name of the directory of all these directories in the state directory.
const NAME: &str = "broker-info";

/// The directories of claims could not be prepared.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} '{}': {source}", path.display())]
pub struct BrokerInfoError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The directories of all claims that have one.
#[derive(Debug)]
pub struct BrokerInfo {
    directories: Directories,
    /// Path of the directories on the node, as the kubelet sees it.
    host_path: PathBuf,
    /// Wakes the reporter, which rests while there are no directories.
    created: Arc<Notify>,
}

/// Publishes files for as long as it lives.
#[derive(Debug)]
pub struct Reporting(JoinHandle<()>);

impl Drop for Reporting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl BrokerInfo {
    /// Opens the directories in a state directory, which the node may know under another path.
    ///
    /// # Errors
    /// If they can't be read or created.
    pub fn open(state: &Path, host_state: &Path) -> Result<Self, BrokerInfoError> {
        let directories = Directories::open(state.join(NAME))?;
        Ok(Self { directories, host_path: host_state.join(NAME), created: Arc::default() })
    }

    /// Returns the highest generation of a claim that has a directory: a new claim must not find one of its own name.
    ///
    /// # Errors
    /// If the directories can't be read.
    pub fn last_generation(&self) -> Result<u64, BrokerInfoError> {
        Ok(self.directories.list()?.iter().map(|directory| directory.generation).max().unwrap_or_default())
    }

    /// The directory of all these directories, as the kubelet sees it.
    pub fn host_path(&self) -> String {
        self.host_path.display().to_string()
    }

    /// Creates the directories of claims. The journal has to hold the claims already: a directory without one is removed.
    ///
    /// # Errors
    /// If one can't be created.
    pub async fn create(&self, wanted: Vec<ClaimDirectory>) -> Result<(), String> {
        if wanted.is_empty() {
            return Ok(());
        }
        let directories = self.directories.clone();
        let create = move || wanted.iter().try_for_each(|directory| directories.create(directory));
        let created = tokio::task::spawn_blocking(create).await.map_err(|error| error.to_string())?;
        self.created.notify_one();
        created.map_err(|error| error.to_string())
    }

    /// Starts to publish files, those of before a restart first.
    pub fn start(&self, cluster: Arc<dyn Cluster>, publisher: Publisher, journal: Journal) -> Reporting {
        self.created.notify_one();
        let reporter = Reporter::new(self.directories.clone(), cluster, publisher, journal);
        Reporting(tokio::spawn(reporter.run(Arc::clone(&self.created))))
    }
}
