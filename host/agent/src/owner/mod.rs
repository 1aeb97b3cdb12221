//! The owner of a Configuration's Instances on this node: one task that alone changes them. It receives results of discovery,
//! requests of the kubelet and snapshots of pods. The claim machine decides about slots (rule 111); the owner performs that:
//! it writes the journal, and tells the kubelet and the cluster.

mod api_sync;
mod devices;
mod effects;
mod following;
mod health;
mod naming;
mod orphans;
mod plugins;
mod renaming;
mod requests;
mod resource;
mod served;
mod totals;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use akri_cluster::{Cluster, ObjectEvent, send_changed};
use akri_discovery::sources::Providers;
use akri_kubelet::Plugins;
use akri_model::budget::Budget;
use akri_model::claim::Entry;
use akri_model::claim_machine::{AllocationId, ClaimMachine, ManagedInstance, Target};
use akri_model::configuration::Configuration;
use akri_model::device::Device;
use akri_model::names::{Identity, LONG_CONFIGURATION_NAME, Usage};
use akri_model::reclaim::UsageSnapshot;
use akri_node::sleep_until_some;
use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tracing::{error, warn};

use crate::broker_info::BrokerInfo;
use crate::cdi::Cdi;
use crate::checkpoint_refresher::CheckpointRefresher;
use crate::journal::Journal;
use crate::metrics::Metrics;
use crate::pod_resources_poller::ClaimTracker;
use crate::publisher::Publisher;
use crate::readiness::Startup;
use crate::resource_names::ResourceNames;
use api_sync::StepResult;
use effects::{Caller, WriteResult};
use following::next_result;
use health::Health;
use naming::{BoundInstance, NamingError};
pub(crate) use orphans::record_orphans;
use resource::Command;
use served::{ServedInstance, ServedResource};
use totals::{REPORT, Totals};

/// Requests of the kubelet that wait for an owner.
const COMMANDS: usize = 64;

/// The pause before an owner that panicked starts again.
const RESTART: Duration = Duration::from_secs(5);

/// The dependencies of all owners.
pub struct Context {
    /// This node's name.
    pub node: String,
    /// The store of Instances.
    pub cluster: Arc<dyn Cluster>,
    /// The record that survives a crash.
    pub journal: Journal,
    /// The kubelet.
    pub plugins: Arc<Plugins>,
    /// Publishes in the background.
    pub publisher: Publisher,
    /// Orders claims and snapshots.
    pub claims: Arc<ClaimTracker>,
    /// The devices that containers use.
    pub snapshots: watch::Receiver<Option<UsageSnapshot>>,
    /// Makes the kubelet write its checkpoint.
    pub refresher: Arc<CheckpointRefresher>,
    /// The holders of resource names.
    pub resource_names: ResourceNames,
    /// Slots that the kubelet's checkpoint had in use when the agent started, by name (rule 108).
    pub checkpointed: Mutex<BTreeMap<String, Usage>>,
    /// Limits the number of Instances that change slots at once.
    pub api_writes: Semaphore,
    /// The writer of CDI specifications, if they are written.
    pub cdi: Option<Cdi>,
    /// Directories for what brokers report.
    pub broker_info: Arc<BrokerInfo>,
    /// Limits the number of Instances that are created at once.
    pub naming: Semaphore,
    /// The metrics.
    pub metrics: Metrics,
    /// The Configurations whose first round has not ended.
    pub startup: Startup,
}

/// A running owner. Dropping it stops it as [`Owner::stop`] does, without waiting.
pub struct Owner {
    configuration: watch::Sender<Arc<Configuration>>,
    /// Its end; set if its Configuration is gone.
    end: oneshot::Sender<bool>,
    task: JoinHandle<Vec<Entry>>,
}

