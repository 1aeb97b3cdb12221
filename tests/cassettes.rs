//! Rounds are recorded at the host's boundary, and played again without network, devices, grants and secrets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::support::node::{Node, akri, built_components, compiled_components, guest};
use crate::support::onvif::camera::{Camera, Lock};
use crate::support::onvif::place::Place;
use crate::support::opcua::{self, LOOPBACK, add_handler, discovery_server, entry, machine, server, url};

const PASSWORD: &str = "correct horse";

/// Rounds of the test guest, written by hand.
const SCRIPT: &str = include_str!("support/guest_rounds.yaml");

const CONFIGURATION: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: one}
spec:
  discoveryHandler:
    name: guest
    discoveryDetails: 'DETAILS'
    discoveryProperties:
    - name: password
      valueFrom: {secretKeyRef: {name: login, key: password}}
---
apiVersion: v1
kind: Secret
metadata: {name: login}
stringData: {password: SECRET}
---
apiVersion: akri.sh/v0
kind: DiscoveryHandler
metadata: {name: guest}
spec:
  component: {file: akri_guest.wasm}
  limits: {round: 2s}
  grants:
    tcp: [{networks: [127.0.0.0/8], ports: ['1-65535']}]
    udp: [{networks: [127.0.0.0/8], ports: ['1-65535']}]
    http: [{networks: [127.0.0.0/8], ports: ['1-65535']}]
    secrets: [password]
";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// `akri handler test`.
fn test(node: &Node, component: &Path, cassette: &Path) -> Output {
    let paths = [component, cassette].map(|path| path.to_str().unwrap().to_owned());
    node.akri(&["handler", "test", &paths[0], "--cassette", &paths[1]])
}

fn assert_same(output: &Output) {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).starts_with("ok "), "{}", text(&output.stdout));
}

/// Records rounds of the guest.
fn record(node: &Node, details: &str, secret: &str, flags: &[&str]) -> (Output, PathBuf) {
    let file = CONFIGURATION.replace("DETAILS", details).replace("SECRET", secret);
    node.write("try.yaml", &file);
    let (component, file, cassette) = (guest(), node.path("try.yaml"), node.path("recorded.jsonl"));
    let paths = [&component, &file, &cassette].map(|path| path.to_str().unwrap());
    let output = node.akri(&[&["handler", "run", paths[0], paths[1], "--record", paths[2]], flags].concat());
    (output, cassette)
}

/// Keeps a recording for a handler that is in the repository, if AKRI_KEEP_CASSETTES is set.
pub(crate) fn keep(handler: &str, name: &str, cassette: &Path) {
    if env::var_os("AKRI_KEEP_CASSETTES").is_some() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(handler).join("cassettes");
        fs::create_dir_all(&directory).unwrap();
        fs::copy(cassette, directory.join(name)).unwrap();
    }
}

#[test] // rule 76
fn built_in_handlers_replay_their_cassettes() {
    let node = Node::new();
    for handler in ["udev", "onvif", "opcua"] {
        let cassettes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../handlers").join(handler).join("cassettes");
        let output = test(&node, &built_components().join(format!("{handler}.wasm")), &cassettes);
        assert_same(&output);
        assert!(!text(&output.stdout).contains(" 0 calls"), "{}", text(&output.stdout));
    }
    // The round in the documentation.
    let page = include_str!("../docs/reference/cassettes.md");
    let mut blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    node.write("udev.yaml", blocks.find(|block| block.contains("handler: udev")).unwrap());
    assert_same(&test(&node, &built_components().join("udev.wasm"), &node.path("udev.yaml")));
}

