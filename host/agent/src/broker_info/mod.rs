//! Publishes what brokers report of their devices (rule 39): the container of each claim gets a directory, whose files
//! appear in the status of the Instance.

mod directories;
mod reader;
mod reporter;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use akri_cluster::Cluster;
use akri_model::broker_info::ClaimDirectory;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::journal::Journal;
use crate::publisher::Publisher;
use reporter::Reporter;

/// The directories of all claims that have one.
#[derive(Debug)]
pub struct BrokerInfo {
    path: PathBuf,
    /// Path of the directories on the node, as the kubelet sees it.
    pub(crate) host_path: String,
    /// Wakes the reporter, which rests while there are no directories.
    created: Notify,
}

impl BrokerInfo {
    /// Returns the highest generation of a claim that has a directory: a new claim must not find one of its own name.
    ///
    /// # Errors
    /// If the directories can't be read.
    pub fn last_generation(&self) -> io::Result<u64> {
        Ok(self.list()?.iter().map(|directory| directory.generation).max().unwrap_or_default())
    }

    /// Creates the directories of claims. The journal has to hold the claims already: a directory without one is removed.
    ///
    /// # Errors
    /// If one can't be created.
    pub async fn create(self: &Arc<Self>, wanted: Vec<ClaimDirectory>) -> Result<(), String> {
        if wanted.is_empty() {
            return Ok(());
        }
        let info = Arc::clone(self);
        let create = move || wanted.iter().try_for_each(|directory| info.create_one(directory));
        let created = tokio::task::spawn_blocking(create).await.map_err(|error| error.to_string())?;
        self.created.notify_one();
        created.map_err(|error| error.to_string())
    }

    /// Starts the task that publishes files, those of before a restart first, until it is dropped.
    pub fn start(self: &Arc<Self>, cluster: Arc<dyn Cluster>, publisher: Publisher, journal: Journal) -> JoinSet<()> {
        self.created.notify_one();
        let (info, (published, logged, stuck)) = (Arc::clone(self), Default::default());
        JoinSet::from_iter([Reporter { info, cluster, publisher, journal, published, logged, stuck }.run()])
    }
}
