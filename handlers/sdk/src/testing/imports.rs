//! The interfaces of the contract, with the functions and types of the generated bindings.

#![allow(missing_docs, reason = "the WIT package documents them")]

use serde_json::Value;

/// The reason why a call of a capability failed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessError {
    NotGranted(String),
    Limit(String),
    Unavailable(String),
}

/// Returns the error that is recorded for a call.
fn error(call: &super::round::Call) -> Option<AccessError> {
    serde_json::from_value(call.fields.get("error")?.clone()).ok()
}

/// The round that is played.
pub mod round {
    use super::super::round::with;
    use serde_json::{Value, json};

    pub fn remaining() -> u64 {
        with(|round| round.remaining())
    }

    pub fn details_json() -> Option<String> {
        let details = with(|round| round.arguments.details.clone());
        match details {
            Value::String(yaml) => Some(serde_saphyr::from_str::<Value>(&yaml).ok()?.to_string()),
            other => Some(other.to_string()),
        }
    }

    pub fn note(origin: &str, reason: &str, message: &str) {
        if reason != crate::FILTERED {
            let note = json!({ "origin": origin, "reason": reason, "message": message });
            with(|round| round.notes.push(note));
        }
    }

    pub fn keep(origin: &str) {
        with(|round| round.kept.insert(origin.to_owned()));
    }
}

/// Plain properties.
pub mod properties {
    use super::super::round::{bytes, with};

    pub fn get(name: &str) -> Option<Vec<u8>> {
        with(|round| round.arguments.properties.get(name).map(bytes))
    }

    pub fn names() -> Vec<String> {
        with(|round| round.arguments.properties.keys().cloned().collect())
    }
}

/// Properties from Secrets; each has `placeholder-NAME` for a value.
pub mod secrets {
    use super::super::round::with;
    use super::AccessError;
    use serde_json::json;

    #[derive(Debug)]
    pub struct Secret(String);

    impl Secret {
        pub fn reveal(&self) -> Vec<u8> {
            with(|round| round.revealed.insert(self.0.clone()));
            self.0.clone().into_bytes()
        }
    }

    pub fn get(name: &str) -> Result<Option<Secret>, AccessError> {
        let refusal = with(|round| {
            let call = round.find("secrets.get", &[("name", &json!(name))])?;
            call.is_made = true;
            super::error(call)
        });
        let is_there = with(|round| round.arguments.secrets.contains(name));
        refusal.map_or_else(|| Ok(is_there.then(|| Secret(format!("placeholder-{name}")))), Err)
    }
}

/// A cache that the rounds of a cassette share.
pub mod cache {
    use super::super::round::with;
    use super::AccessError;

    pub fn get(key: &str) -> Option<Vec<u8>> {
        with(|round| round.cache.get(key).cloned())
    }

    pub fn set(key: &str, value: &[u8]) -> Result<(), AccessError> {
        with(|round| round.cache.insert(key.to_owned(), value.to_vec()));
        Ok(())
    }

    pub fn delete(key: &str) {
        with(|round| round.cache.remove(key));
    }
}

/// Lines of the log, which `cargo test` shows with the output of a test.
pub mod logging {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Level {
        Trace,
        Debug,
        Info,
        Warn,
        Error,
        Critical,
    }

    pub fn log(level: Level, context: &str, message: &str) {
        println!("{level:?} {context}: {message}");
    }
}

/// Devices of the node.
pub mod udev {
    use std::cell::{Cell, RefCell};

    use super::super::round::with;
    use super::{AccessError, Value};
    use serde_json::json;

