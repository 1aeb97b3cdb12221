//! Joins and leaves the nodes of Instances, while other nodes do so at the same time.

use std::time::Duration;

use akri_api::instance_to_model;
use akri_kube::requests::{MAX_ATTEMPTS, RequestError};
use akri_model::events::DeviceEvent;
use akri_model::instance::{Instance, Version};
use akri_model::instance_labels::OTHER_NAME_LABEL;
use akri_model::names::Key;
use akri_model::retry::jitter;
use kube::api::ListParams;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::instances::Found;
use super::{Kubernetes, instance_of, patch};
use crate::{ClusterError, ClusterResult, ObjectEvent};

/// Longest pause between two tries, in milliseconds: many nodes may see a new device at once.
const MAX_PAUSE: u64 = 200;

/// The shared Instances of a Configuration with other names than usual, and when they were listed, or that failed.
pub(super) type OtherNames = Option<(std::time::Instant, ClusterResult<Vec<Instance>>)>;

impl Kubernetes {
    /// Lists the shared Instances of a Configuration that have other names than usual.
    pub(super) async fn list_named_otherwise(&self, configuration: &Key, label: &str) -> ClusterResult<Vec<Instance>> {
        let api = self.requests.api::<akri_api::Instance>(&configuration.namespace);
        // Of two nodes that make an Instance each the later one has to see the other's. Any list would show that, but the API server's
        // cache has one for far less than etcd.
        let newest = self.created.lock().0.clone();
        let resource_version = Some(newest).filter(|version| !version.is_empty());
        let labels = format!("{OTHER_NAME_LABEL},{label}");
        let params = ListParams { resource_version, ..ListParams::default().labels(&labels) };
        let objects = self.requests.bounded(configuration, api.list(&params)).await;
        if objects.is_err() {
            *self.created.lock() = Version::default(); // a store that was restored may not reach that version for long
        }
        let objects = objects?.items.into_iter().filter(|object| object.metadata.deletion_timestamp.is_none());
        Ok(objects.filter_map(|object| Some(instance_to_model(&instance_of(&object).ok()?))).collect())
    }

    /// Announces that this node wants to join an Instance that another node made. Returns the pause until it is to look whether the
    /// controller has joined it; `None` if it has to join by itself.
    pub(super) fn wait_for_join(&self, instance: &Instance) -> Option<Duration> {
        let is_joinable = |found: &Found| {
            let found = &found.instance;
            let is_it = found.uid == instance.uid && found.identity.is_some() && !found.nodes.is_empty();
            is_it && !found.nodes.contains(&self.node)
        };
        self.instances.found(&instance.key, is_joinable).filter(|is_joinable| *is_joinable && instance.shared)?;
        self.sharing.join(&self.node, &instance.key, &instance.uid, Instant::now())
    }

    /// Adds this node to the nodes of an Instance, and returns the Instance as it is then.
    pub(super) async fn join(&self, instance: &Instance) -> ClusterResult<Instance> {
        let found = self.instances.found(&instance.key, |found| found.object.clone());
        let joined = self.try_to_join(instance, found).await;
        self.sharing.end_join(&instance.key);
        match joined {
            Err(ClusterError::NotFound(_)) => self.instances.forget_deleted(&instance.key, &instance.uid),
            Ok(_) => self.instances.forget_found(&instance.key),
            Err(_) => {} // it is there, and is tried again
        }
        joined
    }

    async fn try_to_join(&self, instance: &Instance, mut found: Option<akri_api::Instance>) -> ClusterResult<Instance> {
        let key = &instance.key;
        let is_it = |current: &akri_api::Instance| current.metadata.uid.as_ref() == Some(&instance.uid);
        let joining = |current: &akri_api::Instance| patch::joining(current, instance.identity.as_ref(), &self.node);
        for _ in 0..MAX_ATTEMPTS {
            let patch = match found.take().filter(is_it).as_ref().and_then(joining) {
                Some(patch) => patch,
                // Only an object that was read now can show that this node has joined it.
                None => {
                    let current = self.read(key).await?.filter(is_it);
                    let current = current.ok_or_else(|| ClusterError::NotFound(key.clone()))?;
                    let Some(patch) = joining(&current) else { return Ok(self.instances.update(&current)) };
                    patch
                }
            };
            if let Some(joined) = self.tested_patch(key, patch).await? {
                return Ok(self.instances.update(&joined));
            }
        }
        Err(RequestError::Conflict(key.clone()).into())
    }

    /// Removes this node from an Instance, and returns what is left of it: nothing if it does not exist.
    pub(super) async fn leave(&self, key: &Key, uid: &str) -> ClusterResult<Option<akri_api::Instance>> {
        for _ in 0..MAX_ATTEMPTS {
            let Some(current) = self.read(key).await?.filter(|current| current.metadata.uid.as_deref() == Some(uid))
            else {
                return Ok(None);
            };
            let Some(patch) = patch::leaving(&current, &self.node) else { return Ok(Some(current)) };
            if let Some(left) = self.tested_patch(key, patch).await? {
                return Ok(Some(left));
            }
        }
        Err(RequestError::Conflict(key.clone()).into())
    }

    /// Records that an Instance was deleted since its device has gone, and not its Configuration.
    pub(super) fn record_removal(&self, key: &Key, uid: &str, left: &akri_api::Instance) {
        let configuration = Key::new(&*key.namespace, &*left.spec.configuration_name);
        if self.watches.manifests.borrow().configurations.contains_key(&configuration) {
            self.events.record(ObjectEvent::of_device(key.clone(), uid.to_owned(), DeviceEvent::removed(&self.node)));
        }
    }

    /// Patches an Instance; `None` if another writer was faster, after a moment in which it may finish.
    async fn tested_patch(&self, key: &Key, patch: Value) -> ClusterResult<Option<akri_api::Instance>> {
        let patched = self.try_patch(key, patch).await?;
        if patched.is_none() {
            sleep(Duration::from_millis(jitter() % MAX_PAUSE)).await;
        }
        Ok(patched)
    }
}
