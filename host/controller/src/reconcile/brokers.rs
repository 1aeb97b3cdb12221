//! The brokers of an Instance, of whichever kind.

use akri_brokers::{Brokers, Counts, Reason, Target, summarize};
use akri_kube::requests::{Kind, RequestError, RequestResult};
use akri_model::names::Key;
use akri_model::summary::ConditionState;
use serde_json::Value;
use tracing::info;

use super::{Again, Context, job, pods};
use crate::object_index::Owned;
use crate::views::{InstanceView, Wanted, is_controlled_by};

/// The result of reconciling brokers.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The brokers that are wanted, as they are now.
    pub(super) brokers: Brokers,
    /// The first failure; the rest was done all the same.
    pub(super) error: Option<RequestError>,
    pub(super) again: Again,
}

impl Outcome {
    /// Takes a failure.
    pub(super) fn fail(&mut self, error: RequestError) {
        self.error.get_or_insert(error);
    }

    /// Returns the counts and the condition.
    pub(super) fn summary(&self) -> (Counts, Option<ConditionState>) {
        summarize(&self.brokers, self.error.as_ref().and_then(refusal).as_ref())
    }
}

/// Returns the reason to show to users; `None` if the request only has to be retried.
pub(super) fn refusal(error: &RequestError) -> Option<Reason> {
    match error {
        RequestError::Refused { message, .. } => Some(Reason { word: "Refused".to_owned(), message: message.clone() }),
        RequestError::NotFound(_) | RequestError::Conflict(_) | RequestError::Unavailable(_) => None,
    }
}

/// Returns the Instance as its brokers need it.
pub(super) fn target(view: &InstanceView) -> Target<'_> {
    Target {
        namespace: &view.key.namespace,
        name: &view.key.name,
        uid: &view.uid,
        configuration: &view.configuration,
        shared: view.shared || view.nodes.len() > 1, // names of its Pods have to differ
    }
}

/// Creates an object of an Instance. That there is one is a success, too: the watch has not shown it yet. Returns false if that has
/// another owner.
pub(super) async fn create_owned<K: Kind>(
    context: &Context,
    view: &InstanceView,
    key: &Key,
    manifest: &Value,
) -> RequestResult<bool> {
    if context.requests.create::<K>(key, manifest).await?.is_some() {
        info!(object = %key, "created a broker");
        return Ok(true);
    }
    let found = context.requests.get::<K>(key).await?.ok_or_else(|| RequestError::Conflict(key.clone()))?;
    Ok(is_controlled_by(&found, &view.uid))
}

/// Brings the brokers of an Instance to what its Configuration wants.
pub(super) async fn reconcile(
    context: &Context,
    view: &InstanceView,
    wanted: &Wanted,
    generation: i64,
    owned: &Owned,
) -> Outcome {
    let target = target(view);
    let mut outcome = pods::reconcile(context, view, &target, wanted, owned).await;
    match &wanted.brokers.broker_job_spec {
        Some(spec) => job::reconcile(context, view, &target, spec, generation, owned, &mut outcome).await,
        None => job::remove_unwanted(context, view, owned, &mut outcome).await,
    }
    outcome
}
