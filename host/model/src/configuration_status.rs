//! The status of a Configuration on one node, and the problem to report (rule 34).

use std::collections::BTreeMap;

use crate::device::{DeviceSet, Note};
use crate::discovery::RoundError;
use crate::left_out::{FILTERED, LeftOut};
use crate::names::{Key, resource_name};
use crate::reclaim::ContainerName;
use crate::summary::{DeviceCounts, HARMLESS, INCOMPLETE, MAX_MESSAGE, NOTHING_FOUND, NodeProblem, Unknown};
use crate::text::cut_with_dots;

/// Origins that are named of warnings that say the same.
const GROUPED: usize = 3;

/// The status of discovery, of all sources of a Configuration together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DiscoveryStatus {
    /// No round has ended.
    #[default]
    Starting,
    /// Other nodes run discovery (rule 126).
    LeftToOthers,
    /// A remote handler is connected, and no source has reported yet.
    Silent,
    /// All sources fail. Known devices are unchanged.
    Failed(RoundError),
    /// A source reports devices.
    Found {
        /// The warnings of all sources.
        notes: Vec<Note>,
        /// The number of warnings beyond the limit.
        dropped: u64,
        /// Set if there are warnings and no device: the devices may be behind that.
        only_warnings: bool,
        /// Set if known devices are kept, since the handler could not look.
        keeps: bool,
        /// The devices that filters left out.
        left_out: LeftOut,
    },
}

impl DiscoveryStatus {
    /// Returns the status for a set of devices.
    pub fn found(set: &DeviceSet) -> Self {
        let (only_warnings, keeps) = (set.has_only_warnings(), !set.kept.is_empty());
        let (notes, left_out) = (set.notes.clone(), set.left_out.clone());
        Self::Found { notes, dropped: set.notes_dropped, only_warnings, keeps, left_out }
    }

    /// Returns all warnings in one line; empty if there are none.
    fn warnings(&self) -> String {
        let Self::Found { notes, dropped, .. } = self else { return String::new() };
        let more = (*dropped > 0).then(|| format!("and {dropped} more"));
        grouped(notes).into_iter().chain(more).collect::<Vec<String>>().join("; ")
    }
}

/// Returns the sentences of notes: one for those that say the same of several origins.
fn grouped(notes: &[Note]) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for note in notes {
        match groups.iter_mut().find(|(message, _)| *message == note.message) {
            Some((_, origins)) => origins.push(&note.origin),
            None => groups.push((&note.message, vec![&note.origin])),
        }
    }
    let sentence = |(message, origins): (&str, Vec<&str>)| {
        let named: Vec<&str> =
            origins.iter().filter(|origin| !message.contains(*origin)).take(GROUPED).copied().collect();
        let more = origins.len().saturating_sub(named.len().max(1));
        match (named.is_empty(), more) {
            (true, _) => message.to_owned(),
            (false, 0) => format!("{}: {message}", named.join(", ")),
            (false, more) => format!("{} and {more} more: {message}", named.join(", ")),
        }
    };
    groups.into_iter().map(sentence).collect()
}

/// The status of a Configuration on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigurationStatus {
    /// The status of discovery.
    pub discovery: DiscoveryStatus,
    /// Set if no source has answered since the Configuration was edited.
    pub unanswered: bool,
    /// Resource names that older Configurations have, with these.
    pub taken: BTreeMap<String, Key>,
    /// The number of devices without an Instance, with the id of the first one and the reason for that: a handler may have many.
    pub unpublished: Option<(usize, String, String)>,
    /// The devices with an Instance.
    pub devices: DeviceCounts,
    /// The Node object of this node is missing (rule 100).
    pub node_missing: bool,
    /// A slot that stays taken for a container that the kubelet lists without it, as nothing can tell whether it runs (rule 102).
    pub uncertain: Option<(String, ContainerName)>,
    /// Names of Instances that are not those that the Configuration wants, a sentence each (rule 125).
    pub names: Vec<String>,
}

impl ConfigurationStatus {
    /// Returns the problem of this node: the Configuration is not ready, or its discovery is incomplete. What filters left out is
    /// none where there are devices.
    pub fn problem(&self) -> Option<NodeProblem> {
        let is_without_devices = self.devices.instances == 0;
        self.slots_problem().or_else(|| self.left_out().filter(|_| is_without_devices))
    }

    /// Returns the problem of the only node, with what filters left out: there is room for it.
    pub fn problem_and_left_out(&self) -> Option<NodeProblem> {
        match (self.problem(), self.left_out()) {
            (Some(of), Some(left_out)) if of.reason == INCOMPLETE => {
                problem(INCOMPLETE, &format!("{}; {}", of.message, left_out.message))
            }
            (of, left_out) => of.or(left_out),
        }
    }

