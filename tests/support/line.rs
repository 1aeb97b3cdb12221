//! A cluster that can't be reached, or only halfway.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use akri_agent::cluster::local::Local;
use akri_agent::cluster::{Cluster, ClusterError, Created, HandlerReport, Manifests, Occurrence, Report, Swapped};
use akri_model::instance::Instance;
use akri_model::names::{Identity, Key};
use akri_model::resolve::Values;
use async_trait::async_trait;
use tokio::sync::{RwLock, watch};

/// The local cluster behind a line that can be cut.
pub struct Line {
    /// What is at its other end.
    pub to: Local,
    /// Nothing gets through.
    pub cut: AtomicBool,
    /// Requests get through and answers do not.
    pub deaf: AtomicBool,
    /// Claims wait for as long as this is written to.
    pub slow: RwLock<()>,
    /// What publishing one object fails with.
    pub lost: Mutex<Option<(Key, ClusterError)>>,
    /// How often something was to be published.
    pub published: AtomicUsize,
}

impl Line {
    /// A line that is not cut.
    pub fn to(local: Local) -> Self {
        Self {
            to: local,
            cut: AtomicBool::default(),
            deaf: AtomicBool::default(),
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

    fn usage(&self) -> watch::Receiver<u64> {
        self.to.usage()
    }

    async fn list(&self, configuration: &Key) -> Result<Vec<Instance>, ClusterError> {
        self.check()?;
        self.through(self.to.list(configuration).await)
    }

    async fn find(
        &self,
        configuration: &Key,
        identity: &Identity,
        names: &[String],
    ) -> Result<Option<Instance>, ClusterError> {
        self.check()?;
        self.through(self.to.find(configuration, identity, names).await)
    }

    async fn create(&self, instance: &Instance) -> Result<Created, ClusterError> {
        self.check()?;
        self.through(self.to.create(instance).await)
    }

    async fn publish(&self, instance: &Instance) -> Result<(), ClusterError> {
        self.published.fetch_add(1, Ordering::SeqCst);
        self.check()?;
        if let Some((_, error)) = self.lost.lock().unwrap().as_ref().filter(|(key, _)| *key == instance.key) {
            return Err(error.clone());
        }
        self.through(self.to.publish(instance).await)
    }

    async fn delete(&self, key: &Key, uid: &str) -> Result<(), ClusterError> {
        self.check()?;
        self.through(self.to.delete(key, uid).await)
    }

    async fn swap_usage(&self, key: &Key, slot: &str, from: &str, to: &str) -> Result<Swapped, ClusterError> {
        self.check()?;
        let _turn = self.slow.read().await;
        self.through(self.to.swap_usage(key, slot, from, to).await)
    }

    fn tell(&self, occurrence: Occurrence) {
        self.to.tell(occurrence);
    }

    async fn report(&self, report: &Report) -> Result<(), ClusterError> {
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
