//! The states of a Pod broker on one node of an Instance, and what follows from each (rule 52).

use akri_model::retry::RetryPolicy;

/// A broker that ran for so long and ended starts again with the first pause.
const RESET: i64 = 600;

/// Seconds that a broker has to be ready before the next one is replaced, so that a broker that crashes at once does not count.
const SETTLED: i64 = 5;

/// The phase of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not all containers have been started.
    Pending,
    /// Containers run or are being restarted.
    Running,
    /// All containers have ended, or the kubelet has refused or evicted the Pod: it will not run again.
    Ended,
}

/// The reason why a Pod does not run, in Kubernetes' terms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reason {
    /// A CamelCase word.
    pub word: String,
    /// A sentence.
    pub message: String,
}

/// A Pod as the API server shows it. Times are Unix seconds, of this program or the API server: clocks of nodes may be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// `metadata.uid`.
    pub uid: String,
    /// Its controller is this Instance, by UID.
    pub is_owned: bool,
    /// It has a deletion timestamp.
    pub is_deleting: bool,
    /// The mark of the spec it was created with; empty if it has none.
    pub mark: String,
    /// Brokers that ended before it, without a reset.
    pub failures: u32,
    /// Its phase.
    pub phase: Phase,
    /// The time at which it was first observed to be ready, if it is.
    pub ready_since: Option<i64>,
    /// Restarts of its containers.
    pub restarts: u32,
    /// The time at which it was first observed to have started; that of its creation if nobody observed that.
    pub started: i64,
    /// The time at which it was first observed to have ended, if it has.
    pub ended: i64,
    /// The reason why it does not run.
    pub reason: Reason,
}

impl Observed {
    /// Sets the times of what has happened since it was last observed, if it was (rule 121).
    pub fn set_times(&mut self, before: Option<&Self>, now: i64) {
        let before = before.filter(|before| before.uid == self.uid);
        if self.phase == Phase::Ended {
            self.ended = before.filter(|before| before.phase == Phase::Ended).map_or(now, |before| before.ended);
        }
        if let Some(before) = before {
            let has_started = before.phase == Phase::Pending && self.phase != Phase::Pending;
            self.started = if has_started { now } else { before.started };
            self.ready_since = self.ready_since.map(|_| before.ready_since.unwrap_or(now));
        }
    }

    /// Returns whether it has been ready for long enough to count as working.
    fn is_settled(&self, now: i64) -> bool {
        self.ready_since.is_some_and(|since| now >= since + SETTLED)
    }

    fn is_failing(&self) -> bool {
        self.phase == Phase::Ended || self.ready_since.is_none() && self.restarts > 0
    }
}

/// The state of the broker of an Instance on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodState {
    /// There is none. It may have been requested already: creating it again by name changes nothing.
    Absent,
    /// A Pod of its name belongs to another owner. It is waited for, never adopted (rule 51).
    NameTaken,
    /// Its containers are being started, or are not ready. That is never ended for being slow.
    Starting {
        /// It has crashed before.
        is_failing: bool,
        /// The time at which it will have been ready for long enough, if it is ready.
        settled_at: Option<i64>,
    },
    /// It is ready, and has been for a while.
    Running,
    /// It has ended, and the next one is created later.
    Backoff {
        /// The time at which the next one is created.
        until: i64,
        /// Brokers that have ended in a row.
        failures: u32,
    },
    /// Its spec is not the wanted one any more.
    Outdated {
        /// It works as it is, so that replacing it is a disruption.
        is_running: bool,
    },
    /// No broker is wanted here.
    Unwanted,
    /// It is being deleted; the slot is free when it is gone.
    Deleting,
}

/// The next step for a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodStep {
    /// Nothing before something changes.
    Wait,
    /// Nothing before that time.
    WaitUntil(i64),
    /// Create it.
    Create,
    /// Delete it.
    Delete,
    /// Delete it if the rollout of its Configuration allows (rule 57).
    Replace,
    /// Delete it; the next one has seen that many failures.
    Retry {
        /// Brokers that have ended in a row.
        failures: u32,
    },
}

