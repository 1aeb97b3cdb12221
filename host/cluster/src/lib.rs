//! The store of Akri's objects: the trait [`Cluster`] with implementations for Kubernetes and for local mode.

pub mod kubernetes;
pub mod local;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use akri_api::{ComponentSource, DiscoveryHandler, DiscoveryHandlerStatus, HandlerRules};
pub use akri_kube::events::ObjectEvent;
use akri_kube::requests::RequestError;
use akri_model::broker_info::Files;
use akri_model::configuration::Configuration;
use akri_model::configuration_status::ConfigurationStatus;
use akri_model::instance::{Instance, Online};
use akri_model::names::{Identity, Key};
use akri_model::resolve::Values;
use akri_model::slots::SlotPatch;
use akri_model::summary::ConditionState;
use async_trait::async_trait;
use tokio::sync::watch;

/// A snapshot of all manifests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifests {
    /// Configurations in force.
    pub configurations: BTreeMap<Key, Arc<Configuration>>,
    /// DiscoveryHandler objects by name.
    pub handlers: BTreeMap<String, Arc<HandlerObject>>,
    /// DiscoveryHandler objects that exist and are invalid. The last valid version of one, if it is known, is in `handlers`.
    pub invalid_handlers: BTreeMap<String, InvalidHandler>,
    /// Configurations that exist and are invalid. The last valid version of one, if it is known, is in `configurations`; of the
    /// others nothing may be deleted either (rule 44).
    pub invalid: BTreeSet<Key>,
    /// Set if all sources could be read. If not, a missing object may still exist, and nothing may be deleted because
    /// of its absence (invariant 8).
    pub complete: bool,
    /// Problems of manifests, a sentence each: only local mode has any.
    pub problems: Vec<String>,
}

impl Manifests {
    /// Returns whether anything was read yet: before that, every object may exist.
    pub fn were_read(&self) -> bool {
        self.complete || !self.problems.is_empty()
    }
}

/// An invalid DiscoveryHandler object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidHandler {
    /// The handler name that it claims.
    pub name: String,
    /// The problems.
    pub why: String,
    /// The UID and the generation.
    pub generation: (String, i64),
}

/// A DiscoveryHandler object.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerObject {
    /// The handler name that the object claims; any that the component gives itself if `None`.
    pub name: Option<String>,
    /// The location of the component.
    pub source: ComponentSource,
    /// The only permitted content, as 64 hex digits.
    pub digest: Option<String>,
    /// Grants and limits.
    pub rules: HandlerRules,
    /// The UID and the generation.
    pub generation: (String, i64),
}

impl HandlerObject {
    /// Names the file of the object in messages about its grants.
    #[must_use]
    pub fn in_file(mut self, file: &Path) -> Self {
        self.rules.grants.holder.push_str(&format!(" ({})", file.display()));
        self
    }
}

impl From<&DiscoveryHandler> for HandlerObject {
    fn from(object: &DiscoveryHandler) -> Self {
        let digest = object.spec.component.digest.as_deref();
        Self {
            name: Some(object.handler_name()),
            source: ComponentSource::from(&object.spec.component),
            digest: digest.map(|digest| digest.trim_start_matches("sha256:").to_lowercase()),
            rules: HandlerRules::from(object),
            generation: (
                object.metadata.uid.clone().unwrap_or_default(),
                object.metadata.generation.unwrap_or_default(),
            ),
        }
    }
}

/// The reason for a failed operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The object does not exist, or has another UID.
    #[error("{0} does not exist")]
    NotFound(Key),
    /// The store did not answer; the operation can be retried.
    #[error("{0}")]
    Unavailable(String),
    /// The store refused the operation; other operations may succeed, and this one may later.
    #[error("{0}")]
    Refused(String),
}

/// The result of a request.
pub type ClusterResult<T> = Result<T, ClusterError>;

impl From<RequestError> for ClusterError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::NotFound(key) => Self::NotFound(key),
            RequestError::Unavailable(message) => Self::Unavailable(message),
            RequestError::Refused { message, .. } => Self::Refused(format!("the API server refuses: {message}")),
            // The API server answers, and other objects need not wait.
            RequestError::Conflict(_) => Self::Refused(error.to_string()),
        }
    }
}

/// The result of a write that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The object says what this node wants.
    Complete,
    /// The capacity or the properties of the Instance differ, and the agent of another node has to write them (rule 24).
    LeftToOtherNode,
    /// Only the usage of a local device differs, which is published later.
    UsageDeferred,
    /// This node writes after this time, unless others have written enough by then.
    RetryAfter(Duration),
}

/// The result of creating an Instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateOutcome {
    /// It was created, with this UID.
    New(Instance),
    /// The name is taken by this Instance.
    Taken(Instance),
}

/// The findings of the nodes that run discovery for others, about an Instance (rule 126).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// The state of its device.
    pub online: Online,
    /// Set if nodes that do not run discovery serve it.
    pub is_followed: bool,
}

/// The status of a Configuration on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationReport {
    /// The Configuration.
    pub key: Key,
    /// The UID: a status belongs to one object, not to the next of its name.
    pub uid: String,
    /// The observed generation.
    pub generation: i64,
    /// The status.
    pub status: ConfigurationStatus,
}

/// A node's report about a component handler.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerReport {
    /// The name of the DiscoveryHandler object.
    pub name: String,
    /// The UID and the generation that was loaded or refused last.
    pub looked_at: Option<(String, i64)>,
    /// The status but for its times and conditions, which the store adds.
    pub status: DiscoveryHandlerStatus,
    /// `Ready` and `Accepted`.
    pub conditions: Vec<ConditionState>,
}

