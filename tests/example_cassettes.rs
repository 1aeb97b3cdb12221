//! Cassettes of the examples are recorded from programs that other people wrote.

use std::fs;

use crate::cassettes::keep;
use crate::example_handlers::{Peer, cassettes, modbus, replays, root, serve_unit_7};
use crate::support::namespace::Namespace;
use crate::support::node::{Node, akri, compiled_components};

#[test] // rule 76
fn recorded_modbus_servers_replay() {
    let node = Node::new();
    replays(&node, &modbus(), &cassettes("modbus"));
    let Some(namespace) = Namespace::new() else { return };
    let Some(_plc) = Peer::start(&namespace, "modbus_server.py", &["127.0.0.1", "1502", "Acme", "PLC-7"]) else {
        return;
    };
    serve_unit_7(&namespace, "127.0.0.2:1502");
    let example = root().join("examples/handlers/modbus");
    let read = |name: &str| fs::read_to_string(example.join(name)).unwrap();
    // Nothing listens at 127.0.0.3.
    let servers = r#"servers: ["127.0.0.1:1502", "127.0.0.2:1502", "127.0.0.3:1502"]"#;
    let configuration = read("configuration.yaml");
    let listed = configuration.lines().find(|line| line.contains("servers:")).unwrap().trim();
    node.write("plc.yaml", &configuration.replace(listed, servers).replace("[1]", "[1, 7]"));
    node.write("modbus.yaml", &read("handler.yaml").replace("10.0.0.0/8", "127.0.0.0/8"));
    let cassette = node.path("servers.jsonl");
    let mut run = namespace.command(&akri());
    run.env("XDG_CACHE_HOME", compiled_components()).args(["handler", "run"]).arg(modbus()).arg(node.path("plc.yaml"));
    run.arg("--handler-object").arg(node.path("modbus.yaml")).arg("--record").arg(&cassette);
    let output = run.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let recorded = fs::read_to_string(&cassette).unwrap();
    for seen in
        ["PLC-7", "127.0.0.2:1502/7", "\"kept\":[\"127.0.0.2:1502/1\",\"127.0.0.3:1502/1\"", "connection-refused"]
    {
        assert!(recorded.contains(seen), "{seen}: {recorded}");
    }
    keep("examples/handlers/modbus", "servers.jsonl", &cassette);
    replays(&node, &modbus(), &cassette);
}
