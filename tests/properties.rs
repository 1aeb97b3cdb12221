//! Properties come from ConfigMaps and Secrets, and follow them while the agent runs.

use std::fs;

use akri_api::Instance;
use serde_json::Value;

use crate::support::node::{Node, guest, identities, is_online};
use crate::support::secrecy::assert_shown_nowhere;

const SECRET: &str = "s3cr3t-hunter2";

/// Adds the guest. Rounds are an hour apart, unless something starts one.
fn add_guest(node: &Node) {
    fs::copy(guest(), node.path("components/guest.wasm")).unwrap();
    node.write_handler("guest", "guest.wasm", "  interval: 1h\n  grants: {secrets: [\"pass*\"]}\n");
}

/// The Configuration `guest`, whose one device shows the properties that the handler sees.
fn write_configuration(node: &Node, details: &str, properties: &str) {
    let text = format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: guest}}\nspec:\n  discoveryHandler:\n    \
         name: guest\n    discoveryDetails: {details}\n    discoveryProperties:\n{properties}"
    );
    node.write("manifests/guest.yaml", &text);
}

fn property(name: &str, kind: &str, object: &str, key: &str, optional: bool) -> String {
    format!("    - name: {name}\n      valueFrom: {{{kind}: {{name: {object}, key: {key}, optional: {optional}}}}}\n")
}

fn write_config_map(node: &Node, name: &str, data: &str) {
    let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n{data}\n");
    node.write(&format!("manifests/config-map-{name}.yaml"), &text);
}

fn write_secret(node: &Node, name: &str, data: &str) {
    let text = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\nstringData: {data}\n");
    node.write(&format!("manifests/secret-{name}.yaml"), &text);
}

/// Returns a property of the only device.
fn shown<'i>(instances: &'i [Instance], name: &str) -> Option<&'i str> {
    let [instance] = instances else { return None };
    instance.spec.broker_properties.get(name).map(String::as_str)
}

async fn wait_for(node: &Node, name: &str, value: &str) -> Vec<Instance> {
    node.wait_for_instances(&format!("{name}={value}"), |list| shown(list, name) == Some(value)).await
}

#[tokio::test] // rule 32, rule 90
async fn each_source_reaches_the_handler_and_changes_start_rounds() {
    let node = Node::new();
    add_guest(&node);
    let properties = [
        "    - {name: HERE, value: plain}\n    - {name: NOTHING}\n".to_owned(),
        property("TEXT", "configMapKeyRef", "map", "text", false),
        property("BYTES", "configMapKeyRef", "map", "bytes", false),
        property("MAYBE", "configMapKeyRef", "absent", "text", true),
        property("PASSWORD", "secretKeyRef", "cam", "password", false),
    ];
    write_configuration(&node, "properties", &properties.concat());
    write_config_map(&node, "map", "data: {text: first}\nbinaryData: {bytes: b25l}");
    write_secret(&node, "cam", "{password: x}");
    let _agent = node.start();
    let found = wait_for(&node, "TEXT", "first").await;
    for (name, value) in
        [("HERE", Some("plain")), ("NOTHING", Some("")), ("BYTES", Some("one")), ("MAYBE", None), ("PASSWORD", None)]
    {
        assert_eq!(shown(&found, name), value, "{name}");
    }
    let resolved = node.wait_for_condition("guest", "PropertiesResolved", "True", "Resolved").await;
    assert_eq!(resolved.message, "");

    write_config_map(&node, "map", "data: {text: second}\nbinaryData: {bytes: dHdv}");
    let changed = wait_for(&node, "TEXT", "second").await;
    assert_eq!(shown(&changed, "BYTES"), Some("two"));
    assert_eq!(identities(&changed), identities(&found), "the same Instance");
    write_config_map(&node, "absent", "data: {text: there}");
    wait_for(&node, "MAYBE", "there").await;
    node.remove("manifests/config-map-absent.yaml");
    node.wait_for_instances("MAYBE gone", |list| list.len() == 1 && shown(list, "MAYBE").is_none()).await;

    // Without references there is nothing to resolve.
    write_configuration(&node, "properties", "    - {name: HERE, value: alone}\n");
    wait_for(&node, "HERE", "alone").await;
    node.wait_for_condition("guest", "PropertiesResolved", "True", "Resolved").await;
}

