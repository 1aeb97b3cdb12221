//! The status of a Configuration on one node: the conditions and the problem that its discovery comes to (rule 34).

use crate::device::{DeviceSet, Note};
use crate::discovery::RoundError;
use crate::names::{Key, resource_name};
use crate::summary::{DeviceCounts, INCOMPLETE, MAX_MESSAGE, NOTHING_FOUND, NodeProblem, Truth, Verdict};
use crate::text::cut;

/// The status of discovery, of all sources of a Configuration together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DiscoveryStatus {
    /// No round has ended.
    #[default]
    Starting,
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
    },
}

impl DiscoveryStatus {
    /// Returns the status for a set of devices.
    pub fn found(set: &DeviceSet) -> Self {
        Self::Found { notes: set.notes.clone(), dropped: set.notes_dropped, only_warnings: set.has_only_warnings() }
    }

    /// Returns all warnings in one line; empty if there are none.
    fn warnings(&self) -> String {
        let Self::Found { notes, dropped, .. } = self else { return String::new() };
        let more = (*dropped > 0).then(|| format!("and {dropped} more"));
        notes.iter().map(|note| note.sentence().into_owned()).chain(more).collect::<Vec<String>>().join("; ")
    }
}

/// The end of the message of a failed round where there are devices.
const KEPT: &str = "; known devices stay as they are";

/// The status of a Configuration on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigurationStatus {
    /// The status of discovery.
    pub discovery: DiscoveryStatus,
    /// A resource name that an older Configuration has, with that Configuration.
    pub conflict: Option<(String, Key)>,
    /// Devices without an Instance.
    pub unpublished: Option<Unpublished>,
    /// Set if a property refers to a ConfigMap or Secret.
    pub has_references: bool,
    /// The devices with an Instance.
    pub devices: DeviceCounts,
}

/// Devices without an Instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpublished {
    /// Their number.
    pub count: usize,
    /// The id of the first one.
    pub device: String,
    /// The reason for that one.
    pub error: String,
}

impl ConfigurationStatus {
    /// Returns all conditions.
    pub fn conditions(&self) -> Vec<Verdict> {
        let ready = std::iter::once(self.ready());
        ready
            .chain(self.of_handler())
            .chain(self.details())
            .chain(self.completeness())
            .chain(self.properties())
            .collect()
    }

    /// Returns the problem to report for this node: the Configuration is not ready, or its discovery is incomplete.
    pub fn problem(&self) -> Option<NodeProblem> {
        let incomplete = || Some(NodeProblem::new(INCOMPLETE, &self.warnings()?));
        let ready = self.ready();
        // Nodes with devices and without say the same, so that one of them is enough.
        let message = ready.message.strip_suffix(KEPT).unwrap_or(&ready.message);
        let failed = (ready.truth == Truth::False).then(|| NodeProblem::new(&ready.reason, message));
        failed.or_else(incomplete)
    }

    /// Returns whether the condition `Ready` holds.
    pub fn is_ready(&self) -> bool {
        self.ready().truth == Truth::True
    }

    /// Returns whether the last rounds succeeded without a warning.
    pub fn is_complete(&self) -> bool {
        matches!(self.discovery, DiscoveryStatus::Found { .. }) && self.warnings().is_none()
    }

    /// Returns the warnings of a successful round, if there are any, as far as a condition has room for them.
    pub fn warnings(&self) -> Option<String> {
        let warnings = self.discovery.warnings();
        Some(cut(&warnings, MAX_MESSAGE).to_owned()).filter(|warnings| !warnings.is_empty())
    }

    fn ready(&self) -> Verdict {
        let ready = |truth, reason: &str, message: &str| Verdict::new("Ready", truth, reason, message);
        match &self.discovery {
            DiscoveryStatus::Silent => {
                ready(Truth::Unknown, "NothingReported", "the remote handler has not reported any devices yet")
            }
            DiscoveryStatus::Failed(error) => ready(Truth::False, error.reason(), &self.failure(error)),
            DiscoveryStatus::Starting | DiscoveryStatus::Found { .. } => match (&self.conflict, &self.unpublished) {
                (Some((name, holder)), _) => {
                    let resource = resource_name(name);
                    let message = format!(
                        "{resource} is the resource of Configuration {holder}, which was first; rename one of them"
                    );
                    ready(Truth::False, "ResourceNameTaken", &message)
                }
                (None, _) if self.discovery == DiscoveryStatus::Starting => {
                    ready(Truth::Unknown, "Starting", "no round has ended yet")
                }
                (None, Some(Unpublished { count, device, error })) => {
                    let message = format!("{count} devices have no Instance, such as '{device}': {error}");
                    ready(Truth::False, "NotPublished", &message)
                }
                (None, None) => self.discovered(),
            },
        }
    }

