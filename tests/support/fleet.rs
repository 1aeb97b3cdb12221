//! Many agents in one process, before a real API server: the real owners, publishers, journals and cluster side of each, with a
//! test kubelet of its own. They share the engine that runs the component; their requests are recorded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use akri_agent::broker_info::BrokerInfo;
use akri_agent::journal::Journal;
use akri_agent::metrics::Metrics;
use akri_agent::owner::{Context, Owner};
use akri_agent::pod_resources_poller::ClaimTracker;
use akri_agent::publisher::Publisher;
use akri_agent::resource_names::ResourceNames;
use akri_cluster::kubernetes::Kubernetes;
use akri_cluster::{Cluster, HandlerObject, Manifests};
use akri_discovery::images::{ImageSettings, Images};
use akri_discovery::registry::{Handlers, Registry};
use akri_discovery::round_metrics::RoundMetrics;
use akri_discovery::sources::Providers;
use akri_grpc::deviceplugin::{AllocateRequest, ContainerAllocateRequest};
use akri_kubelet::Plugins;
use akri_model::claim::Entry;
use akri_model::names::Key;
use akri_model::reclaim::{SnapshotInfo, UsageSnapshot};
use akri_node::uevent::Uevents;
use akri_remote::Remote;
use akri_sandbox::{Host, HostConfig, SandboxProgram};
use kube::Client;
use tempfile::TempDir;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::kubelet::Kubelet;
use crate::node::{akri, built_components};
use crate::recorder::Recorder;

/// The handler of shared devices and that of local ones: Configurations whose names end in this are local.
const LOCAL: &str = "-local";

/// The pause between rounds: longer than what is measured.
const INTERVAL: Duration = Duration::from_secs(3600);

/// The fleet: what all nodes have in common.
pub struct Fleet {
    kubeconfig: PathBuf,
    pub recorder: Recorder,
    shared: watch::Receiver<Arc<Handlers>>,
    local: watch::Receiver<Arc<Handlers>>,
    _registries: [(Registry, watch::Sender<Arc<Manifests>>); 2],
}

impl Fleet {
    /// Loads the component.
    pub async fn new(kubeconfig: &Path) -> Self {
        let registries = [true, false].map(registry);
        let [shared, local] = [0, 1].map(|index| registries[index].0.handlers.clone());
        for mut handlers in [shared.clone(), local.clone()] {
            handlers.wait_for(|handlers| handlers.ready.contains_key("debugEcho")).await.unwrap();
        }
        let (kubeconfig, recorder) = (kubeconfig.to_owned(), Recorder::default());
        Self { kubeconfig, recorder, shared, local, _registries: registries }
    }

    /// Starts an agent on a new node, which sees the devices of its group: those of Configurations whose names contain it.
    pub async fn node(&self, name: &str, group: &str) -> FleetNode {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("state")).unwrap();
        let kubelet = Kubelet::start(&directory.path().join("kubelet"));
        let (name, group, rounds) = (name.to_owned(), group.to_owned(), RoundMetrics::default());
        let mut node = FleetNode { name, group, directory, kubelet, rounds, running: None };
        self.start(&mut node).await;
        node
    }

    /// Starts the agent of a node that has none.
    pub async fn start(&self, node: &mut FleetNode) {
        let client = self.recorder.client(&self.kubeconfig, &node.name).await;
        let handlers = (self.shared.clone(), self.local.clone());
        node.running = Some(Running::start(client, node, handlers));
    }
}

