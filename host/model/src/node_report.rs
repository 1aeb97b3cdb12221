//! Selects the nodes that report a problem in the status of an object: of many with the same problem a few do (rule 34
//! and 61).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::agent_lease;
use crate::names::{Key, node_hash};
use crate::summary::NodeProblem;

/// Nodes that may report problems with one object.
const MAX_NODES: usize = 20;

/// Nodes that may report the same reason for one object: more of them add nothing.
pub const MAX_SAME: usize = 3;

/// Reasons that usually lie in the object or in what it refers to, so that all nodes have them and one report says it all.
const OF_THE_OBJECT: [&str; 2] = ["InvalidDetails", "PropertiesUnresolved"];

/// Nodes report a problem over this time, so that most of them see the reports of others before they write.
const SPREAD: Duration = Duration::from_secs(3);

/// The time that the controller has to join a node.
const JOINED_IN: Duration = Duration::from_secs(15);

/// The next step of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing: the object shows what it has to, or enough other nodes report the same.
    Rest,
    /// Remove its entry.
    Remove,
    /// Change its entry, at once.
    Change,
    /// Add an entry, after a delay: see [`report_delay`].
    Add,
}

/// Returns the next step of a node. `shown` has the entries of all nodes, without their times; `counts` tells the other nodes that may
/// report in its place.
pub fn step(
    shown: &BTreeMap<String, NodeProblem>,
    counts: impl Fn(&str) -> bool,
    node: &str,
    wanted: Option<&NodeProblem>,
) -> Step {
    let own = shown.get(node);
    let Some(wanted) = wanted else {
        return if own.is_some() { Step::Remove } else { Step::Rest };
    };
    let others = shown.iter().filter(|(other, _)| counts(other));
    match own {
        Some(own) if own == wanted => Step::Rest,
        Some(_) => Step::Change,
        None if has_enough_reports(others.map(|(_, other)| (&*other.reason, &*other.message)), wanted) => Step::Rest,
        None => Step::Add,
    }
}

/// Returns whether enough other nodes report problems, given their reasons and messages, for a node with a problem to keep
/// silent.
fn has_enough_reports<'a>(others: impl Iterator<Item = (&'a str, &'a str)>, problem: &NodeProblem) -> bool {
    let (mut all, mut same) = (0, 0);
    let is_of_object = OF_THE_OBJECT.contains(&&*problem.reason);
    for (reason, message) in others {
        all += 1;
        if reason == problem.reason {
            // Nodes that say something else may have another version of the handler.
            same += if is_of_object && message == problem.message { MAX_SAME } else { 1 };
        }
    }
    all >= MAX_NODES || same >= MAX_SAME
}

/// Returns how long a node waits before it adds an entry.
pub fn report_delay(node: &str, object: &Key) -> Duration {
    let hash = u64::from_str_radix(&node_hash(&format!("{node} {object}")), 16).unwrap_or_default();
    SPREAD / 1000 * u32::try_from(hash % 1000).unwrap_or_default()
}

/// Returns how long a node that wants to join an Instance leaves that to the controller, which joins many at once. Not all nodes give
/// up at the same time.
pub fn join_delay(node: &str, instance: &Key) -> Duration {
    JOINED_IN + report_delay(node, instance) * 10
}

/// The entries of an object whose nodes' agents do not run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StaleReports {
    /// The nodes whose entries are to be removed.
    pub nodes: BTreeSet<String>,
    /// The time until another entry may be stale; `None` if no other is left.
    pub next: Option<Duration>,
}

