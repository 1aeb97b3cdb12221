//! Jobs and Services of the controller, as it keeps them.

use akri_brokers::{BROKER_HASH, JobReport, JobState, Reason};
use akri_model::text::clean;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;

use super::View;

/// A Job.
pub(crate) type JobView = View<JobReport>;

impl JobView {
    /// Reads a Job.
    pub(crate) fn of(job: Job) -> Self {
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
        let name = job.metadata.name.clone().unwrap_or_default();
        let report = JobReport { name, state: Some(state), reason: condition.map(reason).unwrap_or_default() };
        View::new(&job.metadata, report)
    }
}

/// A Service.
pub(crate) type ServiceView = View<ServiceFields>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServiceFields {
    /// The hash of the spec that was applied.
    pub(crate) hash: String,
}

impl ServiceView {
    /// Reads a Service.
    pub(crate) fn of(service: &Service) -> Self {
        let hash = service.annotations().get(BROKER_HASH).cloned().unwrap_or_default();
        View::new(&service.metadata, ServiceFields { hash })
    }
}
