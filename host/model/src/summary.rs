//! Aggregates the problems of single nodes into the conditions of an object (rule 34, rule 59, rule 61).

use std::collections::BTreeMap;
use std::fmt;

use crate::chain::{Link, link_of};
use crate::instance::Online;
use crate::left_out::FILTERED;
use crate::sharing::Missed;
use crate::text::cut_with_dots;

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

/// The end of the message of a failed round where there are devices.
const KEPT: &str = "; known devices stay as they are";

/// Reasons of nodes with a problem that may change devices. With all others known devices stay as they are.
const DEVICES_MAY_CHANGE: [&str; 5] = ["NoHandler", INCOMPLETE, NOTHING_FOUND, "NotPublished", "ResourceNameTaken"];

/// Reasons of nodes whose devices are served.
pub const HARMLESS: [&str; 2] = [INCOMPLETE, FILTERED];

/// Conditions besides `Ready`: the reason of each while it holds, and the link of the chain that it is about.
const CONDITIONS: [(&str, &str, Link); 4] = [
    ("HandlerAvailable", "Running", Link::Handler),
    ("DetailsValid", "Accepted", Link::Details),
    ("PropertiesResolved", "Resolved", Link::Properties),
    ("DiscoveryComplete", "Complete", Link::Devices),
];

/// The reason why nothing is known about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// No agent renews its Lease.
    NoAgent,
    /// No node that `discoverOn` selects has an agent (rule 126).
    NoMatchingNode,
    /// No agent has looked at the object since it was made or edited (rule 131).
    Pending,
    /// A remote handler is connected, and has not reported yet.
    NothingReported,
}

impl Unknown {
    /// Returns a condition; `pending` is what no agent has done yet.
    fn condition(self, kind: &'static str, pending: &str) -> ConditionState {
        let (reason, message) = match self {
            Self::NoAgent => {
                ("NoAgent", "no agent runs, so nobody looks for devices; check the DaemonSet of the agents")
            }
            Self::NoMatchingNode => (
                "NoMatchingNode",
                "no node that discoverOn.nodeSelector selects has an agent that runs, so nobody looks for devices; label a node, or \
                 correct the selector",
            ),
            Self::Pending => ("Pending", pending),
            Self::NothingReported => ("NothingReported", "the remote handler has not reported any devices yet"),
        };
        ConditionState::new(kind, Truth::Unknown, reason, message)
    }
}

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
        Self { reason: reason.to_owned(), message: cut_with_dots(message, MAX_PROBLEM), since: None }
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
pub struct ConditionState {
    /// The condition's type.
    pub kind: &'static str,
    /// Its status.
    pub truth: Truth,
    /// A CamelCase word.
    pub reason: String,
    /// A sentence, at most 1 KiB.
    pub message: String,
}

impl ConditionState {
    /// Creates a verdict and cuts its message to length.
    pub fn new(kind: &'static str, truth: Truth, reason: &str, message: &str) -> Self {
        Self { kind, truth, reason: reason.to_owned(), message: cut_with_dots(message, MAX_MESSAGE) }
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
        match instances {
            1 => f.write_str("1 device has an Instance"),
            _ => write!(f, "{instances} devices have an Instance"),
        }?;
        match instances.saturating_sub(online) {
            0 => Ok(()),
            offline if offline == instances => f.write_str(", all of them offline"),
            offline => write!(f, ", {offline} of them offline"),
        }
    }
}

/// Returns the conditions of a Configuration, in a cluster and in local mode. `invalid` is what is wrong with the object itself, on
/// every node; `nodes` has the problem of each node that has one, and a node without a name is the only one.
pub fn configuration(
    invalid: Option<&str>,
    nodes: &BTreeMap<String, NodeProblem>,
    devices: DeviceCounts,
    unknown: Option<Unknown>,
) -> Vec<ConditionState> {
    if let Some(why) = invalid {
        let kinds = ["Ready", "DetailsValid"];
        return kinds.map(|kind| ConditionState::new(kind, Truth::False, "InvalidConfiguration", why)).into();
    }
    if let Some(unknown) = unknown {
        let kinds = std::iter::once("Ready").chain(CONDITIONS.iter().map(|(kind, ..)| *kind));
        let pending = "no round has ended since the Configuration was made or edited";
        return kinds.map(|kind| unknown.condition(kind, pending)).collect();
    }
    let failing = |problem: &NodeProblem| !HARMLESS.contains(&&*problem.reason);
    let mut ready = state("Ready", nodes, failing, ("Discovered", &discovered(nodes, devices)));
    let keeps_devices = |problem: &NodeProblem| !DEVICES_MAY_CHANGE.contains(&&*problem.reason);
    if devices.instances > 0 && nodes.values().any(failing) && nodes.values().all(keeps_devices) {
        ready.message = cut_with_dots(&ready.message, MAX_MESSAGE - KEPT.len()) + KEPT;
    }
    let others = CONDITIONS.iter().map(|(kind, holds, link)| {
        let concerns = |problem: &NodeProblem| link_of(&problem.reason) == *link && problem.reason != FILTERED;
        state(kind, nodes, concerns, (holds, ""))
    });
    std::iter::once(ready).chain(others).collect()
}

