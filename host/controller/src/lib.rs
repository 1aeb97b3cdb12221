//! The controller of a cluster: it runs the brokers that Configurations want for their Instances, with Services in front of
//! them, aggregates the problems of nodes into conditions, and removes what nodes that do not exist any more have left.
//!
//! Watches keep an [`ObjectIndex`] of small views up to date and put the keys of what changed into a queue. Workers take keys
//! and reconcile them one by one; decisions are pure functions of `akri_brokers`.

mod agents;
mod metrics;
mod node_cleanup;
mod object_index;
mod reconcile;
mod rests;
mod status;
mod store;
mod upstream;
mod views;
mod work;

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use akri_api::{Configuration, DiscoveryHandler, Instance};
use akri_brokers::SELECTOR;
use akri_kube::events::EventRecorder;
use akri_kube::http::{ListenError, Pages, Server};
use akri_kube::leader::{self, Election};
use akri_kube::requests::{RequestError, RequestResult, Requests};
use akri_kube::watch::{Change, FirstList, Restores, WatchSource, watch_objects};
use akri_model::names::Key;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::Api;
use kube::runtime::watcher::Config;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use metrics::Metrics;
pub use metrics::metric_docs;
use object_index::ObjectIndex;
use reconcile::{Context, Unhurried, reconcile};
use views::{ConfigurationView, HandlerView, InstanceView, JobView, NodeView, PodView, ServiceView};
use work::{Queue, Work};

/// Objects that are reconciled at a time.
const WORKERS: usize = 16;

/// Longest duration of one reconcile.
const LIMIT: Duration = Duration::from_secs(120);

/// Longest duration of one request to the API server.
const REQUEST: Duration = Duration::from_secs(10);

/// The field manager of all that the controller writes.
const MANAGER: &str = "akri-controller";

/// The label of agents' Leases.
const AGENT_LEASES: &str = "akri.sh/lease=agent";

/// The settings of the controller.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The only namespace whose Configurations it serves; all without one.
    pub namespace: Option<String>,
    /// The namespace of the Leases: its own, and those of the agents.
    pub lease_namespace: String,
    /// The name under which it takes part in leader election; different for each process.
    pub identity: String,
    /// The address that serves health and metrics, if any does.
    pub listen: Option<SocketAddr>,
}

/// Runs until `stop` ends.
///
/// # Errors
/// If the address for health and metrics can't be bound.
pub async fn run(client: Client, settings: Settings, stop: impl Future<Output = ()>) -> Result<(), ListenError> {
    let context = Arc::new(Context {
        objects: ObjectIndex::default(),
        requests: Requests::new(client.clone(), MANAGER, REQUEST),
        events: EventRecorder::start(client.clone(), MANAGER, settings.identity.clone(), "RunBroker"),
        metrics: Metrics::default(),
        unhurried: Unhurried::limiter(),
        lease_namespace: settings.lease_namespace.clone(),
    });
    let mut tasks = JoinSet::new();
    let unlisted = start_watches(&settings, &context, &mut tasks);
    let (leads, leading) = channel::channel(false);
    let _server = listen(&settings, &context, leading.clone(), unlisted.clone()).await?;
    let lease = lease(&settings);
    let election = Election::new(client.clone(), &lease, settings.identity.clone());
    tasks.spawn(election.run(leads));
    for _ in 0..WORKERS {
        tasks.spawn(work(Arc::clone(&context), leading.clone(), unlisted.clone()));
    }
    stop.await;
    tasks.shutdown().await;
    leader::release(client, &lease, &settings.identity).await;
    Ok(())
}

/// Returns the Lease for which this controller competes with those that serve the same.
fn lease(settings: &Settings) -> Key {
    let of_namespace = settings.namespace.as_ref().map(|namespace| format!(".{namespace}")).unwrap_or_default();
    Key::new(&*settings.lease_namespace, format!("akri-controller{of_namespace}"))
}

/// Serves health and metrics, if wanted. A controller is ready once it has listed everything, whether it leads or not.
async fn listen(
    settings: &Settings,
    context: &Arc<Context>,
    leading: channel::Receiver<bool>,
    unlisted: channel::Receiver<usize>,
) -> Result<Option<Server>, ListenError> {
    let Some(address) = settings.listen else { return Ok(None) };
    let context = Arc::clone(context);
    let metrics = Arc::new(move || {
        let (waiting, slots) = (context.objects.queue.waiting(), context.objects.count_unclear_slots());
        context.metrics.encode(waiting, *leading.borrow(), slots, context.objects.broker_counts())
    });
    let missing = Arc::new(move || if *unlisted.borrow() == 0 { Vec::new() } else { vec!["starting".to_owned()] });
    Server::start(address, Pages { metrics, missing }).await.map(Some)
}

