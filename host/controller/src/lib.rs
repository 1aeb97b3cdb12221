//! The controller of a cluster: it runs the brokers that Configurations want for their Instances, with Services in front of
//! them, aggregates the problems of nodes into conditions, and removes what nodes that do not exist any more have left.
//!
//! Watches keep a [`world::World`] of small views up to date and put the keys of what changed into a queue. Workers take keys
//! and reconcile them one by one; decisions are pure functions of `akri_brokers`.

mod agents;
mod events;
mod leader;
mod metrics;
mod node_cleanup;
mod queue;
mod reconcile;
mod requests;
mod status;
mod store;
mod upstream;
mod views;
mod watch;
mod world;

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use akri_api::{Configuration, DiscoveryHandler, Instance};
use akri_brokers::SELECTOR;
use akri_http::{Pages, Server};
use akri_model::retry::jitter;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, PartialObjectMeta};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use events::Events;
use leader::Election;
use metrics::Metrics;
use node_cleanup::Nodes;
use queue::{Queue, Work};
use reconcile::{Context, reconcile};
use requests::{RequestError, Requests};
use upstream::UpstreamFinalizers;
use views::{ConfigurationView, HandlerView, InstanceView, JobView, PodView, ServiceView};
use watch::{WatchSource, follow};

/// Objects that are reconciled at a time.
const WORKERS: usize = 16;

/// Longest duration of one reconcile.
const LIMIT: Duration = Duration::from_secs(120);

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

/// The address for health and metrics can't be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {reason}; set another address with --listen")]
pub struct ListenError {
    address: SocketAddr,
    reason: io::Error,
}

/// Runs until `stop` ends.
///
/// # Errors
/// If the address for health and metrics can't be bound.
pub async fn run(client: Client, settings: Settings, stop: impl Future<Output = ()>) -> Result<(), ListenError> {
    let context = Arc::new(Context {
        world: world::World::default(),
        requests: Requests::new(client.clone()),
        nodes: Nodes::new(client.clone()),
        upstream: UpstreamFinalizers::default(),
        events: Events::start(client.clone(), settings.identity.clone()),
        metrics: Metrics::default(),
    });
    let mut tasks = JoinSet::new();
    let listed = start_watches(&client, &settings, &context, &mut tasks);
    let (leads, leading) = channel::channel(false);
    let (ready, is_ready) = channel::channel(false);
    let _server = listen(&settings, &context, leading.clone(), is_ready).await?;
    tasks.spawn(report_readiness(listed.clone(), ready));
    tasks.spawn(Election::new(client.clone(), &settings.lease_namespace, settings.identity.clone()).run(leads));
    for _ in 0..WORKERS {
        tasks.spawn(work(Arc::clone(&context), leading.clone(), listed.clone()));
    }
    stop.await;
    tasks.shutdown().await;
    leader::release(client, &settings.lease_namespace, &settings.identity).await;
    Ok(())
}

/// Serves health and metrics, if wanted.
async fn listen(
    settings: &Settings,
    context: &Arc<Context>,
    leading: channel::Receiver<bool>,
    ready: channel::Receiver<bool>,
) -> Result<Option<Server>, ListenError> {
    let Some(address) = settings.listen else { return Ok(None) };
    let context = Arc::clone(context);
    let metrics = Arc::new(move || context.metrics.encode(context.world.queue.len(), *leading.borrow()));
    let missing = Arc::new(move || if *ready.borrow() { Vec::new() } else { vec!["starting".to_owned()] });
    let server = Server::start(address, Pages { metrics, missing }).await;
    server.map(Some).map_err(|reason| ListenError { address, reason })
}

/// A controller is ready once it has listed everything, whether it leads or not.
async fn report_readiness(mut listed: Vec<channel::Receiver<bool>>, ready: channel::Sender<bool>) {
    for listed in &mut listed {
        if listed.wait_for(|listed| *listed).await.is_err() {
            return;
        }
    }
    ready.send_replace(true);
    std::future::pending().await // who drops the sender takes it back
}

