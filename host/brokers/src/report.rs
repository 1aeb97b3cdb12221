//! Summaries of the brokers of an Instance or a Configuration for users: the numbers of wanted and ready brokers, and
//! the reason for a difference.

use std::collections::BTreeMap;

use crate::pod::{Observed, PodState, Reason};
use crate::{Counts, JobState, Rollout};
use akri_model::summary::{ConditionState, Truth};

/// The type of the condition.
const CONDITION: &str = "BrokersReady";

/// The reason of a broker that works with the previous spec: others say more.
const UPDATING: &str = "Updating";

/// The broker of an Instance on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerReport {
    /// The node.
    pub node: String,
    /// Its state.
    pub state: PodState,
    /// The Pod, if there is one.
    pub pod: Option<Observed>,
}

/// The Job of an Instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobReport {
    /// Its name.
    pub name: String,
    /// Its state; none if it was deleted.
    pub state: Option<JobState>,
    /// The reason of a failed Job, in Kubernetes' terms.
    pub reason: Reason,
}

/// The brokers of an Instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Brokers {
    /// The Configuration runs nothing for its devices.
    #[default]
    None,
    /// Pods on the nodes where they are wanted.
    Pods(Vec<BrokerReport>),
    /// A Job.
    Job(JobReport),
}

/// Returns the counts and the condition of the brokers of an Instance. `error` is why something could not be done.
pub fn summarize(brokers: &Brokers, error: Option<&Reason>) -> (Counts, Option<ConditionState>) {
    let (counts, truth, reason) = match brokers {
        Brokers::None => return (Counts::default(), error.map(|reason| state(Truth::False, reason))),
        Brokers::Pods(pods) => pods_summary(pods),
        Brokers::Job(job) => job_summary(job),
    };
    let own = || state(truth, &reason);
    (counts, Some(error.map_or_else(own, |error| state(Truth::False, error))))
}

/// Returns the condition of all brokers of a Configuration; `problems` has what each Instance reports that is not ready, `service` why the
/// Service of all is not as wanted.
pub fn summarize_all(
    rollout: &Rollout,
    problems: &BTreeMap<String, ConditionState>,
    service: Option<&Reason>,
) -> ConditionState {
    let total = rollout.total();
    let Some((instance, first)) = problems.iter().min_by_key(|(_, problem)| problem.reason == UPDATING) else {
        if let Some(Reason { word, message }) = service {
            return state(Truth::False, &reason(word, format!("the Service of all brokers: {message}")));
        }
        let message = format!("{} brokers run", total.running);
        return state(Truth::True, &reason("Running", message));
    };
    let (count, outdated) = (problems.len(), total.outdated);
    let message = format!("{count} Instances lack brokers as they are wanted, such as {instance}: {}", first.message);
    let (word, message) = match () {
        () if rollout.is_stopped() => (
            "RolloutStopped",
            format!("a new broker fails, {outdated} brokers keep the previous spec until it works; {message}"),
        ),
        // Of few brokers one that does not run, as on a node that is off, is as many as may be missing.
        () if outdated > 0 && first.reason != UPDATING => {
            (&*first.reason, format!("{message}; {outdated} brokers keep the previous spec meanwhile"))
        }
        () => (&*first.reason, message),
    };
    state(Truth::False, &reason(word, message))
}

fn pods_summary(pods: &[BrokerReport]) -> (Counts, Truth, Reason) {
    let counts = count(pods);
    match pods.iter().filter_map(why_not).min_by_key(|reason| reason.word == UPDATING) {
        Some(reason) => (counts, Truth::False, reason),
        None if pods.is_empty() => (counts, Truth::True, reason("NoNodes", "no node needs a broker".to_owned())),
        None => (counts, Truth::True, reason("Running", String::new())),
    }
}