#[tokio::test] // rule 90
async fn missing_property_stops_rounds_and_is_named() {
    let node = Node::new();
    add_guest(&node);
    let properties = [
        property("TEXT", "configMapKeyRef", "map", "text", false),
        property("PASSWORD", "secretKeyRef", "cam", "password", false),
    ];
    write_configuration(&node, "properties", &properties.concat());
    let agent = node.start();
    let missing = async |message: &str| {
        let message = format!("discoveryProperties: {message}");
        let what = format!("PropertiesResolved=False: {message}");
        crate::support::node::wait_for(
            &what,
            || node.condition("guest", "PropertiesResolved").map(|condition| (condition.status, condition.message)),
            |found| *found == Some(("False".to_owned(), message.clone())),
        )
        .await;
    };
    let (password, text) = ("property 'PASSWORD': Secret default/cam", "property 'TEXT': ConfigMap default/map");
    missing(&format!("{password} does not exist; {text} does not exist")).await;
    let ready = node.wait_for_condition("guest", "Ready", "False", "PropertiesUnresolved").await;
    assert_eq!(ready.message, format!("discoveryProperties: {password} does not exist; {text} does not exist"));
    write_config_map(&node, "map", "data: {text: first}");
    missing(&format!("{password} does not exist")).await;
    write_secret(&node, "cam", "{user: admin}");
    missing(&format!("{password} has no key 'password'")).await;
    assert_eq!(node.instances().len(), 0);

    write_secret(&node, "cam", &format!("{{password: {SECRET}}}"));
    let found = wait_for(&node, "TEXT", "first").await;
    node.wait_for_condition("guest", "PropertiesResolved", "True", "Resolved").await;
    node.wait_for_condition("guest", "Ready", "True", "Discovered").await;

    // A Secret that goes takes no device with it, and a broken one is the one it was.
    node.write("manifests/secret-cam.yaml", &format!("kind: Secret\napiVersion: v1\n{SECRET}: ["));
    agent.wait_for_log("secret-cam.yaml:3: is not YAML").await;
    write_config_map(&node, "map", "data: {text: second}");
    wait_for(&node, "TEXT", "second").await;
    node.remove("manifests/secret-cam.yaml");
    missing(&format!("{password} does not exist")).await;
    let after = node.instances();
    assert_eq!(identities(&after), identities(&found));
    assert!(after.iter().all(is_online));
    assert_shown_nowhere(&node, &agent, SECRET);
}

#[tokio::test] // rule 90
async fn unreadable_secret_is_not_treated_as_missing() {
    let node = Node::new();
    add_guest(&node);
    write_configuration(&node, "properties", &property("PASSWORD", "secretKeyRef", "cam", "password", true));
    node.write(
        "manifests/secret-cam.yaml",
        &format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: cam}}\ndata: {{password: {SECRET}}}\n"),
    );
    let agent = node.start();
    let unresolved = node.wait_for_condition("guest", "PropertiesResolved", "False", "PropertiesUnresolved").await;
    let file = node.path("manifests/secret-cam.yaml");
    let expected_text = format!("{}:4: data.password: is not base64 in a string", file.display());
    let expected =
        format!("discoveryProperties: property 'PASSWORD': Secret default/cam can't be read: {expected_text}");
    assert!(unresolved.message.starts_with(&expected), "{}", unresolved.message);
    agent.wait_for_log(&expected_text).await;
    assert_shown_nowhere(&node, &agent, SECRET);
    node.remove("manifests/secret-cam.yaml");
    node.wait_for_condition("guest", "PropertiesResolved", "True", "Resolved").await;
}

