//! The owner of a Configuration's Instances on this node: one task that alone changes them. Rounds, the kubelet's requests
//! and looks at pods come to it as messages; the journal, the kubelet and the cluster hear of what it decides.

mod agreement;
mod claims;
mod devices;
mod health;
mod naming;
mod published;
mod requests;
mod resource;
mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use akri_model::claim::Entry;
use akri_model::configuration::Configuration;
use akri_model::device::Device;
use akri_model::names::{Identity, Key, LONG_CONFIGURATION_NAME};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tracing::warn;

use crate::cdi::Cdi;
use crate::cluster::{Cluster, Occurrence};
use crate::discovery::moment;
use crate::discovery::sources::{Providers, Sources, Told};
use crate::journal::Journal;
use crate::metrics::Metrics;
use crate::plugin::{Plugin, Plugins};
use crate::publisher::Publisher;
use crate::reclaim::{Claims, Sighting};
use claims::AllPublished;
use health::Health;
use naming::{Named, NamingError};
use published::Published;
use resource::Command;
use whole::Whole;

/// Requests of the kubelet that wait for an owner.
const COMMANDS: usize = 64;

/// What all owners share.
pub struct Context {
    /// This node's name.
    pub node: String,
    /// Where Instances go.
    pub cluster: Arc<dyn Cluster>,
    /// What must not be forgotten.
    pub journal: Journal,
    /// The kubelet.
    pub plugins: Arc<Plugins>,
    /// Publishes in the background.
    pub publisher: Publisher,
    /// Counts claims and looks.
    pub claims: Arc<Claims>,
    /// What pods use.
    pub sightings: watch::Receiver<Sighting>,
    /// Where CDI specifications go, if anywhere.
    pub cdi: Option<Cdi>,
    /// How many Instances are being created at once.
    pub naming: Semaphore,
    /// What is counted.
    pub metrics: Metrics,
}

/// How an owner ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The agent stops: everything stays as it is.
    Shutdown,
    /// The Configuration is gone, and so are its Instances.
    Deleted,
}

/// A running owner. Dropping it stops it as [`Owner::stop`] does, without waiting.
pub struct Owner {
    configuration: watch::Sender<Arc<Configuration>>,
    end: oneshot::Sender<End>,
    task: JoinHandle<()>,
}

impl Owner {
    /// Starts with what the journal remembers: those Instances are served at once, before any handler runs.
    pub fn start(
        context: Arc<Context>,
        configuration: Arc<Configuration>,
        entries: Vec<Entry>,
        providers: Providers,
    ) -> Self {
        if configuration.key.name.len() > LONG_CONFIGURATION_NAME {
            let (key, long) = (&configuration.key, LONG_CONFIGURATION_NAME);
            warn!(configuration = %key, "more than {long} characters: a device whose hash has to be longer won't fit");
        }
        let (sender, receiver) = watch::channel(configuration);
        let (end, ended) = oneshot::channel();
        let inbox = Inbox { configuration: receiver, ended };
        let task = tokio::spawn(State::new(context, entries, &inbox).run(inbox, providers));
        Self { configuration: sender, end, task }
    }

    /// The UID of the Configuration.
    pub fn uid(&self) -> String {
        self.configuration.borrow().uid.clone()
    }

    /// The Configuration was edited.
    pub fn update(&self, configuration: Arc<Configuration>) {
        self.configuration.send_if_modified(|current| {
            let changed = **current != *configuration;
            *current = configuration;
            changed
        });
    }

    /// Stops and leaves everything as it is.
    pub async fn stop(self) {
        self.finish(End::Shutdown).await;
    }

    /// Deletes all its Instances.
    pub async fn delete(self) {
        self.finish(End::Deleted).await;
    }

    async fn finish(self, end: End) {
        let _ = self.end.send(end);
        let _ = self.task.await; // an owner that panicked has nothing left to finish
    }
}

/// Where messages to an owner come from.
struct Inbox {
    configuration: watch::Receiver<Arc<Configuration>>,
    ended: oneshot::Receiver<End>,
}

type NamingResult = (Identity, Device, Result<Named, NamingError>);

struct State {
    context: Arc<Context>,
    configuration: Arc<Configuration>,
    published: AllPublished,
    whole: Whole,
    /// Devices whose Instances are being created.
    naming: JoinSet<NamingResult>,
    nameless: BTreeMap<Identity, Device>,
    last: devices::LastSet,
    health: Health,
    commands: mpsc::Receiver<Command>,
    /// For the plugins.
    asks: mpsc::Sender<Command>,
    counted: usize,
    /// Resources and ids that two pods have at once, as told.
    twice: BTreeSet<(String, String)>,
    /// When the API was last asked about shared Instances.
    last_agreement: Instant,
}