impl PodState {
    /// Classifies a Pod; `wanted` is the mark of the spec that is wanted here, if any.
    pub fn of(wanted: Option<&str>, pod: Option<&Observed>, now: i64) -> Self {
        let Some(pod) = pod else { return Self::Absent };
        if !pod.is_owned {
            return Self::NameTaken;
        }
        if pod.is_deleting {
            return Self::Deleting;
        }
        let Some(wanted) = wanted else { return Self::Unwanted };
        if pod.mark != wanted {
            return Self::Outdated { is_running: pod.ready_since.is_some() };
        }
        if pod.phase == Phase::Ended {
            return Self::backoff(pod);
        }
        if pod.is_settled(now) {
            return Self::Running;
        }
        Self::Starting { is_failing: pod.is_failing(), settled_at: pod.ready_since.map(|since| since + SETTLED) }
    }

    /// Returns the pause after a broker has ended.
    fn backoff(pod: &Observed) -> Self {
        let failures = if pod.ended - pod.started >= RESET { 1 } else { pod.failures.saturating_add(1) };
        let pause = i64::try_from(RetryPolicy::BROKER_POD.pause(failures).as_secs()).unwrap_or(i64::MAX);
        Self::Backoff { until: pod.ended.saturating_add(pause), failures }
    }

