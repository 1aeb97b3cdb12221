//! The agent from start to stop. It starts in the order of rule 6: lock, journal, device usage of pods, cluster,
//! registration with the kubelet, handlers.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use akri_cluster::Cluster;
use akri_cluster::kubernetes::{Client, Kubernetes};
use akri_cluster::local::Local;
use akri_discovery::images::{ImageSettings, Images};
use akri_discovery::registry::{Handlers, Registry};
use akri_discovery::sources::Providers;
use akri_kube::http::{Pages, Server};
use akri_kubelet::Plugins;
use akri_kubelet::checkpoint;
use akri_model::claim::Entry;
use akri_model::names::{Key, RESOURCE_PREFIX, Usage, parse_slot_annotation};
use akri_node::uevent::Uevents;
use akri_remote::{Remote, SharedByComponent};
use akri_sandbox::{Host, HostConfig};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::info;

use crate::broker_info::BrokerInfo;
use crate::cdi::Cdi;
use crate::checkpoint_refresher::CheckpointRefresher;
use crate::handler_reports;
use crate::journal::Journal;
use crate::lock;
use crate::metrics::Metrics;
use crate::owner::Context;
use crate::pod_resources_poller::{ClaimTracker, Poller, Polling};
use crate::publisher::Publisher;
use crate::readiness::{Readiness, Startup};
use crate::resource_names::ResourceNames;
use crate::state_dir;
use crate::supervisor::Supervisor;

/// Maximum number of Instances created concurrently.
const MAX_CONCURRENT_CREATES: usize = 32;

/// Instances whose slots change in the API server at once.
const API_WRITES: usize = 32;

/// Longest time that the agent's end waits for pending writes.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of an agent.
#[derive(Clone)]
pub struct Settings {
    /// Name of this node.
    pub node: String,
    /// The store of Configurations and Instances.
    pub source: ClusterKind,
    /// Component files and their DiscoveryHandler manifests.
    pub components: PathBuf,
    /// The kubelet's root directory.
    pub kubelet_dir: PathBuf,
    /// Directory of the journal, Instances and compiled components. It is created if needed, with access for this user only.
    pub state_dir: PathBuf,
    /// Path of `state_dir` on the node, which is another one if the agent runs in a container.
    pub host_state_dir: PathBuf,
    /// The settings of the host of components. Its program is this one, and it keeps compiled components in `state_dir`.
    pub host: HostConfig,
    /// The settings of connections to registries of components.
    pub registries: akri_oci::Settings,
    /// Settings of remote discovery handlers.
    pub remote: akri_remote::RemoteSettings,
    /// The directory for CDI specifications, if they are written.
    pub cdi: Option<Cdi>,
    /// The address that serves health and metrics, if any does.
    pub listen: Option<SocketAddr>,
    /// The settings of the poller of PodResources.
    pub polling: Polling,
}

/// The kinds of stores for Configurations and Instances.
#[derive(Clone)]
pub enum ClusterKind {
    /// Local mode: a directory of manifests, and files for objects.
    Local(PathBuf),
    /// The API server of a cluster.
    Kubernetes(Client),
}

/// A reason why the agent can't start.
pub type AgentError = Box<dyn Error + Send + Sync>;

