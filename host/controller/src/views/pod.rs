//! A Pod of a broker as the controller keeps it.

use akri_brokers::{BROKER_HASH, FAILURES, Observed, Phase, Reason};
use akri_model::text::clean;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition, PodStatus};
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
        let created = pod.metadata.creation_timestamp.as_ref().map_or(0, |created| created.0.as_second());
        let status = pod.status.clone().unwrap_or_default();
        let observed = Observed {
            uid: pod.uid().unwrap_or_default(),
            is_owned: true,
            is_deleting: pod.metadata.deletion_timestamp.is_some(),
            mark: annotation(BROKER_HASH),
            failures: annotation(FAILURES).parse().unwrap_or_default(),
            phase: phase(&status),
            ready_since: Some(created).filter(|_| is_ready(&status)),
            restarts: containers(&status).map(|container| u32::try_from(container.restart_count).unwrap_or(0)).sum(),
            started: created,
            ended: created,
            reason: reason(&status).unwrap_or_default(),
        };
        View::new(&pod.metadata, observed)
    }
}

fn phase(status: &PodStatus) -> Phase {
    match status.phase.as_deref() {
        Some("Running") => Phase::Running,
        Some("Succeeded" | "Failed") => Phase::Ended,
        _ => Phase::Pending,
    }
}

fn is_ready(status: &PodStatus) -> bool {
    phase(status) == Phase::Running && condition(status, "Ready").is_some_and(|ready| ready.status == "True")
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
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

    /// Clocks of nodes do not count.
    #[test] // rule 121
    fn times_are_those_of_the_api_server() {
        let ready =
            |status: &str| json!([{"type": "Ready", "status": status, "lastTransitionTime": "2020-01-01T00:00:09Z"}]);
        let at = "2036-01-01T00:00:05Z";
        let running = view(json!({"phase": "Running", "startTime": at, "conditions": ready("True")}));
        assert_eq!((running.ready_since, running.started), (Some(CREATED), CREATED));
        assert_eq!(view(json!({"phase": "Failed", "conditions": ready("True")})).ready_since, None);
        assert_eq!(view(json!({"phase": "Running", "conditions": ready("False")})).ready_since, None);
        let terminated = json!([{"name": "c", "state": {"terminated": {"exitCode": 0, "finishedAt": at}}}]);
        assert_eq!(view(json!({"phase": "Failed", "containerStatuses": terminated})).ended, CREATED);
    }

    #[test]
    fn annotations_are_read() {
        let observed = view(json!(null));
        assert_eq!((observed.mark.as_str(), observed.failures, observed.phase), ("h", 3, Phase::Pending));
    }
}