fn job_summary(job: &JobReport) -> (Counts, Truth, Reason) {
    let name = &job.name;
    let (truth, word, message) = match job.state {
        Some(JobState::Creating) => (Truth::False, "Creating", format!("Job {name} is being created")),
        Some(JobState::Active) => (Truth::True, "JobActive", format!("Job {name} runs")),
        Some(JobState::Complete) => (Truth::True, "JobComplete", format!("Job {name} has completed")),
        Some(JobState::Failed) => {
            (Truth::False, "JobFailed", format!("Job {name} has failed: {}: {}", job.reason.word, job.reason.message))
        }
        None => {
            let message = format!("Job {name} was created and does not exist any more; it is not run again");
            (Truth::True, "JobDeleted", message)
        }
    };
    let running = usize::from(job.state == Some(JobState::Active));
    let counts = Counts { desired: running, running, available: running, ..Counts::default() };
    (counts, truth, reason(word, message))
}

fn count(pods: &[BrokerReport]) -> Counts {
    let of = |test: fn(&PodState) -> bool| pods.iter().filter(|pod| test(&pod.state)).count();
    let ready = |pod: &&BrokerReport| {
        let is_up = !matches!(pod.state, PodState::Deleting | PodState::NameTaken | PodState::Backoff { .. });
        is_up && pod.pod.as_ref().is_some_and(|pod| pod.ready_since.is_some())
    };
    Counts {
        desired: pods.len(),
        running: pods.iter().filter(ready).count(),
        available: of(|state| matches!(state, PodState::Running | PodState::Outdated { is_running: true })),
        outdated: of(|state| matches!(state, PodState::Outdated { is_running: true })),
        failing: of(|state| matches!(state, PodState::Backoff { .. } | PodState::Starting { is_failing: true, .. })),
    }
}

/// Returns the reason why a broker does not run, if it does not.
fn why_not(broker: &BrokerReport) -> Option<Reason> {
    let pod_reason = broker.pod.as_ref().map(|pod| &pod.reason).filter(|pod_reason| !pod_reason.word.is_empty());
    let because =
        pod_reason.map(|pod_reason| format!(": {}: {}", pod_reason.word, pod_reason.message)).unwrap_or_default();
    let (word, message) = match broker.state {
        PodState::Running | PodState::Starting { settled_at: Some(_), .. } => return None,
        PodState::Outdated { is_running: true } => {
            (UPDATING, "the broker runs the previous spec until it is replaced".to_owned())
        }
        PodState::Absent => ("Creating", "the broker is being created".to_owned()),
        PodState::Deleting => ("Replacing", "the previous broker is being deleted".to_owned()),
        PodState::NameTaken => {
            ("NameTaken", "a Pod of the broker's name belongs to another owner; it is waited for".to_owned())
        }
        PodState::Backoff { failures, .. } => {
            ("Backoff", format!("the broker has ended {failures} times in a row{because}"))
        }
        PodState::Starting { is_failing: true, .. } => ("Crashing", format!("the broker crashes{because}")),
        PodState::Starting { .. } | PodState::Outdated { .. } | PodState::Unwanted => {
            ("Pending", format!("the broker does not run yet{because}"))
        }
    };
    Some(reason(word, format!("{}: {message}", broker.node)))
}

fn reason(word: &str, message: String) -> Reason {
    Reason { word: word.to_owned(), message }
}

