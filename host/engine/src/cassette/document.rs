//! The file: a head, and for each round its arguments, its calls and its result, one JSON object a line.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use akri_model::device::{AbsenceMeaning, Device, DeviceSet, Note};
use akri_model::discovery::RoundError;
use akri_model::property::{Resolved, Secret};
use akri_model::secret_scanner::SecretScanner;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::call::{Recorded, secret_in};
use super::http;
use super::payload::Payload;
use super::player::Player;
use super::recorder::Recorder;
use super::sockets;
use crate::component::LONGEST;

/// Bytes of a cassette.
pub const CASSETTE: usize = 64 << 20;
/// Bytes of a line.
const LINE: usize = 16 << 20;
/// Rounds of a cassette.
const ROUNDS: usize = 100;
/// Calls of a round.
const CALLS: usize = 100_000;
/// Values and names of a cassette in lines: each takes many times its bytes of memory.
const VALUES: usize = 2_000_000;
/// The version of the format.
const VERSION: u32 = 1;
/// The length of a round that says nothing else.
const ROUND: u64 = 10_000;

/// A cassette: what a handler saw, and what it made of it.
#[derive(Debug, Clone)]
pub struct Cassette {
    /// The component.
    pub head: Head,
    /// Its rounds, with one cache.
    pub rounds: Vec<RecordedRound>,
}

/// The first line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Head {
    /// The version of the format.
    akri_cassette: u32,
    /// The name of the handler.
    pub handler: String,
    /// Its version when the cassette was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Digest of the component that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Random numbers follow from it.
    #[serde(default)]
    seed: u64,
}

/// One round.
#[derive(Debug, Clone)]
pub struct RecordedRound {
    /// Its line.
    pub line: usize,
    /// Its arguments.
    pub arguments: Arguments,
    calls: Vec<Line<Recorded>>,
    /// Its result. A round that somebody writes may have none yet.
    pub result: Option<Outcome>,
}

/// A value and its line.
#[derive(Debug, Clone)]
pub(super) struct Line<T> {
    pub(super) line: usize,
    pub(super) value: T,
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
    ROUND
}

/// The result of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Outcome {
    /// The triggers of the next one besides the interval; not compared if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A mistake in a cassette.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct CassetteError {
    /// The line, from 1.
    pub line: usize,
    /// The mistake, and the remedy.
    pub why: String,
}

/// The reason why a round can't be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeepError {
    /// It is too large.
    #[error("the round brought more than a cassette can hold ({} MiB)", CASSETTE >> 22)]
    TooLarge,
    /// It would give a secret away.
    #[error("{0} holds the secret '{1}', also without the handler: a cassette must not give it away")]
    Secret(String, String),
}

fn wrong(line: usize, why: impl Into<String>) -> CassetteError {
    CassetteError { line, why: why.into() }
}

impl Cassette {
    /// A cassette without rounds.
    pub fn new(handler: &str, version: &str, digest: &str, seed: u64) -> Self {
        let head = Head {
            akri_cassette: VERSION,
            handler: handler.to_owned(),
            version: Some(version.to_owned()),
            digest: Some(digest.to_owned()),
            seed,
        };
        Self { head, rounds: Vec::new() }
    }