/// Starts to watch all kinds. Returns how many have not been listed yet.
fn start_watches(settings: &Settings, context: &Arc<Context>, tasks: &mut JoinSet<()>) -> channel::Receiver<usize> {
    let client = context.requests.client();
    let restores = Restores::default();
    let mut watches = Watches { settings, context, tasks, unlisted: channel::Sender::new(0), restores };
    let (all, leases) = (Config::default(), Config::default().labels(AGENT_LEASES));
    let of_brokers = Config::default().labels(&format!("{}={}", SELECTOR.0, SELECTOR.1));
    let read = |node: Node| Some(NodeView::of(&node));
    watches.start("Nodes", Api::all(client.clone()), &all, read, ObjectIndex::take_nodes);
    let agents: Api<Lease> = Api::namespaced(client.clone(), &settings.lease_namespace);
    watches.start("Leases", agents, &leases, Some, ObjectIndex::take_leases);
    let namespace = settings.namespace.as_deref().unwrap_or_default();
    let configurations = context.requests.api::<Configuration>(namespace);
    let read = |object| Some(ConfigurationView::read(object));
    watches.start("Configurations", configurations, &all, read, ObjectIndex::take_configurations);
    let (pods, read) = (watches.api::<Pod>(), |pod| Some(PodView::of(&pod)));
    watches.start("Pods", pods, &of_brokers, read, ObjectIndex::take_pods);
    let (jobs, read) = (watches.api::<Job>(), |job| Some(JobView::of(job)));
    watches.start("Jobs", jobs, &of_brokers, read, ObjectIndex::take_jobs);
    let (services, read) = (watches.api::<Service>(), |service| Some(ServiceView::of(&service)));
    watches.start("Services", services, &of_brokers, read, ObjectIndex::take_services);
    let instances = context.requests.api::<Instance>(namespace);
    watches.start("Instances", instances, &all, InstanceView::read, ObjectIndex::take_instances);
    if settings.namespace.is_none() {
        let handlers = context.requests.api::<DiscoveryHandler>("");
        let read = |object| Some(HandlerView::read(&object));
        watches.start("DiscoveryHandlers", handlers, &all, read, ObjectIndex::take_handlers);
    }
    watches.unlisted.subscribe()
}

struct Watches<'a> {
    settings: &'a Settings,
    context: &'a Arc<Context>,
    tasks: &'a mut JoinSet<()>,
    unlisted: channel::Sender<usize>,
    restores: Restores,
}

impl Watches<'_> {
    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        let client = self.context.requests.client().clone();
        match &self.settings.namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        }
    }

    /// Watches a kind. Lists are consistent, not from the API server's cache: the controller deletes what belongs to objects that
    /// they lack (rule 77).
    fn start<K, V>(
        &mut self,
        what: &str,
        api: Api<K>,
        config: &Config,
        read: fn(K) -> Option<V>,
        take: fn(&ObjectIndex, Change<V>),
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        V: Send + 'static,
    {
        let (context, unlisted, mut is_listed) = (Arc::clone(self.context), self.unlisted.clone(), false);
        unlisted.send_modify(|count| *count += 1);
        let source = WatchSource::new(api, config.clone(), what, FirstList::Consistent, read);
        let source = WatchSource { restores: self.restores.clone(), ..source };
        self.tasks.spawn(watch_objects(source, move |change| {
            let is_list = matches!(change, Change::All(_));
            take(&context.objects, change);
            if is_list && !std::mem::replace(&mut is_listed, true) {
                unlisted.send_modify(|count| *count -= 1);
            }
        }));
    }
}

/// Takes keys while this controller leads, once everything has been listed: what is not known yet is not missing.
async fn work(context: Arc<Context>, mut leading: channel::Receiver<bool>, mut unlisted: channel::Receiver<usize>) {
    if unlisted.wait_for(|count| *count == 0).await.is_err() {
        return; // the controller ends
    }
    while leading.wait_for(|leads| *leads).await.is_ok() {
        let work = context.objects.queue.next().await;
        if !*leading.borrow() {
            context.objects.queue.done(work, Some(Duration::ZERO));
            continue;
        }
        let started = Instant::now();
        let result = timeout(LIMIT, reconcile(&context, &work)).await;
        let late = |_| RequestError::Unavailable(format!("it took longer than {LIMIT:?}"));
        let result = result.unwrap_or_else(|elapsed| Err(late(elapsed)));
        context.metrics.reconciled(&work, result.is_ok(), started.elapsed());
        give_back(&context.objects.queue, work, result);
    }
}

fn give_back(queue: &Queue, work: Work, result: RequestResult<reconcile::Again>) {
    match result {
        Ok(again) => queue.done(work, again),
        Err(error) => {
            let object = work.to_string();
            let pause = queue.failed(work);
            match error {
                RequestError::Conflict(_) | RequestError::NotFound(_) => {
                    debug!(object, %error, ?pause, "reconciling again")
                }
                _ => warn!(object, %error, ?pause, "reconciling failed; retrying"),
            }
        }
    }
}
