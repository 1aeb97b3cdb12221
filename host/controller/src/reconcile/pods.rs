//! Pod brokers: one on each node that sees the device, up to capacity (rule 52, rule 53, rule 54, rule 57).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_brokers::{
    Annotations, BROKER_HASH, BrokerReport, Brokers, Candidate, Manifest, Observed, PodState, PodStep, SpecMark,
    Target, place, pod, pod_name,
};
use akri_kube::requests::RequestResult;
use akri_model::names::Key;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::brokers::{Outcome, create_owned};
use super::{Context, earlier};
use crate::object_index::{Owned, PendingActions};
use crate::views::{InstanceView, Wanted};

/// The interval at which a broker that may not be replaced yet is reconciled; mostly an event comes before.
const ROLLOUT: Duration = Duration::from_secs(30);

/// The reason of a node whose last round did not find the device.
const NOT_FOUND: &str = "NotFound";

/// The Pods of an Instance by name, as far as they are its own brokers or have a name of one.
type Pods = BTreeMap<String, Observed>;

/// A reconcile of the Pods of one Instance.
struct PodReconcile<'a> {
    context: &'a Context,
    view: &'a InstanceView,
    target: &'a Target<'a>,
    pods: Pods,
    actions: PendingActions,
    now: i64,
    outcome: Outcome,
}

/// Brings Pods to what is wanted.
pub(super) async fn reconcile(
    context: &Context,
    view: &InstanceView,
    target: &Target<'_>,
    wanted: &Wanted,
    owned: &Owned,
) -> Outcome {
    let (pods, actions) = observe(view, owned, context.objects.pending_actions(&view.key));
    let now = Timestamp::now().as_second();
    let mut pods_of_instance = PodReconcile { context, view, target, pods, actions, now, outcome: Outcome::default() };
    let mut kept = BTreeSet::new();
    if let Some(spec) = &wanted.brokers.broker_pod_spec {
        let mut brokers = Vec::new();
        for node in pods_of_instance.place(wanted.grace) {
            kept.insert(pod_name(target.name, &node, target.shared));
            brokers.push(pods_of_instance.reconcile_pod(spec, &wanted.brokers.broker_pod_annotations, node).await);
        }
        pods_of_instance.outcome.brokers = Brokers::Pods(brokers);
    }
    pods_of_instance.remove_unwanted(&kept).await;
    context.objects.set_pending_actions(&view.key, pods_of_instance.actions);
    pods_of_instance.outcome
}

/// Returns the Pods, and the pending actions on those that still exist. A Pod that was deleted counts as deleting before its watch
/// shows it.
fn observe(view: &InstanceView, owned: &Owned, mut actions: PendingActions) -> (Pods, PendingActions) {
    let mut pods = Pods::new();
    for pod in &owned.pods {
        let is_deleting = pod.is_deleting || actions.deleted.contains(&pod.uid);
        let is_owned = pod.owner_uid.as_ref() == Some(&view.uid);
        pods.insert(pod.key.name.clone(), Observed { is_owned, is_deleting, ..Observed::clone(pod) });
    }
    actions.deleted.retain(|uid| pods.values().any(|pod| pod.uid == *uid));
    (pods, actions)
}