/// Returns the message of a Configuration that is ready: its devices, and what filters left out where that is all there is.
fn discovered(nodes: &BTreeMap<String, NodeProblem>, devices: DeviceCounts) -> String {
    let is_shown = |(node, problem): &(&String, &NodeProblem)| {
        problem.reason == FILTERED && (devices.instances == 0 || node.is_empty())
    };
    let left_out = joined(nodes.iter().filter(is_shown));
    if left_out.is_empty() { devices.to_string() } else { format!("{devices}; {left_out}") }
}

/// Returns the conditions of a DiscoveryHandler: whether nodes can use it, and whether they run what it wants.
pub fn handler(nodes: &BTreeMap<String, NodeProblem>, unknown: Option<Unknown>) -> Vec<ConditionState> {
    if let Some(unknown) = unknown {
        let pending = "no agent has loaded or refused the component since the DiscoveryHandler was made or edited";
        return ["Ready", "Accepted"].map(|kind| unknown.condition(kind, pending)).into();
    }
    let unusable = |problem: &NodeProblem| problem.reason != OUTDATED;
    vec![
        state("Ready", nodes, unusable, ("Loaded", "no node has a problem with it")),
        state("Accepted", nodes, |_| true, ("Accepted", "")),
    ]
}

/// Returns whether a device answers: it does if one of its nodes sees it. A few nodes write that they miss it, the others tell so in
/// their Leases (rule 114).
pub fn online(
    nodes: &[String],
    problems: &BTreeMap<String, NodeProblem>,
    missing: Option<&BTreeMap<String, Missed>>,
) -> Online {
    let of_node = |node: &String| match problems.get(node) {
        Some(problem) if problem.reason == HANDLER_GONE => Online::Unknown,
        Some(_) => Online::False,
        None => missing.and_then(|missing| missing.get(node)).map_or(Online::True, |missed| missed.online),
    };
    let all: Vec<Online> = nodes.iter().map(of_node).collect();
    let best = [Online::True, Online::Unknown].into_iter().find(|online| all.contains(online));
    best.unwrap_or(Online::False)
}

/// The message of a node that misses a device.
pub const NOT_SEEN: &str = "the last round of discovery did not see the device";

/// Returns the condition `Online` of an Instance, with the message `missing` if nobody sees its device.
pub fn online_condition(online: Online, missing: &str) -> ConditionState {
    let (truth, reason, message) = match online {
        Online::True => (Truth::True, "Discovered", ""),
        Online::False => (Truth::False, "NotFound", missing),
        Online::Unknown => (Truth::Unknown, HANDLER_GONE, "no handler can tell whether the device is there"),
    };
    ConditionState::new("Online", truth, reason, message)
}

fn state(
    kind: &'static str,
    nodes: &BTreeMap<String, NodeProblem>,
    concerns: impl Fn(&NodeProblem) -> bool,
    (good, message): (&str, &str),
) -> ConditionState {
    let mut problems = nodes.iter().filter(|(_, problem)| concerns(problem)).peekable();
    match problems.peek().map(|(_, first)| first.reason.clone()) {
        None => ConditionState::new(kind, Truth::True, good, message),
        Some(reason) => ConditionState::new(kind, Truth::False, &reason, &joined(problems)),
    }
}