/// Returns the entries that their nodes do not withdraw, since no agent runs there. `lease_left` is the time that a node's Lease
/// is still good, `None` without a good one; `now` is in Unix seconds. An entry that is younger than a Lease is good stays: an
/// agent that returns, or that cannot renew its Lease, writes its entry again.
pub fn stale(
    shown: &BTreeMap<String, NodeProblem>,
    lease_left: impl Fn(&str) -> Option<Duration>,
    now: i64,
) -> StaleReports {
    let mut stale = StaleReports::default();
    for (node, problem) in shown {
        let age = Duration::from_secs(now.abs_diff(problem.since.unwrap_or_default())); // clocks may be ahead
        match lease_left(node).unwrap_or_else(|| agent_lease::GOOD_FOR.saturating_sub(age)) {
            Duration::ZERO => drop(stale.nodes.insert(node.clone())),
            left => stale.next = Some(stale.next.map_or(left, |next| next.min(left))),
        }
    }
    stale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(reason: &str, message: &str) -> NodeProblem {
        NodeProblem::new(reason, message)
    }

    fn shown(reasons: &[(&str, usize)]) -> BTreeMap<String, NodeProblem> {
        let entries = |(reason, count): &(&str, usize)| {
            let reason = (*reason).to_owned();
            (0..*count).map(move |number| (format!("{reason}-{number}"), report(&reason, "m"))).collect::<Vec<_>>()
        };
        reasons.iter().flat_map(entries).collect()
    }

    #[test] // rule 61
    fn three_nodes_report_the_same_problem() {
        let wanted = report("R", "another message");
        for (others, expected) in [
            (&[][..], Step::Add),
            (&[("R", 2), ("S", 3)], Step::Add),
            (&[("R", 3)], Step::Rest),
            (&[("S", 19)], Step::Add),
            (&[("S", 20)], Step::Rest),
        ] {
            assert_eq!(step(&shown(others), |_| true, "a", Some(&wanted)), expected, "{others:?}");
        }
    }

    #[test] // rule 61
    fn one_node_reports_details_that_are_invalid_on_all() {
        let wanted = |message| Some(report("InvalidDetails", message));
        let next =
            |shown: &[(&str, usize)], message| step(&self::shown(shown), |_| true, "a", wanted(message).as_ref());
        assert_eq!(next(&[("R", 3)], "m"), Step::Add);
        assert_eq!(next(&[("InvalidDetails", 1)], "m"), Step::Rest);
        assert_eq!(next(&[("InvalidDetails", 2)], "of another version"), Step::Add);
        assert_eq!(next(&[("InvalidDetails", 3)], "of another version"), Step::Rest);
    }

    #[test]
    fn own_entry_follows_the_problem() {
        let mut all = shown(&[("R", 20)]);
        assert_eq!(step(&all, |_| true, "a", None), Step::Rest);
        assert_eq!(step(&all, |_| true, "R-0", Some(&report("R", "m"))), Step::Rest);
        assert_eq!(step(&all, |_| true, "R-0", Some(&report("R", "new"))), Step::Change);
        assert_eq!(step(&all, |_| true, "R-0", None), Step::Remove);
        all.remove("R-0");
        assert_eq!(step(&all, |_| true, "a", Some(&report("S", "m"))), Step::Add);
    }

    #[test] // rule 61
    fn others_report_a_problem_that_its_reporters_lost() {
        let wanted = report("R", "m");
        let mut all = shown(&[("R", 3)]);
        assert_eq!(step(&all, |_| true, "a", Some(&wanted)), Step::Rest);
        assert_eq!(step(&all, |other| other != "R-1", "a", Some(&wanted)), Step::Add);
        all.remove("R-1");
        assert_eq!(step(&all, |_| true, "a", Some(&wanted)), Step::Add);
    }

    #[test] // rule 36
    fn entry_is_stale_without_a_lease_unless_it_is_young() {
        let (now, seconds) = (1_000_000, Duration::from_secs);
        for (since, lease, is_stale, next) in [
            (None, None, true, None),
            (Some(now - 180), None, true, None),
            (Some(now - 179), None, false, Some(seconds(1))),
            (Some(now), None, false, Some(seconds(180))),
            (Some(now + 10), None, false, Some(seconds(170))),
            (Some(now + 1000), None, true, None), // a clock that is a day ahead would keep it for a day
            (Some(now - 1000), Some(seconds(7)), false, Some(seconds(7))),
            (None, Some(seconds(7)), false, Some(seconds(7))),
        ] {
            let shown = BTreeMap::from([("a".to_owned(), NodeProblem { since, ..report("R", "m") })]);
            let stale = stale(&shown, |_| lease, now);
            assert_eq!((stale.nodes.contains("a"), stale.next), (is_stale, next), "{since:?} {lease:?}");
        }
    }

    #[test] // rule 36
    fn stale_entries_leave_the_others_and_their_time() {
        let of = |node: &str| (node.to_owned(), report("R", "m"));
        let shown = ["dead", "long", "short"].map(of).into();
        let lease = |node: &str| (node != "dead").then(|| Duration::from_secs(node.len() as u64));
        let expected = StaleReports { nodes: ["dead".to_owned()].into(), next: Some(Duration::from_secs(4)) };
        assert_eq!(stale(&shown, lease, 1_000_000), expected);
    }

    #[test] // rule 61
    fn reports_of_many_nodes_are_spread() {
        let key = Key::new("default", "cam");
        let delays: Vec<Duration> = (0..1000).map(|number| report_delay(&format!("node-{number}"), &key)).collect();
        assert!(delays.iter().all(|delay| *delay < SPREAD));
        let early = delays.iter().filter(|delay| **delay < SPREAD / 10).count();
        assert!((50..200).contains(&early), "{early}");
        assert_ne!(
            report_delay("a", &key),
            report_delay("a", &Key::new("default", "other")),
            "not the same nodes for all objects"
        );
    }
}
