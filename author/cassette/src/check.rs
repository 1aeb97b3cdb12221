//! Checks of a cassette: what its types allow and no round can have, and secrets that must not be in it.

use std::collections::BTreeMap;

use akri_model::secret_scanner::SecretScanner;
use akri_model::text::clean;
use akri_node::sysfs::Snapshot;
use serde_json::Value;

use crate::call::{Recorded, RecordedCall, secret_in};
use crate::call_queue::queue_key;
use crate::errors::{http_errors, socket_errors};
use crate::payload::Payload;
use crate::round::RecordedRound;

impl RecordedRound {
    /// Looks for secrets in all that would be written.
    ///
    /// # Errors
    /// If there is one.
    pub fn check_secrets(&self, secrets: &SecretScanner) -> Result<(), String> {
        // Where the pieces of a stream end is up to the network.
        let mut flows: BTreeMap<_, (&str, Vec<u8>)> = BTreeMap::new();
        for RecordedCall { call, .. } in &self.calls {
            let name = call.import().0;
            refuse(call.secret(secrets), || format!("the call '{name}'"))?;
            let Some(is_sent) = call.is_sent() else { continue };
            let (_, bytes) = flows.entry((queue_key(call), is_sent)).or_insert_with(|| (name, Vec::new()));
            call.payloads().into_iter().for_each(|payload| bytes.extend_from_slice(&payload.0));
        }
        for (name, bytes) in flows.into_values() {
            refuse(secrets.within_bytes(&bytes), || format!("the series of calls '{name}'"))?;
        }
        let json = |value: serde_json::Result<Value>| secret_in(&value.unwrap_or_default(), secrets);
        refuse(json(serde_json::to_value(&self.result)), || "the result".to_owned())?;
        let arguments = json(serde_json::to_value(&self.arguments));
        refuse(arguments, || "the details, or a plain property,".to_owned())?;
        for Payload(value) in self.arguments.properties.values() {
            refuse(secrets.within_bytes(value), || "a plain property".to_owned())?;
        }
        Ok(())
    }
}

/// Finds what the types allow and no call can have.
pub(crate) fn check(call: &Recorded) -> Result<(), String> {
    let (is_valid, rule) = match call {
        Recorded::TcpConnect { error, silent, .. } => {
            (error.is_none() || !silent, "a connection has either an error or 'silent: true'")
        }
        Recorded::NamesResolve { addresses, error, silent, .. } => (
            is_one([!addresses.is_empty(), error.is_some(), *silent]),
            "a name has either addresses or an error or 'silent: true'",
        ),
        Recorded::HttpRequest { response, error, silent, .. } => (
            is_one([response.is_some(), error.is_some(), *silent]),
            "a request has either a response or an error or 'silent: true'",
        ),
        Recorded::UdevRun { snapshot, error, .. } => {
            (snapshot.is_some() != error.is_some(), "a query has either a snapshot or an error")
        }
        _ => (true, ""),
    };
    if !is_valid {
        return Err(rule.to_owned());
    }
    let name = call.import().0;
    match call {
        Recorded::TcpConnect { error: Some(error), .. }
        | Recorded::UdpSend { error: Some(error), .. }
        | Recorded::TcpReceive { error: Some(error), .. }
        | Recorded::NamesResolve { error: Some(error), .. }
        | Recorded::TcpSocketRefused { error, .. }
        | Recorded::UdpSocketRefused { error, .. } => known_error(name, error, &socket_errors()),
        Recorded::HttpRequest { error: Some(error), .. } => known_error(name, error, &http_errors()),
        Recorded::HttpRequest { response: Some(response), .. } => response.head().map(drop),
        Recorded::UdevRun { snapshot: Some(snapshot), .. } => check_parents(snapshot),
        _ => Ok(()),
    }
}

/// Returns whether a call has one result.
fn is_one(results: [bool; 3]) -> bool {
    results.into_iter().filter(|is_set| *is_set).count() == 1
}

/// Refuses an error that the host never gives.
fn known_error(call: &str, error: &str, known: &[&str]) -> Result<(), String> {
    if known.contains(&error) {
        return Ok(());
    }
    Err(format!("'{}' is no error of {call}; it has {}", clean(error, 64), known.join(", ")))
}

fn check_parents(snapshot: &Snapshot) -> Result<(), String> {
    let is_before = |parent: u32, index: usize| usize::try_from(parent).is_ok_and(|parent| parent < index);
    let mut entries = snapshot.entries.iter().enumerate();
    if entries.all(|(index, entry)| entry.parent.is_none_or(|parent| is_before(parent, index))) {
        Ok(())
    } else {
        Err("the parent of an entry has to be before it".to_owned())
    }
}

fn refuse(secret: Option<&str>, what: impl Fn() -> String) -> Result<(), String> {
    match secret {
        Some(name) => Err(format!(
            "{} holds the secret '{name}', also without the handler: a cassette must not give it away",
            what()
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use akri_model::property::Secret;
    use parking_lot::Mutex;

    use super::*;
    use crate::document::Cassette;
    use crate::recorder::{Recorder, Trace};

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
            let found = cassette(&lines).rounds[0].check_secrets(&secrets()).err();
            let expected = place.map(|place| format!("{place} holds the secret 'password', "));
            let is_expected = |found: &String| expected.as_ref().is_some_and(|expected| found.starts_with(expected));
            assert!(found.as_ref().map_or(expected.is_none(), is_expected), "{lines:?}: {found:?}");
        }
    }

    #[test]
    fn secrets_in_bytes_are_not_traced() {
        static PRINTED: Mutex<String> = Mutex::new(String::new());
        let print = |_, text: &str| text.clone_into(&mut PRINTED.lock());
        let recorder = Recorder::new(0, Some(Trace { secrets: secrets(), print }));
        for (before, is_hidden) in [(SECRET, true), ("other", false)] {
            let bytes = Payload([b"\x00\xff", before.as_bytes()].concat());
            recorder.push(Recorded::TcpSend { socket: 1, bytes });
            let text = PRINTED.lock().clone();
            assert_eq!(text.contains("withheld"), is_hidden, "{text}");
            assert_eq!(text.contains("hex"), !is_hidden, "{text}");
        }
    }
}