    fn discovered(&self) -> Verdict {
        match &self.discovery {
            DiscoveryStatus::Found { only_warnings: true, .. } => {
                Verdict::new("Ready", Truth::False, NOTHING_FOUND, &self.discovery.warnings())
            }
            _ => Verdict::new("Ready", Truth::True, "Discovered", &self.devices.to_string()),
        }
    }

    fn failure(&self, error: &RoundError) -> String {
        let keeps_devices = self.devices.instances > 0 && !matches!(error, RoundError::NoHandler(_));
        format!("{error}{}", if keeps_devices { KEPT } else { "" })
    }

    fn of_handler(&self) -> Option<Verdict> {
        let kind = "HandlerAvailable";
        match &self.discovery {
            DiscoveryStatus::Starting => None,
            DiscoveryStatus::Silent => Some(Verdict::new(kind, Truth::True, "Connected", "")),
            DiscoveryStatus::Failed(error @ (RoundError::NoHandler(_) | RoundError::Quarantined { .. })) => {
                Some(Verdict::new(kind, Truth::False, error.reason(), &error.to_string()))
            }
            DiscoveryStatus::Failed(_) | DiscoveryStatus::Found { .. } => {
                Some(Verdict::new(kind, Truth::True, "Running", ""))
            }
        }
    }

    fn details(&self) -> Option<Verdict> {
        let kind = "DetailsValid";
        match &self.discovery {
            DiscoveryStatus::Failed(error @ RoundError::InvalidDetails(_)) => {
                Some(Verdict::new(kind, Truth::False, error.reason(), &error.to_string()))
            }
            DiscoveryStatus::Found { .. } => Some(Verdict::new(kind, Truth::True, "Accepted", "")),
            _ => None,
        }
    }

    fn completeness(&self) -> Option<Verdict> {
        let DiscoveryStatus::Found { notes, .. } = &self.discovery else { return None };
        let reason = notes.first().map_or("Complete", |note| note.reason.as_str());
        let truth = if self.is_complete() { Truth::True } else { Truth::False };
        Some(Verdict::new("DiscoveryComplete", truth, reason, &self.warnings().unwrap_or_default()))
    }