    #[derive(Debug, Clone, Default, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Entry {
        pub devpath: String,
        pub parent: Option<u32>,
        pub matched: bool,
        pub sysname: String,
        pub subsystem: Option<String>,
        pub driver: Option<String>,
        pub devnode: Option<String>,
        pub properties: Vec<(String, String)>,
        pub tags: Vec<String>,
        pub attributes: Vec<(String, String)>,
    }

    #[derive(Debug, Default, serde::Deserialize)]
    #[serde(default)]
    pub struct Snapshot {
        entries: Vec<Entry>,
        unreadable: Vec<String>,
        skipped: u32,
        #[serde(skip)]
        read: Cell<usize>,
    }

    impl Snapshot {
        pub fn next(&self, max: u32) -> Vec<Entry> {
            let page: Vec<Entry> = self.entries.iter().skip(self.read.get()).take(max as usize).cloned().collect();
            self.read.set(self.read.get() + page.len());
            page
        }

        pub fn unreadable(&self) -> Vec<String> {
            self.unreadable.clone()
        }

        pub fn skipped(&self) -> u32 {
            self.skipped
        }
    }

    #[derive(Debug, Default)]
    pub struct Query(RefCell<serde_json::Map<String, Value>>);

    impl Query {
        pub fn new() -> Self {
            Self::default()
        }

        fn add(&self, field: &str, value: Value) {
            let mut fields = self.0.borrow_mut();
            if let Value::Array(values) = fields.entry(field).or_insert_with(|| json!([])) {
                values.push(value);
            }
        }

        pub fn match_subsystem(&self, glob: &str) {
            self.add("subsystems", glob.into());
        }

        pub fn match_sysname(&self, glob: &str) {
            self.add("sysnames", glob.into());
        }

        pub fn match_devpath(&self, glob: &str) {
            self.add("devpaths", glob.into());
        }

        pub fn match_property(&self, name: &str, glob: &str) {
            let mut fields = self.0.borrow_mut();
            let Value::Array(all) = fields.entry("properties").or_insert_with(|| json!([])) else { return };
            match all.iter_mut().find(|one| one.get(0).is_some_and(|of| of == name)).and_then(|one| one.get_mut(1)) {
                Some(Value::Array(globs)) => globs.push(glob.into()),
                _ => all.push(json!([name, [glob]])),
            }
        }

        pub fn match_tag(&self, glob: &str) {
            self.add("tags", glob.into());
        }

        pub fn read_attribute(&self, name: &str) {
            self.add("attributes", name.into());
        }

        pub fn include_ancestors(&self) {
            self.0.borrow_mut().insert("ancestors".to_owned(), true.into());
        }

        pub fn include_descendants(&self) {
            self.0.borrow_mut().insert("descendants".to_owned(), true.into());
        }

        pub fn run(&self) -> Result<Snapshot, AccessError> {
            let made = json!({ "query": Value::Object(self.0.borrow().clone()) });
            let call = with(|round| round.take("udev.run", &[], &made));
            let snapshot = || call.fields.get("snapshot").cloned().unwrap_or_else(|| json!({}));
            let read =
                || serde_json::from_value(snapshot()).unwrap_or_else(|error| panic!("a snapshot is wrong: {error}"));
            super::error(&call).map_or_else(|| Ok(read()), Err)
        }
    }
}

/// Datagrams of groups.
pub mod multicast {
    use super::super::round::{bytes, payload, with};
    use super::{AccessError, Value};
    use serde_json::json;

    #[derive(Debug, Clone)]
    pub struct Datagram {
        pub address: String,
        pub port: u16,
        pub interface: String,
        pub payload: Vec<u8>,
    }

    #[derive(Debug)]
    pub struct Conversation(Value);

    pub fn open(group: &str, port: u16) -> Result<Conversation, AccessError> {
        let made = json!({ "group": group, "port": port });
        let call =
            with(|round| round.take("multicast.open", &[("group", &json!(group)), ("port", &json!(port))], &made));
        let number = call.fields.get("conversation").cloned().unwrap_or_default();
        super::error(&call).map_or(Ok(Conversation(number)), Err)
    }

    impl Conversation {
        pub fn send(&self, bytes: &[u8]) -> Result<(), AccessError> {
            let made = json!({ "payload": payload(bytes) });
            let call = with(|round| round.take("multicast.send", &[("conversation", &self.0)], &made));
            super::error(&call).map_or(Ok(()), Err)
        }

        pub fn receive(&self, timeout: u64, max: u32) -> Result<Vec<Datagram>, AccessError> {
            Ok(with(|round| {
                let (now, end) = (round.clock, round.clock.saturating_add(timeout));
                let next = round.find("multicast.receive", &[("conversation", &self.0)]).filter(|call| call.at <= end);
                let Some(call) = next else {
                    round.advance(end);
                    return Vec::new();
                };
                let all = call.fields.get("datagrams").and_then(Value::as_array).cloned().unwrap_or_default();
                let page: Vec<Datagram> = all.iter().skip(call.done).take(max as usize).filter_map(datagram).collect();
                call.done += page.len();
                call.is_made = call.done >= all.len();
                let at = call.at.max(now);
                round.advance(at);
                page
            }))
        }

        pub fn dropped(&self) -> u64 {
            0
        }
    }

    fn datagram(value: &Value) -> Option<Datagram> {
        let from: std::net::SocketAddr = value.get("from")?.as_str()?.parse().ok()?;
        let interface = value.get("interface").and_then(Value::as_str).unwrap_or_default().to_owned();
        let (address, port) = (from.ip().to_string(), from.port());
        Some(Datagram { address, port, interface, payload: bytes(value.get("payload")?) })
    }
}
