//! The functions of `akri:discovery` for native tests, with the types of the bindings.

use serde::Deserialize;
use serde_json::Value;

use super::cassette::Payload;
use super::fake_host::with;
use crate::host::AccessError;

/// Returns the error of a recorded call.
fn refused(call: &Value) -> Option<AccessError> {
    let error = call.get("error")?.as_object()?;
    let (kind, why) = error.iter().next()?;
    let why = why.as_str().unwrap_or_default().to_owned();
    Some(match kind.as_str() {
        "not-granted" => AccessError::NotGranted(why),
        "limit" => AccessError::Limit(why),
        _ => AccessError::Unavailable(why),
    })
}

/// Reads a part of a recorded call.
fn part<T: for<'de> Deserialize<'de>>(call: &Value, name: &str) -> T {
    let value = call.get(name).cloned().unwrap_or_default();
    serde_json::from_value(value).unwrap_or_else(|error| panic!("'{name}' of {call} is wrong: {error}"))
}

pub mod properties {
    use super::*;

    pub fn get(name: &str) -> Option<Vec<u8>> {
        with(|host| host.round.arguments.properties.get(name).map(|value| value.0.clone()))
    }

    pub fn names() -> Vec<String> {
        with(|host| host.round.arguments.properties.keys().chain(&host.round.arguments.secrets).cloned().collect())
    }
}

pub mod secrets {
    use super::*;

    /// The value of a Secret.
    #[derive(Debug)]
    pub struct Secret(Vec<u8>);

    impl Secret {
        pub fn reveal(&self) -> Vec<u8> {
            self.0.clone()
        }
    }

    pub fn get(name: &str) -> Result<Option<Secret>, AccessError> {
        with(|host| {
            let is_next = |call: &&Value| call["call"] == "secrets.get" && call["name"] == name;
            if host.round.calls.front().filter(is_next).is_some() {
                let call = host.take("secrets.get", &serde_json::json!({ "name": name }));
                return Err(refused(&call).unwrap_or_else(|| panic!("{call} has no error")));
            }
            let is_there = host.round.arguments.secrets.contains(name);
            Ok(is_there.then(|| Secret(format!("placeholder-{name}").into_bytes())))
        })
    }
}

pub mod cache {
    use super::*;

    pub fn get(key: &str) -> Option<Vec<u8>> {
        with(|host| host.cache.get(key).cloned())
    }

    pub fn set(key: &str, value: &[u8]) -> Result<(), AccessError> {
        with(|host| host.cache.insert(key.to_owned(), value.to_owned()));
        Ok(())
    }

    pub fn delete(key: &str) {
        with(|host| host.cache.remove(key));
    }
}

pub mod logging {
    pub use crate::host::bindings::akri::discovery::logging::Level;

    /// Prints the line, which `cargo test` shows of tests that fail.
    pub fn log(level: Level, context: &str, message: &str) {
        println!("{level:?} {context}: {message}");
    }
}

pub mod round {
    use super::*;

    /// Returns all of the round's time: the calls of a cassette take none.
    pub fn remaining() -> u64 {
        with(|host| host.round.arguments.limit.saturating_mul(1_000_000))
    }

    pub fn details_json() -> Option<String> {
        with(|host| match &host.round.arguments.details {
            Value::Null => None,
            Value::String(text) => serde_saphyr::from_str::<Value>(text).ok().map(|details| details.to_string()),
            details => Some(details.to_string()),
        })
    }

    pub fn note(origin: &str, reason: &str, message: &str) {
        if reason == crate::FILTERED {
            return; // the host counts what was left out
        }
        let note = serde_json::json!({"origin": origin, "reason": reason, "message": message});
        with(|host| host.notes.push(note));
    }

    pub fn keep(origin: &str) {
        with(|host| host.kept.insert(origin.to_owned()));
    }
}

pub mod udev {
    use std::cell::RefCell;

    use serde_json::{Map, json};

    use super::*;
    pub use crate::host::bindings::akri::discovery::udev::Entry;

    /// A query, as a cassette has it.
    #[derive(Debug, Default)]
    pub struct Query(RefCell<Map<String, Value>>);