impl Owner {
    /// Starts with the entries of the journal: their Instances are served at once, before any handler runs.
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
        context.startup.starts(&configuration.key);
        let (sender, receiver) = watch::channel(configuration);
        let (end, ended) = oneshot::channel();
        let inbox = Inbox { configuration: receiver, ended };
        let task = tokio::spawn(run(context, providers, entries, inbox));
        Self { configuration: sender, end, task }
    }

    /// The UID of the Configuration.
    pub fn uid(&self) -> String {
        self.configuration.borrow().uid.clone()
    }

    /// The Configuration was edited.
    pub fn update(&self, configuration: Arc<Configuration>) {
        send_changed(&self.configuration, configuration);
    }

    /// Stops and leaves everything as it is.
    pub async fn stop(self) {
        self.finish(false).await;
    }

    /// Deletes all its Instances. Returns the claims of containers that run, which stay in the journal.
    pub async fn delete(self) -> Vec<Entry> {
        self.finish(true).await
    }

    async fn finish(self, is_deleted: bool) -> Vec<Entry> {
        let _ = self.end.send(is_deleted);
        self.task.await.unwrap_or_default()
    }
}

/// Runs an owner to its end. If it panics, it starts again with what the journal has, as if the agent had been restarted: others go on.
async fn run(context: Arc<Context>, providers: Providers, mut entries: Vec<Entry>, mut inbox: Inbox) -> Vec<Entry> {
    loop {
        let mut owner = OwnerState::new(Arc::clone(&context), providers.clone(), entries, &inbox);
        let ended = AssertUnwindSafe(owner.run(&mut inbox)).catch_unwind().await;
        drop(owner);
        if let Ok(kept) = ended {
            return kept;
        }
        let key = inbox.configuration.borrow().key.clone();
        error!(configuration = %key, "its owner panicked, which is a defect of this program; it starts again in {RESTART:?}");
        sleep(RESTART).await;
        entries = context.journal.entries(&key);
        if inbox.ended.is_terminated() {
            return entries; // it was at its end
        }
    }
}

/// The sources of messages to an owner.
struct Inbox {
    configuration: watch::Receiver<Arc<Configuration>>,
    ended: oneshot::Receiver<bool>,
}

/// The result of creating the Instance of a device; `None` if the device left the set before that began.
type NamingResult = Option<(Identity, Device, Result<BoundInstance, NamingError>)>;

struct OwnerState {
    context: Arc<Context>,
    providers: Providers,
    configuration: Arc<Configuration>,
    /// Decides about slots.
    machine: ClaimMachine,
    /// The resources of its Instances.
    served: BTreeMap<Identity, ServedInstance>,
    configuration_resource: ServedResource,
    /// Devices whose Instances are being created.
    naming: JoinSet<NamingResult>,
    pending: BTreeMap<Identity, devices::Pending>,
    names: renaming::Names,
    /// The callers of Allocates that have not been answered.
    callers: BTreeMap<AllocationId, Caller>,
    /// Writes to the journal.
    writes: JoinSet<WriteResult>,
    /// The time at which records are written again that could not be written.
    record_again_at: Option<Instant>,
    /// The time at which it looks at what the API server shows.
    look_at: Option<Instant>,
    /// The earliest time for that.
    earliest_look: Instant,
    /// Steps towards agreement with the API server.
    steps: JoinSet<StepResult>,
    /// The cluster has shown its Instances. Before that there are no steps.
    is_listed: bool,
    /// Instances that may need such a step, or whose next step has to wait.
    unsynced: BTreeSet<Identity>,
    last: devices::LastSet,
    health: Health,
    /// Boxed: a channel has room for 32 from the start.
    commands: mpsc::Receiver<Box<Command>>,
    /// For the plugins.
    command_sender: mpsc::Sender<Box<Command>>,
    /// IDs that two pods have at once, as recorded.
    duplicates: BTreeSet<(Target, String)>,
    /// UIDs of Instances that this node has given up, with their devices, and when: the cluster may still show them.
    leaving: BTreeMap<String, (Identity, Instant)>,
    /// Instances that nodes serve which leave discovery to this one.
    followed: BTreeSet<Identity>,
    totals: Totals,
    /// Status writes, a fifth of one each.
    reports: Budget,
    next_report: Option<Instant>,
}