#[test] // rule 76
fn hand_written_rounds_are_played_and_differences_reported() {
    let node = Node::new();
    node.write("guest.yaml", SCRIPT);
    assert_same(&test(&node, &guest(), &node.path("guest.yaml")));
    let component = node.path("akri_guest.wasm");
    fs::copy(guest(), &component).unwrap();
    let component = component.to_str().unwrap();
    let without = node.akri(&["handler", "test", component]);
    assert!(
        text(&without.stderr).contains("'cassettes' does not exist; record a cassette"),
        "{}",
        text(&without.stderr)
    );
    fs::create_dir(node.path("cassettes")).unwrap();
    node.write("cassettes/guest.yaml", SCRIPT);
    assert_same(&node.akri(&["handler", "test", component]));

    for (from, to, message) in [
        (
            r#"bytes: "hello\n""#,
            r#"bytes: "hallo\n""#,
            "call 2 (line 6), tcp.send (wasi:io/streams), differs (- recorded, + now):\n  - hallo\n  + hello",
        ),
        (
            r#"to: "10.0.0.1:502"}"#,
            r#"to: "10.0.0.2:502"}"#,
            "tcp.connect is called, and the cassette has no such call left:\n  + 10.0.0.1:502\n\
             the next ones of its kind in the cassette:\n  call 1 (line 5): 10.0.0.2:502\n",
        ),
        (
            "payload: Probe",
            "payload: Hello",
            "multicast.send (akri:discovery/multicast), differs (- recorded, + now):\n  - Hello\n  + Probe",
        ),
        (
            "request: {method: GET, uri: \"https://10.0.0.1/x?y=1\"}",
            "request: {method: GET, uri: \"https://10.0.0.1/x?y=2\"}",
            "  - GET https://10.0.0.1/x?y=2\n  + GET https://10.0.0.1/x?y=1",
        ),
        (
            "name: camera.example, addresses",
            "name: other.example, addresses",
            "names.resolve is called, and the cassette has no such call left:\n  + camera.example\n\
             the next ones of its kind in the cassette:\n  call 1 (line 35): other.example\n",
        ),
        (
            "- {call: names.resolve, name: camera.example, addresses: [10.0.0.7]}\n",
            "",
            "+ camera.example\nrecord the round again, or add the call with its result (docs/reference/cassettes.md), in YAML:\n\
             - {\"call\":\"names.resolve\",\"name\":\"camera.example\",\"addresses\":[\"192.0.2.1\"]}\n",
        ),
        (
            "- {call: tcp.receive, socket: 1, end: true}",
            "- {call: tcp.receive, socket: 1, end: true}\n- {call: tcp.connect, socket: 2, to: \"10.0.0.1:502\"}",
            "call 6 (line 10), tcp.connect (wasi:sockets/tcp), is not made:\n  - 10.0.0.1:502",
        ),
        ("at: 9000000", "at: 11000000", "+   \"error\": \"the handler did not finish within 10s\""),
        (
            "name: camera.example, addresses",
            "name: camera.example, at: 11000000, addresses",
            "+   \"error\": \"the handler did not finish within 10s\"",
        ),
        ("addresses: [10.0.0.7]}", "silent: true}", "+   \"error\": \"the handler did not finish within 10s\""),
        ("{TCP: Hello}", "{TCP: Other}", "-         \"TCP\": \"Other\"\n  +         \"TCP\": \"Hello\""),
        ("kept: [\"http://camera-1\", ", "kept: [", "+     \"http://camera-1\",\n"),
        ("message: camera 1 did not answer", "message: something else", "\"message\": \"something else\""),
        (
            "{error: \"unavailable: the camera does not answer\"}",
            "{devices: []}",
            "+   \"error\": \"unavailable: the camera does not answer\"",
        ),
        ("triggers: [uevent tty, ", "triggers: [", "+     \"uevent tty\",\n"),
        (
            "- {call: tcp.receive, socket: 1, end: true}\n",
            "",
            "the handler waits for something that the cassette does not have",
        ),
        (
            "- result: {devices: [{id: net, properties: {TCP: Hello}}]}\n",
            "",
            "the cassette has no result for it; if this one is right, add it:\n{\"result\":{",
        ),
    ] {
        assert!(SCRIPT.contains(from), "{from}");
        node.write("guest.yaml", &SCRIPT.replacen(from, to, 1));
        let output = test(&node, &guest(), &node.path("guest.yaml"));
        let printed = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{to}");
        assert!(printed.starts_with("FAILED ") && printed.contains(message), "{to}: {printed}");
        assert!(text(&output.stderr).contains("1 of 1 cassette failed"), "{}", text(&output.stderr));
    }
}

