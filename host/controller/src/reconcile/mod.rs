//! Reconciles one object: compares what is wanted with what is observed, and sends what is missing. Everything here may be
//! repeated at any time, by another controller too: names are deterministic, and deletions carry UIDs (rule 60).

mod brokers;
mod configuration;
mod handler;
mod instance;
mod job;
mod pods;
mod services;

pub(crate) use job::adding;

use std::time::Duration;

use akri_kube::events::EventRecorder;
use akri_kube::requests::{RequestResult, Requests};
use akri_model::names::Key;
use akri_model::rate_limiter::RateLimiter;
use parking_lot::Mutex;

use crate::metrics::Metrics;
use crate::object_index::ObjectIndex;
use crate::work::Work;

/// The dependencies of reconciles.
pub(crate) struct Context {
    pub(crate) objects: ObjectIndex,
    pub(crate) requests: Requests,
    pub(crate) events: EventRecorder,
    pub(crate) metrics: Metrics,
    pub(crate) pace: Pace,
    /// The namespace of the agents' Leases.
    pub(crate) lease_namespace: String,
}

/// Rate limits of writes that nobody waits for: where many devices are found at once, the agents' writes come first (rule 116).
pub(crate) struct Pace {
    /// Of first statuses of Instances.
    pub(crate) first_statuses: Mutex<RateLimiter<Key>>,
    /// Of nodes that join Instances: they may claim slots before that.
    pub(crate) joins: Mutex<RateLimiter<Key>>,
}

impl Default for Pace {
    fn default() -> Self {
        let each = |millis| Mutex::new(RateLimiter::new(Duration::from_millis(millis)));
        Self { first_statuses: each(20), joins: each(20) }
    }
}

/// The time until an object is reconciled again, if it has to be.
pub(crate) type Again = Option<Duration>;

/// Reconciles an object.
pub(crate) async fn reconcile(context: &Context, work: &Work) -> RequestResult<Again> {
    match work {
        Work::Configuration(key) => configuration::reconcile(context, work, key).await,
        Work::Instance(key) => instance::reconcile(context, work, key).await,
        Work::Handler(key) => handler::reconcile(context, work, key).await,
    }
}

/// Returns the earlier of two times, if there is any.
pub(crate) fn earlier(one: Again, other: Again) -> Again {
    [one, other].into_iter().flatten().min()
}
