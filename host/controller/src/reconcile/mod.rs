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
use crate::node_cleanup::{UNUSED, delete_unused_lease};
use crate::object_index::ObjectIndex;
use crate::work::Work;

/// The dependencies of reconciles.
pub(crate) struct Context {
    pub(crate) objects: ObjectIndex,
    pub(crate) requests: Requests,
    pub(crate) events: EventRecorder,
    pub(crate) metrics: Metrics,
    pub(crate) unhurried: Mutex<RateLimiter<Unhurried>>,
    /// The namespace of the agents' Leases.
    pub(crate) lease_namespace: String,
}

/// A write that nobody waits for: where many devices are found at once, the agents' writes come first (rule 116).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unhurried {
    /// The first status of an Instance.
    FirstStatus(Key),
    /// Nodes join an Instance: they may claim slots before that.
    Join(Key),
}

impl Unhurried {
    /// Returns the rate limiter of such writes.
    pub(crate) fn limiter() -> Mutex<RateLimiter<Self>> {
        Mutex::new(RateLimiter::new(Duration::from_millis(10)))
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
        Work::Lease(key) => delete_unused_lease(context, key, UNUSED).await,
    }
}

/// Returns the earlier of two times, if there is any.
pub(crate) fn earlier(one: Again, other: Again) -> Again {
    [one, other].into_iter().flatten().min()
}
