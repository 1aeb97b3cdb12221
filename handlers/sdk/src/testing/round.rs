//! The round that is played, of which there is one a thread.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Nanoseconds since the round began.
pub(crate) type Nanos = u64;

thread_local! {
    static ROUND: RefCell<Option<Round>> = const { RefCell::new(None) };
}

/// The arguments of a round.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    #[serde(default)]
    pub(crate) details: Value,
    #[serde(default)]
    pub(crate) properties: BTreeMap<String, Value>,
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

/// A round with its calls, and what the handler has said.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// Its file and number, for messages.
    pub(crate) place: String,
    pub(crate) arguments: Arguments,
    pub(crate) calls: Vec<Call>,
    pub(crate) cache: BTreeMap<String, Vec<u8>>,
    pub(crate) kept: BTreeSet<String>,
    pub(crate) notes: Vec<Value>,
    pub(crate) revealed: BTreeSet<String>,
    pub(crate) clock: Nanos,
    /// The tasks that wait, and the next time at which one has what it waits for.
    pub(crate) waiting: Vec<Waker>,
    pub(crate) next: Option<Nanos>,
    /// The number of sockets that are open.
    pub(crate) open: u64,
    /// Sockets for datagrams whose calls belong to one.
    pub(crate) claimed: BTreeSet<u64>,
}

/// A recorded call.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) at: Nanos,
    pub(crate) fields: Map<String, Value>,
    pub(crate) is_made: bool,
    /// The bytes or datagrams of it that are done.
    pub(crate) done: usize,
}

/// Returns what `work` makes of the round that is played.
pub(crate) fn with<T>(work: impl FnOnce(&mut Round) -> T) -> T {
    ROUND.with_borrow_mut(|round| match round {
        Some(round) => work(round),
        None => panic!("a function of the host is called outside of a round: play a cassette"),
    })
}

/// Does something with the round, unless it is over.
#[cfg(feature = "net")]
pub(crate) fn try_with(work: impl FnOnce(&mut Round)) {
    ROUND.with(|round| round.try_borrow_mut().ok().and_then(|mut round| round.as_mut().map(work)));
}

impl Round {
    /// Runs something in this round.
    pub(crate) fn run<T>(self, work: impl FnOnce() -> T) -> (T, Self) {
        ROUND.set(Some(self));
        let result = work();
        match ROUND.take() {
            Some(round) => (result, round),
            None => panic!("a handler played a cassette"),
        }
    }

    /// Returns the first call of this name that is to come, and that belongs to the same socket, name or conversation.
    pub(crate) fn find(&mut self, name: &str, of: &[(&str, &Value)]) -> Option<&mut Call> {
        let belongs = |call: &Call| of.iter().all(|(field, value)| call.fields.get(*field) == Some(*value));
        self.calls.iter_mut().find(|call| !call.is_made && call.name == name && belongs(call))
    }

    /// Makes the next call like this one. Arguments that are not recorded may be any.
    pub(crate) fn take(&mut self, name: &str, of: &[(&str, &Value)], made: &Value) -> Call {
        let made = without_empty(made);
        let place = self.place.clone();
        let Some(call) = self.find(name, of) else { self.refuse(name, &made) };
        for (field, value) in made.as_object().into_iter().flatten() {
            if let Some(expected) = call.fields.get(field) {
                assert!(
                    expected == value,
                    "{place}: {name} differs in '{field}'\nexpected: {expected}\nactual:   {value}"
                );
            }
        }
        call.is_made = true;
        call.clone()
    }

    /// Fails a call that is not recorded.
    pub(crate) fn refuse(&self, name: &str, made: &Value) -> ! {
        let left: Vec<String> = self.unmade().filter(|call| call.starts_with(name)).take(4).collect();
        let left = if left.is_empty() { "none".to_owned() } else { left.join("\n          ") };
        panic!(
            "{}: {name} is called, and the cassette has no such call left\nactual:   {made}\nexpected: {left}",
            self.place
        )
    }

    /// Claims the next recorded socket for datagrams; without one, a number that has no calls.
    pub(crate) fn claim_udp(&mut self) -> u64 {
        let number = |call: &Call| call.name.starts_with("udp.").then(|| call.fields.get("socket")?.as_u64()).flatten();
        let next = self.calls.iter().filter_map(number).find(|number| !self.claimed.contains(number));
        let number = next.unwrap_or(u64::MAX);
        self.claimed.insert(number);
        number
    }

    /// Returns the calls that were not made.
    pub(crate) fn unmade(&self) -> impl Iterator<Item = String> {
        let line = |call: &Call| format!("{} {}", call.name, Value::Object(call.fields.clone()));
        self.calls.iter().filter(|call| !call.is_made).map(line)
    }

    /// Returns the time until the host ends the round.
    pub(crate) fn remaining(&self) -> Nanos {
        self.arguments.limit.saturating_mul(1_000_000).saturating_sub(self.clock)
    }

    /// Moves the clock on.
    pub(crate) fn advance(&mut self, to: Nanos) {
        self.clock = self.clock.max(to);
        assert!(self.remaining() > 0, "the handler did not finish within {} ms", self.arguments.limit);
    }
}

impl Call {
    pub(crate) fn new(item: &Value) -> Self {
        let mut fields = without_empty(item).as_object().cloned().unwrap_or_default();
        let name = fields.remove("call").and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default();
        let at = fields.remove("at").and_then(|at| at.as_u64()).unwrap_or_default().saturating_mul(1000);
        for field in ["bytes", "payload"] {
            if let Some(value) = fields.get_mut(field) {
                *value = payload(&bytes(value));
            }
        }
        Self { name, at, fields, is_made: false, done: 0 }
    }

    /// Returns a text among its fields.
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field)?.as_str()
    }

    /// Returns bytes among its fields.
    pub(crate) fn bytes(&self, field: &str) -> Vec<u8> {
        self.fields.get(field).map(bytes).unwrap_or_default()
    }

    pub(crate) fn is_set(&self, field: &str) -> bool {
        self.fields.get(field) == Some(&Value::Bool(true))
    }
}

/// Returns the bytes of a string, or of `{hex: "00ff"}`.
pub(crate) fn bytes(value: &Value) -> Vec<u8> {
    let Some(hex) = value.get("hex").and_then(Value::as_str) else {
        return value.as_str().unwrap_or_default().as_bytes().to_vec();
    };
    let digits: Vec<u8> = hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte * 16 + digit)).collect()
}

/// Returns bytes as a cassette has them.
pub(crate) fn payload(bytes: &[u8]) -> Value {
    let is_readable = |text: &&str| !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t'));
    match std::str::from_utf8(bytes).ok().filter(is_readable) {
        Some(text) => text.into(),
        None => json!({ "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}

/// Returns a value without empty and unset fields: a cassette may leave them out.
pub(crate) fn without_empty(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().map(|(name, value)| (name, without_empty(value))).filter(|(name, value)| {
                // The texts of a note, and values of properties, may be empty.
                !matches!(value, Value::Null | Value::Bool(false))
                    && value != &json!([])
                    && value != &json!({})
                    && !(*name == "origin" && value == "" && !fields.contains_key("reason"))
            });
            Value::Object(kept.map(|(name, value)| (name.clone(), value)).collect())
        }
        Value::Array(items) => items.iter().map(without_empty).collect(),
        value => value.clone(),
    }
}