    /// Returns what filters left out on this node.
    pub fn left_out(&self) -> Option<NodeProblem> {
        let DiscoveryStatus::Found { left_out, .. } = &self.discovery else { return None };
        if left_out.is_empty() { None } else { problem(FILTERED, &left_out.to_string()) }
    }

    fn slots_problem(&self) -> Option<NodeProblem> {
        self.devices_problem().or_else(|| {
            let (slot, ContainerName { namespace, pod, container }) = self.uncertain.as_ref()?;
            let message = format!(
                "{slot} stays taken: the kubelet lists '{container}' of pod {namespace}/{pod} without it, and its cgroup can't be \
                 read; delete the pod if it has ended, and let the agent see cgroups (--cgroups)"
            );
            problem("SlotUncertain", &message)
        })
    }

    fn devices_problem(&self) -> Option<NodeProblem> {
        if self.node_missing {
            let message = "the Node object of this node is missing: containers keep their devices, and nothing new is joined; \
                           register the node again, or stop its agent";
            return problem("NodeMissing", message);
        }
        match (&self.discovery, self.taken.first_key_value(), &self.unpublished) {
            (DiscoveryStatus::Failed(error), ..) => problem(error.reason(), &error.to_string()),
            (DiscoveryStatus::Silent, ..) => None,
            (_, Some((name, holder)), _) => {
                let resource = resource_name(name);
                let message = format!(
                    "{resource} is the resource of Configuration {holder}, which was first; rename one of them"
                );
                problem("ResourceNameTaken", &message)
            }
            (DiscoveryStatus::Starting | DiscoveryStatus::LeftToOthers, ..) => None,
            (DiscoveryStatus::Found { .. }, None, Some((count, device, error))) => {
                let message = format!("{count} devices have no Instance, such as '{device}': {error}");
                problem("NotPublished", &message)
            }
            (DiscoveryStatus::Found { only_warnings, keeps, .. }, None, None) => {
                let is_nothing = *only_warnings && !(*keeps && self.devices.online > 0);
                let warnings = self.warnings()?;
                let left_out = self.left_out().filter(|_| is_nothing).map(|of| format!("; {}", of.message));
                problem(
                    if is_nothing { NOTHING_FOUND } else { INCOMPLETE },
                    &(warnings + &left_out.unwrap_or_default()),
                )
            }
        }
    }

    /// Returns the reason why nothing is known yet.
    pub fn unknown(&self) -> Option<Unknown> {
        match self.discovery {
            DiscoveryStatus::Silent => Some(Unknown::NothingReported),
            _ if !self.taken.is_empty() => None,
            DiscoveryStatus::Starting => Some(Unknown::Pending),
            _ => self.unanswered.then_some(Unknown::Pending),
        }
    }

    /// Returns whether the devices of the last rounds are served.
    pub fn is_ready(&self) -> bool {
        self.unknown().is_none() && self.problem().is_none_or(|problem| HARMLESS.contains(&&*problem.reason))
    }

    /// Returns whether the last rounds succeeded without a warning.
    pub fn is_complete(&self) -> bool {
        let is_known = matches!(self.discovery, DiscoveryStatus::Found { .. } | DiscoveryStatus::LeftToOthers);
        is_known && self.warnings().is_none()
    }

    /// Returns the warnings of a successful round, if there are any, as far as a condition has room for them.
    pub fn warnings(&self) -> Option<String> {
        let warnings = [self.discovery.warnings(), self.names.join("; ")];
        let warnings = warnings.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
        Some(cut_with_dots(&warnings, MAX_MESSAGE)).filter(|warnings| !warnings.is_empty())
    }
}

