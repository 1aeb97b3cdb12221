//! Decides when a node is lost for good, so that others may have what it used (rule 100). A Node object that is missing proves
//! nothing by itself: containers run on for a while, and those of a node whose object was deleted by mistake for ever.

use std::time::Duration;

use crate::agent_lease::GOOD_FOR;

/// The time for which both conditions have to hold.
const CONFIRMATION: Duration = Duration::from_secs(60);

/// The interval of observations of a missing node. Twice that without one is a break.
const INTERVAL: Duration = Duration::from_secs(30);

/// The state of a Node object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeObject {
    /// It exists.
    Exists,
    /// A live GET answers 404.
    Missing,
    /// It has the taint `node.kubernetes.io/out-of-service`: an administrator says that nothing runs there.
    OutOfService,
    /// The API server did not answer.
    Unknown,
}

/// The decision about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeDecision {
    /// Its slots stay its own.
    Keep {
        /// The time until the next observation, if one is needed.
        next_observation: Option<Duration>,
    },
    /// Its slots are free.
    Lost,
}

/// The observations of one node. Times are those of one monotonic clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct NodeAbsence {
    missing: Option<Missing>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Missing {
    since: Duration,
    /// The time since which there is no Lease that could be renewed.
    without_lease: Option<Duration>,
    observed: Duration,
}

impl NodeAbsence {
    /// Takes an observation. `renewed` is when the last renewal of the Lease of the node's agent was observed; `None` if there is no
    /// Lease, or the agent has given it up: its containers may still run.
    pub fn observe(&mut self, now: Duration, node: NodeObject, renewed: Option<Duration>) -> NodeDecision {
        let before = self.missing.take().filter(|missing| now.saturating_sub(missing.observed) <= 2 * INTERVAL);
        match node {
            NodeObject::OutOfService => return NodeDecision::Lost,
            NodeObject::Exists => return NodeDecision::Keep { next_observation: None },
            NodeObject::Unknown => return NodeDecision::Keep { next_observation: Some(INTERVAL) },
            NodeObject::Missing => {}
        }
        let before = before.unwrap_or(Missing { since: now, without_lease: None, observed: now });
        let last_renewal = renewed.unwrap_or(before.without_lease.unwrap_or(now));
        let without_lease = renewed.is_none().then_some(last_renewal);
        let lost_at = before.since.max(last_renewal + GOOD_FOR) + CONFIRMATION;
        self.missing = Some(Missing { since: before.since, without_lease, observed: now });
        match lost_at.checked_sub(now) {
            None | Some(Duration::ZERO) => NodeDecision::Lost,
            Some(left) => NodeDecision::Keep { next_observation: Some(left.min(INTERVAL)) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NodeObject::{Exists, Missing, OutOfService, Unknown};
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Observes every ten seconds, and returns the time at which the node is lost, if that is before 1,000 s.
    fn lost_at(mut observe: impl FnMut(u64) -> (NodeObject, Option<Duration>)) -> Option<u64> {
        let mut absence = NodeAbsence::default();
        (0..1_000).step_by(10).find(|&at| {
            let (node, lease) = observe(at);
            absence.observe(seconds(at), node, lease) == NodeDecision::Lost
        })
    }

    #[test] // rule 100
    fn node_is_lost_when_object_and_lease_are_away_for_a_minute() {
        for (case, lease, expected) in [
            ("a Lease that was old before", Some(Duration::ZERO), 500 + 60),
            ("a Lease that was renewed last when the Node went", Some(seconds(500)), 500 + 180 + 60),
            ("no Lease, or one that was given up", None, 500 + 180 + 60),
        ] {
            let lost = lost_at(|at| (if at < 500 { Exists } else { Missing }, lease));
            assert_eq!(lost, Some(expected), "{case}");
        }
    }

    #[test] // rule 100
    fn node_is_kept_while_its_agent_renews_the_lease() {
        assert_eq!(lost_at(|at| (Missing, Some(seconds(at / 60 * 60)))), None);
        let renewed_once_more = lost_at(|at| (Missing, Some(seconds(if at < 200 { 0 } else { 200 }))));
        assert_eq!(renewed_once_more, Some(200 + 180 + 60));
    }

    #[test] // rule 100
    fn break_in_the_observations_starts_the_time_anew() {
        let old = Some(Duration::ZERO);
        let after = |at, node| {
            lost_at(|now| {
                (
                    if now < 300 {
                        Exists
                    } else if now == at {
                        node
                    } else {
                        Missing
                    },
                    old,
                )
            })
        };
        assert_eq!(after(350, Missing), Some(360));
        assert_eq!(after(350, Exists), Some(360 + 60));
        assert_eq!(after(350, Unknown), Some(360 + 60));
        let mut absence = NodeAbsence::default();
        let mut observe = |at| absence.observe(seconds(at), Missing, old);
        assert_ne!(observe(300), NodeDecision::Lost);
        assert_ne!(observe(361), NodeDecision::Lost, "nobody looked for a minute");
        assert_ne!(observe(400), NodeDecision::Lost);
        assert_eq!(observe(421), NodeDecision::Lost);
    }

    #[test] // rule 100
    fn lease_that_is_deleted_or_returns_starts_its_time_anew() {
        let deleted = lost_at(|at| (Missing, if at < 100 { Some(Duration::ZERO) } else { None }));
        assert_eq!(deleted, Some(100 + 180 + 60));
        let returned = lost_at(|at| (Missing, if at == 100 { Some(seconds(100)) } else { None }));
        assert_eq!(returned, Some(110 + 180 + 60));
    }

    #[test] // rule 100
    fn node_out_of_service_is_lost_at_once() {
        assert_eq!(NodeAbsence::default().observe(seconds(0), OutOfService, Some(seconds(0))), NodeDecision::Lost);
    }

    #[test] // rule 100
    fn next_observation_is_due_before_the_time_ends() {
        let mut absence = NodeAbsence::default();
        let mut again = |at, node| absence.observe(seconds(at), node, Some(Duration::ZERO));
        assert_eq!(again(170, Exists), NodeDecision::Keep { next_observation: None });
        assert_eq!(again(170, Missing), NodeDecision::Keep { next_observation: Some(INTERVAL) });
        assert_eq!(again(200, Missing), NodeDecision::Keep { next_observation: Some(INTERVAL) });
        assert_eq!(again(235, Missing), NodeDecision::Keep { next_observation: Some(seconds(5)) });
        assert_eq!(again(240, Missing), NodeDecision::Lost);
    }
}