fn joined<'a>(nodes: impl Iterator<Item = (&'a String, &'a NodeProblem)>) -> String {
    let line = |(node, problem): (&String, &NodeProblem)| match node.as_str() {
        "" => problem.message.clone(),
        node => format!("{node}: {}", problem.message),
    };
    let lines: Vec<String> = nodes.map(line).collect();
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

    fn false_ones(verdicts: &[ConditionState]) -> Vec<(&str, &str, &str)> {
        let of = |state: &&ConditionState| state.truth == Truth::False;
        verdicts.iter().filter(of).map(|v| (v.kind, v.reason.as_str(), v.message.as_str())).collect()
    }

    #[test]
    fn all_conditions_hold_without_problems() {
        let verdicts = configuration(None, &problems(&[]), devices(3), None);
        assert_eq!(false_ones(&verdicts), []);
        assert_eq!(verdicts[0].message, "3 devices have an Instance");
    }

    #[test] // rule 138
    fn ready_message_has_what_filters_left_out() {
        let message = |nodes: &[(&str, &str)], count| {
            let verdicts = configuration(None, &problems(nodes), devices(count), None);
            assert_eq!(false_ones(&verdicts), []);
            verdicts[0].message.clone()
        };
        assert_eq!(message(&[("a", FILTERED)], 0), "0 devices have an Instance; a: no Filtered");
        assert_eq!(message(&[("a", FILTERED)], 1), "1 device has an Instance", "of other nodes");
        assert_eq!(message(&[("", FILTERED)], 1), "1 device has an Instance; no Filtered");
    }

    #[test] // rule 34
    fn problem_of_a_node_is_named_with_the_node() {
        let verdicts = configuration(None, &problems(&[("a", "Unavailable"), ("b", "NoHandler")]), devices(1), None);
        assert_eq!(
            false_ones(&verdicts),
            [
                ("Ready", "Unavailable", "a: no Unavailable; b: no NoHandler"),
                ("HandlerAvailable", "NoHandler", "b: no NoHandler")
            ]
        );
    }

    #[test]
    fn failure_mentions_devices_that_are_kept() {
        let ready = |nodes: &[(&str, &str)], count| {
            let verdicts = configuration(None, &problems(nodes), devices(count), None);
            verdicts[0].message.clone()
        };
        let failed = [("", "Unavailable")];
        assert_eq!(ready(&failed, 0), "no Unavailable", "the only node has no name");
        assert_eq!(ready(&failed, 2), "no Unavailable; known devices stay as they are");
        assert_eq!(ready(&[("", "NoHandler")], 2), "no NoHandler");
    }

    #[test]
    fn nothing_is_known_before_the_first_report() {
        for (unknown, reason) in [(Unknown::Pending, "Pending"), (Unknown::NothingReported, "NothingReported")] {
            let verdicts = configuration(None, &problems(&[]), devices(0), Some(unknown));
            assert!(verdicts.iter().all(|state| (state.truth, &*state.reason) == (Truth::Unknown, reason)));
        }
    }

    #[test] // rule 61
    fn warnings_make_discovery_incomplete_but_ready() {
        let verdicts = configuration(None, &problems(&[("a", INCOMPLETE)]), devices(1), None);
        assert_eq!(false_ones(&verdicts), [("DiscoveryComplete", INCOMPLETE, "a: no DiscoveryIncomplete")]);
    }

    #[test] // rule 34
    fn nothing_but_warnings_is_neither_ready_nor_complete() {
        let verdicts = configuration(None, &problems(&[("a", NOTHING_FOUND)]), devices(0), None);
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
            let verdicts = configuration(None, &problems(&[]), DeviceCounts { instances, online }, None);
            assert_eq!(verdicts[0].message, expected);
        }
    }

    #[test] // rule 59
    fn nothing_is_known_without_an_agent() {
        let verdicts = configuration(None, &problems(&[]), devices(3), Some(Unknown::NoAgent));
        assert!(verdicts.iter().all(|state| (state.truth, &*state.reason) == (Truth::Unknown, "NoAgent")));
        assert_eq!(verdicts.len(), 5);
    }

    #[test] // rule 61
    fn handler_that_a_node_refuses_is_not_ready() {
        let ready = handler(&problems(&[]), None);
        assert!(ready.iter().all(|state| state.truth == Truth::True));
        let outdated = handler(&problems(&[("a", OUTDATED)]), None);
        assert_eq!(false_ones(&outdated), [("Accepted", OUTDATED, "a: no NewVersionRefused")]);
        let refused = handler(&problems(&[("a", OUTDATED), ("b", "FileMissing")]), None);
        assert_eq!(false_ones(&refused)[0], ("Ready", "FileMissing", "b: no FileMissing"));
    }

    #[test] // rule 59, rule 131
    fn handler_is_unknown_until_an_agent_has_looked_at_it() {
        for (unknown, reason) in [(Unknown::NoAgent, "NoAgent"), (Unknown::Pending, "Pending")] {
            let states = handler(&problems(&[("a", "FileMissing")]), Some(unknown));
            assert!(states.iter().all(|state| (state.truth, &*state.reason) == (Truth::Unknown, reason)), "{states:?}");
            assert!(states.iter().all(|state| !state.message.contains("round")), "a handler has none: {states:?}");
        }
    }

    #[test]
    fn invalid_object_is_wrong_on_every_node() {
        for unknown in [None, Some(Unknown::NoAgent)] {
            let verdicts = configuration(Some("/spec/capacity: 0"), &problems(&[]), devices(0), unknown);
            assert_eq!(false_ones(&verdicts).len(), 2);
            assert!(verdicts.iter().all(|state| state.message == "/spec/capacity: 0"));
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
            assert_eq!(online(&nodes(names), &problems(missing), None), expected, "{names:?} {missing:?}");
        }
    }

    #[test] // rule 114
    fn three_nodes_write_and_the_others_are_counted() {
        let nodes: Vec<String> = (0..1000).map(|number| format!("n{number}")).collect();
        let written = problems(&[("n0", "NotFound"), ("n1", "NotFound"), ("n2", "NotFound")]);
        let missed = |online| Missed { online, since: 7 };
        let others = |from: usize, online| nodes[from..].iter().map(|node| (node.clone(), missed(online))).collect();
        for (missing, expected) in [
            (BTreeMap::new(), Online::True),
            (others(4, Online::False), Online::True),
            (others(3, Online::False), Online::False),
            (others(999, Online::Unknown), Online::True),
            (others(3, Online::Unknown), Online::Unknown),
        ] {
            assert_eq!(online(&nodes, &written, Some(&missing)), expected, "{} nodes tell", missing.len());
        }
        assert_eq!(online(&nodes, &BTreeMap::new(), Some(&others(0, Online::False))), Online::False);
    }
}
