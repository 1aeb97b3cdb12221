//! The cluster implementation for an API server. Watches keep the required objects up to date, and every write states
//! what it expects to find (rule 10, rule 22, rule 23, rule 24, rule 25).

mod broker_info;
mod events;
mod instances;
mod lease;
mod manifests;
mod membership;
mod node_problems;
mod object_watch;
mod patch;
mod problem_reporter;
#[cfg(test)]
mod response_tests;
mod saved_configurations;
mod status_patch;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use akri_api::json_patch::is_outdated;
use akri_api::{Configuration, DiscoveryHandler, instance_from_model, instance_to_model};
use akri_model::broker_info::Files;
use akri_model::instance::Instance;
use akri_model::names::{Identity, Key};
use akri_model::resolve::Values;
use akri_model::slots::SlotPatch;
use async_trait::async_trait;
use k8s_openapi::jiff::Timestamp;
pub use kube::Client;
use kube::Error;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ApiResource;
use kube::runtime::watcher;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::{
    Cluster, ClusterError, ConfigurationReport, Copies, CreateOutcome, HandlerReport, Manifests, ObjectEvent, Published,
};
use events::Events;
use instances::Instances;
use manifests::Assembler;
use object_watch::{FirstList, watch_objects};
use problem_reporter::{ProblemReporter, Subject};
use saved_configurations::SavedConfigurations;

/// Timeout of a request to the API server.
const REQUEST: Duration = Duration::from_secs(5);

/// Tries to join or leave an Instance while others write, too.
const TRIES: usize = 10;

/// The time that the content of a Lease is cached.
const LEASE_READ: Duration = Duration::from_secs(25);

/// The field manager of all agents: one of each would cost a shared Instance hundreds of bytes a node (rule 77).
const MANAGER: &str = "akri-agent";

