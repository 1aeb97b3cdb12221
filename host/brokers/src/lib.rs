//! Brokers: the workload that a Configuration runs for each device. Pure decisions over observed objects; the controller
//! observes, sends what is decided here, and repeats. Specs of Pods, Jobs and Services are opaque JSON.

mod job;
mod names;
mod placement;
mod pod;
mod report;
mod rollout;
mod service;
mod template;

pub use job::{JobRecord, JobState};
pub use names::{job_name, label_value, pod_name, service_name};
pub use placement::{Candidate, place};
pub use pod::{Observed, Phase, PodState, PodStep, Reason};
pub use report::{BrokerReport, Brokers, JobReport, summarize, summarize_all};
pub use rollout::{Counts, Rollout};
pub use service::{is_service_wanted, service};
pub use template::{
    Annotations, BROKER_HASH, FAILURES, INSTANCE_LABEL, JOB_RECORD, Manifest, Owner, PLACEHOLDER, SELECTOR, SpecMark,
    Target, job, needs_instance, pod, spec_hash,
};