impl PodReconcile<'_> {
    /// The nodes that should have a broker. A node that has missed the device for longer than its grace period gets none, or its
    /// broker would hold the slot of a dead device for ever.
    fn place(&mut self, [local, shared]: [Duration; 2]) -> BTreeSet<String> {
        let grace = i64::try_from(if self.view.shared { shared } else { local }.as_secs()).unwrap_or(i64::MAX);
        let counted = self.context.objects.missed_by(&self.view.key);
        let mut candidates = Vec::new();
        for node in &self.view.nodes {
            let written = self.view.problems.get(node).filter(|problem| problem.reason == NOT_FOUND);
            let is_missing = written.is_some() || counted.contains_key(node);
            let since = written.and_then(|problem| problem.since).or_else(|| counted.get(node).copied());
            let until = since.map(|since| since.saturating_add(grace));
            if until.is_some_and(|until| self.now >= until) {
                continue;
            }
            self.requeue_at(until);
            let name = pod_name(self.target.name, node, self.target.shared);
            let has_broker = self.pods.get(&name).is_some_and(|pod| pod.is_owned && !pod.is_deleting);
            candidates.push(Candidate { node: node.clone(), has_broker, is_missing });
        }
        place(self.target.name, self.view.capacity, &candidates)
    }

    async fn reconcile_pod(&mut self, spec: &Manifest, annotations: &Annotations, node: String) -> BrokerReport {
        let name = pod_name(self.target.name, &node, self.target.shared);
        let failures = self.actions.failures.get(&name).copied().unwrap_or_default();
        let (manifest, mark) = pod(self.target, spec, annotations, &node, failures);
        let mut observed = self.pods.get(&name).cloned();
        if let Some(pod) = &mut observed {
            self.take_over(&name, pod, &mark).await;
        }
        let state = PodState::of(Some(&mark.text), observed.as_ref(), self.now);
        let after = self.step(&name, state, observed.as_ref(), &manifest).await;
        let after = after.unwrap_or_else(|error| {
            warn!(instance = %self.view.key, pod = name, %error, "the broker is not as wanted; retrying");
            self.outcome.fail(error);
            state
        });
        BrokerReport { node, state: after, pod: observed }
    }

    /// Gives a broker of this spec that an earlier program made the mark of today, so that only an edit replaces it (rule 118).
    async fn take_over(&mut self, name: &str, pod: &mut Observed, mark: &SpecMark) {
        if !pod.is_owned || pod.is_deleting || pod.mark == mark.text || !mark.is_of_spec(&pod.mark) {
            return;
        }
        let metadata = json!({"name": name, "uid": pod.uid, "annotations": {BROKER_HASH: mark.text}});
        let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
        pod.mark.clone_from(&mark.text);
        let key = Key::new(self.target.namespace, name);
        match self.context.requests.apply::<Pod>(&key, &manifest).await {
            Ok(()) => info!(pod = %key, "took over a broker of an earlier program"),
            Err(error) => self.outcome.fail(error),
        }
    }

    /// Does what follows from a state, and returns the state after that.
    async fn step(
        &mut self,
        name: &str,
        state: PodState,
        pod: Option<&Observed>,
        manifest: &Value,
    ) -> RequestResult<PodState> {
        match state.step(true, self.now) {
            PodStep::Wait => {}
            PodStep::WaitUntil(at) => self.requeue_at(Some(at)),
            PodStep::Create => return self.create(name, manifest).await,
            PodStep::Delete => return self.delete(name, pod).await,
            PodStep::Replace if self.context.objects.may_replace(self.view) => return self.delete(name, pod).await,
            PodStep::Replace => self.outcome.again = earlier(self.outcome.again, Some(ROLLOUT)),
            PodStep::Retry { failures } => {
                self.actions.failures.insert(name.to_owned(), failures);
                return self.delete(name, pod).await;
            }
        }
        Ok(state)
    }

    async fn create(&mut self, name: &str, manifest: &Value) -> RequestResult<PodState> {
        let key = Key::new(self.target.namespace, name);
        self.requeue_at(Some(self.now + 10)); // one that was there may have lost its label, so that no watch tells when it goes
        if !create_owned::<Pod>(self.context, self.view, &key, manifest).await? {
            return Ok(PodState::NameTaken);
        }
        self.actions.failures.remove(name);
        Ok(PodState::Absent)
    }

    async fn delete(&mut self, name: &str, pod: Option<&Observed>) -> RequestResult<PodState> {
        let Some(pod) = pod else { return Ok(PodState::Absent) };
        let key = Key::new(self.target.namespace, name);
        self.context.requests.delete::<Pod>(&key, &pod.uid, None).await?;
        info!(pod = %key, "deleted a broker");
        self.actions.deleted.insert(pod.uid.clone());
        Ok(PodState::Deleting)
    }

    async fn remove_unwanted(&mut self, kept: &BTreeSet<String>) {
        for (name, pod) in std::mem::take(&mut self.pods) {
            if kept.contains(&name) {
                continue;
            }
            let step = PodState::of(None, Some(&pod), self.now).step(false, self.now);
            if step == PodStep::Delete
                && let Err(error) = self.delete(&name, Some(&pod)).await
            {
                self.outcome.fail(error);
            }
        }
    }

    fn requeue_at(&mut self, at: Option<i64>) {
        let left = at.map(|at| Duration::from_secs(u64::try_from(at - self.now).unwrap_or_default()));
        self.outcome.again = earlier(self.outcome.again, left);
    }
}
