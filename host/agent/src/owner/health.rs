//! What users are told about a Configuration.

use std::collections::{BTreeMap, BTreeSet};

use akri_cluster::{ConfigurationReport, ReportedCondition};
use akri_model::configuration::Configuration;
use akri_model::device::{DeviceSet, Note};
use akri_model::discovery::RoundError;
use akri_model::names::{Key, resource_name};
use akri_model::property::Source;
use akri_model::summary::{DeviceCounts, NOTHING_FOUND};
use tracing::{info, warn};

use crate::discovery::Outcome;

/// Longest message of a condition, in bytes.
const MAX_MESSAGE: usize = 1024;

/// How the discovery of one Configuration is going.
#[derive(Debug, Default)]
pub(super) struct Health {
    last: Option<Last>,
    /// Devices without an Instance, and why.
    unpublished: BTreeMap<String, String>,
    /// Resources that other Configurations have, by name.
    taken: BTreeMap<String, Key>,
    reported: Option<ConfigurationReport>,
}

#[derive(Debug)]
enum Last {
    NoHandler(String),
    Failed { error: RoundError, ever_found: bool },
    Silent,
    Found { notes: Vec<Note>, dropped: u64, only_warnings: bool },
}

impl Health {
    /// Takes what a round came to.
    pub(super) fn outcome(&mut self, outcome: &Outcome) {
        let ever_found = matches!(self.last, Some(Last::Found { .. } | Last::Failed { ever_found: true, .. }));
        self.last = Some(match outcome {
            Outcome::NoHandler(message) => Last::NoHandler(message.clone()),
            Outcome::Failed(error) => Last::Failed { error: (**error).clone(), ever_found },
            Outcome::Found { set, .. } => {
                // What is still there is tried again, and stays unpublished until that works.
                let there: BTreeSet<&str> = set.devices.iter().map(|device| device.id.as_str()).collect();
                self.unpublished.retain(|device, _| there.contains(device.as_str()));
                found(set)
            }
        });
    }

    /// A remote handler is connected and has not said anything yet.
    pub(super) fn silent(&mut self) {
        self.last = Some(Last::Silent);
    }

    /// A device could not be published.
    pub(super) fn unpublished(&mut self, device: &str, error: &str) {
        self.unpublished.insert(device.to_owned(), error.to_owned());
    }

    /// A device has its Instance.
    pub(super) fn published(&mut self, device: &str) {
        self.unpublished.remove(device);
    }

    /// A resource of this name is served, or another Configuration has it.
    pub(super) fn claimed(&mut self, name: &str, holder: Option<&Key>) {
        match holder {
            Some(holder) => drop(self.taken.insert(name.to_owned(), holder.clone())),
            None => drop(self.taken.remove(name)),
        }
    }

    /// Whether a round has ended, or a remote handler is connected.
    pub(super) fn has_result(&self) -> bool {
        self.last.is_some()
    }

    /// The status, if it says something new. Warnings of rounds are logged when they change.
    pub(super) fn report(
        &mut self,
        configuration: &Configuration,
        devices: DeviceCounts,
    ) -> Option<ConfigurationReport> {
        let report = ConfigurationReport {
            key: configuration.key.clone(),
            uid: configuration.uid.clone(),
            generation: configuration.generation,
            instances: devices.instances,
            conditions: self.conditions(configuration, devices),
        };
        if self.reported.as_ref() == Some(&report) {
            return None;
        }
        log_completeness(self.reported.as_ref(), &report);
        self.reported = Some(report.clone());
        Some(report)
    }

    fn conditions(&self, configuration: &Configuration, devices: DeviceCounts) -> Vec<ReportedCondition> {
        let mut conditions = match &self.last {
            None => return vec![condition("Ready", None, "Starting", "no round has ended yet")],
            Some(Last::NoHandler(message)) => {
                return vec![
                    condition("Ready", Some(false), "NoHandler", message),
                    condition("HandlerAvailable", Some(false), "NoHandler", message),
                ];
            }
            Some(Last::Failed { error, ever_found }) => failed(error, *ever_found),
            Some(Last::Silent) => vec![
                condition("Ready", None, "NothingReported", "the remote handler has not reported any devices yet"),
                condition("HandlerAvailable", Some(true), "Connected", ""),
            ],
            Some(Last::Found { notes, dropped, only_warnings }) => {
                let notes = (notes.first(), notes_text(notes, *dropped));
                self.found(notes, *only_warnings, devices)
            }
        };
        conditions.extend(self.properties(configuration));
        conditions
    }

    /// Whether all properties have values; nothing if all values are in the Configuration itself.
    fn properties(&self, configuration: &Configuration) -> Option<ReportedCondition> {
        let kind = "PropertiesResolved";
        match &self.last {
            Some(Last::Failed { error: error @ RoundError::PropertiesUnresolved(unresolved), .. }) => {
                Some(condition(kind, Some(false), error.reason(), &unresolved.to_string()))
            }
            _ if configuration.properties.values().any(Source::is_reference) => {
                Some(condition(kind, Some(true), "Resolved", ""))
            }
            _ => None,
        }
    }