    /// Returns whether all properties have values; `None` if all values are in the Configuration itself.
    fn properties(&self) -> Option<Verdict> {
        let kind = "PropertiesResolved";
        match &self.discovery {
            DiscoveryStatus::Starting | DiscoveryStatus::Failed(RoundError::NoHandler(_)) => None,
            DiscoveryStatus::Failed(error @ RoundError::PropertiesUnresolved(unresolved)) => {
                Some(Verdict::new(kind, Truth::False, error.reason(), &unresolved.to_string()))
            }
            _ => self.has_references.then(|| Verdict::new(kind, Truth::True, "Resolved", "")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::Device;
    use crate::property::{KeyRef, PropertySource};
    use crate::resolve::{Values, resolve};

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

    fn find(status: &ConfigurationStatus, kind: &str) -> Option<(Truth, String, String)> {
        let verdict = status.conditions().into_iter().find(|verdict| verdict.kind == kind)?;
        Some((verdict.truth, verdict.reason, verdict.message))
    }

    #[test] // rule 34, rule 35
    fn conditions_follow_discovery() {
        let invalid = RoundError::InvalidDetails(Vec::new());
        for (status, expected) in [
            (ConfigurationStatus::default(), "Ready=Unknown:Starting"),
            (status(DiscoveryStatus::Silent), "Ready=Unknown:NothingReported HandlerAvailable=True:Connected"),
            (failed(RoundError::NoHandler("m".into())), "Ready=False:NoHandler HandlerAvailable=False:NoHandler"),
            (failed(RoundError::Unavailable("m".into())), "Ready=False:Unavailable HandlerAvailable=True:Running"),
            (
                failed(invalid),
                "Ready=False:InvalidDetails HandlerAvailable=True:Running DetailsValid=False:InvalidDetails",
            ),
            (
                found(1, Vec::new()),
                "Ready=True:Discovered HandlerAvailable=True:Running DetailsValid=True:Accepted \
                 DiscoveryComplete=True:Complete",
            ),
            (
                found(1, vec![note("a")]),
                "Ready=True:Discovered HandlerAvailable=True:Running DetailsValid=True:Accepted \
                 DiscoveryComplete=False:Dead",
            ),
            (
                found(0, vec![note("a")]),
                "Ready=False:NothingFound HandlerAvailable=True:Running DetailsValid=True:Accepted \
                 DiscoveryComplete=False:Dead",
            ),
        ] {
            let text = |verdict: &Verdict| format!("{}={}:{}", verdict.kind, verdict.truth.as_str(), verdict.reason);
            let conditions: Vec<String> = status.conditions().iter().map(text).collect();
            assert_eq!(conditions.join(" "), expected);
            assert_eq!(status.is_ready(), expected.starts_with("Ready=True"));
            assert_eq!(status.is_complete(), expected.contains("DiscoveryComplete=True"));
        }
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
        ] {
            assert_eq!(reason(&status).as_deref(), expected, "{status:?}");
        }
        let long = failed(RoundError::Unavailable("ä".repeat(200)));
        assert!(long.problem().unwrap().message.len() <= 256, "it has to fit into the status of a node");
    }

    #[test]
    fn warnings_are_joined_with_their_origins() {
        let warnings = found(1, vec![note("opc.tcp://a"), note("")]).warnings();
        assert_eq!(warnings.as_deref(), Some("opc.tcp://a: no answer; no answer"));
        let dropped = DiscoveryStatus::Found { notes: vec![note("")], dropped: 3, only_warnings: false };
        assert_eq!(status(dropped).warnings().as_deref(), Some("no answer; and 3 more"));
    }

    #[test]
    fn failure_mentions_devices_that_are_kept() {
        let mut failed = failed(RoundError::Unavailable("m".into()));
        assert_eq!(find(&failed, "Ready").unwrap().2, "unavailable: m");
        failed.devices = DeviceCounts { instances: 2, online: 2 };
        assert_eq!(find(&failed, "Ready").unwrap().2, "unavailable: m; known devices stay as they are");
        assert_eq!(failed.problem().unwrap().message, "unavailable: m", "which other nodes say, too");
    }

    #[test] // rule 34
    fn taken_name_comes_before_an_unpublished_device() {
        let unpublished = Unpublished { count: 2, device: "a".into(), error: "no name is free".into() };
        let mut status = ConfigurationStatus { unpublished: Some(unpublished), ..found(2, Vec::new()) };
        let (_, reason, message) = find(&status, "Ready").unwrap();
        assert_eq!(reason, "NotPublished");
        assert_eq!(message, "2 devices have no Instance, such as 'a': no name is free");
        for discovery in [DiscoveryStatus::Starting, status.discovery.clone()] {
            status.discovery = discovery;
            status.conflict = Some(("cam".into(), Key::new("default", "first")));
            assert_eq!(find(&status, "Ready").unwrap().1, "ResourceNameTaken");
        }
    }

    #[test]
    fn referenced_values_are_resolved_or_named() {
        let password = KeyRef { object: Key::new("default", "cam"), key: "password".into(), optional: false };
        let properties = [("password".to_owned(), PropertySource::Secret(password))].into();
        let unresolved = resolve(&properties, &Values::default()).unwrap_err();
        let mut failed = failed(RoundError::PropertiesUnresolved(unresolved));
        failed.has_references = true;
        let message = "property 'password': Secret default/cam does not exist".to_owned();
        let expected = Some((Truth::False, "PropertiesUnresolved".to_owned(), message));
        assert_eq!(find(&failed, "PropertiesResolved"), expected);
        let resolved = ConfigurationStatus { has_references: true, ..found(0, Vec::new()) };
        assert_eq!(find(&resolved, "PropertiesResolved").unwrap().0, Truth::True);
        assert_eq!(find(&found(0, Vec::new()), "PropertiesResolved"), None);
    }

    #[test] // rule 92
    fn quarantined_handler_is_not_available() {
        let last = Box::new(RoundError::Trapped("it trapped".into()));
        let quarantined = failed(RoundError::Quarantined { faults: 5, last, pause: Duration::from_secs(600) });
        let message = "quarantined after 5 failed rounds in a row; the next one is in 10 minutes, or at once when the \
                       component, its DiscoveryHandler or the Configuration changes; the last one failed: the handler \
                       trapped: it trapped";
        let expected = Some((Truth::False, "Quarantined".to_owned(), message.to_owned()));
        assert_eq!(find(&quarantined, "HandlerAvailable"), expected);
    }
}