    /// The answer to a query.
    #[derive(Debug)]
    pub struct Snapshot {
        entries: RefCell<Vec<Entry>>,
        unreadable: Vec<String>,
        skipped: u32,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Recorded {
        entries: Vec<RecordedEntry>,
        unreadable: Vec<String>,
        skipped: u32,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct RecordedEntry {
        devpath: String,
        parent: Option<u32>,
        matched: bool,
        sysname: String,
        subsystem: Option<String>,
        driver: Option<String>,
        devnode: Option<String>,
        properties: Vec<(String, String)>,
        tags: Vec<String>,
        attributes: Vec<(String, String)>,
    }

    impl Query {
        pub fn new() -> Self {
            Self::default()
        }

        fn push(&self, field: &str, value: Value) {
            let mut fields = self.0.borrow_mut();
            if let Value::Array(values) = fields.entry(field).or_insert_with(|| json!([])) {
                values.push(value);
            }
        }

        pub fn match_subsystem(&self, glob: &str) {
            self.push("subsystems", glob.into());
        }

        pub fn match_sysname(&self, glob: &str) {
            self.push("sysnames", glob.into());
        }

        pub fn match_devpath(&self, glob: &str) {
            self.push("devpaths", glob.into());
        }

        pub fn match_property(&self, name: &str, glob: &str) {
            let mut fields = self.0.borrow_mut();
            let Value::Array(known) = fields.entry("properties").or_insert_with(|| json!([])) else { return };
            match known.iter_mut().find(|known| known[0] == name).and_then(|known| known[1].as_array_mut()) {
                Some(globs) => globs.push(glob.into()),
                None => known.push(json!([name, [glob]])),
            }
        }

        pub fn match_tag(&self, glob: &str) {
            self.push("tags", glob.into());
        }

        pub fn read_attribute(&self, name: &str) {
            self.push("attributes", name.into());
        }

        pub fn include_ancestors(&self) {
            self.0.borrow_mut().insert("ancestors".to_owned(), true.into());
        }

        pub fn include_descendants(&self) {
            self.0.borrow_mut().insert("descendants".to_owned(), true.into());
        }

        pub fn run(&self) -> Result<Snapshot, AccessError> {
            let query = Value::Object(self.0.borrow().clone());
            let call = with(|host| host.take("udev.run", &json!({ "query": query })));
            if let Some(error) = refused(&call) {
                return Err(error);
            }
            let recorded: Recorded = part(&call, "snapshot");
            let entry = |entry: RecordedEntry| Entry {
                devpath: entry.devpath,
                parent: entry.parent,
                matched: entry.matched,
                sysname: entry.sysname,
                subsystem: entry.subsystem,
                driver: entry.driver,
                devnode: entry.devnode,
                properties: entry.properties,
                tags: entry.tags,
                attributes: entry.attributes,
            };
            let Recorded { entries, unreadable, skipped } = recorded;
            Ok(Snapshot { entries: RefCell::new(entries.into_iter().map(entry).collect()), unreadable, skipped })
        }
    }

    impl Snapshot {
        /// Returns the next entries, at most `max`.
        pub fn next(&self, max: u32) -> Vec<Entry> {
            let mut entries = self.entries.borrow_mut();
            let count = entries.len().min(usize::try_from(max).unwrap_or(usize::MAX));
            entries.drain(..count).collect()
        }

        pub fn unreadable(&self) -> Vec<String> {
            self.unreadable.clone()
        }

        pub fn skipped(&self) -> u32 {
            self.skipped
        }
    }
}

pub mod multicast {
    use std::net::SocketAddr;

    use serde_json::json;

    use super::*;
    pub use crate::host::bindings::akri::discovery::multicast::Datagram;

    /// A conversation with the members of a group.
    #[derive(Debug)]
    pub struct Conversation(Value);

    #[derive(Deserialize)]
    struct Received {
        from: SocketAddr,
        #[serde(default)]
        interface: String,
        payload: Payload,
    }

    /// Opens a conversation.
    pub fn open(group: &str, port: u16) -> Result<Conversation, AccessError> {
        let call = with(|host| host.take("multicast.open", &json!({"group": group, "port": port})));
        refused(&call).map_or_else(|| Ok(Conversation(call["conversation"].clone())), Err)
    }

    impl Conversation {
        pub fn send(&self, payload: &[u8]) -> Result<(), AccessError> {
            let call = with(|host| host.take("multicast.send", &json!({ "conversation": self.0 })));
            let recorded: Payload = part(&call, "payload");
            assert!(recorded.0 == payload, "another payload is sent\nwanted: {:?}\nmade:   {:?}", recorded.0, payload);
            refused(&call).map_or(Ok(()), Err)
        }

        /// Returns what came next, or nothing when the conversation has no more.
        pub fn receive(&self, _timeout: u64, _max: u32) -> Result<Vec<Datagram>, AccessError> {
            let is_next = |call: &&Value| call["call"] == "multicast.receive" && call["conversation"] == self.0;
            let call = with(|host| {
                host.round.calls.front().filter(is_next)?;
                Some(host.take("multicast.receive", &json!({})))
            });
            let Some(call) = call else { return Ok(Vec::new()) };
            let datagram = |Received { from, interface, payload }: Received| Datagram {
                address: from.ip().to_string(),
                port: from.port(),
                interface,
                payload: payload.0,
            };
            Ok(part::<Vec<Received>>(&call, "datagrams").into_iter().map(datagram).collect())
        }

        pub fn dropped(&self) -> u64 {
            0
        }
    }
}
