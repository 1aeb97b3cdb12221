//! A cluster with simulated faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use akri_cluster::local::Local;
use akri_cluster::{
    Cluster, ClusterError, ConfigurationReport, Copies, CreateOutcome, HandlerReport, Manifests, ObjectEvent, Published,
};
use akri_model::broker_info::Files;
use akri_model::instance::Instance;
use akri_model::names::{Identity, Key};
use akri_model::resolve::Values;
use akri_model::slots::SlotPatch;
use async_trait::async_trait;
use tokio::sync::{RwLock, watch};

/// A local cluster with a connection that can fail.
pub struct Line {
    /// The cluster behind it.
    pub to: Local,
    /// Set while requests are lost.
    pub cut: AtomicBool,
    /// Set while responses are lost.
    pub deaf: AtomicBool,
    /// Set while responses to creations are lost, and nothing can be looked up after one.
    pub unconfirmed: AtomicBool,
    lost_creation: AtomicBool,
    /// Delays responses to creations while it is write-locked.
    pub slow_creation: RwLock<()>,
    /// Delays claims while it is write-locked.
    pub slow: RwLock<()>,
    /// The error of publishing one object.
    pub lost: Mutex<Option<(Key, ClusterError)>>,
    /// Number of publish calls.
    pub published: AtomicUsize,
}

impl Line {
    /// Creates a working connection.
    pub fn to(local: Local) -> Self {
        Self {
            to: local,
            cut: AtomicBool::default(),
            deaf: AtomicBool::default(),
            unconfirmed: AtomicBool::default(),
            lost_creation: AtomicBool::default(),
            slow_creation: RwLock::default(),
            slow: RwLock::default(),
            lost: Mutex::default(),
            published: AtomicUsize::default(),
        }
    }

    fn through<T>(&self, answer: Result<T, ClusterError>) -> Result<T, ClusterError> {
        self.check().and(answer).and_then(|answer| match self.deaf.load(Ordering::SeqCst) {
            true => Err(ClusterError::Unavailable("no answer".into())),
            false => Ok(answer),
        })
    }

    fn check(&self) -> Result<(), ClusterError> {
        match self.cut.load(Ordering::SeqCst) {
            true => Err(ClusterError::Unavailable("no connection".into())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Cluster for Line {
    fn manifests(&self) -> watch::Receiver<Arc<Manifests>> {
        self.to.manifests()
    }

    fn values(&self) -> watch::Receiver<Arc<Values>> {
        self.to.values()
    }

    fn namespace(&self) -> &str {
        self.to.namespace()
    }

    fn usage(&self) -> watch::Receiver<u64> {
        self.to.usage()
    }

    async fn list(&self, configuration: &Key) -> Result<Vec<Instance>, ClusterError> {
        self.check()?;
        self.through(self.to.list(configuration).await)
    }

    async fn find(&self, configuration: &Key, identity: &Identity) -> Result<Option<Instance>, ClusterError> {
        self.check()?;
        if self.unconfirmed.load(Ordering::SeqCst) && self.lost_creation.load(Ordering::SeqCst) {
            return Err(ClusterError::Unavailable("no answer".into()));
        }
        self.through(self.to.find(configuration, identity).await)
    }

    async fn create(&self, instance: &Instance) -> Result<CreateOutcome, ClusterError> {
        self.check()?;
        let created = self.to.create(instance).await;
        let _turn = self.slow_creation.read().await;
        if self.unconfirmed.load(Ordering::SeqCst) {
            self.lost_creation.store(true, Ordering::SeqCst);
            return Err(ClusterError::Unavailable("no answer".into()));
        }
        self.through(created)
    }

    async fn publish(&self, instance: &Instance, copies: Copies) -> Result<Published, ClusterError> {
        self.published.fetch_add(1, Ordering::SeqCst);
        self.check()?;
        if let Some((_, error)) = self.lost.lock().unwrap().as_ref().filter(|(key, _)| *key == instance.key) {
            return Err(error.clone());
        }
        self.through(self.to.publish(instance, copies).await)
    }

    async fn delete(&self, key: &Key, uid: &str, is_used: bool) -> Result<(), ClusterError> {
        self.check()?;
        self.through(self.to.delete(key, uid, is_used).await)
    }

    async fn get(&self, key: &Key) -> Result<Option<Instance>, ClusterError> {
        self.check()?;
        self.through(self.to.get(key).await)
    }

    async fn patch_slots(&self, key: &Key, patch: &SlotPatch) -> Result<Option<Instance>, ClusterError> {
        self.check()?;
        let _turn = self.slow.read().await;
        self.through(self.to.patch_slots(key, patch).await)
    }

    async fn publish_broker_info(
        &self,
        key: &Key,
        uid: &str,
        infos: &BTreeMap<u32, Files>,
    ) -> Result<BTreeSet<u32>, ClusterError> {
        self.check()?;
        self.through(self.to.publish_broker_info(key, uid, infos).await)
    }

    fn record_event(&self, event: ObjectEvent) {
        self.to.record_event(event);
    }

    async fn report(&self, report: &ConfigurationReport) -> Result<(), ClusterError> {
        self.through(self.to.report(report).await)
    }

    async fn forget(&self, key: &Key) -> Result<(), ClusterError> {
        self.through(self.to.forget(key).await)
    }

    async fn report_handler(&self, report: &HandlerReport) -> Result<(), ClusterError> {
        self.through(self.to.report_handler(report).await)
    }

    async fn forget_handler(&self, name: &str) -> Result<(), ClusterError> {
        self.through(self.to.forget_handler(name).await)
    }
}