#[test] // rule 76
fn update_writes_what_differs_and_nothing_else() {
    let node = Node::new();
    let (cassette, component) = (node.path("guest.yaml"), guest().display().to_string());
    let update = || node.akri(&["handler", "test", &component, "--cassette", cassette.to_str().unwrap(), "--update"]);
    // Results, what is sent, and a result that is not there yet; comments and everything else stay.
    for (from, to) in [
        ("{TCP: Hello}", "{TCP: Other}"),
        ("payload: Probe", "payload: Hello"),
        ("- result: {devices: [{id: net, properties: {UDP: WouldBlock}}]}\n", ""),
    ] {
        assert!(SCRIPT.contains(from), "{from}");
        node.write("guest.yaml", &SCRIPT.replacen(from, to, 1));
        let output = update();
        let printed = text(&output.stdout);
        assert!(output.status.success() && printed.starts_with("FAILED "), "{to}: {printed}{}", text(&output.stderr));
        assert!(printed.ends_with("guest.yaml: updated: 1 item\n"), "{to}: {printed}");
        assert_same(&test(&node, &guest(), &cassette));
        let (new, untouched) =
            (fs::read_to_string(&cassette).unwrap(), SCRIPT.lines().filter(|line| !line.contains(from)));
        let mut lines = new.lines();
        for line in untouched.filter(|line| *line != from.trim_end()) {
            assert!(lines.any(|new| new == line), "{to}: {line} is not there, or not in its place: {new}");
        }
        let again = update();
        assert!(
            text(&again.stdout).starts_with("ok ") && fs::read_to_string(&cassette).unwrap() == new,
            "nothing differs"
        );
    }
    // The answers to other calls are not known.
    node.write("guest.yaml", &SCRIPT.replacen("to: \"10.0.0.1:502\"}", "to: \"10.0.0.2:502\"}", 1));
    let before = fs::read_to_string(&cassette).unwrap();
    let output = update();
    let why = "not updated: round 1 has other calls, and what they would bring is not known; record it again, or change its calls";
    assert!(!output.status.success() && text(&output.stderr).contains(why), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(&cassette).unwrap(), before);
    // Lines of a recording likewise.
    let (_, cassette) = record(&node, "devices:1", PASSWORD, &["--rounds", "2"]);
    let recorded = fs::read_to_string(&cassette).unwrap();
    fs::write(&cassette, recorded.replacen("value-0-0", "other", 1)).unwrap();
    let output = node.akri(&["handler", "test", &component, "--cassette", cassette.to_str().unwrap(), "--update"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(&cassette).unwrap(), recorded);
}

/// Pastes what is printed for each call that the cassette lacks, until there is none.
#[test] // rule 76
fn lines_of_missing_calls_can_be_pasted() {
    let node = Node::new();
    for (details, calls) in [
        ("tcp:10.0.0.1:502", vec!["tcp.connect", "tcp.send"]),
        ("udp:10.0.0.1:53", vec!["udp.send"]),
        ("resolve:camera.example", vec!["names.resolve"]),
        ("get:http://10.0.0.1/x", vec!["http.request"]),
        ("ask:239.255.255.250 3702", vec!["multicast.open", "multicast.send"]),
        ("udev:", vec!["udev.run"]),
    ] {
        let mut cassette = format!("- {{akriCassette: 1, handler: guest}}\n- round: {{details: '{details}'}}\n");
        let mut pasted = Vec::new();
        let printed = loop {
            node.write("guest.yaml", &cassette);
            let printed = text(&test(&node, &guest(), &node.path("guest.yaml")).stdout);
            let Some((_, line)) = printed.split_once(", in YAML:\n") else { break printed };
            let call: Value = serde_json::from_str(line.strip_prefix("- ").unwrap()).unwrap();
            pasted.push(call["call"].as_str().unwrap().to_owned());
            assert!(pasted.len() <= calls.len(), "{details}: {printed}");
            cassette += line;
        };
        assert_eq!(pasted, calls, "{details}: {printed}");
        assert!(printed.contains("the cassette has no result for it"), "{details}: {printed}");
    }
}

#[test] // rule 76
fn damaged_cassettes_are_refused() {
    let node = Node::new();
    let head = r#"{"akriCassette":1,"handler":"guest"}"#;
    let round = r#"{"round":{"details":"devices:1"}}"#;
    let call = |call: &str| format!("{head}\n{round}\n{call}\n");
    for (cassette, message) in [
        (String::new(), ":1: the file is empty"),
        ("{".to_owned(), ":1: this is no JSON"),
        ("\u{0}\u{1}".to_owned(), ":1: this is no JSON"),
        ("{}".to_owned(), ":1: this is no cassette: the first line"),
        ("[1]".to_owned(), ":1: this is no cassette"),
        (head.replace(":1,", ":2,"), ":1: version 2 of the format is unknown, this akri reads 1; record it again"),
        (
            head.replace("guest", "udev") + "\n" + round,
            ":1: the cassette is of the handler 'udev', the component is 'guest'; name",
        ),
        (head.replace("}", ",\"x\":1}"), ":1: the head is wrong: unknown field `x`"),
        (head.to_owned(), ":1: the cassette has no round"),
        (format!("{head}\n{}", r#"{"call":"tcp.send","socket":1,"bytes":""}"#), ":2: this is outside of a round"),
        (format!("{head}\n{round}\n{{\"result\":{{}}}}\n{{\"result\":{{}}}}"), ":4: this is after the result"),
        (
            format!("{head}\n{{\"round\":{{\"limit\":18446744073709551615}}}}"),
            ":2: the limit of a round is at most 86400000 milliseconds",
        ),
        (
            call(r#"{"result":{"devices":[{"id":"a","props":{"A":"b"}}]}}"#),
            ":3: the result is wrong: unknown field `devices[0].props`; see docs/reference/cassettes.md",
        ),
        (
            call(r#"{"result":{"devices":[{"id":"a","deviceSpecs":[{"hostpath":"/dev/a"}]}]}}"#),
            ":3: the result is wrong: unknown field `devices[0].deviceSpecs[0].hostpath`",
        ),
        (
            call(r#"{"result":null,"devices":[{"id":"a"}]}"#),
            ":3: the field 'devices' is beside 'result' and not within it; indent it further",
        ),
        (call("{\"what\":1}"), ":3: each line has one of 'round', 'call' and 'result'"),
        (call(r#"{"call":"tcp.fly"}"#), ":3: the call 'tcp.fly' is wrong: there is no `tcp.fly`; there are `udev.run`"),
        (
            call(r#"{"call":"tcp.send","socket":1,"bytes":{"hex":"0"}}"#),
            ":3: the call 'tcp.send' is wrong: `bytes`: hex has two digits",
        ),
        (
            call(r#"{"call":"tcp.send","socket":-1,"bytes":""}"#),
            ":3: the call 'tcp.send' is wrong: `socket` is `-1` and has to be a number from 0 to 4294967295",
        ),
        (call(r#"{"call":"tcp.send","socket":1,"byte":""}"#), ":3: the call 'tcp.send' is wrong: unknown field `byte`"),
        (
            call(r#"{"call":"http.request","request":{"method":"GET","url":"x"},"silent":true}"#),
            ":3: the call 'http.request' is wrong: unknown field `request.url`, expected one of `method`, `uri`",
        ),
        (call(r#"{"call":7,"socket":1}"#), ":3: 'call' is the name of a call, a text"),
        (call("{\"call\":\"multicast.open\"}"), ":3: the call 'multicast.open' is wrong: missing field `conversation`"),
        (
            call(r#"{"call":"udev.run","at":"5ms","snapshot":{}}"#),
            ":3: the call 'udev.run' is wrong: `at` is the text \"5ms\" and has to be a number of microseconds",
        ),
        (
            call(r#"{"call":"udev.run","snapshot":{"entries":[{"devpath":7}]}}"#),
            ":3: the call 'udev.run' is wrong: `snapshot.entries[0].devpath` is `7` and has to be a text",
        ),
        (
            call(r#"{"call":"http.request","request":"GET","silent":true}"#),
            ":3: the call 'http.request' is wrong: `request` is the text \"GET\" and has to be a mapping with fields",
        ),
        (
            format!("{head}\n{{\"round\":{{\"limit\":\"5s\"}}}}"),
            ":2: the round is wrong: `limit` is the text \"5s\" and has to be a number of milliseconds",
        ),
        (
            call(r#"{"result":{"devices":[{"id":"a","deviceSpecs":{}}]}}"#),
            ":3: the result is wrong: `devices[0].deviceSpecs` is a mapping and has to be a list",
        ),
        (
            call(
                r#"{"result":{"devices":[{"id":"a","mounts":[{"containerPath":"/a","hostPath":"/b","readOnly":"no"}]}]}}"#,
            ),
            ":3: the result is wrong: `devices[0].mounts[0].readOnly` is the text \"no\" and has to be true or false",
        ),
        (
            call(r#"{"call":"tcp.connect","socket":1,"to":"10.0.0.1:1","error":"tired"}"#),
            ":3: 'tired' is no error of tcp.connect; it has unknown, access-denied,",
        ),
        (
            call(r#"{"call":"http.request","request":{"method":"GET","uri":"http://a/"}}"#),
            ":3: a request has either a response or an error or 'silent: true'",
        ),
        (
            call(r#"{"call":"http.request","request":{"method":"GET","uri":"x"},"response":{"status":7}}"#),
            ":3: 7 is no HTTP status",
        ),
        (
            call(
                r#"{"call":"http.request","request":{"method":"GET","uri":"x"},"response":{"status":200,"headers":[["a b","c"]]}}"#,
            ),
            ":3: 'a b' is no HTTP header",
        ),
        (
            call(r#"{"call":"udev.run","snapshot":{"entries":[{"devpath":"/a","parent":0}]}}"#),
            ":3: the parent of an entry has to be before it",
        ),
        (
            call(r#"{"call":"tcp.connect","socket":1,"to":"10.0.0.1"}"#),
            ":3: the call 'tcp.connect' is wrong: `to`: '10.0.0.1' is no address and port, such as 10.0.0.1:80",
        ),
        (
            call(r#"{"call":"http.request","request":{"method":"GET","uri":"x","headers":{"a":1}},"silent":true}"#),
            ":3: the call 'http.request' is wrong: `request.headers`: headers are {NAME: VALUE}, or a list",
        ),
        (
            call(r#"{"call":"multicast.open","conversation":1,"group":"239.0.0.1","port":1,"error":"not-granted"}"#),
            ":3: the call 'multicast.open' is wrong: `error`: an error is {not-granted: TEXT}, {limit: TEXT}",
        ),
        (call(r#"{"call":"names.resolve","name":"a"}"#), ":3: a name has either addresses or an error"),
        (format!("{head}\n{}", "[".repeat(100_000)), ":2: this is no JSON: recursion limit exceeded"),
    ] {
        node.write("bad.jsonl", &cassette);
        let output = test(&node, &guest(), &node.path("bad.jsonl"));
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(printed.contains(&format!("bad.jsonl{message}")), "{message}: {printed}");
        assert!(printed.len() < 2000, "{printed}");
    }
    // The others are played all the same, and no name of a file can forge a line.
    fs::create_dir(node.path("all")).unwrap();
    node.write("all/a\u{1b}[2J\nok.jsonl", "{");
    node.write("all/guest.yaml", SCRIPT);
    let output = test(&node, &guest(), &node.path("all"));
    let (played, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(played.lines().count() == 2 && played.contains("\nok ") && !played.contains('\u{1b}'), "{played}");
    assert!(errors.contains("1 of 2 cassettes failed") && !errors.contains('\u{1b}'), "{errors}");
    for (cassette, message) in [
        ("a: 1", "bad.yaml:1: a cassette in YAML is a list"),
        ("- a: [", "bad.yaml:"),
        (
            "- akriCassette: 1\n  handler: guest\n- {round: {}}\n- call: tcp.send",
            "bad.yaml:4: the call 'tcp.send' is wrong: missing field `socket`",
        ),
    ] {
        node.write("bad.yaml", cassette);
        let printed = text(&test(&node, &guest(), &node.path("bad.yaml")).stderr);
        assert!(printed.contains(message), "{message}: {printed}");
    }
    // A directory without any is an error also beside others.
    fs::create_dir(node.path("empty")).unwrap();
    let [empty, all] = ["empty", "all/guest.yaml"].map(|path| node.path(path).display().to_string());
    let component = guest().display().to_string();
    let output = node.akri(&["handler", "test", &component, "--cassette", &empty, "--cassette", &all]);
    let expected = format!("error: no cassettes (*.jsonl, *.yaml, *.yml) in '{empty}'\n");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected));
    // Files that are no cassettes, and a component that is not there.
    node.write("rounds.txt", SCRIPT);
    node.write("guest.yml", SCRIPT);
    let message = |component: &Path, cassette: &str| text(&test(&node, component, &node.path(cassette)).stderr);
    let named = format!("error: '{}' is not named like a cassette: *.jsonl", node.path("rounds.txt").display());
    assert!(message(&guest(), "rounds.txt").starts_with(&named), "{}", message(&guest(), "rounds.txt"));
    let absent = "error: cannot read the component 'nowhere.wasm' (has it been built?): No such file";
    assert!(message(Path::new("nowhere.wasm"), "guest.yml").starts_with(absent));
    assert_same(&test(&node, &guest(), &node.path("guest.yml")));
}

/// Serves one connection of each kind: answers `hello` and `goodbye`, and says the given words.
fn serve(words: &'static str) -> (SocketAddr, SocketAddr) {
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let addresses = (tcp.local_addr().unwrap(), udp.local_addr().unwrap());
    thread::spawn(move || {
        for stream in tcp.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), [0; 4096]);
            let length = stream.read(&mut request).unwrap();
            let is_http = request[..length].starts_with(b"GET ");
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", words.len());
            let _ = write!(stream, "{}{words}", if is_http { &head } else { "" });
        }
    });
    thread::spawn(move || {
        let mut request = [0; 100];
        while let Ok((_, from)) = udp.recv_from(&mut request) {
            udp.send_to(words.as_bytes(), from).unwrap();
        }
    });
    addresses
}

/// Returns a listener that answers no connection, and one that no connection reaches, with what keeps it full.
fn silent_peers() -> (TcpListener, Socket, Vec<Socket>) {
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let full = socket();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let connect = || {
        let client = socket();
        client.connect_timeout(&full.local_addr().unwrap(), Duration::from_millis(200)).map(|()| client)
    };
    let queue = std::iter::from_fn(|| connect().ok()).take(16).collect();
    (TcpListener::bind("127.0.0.1:0").unwrap(), full, queue)
}

#[test] // rule 76
fn recorded_sockets_and_log_lines_replay() {
    let node = Node::new();
    let (tcp, udp) = serve("goodbye");
    let (silent, full, _queue) = silent_peers();
    let (silent_address, full) = (silent.local_addr().unwrap(), full.local_addr().unwrap().as_socket().unwrap());
    for (details, expected) in [
        (format!("tcp:{tcp}"), "goodbye"),
        (format!("udp:{udp}"), "goodbye from 127.0.0.1"),
        (format!("get:http://{tcp}/x"), "goodbye"),
        ("tcp:127.0.0.1:1".to_owned(), "ConnectionRefused"),
        ("tcp:10.0.0.1:1".to_owned(), "PermissionDenied"),
        ("get:http://10.0.0.1/".to_owned(), "HttpRequestDenied"),
        (format!("abandon:http://{silent_address}/x"), "\"silent\":true"),
        (format!("tcp:{full}"), "\"silent\":true"),
        ("resolve:nowhere.example".to_owned(), "error"),
        ("udev:".to_owned(), "not-granted"),
        ("ask:239.255.255.250 3702".to_owned(), "NotGranted"),
        ("write-cache:a=b".to_owned(), "\"VALUE\":\"b\""),
        ("remaining:".to_owned(), "remaining"),
    ] {
        let (output, cassette) = record(&node, &details, PASSWORD, &["--rounds", "2", "--trace"]);
        if details.starts_with("remaining") {
            // What depends on how fast this machine is can't be played.
            assert!(text(&output.stderr).contains("the cassette is not written"), "{}", text(&output.stderr));
            continue;
        }
        assert!(text(&output.stderr).contains("recorded 2 rounds with "), "{details}: {}", text(&output.stderr));
        let recorded = fs::read_to_string(&cassette).unwrap();
        assert!(recorded.contains(expected), "{details}: {recorded}");
        assert_eq!(recorded.matches("{\"round\":").count(), 2, "{recorded}");
        assert!(text(&output.stderr).contains(" ms {\"call\":\""), "{}", text(&output.stderr));
        assert_same(&test(&node, &guest(), &cassette));
    }
    let (output, cassette) = record(&node, "log:hello", PASSWORD, &[]);
    let printed = text(&output.stderr);
    for line in [" INFO hello handler=", "stdout hello", "stderr hello"] {
        assert_eq!(printed.matches(line).count(), 1, "{line}: {printed}");
    }
    let played = test(&node, &guest(), &cassette);
    assert!(text(&played.stderr).contains(" INFO hello handler="), "a replay has them, too: {}", text(&played.stderr));
}

#[test] // rule 76
fn recordings_replace_cassettes_and_nothing_else() {
    let node = Node::new();
    let message = |output: &Output| text(&output.stderr).lines().last().unwrap_or_default().to_owned();
    let path = node.path("recorded.jsonl");
    for others in ["", "{}\n", "{\"id\": 1}\n{\"akriCassette\": 1}\n", "\u{0}"] {
        fs::write(&path, others).unwrap();
        let (output, cassette) = record(&node, "devices:1", PASSWORD, &[]);
        let expected = format!(
            "error: '{}' exists and is no cassette; it is not replaced: name another file with --record",
            cassette.display()
        );
        assert_eq!((output.status.code(), message(&output)), (Some(1), expected));
        assert_eq!(fs::read_to_string(&cassette).unwrap(), others);
    }
    fs::remove_file(&path).unwrap();
    let first = message(&record(&node, "devices:1", PASSWORD, &[]).0);
    assert_eq!(first, format!("recorded 1 round with 0 calls: {}", path.display()));
    let (output, cassette) = record(&node, "devices:2", PASSWORD, &["--rounds", "2"]);
    assert_eq!(message(&output), format!("recorded 2 rounds with 0 calls: {} (replaced)", path.display()));
    assert_same(&test(&node, &guest(), &cassette));
    // A round that fails before its calls.
    for (details, error) in [("invalid-details", "invalid discoveryDetails: "), ("panic", "the handler trapped: ")] {
        let (output, cassette) = record(&node, details, PASSWORD, &[]);
        assert_eq!(message(&output), format!("recorded 1 round with 0 calls: {} (replaced)", path.display()));
        assert!(fs::read_to_string(&cassette).unwrap().contains(error));
        assert_same(&test(&node, &guest(), &cassette));
    }
    // A recording is never a YAML file.
    node.write("mine.yaml", "written by hand");
    let (component, file, cassette) = (guest(), node.path("try.yaml"), node.path("mine.yaml"));
    let [component, file, record] = [&component, &file, &cassette].map(|path| path.to_str().unwrap());
    let output = node.akri(&["handler", "run", component, file, "--record", record]);
    assert!(text(&output.stderr).contains("has to be named *.jsonl"), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(&cassette).unwrap(), "written by hand");
}

#[test] // rule 76
fn interrupted_recording_keeps_its_rounds() {
    let node = Node::new();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let details = format!("udp:{}", silent.local_addr().unwrap());
    node.write("try.yaml", &CONFIGURATION.replace("DETAILS", &details).replace("SECRET", PASSWORD));
    let (component, cassette) = (guest(), node.path("recorded.jsonl"));
    let mut run = Command::new(akri());
    run.env("XDG_CACHE_HOME", compiled_components()).args(["handler", "run", "--rounds", "100", "--record"]);
    let run = run.args([&cassette, &component, &node.path("try.yaml")]).stdout(Stdio::null()).spawn().unwrap();
    silent.recv(&mut [0; 100]).unwrap();
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "no round succeeds, and the recording does");
    let recorded = fs::read_to_string(&cassette).unwrap();
    assert_eq!(recorded.matches("{\"round\":").count(), 1, "{recorded}");
    assert_same(&test(&node, &guest(), &cassette));
}

#[test] // rule 76
fn secrets_are_in_no_cassette() {
    let node = Node::new();
    let (tcp, _) = serve("it is correct horse!");
    for (details, message) in [
        (format!("tcp:{tcp}"), "holds the secret 'password'"),
        (format!("get:http://{tcp}/x"), "holds the secret 'password'"),
        (
            "reveal:password".to_owned(),
            "a replay of round 1 differs; the handler depends on something that is no call, or on",
        ),
        ("devices:1 # correct horse".to_owned(), "the details, or a plain property, holds the secret 'password'"),
    ] {
        let (output, cassette) = record(&node, &details, PASSWORD, &["--trace"]);
        assert_eq!(output.status.code(), Some(1), "{details}");
        assert!(text(&output.stderr).contains(message), "{details}: {}", text(&output.stderr));
        assert!(!text(&output.stderr).contains(PASSWORD), "{details}: {}", text(&output.stderr));
        assert!(!cassette.exists(), "{details}");
    }
    // A login tells the length of its password: another one that is as long as the placeholder can be recorded.
    let (output, _) = record(&node, "reveal:password", PASSWORD, &[]);
    let remedy = "if what is sent tells the length of the secret 'password', record with a value of 20 bytes, as its placeholder has";
    assert!(text(&output.stderr).contains(remedy), "{}", text(&output.stderr));
    let (output, _) = record(&node, "reveal:password", "hunter2hunter2hunter", &[]);
    assert!(!text(&output.stderr).contains(remedy), "{}", text(&output.stderr));
    let (output, _) = record(&node, "reveal:password", "placeholder-password", &[]);
    let own = "the secret 'password' is its own placeholder; record with another value of the same length";
    assert!(text(&output.stderr).contains(own), "{}", text(&output.stderr));
    let (output, cassette) = record(&node, "leak:property", PASSWORD, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let recorded = fs::read_to_string(&cassette).unwrap();
    assert!(recorded.contains("\"secrets\":[\"password\"]") && !recorded.contains(PASSWORD), "{recorded}");
}

/// Cameras get digests of the password: the cassette has those of a placeholder.
#[test] // rule 76
fn recorded_cameras_replay_without_their_passwords() {
    let locks = [Lock::Open, Lock::Token(PASSWORD), Lock::HttpDigest(PASSWORD), Lock::Token("another one")];
    let cameras = (0..).zip(locks).map(|(number, lock)| Camera::with_lock(number, lock));
    let Some(place) = Place::new(cameras) else { return };
    let credentials = [("username_default", "admin", false), ("password_default", PASSWORD, true)];
    place.write_cameras("discoveryTimeoutSeconds: 1", &credentials);
    let node = &place.node;
    let (component, cassette) = (node.path("components/onvif.wasm"), node.path("cameras.jsonl"));
    let mut run = place.namespace.command(&akri());
    run.env("XDG_CACHE_HOME", compiled_components()).args(["handler", "run"]).arg(&component);
    run.arg(node.path("manifests")).arg("--handler-object").arg(node.path("components/onvif.yaml"));
    let output = run.arg("--record").arg(&cassette).args(["--rounds", "2"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let recorded = fs::read_to_string(&cassette).unwrap();
    assert!(!recorded.contains(PASSWORD), "{recorded}");
    assert_eq!(recorded.matches("rtsp://").count() % 3, 0, "three cameras let us in: {recorded}");
    assert!(recorded.contains("http.request") && recorded.contains("multicast.receive"));
    keep("handlers/onvif", "cameras.jsonl", &cassette);
    assert_same(&test(node, &component, &cassette));
    let changed = recorded.replacen("Cam 1", "Cam 7", 1);
    node.write("changed.jsonl", &changed);
    let differs = test(node, &component, &node.path("changed.jsonl"));
    assert!(text(&differs.stdout).contains("Cam 7"), "{}", text(&differs.stdout));
}

#[tokio::test] // rule 76
async fn recorded_servers_replay() {
    let (at, node) = (machine(), opcua::node());
    let (lds, pump_url, mixer_url) = (url(at, 4840), url(at, 4841), url(at, 4842));
    let entries = [entry("pump", &pump_url), entry("mixer", &mixer_url), entry("stale", &url(at, 4999))];
    let peers = tokio::join!(discovery_server(&lds, &entries), server("pump", &pump_url), server("mixer", &mixer_url));
    let (Some(_lds), Some(_pump), Some(_mixer)) = peers else { return };
    add_handler(&node, LOOPBACK);
    opcua::write_configuration(&node, &[&lds], "");
    let (component, cassette) = (node.path("components/opcua.wasm"), node.path("servers.jsonl"));
    let (file, grants) = (node.path("manifests/plant.yaml"), node.path("components/opcua.yaml"));
    let paths = [&component, &file, &grants, &cassette].map(|path| path.to_str().unwrap());
    let [run, file, grants, record] = paths;
    let output =
        node.akri(&["handler", "run", run, file, "--handler-object", grants, "--record", record, "--rounds", "2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let recorded = fs::read_to_string(&cassette).unwrap();
    assert!(recorded.contains("\"id\":\"urn:pump\"") && recorded.contains("connection-refused"), "{recorded}");
    keep("handlers/opcua", "plant.jsonl", &cassette);
    assert_same(&test(&node, &component, &cassette));
}
