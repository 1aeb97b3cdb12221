//! Local mode: manifests in directories instead of an API server, and files instead of objects.

mod manifest_backup;
mod manifests;
mod objects;
mod reports;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use akri_api::{instance_from_model, instance_to_model};
use akri_model::broker_info::Files;
use akri_model::instance::Instance;
use akri_model::names::{Identity, Key, slot_name};
use akri_model::slots::SlotPatch;
use async_trait::async_trait;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::{Cluster, ClusterError, ClusterResult, CreateOutcome, Report, Watches, WriteOutcome};
pub use manifest_backup::manifest_files;
pub use manifests::{MAX_FILE, Scan, read_directory};
use objects::{Objects, remove, update};
pub use objects::{read_configurations, read_handlers, read_instances};

/// The cluster of one node.
pub struct Local {
    watches: Watches,
    objects: Arc<Mutex<Objects>>,
    _watcher: JoinSet<()>,
}

impl Local {
    /// Watches manifests in `directories` and keeps objects below `state`.
    pub async fn open(directories: Vec<PathBuf>, state: &Path) -> io::Result<Self> {
        let objects = Arc::new(Mutex::new(Objects::open(state)?));
        let (watches, watcher) = manifests::watch(directories, state);
        let now = watches.manifests.borrow().clone();
        objects.lock().await.collect_garbage(&now)?;
        Ok(Self { watches, objects, _watcher: watcher })
    }

    /// Runs a step on the objects on a blocking thread, one at a time.
    async fn with<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Objects) -> io::Result<T> + Send + 'static,
    ) -> ClusterResult<T> {
        let mut objects = Arc::clone(&self.objects).lock_owned().await;
        let done = tokio::task::spawn_blocking(move || step(&mut objects)).await;
        done.map_err(io::Error::from).flatten().map_err(|error| ClusterError::Refused(error.to_string()))
    }

    /// Changes the Instance of that UID, and returns it as it is then; `None` if it does not exist.
    async fn change(
        &self,
        key: &Key,
        uid: &str,
        change: impl FnOnce(&akri_api::Instance) -> Option<akri_api::Instance> + Send + 'static,
    ) -> ClusterResult<Option<Instance>> {
        let (key, uid) = (key.clone(), uid.to_owned());
        let changed = self.with(move |objects| {
            let is_it = |object: &&akri_api::Instance| object.metadata.uid.as_ref() == Some(&uid);
            let Some(before) = objects.instance(&key).filter(is_it) else { return Ok(None) };
            if let Some(after) = change(before).filter(|after| after != before) {
                objects.put_instance(after)?;
            }
            Ok(objects.instance(&key).map(instance_to_model))
        });
        changed.await
    }
}

#[async_trait]
impl Cluster for Local {
    fn watches(&self) -> &Watches {
        &self.watches
    }

    fn namespace(&self) -> &str {
        "default"
    }

    async fn list(&self, configuration: &Key) -> ClusterResult<Vec<Arc<Instance>>> {
        let objects = self.objects.lock().await;
        let instances = objects.instances().filter(|instance| {
            let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
            (namespace, &instance.spec.configuration_name) == (&*configuration.namespace, &configuration.name)
        });
        Ok(instances.map(|instance| Arc::new(instance_to_model(instance))).collect())
    }

    /// Searches all Instances, including those under names that the current rules would not give.
    async fn find(&self, configuration: &Key, identity: &Identity) -> ClusterResult<Option<Instance>> {
        let objects = self.objects.lock().await;
        let mut found = objects.of_device(identity.as_str()).map(instance_to_model);
        Ok(found.find(|instance| instance.is_of(configuration)))
    }

    async fn create(&self, instance: &Instance) -> ClusterResult<CreateOutcome> {
        let mut instance = instance.clone();
        self.with(move |objects| {
            if let Some(taken) = objects.instance(&instance.key) {
                return Ok(CreateOutcome::Taken(instance_to_model(taken)));
            }
            if instance.uid.is_empty() {
                instance.uid = uuid::Uuid::new_v4().to_string();
            }
            objects.put_instance(instance_from_model(&instance, None, Timestamp::now()))?;
            Ok(CreateOutcome::New(objects.instance(&instance.key).map_or(instance, instance_to_model)))
        })
        .await
    }