    fn found(
        &self,
        (first, warnings): (Option<&Note>, String),
        only_warnings: bool,
        devices: DeviceCounts,
    ) -> Vec<ReportedCondition> {
        let ready = match (self.taken.iter().next(), self.unpublished.iter().next()) {
            (Some((name, holder)), _) => {
                let resource = resource_name(name);
                let message = format!("Configuration '{holder}' is older and has the resource {resource}: rename one");
                condition("Ready", Some(false), "ResourceNameTaken", &message)
            }
            (None, Some((device, error))) => {
                let count = self.unpublished.len();
                let message = format!("{count} devices have no Instance, such as '{device}': {error}");
                condition("Ready", Some(false), "NotPublished", &message)
            }
            (None, None) if only_warnings => condition("Ready", Some(false), NOTHING_FOUND, &warnings),
            (None, None) => condition("Ready", Some(true), "Discovered", &devices.to_string()),
        };
        let reason = first.map_or("Complete", |note| note.reason.as_str());
        vec![
            ready,
            condition("HandlerAvailable", Some(true), "Running", ""),
            condition("DetailsValid", Some(true), "Accepted", ""),
            condition("DiscoveryComplete", Some(warnings.is_empty()), reason, &warnings),
        ]
    }
}

/// Logs warnings of rounds: once each time that they change.
fn log_completeness(before: Option<&ConfigurationReport>, now: &ConfigurationReport) {
    let find = |report: &ConfigurationReport| {
        report.conditions.iter().find(|condition| condition.kind == "DiscoveryComplete").cloned()
    };
    let (before, configuration) = (before.and_then(find), &now.key);
    let was_complete = before.as_ref().is_none_or(|before| before.holds != Some(false));
    match find(now) {
        Some(now) if now.holds == Some(false) && before.is_none_or(|before| before.message != now.message) => {
            warn!(%configuration, reason = now.reason, "discovery is incomplete: {}", now.message);
        }
        Some(now) if now.holds != Some(false) && !was_complete => info!(%configuration, "discovery is complete again"),
        _ => {}
    }
}

fn found(set: &DeviceSet) -> Last {
    let only_warnings = set.has_only_warnings();
    Last::Found { notes: set.notes.clone(), dropped: set.notes_dropped, only_warnings }
}

fn failed(error: &RoundError, ever_found: bool) -> Vec<ReportedCondition> {
    let mut message = error.to_string();
    if ever_found {
        message += "; known devices stay as they are";
    }
    let mut conditions = vec![condition("Ready", Some(false), error.reason(), &message)];
    if let RoundError::InvalidDetails(_) = error {
        conditions.push(condition("DetailsValid", Some(false), error.reason(), &error.to_string()));
    }
    conditions.push(match error {
        RoundError::Quarantined { .. } => {
            condition("HandlerAvailable", Some(false), error.reason(), &error.to_string())
        }
        _ => condition("HandlerAvailable", Some(true), "Running", ""),
    });
    conditions
}

fn notes_text(notes: &[Note], dropped: u64) -> String {
    let mut lines: Vec<String> = notes.iter().map(|note| note.sentence().into_owned()).collect();
    if dropped > 0 {
        lines.push(format!("and {dropped} more"));
    }
    lines.join("; ")
}

