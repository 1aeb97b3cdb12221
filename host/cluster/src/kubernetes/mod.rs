//! The cluster implementation for an API server. Watches keep the required objects up to date, and every write states
//! what it expects to find (rule 10, rule 22, rule 23, rule 24, rule 25).

mod broker_info;
mod instances;
mod known_instances;
mod manifests;
mod membership;
mod node_problems;
mod others;
mod own_node;
mod patch;
mod progress;
#[cfg(test)]
mod response_tests;
mod sharing;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use akri_api::{Configuration, DiscoveryHandler, instance_from_model, instance_to_model};
use akri_kube::agent_lease;
use akri_kube::events::EventRecorder;
use akri_kube::requests::{MAX_ATTEMPTS, RequestError, Requests};
use akri_kube::watch::{FirstList, Restores, WatchSource, typed, watch_objects};
use akri_model::broker_info::Files;
use akri_model::instance::{Instance, Online, Version};
use akri_model::instance_labels::{OTHER_NAME_LABEL, node_label, node_label_value, shared_label};
use akri_model::names::{Identity, Key, has_usual_name};
use akri_model::slots::SlotPatch;
use async_trait::async_trait;
use k8s_openapi::jiff::Timestamp;
pub use kube::Client;
use kube::api::DynamicObject;
use kube::runtime::watcher::Config;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use crate::{Cluster, ClusterError, ClusterResult, CreateOutcome, Finding, ObjectEvent, Report, Watches, WriteOutcome};
use instances::Instances;
use known_instances::Watched;
use manifests::Assembler;
use membership::OtherNames;
use others::{Listing, Lists};
use progress::ProgressTracker;
use sharing::SharingTracker;

/// Timeout of a request to the API server.
const REQUEST: Duration = Duration::from_secs(5);

/// The time that the content of a Lease is cached.
const LEASE_READ: Duration = Duration::from_secs(25);

/// The field manager of all agents: one of each would cost a shared Instance hundreds of bytes a node (rule 77).
const MANAGER: &str = "akri-agent";

/// A cluster with an API server.
pub struct Kubernetes {
    requests: Requests,
    node: String,
    assembler: Assembler,
    watches: Watches,
    instances: Instances,
    /// The restores of etcd (rule 106).
    restores: Restores,
    events: EventRecorder,
    progress: ProgressTracker,
    sharing: SharingTracker,
    /// Makes the renewal of the Lease end, and shows that it has.
    stopping: watch::Sender<bool>,
    /// Nodes whose Leases were read, when, and whether an agent runs there.
    agents: Mutex<BTreeMap<String, (Instant, bool)>>,
    other_names: Lists<OtherNames>,
    /// The newest version of the Instances that this node has made, or found when it wanted to make them; empty without any.
    created: Mutex<Version>,
    others: Lists<Listing>,
    _tasks: JoinSet<()>,
}

impl Kubernetes {
    /// Starts to watch the objects that concern this node. It does not wait for the API server.
    pub fn start(client: Client, node: &str, state: &Path) -> Self {
        let assembler = Assembler::new(node, state);
        let instances = Instances::new(node);
        let requests = Requests::new(client.clone(), MANAGER, REQUEST);
        let events = EventRecorder::start(client.clone(), MANAGER, node.to_owned(), "Discover");
        let progress = ProgressTracker::new(node);
        let watches = Watches {
            manifests: assembler.manifests.clone(),
            usage: instances.changes.clone(),
            report_changes: progress.changes.clone(),
            ..Watches::default()
        };
        let restores = Restores::default();
        let mut tasks = JoinSet::new();
        for (api, what, has_namespace, take) in [
            (requests.api::<Configuration>(""), "Configurations", true, Assembler::configurations as fn(&_, _)),
            (requests.api::<DiscoveryHandler>(""), "DiscoveryHandlers", false, Assembler::handlers),
        ] {
            let source = WatchSource::new(api, Config::default(), what, FirstList::Consistent, Some);
            let source = WatchSource { restores: restores.clone(), ..source };
            let (assembler, progress) = (assembler.clone(), progress.clone());
            tasks.spawn(watch_objects(source, move |change| {
                progress.take(&change, has_namespace);
                take(&assembler, change);
            }));
        }
        for watched in Watched::ALL {
            let (api, config) =
                (requests.api::<akri_api::Instance>(""), Config::default().labels(&watched.selector(node)));
            let (source, instances) =
                (WatchSource::new(api, config, "Instances", FirstList::Cached, Some), instances.clone());
            let source = WatchSource { restores: restores.clone(), lists: watches.true_lists.clone(), ..source };
            tasks.spawn(watch_objects(source, move |change| instances.take(watched, change)));
        }
        let node_missing = watches.own_node_missing.clone();
        let own_node =
            own_node::watch(client.clone(), node.to_owned(), restores.clone(), node_missing, assembler.clone());
        tasks.spawn(own_node);
        let (manifests, values) = (watches.manifests.subscribe(), watches.values.clone());
        tasks.spawn(values::watch_referred(client.clone(), manifests, restores.clone(), values));
        let (stopping, is_stopping) = watch::channel(false);
        let sharing = SharingTracker::default();
        let (looked_at, entries) = (progress.looked_at.subscribe(), sharing.entries.subscribe());
        tasks.spawn(agent_lease::renew(client, node.to_owned(), looked_at, entries, is_stopping));
        Self {
            requests,
            node: node.to_owned(),
            assembler,
            watches,
            instances,
            restores,
            events,
            progress,
            sharing,
            stopping,
            agents: Mutex::default(),
            other_names: Lists::default(),
            created: Mutex::default(),
            others: Lists::default(),
            _tasks: tasks,
        }
    }

