//! The state of a local agent, or of a cluster, as `akri get`, `akri why` and the page show it.

mod cluster;
pub(crate) mod local;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_api::condition::find;
use akri_api::{Configuration, DiscoveryHandlerStatus, Instance};
use akri_model::instance::Online;
use akri_model::names::Usage;
use anyhow::Context as _;
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::api_server::{client, client_for};
use crate::get::args::SourceArgs;

/// All that is looked at: the objects of a local agent or of a cluster.
#[derive(Default)]
pub(crate) struct Observed {
    pub(crate) configurations: Vec<Configuration>,
    pub(crate) instances: Vec<Instance>,
    pub(crate) handlers: Vec<Handler>,
    pub(crate) pods: Vec<Pod>,
    /// The names of nodes.
    pub(crate) nodes: BTreeSet<String>,
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
    /// The kinds of objects that the user of a cluster may not list.
    pub(crate) hidden: Vec<String>,
    /// The time for which this is good enough: a cluster has more to list, and other readers.
    pub(crate) good_for: Duration,
}

/// A discovery handler.
#[derive(Serialize)]
pub(crate) struct Handler {
    /// Its object; remote handlers have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<String>,
    #[serde(flatten)]
    pub(crate) status: DiscoveryHandlerStatus,
}

impl Handler {
    /// Returns why its object was refused, if it was; the version of before may run on.
    pub(crate) fn refusal(&self) -> Option<String> {
        let accepted = find(&self.status.conditions, "Accepted").filter(|accepted| accepted.status == "False")?;
        Some(format!("{}: {}", accepted.reason, accepted.message))
    }
}

/// Returns the state of a device in a table.
pub(crate) fn device_state(online: Online) -> &'static str {
    match online {
        Online::True => "Online",
        Online::False => "Offline",
        Online::Unknown => "Unknown",
    }
}

/// A pod that requests devices.
pub(crate) struct Pod {
    pub(crate) name: String,
    /// The node that it is on, or has to be on.
    pub(crate) node: Option<String>,
    pub(crate) requests: BTreeSet<String>,
    /// The reason why it does not run, if it does not.
    pub(crate) waits: Option<String>,
    /// The time since which the kubelet has it, until it has ended.
    pub(crate) since: Option<Timestamp>,
    pub(crate) is_broker: bool,
}

/// A slot of an Instance.
pub(crate) struct Slot<'o> {
    pub(crate) name: &'o str,
    pub(crate) usage: Usage,
    /// The pod that has it; several where only the node is known.
    pub(crate) pods: Vec<&'o str>,
}

impl Slot<'_> {
    /// Returns the user, for messages.
    pub(crate) fn user(&self) -> String {
        match self.pods.as_slice() {
            [] => self.usage.user(),
            [pod] => format!("pod {pod} on {}", self.usage.user()),
            pods => format!("one of the pods {} on {}", pods.join(", "), self.usage.user()),
        }
    }
}

impl Observed {
    /// Reads the cluster that flags name; without such flags the state directory of a local agent, or if there is none, the cluster
    /// that KUBECONFIG or the pod's service account leads to.
    pub(crate) async fn read(source: &SourceArgs) -> anyhow::Result<Self> {
        if source.is_cluster || source.kubeconfig.is_some() || source.context.is_some() {
            return cluster::observe(client_for(source).await?).await;
        }
        let state = &source.state_dir;
        if local::is_state(state)? {
            let state = state.clone();
            return spawn_blocking(move || local::observe(&state)).await?;
        }
        let no_agent = || format!("no local agent keeps its state in '{}' (--state-dir)", state.display());
        cluster::observe(client().await.with_context(no_agent)?).await
    }

    /// Returns a warning of what this user may not list.
    pub(crate) fn not_listed(&self) -> Option<String> {
        let hidden = self.hidden.join(", ");
        (!hidden.is_empty()).then(|| format!("this user may not list {hidden}: what they would show is missing"))
    }

    /// Returns the slots of an Instance.
    pub(crate) fn slots<'o>(&'o self, instance: &'o Instance) -> impl Iterator<Item = Slot<'o>> {
        instance.spec.device_usage.iter().map(move |(name, usage)| {
            let usage = Usage::read(usage);
            let known = self.users.get(name).map(|pod| vec![pod.as_str()]);
            let pods = known.unwrap_or_else(|| self.pods_that_may_have(&usage, instance));
            Slot { name, usage, pods }
        })
    }

    fn pods_that_may_have(&self, usage: &Usage, instance: &Instance) -> Vec<&str> {
        let Some(node) = usage.node() else { return Vec::new() };
        let requested = match usage {
            Usage::Configuration { .. } => instance.spec.configuration_name.clone(),
            _ => instance.name_any(),
        };
        let is_there = |pod: &&Pod| pod.since.is_some() && pod.node.as_deref() == Some(node);
        let pods = self.pods.iter().filter(is_there).filter(|pod| pod.requests.contains(&requested));
        pods.map(|pod| pod.name.as_str()).collect()
    }
}
