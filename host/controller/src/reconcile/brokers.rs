//! The brokers of an Instance, of whichever kind.

use akri_brokers::{BrokerReport, Brokers, Counts, JobReport, Observed, PodState, Reason, Target, summarize};
use akri_kube::requests::RequestError;
use akri_model::summary::{ConditionState, Truth};

use super::{Again, Context, job, pods};
use crate::object_index::Owned;
use crate::views::{Broker, InstanceView, Wanted};

/// The result of reconciling brokers.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Pods that are wanted, by node, as they are now.
    pub(super) pods: Option<Vec<(String, PodState, Option<Observed>)>>,
    pub(super) job: Option<JobReport>,
    /// The first failure; the rest was done all the same.
    pub(super) error: Option<RequestError>,
    pub(super) again: Again,
}

impl Outcome {
    /// Takes a failure.
    pub(super) fn fail(&mut self, error: RequestError) {
        self.error.get_or_insert(error);
    }

    /// Counts, the condition, and the problem if there is one.
    pub(super) fn summary(&self) -> (Counts, Option<ConditionState>, Option<Reason>) {
        let brokers = match (&self.pods, &self.job) {
            (Some(pods), _) => Brokers::Pods(pods.iter().map(report).collect()),
            (None, Some(job)) => Brokers::Job(job.clone()),
            (None, None) => Brokers::None,
        };
        let refused = self.error.as_ref().and_then(refusal);
        let (counts, state) = summarize(&brokers, refused.as_ref());
        let failed = state.as_ref().filter(|state| state.truth == Truth::False);
        let problem = failed.map(|v| Reason { word: v.reason.clone(), message: v.message.clone() });
        (counts, state, problem)
    }
}

/// Returns the reason to show to users; `None` if the request only has to be retried.
fn refusal(error: &RequestError) -> Option<Reason> {
    match error {
        RequestError::Refused { message, .. } => Some(Reason { word: "Refused".to_owned(), message: message.clone() }),
        RequestError::NotFound(_) | RequestError::Conflict(_) | RequestError::Unavailable(_) => None,
    }
}

fn report((node, state, pod): &(String, PodState, Option<Observed>)) -> BrokerReport<'_> {
    BrokerReport { node, state: *state, pod: pod.as_ref() }
}

/// Brings the brokers of an Instance to what its Configuration wants.
pub(super) async fn reconcile(
    context: &Context,
    view: &InstanceView,
    wanted: &Wanted,
    generation: i64,
    owned: &Owned,
) -> Outcome {
    let target = Target {
        namespace: &view.key.namespace,
        name: &view.key.name,
        uid: &view.uid,
        configuration: &view.configuration,
        shared: view.shared || view.nodes.len() > 1, // names of its Pods have to differ
    };
    let pods = match &wanted.broker {
        Broker::Pod(spec) => pods::reconcile(context, view, &target, Some((spec, wanted.grace)), owned).await,
        Broker::None | Broker::Job(_) => pods::reconcile(context, view, &target, None, owned).await,
    };
    match &wanted.broker {
        Broker::Job(spec) => job::reconcile(context, view, &target, spec, generation, owned, pods).await,
        Broker::None | Broker::Pod(_) => pods,
    }
}