/// Starts a registry with debugEcho, whose devices are shared or local.
fn registry(shared: bool) -> (Registry, watch::Sender<Arc<Manifests>>) {
    let config = HostConfig {
        program: SandboxProgram { path: akri(), arguments: Vec::new(), memory_bytes: 384 << 20 },
        cache_dir: None,
        precompiled: None,
        sysfs: "/sys".into(),
        udev_data: "/nonexistent".into(),
    };
    let object = serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "DiscoveryHandler", "metadata": {"name": "debug-echo"},
        "spec": {
            "name": "debugEcho", "component": {"file": "debug_echo.wasm"}, "shared": shared,
            "interval": format!("{}s", INTERVAL.as_secs()),
        },
    });
    let object: akri_api::DiscoveryHandler = serde_json::from_value(object).unwrap();
    let handlers = [("debug-echo".to_owned(), Arc::new(HandlerObject::from(&object)))].into();
    let (sender, manifests) = watch::channel(Arc::new(Manifests { handlers, complete: true, ..Manifests::default() }));
    let images = Images::new(ImageSettings::default(), "default", watch::channel(Arc::default()).1);
    let host = Host::new(config).unwrap();
    let registry = Registry::start(host, vec![built_components()], images, manifests, None);
    (registry, sender)
}

/// A node.
pub struct FleetNode {
    pub name: String,
    pub kubelet: Kubelet,
    rounds: RoundMetrics,
    group: String,
    directory: TempDir,
    running: Option<Running>,
}

impl FleetNode {
    /// Stops the agent in good order.
    pub async fn stop(&mut self) {
        let running = self.running.take().unwrap();
        let _ = running.stop.send(());
        running.supervisor.await.unwrap();
    }

    /// Ends the agent as a node does that loses its power.
    pub async fn kill(&mut self) {
        let running = self.running.take().unwrap();
        running.supervisor.abort();
        let _ = running.supervisor.await; // that it was cancelled is wanted
    }

    /// Waits until the kubelet can allocate that many devices through resources of Instances.
    pub async fn offers(&self, devices: usize) {
        let free = |view: &crate::kubelet::View| {
            let of_devices = view.resources.iter().filter(|(name, _)| is_instance(name));
            of_devices.map(|(_, resource)| resource.allocatable().min(1)).sum::<usize>() == devices
        };
        self.kubelet.wait_for("all devices", free).await;
    }

    /// Returns how many rounds of discovery have succeeded on it.
    pub fn rounds(&self) -> usize {
        let labels = [("handler", "debugEcho".to_owned()), ("result", "Discovered".to_owned())];
        let rounds = self.rounds.rounds.get(&labels).map_or(0, |rounds| rounds.get());
        usize::try_from(rounds).unwrap()
    }

    /// Returns the resources of the Instances of a Configuration, in order of name.
    pub fn resources(&self, configuration: &str) -> Vec<String> {
        let prefix = format!("akri.sh/{configuration}-");
        let is_its = |name: &&String| name.strip_prefix(&prefix).is_some_and(|rest| !rest.contains('-'));
        self.kubelet.view(|view| view.resources.keys().filter(is_its).cloned().collect())
    }

