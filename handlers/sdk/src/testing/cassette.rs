//! The part of the format of cassettes that the fake host plays.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Deserialize;
use serde_json::Value;

/// The version of the format.
const VERSION: u64 = 1;

pub(crate) struct Cassette {
    pub(crate) rounds: Vec<Round>,
}

/// A round with its calls and its result, as they are written.
#[derive(Default)]
pub(crate) struct Round {
    pub(crate) arguments: Arguments,
    pub(crate) calls: VecDeque<Value>,
    pub(crate) result: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    #[serde(default)]
    pub(crate) details: Value,
    #[serde(default)]
    pub(crate) properties: BTreeMap<String, Payload>,
    #[serde(default)]
    pub(crate) secrets: BTreeSet<String>,
    #[serde(default, rename = "time")]
    _time: u64,
    #[serde(default = "default_limit")]
    pub(crate) limit: u64,
}

fn default_limit() -> u64 {
    10_000
}

/// Bytes: a string, or `{hex: "00ff"}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Form")]
pub(crate) struct Payload(pub(crate) Vec<u8>);

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields, expecting = "bytes are a string, or {\"hex\": \"00ff\"}")]
enum Form {
    Text(String),
    Bytes { hex: String },
}

impl TryFrom<Form> for Payload {
    type Error = String;

    fn try_from(form: Form) -> Result<Self, String> {
        let hex = match form {
            Form::Text(text) => return Ok(Self(text.into_bytes())),
            Form::Bytes { hex } => hex,
        };
        let digits: Option<Vec<u8>> = hex
            .chars()
            .filter(|c| !c.is_ascii_whitespace())
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        let digits =
            digits.filter(|digits| digits.len().is_multiple_of(2)).ok_or_else(|| format!("'{hex}' is no hex"))?;
        Ok(Self(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()))
    }
}

impl Cassette {
    /// Reads a list of objects in YAML, or one object in JSON a line.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let is_lines = text.trim_start().starts_with('{');
        let items: Vec<Value> = match is_lines {
            true => {
                text.lines().map(serde_json::from_str).collect::<Result<_, _>>().map_err(|error| error.to_string())?
            }
            false => serde_saphyr::from_str(text).map_err(|error| error.to_string())?,
        };
        let mut items = items.into_iter();
        let head = items.next().unwrap_or_default();
        if head["akriCassette"].as_u64() != Some(VERSION) {
            return Err(format!("this is no cassette of version {VERSION}"));
        }
        let mut rounds: Vec<Round> = Vec::new();
        for mut item in items {
            if let Some(arguments) = item.get_mut("round").map(Value::take) {
                let arguments =
                    serde_json::from_value(arguments).map_err(|error| format!("the round is wrong: {error}"))?;
                rounds.push(Round { arguments, ..Round::default() });
                continue;
            }
            let round = rounds.last_mut().ok_or("an item is outside of a round")?;
            match item.get_mut("result").map(Value::take) {
                Some(result) => round.result = Some(result),
                None => round.calls.push_back(item),
            }
        }
        Ok(Self { rounds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let yaml = "- {akriCassette: 1, handler: a}\n- round: {details: {a: 1}, properties: {P: {hex: '00 ff'}}}\n- call: udev.run\n- result: {devices: []}\n";
        let lines = "{\"akriCassette\":1,\"handler\":\"a\"}\n{\"round\":{\"details\":{\"a\":1},\"properties\":{\"P\":{\"hex\":\"00ff\"}}}}\n{\"call\":\"udev.run\"}\n{\"result\":{\"devices\":[]}}\n";
        for text in [yaml, lines] {
            let round = Cassette::read(text).unwrap().rounds.remove(0);
            assert_eq!(round.arguments.properties["P"], Payload(vec![0, 255]));
            assert_eq!((round.calls.len(), round.result.is_some(), round.arguments.limit), (1, true, 10_000));
        }
    }

    #[test]
    fn other_files_are_refused() {
        for text in [
            "",
            "- {akriCassette: 2}",
            "- a",
            "- {akriCassette: 1}\n- {result: {}}",
            "- {akriCassette: 1}\n- {round: {detials: {}}}",
        ] {
            assert!(Cassette::read(text).is_err(), "{text}");
        }
    }
}