impl OwnerState {
    fn new(context: Arc<Context>, providers: Providers, entries: Vec<Entry>, inbox: &Inbox) -> Self {
        let (command_sender, commands) = mpsc::channel(COMMANDS);
        let configuration = devices::bounded(inbox.configuration.borrow().clone(), entries.len());
        let broker_info = context.broker_info.host_path.clone();
        let mut state = Self {
            machine: ClaimMachine::new(context.node.clone(), Arc::clone(&configuration), broker_info),
            context,
            providers,
            configuration,
            served: BTreeMap::new(),
            configuration_resource: ServedResource::default(),
            naming: JoinSet::new(),
            pending: BTreeMap::new(),
            names: renaming::Names::default(),
            callers: BTreeMap::new(),
            writes: JoinSet::new(),
            record_again_at: None,
            look_at: None,
            earliest_look: Instant::now(),
            steps: JoinSet::new(),
            is_listed: false,
            unsynced: BTreeSet::new(),
            last: devices::LastSet::default(),
            health: Health::default(),
            commands,
            command_sender,
            duplicates: BTreeSet::new(),
            leaving: BTreeMap::new(),
            followed: BTreeSet::new(),
            totals: Totals::default(),
            reports: Budget::new(20 * REPORT, 1),
            next_report: None,
        };
        entries.into_iter().for_each(|entry| state.take_entry(entry));
        state
    }

    /// Takes an entry of the journal. Instances of an earlier Configuration of the name go with it; claims on their devices stay
    /// (rule 43).
    fn take_entry(&mut self, mut entry: Entry) {
        let moment = self.moment();
        if entry.configuration_uid != self.configuration.uid {
            return self.machine.keep_claims(entry, moment);
        }
        entry.capacity = self.configuration.capacity;
        let is_damaged = self.context.journal.damaged;
        self.take_instance(ManagedInstance::new(entry, &self.context.node, is_damaged, moment));
    }

    /// Takes an Instance into service.
    fn take_instance(&mut self, instance: ManagedInstance) {
        self.served.insert(instance.entry().identity.clone(), ServedInstance::new(&instance));
        self.machine.insert(instance);
    }

    async fn run(&mut self, inbox: &mut Inbox) -> Vec<Entry> {
        let mut snapshots = self.context.snapshots.clone();
        let watches = self.context.cluster.watches();
        let mut usage = watches.usage.subscribe();
        let mut names = self.context.resource_names.changes();
        let (mut true_lists, mut node_missing) = (watches.true_lists.subscribe(), watches.own_node_missing.subscribe());
        node_missing.mark_changed();
        self.start().await; // what changes meanwhile is looked at after it
        self.begin_role();
        let mut sources = None;
        self.arrange_sources(&mut sources);
        let is_deleted = loop {
            let (next_answer, next_step) = (self.next_answer(), self.next_step_at());
            tokio::select! {
                end = &mut inbox.ended => break end.unwrap_or(false),
                Some(command) = self.commands.recv() => self.serve(*command),
                Some(step) = self.steps.join_next() => self.step_ended(step.ok()),
                Some(write) = self.writes.join_next() => self.written(write.ok()),
                // The largest futures are boxed: most of the time they would be room that an owner keeps for nothing.
                result = next_result(&mut sources) => Box::pin(self.apply_result(result)).await,
                Some(named) = self.naming.join_next() => Box::pin(self.named(named.ok().flatten())).await,
                Some(way) = self.names.ways.join_next() => self.way_cleared(way.ok()).await,
                Ok(()) = inbox.configuration.changed() => {
                    let configuration = inbox.configuration.borrow_and_update().clone();
                    self.reconfigure(configuration).await;
                    self.arrange_sources(&mut sources);
                }
                Ok(()) = snapshots.changed() => {
                    let snapshot = snapshots.borrow_and_update().clone();
                    self.apply_snapshot(snapshot.as_ref());
                }
                // Until that look nothing has changed.
                Ok(()) = usage.changed() => {
                    self.expect_remote_usage();
                    continue;
                }
                Ok(()) = true_lists.changed() => {
                    self.expect_remote_usage();
                    continue;
                }
                () = sleep_until_some(self.look_at) => self.apply_remote_usage().await,
                Ok(()) = node_missing.changed() => {
                    let is_missing = *node_missing.borrow_and_update();
                    self.take_node_missing(is_missing).await;
                }
                Ok(()) = names.changed() => self.rearrange_plugins().await,
                () = sleep_until_some(self.totals.expiry) => self.expire().await,
                () = sleep_until_some(next_answer) => {}
                () = sleep_until_some(next_step) => {}
                () = sleep_until_some(self.last.again) => self.retry_names().await,
                () = sleep_until_some(self.record_again_at) => self.record_again(),
                () = sleep_until_some(self.next_report) => {}
                () = sleep_until_some(self.totals.due) => {}
            }
            self.health.status.unanswered = sources.as_ref().is_some_and(|sources| !sources.are_current());
            self.after_event().await;
        };
        drop(sources);
        self.finish(is_deleted).await
    }

