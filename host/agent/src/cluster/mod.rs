//! Where Configurations come from and Instances go: the one trait that tells a Kubernetes cluster from local mode.

pub mod kubernetes;
pub mod local;

use std::collections::BTreeMap;
use std::sync::Arc;

use akri_api::{DiscoveryHandler, HandlerKind, HandlerRules, HandlerState};
use akri_model::configuration::Configuration;
use akri_model::instance::Instance;
use akri_model::names::{Identity, Key};
use akri_model::resolve::Values;
use async_trait::async_trait;
use tokio::sync::watch;

/// All wishes of users and administrators at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifests {
    /// Configurations in force.
    pub configurations: BTreeMap<Key, Arc<Configuration>>,
    /// DiscoveryHandler objects by name.
    pub handlers: BTreeMap<String, Arc<HandlerObject>>,
    /// Whether all sources could be read. If not, what is not here may still exist, and nothing may be deleted for its
    /// absence (invariant 8).
    pub complete: bool,
}

/// A DiscoveryHandler object.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerObject {
    /// File name in the component directory.
    pub file: String,
    /// The only content allowed, as 64 hex digits.
    pub digest: Option<String>,
    /// What it may reach, and how much.
    pub rules: HandlerRules,
}

impl From<&DiscoveryHandler> for HandlerObject {
    fn from(object: &DiscoveryHandler) -> Self {
        let digest = object.spec.component.digest.as_deref();
        Self {
            file: object.spec.component.file.clone(),
            digest: digest.map(|digest| digest.trim_start_matches("sha256:").to_lowercase()),
            rules: HandlerRules::from(object),
        }
    }
}

/// Why the cluster did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The object is not there, or another one of its name is.
    #[error("{0} does not exist")]
    NotFound(Key),
    /// The store did not answer; worth another try.
    #[error("{0}")]
    Unavailable(String),
    /// The store answered that it won't or can't do this; others may fare better, and this some time later.
    #[error("{0}")]
    Refused(String),
}

/// What came of creating an Instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// It is there now, with the UID it got.
    New(Instance),
    /// The name was taken, by this one.
    Taken(Instance),
}

/// What came of claiming or releasing a slot of a shared Instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swapped {
    /// The slot's usage was as expected and is now as wanted.
    Done,
    /// It was not; this is what it is.
    Differs(String),
}

/// What a node has to say about a Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The Configuration.
    pub key: Key,
    /// Its UID: a status is about one object, not about the next of its name.
    pub uid: String,
    /// The generation it is about.
    pub generation: i64,
    /// Instances of it on this node.
    pub instances: usize,
    /// Conditions: type, whether it holds, reason, message.
    pub conditions: Vec<ReportedCondition>,
}

/// What a node has to say about a discovery handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerReport {
    /// Of a component, the DiscoveryHandler object; of a remote handler, a name of its own that may be a file's.
    pub name: String,
    /// The name Configurations use, once it is known.
    pub handler: Option<String>,
    /// What it is.
    pub kind: HandlerKind,
    /// Of a component: the digest of the one that runs.
    pub digest: Option<String>,
    /// Of a remote handler: where it is reached.
    pub endpoint: Option<String>,
    /// What it is doing; since when, the store remembers.
    pub state: HandlerState,
    /// `Discovered`, or what the first Configuration that fails suffers from.
    pub last_result: Option<String>,
    /// Devices that it saw last, of all Configurations together.
    pub devices: usize,
    /// `Ready` and `Accepted`.
    pub conditions: Vec<ReportedCondition>,
}

/// One condition of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedCondition {
    /// Its type, such as `Ready`.
    pub kind: &'static str,
    /// Whether it holds; `None` if nobody can tell yet.
    pub holds: Option<bool>,
    /// A CamelCase word.
    pub reason: String,
    /// A sentence, at most 1 KiB.
    pub message: String,
}

/// Something happened to an object that a person may want to know, besides what its status says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occurrence {
    /// `Instance` or `Configuration`.
    pub kind: &'static str,
    /// The object.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// A CamelCase word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// A store of Akri's objects. Every call is bounded in time by its implementation.
#[async_trait]
pub trait Cluster: Send + Sync + 'static {
    /// The current manifests, and every change of them.
    fn manifests(&self) -> watch::Receiver<Arc<Manifests>>;

    /// What the ConfigMaps and Secrets hold that Configurations refer to, and every change. One that has not been read yet
    /// is one that can't be read.
    fn values(&self) -> watch::Receiver<Arc<Values>>;

    /// Counts what may have changed about Instances that their owners want to know of: claims and releases of any node,
    /// and deletions.
    fn usage(&self) -> watch::Receiver<u64>;

    /// The Instances of a Configuration that this node may see.
    async fn list(&self, configuration: &Key) -> Result<Vec<Instance>, ClusterError>;

    /// The Instance of a Configuration that stands for a device: it has one of these names (rule 22). Another Configuration
    /// may have one for the same device.
    async fn find(
        &self,
        configuration: &Key,
        identity: &Identity,
        names: &[String],
    ) -> Result<Option<Instance>, ClusterError>;

    /// Creates an Instance. The name is taken atomically: of two who try, one gets it.
    async fn create(&self, instance: &Instance) -> Result<Created, ClusterError>;

    /// Makes the published Instance say what this node says. `device_usage` of a shared Instance is left alone: only
    /// [`Cluster::swap_usage`] changes it (rule 10).
    async fn publish(&self, instance: &Instance) -> Result<(), ClusterError>;

    /// Deletes an Instance if it still is the one of that UID. One that is not there is fine.
    async fn delete(&self, key: &Key, uid: &str) -> Result<(), ClusterError>;

    /// Changes a slot of a shared Instance from one usage string to another, or not at all.
    async fn swap_usage(&self, key: &Key, slot: &str, from: &str, to: &str) -> Result<Swapped, ClusterError>;

    /// Shows users how a Configuration is doing.
    async fn report(&self, report: &Report) -> Result<(), ClusterError>;

    /// Removes the report of a Configuration that is gone.
    async fn forget(&self, key: &Key) -> Result<(), ClusterError>;

    /// Shows users what happened, where there is a place for it. It never waits, and may be lost; the caller logs it, too.
    fn tell(&self, occurrence: Occurrence);

    /// Shows users how a discovery handler is doing.
    async fn report_handler(&self, report: &HandlerReport) -> Result<(), ClusterError>;

    /// Removes the report of a discovery handler that is gone.
    async fn forget_handler(&self, name: &str) -> Result<(), ClusterError>;
}