    async fn publish(&self, instance: &Instance, _is_usage_due: bool) -> ClusterResult<WriteOutcome> {
        let mut wanted = instance.clone();
        let published = self.change(&instance.key, &instance.uid, move |before| {
            if wanted.shared {
                wanted.device_usage = kept_usage(&before.spec.device_usage, &wanted.device_usage);
            }
            Some(instance_from_model(&wanted, Some(before), Timestamp::now()))
        });
        published.await?.map(|_| WriteOutcome::Complete).ok_or_else(|| ClusterError::NotFound(instance.key.clone()))
    }

    async fn delete(&self, key: &Key, uid: &str, _is_used: bool) -> ClusterResult<()> {
        let (key, uid) = (key.clone(), uid.to_owned());
        let deleted = self.with(move |objects| match objects.instance(&key) {
            Some(object) if object.metadata.uid.as_deref() == Some(&uid) => objects.remove_instance(&key),
            _ => Ok(()),
        });
        deleted.await?;
        self.watches.usage.send_replace(());
        Ok(())
    }

    async fn get(&self, key: &Key) -> ClusterResult<Option<Instance>> {
        Ok(self.objects.lock().await.instance(key).map(instance_to_model))
    }

    async fn patch_slots(&self, key: &Key, patch: &SlotPatch) -> ClusterResult<Option<Instance>> {
        let owned = patch.clone();
        let patched = self.change(key, &patch.uid, move |object| patched(object, &owned)).await?;
        self.watches.usage.send_replace(());
        Ok(patched)
    }

    async fn publish_broker_info(&self, key: &Key, uid: &str, infos: &BTreeMap<u32, Files>) -> ClusterResult<()> {
        let (name, infos) = (key.name.clone(), infos.clone());
        let published = self.change(key, uid, move |object| Some(with_broker_info(object.clone(), &name, infos)));
        published.await?.map(drop).ok_or_else(|| ClusterError::NotFound(key.clone()))
    }

    async fn report(&self, report: &Report) -> ClusterResult<WriteOutcome> {
        let (report, now) = (report.clone(), Timestamp::now());
        let written = self.with(move |objects| {
            let file = objects.report_file(&report.object());
            match &report {
                Report::Configuration(report) => update(&file, |before| reports::of_configuration(report, before, now)),
                Report::Handler(report) => update(&file, |before| reports::of_handler(report, before, now)),
            }
        });
        written.await.map(|()| WriteOutcome::Complete)
    }

    async fn forget(&self, object: &Key) -> ClusterResult<()> {
        let object = object.clone();
        self.with(move |objects| remove(&objects.report_file(&object))).await
    }
}

/// Returns the object with these files of slots; nothing stays of slots that are gone.
fn with_broker_info(mut object: akri_api::Instance, name: &str, infos: BTreeMap<u32, Files>) -> akri_api::Instance {
    let shown = &mut object.status.get_or_insert_default().broker_info;
    shown.extend(infos.into_iter().map(|(slot, files)| (slot_name(name, slot), files)));
    shown.retain(|slot, files| !files.is_empty() && object.spec.device_usage.contains_key(slot));
    object
}

/// The object with its slots changed, if it is as the patch expects.
fn patched(object: &akri_api::Instance, patch: &SlotPatch) -> Option<akri_api::Instance> {
    let mut after = object.clone();
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let version = patch.version.as_ref().map(|version| &version.0);
    let is_same = object.metadata.uid.as_ref() == Some(&patch.uid)
        && version.is_none_or(|version| object.metadata.resource_version.as_ref() == Some(version));
    for (slot, (from, to)) in &patch.changes {
        let before = after.spec.device_usage.insert(slot_name(name, *slot), to.to_string());
        if before != from.as_ref().map(ToString::to_string) {
            return None;
        }
    }
    is_same.then_some(after)
}

/// The usage of a shared Instance whose capacity may change: who uses a slot is left alone, free slots come and go.
fn kept_usage(before: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let in_use = before.iter().filter(|(_, usage)| !usage.is_empty());
    let free = wanted.keys().map(|slot| (slot.clone(), String::new()));
    free.chain(in_use.map(|(slot, usage)| (slot.clone(), usage.clone()))).collect()
}
