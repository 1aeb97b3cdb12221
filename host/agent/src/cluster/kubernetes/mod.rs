//! Akri's objects in the API server of a cluster. What this node needs of them is kept up to date by watches; every write says
//! what it expects to find (rules 10, 22 to 25).

mod events;
mod feed;
mod finalizers;
mod instances;
mod manifests;
mod patch;
mod status;
mod values;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use akri_api::{Configuration, DiscoveryHandler, instance_from_model, instance_to_model};
use akri_model::instance::Instance;
use akri_model::names::{Identity, Key};
use akri_model::resolve::Values;
use async_trait::async_trait;
use futures::future::try_join_all;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ApiResource;
use kube::runtime::watcher;
use kube::{Client, Error};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Cluster, ClusterError, Created, HandlerReport, Manifests, Occurrence, Report, Swapped};
use events::Events;
use feed::follow;
use finalizers::Finalizers;
use instances::Instances;
use manifests::Assembler;
use status::Told;

/// How long the API server may take for one request.
const REQUEST: Duration = Duration::from_secs(5);

/// The field manager of what no node owns alone.
const MANAGER: &str = "akri-agent";

/// A cluster with an API server.
pub struct Kubernetes {
    client: Client,
    node: String,
    manifests: watch::Receiver<Arc<Manifests>>,
    values: watch::Receiver<Arc<Values>>,
    instances: Instances,
    events: Events,
    /// What the status of each Configuration was last made to say.
    troubles: Mutex<BTreeMap<Key, Told>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Kubernetes {
    /// Starts to watch what concerns this node. It does not wait for the API server.
    pub fn start(client: Client, node: &str) -> Self {
        let assembler = Assembler::new();
        let instances = Instances::new(node);
        let (values, values_receiver) = watch::channel(Arc::default());
        let events = events::start(client.clone(), node);
        let everything = watcher::Config::default();
        let of_this_node = watcher::Config::default().labels(&patch::node_label(node));
        let (configurations, handlers, of_instances) = (assembler.clone(), assembler.clone(), instances.clone());
        let left_on = |resource| Finalizers::new(&client, node, resource);
        let on_configurations = left_on(ApiResource::erase::<Configuration>(&()));
        let on_instances = left_on(ApiResource::erase::<akri_api::Instance>(&()));
        let tasks = vec![
            tokio::spawn(follow(all::<Configuration>(&client), everything.clone(), "Configurations", move |change| {
                on_configurations.look(&change);
                configurations.configurations(change);
            })),
            tokio::spawn(follow(all::<DiscoveryHandler>(&client), everything, "DiscoveryHandlers", move |change| {
                handlers.handlers(change);
            })),
            tokio::spawn(follow(all::<akri_api::Instance>(&client), of_this_node, "Instances", move |change| {
                on_instances.look(&change);
                of_instances.take(change);
            })),
            tokio::spawn(values::watch_referred(client.clone(), assembler.manifests(), values)),
        ];
        Self {
            client,
            node: node.to_owned(),
            manifests: assembler.manifests(),
            values: values_receiver,
            instances,
            events,
            troubles: Mutex::default(),
            tasks,
        }
    }

    fn api(&self, key: &Key) -> Api<akri_api::Instance> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    async fn get(&self, key: &Key) -> Result<Option<akri_api::Instance>, ClusterError> {
        let found = bounded(key, self.api(key).get_opt(&key.name)).await?;
        Ok(found.filter(|object| object.metadata.deletion_timestamp.is_none()))
    }

    /// Applies what this node alone says of an Instance.
    async fn apply(&self, key: &Key, value: Value) -> Result<akri_api::Instance, ClusterError> {
        let params = PatchParams::apply(&patch::manager(&self.node));
        bounded(key, self.api(key).patch(&key.name, &params, &Patch::Apply(value))).await
    }

    async fn json_patch(&self, key: &Key, value: Value) -> Result<akri_api::Instance, kube::Error> {
        let operations = serde_json::from_value(value).map_err(Error::SerdeError)?;
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        self.api(key).patch(&key.name, &params, &Patch::Json::<()>(operations)).await
    }

    /// This node sees the device.
    async fn join(&self, instance: &Instance) -> Result<Instance, ClusterError> {
        let joined = self.apply(&instance.key, patch::joining(instance, &self.node)).await?;
        Ok(self.instances.learn(&joined))
    }

    async fn published(&self, instance: &Instance) -> Result<Instance, ClusterError> {
        let known = match self.instances.get(&instance.key) {
            Some(known) => Some(known),
            None => self.get(&instance.key).await?.map(|object| self.instances.learn(&object)),
        };
        known.filter(|known| known.uid == instance.uid).ok_or_else(|| ClusterError::NotFound(instance.key.clone()))
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// All objects of a kind in the cluster.
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

    fn usage(&self) -> watch::Receiver<u64> {
        self.instances.changes()
    }

    async fn list(&self, configuration: &Key) -> Result<Vec<Instance>, ClusterError> {
        let is_its = |instance: &Instance| {
            (&instance.key.namespace, &instance.configuration) == (&configuration.namespace, &configuration.name)
        };
        self.instances.filter(is_its).await
    }

    async fn find(
        &self,
        configuration: &Key,
        identity: &Identity,
        names: &[String],
    ) -> Result<Option<Instance>, ClusterError> {
        let stands_for = |instance: &Instance| instance.identity.as_ref() == Some(identity);
        let mine = self.list(configuration).await?;
        if let Some(known) = mine.into_iter().find(stands_for) {
            return Ok(Some(known));
        }
        // Another node may have made it, and only that node's agent watches it. Nearly always it has the shortest name.
        let keys: Vec<Key> = names.iter().map(|name| Key::new(&*configuration.namespace, name)).collect();
        let (shortest, longer) = keys.split_at(keys.len().min(1));
        for keys in [shortest, longer] {
            let found = try_join_all(keys.iter().map(|key| self.get(key))).await?;
            let mut found = found.into_iter().flatten().map(|object| self.instances.learn(&object));
            if let Some(known) = found.find(stands_for) {
                return Ok(Some(known));
            }
        }
        Ok(None)
    }

    async fn create(&self, instance: &Instance) -> Result<Created, ClusterError> {
        let wanted = Instance { nodes: Vec::new(), uid: String::new(), ..instance.clone() };
        let mut object = instance_from_model(&wanted, None, Timestamp::now());
        (object.metadata.creation_timestamp, object.status) = (None, None);
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let key = &instance.key;
        match timeout(REQUEST, self.api(key).create(&params, &object)).await.map_err(|_| late())? {
            Ok(created) => {
                let uid = created.metadata.uid.unwrap_or_default();
                self.join(&Instance { uid, ..wanted }).await.map(Created::New)
            }
            Err(Error::Api(status)) if status.reason == "AlreadyExists" => match self.get(key).await? {
                Some(taken) => Ok(Created::Taken(instance_to_model(&taken))),
                None => Err(ClusterError::Unavailable(format!("{key} is being deleted"))),
            },
            Err(error) => Err(failed(key, &error)),
        }
    }

    async fn publish(&self, instance: &Instance) -> Result<(), ClusterError> {
        let mut published = self.published(instance).await?;
        if !published.nodes.contains(&self.node) {
            published = self.join(instance).await?;
        }
        if published.online != instance.online {
            self.tell_online(instance).await?;
        }
        if let Some(value) = patch::agreement(&published, instance, &self.node) {
            let patched = bounded(&instance.key, self.json_patch(&instance.key, value)).await?;
            self.instances.learn(&patched);
        }
        Ok(())
    }

    async fn delete(&self, key: &Key, uid: &str) -> Result<(), ClusterError> {
        match self.apply(key, patch::leaving(&key.name, uid)).await {
            Ok(_) => {}
            Err(ClusterError::NotFound(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
        let Some(left) = self.get(key).await?.filter(|left| left.metadata.uid.as_deref() == Some(uid)) else {
            return Ok(());
        };
        if !left.spec.nodes.is_empty() || left.spec.device_usage.values().any(|usage| !usage.is_empty()) {
            return Ok(()); // others see it or use it (rule 25)
        }
        let preconditions =
            Preconditions { uid: Some(uid.to_owned()), resource_version: left.metadata.resource_version };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match bounded(key, self.api(key).delete(&key.name, &params)).await {
            Ok(_) | Err(ClusterError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn swap_usage(&self, key: &Key, slot: &str, from: &str, to: &str) -> Result<Swapped, ClusterError> {
        let patched = timeout(REQUEST, self.json_patch(key, patch::usage(slot, from, to))).await.map_err(|_| late())?;
        match patched {
            Ok(object) => {
                self.instances.learn(&object);
                Ok(Swapped::Done)
            }
            Err(Error::Api(status)) if status.code == 422 => self.swap_again(key, slot, from, to).await,
            Err(error) => Err(failed(key, &error)),
        }
    }

    async fn report(&self, report: &Report) -> Result<(), ClusterError> {
        let told = (report.uid.clone(), status::trouble(report));
        if self.troubles().get(&report.key) == Some(&told) {
            return Ok(());
        }
        match self.tell_trouble(&report.key, &told).await {
            Ok(()) => drop(self.troubles().insert(report.key.clone(), told)),
            Err(ClusterError::NotFound(_)) => {} // the status of what is gone is of no use to anyone
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn tell(&self, occurrence: Occurrence) {
        let _ = self.events.try_send(occurrence); // it is in the log, too
    }

    /// Its status went with it.
    async fn forget(&self, key: &Key) -> Result<(), ClusterError> {
        self.troubles().remove(key);
        Ok(())
    }

    /// In a cluster every node would have something else to say of one object: what fails is in the status of the
    /// Configurations that use the handler.
    async fn report_handler(&self, _report: &HandlerReport) -> Result<(), ClusterError> {
        Ok(())
    }

    async fn forget_handler(&self, _name: &str) -> Result<(), ClusterError> {
        Ok(())
    }
}

impl Kubernetes {
    /// The slot was not used as expected: what it is used for, or another try if its key does not exist.
    async fn swap_again(&self, key: &Key, slot: &str, from: &str, to: &str) -> Result<Swapped, ClusterError> {
        let object = self.get(key).await?.ok_or_else(|| ClusterError::NotFound(key.clone()))?;
        self.instances.learn(&object);
        match object.spec.device_usage.get(slot) {
            Some(usage) if usage == to => Ok(Swapped::Done),
            Some(usage) => Ok(Swapped::Differs(usage.clone())),
            None if from.is_empty() => {
                let version = object.metadata.resource_version.unwrap_or_default();
                let patched = bounded(key, self.json_patch(key, patch::missing_usage(slot, &version, to))).await?;
                self.instances.learn(&patched);
                Ok(Swapped::Done)
            }
            None => Ok(Swapped::Differs(String::new())),
        }
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

/// A UID that does not match is a conflict: the object of that UID is gone.
fn failed(key: &Key, error: &Error) -> ClusterError {
    match error {
        Error::Api(status) if status.code == 404 => ClusterError::NotFound(key.clone()),
        Error::Api(status) if status.code == 409 && status.message.contains("uid mismatch") => {
            ClusterError::NotFound(key.clone())
        }
        Error::Api(status) if matches!(status.code, 429 | 503 | 504) => {
            ClusterError::Unavailable(format!("the API server can't do it now: {}", status.message))
        }
        Error::Api(status) => ClusterError::Refused(format!("the API server refuses: {}", status.message)),
        error => ClusterError::Unavailable(error.to_string()),
    }
}

fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text.get(..end).unwrap_or_default()
}
