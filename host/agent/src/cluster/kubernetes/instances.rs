//! The Instances of this node as the API server last told them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use akri_api::instance_to_model;
use akri_model::instance::{Instance, Online};
use akri_model::names::Key;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

use super::feed::{Change, typed};
use crate::cluster::ClusterError;

/// How long a question waits for the first listing.
const FIRST_LISTING: Duration = Duration::from_secs(5);

/// The Instances, and who wants to know that they change. Clones are the same.
#[derive(Clone)]
pub(super) struct Instances {
    node: Arc<str>,
    known: Arc<Mutex<BTreeMap<Key, Seen>>>,
    listed: watch::Sender<bool>,
    changes: watch::Sender<u64>,
}

/// An Instance as of one of its versions.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    instance: Instance,
    /// `metadata.resourceVersion`, which grows with each change (KEP-5504); none if it is no number.
    version: Option<u64>,
}

impl Instances {
    pub(super) fn new(node: &str) -> Self {
        Self {
            node: node.into(),
            known: Arc::default(),
            listed: watch::Sender::new(false),
            changes: watch::Sender::new(0),
        }
    }

    /// Counts changes of who uses slots, and deletions.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes what the API server tells.
    pub(super) fn take(&self, change: Change) {
        let changed = match change {
            Change::All(objects) => {
                let now = objects.iter().filter_map(|object| self.read(object));
                let now: BTreeMap<Key, Seen> = now.map(|seen| (seen.instance.key.clone(), seen)).collect();
                let before = self.with(|known| std::mem::replace(known, now.clone()));
                self.listed.send_replace(true);
                before != now
            }
            Change::Put(object) => self.read(&object).is_some_and(|seen| self.put(seen)),
            Change::Gone(object) => {
                let gone = Key::new(object.namespace().unwrap_or_default(), object.name_any());
                self.with(|known| known.remove(&gone)).is_some()
            }
        };
        if changed {
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Takes what a request of this agent was answered with, for the watch may tell it later; and what it returns is the
    /// Instance.
    pub(super) fn learn(&self, object: &akri_api::Instance) -> Instance {
        let seen = self.understand(object);
        let instance = seen.instance.clone();
        if instance.nodes.iter().any(|node| **node == *self.node) {
            self.put(seen);
        } else {
            self.with(|known| known.remove(&instance.key)); // this node has left it
        }
        instance
    }

    /// Says whether others would want to know. What is older than what is known comes from a watch that lags behind.
    fn put(&self, seen: Seen) -> bool {
        self.with(|known| {
            let before = known.get(&seen.instance.key).filter(|before| before.instance.uid == seen.instance.uid);
            if before.is_some_and(|before| before.version > seen.version) {
                return false;
            }
            let changed = before.is_none_or(|before| before.instance.device_usage != seen.instance.device_usage);
            known.insert(seen.instance.key.clone(), seen);
            changed
        })
    }

    /// Those that a test holds for, once all have been told.
    pub(super) async fn filter(&self, test: impl Fn(&Instance) -> bool) -> Result<Vec<Instance>, ClusterError> {
        let mut listed = self.listed.subscribe();
        let waited = timeout(FIRST_LISTING, listed.wait_for(|listed| *listed)).await;
        if !matches!(waited, Ok(Ok(_))) {
            return Err(ClusterError::Unavailable("the API server has not listed the Instances yet".to_owned()));
        }
        Ok(self.with(|known| {
            known.values().map(|seen| &seen.instance).filter(|instance| test(instance)).cloned().collect()
        }))
    }

    /// One of them.
    pub(super) fn get(&self, key: &Key) -> Option<Instance> {
        self.with(|known| known.get(key).map(|seen| seen.instance.clone()))
    }

    fn with<T>(&self, step: impl FnOnce(&mut BTreeMap<Key, Seen>) -> T) -> T {
        step(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// An Instance, unless it is being deleted: that counts as gone (rule 26).
    fn read(&self, object: &DynamicObject) -> Option<Seen> {
        if object.metadata.deletion_timestamp.is_some() {
            return None;
        }
        match typed(object) {
            Ok(object) => Some(self.understand(&object)),
            Err(error) => {
                warn!(instance = object.name_any(), "not understood: {error}");
                None
            }
        }
    }

    /// An Instance as this node sees it: whether the device is online here is what this node said.
    fn understand(&self, object: &akri_api::Instance) -> Seen {
        let mut instance = instance_to_model(object);
        let trouble = object.status.as_ref().and_then(|status| status.nodes.get(&*self.node));
        instance.online = match trouble.map(|trouble| trouble.reason.as_str()) {
            None => Online::True,
            Some(super::status::HANDLER_GONE) => Online::Unknown,
            Some(_) => Online::False,
        };
        Seen { instance, version: object.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()) }
    }
}
