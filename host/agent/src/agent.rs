//! The agent from start to stop. The order at the start is that of rule 6: lock, journal, what pods use, cluster,
//! registration with the kubelet, handlers.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use akri_model::claim::Entry;
use akri_model::configuration::Configuration;
use akri_model::names::{Key, hash_of_instance, resource_name};
use akri_sandbox::{Host, HostConfig};
use kube::Client;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::cdi::Cdi;
use crate::cluster::kubernetes::Kubernetes;
use crate::cluster::local::{Local, StoreError};
use crate::cluster::{Cluster, Manifests, Report, ReportedCondition};
use crate::discovery::properties::Properties;
use crate::discovery::registry::Registry;
use crate::discovery::reports::Reporter;
use crate::discovery::sources::Providers;
use crate::journal::{Journal, JournalError};
use crate::listen::Server;
use crate::lock::{self, LockError};
use crate::metrics::Metrics;
use crate::owner::{Context, Owner};
use crate::plugin::Plugins;
use crate::publisher::Publisher;
use crate::reclaim::{Claims, Reclaimer};
use crate::remote::{self, Remote};
use crate::uevent::Listener;

/// Instances created at once.
const NAMING: usize = 32;

/// How long the end of the agent waits for what is still to be published.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What an agent needs to know.
#[derive(Clone)]
pub struct Settings {
    /// Name of this node.
    pub node: String,
    /// Where Configurations come from and Instances go.
    pub source: Source,
    /// Component files and their DiscoveryHandler manifests.
    pub components: PathBuf,
    /// The kubelet's root directory.
    pub kubelet_dir: PathBuf,
    /// Journal, Instances, compiled components. Made if need be, for this user alone.
    pub state_dir: PathBuf,
    /// Who may serve remote discovery handlers.
    pub remote: remote::Settings,
    /// Where CDI specifications go, if anywhere.
    pub cdi: Option<Cdi>,
    /// Where health and metrics are served, if anywhere.
    pub listen: Option<SocketAddr>,
    /// Where sysfs is mounted.
    pub sysfs: PathBuf,
    /// udev's database.
    pub udev_data: PathBuf,
    /// How long after a restart, of the kubelet or of the agent, an unused claim is kept in any case.
    pub settle: Duration,
    /// The pod this agent runs in, if it does.
    pub own_pod: Option<Key>,
}

/// Where Configurations come from and Instances go.
#[derive(Clone)]
pub enum Source {
    /// Local mode: a directory of manifests, and files for objects.
    Local(PathBuf),
    /// The API server of a cluster.
    Kubernetes(Client),
}

/// Why the agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No place to keep things.
    #[error("cannot create state directory '{}': {reason}; name another one with --state-dir", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// See there.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// See there.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// See there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Health and metrics.
    #[error("cannot listen on {address}: {reason}; name another address with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        reason: io::Error,
    },
    /// The component engine did not start.
    #[error("cannot start the component host: {0}")]
    Sandbox(String),
}

/// Runs the agent until `stop` ends.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), AgentError> {
    tokio::pin!(stop);
    prepare_state(&settings)?;
    let _lock = tokio::select! {
        lock = lock::acquire(&settings.state_dir) => lock?,
        () = &mut stop => return Ok(()),
    };
    let (journal, entries) = Journal::open(&settings.state_dir)?;
    let claims = Arc::new(Claims::new(last_generation(&entries)));
    let reclaimer =
        Reclaimer::start(&settings.kubelet_dir, Arc::clone(&claims), settings.settle, settings.own_pod.clone());
    let (cluster, components) = open(&settings).await?;
    let (metrics, ready) = (Metrics::default(), watch::Sender::new(false));
    let _server = listen(&settings, &metrics, ready.subscribe()).await?;
    let host = start_host(&settings)?;
    let context = Arc::new(Context {
        node: settings.node.clone(),
        publisher: Publisher::start(Arc::clone(&cluster)),
        cluster: Arc::clone(&cluster),
        journal,
        plugins: Arc::new(Plugins::start(&settings.kubelet_dir, metrics.clone())),
        claims,
        sightings: reclaimer.sightings(),
        cdi: settings.cdi.clone(),
        naming: Semaphore::new(NAMING),
        metrics,
    });
    let listener = Listener::start(&settings.udev_data);
    let registry = Registry::start(host, components, cluster.manifests(), listener.uevents());
    let _reporter = Reporter::start(registry.handlers(), &registry.standings(), context.publisher.clone());
    let (remote, registration) = Remote::start(settings.remote.clone(), &settings.state_dir, registry.handlers());
    info!(node = settings.node, state = %settings.state_dir.display(), "agent started");
    let supervisor =
        Supervisor { context: Arc::clone(&context), owners: BTreeMap::new(), entries, refused: BTreeMap::new(), ready };
    let providers = Providers {
        handlers: registry.handlers(),
        properties: Properties::new(cluster.values()),
        remote,
        metrics: context.metrics.clone(),
    };
    let supervisor = supervisor.run(cluster.manifests(), providers, stop).await;
    supervisor.stop().await;
    registration.stop().await;
    let _ = timeout(LAST_WORDS, context.publisher.flush()).await; // what is not published by then is after the next start
    drop(registry);
    context.plugins.shutdown().await;
    info!("agent stopped");
    Ok(())
}

