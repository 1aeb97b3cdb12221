//! Jobs and Services of the controller, as it keeps them.

use akri_brokers::{BROKER_HASH, JobState, Reason};
use akri_kube::watch::key_of;
use akri_model::names::Key;
use akri_model::text::clean;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;

use super::{View, controller_of, work_of};
use crate::work::Work;

/// A Job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobView {
    key: Key,
    owner: Option<Work>,
    pub(crate) uid: String,
    pub(crate) owner_uid: String,
    pub(crate) state: JobState,
    pub(crate) reason: Reason,
}

impl JobView {
    /// Reads a Job.
    pub(crate) fn of(job: Job) -> Self {
        let (owner, owner_uid) = owner_of(&job.metadata);
        let status = job.status.unwrap_or_default();
        let ended = |kind: &str| {
            status.conditions.iter().flatten().find(|condition| condition.type_ == kind && condition.status == "True")
        };
        let (state, condition) = match (ended("Failed"), ended("Complete")) {
            (Some(failed), _) => (JobState::Failed, Some(failed)),
            (None, Some(complete)) => (JobState::Complete, Some(complete)),
            (None, None) => (JobState::Active, None),
        };
        let text = |text: Option<&String>| clean(text.map_or("", String::as_str), 256);
        let reason = |condition: &JobCondition| Reason {
            word: text(condition.reason.as_ref()),
            message: text(condition.message.as_ref()),
        };
        Self {
            key: key_of(&job.metadata),
            uid: job.metadata.uid.unwrap_or_default(),
            owner,
            owner_uid,
            state,
            reason: condition.map(reason).unwrap_or_default(),
        }
    }
}

impl View for JobView {
    fn key(&self) -> &Key {
        &self.key
    }

    fn owner(&self) -> Option<Work> {
        self.owner.clone()
    }
}

/// A Service.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServiceView {
    key: Key,
    owner: Option<Work>,
    pub(crate) uid: String,
    pub(crate) owner_uid: String,
    pub(crate) hash: String,
    pub(crate) is_deleting: bool,
}

impl ServiceView {
    /// Reads a Service.
    pub(crate) fn of(service: Service) -> Self {
        let (owner, owner_uid) = owner_of(&service.metadata);
        Self {
            key: key_of(&service.metadata),
            uid: service.uid().unwrap_or_default(),
            hash: service.annotations().get(BROKER_HASH).cloned().unwrap_or_default(),
            is_deleting: service.metadata.deletion_timestamp.is_some(),
            owner,
            owner_uid,
        }
    }
}

impl View for ServiceView {
    fn key(&self) -> &Key {
        &self.key
    }

    fn owner(&self) -> Option<Work> {
        self.owner.clone()
    }
}

fn owner_of(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> (Option<Work>, String) {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let owner = controller_of(metadata);
    (owner.and_then(|owner| work_of(namespace, owner)), owner.map(|owner| owner.uid.clone()).unwrap_or_default())
}
