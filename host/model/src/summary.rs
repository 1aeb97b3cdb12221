//! Aggregates the problems of single nodes into the conditions of an object (rule 34, rule 59, rule 61).

use std::collections::BTreeMap;
use std::fmt;

use crate::instance::Online;
use crate::text::cut;

/// Longest message of a condition, in bytes.
pub(crate) const MAX_MESSAGE: usize = 1024;

/// Longest message of a problem, in bytes.
const MAX_PROBLEM: usize = 256;

/// The reason of a node whose last round succeeded with warnings: its devices are served.
pub const INCOMPLETE: &str = "DiscoveryIncomplete";

/// The reason of a node whose last round succeeded and came to nothing but warnings.
pub const NOTHING_FOUND: &str = "NothingFound";

/// The reason of a node that has devices of which no handler can tell whether they are there.
pub const HANDLER_GONE: &str = "HandlerGone";

/// The reason of a node that runs an older component than the DiscoveryHandler wants, since it refuses that one.
pub const OUTDATED: &str = "NewVersionRefused";

/// The reason of a Configuration that no agent serves.
pub const NO_AGENT: &str = "AgentNotRunning";

/// Conditions besides `Ready`, and the reasons of nodes that concern them.
const REASONS: [(&str, &[&str]); 4] = [
    ("HandlerAvailable", &["NoHandler", "Quarantined"]),
    ("DetailsValid", &["InvalidDetails", "InvalidConfiguration"]),
    ("PropertiesResolved", &["PropertiesUnresolved"]),
    ("DiscoveryComplete", &[INCOMPLETE, NOTHING_FOUND]),
];

/// A problem with an object on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeProblem {
    /// A CamelCase word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// The time since which the node reports the reason, in Unix seconds, if known.
    pub since: Option<i64>,
}

impl NodeProblem {
    /// Creates a problem without a time, and cuts its message to length.
    pub fn new(reason: &str, message: &str) -> Self {
        Self { reason: reason.to_owned(), message: cut(message, MAX_PROBLEM).to_owned(), since: None }
    }
}

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It is not known.
    Unknown,
}

impl Truth {
    /// Returns the word that Kubernetes uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A condition without its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The condition's type.
    pub kind: &'static str,
    /// Its status.
    pub truth: Truth,
    /// A CamelCase word.
    pub reason: String,
    /// A sentence, at most 1 KiB.
    pub message: String,
}

impl Verdict {
    /// Creates a verdict and cuts its message to length.
    pub fn new(kind: &'static str, truth: Truth, reason: &str, message: &str) -> Self {
        Self { kind, truth, reason: reason.to_owned(), message: cut(message, MAX_MESSAGE).to_owned() }
    }
}

/// The numbers of Instances of a Configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// All of them.
    pub instances: usize,
    /// The Instances that are online.
    pub online: usize,
}

impl fmt::Display for DeviceCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instances, online } = *self;
        write!(f, "{instances} devices have an Instance")?;
        match instances.saturating_sub(online) {
            0 => Ok(()),
            offline if offline == instances => f.write_str(", all of them offline"),
            offline => write!(f, ", {offline} of them offline"),
        }
    }
}

/// Returns the conditions of a Configuration. `invalid` is what is wrong with the object itself, on every node; `has_agent`
/// is false if no agent renews its Lease.
pub fn configuration(
    invalid: Option<&str>,
    nodes: &BTreeMap<String, NodeProblem>,
    devices: DeviceCounts,
    has_agent: bool,
) -> Vec<Verdict> {
    if let Some(why) = invalid {
        let kinds = ["Ready", "DetailsValid"];
        return kinds.map(|kind| Verdict::new(kind, Truth::False, "InvalidConfiguration", why)).into();
    }
    if !has_agent {
        let message = "no agent runs, so nobody looks for devices; check the DaemonSet of the agents";
        let kinds = std::iter::once("Ready").chain(REASONS.iter().map(|(kind, _)| *kind));
        return kinds.map(|kind| Verdict::new(kind, Truth::Unknown, NO_AGENT, message)).collect();
    }
    let failing = |problem: &NodeProblem| problem.reason != INCOMPLETE;
    let ready = verdict("Ready", nodes, failing, ("Discovered", &devices.to_string()));
    let others = REASONS.iter().map(|(kind, reasons)| {
        let concerns = |problem: &NodeProblem| reasons.contains(&problem.reason.as_str());
        verdict(kind, nodes, concerns, ("Accepted", ""))
    });
    std::iter::once(ready).chain(others).collect()
}

/// Returns the conditions of a DiscoveryHandler: whether nodes can use it, and whether they run what it wants. `has_agent` is
/// false if no agent renews its Lease.
pub fn handler(nodes: &BTreeMap<String, NodeProblem>, has_agent: bool) -> Vec<Verdict> {
    if !has_agent {
        let message = "no agent runs, so nobody loads the handler; check the DaemonSet of the agents";
        return ["Ready", "Accepted"].map(|kind| Verdict::new(kind, Truth::Unknown, NO_AGENT, message)).into();
    }
    let unusable = |problem: &NodeProblem| problem.reason != OUTDATED;
    vec![
        verdict("Ready", nodes, unusable, ("Loaded", "no node has a problem with it")),
        verdict("Accepted", nodes, |_| true, ("Accepted", "")),
    ]
}

/// Returns whether a device answers: it does if one of its nodes sees it.
pub fn online(nodes: &[String], problems: &BTreeMap<String, NodeProblem>) -> Online {
    if nodes.is_empty() {
        return Online::False;
    }
    let seen = |node: &&String| !problems.contains_key(*node);
    if nodes.iter().any(|node| seen(&node)) {
        return Online::True;
    }
    let unknown = nodes.iter().filter_map(|node| problems.get(node)).any(|problem| problem.reason == HANDLER_GONE);
    if unknown { Online::Unknown } else { Online::False }
}