    /// Reads a file of one JSON object a line.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn read(text: &str) -> Result<Self, CassetteError> {
        if text.len() > CASSETTE {
            return Err(wrong(1, format!("a cassette has at most {CASSETTE} bytes")));
        }
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let mut count = 0;
        let values = lines.map(|(number, line)| {
            let line_number = number + 1;
            if line.len() > LINE {
                return Err(wrong(line_number, format!("a line has at most {LINE} bytes")));
            }
            count += values(line);
            if count > VALUES {
                return Err(wrong(line_number, format!("a cassette has at most {VALUES} values")));
            }
            let value = serde_json::from_str(line);
            let value =
                value.map_err(|error| wrong(line_number, format!("this is no JSON: {error}; is the file whole?")))?;
            Ok((line_number, value))
        });
        Self::of_values(values)
    }

    /// Makes one of objects with their lines.
    ///
    /// # Errors
    /// The first one that is wrong.
    pub fn of_values(
        values: impl IntoIterator<Item = Result<(usize, Value), CassetteError>>,
    ) -> Result<Self, CassetteError> {
        let mut values = values.into_iter();
        let (line, head) = values.next().unwrap_or_else(|| Err(wrong(1, "the file is empty")))?;
        let mut cassette = Self { head: read_head(line, head)?, rounds: Vec::new() };
        for value in values {
            let (line, value) = value?;
            cassette.add(line, value)?;
        }
        if cassette.rounds.is_empty() {
            return Err(wrong(line, "the cassette has no round; a line {\"round\": {...}} begins one"));
        }
        Ok(cassette)
    }

    fn add(&mut self, line: usize, mut value: Value) -> Result<(), CassetteError> {
        if let Some(arguments) = value.get_mut("round").map(Value::take) {
            let arguments: Arguments = read(line, arguments, "round")?;
            if Duration::from_millis(arguments.limit) > LONGEST {
                return Err(wrong(
                    line,
                    format!("the limit of a round is at most {} milliseconds", LONGEST.as_millis()),
                ));
            }
            if self.rounds.len() >= ROUNDS {
                return Err(wrong(line, format!("a cassette has at most {ROUNDS} rounds")));
            }
            self.rounds.push(RecordedRound { line, arguments, calls: Vec::new(), result: None });
            return Ok(());
        }
        let outside = || wrong(line, "this is outside of a round; a line {\"round\": {...}} begins one");
        let round = self.rounds.last_mut().ok_or_else(outside)?;
        if round.result.is_some() {
            return Err(wrong(
                line,
                "this is after the result of a round; a line {\"round\": {...}} begins the next one",
            ));
        }
        if let Some(result) = value.get_mut("result").map(Value::take) {
            known_fields(&result).map_err(|why| wrong(line, why))?;
            round.result = Some(read(line, result, "result")?);
            return Ok(());
        }
        if value.get("call").is_none() {
            return Err(wrong(line, "each line has one of 'round', 'call' and 'result'"));
        }
        if round.calls.len() >= CALLS {
            return Err(wrong(line, format!("a round has at most {CALLS} calls")));
        }
        let call: Recorded = read(line, value, "call")?;
        check(&call).map_err(|why| wrong(line, why))?;
        round.calls.push(Line { line, value: call });
        Ok(())
    }

    /// Writes it, one JSON object a line.
    pub fn write(&self) -> String {
        let mut text = line_of(&self.head);
        for round in &self.rounds {
            text += &line_of(&serde_json::json!({ "round": round.arguments }));
            round.calls.iter().for_each(|call| text += &line_of(&call.value));
            if let Some(result) = &round.result {
                text += &line_of(&serde_json::json!({ "result": result }));
            }
        }
        text
    }

    /// Adds a round that was recorded. It holds secrets until it has learned what is sent without them.
    ///
    /// # Errors
    /// If it is too large.
    pub fn keep(&mut self, arguments: Arguments, recorder: &Recorder, result: Outcome) -> Result<(), KeepError> {
        let calls = recorder.calls().ok_or(KeepError::TooLarge)?;
        let calls = calls.into_iter().map(|value| Line { line: 0, value }).collect();
        self.rounds.push(RecordedRound { line: 0, arguments, calls, result: Some(result) });
        Ok(())
    }

    /// Looks for secrets in all that would be written.
    ///
    /// # Errors
    /// If there is one.
    pub fn check_secrets(&self, secrets: &SecretScanner) -> Result<(), KeepError> {
        for round in &self.rounds {
            // Where the pieces of a stream end is up to the network.
            let mut flows: BTreeMap<_, (&str, Vec<u8>)> = BTreeMap::new();
            for Line { value, .. } in &round.calls {
                let name = value.import().0;
                refuse(value.secret(secrets), || format!("the call '{name}'"))?;
                let Some(flow) = value.piece() else { continue };
                let (_, bytes) = flows.entry(flow).or_insert_with(|| (name, Vec::new()));
                value.payloads().into_iter().for_each(|payload| bytes.extend_from_slice(&payload.0));
            }
            for (name, bytes) in flows.into_values() {
                refuse(secrets.within_bytes(&bytes), || format!("the series of calls '{name}'"))?;
            }
            let json = |value: serde_json::Result<Value>| secret_in(&value.unwrap_or_default(), secrets);
            refuse(json(serde_json::to_value(&round.result)), || "the result".to_owned())?;
            let arguments = json(serde_json::to_value(&round.arguments));
            refuse(arguments, || "the details, or a plain property,".to_owned())?;
            for Payload(value) in round.arguments.properties.values() {
                refuse(secrets.within_bytes(value), || "a plain property".to_owned())?;
            }
        }
        Ok(())
    }

    /// The seed of the random numbers of a round, by its place.
    pub fn seed(&self, round: usize) -> u64 {
        self.head.seed.wrapping_add(u64::try_from(round).unwrap_or_default())
    }

    /// Plays a round, by its place. With `learns`, what is sent may differ from the recording, and takes its place
    /// ([`learn`](Self::learn)).
    pub fn player(&self, round: usize, learns: bool) -> Option<Arc<Player>> {
        let RecordedRound { arguments: Arguments { time, limit, .. }, calls, .. } = self.rounds.get(round)?;
        Some(Arc::new(Player::new(calls, self.seed(round), *time, Duration::from_millis(*limit), learns)))
    }

    /// Takes over what a player of the round has learned.
    pub fn learn(&mut self, round: usize, player: &Player) {
        let Some(round) = self.rounds.get_mut(round) else { return };
        for (line, call) in round.calls.iter_mut().zip(player.learned()) {
            line.value = call;
        }
    }
}

