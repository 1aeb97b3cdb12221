//! The state of a local agent, or of a cluster, as `akri why` and the page show it.

mod cluster;
mod local;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use akri_api::{Configuration, DiscoveryHandlerStatus, Instance};
use anyhow::Context as _;
use tokio::task::spawn_blocking;

/// All that is looked at: the objects of a local agent or of a cluster.
#[derive(Default)]
pub(crate) struct Observed {
    pub(crate) configurations: Vec<Configuration>,
    pub(crate) instances: Vec<Instance>,
    pub(crate) handlers: Vec<Handler>,
    pub(crate) pods: Vec<Pod>,
    /// The pods of slots in use, by slot, as far as the node knows them.
    pub(crate) users: BTreeMap<String, String>,
    /// The files of Configurations, by namespace and name.
    pub(crate) files: BTreeMap<String, String>,
    /// The errors of manifests.
    pub(crate) manifests: Vec<String>,
    /// The reason why no agent runs, by node; that of a local agent has no name.
    pub(crate) agents: BTreeMap<String, String>,
    /// The reason why the kubelet of a node offers nothing, likewise.
    pub(crate) kubelets: BTreeMap<String, String>,
}

/// A discovery handler.
pub(crate) struct Handler {
    /// Its object; remote handlers have none.
    pub(crate) object: Option<String>,
    pub(crate) status: DiscoveryHandlerStatus,
}

/// A pod that requests devices.
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) node: Option<String>,
    pub(crate) requests: BTreeSet<String>,
    /// The reason why it does not run, if it does not.
    pub(crate) waits: Option<String>,
}

impl Observed {
    /// Reads the state directory of a local agent, or without one there the objects of the cluster that KUBECONFIG or the pod's service
    /// account leads to.
    pub(crate) async fn of(state: &Path) -> anyhow::Result<Self> {
        if local::is_state(state) {
            let state = state.to_owned();
            return spawn_blocking(move || local::observe(&state)).await?;
        }
        let no_agent = || format!("no local agent keeps its state in '{}'", state.display());
        cluster::observe().await.with_context(no_agent)
    }
}