    /// Claims a slot of a resource as the kubelet does for a container.
    pub async fn claim(&self, resource: &str, slot: u32) {
        let devices_ids = vec![format!("{}-{slot}", resource.trim_start_matches("akri.sh/"))];
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] };
        self.kubelet.plugin(resource).allocate(request).await.unwrap();
    }

    /// Lets the agent observe twice that no container uses anything.
    pub async fn release_all(&self) {
        let snapshots = &self.running.as_ref().unwrap().snapshots;
        for seconds in [1, 2] {
            let at = Duration::from_secs(seconds);
            snapshots.send_replace(Some(nothing_in_use(at)));
            tokio::time::sleep(Duration::from_millis(200)).await; // a later snapshot replaces one that was not taken
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// A snapshot of a kubelet that runs no container.
pub fn nothing_in_use(at: Duration) -> UsageSnapshot {
    let (settled, refreshable, is_renewed, release_delay) = (true, true, true, Duration::ZERO);
    let info = SnapshotInfo { generation: u64::MAX, epoch: 0, at, settled, refreshable, is_renewed, release_delay };
    let (listed, without_devices) = (Arc::default(), Arc::default());
    UsageSnapshot { info, listed, without_devices, checkpoint: Some(Arc::default()), running: None }
}

fn is_instance(resource: &str) -> bool {
    resource.rsplit('-').next().is_some_and(|hash| hash.len() == 6 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// An agent that runs.
struct Running {
    snapshots: watch::Sender<Option<UsageSnapshot>>,
    stop: oneshot::Sender<()>,
    supervisor: JoinHandle<()>,
}

type BothHandlers = (watch::Receiver<Arc<Handlers>>, watch::Receiver<Arc<Handlers>>);

impl Running {
    fn start(client: Client, node: &FleetNode, handlers: BothHandlers) -> Self {
        let (journal, entries) = Journal::open(&node.path("state")).unwrap();
        let cluster: Arc<dyn Cluster> = Arc::new(Kubernetes::start(client, &node.name, &node.path("state")));
        let snapshots = watch::Sender::default();
        let context = Arc::new(Context {
            node: node.name.clone(),
            publisher: Publisher::start(Arc::clone(&cluster)),
            cluster,
            journal,
            plugins: Arc::new(Plugins::start(&node.path("kubelet"), Default::default())),
            claims: Arc::new(ClaimTracker::new(Instant::now(), 100)),
            snapshots: snapshots.subscribe(),
            resource_names: ResourceNames::default(),
            checkpointed: Default::default(),
            refresher: Arc::default(),
            api_writes: Semaphore::new(32),
            cdi: None,
            broker_info: BrokerInfo::open(&node.path("state"), &node.path("state")).unwrap(),
            metrics: Metrics::default(),
            startup: Default::default(),
            naming: Semaphore::new(32),
        });
        let remote = akri_remote::RemoteSettings {
            directory: node.path("handlers"),
            users: Vec::new(),
            networks: Vec::new(),
            paths: Vec::new(),
            trust_paths: false,
            offline_timeout: Duration::from_secs(300),
        };
        let (remote, _) = Remote::start(remote, &node.path("state"), Arc::new(|_: &str| None));
        let values = context.cluster.watches().values.subscribe();
        let providers = |handlers| Providers {
            handlers,
            uevents: Uevents::default(),
            values: values.clone(),
            remote: remote.clone(),
            metrics: node.rounds.clone(),
        };
        let providers = (providers(handlers.0), providers(handlers.1));
        let (stop, stopped) = oneshot::channel();
        let supervisor = tokio::spawn(supervise(context, node.group.clone(), providers, entries, stopped));
        Self { snapshots, stop, supervisor }
    }
}

/// Keeps an owner for each Configuration.
async fn supervise(
    context: Arc<Context>,
    group: String,
    (shared, local): (Providers, Providers),
    mut entries: BTreeMap<Key, Entry>,
    mut stopped: oneshot::Receiver<()>,
) {
    let (mut manifests, mut owners) = (context.cluster.watches().manifests.subscribe(), BTreeMap::<Key, Owner>::new());
    loop {
        let now = manifests.borrow_and_update().clone();
        let gone = owners.extract_if(.., |key, _| now.complete && !now.configurations.contains_key(key));
        for (_, owner) in gone.collect::<Vec<_>>() {
            owner.delete().await;
        }
        for (key, configuration) in now.configurations.iter().filter(|(key, _)| key.name.contains(&group)) {
            if let Some(owner) = owners.get(key) {
                owner.update(Arc::clone(configuration));
                continue;
            }
            let is_its = |of: &Key, entry: &mut Entry| of.namespace == key.namespace && entry.configuration == key.name;
            let known = entries.extract_if(.., is_its).map(|(_, entry)| entry).collect();
            let providers = if key.name.ends_with(LOCAL) { local.clone() } else { shared.clone() };
            owners.insert(key.clone(), Owner::start(Arc::clone(&context), Arc::clone(configuration), known, providers));
        }
        tokio::select! {
            changed = manifests.changed() => changed.unwrap(),
            _ = &mut stopped => break,
        }
    }
    futures::future::join_all(owners.into_values().map(Owner::stop)).await;
    context.publisher.flush().await;
    context.plugins.shutdown().await;
}