fn state(truth: Truth, reason: &Reason) -> ConditionState {
    ConditionState::new(CONDITION, truth, &reason.word, &reason.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Phase;

    fn pod(ready_since: Option<i64>, word: &str) -> Observed {
        Observed {
            uid: "u".into(),
            is_owned: true,
            is_deleting: false,
            mark: "h".into(),
            failures: 0,
            phase: Phase::Running,
            ready_since,
            restarts: 0,
            started: 0,
            ended: 0,
            reason: Reason { word: word.into(), message: "because".into() },
        }
    }

    fn condition(states: &[PodState]) -> (Counts, String) {
        let (ready, waiting) = (pod(Some(1), ""), pod(None, "Unschedulable"));
        let report = |state: &PodState| {
            let pod = match state {
                PodState::Absent => None,
                PodState::Running | PodState::Outdated { is_running: true } => Some(ready.clone()),
                _ => Some(waiting.clone()),
            };
            BrokerReport { node: "node-a".to_owned(), state: *state, pod }
        };
        let (counts, state) = summarize(&Brokers::Pods(states.iter().map(report).collect()), None);
        let state = state.unwrap();
        (counts, format!("{} {}: {}", state.truth.as_str(), state.reason, state.message))
    }

    #[test] // rule 52, rule 117
    fn first_broker_that_does_not_run_is_explained() {
        let backoff = PodState::Backoff { until: 9, failures: 3 };
        let starting = PodState::Starting { is_failing: false, settled_at: None };
        let settling = PodState::Starting { is_failing: false, settled_at: Some(9) };
        let outdated = PodState::Outdated { is_running: true };
        for (states, expected) in [
            (&[PodState::Running][..], "True Running: "),
            (&[], "True NoNodes: no node needs a broker"),
            (
                &[PodState::Running, starting],
                "False Pending: node-a: the broker does not run yet: Unschedulable: because",
            ),
            (&[backoff], "False Backoff: node-a: the broker has ended 3 times in a row: Unschedulable: because"),
            (&[PodState::Absent], "False Creating: node-a: the broker is being created"),
            (&[PodState::Deleting], "False Replacing: node-a: the previous broker is being deleted"),
            (&[settling, outdated], "False Updating: node-a: the broker runs the previous spec until it is replaced"),
            (&[outdated, PodState::Absent], "False Creating: node-a: the broker is being created"),
        ] {
            assert_eq!(condition(states).1, expected);
        }
    }

    #[test]
    fn brokers_are_counted_for_the_rollout() {
        let states = [
            PodState::Running,
            PodState::Outdated { is_running: true },
            PodState::Starting { is_failing: true, settled_at: None },
            PodState::Absent,
            PodState::Backoff { until: 9, failures: 1 },
        ];
        let expected = Counts { desired: 5, running: 2, available: 2, outdated: 1, failing: 2 };
        assert_eq!(condition(&states).0, expected);
    }

    #[test]
    fn ended_job_is_reported() {
        for (state, expected) in [
            (Some(JobState::Active), "True JobActive"),
            (Some(JobState::Complete), "True JobComplete"),
            (Some(JobState::Failed), "False JobFailed"),
            (Some(JobState::Creating), "False Creating"),
            (None, "True JobDeleted"),
        ] {
            let job = JobReport { name: "cam-1-1-job".into(), state, reason: Reason::default() };
            let state = summarize(&Brokers::Job(job), None).1.unwrap();
            assert_eq!(format!("{} {}", state.truth.as_str(), state.reason), expected);
        }
    }

    #[test]
    fn configuration_names_an_instance_that_is_not_served() {
        let mut rollout = Rollout::default();
        let problem = state(Truth::False, &reason("Pending", "node-a: not yet".to_owned()));
        let problems = BTreeMap::from([("cam-1".to_owned(), problem)]);
        rollout.update("cam-2", Counts { desired: 1, running: 1, available: 1, outdated: 1, failing: 0 });
        assert_eq!(summarize_all(&rollout, &BTreeMap::new(), None).message, "1 brokers run");
        let refused = reason("Refused", "no quota".to_owned());
        let of_service = summarize_all(&rollout, &BTreeMap::new(), Some(&refused));
        assert_eq!((of_service.truth, &*of_service.message), (Truth::False, "the Service of all brokers: no quota"));
        let state = summarize_all(&rollout, &problems, Some(&refused));
        assert_eq!((state.truth, state.reason.as_str()), (Truth::False, "Pending"));
        let message = "1 Instances lack brokers as they are wanted, such as cam-1: node-a: not yet";
        assert_eq!(state.message, format!("{message}; 1 brokers keep the previous spec meanwhile"));
        rollout.update("cam-2", Counts { desired: 1, running: 1, available: 1, ..Counts::default() });
        assert_eq!(summarize_all(&rollout, &problems, None).message, message);
        rollout.update("cam-2", Counts { desired: 1, running: 1, available: 1, outdated: 1, failing: 0 });
        rollout.update("cam-1", Counts { desired: 1, failing: 1, ..Counts::default() });
        assert_eq!(summarize_all(&rollout, &problems, None).reason, "RolloutStopped");
    }

    #[test]
    fn error_of_the_api_server_wins() {
        let error = Reason { word: "Refused".into(), message: "unknown field".into() };
        let (_, state) = summarize(&Brokers::None, Some(&error));
        assert_eq!(state.unwrap().message, "unknown field");
        assert_eq!(summarize(&Brokers::None, None).1, None);
    }
}