fn problem(reason: &str, message: &str) -> Option<NodeProblem> {
    Some(NodeProblem { reason: reason.to_owned(), message: cut_with_dots(message, MAX_MESSAGE), since: None })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::Device;

    fn note(origin: &str) -> Note {
        Note { origin: origin.into(), reason: "Dead".into(), message: "no answer".into() }
    }

    fn status(discovery: DiscoveryStatus) -> ConfigurationStatus {
        ConfigurationStatus { discovery, ..ConfigurationStatus::default() }
    }

    fn found(devices: usize, notes: Vec<Note>) -> ConfigurationStatus {
        let set = DeviceSet { devices: vec![Device::default(); devices], notes, ..DeviceSet::default() };
        status(DiscoveryStatus::found(&set))
    }

    fn failed(error: RoundError) -> ConfigurationStatus {
        status(DiscoveryStatus::Failed(error))
    }

    #[test] // rule 61
    fn problem_is_a_failure_or_a_warning() {
        let reason = |status: &ConfigurationStatus| status.problem().map(|problem| problem.reason);
        for (status, expected) in [
            (ConfigurationStatus::default(), None),
            (status(DiscoveryStatus::Silent), None),
            (failed(RoundError::NoHandler("m".into())), Some("NoHandler")),
            (found(1, Vec::new()), None),
            (found(1, vec![note("a")]), Some(INCOMPLETE)),
            (found(0, vec![note("a")]), Some(NOTHING_FOUND)),
            (status(DiscoveryStatus::LeftToOthers), None),
        ] {
            assert_eq!(reason(&status).as_deref(), expected, "{status:?}");
        }
    }

    #[test] // rule 34
    fn warnings_beside_kept_devices_leave_it_ready() {
        let status_of = |kept: &[&str], online| {
            let kept = kept.iter().map(|origin| (*origin).to_owned()).collect();
            let set = DeviceSet { kept, notes: vec![note("mqtt://a")], ..DeviceSet::default() };
            let devices = DeviceCounts { instances: 8, online };
            ConfigurationStatus { devices, ..status(DiscoveryStatus::found(&set)) }
        };
        let kept = |online| status_of(&["mqtt://a"], online);
        assert_eq!(kept(8).problem().map(|problem| problem.reason).as_deref(), Some(INCOMPLETE));
        assert!(kept(8).is_ready() && !kept(8).is_complete());
        for nothing in [kept(0), status_of(&[], 8)] {
            assert_eq!(nothing.problem().map(|problem| problem.reason).as_deref(), Some(NOTHING_FOUND));
        }
    }

    #[test]
    fn warnings_are_joined_with_their_origins() {
        let warnings = found(1, vec![note("opc.tcp://a"), note("")]).warnings();
        assert_eq!(warnings.as_deref(), Some("opc.tcp://a and 1 more: no answer"));
        let dropped = DiscoveryStatus::Found {
            notes: vec![note("")],
            dropped: 3,
            only_warnings: false,
            keeps: false,
            left_out: LeftOut::default(),
        };
        assert_eq!(status(dropped).warnings().as_deref(), Some("no answer; and 3 more"));
    }

    #[test]
    fn taken_name_comes_before_an_unpublished_device() {
        let unpublished = Some((2, "a".to_owned(), "no name is free".to_owned()));
        let mut status = ConfigurationStatus { unpublished, ..found(2, Vec::new()) };
        let problem = status.problem().unwrap();
        assert_eq!(problem.reason, "NotPublished");
        assert_eq!(problem.message, "2 devices have no Instance, such as 'a': no name is free");
        for discovery in [DiscoveryStatus::Starting, status.discovery.clone()] {
            status.discovery = discovery;
            status.taken.insert("cam".into(), Key::new("default", "first"));
            assert_eq!(status.problem().unwrap().reason, "ResourceNameTaken");
            assert_eq!((status.unknown(), status.is_ready()), (None, false));
        }
    }

    #[test]
    fn nothing_is_known_before_the_first_result() {
        for (status, unknown, is_ready) in [
            (ConfigurationStatus::default(), Some(Unknown::Pending), false),
            (status(DiscoveryStatus::Silent), Some(Unknown::NothingReported), false),
            (failed(RoundError::Unavailable("m".into())), None, false),
            (found(0, vec![note("a")]), None, false),
            (found(1, vec![note("a")]), None, true),
            (found(0, Vec::new()), None, true),
            (ConfigurationStatus { unanswered: true, ..found(1, Vec::new()) }, Some(Unknown::Pending), false),
        ] {
            assert_eq!((status.unknown(), status.is_ready()), (unknown, is_ready), "{status:?}");
        }
    }

    #[test] // rule 102
    fn uncertain_slot_is_a_problem_if_there_is_no_other() {
        let container = ContainerName { namespace: "n".into(), pod: "p".into(), container: "c".into() };
        let uncertain = Some(("cam-1-0".into(), container));
        let status = ConfigurationStatus { uncertain, ..found(1, Vec::new()) };
        let problem = status.problem().unwrap();
        assert_eq!(problem.reason, "SlotUncertain");
        assert!(problem.message.starts_with("cam-1-0 stays taken: the kubelet lists 'c' of pod n/p without it"));
        assert!(!status.is_ready());
        let failed = ConfigurationStatus { discovery: failed(RoundError::NoHandler("m".into())).discovery, ..status };
        assert_eq!(failed.problem().unwrap().reason, "NoHandler");
    }

    #[test] // rule 92
    fn quarantined_handler_is_not_available() {
        let last = Box::new(RoundError::Trapped("it trapped".into()));
        let quarantined = failed(RoundError::Quarantined { faults: 5, last, pause: Duration::from_secs(600) });
        let message = "quarantined after 5 failed rounds; the next one is in 10 minutes, or at once when the \
                       component, its DiscoveryHandler or the Configuration changes; the last one failed: the handler \
                       trapped: it trapped";
        let problem = quarantined.problem().unwrap();
        assert_eq!((problem.reason.as_str(), problem.message.as_str()), ("Quarantined", message));
    }
}