/// The cluster, and where component files are. In local mode DiscoveryHandler objects may stand beside the components, and
/// components beside the manifests.
async fn open(settings: &Settings) -> Result<(Arc<dyn Cluster>, Vec<PathBuf>), AgentError> {
    let mut directories = vec![settings.components.clone()];
    Ok(match &settings.source {
        Source::Local(manifests) => {
            directories.push(manifests.clone());
            (Arc::new(Local::open(directories.clone(), &settings.state_dir).await?), directories)
        }
        Source::Kubernetes(client) => (Arc::new(Kubernetes::start(client.clone(), &settings.node)), directories),
    })
}

async fn listen(
    settings: &Settings,
    metrics: &Metrics,
    ready: watch::Receiver<bool>,
) -> Result<Option<Server>, AgentError> {
    let Some(address) = settings.listen else { return Ok(None) };
    let server = Server::start(address, metrics.clone(), ready).await;
    server.map(Some).map_err(|reason| AgentError::Listen { address, reason })
}

fn prepare_state(settings: &Settings) -> Result<(), AgentError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let parent = settings.state_dir.parent().map_or(Ok(()), fs::create_dir_all); // it may hold the sockets of handlers, too
    let create = |()| fs::DirBuilder::new().recursive(true).mode(0o700).create(&settings.state_dir);
    let created = parent.and_then(create);
    created.map_err(|reason| AgentError::State { path: settings.state_dir.clone(), reason })
}

fn start_host(settings: &Settings) -> Result<Host, AgentError> {
    let config = HostConfig {
        cache_dir: Some(settings.state_dir.join("compiled")),
        sysfs: settings.sysfs.clone(),
        udev_data: settings.udev_data.clone(),
    };
    Host::new(config).map_err(|error| AgentError::Sandbox(error.to_string()))
}

fn last_generation(entries: &BTreeMap<Key, Entry>) -> u64 {
    let claims = entries.values().flat_map(|entry| entry.claims.values());
    claims.map(|claim| claim.generation).max().unwrap_or_default()
}

/// Keeps an owner for each Configuration.
struct Supervisor {
    context: Arc<Context>,
    owners: BTreeMap<Key, Owner>,
    /// What the journal remembers of Configurations that have no owner yet.
    entries: BTreeMap<Key, Entry>,
    /// Configurations that are not served, and which one is instead.
    refused: BTreeMap<Key, Key>,
    /// Set once everything that is to be served has an owner.
    ready: watch::Sender<bool>,
}

impl Supervisor {
    async fn run(
        mut self,
        mut manifests: watch::Receiver<Arc<Manifests>>,
        providers: Providers,
        stop: impl Future<Output = ()>,
    ) -> Self {
        tokio::pin!(stop);
        loop {
            let now = manifests.borrow_and_update().clone();
            self.reconcile(&now, &providers).await;
            if now.complete {
                self.ready.send_replace(true);
            }
            tokio::select! {
                () = &mut stop => return self,
                changed = manifests.changed() => if changed.is_err() { return self },
            }
        }
    }

