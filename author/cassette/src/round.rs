//! One round of a cassette: its arguments, its calls and its result.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_model::device::{AbsenceMeaning, Device, DeviceSet, Note};
use akri_model::discovery::RoundError;
use akri_model::property::{Resolved, Secret};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::call::RecordedCall;
use crate::payload::Payload;
use crate::player::Player;

/// One round.
#[derive(Debug, Clone)]
pub struct RecordedRound {
    /// Its line.
    pub line: usize,
    /// Its random numbers follow from it.
    pub(crate) seed: u64,
    /// Its arguments.
    pub arguments: Arguments,
    /// Its calls, in order.
    pub(crate) calls: Vec<RecordedCall>,
    /// Its result. A round that somebody writes may have none yet.
    pub result: Option<Outcome>,
    /// The line of its result; without one, of what comes last in it.
    pub(crate) last_line: usize,
}

/// The arguments of a round.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Arguments {
    /// The discoveryDetails: a text, or what that stands for.
    #[serde(default)]
    pub details: Value,
    /// Plain properties.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, Payload>,
    /// The names of properties from Secrets. Each has `placeholder-NAME` for a value.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub secrets: BTreeSet<String>,
    /// The time it began at, in milliseconds since 1970.
    #[serde(default)]
    pub time: u64,
    /// The longest time it may take, in milliseconds.
    #[serde(default = "default_round")]
    pub limit: u64,
}

fn default_round() -> u64 {
    10_000
}

/// Returns the value that a secret has in a replay.
pub fn placeholder(name: &str) -> Vec<u8> {
    format!("placeholder-{name}").into_bytes()
}

/// The result of a round.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Outcome {
    /// The triggers of the next one besides the interval; not compared if it is left out.
    pub triggers: Option<Vec<String>>,
    /// The devices, as the handler gave them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Devices that contain a secret.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub withheld: BTreeSet<String>,
    /// Origins whose known devices stay.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub kept: BTreeSet<String>,
    /// Notes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// The error of a round that failed.
    pub error: Option<String>,
}

impl RecordedRound {
    /// The number of its calls.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Replaces the calls by those that its player was asked.
    pub fn update_requests(&mut self, player: &Player) {
        self.calls = player.made_calls();
    }
}

impl Arguments {
    /// The arguments of a round that begins at `time`, in milliseconds since 1970.
    pub fn new(details: &str, properties: &Resolved, time: u64, limit: Duration) -> Self {
        let plain = properties.properties.iter().map(|(name, value)| (name.clone(), Payload(value.clone())));
        Self {
            details: Value::String(details.to_owned()),
            properties: plain.collect(),
            secrets: properties.secrets.keys().cloned().collect(),
            time,
            limit: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// The details as a handler gets them.
    pub fn details(&self) -> String {
        match &self.details {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }

    /// The properties, secrets with placeholders.
    pub fn resolved(&self) -> Resolved {
        let plain = self.properties.iter().map(|(name, value)| (name.clone(), value.0.clone()));
        let secret = |name: &String| (name.clone(), Secret::new(placeholder(name)));
        Resolved { properties: plain.collect(), secrets: self.secrets.iter().map(secret).collect() }
    }
}

impl Outcome {
    /// The result of a round. What the host says of absent grants is left out: a replay has none.
    pub fn new(triggers: Option<Vec<String>>, result: &Result<DeviceSet, RoundError>) -> Self {
        let set = match result {
            Ok(set) => set,
            // A cassette has no DiscoveryHandler whose limits could be raised.
            Err(RoundError::DeadlineExceeded(limit) | RoundError::StillComputing { limit, .. }) => {
                let error = Some(format!("the handler did not finish within {limit:?}"));
                return Self { triggers, error, ..Self::default() };
            }
            Err(error) => return Self { triggers, error: Some(error.to_string()), ..Self::default() },
        };
        let by_host = usize::from(set.absence != AbsenceMeaning::Missing);
        Self {
            triggers,
            devices: set.devices.clone(),
            withheld: set.withheld.clone(),
            kept: set.kept.clone(),
            notes: set.notes.iter().skip(by_host).cloned().collect(),
            error: None,
        }
    }
}
