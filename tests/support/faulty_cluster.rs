//! A cluster with simulated faults.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use akri_cluster::local::Local;
use akri_cluster::{Cluster, ClusterError, CreateOutcome, ObjectEvent, Report, Watches, WriteOutcome};
use akri_model::broker_info::Files;
use akri_model::instance::Instance;
use akri_model::names::{Identity, Key};
use akri_model::slots::SlotPatch;
use async_trait::async_trait;
use tokio::sync::RwLock;

/// A local cluster with a connection that can fail.
pub struct FaultyCluster {
    /// The cluster itself.
    pub local: Local,
    /// Set while requests are lost.
    pub requests_lost: AtomicBool,
    /// Set while responses are lost.
    pub responses_lost: AtomicBool,
    /// Set while responses to creations are lost, and nothing can be looked up after one.
    pub creations_unconfirmed: AtomicBool,
    lost_creation: AtomicBool,
    /// Number of lookups that failed after an unconfirmed creation: as often it was tried again.
    pub failed_lookups: AtomicUsize,
    /// Makes the next list panic.
    pub list_panics: AtomicBool,
    /// Delays responses to creations while it is write-locked.
    pub slow_creation: RwLock<()>,
    /// Delays claims while it is write-locked.
    pub slow_claims: RwLock<()>,
    /// Slots that another node changes right after so many lists.
    pub changed_after_lists: Mutex<Option<(usize, Key, SlotPatch)>>,
    /// The error of publishing one object.
    pub publish_error: Mutex<Option<(Key, ClusterError)>>,
    /// Number of publish calls.
    pub publish_calls: AtomicUsize,
}

impl FaultyCluster {
    /// Creates a working connection.
    pub fn to(local: Local) -> Self {
        Self {
            local,
            requests_lost: AtomicBool::default(),
            responses_lost: AtomicBool::default(),
            creations_unconfirmed: AtomicBool::default(),
            lost_creation: AtomicBool::default(),
            failed_lookups: AtomicUsize::default(),
            list_panics: AtomicBool::default(),
            slow_creation: RwLock::default(),
            slow_claims: RwLock::default(),
            changed_after_lists: Mutex::default(),
            publish_error: Mutex::default(),
            publish_calls: AtomicUsize::default(),
        }
    }

    /// Loses responses to creations from now on, as if none had been lost before.
    pub fn lose_creations(&self) {
        self.failed_lookups.store(0, Ordering::SeqCst);
        self.lost_creation.store(false, Ordering::SeqCst);
        self.creations_unconfirmed.store(true, Ordering::SeqCst);
    }

    fn through<T>(&self, answer: Result<T, ClusterError>) -> Result<T, ClusterError> {
        self.check().and(answer).and_then(|answer| match self.responses_lost.load(Ordering::SeqCst) {
            true => Err(ClusterError::Unavailable("no answer".into())),
            false => Ok(answer),
        })
    }

    fn check(&self) -> Result<(), ClusterError> {
        match self.requests_lost.load(Ordering::SeqCst) {
            true => Err(ClusterError::Unavailable("no connection".into())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Cluster for FaultyCluster {
    fn watches(&self) -> &Watches {
        self.local.watches()
    }

    fn namespace(&self) -> &str {
        self.local.namespace()
    }

    async fn list(&self, configuration: &Key) -> Result<Vec<Arc<Instance>>, ClusterError> {
        assert!(!self.list_panics.swap(false, Ordering::SeqCst), "as the story wants");
        self.check()?;
        let listed = self.local.list(configuration).await;
        let change = self.changed_after_lists.lock().unwrap().take_if(|(lists, ..)| {
            *lists -= 1;
            *lists == 0
        });
        if let Some((_, key, patch)) = change {
            self.local.patch_slots(&key, &patch).await?;
        }
        self.through(listed)
    }

    async fn find(&self, configuration: &Key, identity: &Identity) -> Result<Option<Instance>, ClusterError> {
        self.check()?;
        if self.creations_unconfirmed.load(Ordering::SeqCst) && self.lost_creation.load(Ordering::SeqCst) {
            self.failed_lookups.fetch_add(1, Ordering::SeqCst);
            return Err(ClusterError::Unavailable("no answer".into()));
        }
        self.through(self.local.find(configuration, identity).await)
    }

    async fn create(&self, instance: &Instance) -> Result<CreateOutcome, ClusterError> {
        self.check()?;
        let created = self.local.create(instance).await;
        let _permit = self.slow_creation.read().await;
        if self.creations_unconfirmed.load(Ordering::SeqCst) {
            self.lost_creation.store(true, Ordering::SeqCst);
            return Err(ClusterError::Unavailable("no answer".into()));
        }
        self.through(created)
    }

    async fn publish(&self, instance: &Instance, is_usage_due: bool) -> Result<WriteOutcome, ClusterError> {
        self.publish_calls.fetch_add(1, Ordering::SeqCst);
        self.check()?;
        if let Some((_, error)) = self.publish_error.lock().unwrap().as_ref().filter(|(key, _)| *key == instance.key) {
            return Err(error.clone());
        }
        self.through(self.local.publish(instance, is_usage_due).await)
    }

    async fn delete(&self, key: &Key, uid: &str, is_used: bool) -> Result<(), ClusterError> {
        self.check()?;
        self.through(self.local.delete(key, uid, is_used).await)
    }

    async fn get(&self, key: &Key) -> Result<Option<Instance>, ClusterError> {
        self.check()?;
        self.through(self.local.get(key).await)
    }

    async fn patch_slots(&self, key: &Key, patch: &SlotPatch) -> Result<Option<Instance>, ClusterError> {
        self.check()?;
        let _permit = self.slow_claims.read().await;
        self.through(self.local.patch_slots(key, patch).await)
    }

    async fn publish_broker_info(
        &self,
        key: &Key,
        uid: &str,
        infos: &BTreeMap<u32, Files>,
    ) -> Result<(), ClusterError> {
        self.check()?;
        self.through(self.local.publish_broker_info(key, uid, infos).await)
    }

    fn record_event(&self, event: ObjectEvent) {
        self.local.record_event(event);
    }

    async fn report(&self, report: &Report) -> Result<WriteOutcome, ClusterError> {
        self.through(self.local.report(report).await)
    }

    async fn forget(&self, object: &Key) -> Result<(), ClusterError> {
        self.through(self.local.forget(object).await)
    }
}