/// Runs the agent until `stop` completes.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), AgentError> {
    tokio::pin!(stop);
    state_dir::prepare(&settings.state_dir, &settings.remote.directory)?;
    let _lock = tokio::select! {
        lock = lock::acquire(&settings.state_dir) => lock?,
        () = &mut stop => return Ok(()),
    };
    let (journal, entries) = Journal::open(&settings.state_dir)?;
    let broker_info = BrokerInfo::open(&settings.state_dir, &settings.host_state_dir)?;
    let last_generation = last_generation(&entries).max(broker_info.last_generation()?);
    let claims = Arc::new(ClaimTracker::new(Instant::now(), last_generation));
    let refresher = Arc::<CheckpointRefresher>::default();
    let (for_poller, polling) = (Arc::clone(&refresher), settings.polling.clone());
    let poller = Poller::new(&settings.kubelet_dir, Arc::clone(&claims), for_poller, polling);
    let (snapshots, _polling) = poller.start();
    let checkpointed = checkpointed(&settings).await;
    let (cluster, components) = open(&settings).await?;
    let (metrics, startup) = (Metrics::default(), Startup::default());
    let plugins = Arc::new(Plugins::start(&settings.kubelet_dir, metrics.registrations.clone()));
    let host = Host::new(settings.host.clone()).map_err(|error| format!("cannot start the component host: {error}"))?;
    let uevents = Uevents::receive(&settings.host.udev_data);
    let images = images(&settings, &*cluster);
    let state = Some(settings.state_dir.as_path());
    let registry = Registry::start(host, components, images, cluster.watches().manifests.subscribe(), state);
    let readiness = Readiness {
        startup: startup.clone(),
        manifests: cluster.watches().manifests.subscribe(),
        handlers: registry.handlers.clone(),
        activity: registry.activity.subscribe(),
        resources: plugins.counts(),
        journal: journal.failure.clone(),
        kubelet: settings.kubelet_dir.join("device-plugins/kubelet.sock"),
        is_kubelet_optional: is_local(&settings),
    };
    let _server = listen(&settings, &metrics, &readiness).await?;
    let context = Arc::new(Context {
        node: settings.node.clone(),
        publisher: Publisher::start(Arc::clone(&cluster)),
        cluster: Arc::clone(&cluster),
        journal,
        plugins,
        claims,
        snapshots,
        refresher,
        resource_names: ResourceNames::default(),
        checkpointed: Mutex::new(checkpointed),
        api_writes: Semaphore::new(API_WRITES),
        cdi: settings.cdi.clone(),
        broker_info,
        naming: Semaphore::new(MAX_CONCURRENT_CREATES),
        metrics,
        startup,
    });
    let _reporting = {
        let (publisher, journal) = (context.publisher.clone(), context.journal.clone());
        context.broker_info.start(Arc::clone(&cluster), publisher, journal)
    };
    let problems = is_local(&settings).then(|| readiness.keep_problems(settings.state_dir.clone()));
    let problems = JoinSet::from_iter(problems);
    let activity = registry.activity.subscribe();
    let reports = handler_reports::run(registry.handlers.clone(), activity, context.publisher.clone());
    let _reporter = JoinSet::from_iter([reports]);
    let (remote, mut registration) =
        Remote::start(settings.remote.clone(), &settings.state_dir, shared_by_component(registry.handlers.clone()));
    info!(node = settings.node, state = %settings.state_dir.display(), "agent started");
    let supervisor = Supervisor::new(Arc::clone(&context), entries);
    let providers = Providers {
        handlers: registry.handlers.clone(),
        uevents,
        values: cluster.watches().values.subscribe(),
        remote,
        metrics: context.metrics.rounds.clone(),
    };
    let supervisor = supervisor.run(cluster.watches().manifests.subscribe(), providers, stop).await;
    supervisor.stop().await;
    registration.shutdown().await;
    let _ = timeout(FLUSH_TIMEOUT, context.publisher.flush()).await; // the rest is published after the next start
    cluster.stop().await;
    drop(registry);
    drop(problems);
    context.plugins.shutdown().await;
    info!("agent stopped");
    Ok(())
}

/// Opens the cluster; also returns the directories of component files. In local mode, component and manifest
/// directories may each hold both kinds of files.
async fn open(settings: &Settings) -> Result<(Arc<dyn Cluster>, Vec<PathBuf>), AgentError> {
    let mut directories = vec![settings.components.clone()];
    Ok(match &settings.source {
        ClusterKind::Local(manifests) => {
            directories.push(manifests.clone());
            (Arc::new(Local::open(directories.clone(), &settings.state_dir).await?), directories)
        }
        ClusterKind::Kubernetes(client) => {
            (Arc::new(Kubernetes::start(client.clone(), &settings.node, &settings.state_dir)), directories)
        }
    })
}

fn images(settings: &Settings, cluster: &dyn Cluster) -> Images {
    let images = ImageSettings {
        directory: Some(settings.state_dir.join("images")),
        registries: settings.registries.clone(),
        ..ImageSettings::default()
    };
    Images::new(images, cluster.namespace(), cluster.watches().values.subscribe())
}

fn is_local(settings: &Settings) -> bool {
    matches!(settings.source, ClusterKind::Local(_))
}

async fn listen(settings: &Settings, metrics: &Metrics, readiness: &Readiness) -> Result<Option<Server>, AgentError> {
    let Some(address) = settings.listen else { return Ok(None) };
    let (metrics, measured, missing) = (metrics.clone(), readiness.clone(), readiness.clone());
    let encode = move || {
        measured.measure(&metrics);
        metrics.set.encode()
    };
    let pages = Pages { metrics: Arc::new(encode), missing: Arc::new(move || missing.missing()) };
    Ok(Some(Server::start(address, pages).await?))
}

fn shared_by_component(handlers: watch::Receiver<Arc<Handlers>>) -> SharedByComponent {
    Arc::new(move |name| handlers.borrow().ready.get(name).map(|handler| handler.shared))
}

/// The slots that the kubelet's checkpoint has in use, by name: the answers in it carry our annotations (rule 45).
async fn checkpointed(settings: &Settings) -> BTreeMap<String, Usage> {
    let (kubelet_dir, node) = (settings.kubelet_dir.clone(), settings.node.clone());
    let read = tokio::task::spawn_blocking(move || checkpoint::read(&kubelet_dir, RESOURCE_PREFIX)).await;
    let skipped = |error: &String| info!("the journal is not compared with the kubelet's checkpoint: {error}");
    let allocated = read.map_err(|error| error.to_string()).flatten().inspect_err(skipped).unwrap_or_default();
    let annotations = allocated.into_iter().flat_map(|container| container.annotations);
    annotations.filter_map(|(name, value)| parse_slot_annotation(&name, &value, &node)).collect()
}

fn last_generation(entries: &BTreeMap<Key, Entry>) -> u64 {
    let claims = entries.values().flat_map(|entry| entry.claims.values());
    claims.map(|claim| claim.generation).max().unwrap_or_default()
}
