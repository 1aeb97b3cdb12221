//! The host of a round that is played: what the handler asked for, compared with the cassette.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::cassette::Round;

/// The host of a round under way, with its results so far. A test runs in one thread.
#[derive(Default)]
pub(super) struct FakeHost {
    place: String,
    pub(super) round: Round,
    pub(super) kept: BTreeSet<String>,
    pub(super) notes: Vec<Value>,
    pub(super) cache: BTreeMap<String, Vec<u8>>,
}

thread_local! {
    static HOST: RefCell<FakeHost> = RefCell::default();
}

/// Uses the host of this thread.
pub(super) fn with<T>(use_host: impl FnOnce(&mut FakeHost) -> T) -> T {
    HOST.with_borrow_mut(use_host)
}

pub(super) fn clear_cache() {
    with(|host| host.cache.clear());
}

pub(super) fn begin(place: &str, round: Round) {
    with(|host| {
        let cache = std::mem::take(&mut host.cache); // the rounds of a cassette have one
        *host = FakeHost { place: place.to_owned(), round, cache, ..FakeHost::default() };
    });
}

/// Returns the result of the round as a cassette has it.
pub(super) fn end(place: &str, outcome: Result<Vec<Value>, String>) -> Value {
    with(|host| {
        assert!(host.round.calls.is_empty(), "{place}: the handler did not make the call {}", host.round.calls[0]);
        let mut result = Map::new();
        let mut set = |name: &str, value: Value| {
            if value.as_array().is_none_or(|items| !items.is_empty()) {
                result.insert(name.to_owned(), value);
            }
        };
        match outcome {
            Ok(devices) => {
                set("devices", devices.into());
                set("kept", json!(host.kept));
                set("notes", json!(host.notes));
            }
            Err(error) => set("error", error.into()),
        }
        Value::Object(result)
    })
}

impl FakeHost {
    /// Takes the next call if it has this name and these arguments, as far as the cassette says them; ends the test otherwise.
    pub(super) fn take(&mut self, name: &str, arguments: &Value) -> Value {
        let place = &self.place;
        let next = self.round.calls.pop_front();
        let next = next.unwrap_or_else(|| panic!("{place}: the handler calls {name} {arguments}, and no call is left"));
        assert_eq!(next["call"], name, "{place}: the handler calls {name} {arguments}, and the next call is {next}");
        for (field, value) in arguments.as_object().into_iter().flatten() {
            let recorded = &next[field];
            assert!(
                recorded.is_null() && name == "udev.run" || recorded == value,
                "{place}: {name} differs in '{field}'\nwanted: {recorded}\nmade:   {value}"
            );
        }
        next
    }
}
