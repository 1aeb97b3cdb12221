//! The owner of a Configuration's Instances on this node: one task that alone changes them. Rounds, the kubelet's requests
//! and looks at pods come to it as messages; the journal, the kubelet and the cluster hear of what it decides.

mod claims;
mod health;
mod naming;
mod published;
mod resource;
mod whole;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_model::claim::Entry;
use akri_model::configuration::{Configuration, Resources};
use akri_model::device::{Device, DeviceSet};
use akri_model::edits::ContainerEdits;
use akri_model::names::{Identity, Usage, resource_name};
use akri_model::plan::{Known, plan};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::cluster::Cluster;
use crate::discovery::Outcome;
use crate::discovery::registry::Handlers;
use crate::discovery::rounds::Rounds;
use crate::journal::Journal;
use crate::plugin::resource::{Advertised, Preference, Refused};
use crate::plugin::{Plugin, Plugins};
use crate::publisher::Publisher;
use crate::reclaim::{Claims, Sighting};
use claims::{AllPublished, Undo};
use health::Health;
use naming::{Named, Nameless, NamingError};
use published::Published;
use resource::{Allocated, Command, OwnedResource, Target};
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
    /// How many Instances are being created at once.
    pub naming: Semaphore,
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
        handlers: watch::Receiver<Arc<Handlers>>,
    ) -> Self {
        let (sender, receiver) = watch::channel(configuration);
        let (end, ended) = oneshot::channel();
        let (outcomes, rounds) = mpsc::channel(1);
        let source = Rounds::start(receiver.clone(), handlers, outcomes);
        let inbox = Inbox { configuration: receiver, rounds, ended, _source: source };
        let task = tokio::spawn(State::new(context, entries, &inbox).run(inbox));
        Self { configuration: sender, end, task }
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
    rounds: mpsc::Receiver<Outcome>,
    ended: oneshot::Receiver<End>,
    _source: Rounds,
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
    health: Health,
    commands: mpsc::Receiver<Command>,
    /// For the plugins.
    asks: mpsc::Sender<Command>,
    counted: usize,
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
            health: Health::default(),
            commands,
            asks,
            counted: 0,
        };
        for mut entry in entries {
            entry.capacity = state.configuration.capacity;
            let published = Published::new(entry, &BTreeMap::new(), &state.context.claims);
            state.insert(published);
        }
        state.serve_whole();
        state
    }

    async fn run(mut self, mut inbox: Inbox) {
        self.settle();
        let mut sightings = self.context.sightings.clone();
        let end = loop {
            let next_expiry = self.next_expiry();
            tokio::select! {
                end = &mut inbox.ended => break end.unwrap_or(End::Shutdown),
                Some(command) = self.commands.recv() => self.serve(command).await,
                Some(outcome) = inbox.rounds.recv() => self.take(outcome).await,
                Some(named) = self.naming.join_next() => self.named(named.ok()).await,
                Ok(()) = inbox.configuration.changed() => {
                    let configuration = inbox.configuration.borrow_and_update().clone();
                    self.reconfigure(configuration).await;
                }
                Ok(()) = sightings.changed() => {
                    let sighting = sightings.borrow_and_update().clone();
                    self.look(&sighting).await;
                }
                () = expiry(next_expiry) => self.expire().await,
            }
            self.settle();
        };
        drop(inbox);
        self.finish(end).await;
    }

    /// What is so after every step: claims are counted, the Configuration's resource shows what its Instances have, and
    /// the status says how things are.
    fn settle(&mut self) {
        self.whole.advertise(&self.published, &self.context.node, false);
        let claims = self.published.values().map(|published| published.entry.claims.len()).sum();
        self.context.claims.count(self.counted, claims);
        self.counted = claims;
        let report = self.health.report(&self.configuration, self.published.len());
        if let Some(report) = report {
            self.context.publisher.report(report);
        }
    }

    // ── rounds ──

    async fn take(&mut self, outcome: Outcome) {
        self.health.outcome(&outcome);
        let Outcome::Found { set, shared } = outcome else { return };
        let plan = self.plan(&set, shared);
        for (identity, device) in plan.publish {
            self.create(identity, device, shared);
        }
        for (identity, device) in plan.change {
            self.change(&identity, device).await;
        }
        for identity in plan.online {
            self.set_online(&identity, true).await;
        }
        for identity in plan.offline {
            self.set_online(&identity, false).await;
        }
    }

    fn plan(&self, set: &DeviceSet, shared: bool) -> akri_model::plan::Plan {
        let known: BTreeMap<Identity, Known<'_>> =
            self.published.iter().map(|(identity, published)| (identity.clone(), published.known())).collect();
        let mut plan = plan(set, &known, shared, &self.context.node);
        plan.publish.retain(|(identity, _)| !self.nameless.contains_key(identity));
        plan
    }

    fn create(&mut self, identity: Identity, device: Device, shared: bool) {
        self.nameless.insert(identity.clone(), device.clone());
        let context = Arc::clone(&self.context);
        let nameless = Nameless { configuration: Arc::clone(&self.configuration), device, identity, shared };
        self.naming.spawn(async move {
            let _permit = context.naming.acquire().await;
            let named = naming::name(&context, &nameless).await;
            (nameless.identity, nameless.device, named)
        });
    }

    /// A device got its Instance. If that failed, the next round tries again.
    async fn named(&mut self, result: Option<NamingResult>) {
        let Some((identity, device, named)) = result else { return };
        self.nameless.remove(&identity);
        let named = match named {
            Ok(named) => named,
            Err(error) => {
                warn!(configuration = %self.configuration.key, device = device.id, "no Instance: {error}");
                self.health.unpublished(&device.id, &error.to_string());
                return;
            }
        };
        info!(instance = %named.entry.key, device = device.id, "published");
        let mut published = Published::new(named.entry, &named.usage, &self.context.claims);
        if published.entry.capacity != self.configuration.capacity {
            published.resize(self.configuration.capacity);
            self.remember(&published).await;
        }
        self.insert(published);
    }

    /// Takes an Instance into service.
    fn insert(&mut self, mut published: Published) {
        published.advertise(&self.context.node, false);
        if self.configuration.resources != Resources::Configuration {
            let target = Target::Instance(published.entry.identity.clone());
            published.plugin = Some(self.plugin(&published.entry.key.name, target, &published.advertised));
        }
        self.context.publisher.publish(published.instance(&self.configuration, &self.context.node));
        self.published.insert(published.entry.identity.clone(), published);
    }

    /// The Configuration's own resource is there from the start, with no devices (RULES 5).
    fn serve_whole(&mut self) {
        if self.configuration.resources != Resources::Instance {
            let name = &self.configuration.key.name;
            self.whole.plugin = Some(self.plugin(name, Target::Configuration, &self.whole.advertised));
        }
    }

    fn plugin(&self, name: &str, target: Target, advertised: &watch::Sender<Advertised>) -> Plugin {
        let resource = OwnedResource::new(name, target, advertised.subscribe(), self.asks.clone());
        self.context.plugins.serve(Arc::new(resource))
    }

    async fn change(&mut self, identity: &Identity, device: Device) {
        let Some(published) = self.published.get_mut(identity) else { return };
        published.entry.device = device;
        self.changed(identity).await;
    }

    async fn set_online(&mut self, identity: &Identity, online: bool) {
        let Some(published) = self.published.get_mut(identity) else { return };
        published.entry.online = online;
        published.missing_since = (!online).then(Instant::now);
        info!(instance = %published.entry.key, online, "device {}", if online { "is back" } else { "is missing" });
        self.changed(identity).await;
    }

    /// Remembers, advertises and publishes an Instance that is not what it was.
    async fn changed(&self, identity: &Identity) {
        let Some(published) = self.published.get(identity) else { return };
        self.remember(published).await;
        published.advertise(&self.context.node, false);
        self.context.publisher.publish(published.instance(&self.configuration, &self.context.node));
    }

    async fn remember(&self, published: &Published) {
        if let Err(error) = self.context.journal.put(published.entry.clone()).await {
            warn!(instance = %published.entry.key, "{error}");
        }
    }

    // ── the end of Instances ──

    fn grace(&self, published: &Published) -> Duration {
        self.configuration.grace(published.entry.shared)
    }

    /// When the next missing device has been missing for long enough. One whose slots are in use waits for its release.
    fn next_expiry(&self) -> Option<Instant> {
        let idle = self.published.values().filter(|published| published.entry.claims.is_empty());
        idle.filter_map(|published| Some(published.missing_since? + self.grace(published))).min()
    }

    async fn expire(&mut self) {
        let now = Instant::now();
        let expired = self.published.iter().filter(|(_, published)| {
            let due = published.missing_since.is_some_and(|since| since + self.grace(published) <= now);
            due && published.entry.claims.is_empty()
        });
        let expired: Vec<Identity> = expired.map(|(identity, _)| identity.clone()).collect();
        for identity in expired {
            self.remove(&identity).await;
        }
    }

    async fn remove(&mut self, identity: &Identity) {
        let Some(published) = self.published.remove(identity) else { return };
        let key = published.entry.key.clone();
        if let Some(plugin) = published.plugin {
            plugin.close().await;
        }
        self.context.publisher.delete(key.clone(), published.entry.uid);
        if let Err(error) = self.context.journal.remove(key.clone()).await {
            warn!(instance = %key, "{error}");
        }
        info!(instance = %key, "removed");
    }

    async fn finish(mut self, end: End) {
        self.context.claims.count(self.counted, 0);
        if end == End::Shutdown {
            return;
        }
        self.naming.shutdown().await;
        let identities: Vec<Identity> = self.published.keys().cloned().collect();
        for identity in identities {
            self.remove(&identity).await;
        }
        if let Some(plugin) = self.whole.plugin.take() {
            plugin.close().await;
        }
        self.context.publisher.forget(self.configuration.key.clone());
    }

    // ── edits of the Configuration ──

    async fn reconfigure(&mut self, configuration: Arc<Configuration>) {
        let plugins_change = self.configuration.resources != configuration.resources;
        self.configuration = configuration;
        if plugins_change {
            self.restart_plugins().await;
        }
        let identities: Vec<Identity> = self.published.keys().cloned().collect();
        for identity in identities {
            let Some(published) = self.published.get_mut(&identity) else { continue };
            published.resize(self.configuration.capacity);
            self.changed(&identity).await;
        }
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

    // ── the kubelet ──

    async fn serve(&mut self, command: Command) {
        match command {
            Command::Allocate { target, containers, reply } => self.allocate(&target, &containers, reply).await,
            Command::Prefer { target, containers, reply } => {
                let _ = reply.send(self.prefer(&target, &containers)); // the kubelet may have given up
            }
            Command::Holds { target, ids, reply } => {
                let _ = reply.send(self.holds(&target, &ids));
            }
        }
    }

    fn prefer(&self, target: &Target, containers: &[Preference]) -> Vec<Vec<String>> {
        match target {
            Target::Configuration => whole::prefer(&self.published, containers, &self.context.node),
            Target::Instance(identity) => {
                let published = self.published.get(identity);
                let prefer = |p: &Published| containers.iter().map(|wish| claims::prefer(p, wish)).collect();
                published.map(prefer).unwrap_or_default()
            }
        }
    }

    fn holds(&self, target: &Target, ids: &[String]) -> bool {
        match target {
            Target::Configuration => whole::holds(&self.published, ids, &self.context.node),
            Target::Instance(identity) => {
                self.published.get(identity).is_some_and(|p| claims::holds(p, ids, &self.context.node))
            }
        }
    }

    async fn allocate(&mut self, target: &Target, containers: &[Vec<String>], reply: oneshot::Sender<Allocated>) {
        let context = Arc::clone(&self.context);
        let _answering = context.claims.answering();
        match self.claim(target, containers).await {
            Ok((edits, undo)) => {
                let touched: Vec<Identity> = undo.touched().cloned().collect();
                let heard = reply.send(Ok(edits)).is_ok();
                if !heard {
                    claims::go_back(&context, &mut self.published, undo).await;
                }
                self.after_claim(target, &touched, !heard);
            }
            Err(refused) => {
                warn!(configuration = %self.configuration.key, ?target, "Allocate refused: {refused}");
                let _ = reply.send(Err(refused)); // the kubelet may have given up
                self.after_claim(target, &[], true);
            }
        }
    }

    async fn claim(&mut self, target: &Target, containers: &[Vec<String>]) -> Result<(Vec<ContainerEdits>, Undo), Refused> {
        if containers.is_empty() || containers.iter().any(Vec::is_empty) {
            return Err(Refused::InvalidArgument("a container asks for no device".to_owned()));
        }
        let node = &self.context.node;
        let wishes = match target {
            Target::Configuration => whole::wishes(&self.published, containers, node)?,
            Target::Instance(identity) => {
                let published = self.published.get(identity);
                let published = published.ok_or_else(|| Refused::NotFound("the device is gone".to_owned()))?;
                claims::instance_wishes(published, containers, node)?
            }
        };
        claims::claim(&self.context, &self.configuration, &mut self.published, &wishes).await
    }

    /// The kubelet hears of every change, and of how things are after a refusal, which may come from an older list.
    fn after_claim(&self, target: &Target, touched: &[Identity], refused: bool) {
        let node = &self.context.node;
        for identity in touched {
            let Some(published) = self.published.get(identity) else { continue };
            published.advertise(node, false);
            self.context.publisher.publish(published.instance(&self.configuration, node));
        }
        match target {
            Target::Instance(identity) if refused => {
                self.published.get(identity).into_iter().for_each(|published| published.advertise(node, true));
            }
            Target::Configuration if refused => self.whole.advertise(&self.published, node, true),
            _ => {}
        }
    }

    // ── looks at pods ──

    async fn look(&mut self, sighting: &Sighting) {
        let Some(look) = sighting.look else { return };
        let whole = sighting.in_use.get(&resource_name(&self.configuration.key.name));
        let judged = self.published.iter_mut().map(|(identity, published)| {
            let own = sighting.in_use.get(&resource_name(&published.entry.key.name));
            (identity.clone(), published.judge(own, whole, &look))
        });
        let ended: Vec<(Identity, Vec<u32>)> = judged.filter(|(_, slots)| !slots.is_empty()).collect();
        for (identity, slots) in ended {
            self.release(&identity, &slots).await;
        }
    }

    async fn release(&mut self, identity: &Identity, slots: &[u32]) {
        let Some(published) = self.published.get_mut(identity) else { return };
        let before = published.entry.claims.clone();
        for slot in slots {
            let Some(claim) = published.entry.claims.remove(slot) else { continue };
            let usage: Usage = claim.usage.parse().unwrap_or_default();
            published.slots.release(*slot, &usage);
            published.sightings.remove(slot);
            info!(instance = %published.entry.key, slot, "released: no container uses it");
        }
        if published.entry.shared
            && let Err(refused) = claims::swap_all(&self.context, published, &before).await
        {
            warn!(instance = %published.entry.key, "not released yet: {refused}");
            published.entry.claims = before; // it stays ours until the API server says otherwise
            return;
        }
        self.changed(identity).await;
    }
}

/// Waits for a moment, or for ever.
async fn expiry(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