impl State {
    fn new(context: Arc<Context>, entries: Vec<Entry>, inbox: &Inbox) -> Self {
        let (asks, commands) = mpsc::channel(COMMANDS);
        let mut state = Self {
            context,
            configuration: inbox.configuration.borrow().clone(),
            published: AllPublished::new(),
            whole: Whole::new(),
            naming: JoinSet::new(),
            nameless: BTreeMap::new(),
            last: devices::LastSet::default(),
            health: Health::default(),
            commands,
            asks,
            counted: 0,
            twice: BTreeSet::new(),
            last_agreement: Instant::now(),
        };
        for mut entry in entries {
            entry.capacity = state.configuration.capacity;
            let mut published = Published::new(entry, &state.context.claims);
            published.agreed &= !state.context.journal.was_damaged();
            state.published.insert(published.entry.identity.clone(), published);
        }
        state
    }

    async fn run(mut self, mut inbox: Inbox, providers: Providers) {
        self.agree_at_start().await;
        self.write_cdi(self.published.keys().cloned().collect()).await;
        self.restart_plugins().await;
        self.settle();
        let mut sightings = self.context.sightings.clone();
        let mut usage = self.context.cluster.usage();
        let (tells, mut told) = mpsc::channel::<Told>(1);
        let sources = Sources::start(inbox.configuration.clone(), providers, self.knows_shared(), tells);
        let end = loop {
            let (next_expiry, next_agreement) = (self.next_expiry(), self.next_agreement());
            let next_naming = self.last.again;
            tokio::select! {
                end = &mut inbox.ended => break end.unwrap_or(End::Shutdown),
                Some(command) = self.commands.recv() => self.serve(command).await,
                Some(told) = told.recv() => self.take(told).await,
                Some(named) = self.naming.join_next() => self.named(named.ok()).await,
                Ok(()) = inbox.configuration.changed() => {
                    let configuration = inbox.configuration.borrow_and_update().clone();
                    self.reconfigure(configuration).await;
                }
                Ok(()) = sightings.changed() => {
                    let sighting = sightings.borrow_and_update().clone();
                    self.look(&sighting).await;
                }
                Ok(()) = usage.changed() => {
                    usage.mark_unchanged();
                    self.hear_of_others().await;
                }
                () = moment(next_expiry) => self.expire().await,
                () = moment(next_agreement) => self.agree().await,
                () = moment(next_naming) => self.find_again().await,
            }
            self.settle();
        };
        drop(sources);
        self.finish(end).await;
    }

    /// Whether the devices it knows from before are shared by nodes.
    fn knows_shared(&self) -> bool {
        self.published.values().any(|published| published.entry.shared)
    }

    /// What is so after every step: claims are counted, the Configuration's resource shows what its Instances have, and
    /// the status says how things are.
    fn settle(&mut self) {
        self.whole.advertise(&self.published, &self.context.node, false);
        let claims = self.published.values().map(|published| published.entry.claims.len()).sum();
        self.context.claims.count(self.counted, claims);
        self.counted = claims;
        let Key { namespace, name } = &self.configuration.key;
        self.context.metrics.instances(namespace, name, self.published.len());
        let report = self.health.report(&self.configuration, self.published.len());
        if let Some(report) = report {
            self.context.publisher.report(report);
        }
    }

    async fn finish(mut self, end: End) {
        self.context.claims.count(self.counted, 0);
        if end == End::Shutdown {
            return;
        }
        self.naming.shutdown().await;
        self.remove(self.published.keys().cloned().collect()).await;
        if let Some(plugin) = self.whole.plugin.take() {
            plugin.close().await;
        }
        let Key { namespace, name } = &self.configuration.key;
        self.context.metrics.forget(namespace, name);
        self.context.publisher.forget(self.configuration.key.clone());
    }

    /// Something that happened to the Configuration.
    fn occurrence(&self, reason: &'static str, message: String) -> Occurrence {
        warn!(configuration = %self.configuration.key, "{reason}: {message}");
        let Configuration { key, uid, .. } = &*self.configuration;
        Occurrence { kind: "Configuration", key: key.clone(), uid: uid.clone(), reason, message }
    }

    async fn reconfigure(&mut self, configuration: Arc<Configuration>) {
        let plugins_change = self.configuration.resources != configuration.resources;
        self.configuration = configuration;
        if plugins_change {
            self.restart_plugins().await;
        }
        for published in self.published.values_mut() {
            published.resize(self.configuration.capacity);
        }
        self.changed(self.published.keys().cloned().collect()).await;
    }

    /// Plugins come and go with `resources`; what containers hold through a resource that goes stays theirs.
    async fn restart_plugins(&mut self) {
        let plugins = self.published.values_mut().filter_map(|published| published.plugin.take());
        let closing: Vec<_> = plugins.chain(self.whole.plugin.take()).map(Plugin::close).collect();
        futures::future::join_all(closing).await;
        for published in std::mem::take(&mut self.published).into_values() {
            self.insert(published);
        }
        self.serve_whole();
    }
}
