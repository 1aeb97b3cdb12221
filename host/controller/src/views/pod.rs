//! A Pod of a broker as the controller keeps it.

use akri_brokers::{BROKER_HASH, FAILURES, Observed, Phase, Reason};
use akri_model::text::clean;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::View;

/// Longest reason that is kept of a Pod, in bytes.
const MAX_REASON: usize = 256;

/// A Pod with the label of the controller: its state, if its Instance owns it.
pub(crate) type PodView = View<Observed>;

impl PodView {
    /// Reads a Pod.
    pub(crate) fn of(pod: &Pod) -> Self {
        let annotation = |name: &str| pod.annotations().get(name).cloned().unwrap_or_default();
        let created = pod.metadata.creation_timestamp.as_ref().map_or(0, seconds);
        let status = pod.status.clone().unwrap_or_default();
        let observed = Observed {
            uid: pod.uid().unwrap_or_default(),
            is_owned: true,
            is_deleting: pod.metadata.deletion_timestamp.is_some(),
            hash: annotation(BROKER_HASH),
            failures: annotation(FAILURES).parse().unwrap_or_default(),
            phase: phase(&status),
            ready_since: ready_since(&status).map(|since| since.unwrap_or(created)),
            restarts: containers(&status).map(|container| u32::try_from(container.restart_count).unwrap_or(0)).sum(),
            started: status.start_time.as_ref().map_or(created, seconds),
            ended: ended(&status).or(status.start_time.as_ref().map(seconds)).unwrap_or(created),
            reason: reason(&status).unwrap_or_default(),
        };
        View::new(&pod.metadata, observed)
    }
}

fn seconds(Time(at): &Time) -> i64 {
    at.as_second()
}

fn phase(status: &PodStatus) -> Phase {
    match status.phase.as_deref() {
        Some("Running") => Phase::Running,
        Some("Succeeded" | "Failed") => Phase::Ended,
        _ => Phase::Pending,
    }
}

/// Returns the time since which the Pod is ready, if it is and has one.
fn ready_since(status: &PodStatus) -> Option<Option<i64>> {
    let ready = condition(status, "Ready").filter(|ready| ready.status == "True")?;
    Some(ready.last_transition_time.as_ref().map(seconds)).filter(|_| phase(status) == Phase::Running)
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
}

fn ended(status: &PodStatus) -> Option<i64> {
    let state = |container: &ContainerStatus| container.state.clone().unwrap_or_default();
    containers(status).filter_map(|container| Some(seconds(&state(container).terminated?.finished_at?))).max()
}

/// Returns the reason why the Pod does not run: that of the kubelet for the Pod or a container, or that of the
/// scheduler.
fn reason(status: &PodStatus) -> Option<Reason> {
    if let Some(word) = &status.reason {
        return Some(of(word, status.message.as_deref()));
    }
    if let Some(reason) = containers(status).find_map(|container| container_reason(container, phase(status))) {
        return Some(reason);
    }
    let unscheduled = condition(status, "PodScheduled").filter(|scheduled| scheduled.status == "False")?;
    Some(of(unscheduled.reason.as_deref().unwrap_or("NotScheduled"), unscheduled.message.as_deref()))
}

fn container_reason(container: &ContainerStatus, phase: Phase) -> Option<Reason> {
    let ContainerState { waiting, terminated, .. } = container.state.clone().unwrap_or_default();
    if let Some(waiting) = waiting {
        return Some(of(&waiting.reason.unwrap_or_default(), waiting.message.as_deref()));
    }
    let ended = terminated.filter(|_| phase == Phase::Ended)?;
    let code = format!("container {} ended with code {}", container.name, ended.exit_code);
    Some(of(ended.reason.as_deref().unwrap_or("Ended"), Some(ended.message.as_deref().unwrap_or(&code))))
}

fn of(word: &str, message: Option<&str>) -> Reason {
    Reason { word: clean(word, 64), message: clean(message.unwrap_or_default(), MAX_REASON) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(status: Value) -> Observed {
        let pod = json!({
            "metadata": {
                "name": "cam-1-pod", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {BROKER_HASH: "h", FAILURES: "3"},
            },
            "status": status,
        });
        PodView::of(&serde_json::from_value(pod).unwrap()).fields
    }

    const CREATED: i64 = 1_767_225_600;

    #[test]
    fn reason_is_that_of_the_kubelet_the_container_or_the_scheduler() {
        let waiting =
            json!({"name": "c", "restartCount": 2, "state": {"waiting": {"reason": "ErrImagePull", "message": "m"}}});
        let terminated = json!({"name": "c", "state": {"terminated": {"exitCode": 3, "reason": "Error", "finishedAt": "2026-01-01T00:01:00Z"}}});
        let unscheduled =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2"});
        for (status, word, message) in [
            (
                json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no slot"}),
                "UnexpectedAdmissionError",
                "no slot",
            ),
            (json!({"phase": "Pending", "containerStatuses": [waiting]}), "ErrImagePull", "m"),
            (json!({"phase": "Failed", "containerStatuses": [terminated]}), "Error", "container c ended with code 3"),
            (json!({"phase": "Pending", "conditions": [unscheduled]}), "Unschedulable", "0/2"),
            (json!({"phase": "Running"}), "", ""),
        ] {
            let reason = view(status).reason;
            assert_eq!((reason.word.as_str(), reason.message.as_str()), (word, message));
        }
    }

    #[test]
    fn end_is_that_of_the_last_container_or_of_the_rejection() {
        let state = |at: &str| json!({"name": "c", "state": {"terminated": {"exitCode": 0, "finishedAt": at}}});
        let both = json!([state("2026-01-01T00:01:00Z"), state("2026-01-01T00:02:00Z")]);
        assert_eq!(view(json!({"phase": "Failed", "containerStatuses": both})).ended, CREATED + 120);
        assert_eq!(view(json!({"phase": "Failed", "startTime": "2026-01-01T00:00:05Z"})).ended, CREATED + 5);
        assert_eq!(view(json!({"phase": "Failed"})).ended, CREATED);
    }

    #[test]
    fn readiness_counts_while_the_pod_runs() {
        let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"}]);
        assert_eq!(view(json!({"phase": "Running", "conditions": ready})).ready_since, Some(CREATED + 9));
        assert_eq!(view(json!({"phase": "Failed", "conditions": ready})).ready_since, None);
        let bare = json!([{"type": "Ready", "status": "True"}]);
        assert_eq!(view(json!({"phase": "Running", "conditions": bare})).ready_since, Some(CREATED));
        assert_eq!(view(json!({"phase": "Running"})).ready_since, None);
    }

    #[test]
    fn annotations_are_read() {
        let observed = view(json!(null));
        assert_eq!((observed.hash.as_str(), observed.failures, observed.phase), ("h", 3, Phase::Pending));
    }
}
