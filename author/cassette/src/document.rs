//! The file: a head, and for each round its arguments, its calls and its result, one JSON object a line.

use std::collections::BTreeSet;
use std::time::Duration;

use akri_api::manifest::typed;
use akri_api::validate::FieldError;
use akri_model::grant::LONGEST_ROUND;
use akri_model::text::clean;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::call::{Micros, NamedCall, RecordedCall};
use crate::check::check;
use crate::recorder::Recorder;
use crate::round::{Arguments, Outcome, RecordedRound};
use crate::type_error::type_error;

/// Bytes of a cassette.
pub const CASSETTE: usize = 64 << 20;
/// The version of the format.
const VERSION: u32 = 1;

/// A cassette: what a handler saw, and what it made of it.
#[derive(Debug, Clone)]
pub struct Cassette {
    /// The component.
    pub head: Head,
    /// Its rounds, with one cache.
    pub rounds: Vec<RecordedRound>,
}

/// The first line.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Head {
    /// The version of the format.
    akri_cassette: u32,
    /// The name of the handler.
    pub handler: String,
    /// Its version when the cassette was made.
    pub version: Option<String>,
    /// Digest of the component that made it.
    pub digest: Option<String>,
    /// Random numbers follow from it.
    #[serde(default)]
    seed: u64,
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

/// Another item for a line of a cassette.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The line of the item.
    pub line: usize,
    /// Set if the new one follows that; otherwise it takes its place.
    pub follows: bool,
    /// The new one, in JSON.
    pub item: String,
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
        let values = lines.map(|(number, line)| {
            let line_number = number + 1;
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
        let head = read_head(head).map_err(|why| wrong(line, why))?;
        let mut cassette = Self { head, rounds: Vec::new() };
        for value in values {
            let (line, value) = value?;
            cassette.add(line, value).map_err(|why| wrong(line, why))?;
        }
        if cassette.rounds.is_empty() {
            return Err(wrong(line, "the cassette has no round; a line {\"round\": {...}} begins one"));
        }
        Ok(cassette)
    }

    fn add(&mut self, line: usize, mut value: Value) -> Result<(), String> {
        alone(&value)?;
        if let Some(arguments) = value.get_mut("round").map(Value::take) {
            let arguments: Arguments = read(&arguments, "round")?;
            if Duration::from_millis(arguments.limit) > LONGEST_ROUND {
                return Err(format!("the limit of a round is at most {} milliseconds", LONGEST_ROUND.as_millis()));
            }
            let seed = self.next_seed();
            self.rounds.push(RecordedRound { line, seed, arguments, calls: Vec::new(), result: None, last_line: line });
            return Ok(());
        }
        let round = self.rounds.last_mut().ok_or("this is outside of a round; a line {\"round\": {...}} begins one")?;
        if round.result.is_some() {
            return Err("this is after the result of a round; a line {\"round\": {...}} begins the next one".to_owned());
        }
        round.last_line = line;
        if let Some(result) = value.get_mut("result").map(Value::take) {
            round.result = Some(read(&result, "result")?);
            return Ok(());
        }
        if value.get("call").is_none() {
            return Err("each line has one of 'round', 'call' and 'result'".to_owned());
        }
        let call = read_call(line, value)?;
        check(&call.call)?;
        round.calls.push(call);
        Ok(())
    }

    /// Writes it, one JSON object a line.
    pub fn write(&self) -> String {
        let mut text = line_of(&self.head);
        for round in &self.rounds {
            text += &line_of(&serde_json::json!({ "round": round.arguments }));
            round.calls.iter().for_each(|call| text += &line_of(call));
            if let Some(result) = &round.result {
                text += &line_of(&serde_json::json!({ "result": result }));
            }
        }
        text
    }

    /// Returns what differs in another cassette with the same calls, by line.
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (round, new) in self.rounds.iter().zip(&new.rounds) {
            let differ = round.calls.iter().zip(&new.calls).filter(|(old, new)| old.call != new.call);
            changes.extend(differ.map(|(old, new)| Change { line: old.line, follows: false, item: line_of(new) }));
            if round.result != new.result {
                let item = line_of(&serde_json::json!({ "result": new.result }));
                changes.push(Change { line: round.last_line, follows: round.result.is_none(), item });
            }
        }
        changes
    }

    /// Returns the lines of its rounds, calls and results.
    pub fn lines(&self) -> BTreeSet<usize> {
        let calls = self.rounds.iter().flat_map(|round| round.calls.iter().map(|call| call.line));
        calls.chain(self.rounds.iter().flat_map(|round| [round.line, round.last_line])).collect()
    }

    /// Adds a round that was recorded. It holds secrets until its requests are updated to those that are made without them.
    ///
    /// # Errors
    /// If it is too large.
    pub fn keep(&mut self, arguments: Arguments, recorder: &Recorder, result: Outcome) -> Result<(), String> {
        let too_large = || format!("the round brought more than a cassette can hold ({} MiB)", CASSETTE >> 22);
        let (calls, seed) = (recorder.calls().ok_or_else(too_large)?, recorder.seed);
        self.rounds.push(RecordedRound { line: 0, seed, arguments, calls, result: Some(result), last_line: 0 });
        Ok(())
    }

    /// The seed of the random numbers of the next round.
    pub fn next_seed(&self) -> u64 {
        self.head.seed.wrapping_add(u64::try_from(self.rounds.len()).unwrap_or_default())
    }
}

/// Refuses fields beside `round` or `result`: in YAML, those of either are often indented too little.
fn alone(value: &Value) -> Result<(), String> {
    let parts = ["round", "result"];
    let Some(part) = parts.into_iter().find(|part| value.get(part).is_some()) else { return Ok(()) };
    let other = value.as_object().and_then(|fields| fields.keys().find(|name| *name != part));
    other.map_or(Ok(()), |name| {
        Err(format!("the field '{}' is beside '{part}' and not within it; indent it further", clean(name, 64)))
    })
}

fn line_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

/// Reads a call, which has its name and its time beside its arguments.
fn read_call(line: usize, mut value: Value) -> Result<RecordedCall, String> {
    #[derive(Deserialize)]
    struct Time {
        at: Micros,
    }
    let mut take = |field: &str| value.as_object_mut().and_then(|fields| fields.remove(field));
    let (name, at) = (take("call"), take("at"));
    let Some(Value::String(name)) = name else { return Err("'call' is the name of a call, a text".to_owned()) };
    let part = format!("call '{}'", clean(&name, 64));
    let Time { at } = read(&serde_json::json!({ "at": at.unwrap_or(0.into()) }), &part)?;
    let NamedCall(call) = read(&Value::Object([(name, value)].into_iter().collect()), &part)?;
    Ok(RecordedCall { line, call, at })
}

/// Reads a part of the file. An unknown field is an error wherever it is: an expectation that is misspelt would never fail.
fn read<T: DeserializeOwned>(value: &Value, part: &str) -> Result<T, String> {
    // The first error may be the misspelling of a field that is missing.
    let why = |errors: Vec<FieldError>| errors.first().map(type_error).unwrap_or_default();
    typed(value).map_err(|errors| format!("the {part} is wrong: {}", why(errors)))
}

fn read_head(value: Value) -> Result<Head, String> {
    let none = "this is no cassette: the first line of one has 'akriCassette' and 'handler'";
    let version = value.get("akriCassette").ok_or(none)?;
    if version.as_u64() != Some(VERSION.into()) {
        return Err(format!(
            "version {version} of the format is unknown, this akri reads {VERSION}; record it again with this one"
        ));
    }
    read(&value, "head")
}