fn verdict(
    kind: &'static str,
    nodes: &BTreeMap<String, NodeProblem>,
    concerns: impl Fn(&NodeProblem) -> bool,
    (good, message): (&str, &str),
) -> Verdict {
    let mut problems = nodes.iter().filter(|(_, problem)| concerns(problem)).peekable();
    match problems.peek().map(|(_, first)| first.reason.clone()) {
        None => Verdict::new(kind, Truth::True, good, message),
        Some(reason) => Verdict::new(kind, Truth::False, &reason, &joined(problems)),
    }
}

fn joined<'a>(nodes: impl Iterator<Item = (&'a String, &'a NodeProblem)>) -> String {
    let lines: Vec<String> = nodes.map(|(node, problem)| format!("{node}: {}", problem.message)).collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(nodes: &[(&str, &str)]) -> BTreeMap<String, NodeProblem> {
        let problem = |reason: &str| NodeProblem::new(reason, &format!("no {reason}"));
        nodes.iter().map(|(node, reason)| ((*node).to_owned(), problem(reason))).collect()
    }

    fn devices(instances: usize) -> DeviceCounts {
        DeviceCounts { instances, online: instances }
    }

    fn false_ones(verdicts: &[Verdict]) -> Vec<(&str, &str, &str)> {
        let of = |verdict: &&Verdict| verdict.truth == Truth::False;
        verdicts.iter().filter(of).map(|v| (v.kind, v.reason.as_str(), v.message.as_str())).collect()
    }

    #[test]
    fn all_conditions_hold_without_problems() {
        let verdicts = configuration(None, &problems(&[]), devices(3), true);
        assert_eq!(false_ones(&verdicts), []);
        assert_eq!(verdicts[0].message, "3 devices have an Instance");
    }

    #[test] // rule 34
    fn problem_of_a_node_is_named_with_the_node() {
        let verdicts = configuration(None, &problems(&[("a", "Unavailable"), ("b", "NoHandler")]), devices(1), true);
        assert_eq!(
            false_ones(&verdicts),
            [
                ("Ready", "Unavailable", "a: no Unavailable; b: no NoHandler"),
                ("HandlerAvailable", "NoHandler", "b: no NoHandler")
            ]
        );
    }

    #[test] // rule 61
    fn warnings_make_discovery_incomplete_but_ready() {
        let verdicts = configuration(None, &problems(&[("a", INCOMPLETE)]), devices(1), true);
        assert_eq!(false_ones(&verdicts), [("DiscoveryComplete", INCOMPLETE, "a: no DiscoveryIncomplete")]);
    }

    #[test] // rule 34
    fn nothing_but_warnings_is_neither_ready_nor_complete() {
        let verdicts = configuration(None, &problems(&[("a", NOTHING_FOUND)]), devices(0), true);
        let kinds: Vec<&str> = false_ones(&verdicts).into_iter().map(|(kind, ..)| kind).collect();
        assert_eq!(kinds, ["Ready", "DiscoveryComplete"]);
    }

    #[test] // rule 34
    fn offline_devices_are_counted_in_the_message() {
        for (instances, online, expected) in [
            (2, 2, "2 devices have an Instance"),
            (0, 0, "0 devices have an Instance"),
            (2, 0, "2 devices have an Instance, all of them offline"),
            (3, 2, "3 devices have an Instance, 1 of them offline"),
        ] {
            let verdicts = configuration(None, &problems(&[]), DeviceCounts { instances, online }, true);
            assert_eq!(verdicts[0].message, expected);
        }
    }

    #[test] // rule 59
    fn nothing_is_known_without_an_agent() {
        let verdicts = configuration(None, &problems(&[]), devices(3), false);
        assert!(verdicts.iter().all(|verdict| (verdict.truth, &*verdict.reason) == (Truth::Unknown, NO_AGENT)));
        assert_eq!(verdicts.len(), 5);
    }

    #[test] // rule 61
    fn handler_that_a_node_refuses_is_not_ready() {
        let ready = handler(&problems(&[]), true);
        assert!(ready.iter().all(|verdict| verdict.truth == Truth::True));
        let outdated = handler(&problems(&[("a", OUTDATED)]), true);
        assert_eq!(false_ones(&outdated), [("Accepted", OUTDATED, "a: no NewVersionRefused")]);
        let refused = handler(&problems(&[("a", OUTDATED), ("b", "FileMissing")]), true);
        assert_eq!(false_ones(&refused)[0], ("Ready", "FileMissing", "b: no FileMissing"));
        assert!(handler(&problems(&[]), false).iter().all(|verdict| verdict.truth == Truth::Unknown));
    }

    #[test]
    fn invalid_object_is_wrong_on_every_node() {
        for has_agent in [true, false] {
            let verdicts = configuration(Some("/spec/capacity: 0"), &problems(&[]), devices(0), has_agent);
            assert_eq!(false_ones(&verdicts).len(), 2);
            assert!(verdicts.iter().all(|verdict| verdict.message == "/spec/capacity: 0"));
        }
    }

    #[test]
    fn device_is_online_if_one_node_sees_it() {
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (names, missing, expected) in [
            (&["a", "b"][..], &[][..], Online::True),
            (&["a", "b"], &[("a", "NotFound")], Online::True),
            (&["a", "b"], &[("a", "NotFound"), ("b", "NotFound")], Online::False),
            (&["a"], &[("a", "HandlerGone")], Online::Unknown),
            (&["a"], &[("gone", "NotFound")], Online::True),
            (&[], &[], Online::False),
        ] {
            assert_eq!(online(&nodes(names), &problems(missing)), expected, "{names:?} {missing:?}");
        }
    }
}