/// A report of this node.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// About a Configuration.
    Configuration(ConfigurationReport),
    /// About a DiscoveryHandler.
    Handler(HandlerReport),
}

impl Report {
    /// Returns the object; a DiscoveryHandler has no namespace.
    pub fn object(&self) -> Key {
        match self {
            Self::Configuration(report) => report.key.clone(),
            Self::Handler(report) => Key::new("", &*report.name),
        }
    }
}

/// Sends a value, if it is another one than before.
pub fn send_changed<T: PartialEq>(to: &watch::Sender<T>, now: impl Into<T>) {
    let now = now.into();
    to.send_if_modified(|current| {
        let changed = *current != now;
        *current = now;
        changed
    });
}

/// The observations of a store. Only the store sends; subscribers get the present values and their changes.
#[derive(Debug, Default)]
pub struct Watches {
    /// The manifests.
    pub manifests: watch::Sender<Arc<Manifests>>,
    /// The content of the ConfigMaps and Secrets referenced by Configurations and DiscoveryHandlers. A value that was not read yet counts
    /// as unreadable.
    pub values: watch::Sender<Arc<Values>>,
    /// Relevant changes of Instances: claims and releases of any node, and deletions.
    pub usage: watch::Sender<()>,
    /// A counter of the lists of all Instances that are true, whatever the versions in them: the store may have been restored from a
    /// backup (rule 106). It grows once [`Cluster::list`] shows such a list.
    pub true_lists: watch::Sender<u64>,
    /// Set if the store lacks the Node object of this node (rule 100).
    pub own_node_missing: watch::Sender<bool>,
    /// Changes that others made to reports. Each makes every report due again.
    pub report_changes: watch::Sender<()>,
}

/// A store of Akri's objects. Implementations bound the duration of every call.
#[async_trait]
pub trait Cluster: Send + Sync + 'static {
    /// Returns the observations of the store.
    fn watches(&self) -> &Watches;

    /// Returns the namespace of the agent, where pull secrets are.
    fn namespace(&self) -> &str;

    /// Tells the controller that this agent ends.
    async fn stop(&self) {}

    /// Returns the Instances of a Configuration that are visible to this node.
    async fn list(&self, configuration: &Key) -> ClusterResult<Vec<Arc<Instance>>>;

    /// Returns the Instance of a Configuration for a device, as far as it is visible to this node. Another Configuration may have
    /// an Instance for the same device.
    async fn find(&self, configuration: &Key, identity: &Identity) -> ClusterResult<Option<Instance>>;

    /// Returns what the nodes that run discovery say of an Instance that [`Cluster::list`] has returned.
    fn finding(&self, _instance: &Instance) -> Finding {
        Finding { online: Online::True, is_followed: false }
    }

    /// Creates an Instance. Names are taken atomically: of two concurrent calls one succeeds.
    async fn create(&self, instance: &Instance) -> ClusterResult<CreateOutcome>;

    /// Updates the published Instance with this node's view. The `device_usage` of a shared Instance is unchanged: only
    /// [`Cluster::patch_slots`] writes it (rule 10). That of a local one, of which this node's journal has the truth, may wait for the next
    /// change of something else unless `is_usage_due` (rule 77).
    async fn publish(&self, instance: &Instance, is_usage_due: bool) -> ClusterResult<WriteOutcome>;

    /// Deletes an Instance if it has this UID; succeeds if it does not exist. `is_used` says whether containers of this node use
    /// it: of a local device only the journal knows for sure.
    async fn delete(&self, key: &Key, uid: &str, is_used: bool) -> ClusterResult<()>;

    /// Reads an Instance from the store itself, not from a cache. None if there is none, or it is being deleted.
    async fn get(&self, key: &Key) -> ClusterResult<Option<Instance>>;

    /// Returns the Instances of a Configuration for a shared device that other nodes have made under other names than the usual one.
    /// The list of them may be up to `max_age` old. Without nodes beside this one there are none that [`Cluster::find`] misses.
    async fn find_named_otherwise(
        &self,
        _configuration: &Key,
        _identity: &Identity,
        _max_age: Duration,
    ) -> ClusterResult<Vec<Instance>> {
        Ok(Vec::new())
    }

    /// Deletes a shared Instance that nobody uses, whoever sees its device, if this node writes what its nodes have in common (rule 24).
    /// Returns whether it is gone.
    async fn delete_unused(&self, key: &Key, uid: &str) -> ClusterResult<bool> {
        self.delete(key, uid, false).await.map(|()| true)
    }

    /// Changes slots of a shared Instance, all of them or none (rule 10), and returns the Instance as it is then: whether the
    /// patch took effect shows in it. None if there is no such Instance.
    async fn patch_slots(&self, key: &Key, patch: &SlotPatch) -> ClusterResult<Option<Instance>>;

    /// Writes what brokers of this node report of an Instance, by slot; without files, what was reported before is removed.
    /// Slots that are not this node's in the store are left out.
    async fn publish_broker_info(&self, key: &Key, uid: &str, infos: &BTreeMap<u32, Files>) -> ClusterResult<()>;

    /// Reports the state of a Configuration or of a discovery handler to users.
    async fn report(&self, report: &Report) -> ClusterResult<WriteOutcome>;

    /// Removes the report about a deleted object, where it is not a part of the object.
    async fn forget(&self, _object: &Key) -> ClusterResult<()> {
        Ok(())
    }

    /// Records an event of an object, where the store supports it. It never waits, and events may be lost; the caller
    /// logs them as well.
    fn record_event(&self, _event: ObjectEvent) {}
}