    /// Returns the next step on a node where a broker `is_wanted` or not.
    pub fn step(self, is_wanted: bool, now: i64) -> PodStep {
        match self {
            Self::Absent if is_wanted => PodStep::Create,
            Self::Backoff { until, failures } if now >= until => PodStep::Retry { failures },
            Self::Backoff { until, .. } => PodStep::WaitUntil(until),
            Self::Starting { settled_at: Some(at), .. } => PodStep::WaitUntil(at),
            Self::Outdated { is_running: true } => PodStep::Replace,
            Self::Outdated { is_running: false } | Self::Unwanted => PodStep::Delete,
            Self::Absent | Self::NameTaken | Self::Starting { .. } | Self::Running | Self::Deleting => PodStep::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod() -> Observed {
        Observed {
            uid: "u".into(),
            is_owned: true,
            is_deleting: false,
            mark: "new".into(),
            failures: 0,
            phase: Phase::Running,
            ready_since: Some(100),
            restarts: 0,
            started: 90,
            ended: 0,
            reason: Reason::default(),
        }
    }

    fn ended(started: i64, ended: i64, failures: u32) -> Observed {
        Observed { phase: Phase::Ended, ready_since: None, started, ended, failures, ..pod() }
    }

    #[test] // rule 52
    fn states_and_their_steps() {
        let starting = PodState::Starting { is_failing: false, settled_at: None };
        let crashed = PodState::Starting { is_failing: true, settled_at: None };
        let pending = Observed { phase: Phase::Pending, ready_since: None, ..pod() };
        let outdated = |pod: Observed| Observed { mark: "old".into(), ..pod };
        let foreign = Observed { is_owned: false, ..pod() };
        for (what, pod, state, step) in [
            ("none", None, PodState::Absent, PodStep::Create),
            ("of another owner", Some(foreign.clone()), PodState::NameTaken, PodStep::Wait),
            (
                "of another owner that is being deleted",
                Some(Observed { is_deleting: true, ..foreign }),
                PodState::NameTaken,
                PodStep::Wait,
            ),
            ("being deleted", Some(Observed { is_deleting: true, ..pod() }), PodState::Deleting, PodStep::Wait),
            ("pending, however long", Some(pending.clone()), starting, PodStep::Wait),
            ("crashing", Some(Observed { restarts: 3, ready_since: None, ..pod() }), crashed, PodStep::Wait),
            (
                "ready for a moment",
                Some(Observed { ready_since: Some(198), ..pod() }),
                PodState::Starting { is_failing: false, settled_at: Some(203) },
                PodStep::WaitUntil(203),
            ),
            ("ready", Some(pod()), PodState::Running, PodStep::Wait),
            ("outdated", Some(outdated(pod())), PodState::Outdated { is_running: true }, PodStep::Replace),
            (
                "outdated and never ran",
                Some(outdated(pending)),
                PodState::Outdated { is_running: false },
                PodStep::Delete,
            ),
            (
                "outdated and ended",
                Some(outdated(ended(100, 199, 5))),
                PodState::Outdated { is_running: false },
                PodStep::Delete,
            ),
            (
                "just ended",
                Some(ended(100, 199, 0)),
                PodState::Backoff { until: 209, failures: 1 },
                PodStep::WaitUntil(209),
            ),
            (
                "ended a while ago",
                Some(ended(100, 190, 0)),
                PodState::Backoff { until: 200, failures: 1 },
                PodStep::Retry { failures: 1 },
            ),
        ] {
            let found = PodState::of(Some("new"), pod.as_ref(), 200);
            assert_eq!(found, state, "{what}");
            assert_eq!(found.step(true, 200), step, "{what}");
        }
    }

    #[test] // rule 52
    fn unwanted_broker_is_deleted_whatever_its_state() {
        for pod in [pod(), ended(0, 1, 9), Observed { mark: "old".into(), ..pod() }] {
            let state = PodState::of(None, Some(&pod), 200);
            assert_eq!((state, state.step(false, 200)), (PodState::Unwanted, PodStep::Delete));
        }
        let foreign = Observed { is_owned: false, ..pod() };
        assert_eq!(PodState::of(None, Some(&foreign), 200).step(false, 200), PodStep::Wait, "not ours to delete");
        assert_eq!(PodState::of(None, None, 200).step(false, 200), PodStep::Wait);
    }

    #[test] // rule 52
    fn pause_doubles_to_five_minutes_and_resets_after_ten() {
        let after = |pod: Observed, now| match PodState::backoff(&pod) {
            PodState::Backoff { until, failures } => (until - now, failures),
            other => panic!("{other:?}"),
        };
        let pauses: Vec<i64> = (0..8).map(|failures| after(ended(0, 5, failures), 5).0).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(after(ended(0, 600, 6), 600), (10, 1));
        assert_eq!(after(ended(0, 599, 6), 599).1, 7);
    }

    #[test] // rule 121
    fn times_are_those_of_the_observer() {
        let at = |phase, ready: bool| Observed { phase, ready_since: ready.then_some(90), ..pod() };
        let after = |before: &Observed, mut pod: Observed, now| {
            pod.set_times(Some(before), now);
            pod
        };
        let pending = at(Phase::Pending, false);
        let running = after(&pending, at(Phase::Running, false), 1000);
        assert_eq!((running.started, running.ready_since), (1000, None));
        let ready = after(&running, at(Phase::Running, true), 1010);
        assert_eq!((ready.started, ready.ready_since), (1000, Some(1010)));
        assert_eq!(after(&ready, at(Phase::Running, true), 1020), ready, "it is as it was");
        let end = after(&ready, at(Phase::Ended, false), 1030);
        assert_eq!((end.started, end.ended, end.ready_since), (1000, 1030, None));
        assert_eq!(after(&end, at(Phase::Ended, false), 1040), end);
        assert_eq!(PodState::of(Some("new"), Some(&end), 1039), PodState::Backoff { until: 1040, failures: 1 });
        let refused = after(&pending, at(Phase::Ended, false), 5000);
        assert_eq!((refused.started, refused.ended), (5000, 5000), "it never ran, however long it waited");
        let mut unknown = at(Phase::Ended, false);
        unknown.set_times(Some(&Observed { uid: "before".into(), ..end }), 700);
        assert_eq!((unknown.started, unknown.ended), (90, 700), "its creation is what is known");
    }

    proptest! {
        /// However Pods come and go, a broker that always ends is created at most so often.
        #[test] // rule 52
        fn brokers_that_always_end_are_no_storm(lifetime in 0i64..500) {
            let (mut now, mut failures, mut created) = (0, 0, 0);
            while now < 86_400 {
                created += 1;
                let pod = ended(now, now + lifetime, failures);
                now += lifetime;
                while let PodStep::WaitUntil(until) = PodState::of(Some("new"), Some(&pod), now).step(true, now) {
                    now = until;
                }
                let PodStep::Retry { failures: next } = PodState::of(Some("new"), Some(&pod), now).step(true, now) else {
                    panic!("a broker that ended is retried");
                };
                failures = next;
            }
            prop_assert!(created <= 86_400 / (300 + lifetime) + 6, "{created}");
        }
    }
}