#[tokio::test] // rule 90
async fn rotated_secret_is_in_the_next_round_only() {
    let node = Node::new();
    add_guest(&node);
    write_configuration(&node, "reveal:password", &property("password", "secretKeyRef", "cam", "password", false));
    write_secret(&node, "cam", &format!("{{password: {SECRET}}}"));
    let agent = node.start();
    let found = wait_for(&node, "SECRET", &format!("{} bytes", SECRET.len())).await;
    write_secret(&node, "cam", &format!("{{password: {SECRET}-rotated}}"));
    let rotated = wait_for(&node, "SECRET", &format!("{} bytes", SECRET.len() + 8)).await;
    assert_eq!(identities(&rotated), identities(&found));
    // A Secret that is not granted is refused, though it is there.
    write_configuration(&node, "reveal:other", &property("other", "secretKeyRef", "cam", "password", false));
    let refused = |list: &[Instance]| shown(list, "SECRET").is_some_and(|shown| shown.contains("NotGranted"));
    node.wait_for_instances("a refusal", refused).await;
    assert_shown_nowhere(&node, &agent, SECRET);
}

/// The handler tries to get it out in every way it has.
#[tokio::test] // rule 90
async fn secret_leaked_by_a_handler_is_withheld() {
    const PLACES: [&str; 12] = [
        "property",
        "id",
        "origin",
        "mount",
        "device-spec",
        "kept",
        "note",
        "log",
        "stdout",
        "stderr",
        "panic",
        "error",
    ];
    let node = Node::new();
    add_guest(&node);
    write_secret(&node, "cam", &format!("{{password: {SECRET}}}"));
    let password = property("password", "secretKeyRef", "cam", "password", false);
    for place in PLACES {
        write_configuration(&node, &format!("leak:{place}"), &password);
        let text = fs::read_to_string(node.path("manifests/guest.yaml")).unwrap();
        node.write(&format!("manifests/{place}.yaml"), &text.replace("{name: guest}", &format!("{{name: {place}}}")));
    }
    node.remove("manifests/guest.yaml");
    let agent = node.start();
    for place in PLACES {
        let ready = || node.condition(place, "Ready").filter(|ready| ready.status != "Unknown");
        crate::support::node::wait_for(&format!("the round of {place}"), ready, Option::is_some).await;
    }
    assert_eq!(node.condition("note", "Ready").unwrap().status, "True");
    assert_eq!(node.condition("panic", "Ready").unwrap().reason, "Trapped");
    assert_shown_nowhere(&node, &agent, SECRET);
}

#[tokio::test] // rule 90
async fn discover_reads_secrets_and_config_maps_from_its_file() {
    let node = Node::new();
    let configuration = |optional: bool| {
        format!(
            "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: echo}}\nspec:\n  discoveryHandler:\n    \
             name: debugEcho\n    discoveryDetails: 'descriptions: [foo0]'\n    discoveryProperties:\n{}",
            property("availability", "configMapKeyRef", "map", "text", optional)
        )
    };
    let found = |text: &str| {
        let output = node.discover(text, &["-o", "json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap().as_array().unwrap().len()
    };
    let map =
        |text: &str| format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map}}\ndata: {{text: {text}}}\n");
    assert_eq!(found(&(configuration(false) + &map("ONLINE"))), 1);
    assert_eq!(found(&(configuration(false) + &map("OFFLINE"))), 0);
    assert_eq!(found(&configuration(true)), 1);
    let missing = node.discover(&configuration(false), &[]);
    assert_eq!(missing.status.code(), Some(1));
    let expected_text =
        "error: default/echo: discoveryProperties: property 'availability': ConfigMap default/map does not exist\n";
    assert_eq!(String::from_utf8(missing.stderr).unwrap(), expected_text);
}