    /// An agent whose own Node object is missing keeps its claims and joins nothing (rule 100).
    async fn take_node_missing(&mut self, is_missing: bool) {
        if is_missing != self.machine.is_node_missing() {
            self.machine.set_node_missing(is_missing);
            self.health.status.node_missing = is_missing;
            self.context.metrics.node_missing.set(i64::from(is_missing));
            self.find_again().await;
        }
    }

    /// Serves the Instances of the journal, with the API server or without it.
    async fn start(&mut self) {
        self.perform_effects().await; // what the journal no longer needs goes before anything of the same name comes
        self.wait_for_listing().await;
        for identity in self.known_identities() {
            self.restore_lost(&identity);
            self.machine.change(&identity);
        }
        self.rearrange_plugins().await;
        self.after_event().await;
    }

    /// Returns whether the devices known from before a restart are shared.
    fn knows_shared(&self) -> bool {
        self.machine.instances().values().any(|instance| instance.entry().shared)
    }

    fn known_identities(&self) -> Vec<Identity> {
        self.machine.instances().keys().cloned().collect()
    }

    async fn finish(&mut self, is_deleted: bool) -> Vec<Entry> {
        self.machine.fail_allocations();
        self.perform_effects().await;
        while let Some(write) = self.writes.join_next().await {
            self.written(write.ok());
        }
        self.context.claims.count(Some(&self.configuration.key), 0);
        self.context.startup.has_started(&self.configuration.key);
        if !is_deleted {
            return Vec::new();
        }
        self.naming.shutdown().await;
        self.remove(self.known_identities()).await;
        self.perform_effects().await;
        if let Some(plugin) = self.configuration_resource.plugin.take() {
            plugin.close().await;
        }
        self.context.resource_names.release(&self.configuration.key.name, &self.configuration);
        self.context.metrics.forget(&self.configuration.key);
        self.context.publisher.forget(self.configuration.key.clone());
        std::mem::take(&mut self.machine).into_orphans()
    }

    /// Records an Event of the Configuration, and logs it.
    fn record_event(&self, reason: &'static str, message: String) {
        let Configuration { key, uid, .. } = &*self.configuration;
        warn!(configuration = %key, "{reason}: {message}");
        self.context.cluster.record_event(ObjectEvent::new("Configuration", key, uid, reason, message));
    }

    async fn reconfigure(&mut self, configuration: Arc<Configuration>) {
        let wanted = configuration.capacity;
        let configuration = devices::bounded(configuration, self.machine.instances().len());
        if configuration.capacity < wanted {
            let message = format!("{} slots for each device: {wanted} are too many for all", configuration.capacity);
            self.record_event("CapacityReduced", message);
        }
        let role = self.configuration.role;
        self.configuration = Arc::clone(&configuration);
        self.machine.reconfigure(configuration);
        self.rearrange_plugins().await;
        self.change_role(role).await;
        self.names.taken.clear();
        self.find_again().await; // its Instances may get other names
    }
}