    /// Checks the answer to a request: one that is older than what was known before it comes from a restored etcd.
    fn check_answer(&self, known: Option<Arc<Instance>>, instance: Instance) -> Instance {
        if known.is_some_and(|known| known.uid == instance.uid && instance.version.is_older_than(&known.version)) {
            warn!(instance = %instance.key, "etcd was restored from a backup; listing everything anew");
            self.restores.send_replace(());
        }
        instance
    }

    async fn read(&self, key: &Key) -> ClusterResult<Option<akri_api::Instance>> {
        let found = self.requests.get::<akri_api::Instance>(key).await?;
        let found = found.filter(|object| object.metadata.deletion_timestamp.is_none());
        found.as_ref().map(instance_of).transpose()
    }

    /// Patches an Instance; `None` if a test of the patch does not hold.
    async fn try_patch(&self, key: &Key, operations: Value) -> ClusterResult<Option<akri_api::Instance>> {
        match self.requests.json_patch::<akri_api::Instance>(key, operations).await {
            Ok(object) => instance_of(&object).map(Some),
            Err(RequestError::Conflict(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether this node writes what all nodes of an Instance have in common: it is the first with an agent (rule 24).
    async fn is_writer(&self, published: &Instance) -> ClusterResult<bool> {
        let discovering = self.discovering(published);
        let discovers = |node: &&str| discovering.as_ref().is_none_or(|nodes| nodes.contains(*node));
        for node in patch::nodes_before(published, &self.node).into_iter().filter(discovers) {
            if self.has_agent(&published.key, node).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the nodes that run discovery for the Configuration of an Instance, if not all do.
    fn discovering(&self, instance: &Instance) -> Option<BTreeSet<String>> {
        self.assembler.discovering(&Key::new(&*instance.key.namespace, &*instance.configuration))
    }

    /// Returns whether an agent runs on a node. The answer is kept for a while: nodes that reach a device by different addresses
    /// ask again and again.
    async fn has_agent(&self, key: &Key, node: &str) -> ClusterResult<bool> {
        let known = self.agents.lock().get(node).filter(|(at, _)| at.elapsed() < LEASE_READ).map(|(_, runs)| *runs);
        if let Some(runs) = known {
            return Ok(runs);
        }
        let runs = self.requests.bounded(key, agent_lease::is_held(self.requests.client(), node)).await?;
        let mut agents = self.agents.lock();
        agents.retain(|_, (at, _)| at.elapsed() < LEASE_READ);
        agents.insert(node.to_owned(), (Instant::now(), runs));
        Ok(runs)
    }
}

#[async_trait]
impl Cluster for Kubernetes {
    fn watches(&self) -> &Watches {
        &self.watches
    }

    fn namespace(&self) -> &str {
        self.requests.client().default_namespace()
    }

    async fn stop(&self) {
        self.stopping.send_replace(true);
        // A renewal under way may take as long as a request, and so may this one.
        if timeout(2 * REQUEST, self.stopping.closed()).await.is_err() {
            warn!("the Lease of this agent was not given up in time; it counts as running until the Lease is old");
        }
    }

    async fn list(&self, configuration: &Key) -> ClusterResult<Vec<Arc<Instance>>> {
        self.instances.filter(|instance| instance.is_of(configuration))
    }

    async fn find(&self, configuration: &Key, identity: &Identity) -> ClusterResult<Option<Instance>> {
        self.instances.wait_for_listing().await?;
        let is_its =
            |instance: &Instance| instance.identity.as_ref() == Some(identity) && instance.is_of(configuration);
        self.instances.find(is_its)
    }

    fn finding(&self, instance: &Instance) -> Finding {
        let discovering = self.discovering(instance).unwrap_or_default();
        Finding {
            online: self.instances.seen(&instance.key, |seen| seen.found).unwrap_or(Online::True),
            is_followed: instance.nodes.iter().any(|node| !discovering.contains(node)),
        }
    }

    async fn create(&self, instance: &Instance) -> ClusterResult<CreateOutcome> {
        let wanted = Instance { nodes: vec![self.node.clone()], uid: String::new(), ..instance.clone() };
        let mut object = instance_from_model(&wanted, None, Timestamp::now());
        (object.metadata.creation_timestamp, object.status) = (None, None);
        let label = |key| (key, node_label_value(&self.node).to_owned());
        let mut labels = vec![node_label(&self.node)];
        if instance.shared {
            labels.push(shared_label(&instance.configuration_uid));
            let is_usual = has_usual_name(&instance.configuration, &instance.key.name);
            labels.extend((!is_usual).then(|| OTHER_NAME_LABEL.to_owned()));
        }
        object.metadata.labels = Some(labels.into_iter().map(label).collect());
        let key = &instance.key;
        let taken = match self.find_made(instance).await? {
            Some(listed) => listed,
            None => match self.requests.create::<akri_api::Instance>(key, &object).await? {
                Some(created) => {
                    self.instances.forget_found(key);
                    let created = self.instances.update(&instance_of(&created)?);
                    self.created.lock().raise(&created.version);
                    return Ok(CreateOutcome::New(created));
                }
                None => self.read_taken(instance).await?.ok_or_else(|| RequestError::Conflict(key.clone()))?,
            },
        };
        if taken.metadata.deletion_timestamp.is_some() {
            return Err(ClusterError::Unavailable(format!("{key} is being deleted")));
        }
        let taken = instance_of(&taken)?;
        let model = instance_to_model(&taken);
        self.created.lock().raise(&model.version);
        let is_its = model.configuration_uid.is_empty() || model.configuration_uid == instance.configuration_uid;
        if is_its && (model.identity.is_none() || model.identity == instance.identity) {
            self.instances.keep_found(taken);
        }
        Ok(CreateOutcome::Taken(model))
    }

    async fn publish(&self, instance: &Instance, is_usage_due: bool) -> ClusterResult<WriteOutcome> {
        let joined = self.instances.seen(&instance.key, |seen| {
            let known = &seen.instance;
            let is_joined = seen.adopted && known.uid == instance.uid && known.nodes.contains(&self.node);
            is_joined.then(|| Arc::clone(known))
        });
        let published = match joined.flatten() {
            Some(published) => {
                self.instances.forget_found(&instance.key);
                self.sharing.end_join(&instance.key);
                published
            }
            None => match self.wait_for_join(instance) {
                Some(pause) => return Ok(WriteOutcome::RetryAfter(pause)),
                None => Arc::new(self.join(instance).await?),
            },
        };
        let online = self.publish_online(&published, instance).await?;
        if matches!(online, WriteOutcome::RetryAfter(_)) {
            return Ok(online);
        }
        if self.discovering(instance).is_some_and(|nodes| !nodes.contains(&self.node)) {
            return Ok(online); // those who find the device write what is known of it (rule 126)
        }
        let Some(value) = patch::common_fields(&published, instance) else { return Ok(online) };
        if !is_usage_due && patch::only_usage_differs(&published, instance) {
            return Ok(WriteOutcome::UsageDeferred);
        }
        if !self.is_writer(&published).await? {
            return Ok(WriteOutcome::LeftToOtherNode);
        }
        let patched = self.requests.json_patch::<akri_api::Instance>(&instance.key, value).await?;
        self.instances.update(&instance_of(&patched)?);
        Ok(online)
    }

    async fn delete(&self, key: &Key, uid: &str, is_used: bool) -> ClusterResult<()> {
        self.sharing.forget(key);
        self.instances.forget_found(key);
        for _ in 0..MAX_ATTEMPTS {
            let Some(left) = self.leave(key, uid).await? else { return Ok(()) };
            self.instances.update(&left);
            let is_used = match left.spec.shared {
                true => left.spec.device_usage.values().any(|usage| !usage.is_empty()),
                false => is_used, // what is published may lag (rule 77)
            };
            if !left.spec.nodes.is_empty() || is_used {
                return Ok(()); // others see it or use it (rule 25)
            }
            // Another version: the controller changed its status, or another node joined.
            if self.requests.delete::<akri_api::Instance>(key, uid, left.metadata.resource_version.clone()).await? {
                self.record_removal(key, uid, &left);
                return Ok(());
            }
        }
        Err(RequestError::Conflict(key.clone()).into())
    }

    async fn get(&self, key: &Key) -> ClusterResult<Option<Instance>> {
        let known = self.instances.get(key);
        Ok(self.read(key).await?.map(|object| self.check_answer(known, self.instances.update(&object))))
    }

    async fn find_named_otherwise(
        &self,
        configuration: &Key,
        identity: &Identity,
        max_age: Duration,
    ) -> ClusterResult<Vec<Instance>> {
        // One list serves all who ask while it is recent, or before it begins: an agent that starts asks for each of its devices. One that
        // fails answers all who have waited for it.
        let (asked, lists) = (Instant::now(), self.other_names.kept());
        let known = self.watches.manifests.borrow().configurations.get(configuration).cloned();
        let Some(label) = known.map(|known| shared_label(&known.uid)) else { return Ok(Vec::new()) };
        let mut lists = lists.lock().await;
        let listed = lists.entry(label.clone()).or_default();
        if listed.as_ref().is_none_or(|(at, _)| *at + max_age < asked) {
            let began = Instant::now();
            let instances = self.list_named_otherwise(configuration, &label).await;
            *listed = Some((if instances.is_ok() { began } else { Instant::now() }, instances));
        }
        let Some((_, instances)) = listed else { return Ok(Vec::new()) };
        let is_its = |instance: &&Instance| instance.identity.as_ref() == Some(identity);
        instances.as_ref().map(|all| all.iter().filter(is_its).cloned().collect()).map_err(Clone::clone)
    }

    async fn delete_unused(&self, key: &Key, uid: &str) -> ClusterResult<bool> {
        let current = self.read(key).await?.filter(|current| current.metadata.uid.as_deref() == Some(uid));
        if let Some(current) = current {
            let published = self.instances.update(&current);
            let is_used = published.device_usage.values().any(|usage| !usage.is_empty());
            if is_used || !self.is_writer(&published).await? {
                return Ok(false);
            }
            // Another version: somebody may have claimed a slot.
            let version = current.metadata.resource_version;
            if !self.requests.delete::<akri_api::Instance>(key, uid, version).await? {
                return Ok(false);
            }
        }
        self.instances.forget_deleted(key, uid);
        Ok(true)
    }

    async fn patch_slots(&self, key: &Key, patch: &SlotPatch) -> ClusterResult<Option<Instance>> {
        let known = self.instances.get(key);
        let current = match self.try_patch(key, patch::slots_patch(&key.name, patch)).await {
            Ok(Some(object)) => Some(self.check_answer(known, self.instances.update_for_owner(&object))),
            Ok(None) => Cluster::get(self, key).await?, // somebody was faster, or it is another Instance
            Err(ClusterError::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(current.filter(|instance| instance.uid == patch.uid))
    }

    async fn publish_broker_info(&self, key: &Key, uid: &str, infos: &BTreeMap<u32, Files>) -> ClusterResult<()> {
        let change = |object: &Value| broker_info::change(object, key, &self.node, infos);
        self.requests.change_status::<akri_api::Instance, ClusterError>(key, uid, change).await.map(drop)
    }

    /// Only problems of this node are reported in a cluster. The controller aggregates them into conditions.
    async fn report(&self, report: &Report) -> ClusterResult<WriteOutcome> {
        match report {
            Report::Configuration(report) => self.report_configuration(report).await,
            Report::Handler(report) => self.report_component(report).await,
        }
    }

    fn record_event(&self, event: ObjectEvent) {
        self.events.record(event);
    }
}

fn instance_of(object: &DynamicObject) -> ClusterResult<akri_api::Instance> {
    typed(object).map_err(ClusterError::Refused)
}