impl RecordedRound {
    /// The number of its calls.
    pub fn calls(&self) -> usize {
        self.calls.len()
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
        let secret = |name: &String| (name.clone(), Secret::new(format!("placeholder-{name}").into_bytes()));
        Resolved { properties: plain.collect(), secrets: self.secrets.iter().map(secret).collect() }
    }
}

impl Outcome {
    /// The result of a round. What the host says of absent grants is left out: a replay has none.
    pub fn new(triggers: Option<Vec<String>>, result: &Result<DeviceSet, RoundError>) -> Self {
        let set = match result {
            Ok(set) => set,
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

    /// The result without what `expected` leaves open.
    pub fn as_in(mut self, expected: &Self) -> Self {
        if expected.triggers.is_none() {
            self.triggers = None;
        }
        self
    }
}

/// Counts the values and names of a line, about, before it is read.
fn values(line: &str) -> usize {
    let (mut count, mut is_text, mut is_escaped) = (0, false, false);
    for byte in line.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b':' | b'{' | b'[' if !is_text => count += 1,
            _ => {}
        }
    }
    count
}

/// Refuses fields that the parts of a result do not have: an expectation that is misspelt would never fail.
/// The same types are read more leniently elsewhere.
fn known_fields(result: &Value) -> Result<(), String> {
    let parts = |value: &Value, list: &str| value.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
    let check = |part: &Value, what: &str, known: &[&str]| {
        let unknown = part.as_object().and_then(|fields| fields.keys().find(|name| !known.contains(&name.as_str())));
        match unknown {
            Some(name) => {
                let name = akri_model::text::clean(name, 64);
                Err(format!("the result is wrong: unknown field `{name}` of {what}, which has {}", known.join(", ")))
            }
            None => Ok(()),
        }
    };
    for device in parts(result, "devices") {
        check(&device, "a device", &["id", "origin", "properties", "mounts", "deviceSpecs"])?;
        for mount in parts(&device, "mounts") {
            check(&mount, "a mount", &["containerPath", "hostPath", "readOnly"])?;
        }
        for spec in parts(&device, "deviceSpecs") {
            check(&spec, "a device spec", &["containerPath", "hostPath", "permissions"])?;
        }
    }
    parts(result, "notes").iter().try_for_each(|note| check(note, "a note", &["origin", "reason", "message"]))
}

fn line_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

fn read<T: for<'de> Deserialize<'de>>(line: usize, value: Value, what: &str) -> Result<T, CassetteError> {
    let name =
        value.get("call").and_then(Value::as_str).map(|name| format!(" '{}'", akri_model::text::clean(name, 64)));
    serde_json::from_value(value)
        .map_err(|error| wrong(line, format!("the {what}{} is wrong: {error}", name.unwrap_or_default())))
}

fn read_head(line: usize, value: Value) -> Result<Head, CassetteError> {
    let Some(version) = value.get("akriCassette") else {
        return Err(wrong(line, "this is no cassette: the first line of one has 'akriCassette' and 'handler'"));
    };
    if version.as_u64() != Some(VERSION.into()) {
        let why = format!(
            "version {version} of the format is unknown, this akri reads {VERSION}; record it again with this one"
        );
        return Err(wrong(line, why));
    }
    read(line, value, "head")
}

