use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::Description;
use crate::host::{cache, keep, note, properties, property, udev};

/// A handler that asks what its details name.
struct Asks;

#[derive(serde::Deserialize)]
struct Details {
    ask: String,
}

impl Handler for Asks {
    type Details = Details;
    const DESCRIPTION: Description = Description::new("asks", "1");

    fn parse(json: Option<&str>) -> Result<Details, Vec<Problem>> {
        crate::read(json, "the details must be a mapping").map_err(|problem| vec![problem])
    }

    fn discover(details: Details) -> Result<Vec<Device>, Failure> {
        let id = match details.ask.as_str() {
            "property" => String::from_utf8_lossy(&properties::get("NAME").unwrap_or_default()).into_owned(),
            "secret" => String::from_utf8_lossy(&property("PASSWORD")?.unwrap_or_default()).into_owned(),
            "cache" => cache::get("id").map_or("none".to_owned(), |id| String::from_utf8_lossy(&id).into_owned()),
            "udev" => {
                let query = udev::Query::new();
                query.match_subsystem("tty");
                query.run()?.next(9).remove(0).sysname
            }
            other => {
                note(other, "Unknown", "nobody knows it");
                keep(other);
                return Ok(Vec::new());
            }
        };
        let _ = cache::set("id", id.as_bytes());
        Ok(vec![Device::new(id)])
    }
}

/// Plays rounds in YAML, and returns the message of a failure.
fn played(rounds: &str) -> String {
    let text = format!("- {{akriCassette: 1, handler: asks}}\n{rounds}");
    let failure = catch_unwind(AssertUnwindSafe(|| play_text::<Asks>("file", &text))).err();
    let text = |failure: Box<dyn std::any::Any + Send>| *failure.downcast::<String>().unwrap();
    failure.map_or_else(String::new, text)
}

#[test]
fn cassette_answers_what_a_handler_asks() {
    let rounds = "
- round: {details: 'ask: property', properties: {NAME: lamp}}
- result: {devices: [{id: lamp}]}
- round: {details: {ask: cache}}
- result: {devices: [{id: lamp, properties: {}}]}
- round: {details: {ask: secret}, secrets: [PASSWORD]}
- result: {withheld: [placeholder-PASSWORD]}
- round: {details: {ask: secret}}
- {call: secrets.get, name: PASSWORD, error: {not-granted: grants.secrets}}
- result: {error: 'not granted: grants.secrets'}
- round: {details: {ask: udev}}
- call: udev.run
  query: {subsystems: [tty]}
  snapshot: {entries: [{sysname: ttyS0, matched: true}]}
- result: {devices: [{id: ttyS0}]}
- round: {details: {ask: nothing}}
- result: {kept: [nothing], notes: [{origin: nothing, reason: Unknown, message: nobody knows it}]}
- round: {details: {ask: 5}}
- result: {error: 'invalid discoveryDetails: ask: invalid type: integer `5`, expected a string'}";
    assert_eq!(played(rounds), "");
}

#[test]
fn differences_name_the_expected_and_the_actual_call() {
    for (round, messages) in [
        ("- round: {details: {ask: property}}\n- result: {devices: [{id: lamp}]}", &["the result differs", "lamp"][..]),
        ("- round: {details: {ask: property}}", &["file: round 1 has no result; it is", "devices"]),
        (
            "- round: {details: {ask: udev}}\n- {call: udev.run, query: {subsystems: [usb]}, snapshot: {}}\n- result: {}",
            &[
                "udev.run differs in 'query'",
                "expected: {\"subsystems\":[\"usb\"]}",
                "actual:   {\"subsystems\":[\"tty\"]}",
            ],
        ),
        (
            "- round: {details: {ask: udev}}\n- result: {}",
            &["udev.run is called, and the cassette has no such call left", "tty", "expected: none"],
        ),
        (
            "- round: {details: {ask: nothing}}\n- {call: udev.run, snapshot: {}}\n- result: {}",
            &["recorded calls are not made:\nudev.run"],
        ),
    ] {
        let failure = played(round);
        assert!(messages.iter().all(|message| failure.contains(message)), "{round}: {failure}");
    }
}

#[cfg(feature = "net")]
mod network {
    use std::io;
    use std::time::Duration;

    use super::*;
    use crate::net::{block_on, connect, join_all, within};

    const LIMIT: Duration = Duration::from_secs(2);

    async fn hello(server: &str) -> io::Result<usize> {
        let connection = connect(server, 502, LIMIT).await?;
        connection.write_all(b"hello").await?;
        within(LIMIT, connection.read(&mut [0; 8])).await
    }

    struct Hello;

    impl Handler for Hello {
        type Details = Vec<String>;
        const DESCRIPTION: Description = Description::new("hello", "1");

        fn parse(json: Option<&str>) -> Result<Self::Details, Vec<Problem>> {
            Ok(serde_json::from_str(json.unwrap_or_default()).unwrap())
        }

        fn discover(servers: Self::Details) -> Result<Vec<Device>, Failure> {
            let answers = block_on(join_all(servers.iter().map(|server| hello(server))));
            let left = crate::host::time_left(Duration::ZERO).as_millis();
            let texts = answers
                .into_iter()
                .map(|answer| answer.map_or_else(|error| error.kind().to_string(), |n| n.to_string()));
            Ok(vec![Device::new(texts.collect::<Vec<_>>().join(",")).property("LEFT", left.to_string())])
        }
    }

    fn played(rounds: &str) -> String {
        let text = format!("- {{akriCassette: 1, handler: hello}}\n{rounds}");
        let failure = catch_unwind(AssertUnwindSafe(|| play_text::<Hello>("file", &text))).err();
        failure.map_or_else(String::new, |failure| *failure.downcast::<String>().unwrap())
    }

    #[test]
    fn silent_peers_take_their_time_limit_once() {
        let rounds = "
- round: {details: ['192.0.2.1', '192.0.2.2', '192.0.2.3', '192.0.2.4', plc.example]}
- {call: tcp.connect, socket: 1, to: '192.0.2.1:502', silent: true}
- {call: tcp.connect, socket: 2, to: '192.0.2.2:502', silent: true}
- {call: tcp.connect, socket: 3, to: '192.0.2.3:502', error: connection-refused}
- {call: tcp.connect, socket: 4, to: '192.0.2.4:502', at: 1000}
- {call: tcp.send, socket: 4, bytes: hel}
- {call: tcp.send, socket: 4, bytes: lo}
- {call: tcp.receive, socket: 4, at: 1500000, bytes: abc}
- {call: names.resolve, name: plc.example, silent: true}
- result: {devices: [{id: 'timed out,timed out,connection refused,3,timed out', properties: {LEFT: '8000'}}]}";
        assert_eq!(played(rounds), "");
    }

    #[test]
    fn bytes_that_differ_are_named() {
        let rounds = "
- round: {details: ['192.0.2.1']}
- {call: tcp.connect, socket: 1, to: '192.0.2.1:502'}
- {call: tcp.send, socket: 1, bytes: help}
- result: {}";
        let failure = played(rounds);
        assert!(failure.contains("tcp.send differs\nexpected: \"help\"\nactual:   \"hello\""), "{failure}");
        let failure = played("- round: {details: ['192.0.2.9']}\n- result: {}");
        assert!(failure.contains("tcp.connect is called, and the cassette has no such call left"), "{failure}");
    }
}