    async fn reconcile(&mut self, manifests: &Manifests, providers: &Providers) {
        if manifests.complete {
            self.remove_gone(manifests).await;
        }
        let holders: BTreeMap<&str, &Arc<Configuration>> = self.holders(manifests);
        for configuration in manifests.configurations.values() {
            match holders.get(&*configuration.key.name) {
                Some(holder) if holder.key != configuration.key => self.refuse(configuration, &holder.key).await,
                _ => self.serve(configuration, providers).await,
            }
        }
    }

    /// Which Configuration has each name.
    fn holders<'a>(&self, manifests: &'a Manifests) -> BTreeMap<&'a str, &'a Arc<Configuration>> {
        let rank = |configuration: &'a Configuration| configuration.rank(self.owners.contains_key(&configuration.key));
        let mut holders: BTreeMap<&str, &Arc<Configuration>> = BTreeMap::new();
        for configuration in manifests.configurations.values() {
            let holder = holders.entry(&configuration.key.name).or_insert(configuration);
            if rank(configuration) < rank(holder) {
                *holder = configuration;
            }
        }
        holders
    }

    /// A Configuration that was deleted and made again is another one: the Instances of the old one go with it (rule 26).
    async fn serve(&mut self, configuration: &Arc<Configuration>, providers: &Providers) {
        let key = &configuration.key;
        self.refused.remove(key);
        if let Some(old) = self.owners.extract_if(.., |of, owner| of == key && owner.uid() != configuration.uid).next()
        {
            old.1.delete().await;
        }
        if let Some(owner) = self.owners.get(key) {
            return owner.update(Arc::clone(configuration));
        }
        let entries = self.remembered(key);
        let owner = Owner::start(Arc::clone(&self.context), Arc::clone(configuration), entries, providers.clone());
        self.owners.insert(key.clone(), owner);
    }

    /// Of two Configurations with one name only one can be served (rule 29); the other one's status says so.
    async fn refuse(&mut self, configuration: &Configuration, holder: &Key) {
        if let Some(owner) = self.owners.remove(&configuration.key) {
            owner.delete().await;
        }
        if self.refused.insert(configuration.key.clone(), holder.clone()).as_ref() == Some(holder) {
            return;
        }
        let resource = resource_name(&holder.name);
        let message = format!("{resource} is the resource of Configuration {holder}, which had it first; rename one");
        error!(configuration = %configuration.key, "not used: {message}");
        let ready =
            ReportedCondition { kind: "Ready", holds: Some(false), reason: "ResourceNameTaken".to_owned(), message };
        self.context.publisher.report(Report {
            key: configuration.key.clone(),
            uid: configuration.uid.clone(),
            generation: configuration.generation,
            instances: 0,
            conditions: vec![ready],
        });
    }

    fn remembered(&mut self, configuration: &Key) -> Vec<Entry> {
        let of = |key: &Key, entry: &Entry| {
            key.namespace == configuration.namespace && entry.configuration == configuration.name
        };
        self.entries.extract_if(.., |key, entry| of(key, entry)).map(|(_, entry)| entry).collect()
    }

    async fn remove_gone(&mut self, manifests: &Manifests) {
        self.refused.retain(|key, _| manifests.configurations.contains_key(key));
        let gone = self.owners.extract_if(.., |key, _| !manifests.configurations.contains_key(key));
        for (key, owner) in gone.collect::<Vec<_>>() {
            info!(configuration = %key, "Configuration is gone, its Instances go too");
            owner.delete().await;
        }
        let exists = |key: &Key, entry: &Entry| {
            manifests.configurations.contains_key(&Key::new(key.namespace.clone(), entry.configuration.clone()))
        };
        for (key, entry) in self.entries.extract_if(.., |key, entry| !exists(key, entry)).collect::<Vec<_>>() {
            info!(instance = %key, "its Configuration went while the agent was away");
            if let (Some(cdi), Some(hash)) = (&self.context.cdi, hash_of_instance(&entry.configuration, &key.name)) {
                cdi.remove(&entry.configuration, hash).await;
            }
            self.context.publisher.delete(key.clone(), entry.uid);
            if let Err(error) = self.context.journal.remove(key).await {
                warn!("{error}");
            }
        }
    }

    async fn stop(self) {
        futures::future::join_all(self.owners.into_values().map(Owner::stop)).await;
    }
}
