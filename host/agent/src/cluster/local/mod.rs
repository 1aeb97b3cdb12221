//! Local mode: a directory of manifests instead of an API server, files instead of objects. Everything else is real.

mod manifests;
mod objects;
mod remembered;
mod reports;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use akri_api::{IDENTITY_ANNOTATION, instance_from_model, instance_to_model};
use akri_model::instance::Instance;
use akri_model::names::{Identity, Key};
use akri_model::resolve::Values;
use async_trait::async_trait;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use super::{Cluster, ClusterError, Created, HandlerReport, Manifests, Occurrence, Report, Swapped};
use manifests::Watched;
pub use manifests::{Scan, read_directory};
use objects::Objects;
pub use objects::{StoreError, read_configurations, read_handlers, read_instances};

/// The cluster of one node.
pub struct Local {
    manifests: watch::Receiver<Arc<Manifests>>,
    values: watch::Receiver<Arc<Values>>,
    objects: Arc<Mutex<Objects>>,
    usage: watch::Sender<u64>,
    watcher: JoinHandle<()>,
}

impl Local {
    /// Watches manifests in `directories` and keeps objects below `state`.
    pub async fn open(directories: Vec<PathBuf>, state: &Path) -> Result<Self, StoreError> {
        let objects = Arc::new(Mutex::new(Objects::open(state)?));
        let Watched { manifests, values, task } = manifests::watch(directories, state).await;
        let now = manifests.borrow().clone();
        objects.lock().await.collect_garbage(&now)?;
        Ok(Self { manifests, values, objects, usage: watch::Sender::new(0), watcher: task })
    }

    /// Runs a step on the objects off the async threads, one at a time.
    async fn with<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Objects) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ClusterError> {
        let mut objects = Arc::clone(&self.objects).lock_owned().await;
        let done = tokio::task::spawn_blocking(move || step(&mut objects)).await;
        done.map_err(|error| ClusterError::Refused(error.to_string()))?
            .map_err(|error| ClusterError::Refused(error.to_string()))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

#[async_trait]
impl Cluster for Local {
    fn manifests(&self) -> watch::Receiver<Arc<Manifests>> {
        self.manifests.clone()
    }

    fn values(&self) -> watch::Receiver<Arc<Values>> {
        self.values.clone()
    }

    fn usage(&self) -> watch::Receiver<u64> {
        self.usage.subscribe()
    }

    async fn list(&self, configuration: &Key) -> Result<Vec<Instance>, ClusterError> {
        let objects = self.objects.lock().await;
        let is_its = |instance: &Instance| {
            (&instance.key.namespace, &instance.configuration) == (&configuration.namespace, &configuration.name)
        };
        Ok(objects.instances().map(instance_to_model).filter(is_its).collect())
    }

    /// Every Instance is at hand, so that one under a name that today's rules would not give is found, too.
    async fn find(
        &self,
        configuration: &Key,
        identity: &Identity,
        _names: &[String],
    ) -> Result<Option<Instance>, ClusterError> {
        let objects = self.objects.lock().await;
        let stands_for = |object: &&akri_api::Instance| {
            let annotations = object.metadata.annotations.as_ref();
            object.metadata.namespace.as_ref() == Some(&configuration.namespace)
                && object.spec.configuration_name == configuration.name
                && annotations.and_then(|a| a.get(IDENTITY_ANNOTATION)).is_some_and(|id| id == identity.as_str())
        };
        Ok(objects.instances().find(stands_for).map(instance_to_model))
    }

    async fn create(&self, instance: &Instance) -> Result<Created, ClusterError> {
        let mut instance = instance.clone();
        self.with(move |objects| {
            if let Some(taken) = objects.instance(&instance.key) {
                return Ok(Created::Taken(instance_to_model(taken)));
            }
            if instance.uid.is_empty() {
                instance.uid = uuid::Uuid::new_v4().to_string();
            }
            objects.put_instance(instance_from_model(&instance, None, objects::now()))?;
            Ok(Created::New(instance))
        })
        .await
    }

    async fn publish(&self, instance: &Instance) -> Result<(), ClusterError> {
        let mut instance = instance.clone();
        let key = instance.key.clone();
        let found = self.with(move |objects| {
            let before = objects.instance(&instance.key);
            let Some(before) = before.filter(|before| before.metadata.uid.as_deref() == Some(&instance.uid)) else {
                return Ok(false);
            };
            if instance.shared {
                instance.device_usage = kept_usage(&before.spec.device_usage, &instance.device_usage);
            }
            let after = instance_from_model(&instance, Some(before), objects::now());
            if after != *before {
                objects.put_instance(after)?;
            }
            Ok(true)
        });
        if found.await? { Ok(()) } else { Err(ClusterError::NotFound(key)) }
    }

    async fn delete(&self, key: &Key, uid: &str) -> Result<(), ClusterError> {
        let (key, uid) = (key.clone(), uid.to_owned());
        let deleted = self.with(move |objects| match objects.instance(&key) {
            Some(object) if object.metadata.uid.as_deref() == Some(&uid) => objects.remove_instance(&key),
            _ => Ok(()),
        });
        deleted.await?;
        self.usage.send_modify(|count| *count = count.wrapping_add(1));
        Ok(())
    }

    async fn swap_usage(&self, key: &Key, slot: &str, from: &str, to: &str) -> Result<Swapped, ClusterError> {
        let (owned, slot, from, to) = (key.clone(), slot.to_owned(), from.to_owned(), to.to_owned());
        let swapped = self.with(move |objects| {
            let Some(mut object) = objects.instance(&owned).cloned() else { return Ok(None) };
            let usage = object.spec.device_usage.entry(slot).or_default();
            if *usage != from {
                return Ok(Some(Swapped::Differs(usage.clone())));
            }
            *usage = to;
            objects.put_instance(object)?;
            Ok(Some(Swapped::Done))
        });
        let swapped = swapped.await?.ok_or_else(|| ClusterError::NotFound(key.clone()));
        self.usage.send_modify(|count| *count = count.wrapping_add(1));
        swapped
    }

    async fn report(&self, report: &Report) -> Result<(), ClusterError> {
        let report = report.clone();
        self.with(move |objects| objects.put_report(&report)).await
    }

    async fn forget(&self, key: &Key) -> Result<(), ClusterError> {
        let key = key.clone();
        self.with(move |objects| objects.remove_report(&key)).await
    }

    /// The log is the place.
    fn tell(&self, _occurrence: Occurrence) {}

    async fn report_handler(&self, report: &HandlerReport) -> Result<(), ClusterError> {
        let report = report.clone();
        self.with(move |objects| objects.put_handler_report(&report)).await
    }

    async fn forget_handler(&self, name: &str) -> Result<(), ClusterError> {
        let name = name.to_owned();
        self.with(move |objects| objects.remove_handler_report(&name)).await
    }
}

/// The usage of a shared Instance whose capacity may change: who uses a slot is left alone, free slots come and go.
fn kept_usage(before: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let in_use = before.iter().filter(|(_, usage)| !usage.is_empty());
    let free = wanted.keys().map(|slot| (slot.clone(), String::new()));
    free.chain(in_use.map(|(slot, usage)| (slot.clone(), usage.clone()))).collect()
}