/// A cluster with an API server.
pub struct Kubernetes {
    client: Client,
    node: String,
    manifests: watch::Receiver<Arc<Manifests>>,
    values: watch::Receiver<Arc<Values>>,
    instances: Instances,
    events: Events,
    problems: ProblemReporter,
    /// Nodes whose Leases were read, when, and whether an agent runs there.
    agents: Mutex<BTreeMap<String, (Instant, bool)>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Kubernetes {
    /// Starts to watch the objects that concern this node. It does not wait for the API server.
    pub fn start(client: Client, node: &str, state: &Path) -> Self {
        let assembler = Assembler::new(SavedConfigurations::open(state));
        let instances = Instances::new(node);
        let (values, values_receiver) = watch::channel(Arc::default());
        let events = events::start(client.clone(), node);
        let everything = watcher::Config::default();
        let of_this_node = everything.clone().labels(&patch::node_label(node));
        let (configurations, handlers, of_instances) = (assembler.clone(), assembler.clone(), instances.clone());
        let problems = ProblemReporter::new(node);
        let (of_configurations, of_handlers) = (problems.clone(), problems.clone());
        let tasks = vec![
            tokio::spawn(watch_objects(
                all::<Configuration>(&client),
                everything.clone(),
                "Configurations",
                FirstList::Consistent,
                move |change| {
                    of_configurations.take(Subject::Configuration, &change);
                    configurations.configurations(change);
                },
            )),
            tokio::spawn(watch_objects(
                all::<DiscoveryHandler>(&client),
                everything,
                "DiscoveryHandlers",
                FirstList::Consistent,
                move |change| {
                    of_handlers.take(Subject::Handler, &change);
                    handlers.handlers(change);
                },
            )),
            tokio::spawn(watch_objects(
                all::<akri_api::Instance>(&client),
                of_this_node,
                "Instances",
                FirstList::Cached,
                move |change| {
                    of_instances.take(change);
                },
            )),
            tokio::spawn(values::watch_referred(client.clone(), assembler.manifests(), values)),
            tokio::spawn(lease::renew(client.clone(), node.to_owned())),
            tokio::spawn(node_problems::write_due(client.clone(), node.to_owned(), events.clone(), problems.clone())),
        ];
        Self {
            client,
            node: node.to_owned(),
            manifests: assembler.manifests(),
            values: values_receiver,
            instances,
            events,
            problems,
            agents: Mutex::default(),
            tasks,
        }
    }

    fn api(&self, key: &Key) -> Api<akri_api::Instance> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    async fn read(&self, key: &Key) -> Result<Option<akri_api::Instance>, ClusterError> {
        let found = bounded(key, self.api(key).get_opt(&key.name)).await?;
        Ok(found.filter(|object| object.metadata.deletion_timestamp.is_none()))
    }

    async fn json_patch(&self, key: &Key, value: Value) -> Result<akri_api::Instance, kube::Error> {
        let operations = serde_json::from_value(value).map_err(Error::SerdeError)?;
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        self.api(key).patch(&key.name, &params, &Patch::Json::<()>(operations)).await
    }

    /// Returns whether this node writes what all nodes of an Instance have in common: it is the first with an agent (rule 24).
    async fn is_writer(&self, published: &Instance) -> Result<bool, ClusterError> {
        for node in patch::nodes_before(published, &self.node) {
            if self.has_agent(&published.key, node).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether an agent runs on a node. The answer is kept for a while: nodes that reach a device by different addresses
    /// ask again and again.
    async fn has_agent(&self, key: &Key, node: &str) -> Result<bool, ClusterError> {
        let known = |agents: &BTreeMap<String, (Instant, bool)>| {
            agents.get(node).filter(|(at, _)| at.elapsed() < LEASE_READ).map(|(_, runs)| *runs)
        };
        if let Some(runs) = known(&self.agents.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(runs);
        }
        let runs = bounded(key, lease::is_held(&self.client, node)).await?;
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        agents.insert(node.to_owned(), (Instant::now(), runs));
        Ok(runs)
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Returns an API for all objects of a kind in the cluster.
fn all<K: kube::Resource<DynamicType = ()>>(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))
}

#[async_trait]
impl Cluster for Kubernetes {
    fn manifests(&self) -> watch::Receiver<Arc<Manifests>> {
        self.manifests.clone()
    }

    fn values(&self) -> watch::Receiver<Arc<Values>> {
        self.values.clone()
    }

    fn namespace(&self) -> &str {
        self.client.default_namespace()
    }

    fn usage(&self) -> watch::Receiver<u64> {
        self.instances.changes()
    }

    async fn list(&self, configuration: &Key) -> Result<Vec<Instance>, ClusterError> {
        let is_its = |instance: &Instance| instance.is_of(configuration);
        let mut known = self.instances.filter(is_its)?;
        let found = self.instances.all_found().into_iter().filter(is_its);
        let found: Vec<Instance> = found.filter(|found| known.iter().all(|known| known.key != found.key)).collect();
        known.extend(found);
        Ok(known)
    }

    async fn find(&self, configuration: &Key, identity: &Identity) -> Result<Option<Instance>, ClusterError> {
        self.instances.wait_for_listing().await?;
        let is_its = |instance: &Instance| {
            (&instance.key.namespace, &instance.configuration) == (&configuration.namespace, &configuration.name)
                && instance.identity.as_ref() == Some(identity)
        };
        Ok(self.instances.filter(is_its)?.into_iter().next())
    }

    async fn create(&self, instance: &Instance) -> Result<CreateOutcome, ClusterError> {
        let wanted = Instance { nodes: vec![self.node.clone()], uid: String::new(), ..instance.clone() };
        let mut object = instance_from_model(&wanted, None, Timestamp::now());
        (object.metadata.creation_timestamp, object.status) = (None, None);
        let label = (patch::node_label(&self.node), patch::node_label_value(&self.node).to_owned());
        object.metadata.labels = Some([label].into());
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let key = &instance.key;
        match timeout(REQUEST, self.api(key).create(&params, &object)).await.map_err(|_| late())? {
            Ok(created) => {
                self.instances.forget_found(key);
                Ok(CreateOutcome::New(self.instances.update(&created)))
            }
            Err(Error::Api(status)) if status.reason == "AlreadyExists" => match self.read(key).await? {
                Some(taken) => {
                    let model = instance_to_model(&taken);
                    let is_its =
                        model.configuration_uid.is_empty() || model.configuration_uid == instance.configuration_uid;
                    if is_its && (model.identity.is_none() || model.identity == instance.identity) {
                        self.instances.keep_found(taken);
                    }
                    Ok(CreateOutcome::Taken(model))
                }
                None => Err(ClusterError::Unavailable(format!("{key} is being deleted"))),
            },
            Err(error) => Err(failed(key, &error)),
        }
    }

    async fn publish(&self, instance: &Instance, copies: Copies) -> Result<Published, ClusterError> {
        let joined = self.instances.get(&instance.key).filter(|known| {
            let is_adopted = self.instances.is_adopted(&instance.key);
            known.uid == instance.uid && known.nodes.contains(&self.node) && is_adopted
        });
        let published = match joined {
            Some(published) => {
                self.instances.forget_found(&instance.key);
                published
            }
            None => self.join(instance).await?,
        };
        if published.online != instance.online {
            self.write_online(instance).await?;
        }
        let Some(value) = patch::agreement(&published, instance) else { return Ok(Published::Whole) };
        if copies == Copies::Later && patch::only_copies_differ(&published, instance) {
            return Ok(Published::CopiesLeft);
        }
        if !self.is_writer(&published).await? {
            return Ok(Published::LeftToAnotherNode);
        }
        let patched = bounded(&instance.key, self.json_patch(&instance.key, value)).await?;
        self.instances.update(&patched);
        Ok(Published::Whole)
    }

    async fn delete(&self, key: &Key, uid: &str, is_used: bool) -> Result<(), ClusterError> {
        for _ in 0..TRIES {
            let Some(left) = self.leave(key, uid).await? else { return Ok(()) };
            self.instances.update(&left);
            let is_used = match left.spec.shared {
                true => left.spec.device_usage.values().any(|usage| !usage.is_empty()),
                false => is_used, // what is published may lag (rule 77)
            };
            if !left.spec.nodes.is_empty() || is_used {
                return Ok(()); // others see it or use it (rule 25)
            }
            let preconditions =
                Preconditions { uid: Some(uid.to_owned()), resource_version: left.metadata.resource_version };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            match timeout(REQUEST, self.api(key).delete(&key.name, &params)).await.map_err(|_| late())? {
                Ok(_) => return Ok(()),
                Err(error) => match failed(key, &error) {
                    ClusterError::NotFound(_) => return Ok(()),
                    // Somebody changed it: the controller its status, or another node joined.
                    _ if matches!(&error, Error::Api(status) if status.code == 409) => {}
                    failed => return Err(failed),
                },
            }
        }
        Err(busy(key))
    }

    async fn get(&self, key: &Key) -> Result<Option<Instance>, ClusterError> {
        Ok(self.read(key).await?.map(|object| self.instances.update(&object)))
    }

    async fn patch_slots(&self, key: &Key, patch: &SlotPatch) -> Result<Option<Instance>, ClusterError> {
        let request = self.json_patch(key, patch::slots_patch(&key.name, patch));
        let current = match timeout(REQUEST, request).await.map_err(|_| late())? {
            Ok(object) => Some(self.instances.update(&object)),
            // A test failed: somebody was faster, or it is another Instance.
            Err(Error::Api(status)) if is_outdated(&status) => Cluster::get(self, key).await?,
            Err(Error::Api(status)) if status.code == 404 => None,
            Err(error) => return Err(failed(key, &error)),
        };
        Ok(current.filter(|instance| instance.uid == patch.uid))
    }

    async fn publish_broker_info(
        &self,
        key: &Key,
        uid: &str,
        infos: &BTreeMap<u32, Files>,
    ) -> Result<BTreeSet<u32>, ClusterError> {
        self.write_broker_info(key, uid, infos).await
    }

    async fn report(&self, report: &ConfigurationReport) -> Result<(), ClusterError> {
        self.report_problem(report);
        Ok(())
    }

    fn record_event(&self, event: ObjectEvent) {
        let _ = self.events.try_send(event); // it is in the log, too
    }

    /// The status was deleted with the object.
    async fn forget(&self, key: &Key) -> Result<(), ClusterError> {
        self.problems.forget(&Subject::Configuration(key.clone()));
        Ok(())
    }

    /// Only problems of this node are reported in a cluster. The controller says what they come to.
    async fn report_handler(&self, report: &HandlerReport) -> Result<(), ClusterError> {
        self.report_handler_problem(report);
        Ok(())
    }

    async fn forget_handler(&self, name: &str) -> Result<(), ClusterError> {
        self.problems.forget(&Subject::Handler(Key::new("", name)));
        Ok(())
    }
}

/// Runs a request of bounded time.
async fn bounded<T>(key: &Key, request: impl Future<Output = kube::Result<T>>) -> Result<T, ClusterError> {
    let answered = timeout(REQUEST, request).await.map_err(|_| late())?;
    answered.map_err(|error| failed(key, &error))
}

fn late() -> ClusterError {
    ClusterError::Unavailable(format!("the API server did not answer within {REQUEST:?}"))
}

/// The API server answers, and other objects need not wait.
fn busy(key: &Key) -> ClusterError {
    ClusterError::Refused(format!("{key} changes all the time"))
}

/// Returns whether another writer was faster than a patch that tests what it expects.
fn is_lost_race(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 409 || is_outdated(status))
}

/// Converts an error. A UID mismatch is a conflict and means that the object of that UID was deleted.
fn failed(key: &Key, error: &Error) -> ClusterError {
    match error {
        Error::Api(status) if status.code == 404 => ClusterError::NotFound(key.clone()),
        // In the words of Kubernetes 1.20 and of newer ones.
        Error::Api(status)
            if status.code == 409
                && ["uid mismatch", "UID in precondition"].iter().any(|text| status.message.contains(text)) =>
        {
            ClusterError::NotFound(key.clone())
        }
        Error::Api(status) if matches!(status.code, 429 | 503 | 504) => {
            ClusterError::Unavailable(format!("the API server can't do it now: {}", status.message))
        }
        Error::Api(status) => ClusterError::Refused(format!("the API server refuses: {}", status.message)),
        error => ClusterError::Unavailable(error.to_string()),
    }
}