/// Finds what the types allow and no call can have.
fn check(call: &Recorded) -> Result<(), String> {
    let socket = |error: &Option<String>| error.as_ref().is_none_or(|error| sockets::code(error).is_some());
    let known = match call {
        Recorded::TcpConnect { error, .. } | Recorded::UdpSend { error, .. } | Recorded::TcpReceive { error, .. } => {
            socket(error)
        }
        Recorded::TcpSocketRefused { error, .. } | Recorded::UdpSocketRefused { error, .. } => {
            sockets::code(error).is_some()
        }
        Recorded::NamesResolve { addresses, error, .. } => {
            if addresses.is_empty() == error.is_none() {
                return Err("a name has either addresses or an error".to_owned());
            }
            socket(error)
        }
        Recorded::HttpRequest { response, error, .. } => {
            if response.is_some() == error.is_some() {
                return Err("a request has either a response or an error".to_owned());
            }
            http::check(response.as_ref())?;
            error.as_ref().is_none_or(|error| http::error(error).is_some())
        }
        Recorded::UdevRun { snapshot, error, .. } => {
            if snapshot.is_some() == error.is_some() {
                return Err("a query has either a snapshot or an error".to_owned());
            }
            let entries = snapshot.iter().flat_map(|snapshot| &snapshot.entries).enumerate();
            let is_after = |(index, entry): (usize, &akri_sysfs::Entry)| {
                entry.parent.is_none_or(|parent| usize::try_from(parent).is_ok_and(|parent| parent < index))
            };
            if !entries.into_iter().all(is_after) {
                return Err("the parent of an entry has to be before it".to_owned());
            }
            true
        }
        _ => true,
    };
    if known { Ok(()) } else { Err("the error is none that this call has; see docs/cassettes.md".to_owned()) }
}

fn refuse(secret: Option<&str>, what: impl Fn() -> String) -> Result<(), KeepError> {
    match secret {
        Some(name) => Err(KeepError::Secret(what(), name.to_owned())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "hunter2\"-&secret";

    fn cassette(lines: &[&str]) -> Cassette {
        let head = [r#"{"akriCassette":1,"handler":"guest"}"#];
        Cassette::read(&[&head, lines].concat().join("\n")).unwrap()
    }

    fn secrets() -> SecretScanner {
        SecretScanner::all(&[("password".to_owned(), Secret::new(SECRET.as_bytes().to_vec()))].into())
    }

    #[test]
    fn secrets_are_found_in_every_form_of_a_round() {
        let details = serde_json::json!({"round": {"details": format!("x # {SECRET}")}}).to_string();
        let name = serde_json::json!({"round": {"details": {SECRET: 1}}}).to_string();
        let binary = r#"{"call":"tcp.send","socket":1,"bytes":{"hex":"0068756e74657232222d26736563726574ff"}}"#;
        let received =
            |bytes: &str, at: u32| serde_json::json!({"call": "tcp.receive", "socket": at, "bytes": bytes}).to_string();
        let halves = [received("it is hunter2", 1), received("\"-&secret!", 1), received("\"-&secret!", 2)];
        let round = r#"{"round":{}}"#;
        for (lines, place) in [
            (vec![details.as_str()], Some("the details, or a plain property,")),
            (vec![&name], Some("the details, or a plain property,")),
            (vec![round, binary], Some("the call 'tcp.send'")),
            (
                vec![round, &halves[0], binary.replace("68", "67").as_str(), &halves[1]],
                Some("the series of calls 'tcp.receive'"),
            ),
            (vec![round, &halves[0], &halves[2]], None),
        ] {
            let found = cassette(&lines).check_secrets(&secrets());
            let told = place.map(|place| KeepError::Secret(place.to_owned(), "password".to_owned()));
            assert_eq!(found.err(), told, "{lines:?}");
        }
    }

    #[test]
    fn secrets_in_bytes_are_not_traced() {
        let (sender, lines) = std::sync::mpsc::channel();
        let recorder = Recorder::new(0, Some(sender));
        for (before, is_hidden) in [(SECRET, true), ("other", false)] {
            let bytes = Payload([b"\x00\xff", before.as_bytes()].concat());
            recorder.push(Recorded::TcpSend { at: 0, socket: 1, bytes });
            let text = lines.recv().unwrap().without(&secrets());
            assert_eq!(text.contains("withheld"), is_hidden, "{text}");
            assert_eq!(text.contains("hex"), !is_hidden, "{text}");
        }
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (line, count) in [("{}", 1), (r#"{"a":[1,2]}"#, 4), (r#"{"a,\",:[":0}"#, 2), (r#"["\\",1]"#, 2)] {
            assert_eq!(values(line), count, "{line}");
        }
    }
}