/// Starts to follow all kinds. Returns whether each has been listed.
fn start_watches(
    client: &Client,
    settings: &Settings,
    context: &Arc<Context>,
    tasks: &mut JoinSet<()>,
) -> Vec<channel::Receiver<bool>> {
    let mut watches = Watches { client, settings, context, tasks, listed: Vec::new() };
    let labels = "controller=akri.sh";
    debug_assert_eq!(labels, format!("{}={}", SELECTOR.0, SELECTOR.1));
    let nodes = WatchSource::<PartialObjectMeta<Node>, _> {
        api: Api::all(client.clone()),
        what: "Nodes",
        labels: "",
        read: |n| Some(n.name_any()),
    };
    watches.start(nodes, |context, change| context.world.take_nodes(change));
    let leases = WatchSource::<Lease, _> {
        api: Api::namespaced(client.clone(), &settings.lease_namespace),
        what: "Leases",
        labels: AGENT_LEASES,
        read: Some,
    };
    watches.start(leases, |context, change| context.world.take_leases(change));
    let configurations = WatchSource {
        api: watches.erased::<Configuration>(),
        what: "Configurations",
        labels: "",
        read: |o| Some(ConfigurationView::read(o)),
    };
    watches.start(configurations, |context, change| context.world.take_configurations(change));
    let pods = WatchSource { api: watches.api::<Pod>(), what: "Pods", labels, read: |pod| Some(PodView::of(pod)) };
    watches.start(pods, |context, change| context.world.take_pods(change));
    let jobs = WatchSource { api: watches.api::<Job>(), what: "Jobs", labels, read: |job| Some(JobView::of(job)) };
    watches.start(jobs, |context, change| context.world.take_jobs(change));
    let services = WatchSource {
        api: watches.api::<Service>(),
        what: "Services",
        labels,
        read: |service| Some(ServiceView::of(service)),
    };
    watches.start(services, |context, change| context.world.take_services(change));
    let instances =
        WatchSource { api: watches.erased::<Instance>(), what: "Instances", labels: "", read: InstanceView::read };
    watches.start(instances, |context, change| context.world.take_instances(change));
    if settings.namespace.is_none() {
        // They belong to no namespace, so that a controller of one leaves them to that of all.
        let handlers = WatchSource {
            api: Api::all_with(client.clone(), &ApiResource::erase::<DiscoveryHandler>(&())),
            what: "DiscoveryHandlers",
            labels: "",
            read: |object| Some(HandlerView::read(object)),
        };
        watches.start(handlers, |context, change| context.world.take_handlers(change));
    }
    watches.listed
}

struct Watches<'a> {
    client: &'a Client,
    settings: &'a Settings,
    context: &'a Arc<Context>,
    tasks: &'a mut JoinSet<()>,
    listed: Vec<channel::Receiver<bool>>,
}

impl Watches<'_> {
    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        match &self.settings.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// Objects of a kind as they are, whether they fit its type or not.
    fn erased<K: Resource<DynamicType = ()>>(&self) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<K>(&());
        match &self.settings.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    fn start<K, V>(&mut self, source: WatchSource<K, V>, take: fn(&Context, watch::Change<V>))
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        V: Send + 'static,
    {
        let (listed, receiver) = channel::channel(false);
        let context = Arc::clone(self.context);
        self.tasks.spawn(async move { follow(source, listed, move |change| take(&context, change)).await });
        self.listed.push(receiver);
    }
}

/// Takes keys while this controller leads, once everything has been listed: what is not known yet is not missing.
async fn work(context: Arc<Context>, mut leading: channel::Receiver<bool>, mut listed: Vec<channel::Receiver<bool>>) {
    for listed in &mut listed {
        if listed.wait_for(|listed| *listed).await.is_err() {
            return;
        }
    }
    while leading.wait_for(|leads| *leads).await.is_ok() {
        let work = context.world.queue.next().await;
        if !*leading.borrow() {
            context.world.queue.done(work, Some(Duration::ZERO));
            continue;
        }
        let started = Instant::now();
        let result = timeout(LIMIT, reconcile(&context, &work)).await;
        let late = |_| RequestError::Unavailable(format!("it took longer than {LIMIT:?}"));
        let result = result.unwrap_or_else(|elapsed| Err(late(elapsed)));
        context.metrics.reconciled(&work, result.is_ok(), started.elapsed());
        give_back(&context.world.queue, work, result);
    }
}

fn give_back(queue: &Queue, work: Work, result: Result<reconcile::Again, RequestError>) {
    match result {
        Ok(again) => queue.done(work, again),
        Err(error) => {
            let object = match &work {
                Work::Configuration(key) => format!("Configuration {key}"),
                Work::Instance(key) => format!("Instance {key}"),
                Work::Handler(key) => format!("DiscoveryHandler {}", key.name),
            };
            let pause = queue.failed(work, jitter());
            match error {
                RequestError::Conflict(_) => debug!(object, %error, ?pause, "reconciling again"),
                _ => warn!(object, %error, ?pause, "reconciling failed; retrying"),
            }
        }
    }
}