fn condition(kind: &'static str, holds: Option<bool>, reason: &str, message: &str) -> ReportedCondition {
    let mut end = message.len().min(MAX_MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let message = message.get(..end).unwrap_or_default().to_owned();
    ReportedCondition { kind, holds, reason: reason.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use akri_model::device::Device;
    use akri_model::resolve::{Values, resolve};

    use super::*;

    const ONLINE: DeviceCounts = DeviceCounts { instances: 2, online: 2 };

    fn configuration(properties: serde_json::Value) -> Configuration {
        let handler = serde_json::json!({"name": "h", "discoveryProperties": properties});
        let object = serde_json::json!({"metadata": {"name": "c"}, "spec": {"discoveryHandler": handler}});
        akri_api::configuration_to_model(&serde_json::from_value(object).unwrap())
    }

    fn conditions(health: &Health) -> Vec<(&'static str, Option<bool>, String)> {
        health
            .conditions(&configuration(serde_json::json!([])), ONLINE)
            .into_iter()
            .map(|c| (c.kind, c.holds, c.reason))
            .collect()
    }

    fn found_with(notes: Vec<Note>) -> Outcome {
        Outcome::Found { set: DeviceSet { notes, ..DeviceSet::default() }, shared: false }
    }

    #[test]
    fn a_good_round_after_a_failed_one_is_ready_again() {
        let mut health = Health::default();
        health.outcome(&Outcome::Failed(Arc::new(RoundError::Unavailable("no answer".into()))));
        assert_eq!(conditions(&health)[0], ("Ready", Some(false), "Unavailable".into()));
        health.outcome(&found_with(Vec::new()));
        assert_eq!(conditions(&health)[0], ("Ready", Some(true), "Discovered".into()));
    }

    #[test]
    fn warnings_make_discovery_incomplete_but_ready() {
        let mut health = Health::default();
        let note = |origin: &str| Note { origin: origin.into(), reason: "Dead".into(), message: "no answer".into() };
        let notes = || vec![note("opc.tcp://a"), note("")];
        let set = DeviceSet { devices: vec![Device::default()], notes: notes(), ..DeviceSet::default() };
        health.outcome(&Outcome::Found { set, shared: false });
        let conditions = health.conditions(&configuration(serde_json::json!([])), ONLINE);
        assert_eq!(conditions[0].holds, Some(true));
        assert_eq!((conditions[3].holds, conditions[3].reason.as_str()), (Some(false), "Dead"));
        assert_eq!(conditions[3].message, "opc.tcp://a: no answer; no answer");

        health.outcome(&found_with(notes()));
        let conditions = health.conditions(&configuration(serde_json::json!([])), ONLINE);
        assert_eq!((conditions[0].holds, conditions[0].reason.as_str()), (Some(false), NOTHING_FOUND));
        assert_eq!(conditions[0].message, "opc.tcp://a: no answer; no answer");
        assert_eq!(conditions[3].holds, Some(false));
    }

    #[test]
    fn a_device_stays_unpublished_until_it_is_published_or_gone() {
        let mut health = Health::default();
        let there = |ids: &[&str]| {
            let device = |id: &&str| Device { id: (*id).to_owned(), ..Device::default() };
            let set = DeviceSet { devices: ids.iter().map(device).collect(), ..DeviceSet::default() };
            Outcome::Found { set, shared: false }
        };
        health.outcome(&there(&["a", "b"]));
        health.unpublished("a", "no name is free");
        health.unpublished("b", "no name is free");
        health.outcome(&there(&["a", "b"]));
        assert_eq!(conditions(&health)[0], ("Ready", Some(false), "NotPublished".into()), "the next try has not ended");
        health.published("a");
        assert_eq!(conditions(&health)[0].2, "NotPublished");
        health.outcome(&there(&["a"]));
        assert_eq!(conditions(&health)[0].2, "Discovered");
    }

    #[test]
    fn messages_are_cut_at_a_character() {
        let long = "ä".repeat(MAX_MESSAGE);
        assert_eq!(condition("Ready", None, "R", &long).message.len(), MAX_MESSAGE);
        assert_eq!(condition("Ready", None, "R", &format!("x{long}")).message.len(), MAX_MESSAGE - 1);
    }

    #[test]
    fn what_is_referred_to_is_resolved_or_named() {
        let reference = serde_json::json!({"secretKeyRef": {"name": "cam", "key": "password"}});
        let configuration = configuration(serde_json::json!([{"name": "password", "valueFrom": reference}]));
        let mut health = Health::default();
        let resolved = |health: &Health| {
            let conditions = health.conditions(&configuration, ONLINE);
            conditions.into_iter().find(|c| c.kind == "PropertiesResolved").map(|c| (c.holds, c.message))
        };
        assert_eq!(resolved(&health), None, "nobody has looked yet");
        let unresolved = resolve(&configuration.properties, &Values::default()).unwrap_err();
        health.outcome(&Outcome::Failed(Arc::new(RoundError::PropertiesUnresolved(unresolved))));
        let told = "property 'password': Secret default/cam does not exist".to_owned();
        assert_eq!(resolved(&health), Some((Some(false), told)));
        health.outcome(&found_with(Vec::new()));
        assert_eq!(resolved(&health), Some((Some(true), String::new())));
    }

    #[test]
    fn a_quarantined_handler_is_not_available() {
        let last = Box::new(RoundError::Trapped("it trapped".into()));
        let pause = std::time::Duration::from_secs(600);
        let mut health = Health::default();
        health.outcome(&Outcome::Failed(Arc::new(RoundError::Quarantined { faults: 5, last, pause })));
        let conditions = health.conditions(&configuration(serde_json::json!([])), ONLINE);
        assert_eq!((conditions[1].kind, conditions[1].holds), ("HandlerAvailable", Some(false)));
        let told = "quarantined after 5 failed rounds in a row; the next one is in 10 minutes, or at once when the \
                    component, its DiscoveryHandler or the Configuration changes; the last one failed: the handler \
                    trapped: it trapped";
        assert_eq!(conditions[1].message, told);
    }

    #[test]
    fn nothing_new_is_not_reported() {
        let configuration = configuration(serde_json::json!([]));
        let mut health = Health::default();
        assert!(health.report(&configuration, ONLINE).is_some());
        assert!(health.report(&configuration, ONLINE).is_none());
        health.outcome(&found_with(Vec::new()));
        assert!(health.report(&configuration, ONLINE).is_some());
        let offline = DeviceCounts { online: 0, ..ONLINE };
        let report = health.report(&configuration, offline).unwrap();
        assert_eq!(report.conditions[0].message, "2 devices have an Instance, all of them offline");
    }
}
