//! Components and DiscoveryHandlers change while the agent runs: what is good takes over, what is not is refused, and what is
//! taken back is gone.

use std::fs;
use std::os::unix::fs::symlink;

use akri_api::condition::{self, Condition};
use akri_api::{DiscoveryHandlerStatus, HandlerState, Instance};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use crate::support::node::{Node, guest, identities, is_online, wait_for};

/// The guest, and versions of it that do the same and are not the same.
fn version(number: usize) -> Vec<u8> {
    let mut bytes = fs::read(guest()).unwrap();
    let name = format!("version-{number:03}");
    if number > 0 {
        bytes.extend([0, u8::try_from(name.len() + 1).unwrap(), u8::try_from(name.len()).unwrap()]);
        bytes.extend(name.as_bytes());
    }
    bytes
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn replace(node: &Node, bytes: &[u8]) {
    fs::write(node.path("components/guest.new"), bytes).unwrap();
    fs::rename(node.path("components/guest.new"), node.path("components/guest.wasm")).unwrap();
}

async fn runs(node: &Node, number: usize) -> DiscoveryHandlerStatus {
    let wanted = Some(digest(&version(number)));
    let is_current = |status: &DiscoveryHandlerStatus| {
        status.digest == wanted && accepted(status).is_some_and(|accepted| accepted.status == "True")
    };
    node.wait_for_handler("guest", &format!("version {number}"), is_current).await
}

fn accepted(status: &DiscoveryHandlerStatus) -> Option<&Condition> {
    condition::find(&status.conditions, "Accepted")
}

async fn is_refused(node: &Node, reason: &str) -> DiscoveryHandlerStatus {
    let refused = |status: &DiscoveryHandlerStatus| {
        accepted(status).is_some_and(|accepted| (&*accepted.status, &*accepted.reason) == ("False", reason))
    };
    node.wait_for_handler("guest", reason, refused).await
}

/// The spec of an object for the guest under another name.
const NAMED_GUEST: &str = "  name: guest\n  interval: 200ms\n";

/// A node whose guest has found a device.
async fn begin(spec: &str) -> (Node, crate::support::node::Agent) {
    let node = Node::new();
    node.add_guest(spec);
    node.write_configuration("guest", "guest", "      devices:1\n", "");
    let agent = node.start();
    node.wait_for_instances("the device", |list| list.len() == 1).await;
    (node, agent)
}

/// The handler runs: it finds what it is told to find from now on.
async fn finds(node: &Node, devices: usize) {
    node.write_configuration("guest", "guest", &format!("      devices:{devices}\n"), "");
    node.wait_for_instances("as many devices", |list| list.len() == devices && list.iter().all(is_online)).await;
}

#[tokio::test] // rule 91
async fn handler_status_shows_its_activity() {
    let (node, _agent) = begin("").await;
    let status = runs(&node, 0).await;
    assert_eq!(status.handler.as_deref(), Some("guest"));
    let active = |status: &DiscoveryHandlerStatus| {
        (status.state, status.devices, status.last_result.as_deref()) == (HandlerState::Active, 1, Some("Discovered"))
    };
    let active = node.wait_for_handler("guest", "a device", active).await;
    let waits = |status: &DiscoveryHandlerStatus| {
        (status.state, status.devices, &status.last_result) == (HandlerState::Waiting, 0, &None)
    };
    node.wait_for_handler("udev", "another handler that nobody uses", waits).await;

    node.write_configuration("second", "guest", "      panic\n", "");
    let suffers = |status: &DiscoveryHandlerStatus| status.last_result.as_deref() == Some("Trapped (default/second)");
    let suffering = node.wait_for_handler("guest", "the trap", suffers).await;
    assert_eq!((suffering.devices, suffering.state), (1, HandlerState::Active));
    assert_eq!(suffering.since, active.since, "it did not begin anew");
    for name in ["guest", "second"] {
        node.remove(&format!("manifests/{name}.yaml"));
    }
    let is_waiting = |status: &DiscoveryHandlerStatus| (status.state, status.devices) == (HandlerState::Waiting, 0);
    node.wait_for_handler("guest", "nothing to do", is_waiting).await;
    node.remove("components/guest.yaml");
    wait_for("no report", || node.handler("guest"), Option::is_none).await;
}

#[tokio::test] // rule 91
async fn last_of_many_versions_is_loaded_and_instances_stay() {
    let (node, agent) = begin("").await;
    let found = node.instances();
    for number in 1..=40 {
        replace(&node, &version(number));
    }
    runs(&node, 40).await;
    // Written in place, as by cp: a half of it may be seen, and is no component.
    let bytes = version(41);
    for end in (0..bytes.len()).step_by(bytes.len() / 20) {
        fs::write(node.path("components/guest.wasm"), &bytes[..end]).unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let half = is_refused(&node, "Invalid").await;
    assert_eq!(half.digest, Some(digest(&version(40))), "the one that ran runs on");
    fs::write(node.path("components/guest.wasm"), &bytes).unwrap();
    runs(&node, 41).await;
    finds(&node, 2).await;
    assert!(identities(&node.instances()).contains(&identities(&found)[0]));

    // Another handler, and the same one with other devices.
    replace(&node, &fs::read(node.path("components/debug_echo.wasm")).unwrap());
    let refused = is_refused(&node, "NameMismatch").await;
    let expected = "the component is the handler 'debugEcho', the DiscoveryHandler is for 'guest'; set spec.name to \
                'debugEcho', or name a component of 'guest'";
    assert_eq!(accepted(&refused).unwrap().message, expected);
    replace(&node, &version(0));
    runs(&node, 0).await;
    node.write_handler("guest", "guest.wasm", "  interval: 200ms\n  shared: true\n");
    is_refused(&node, "OtherHandler").await;
    finds(&node, 3).await;
    assert!(identities(&node.instances()).contains(&identities(&found)[0]), "identities are those of local devices");
    assert!(node.instances().iter().all(|instance| !instance.spec.shared));
    drop(agent);
    let restarted = node.start();
    restarted.wait_for_log("the new component says shared true, the one before false").await;
}

#[tokio::test] // rule 91
async fn removed_component_keeps_running_and_removed_object_does_not() {
    let (node, agent) = begin("").await;
    let found = node.instances();
    node.remove("components/guest.wasm");
    let removed = is_refused(&node, "Unreadable").await;
    assert_eq!(removed.state, HandlerState::Active);
    finds(&node, 2).await;
    node.remove("components/guest.yaml");
    let missing = node.wait_for_condition("guest", "HandlerAvailable", "False", "NoHandler").await;
    assert!(
        missing.message.starts_with("no discovery handler 'guest'; ")
            && missing.message.contains("; ready: debugEcho, udev"),
        "{}",
        missing.message
    );
    assert_eq!(node.instances().len(), 2, "its devices stay");
    node.add_guest("");
    node.wait_for_condition("guest", "Ready", "True", "Discovered").await;
    assert!(identities(&node.instances()).contains(&identities(&found)[0]));
    agent.wait_for_log("DiscoveryHandler refused: cannot read component").await;
}

/// As the kubelet writes a ConfigMap volume: a link to a directory of links is replaced.
#[tokio::test] // rule 91
async fn swapped_symlinks_are_followed() {
    let node = Node::new();
    let components = node.path("components");
    let publish = |generation: &str, number: usize, spec: &str| {
        let directory = components.join(format!("..{generation}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("guest.wasm"), version(number)).unwrap();
        let object = format!(
            "apiVersion: akri.sh/v0\nkind: DiscoveryHandler\nmetadata: {{name: guest}}\nspec:\n  component: {{file: \
             guest.wasm}}\n  interval: 200ms\n{spec}"
        );
        fs::write(directory.join("guest.yaml"), object).unwrap();
        symlink(format!("..{generation}"), components.join("..data_tmp")).unwrap();
        fs::rename(components.join("..data_tmp"), components.join("..data")).unwrap();
    };
    publish("first", 1, "");
    for name in ["guest.wasm", "guest.yaml"] {
        symlink(format!("..data/{name}"), components.join(name)).unwrap();
    }
    node.write_configuration("guest", "guest", "      devices:3\n", "");
    let _agent = node.start();
    node.wait_for_instances("the devices", |list| list.len() == 3).await;
    runs(&node, 1).await;
    publish("second", 2, "  limits: {devices: 2}\n");
    fs::remove_dir_all(components.join("..first")).unwrap();
    runs(&node, 2).await;
    let limited = node.wait_for_condition("guest", "Ready", "False", "LimitExceeded").await;
    assert!(limited.message.starts_with("limit exceeded: devices: 3"), "{}", limited.message);
}

#[tokio::test] // rule 91
async fn pinned_digest_is_the_only_one_that_runs() {
    let pin =
        |number: usize| format!("    digest: sha256:{}\n  interval: 200ms\n", digest(&version(number)).to_uppercase());
    let node = Node::new();
    fs::write(node.path("components/guest.wasm"), version(1)).unwrap();
    node.write_handler("guest", "guest.wasm", &pin(1));
    node.write_configuration("guest", "guest", "      devices:1\n", "");
    let _agent = node.start();
    runs(&node, 1).await;
    let found = node.wait_for_instances("the device", |list| list.len() == 1).await;

    replace(&node, &version(2));
    let refused = is_refused(&node, "DigestMismatch").await;
    assert_eq!(refused.digest, Some(digest(&version(1))), "the pinned one runs on");
    let expected =
        format!("has digest sha256:{}, the object wants sha256:{}", digest(&version(2)), digest(&version(1)));
    assert!(accepted(&refused).unwrap().message.ends_with(&expected));
    node.write_handler("guest", "guest.wasm", &pin(2));
    runs(&node, 2).await;

    // Pinning another digest stops the component that runs.
    node.write_handler("guest", "guest.wasm", &pin(3));
    let revoked = is_refused(&node, "DigestMismatch").await;
    assert_eq!((revoked.state, revoked.digest), (HandlerState::Refused, None));
    node.wait_for_condition("guest", "HandlerAvailable", "False", "NoHandler").await;
    assert_eq!(identities(&node.instances()), identities(&found), "its devices stay");
    replace(&node, &version(3));
    runs(&node, 3).await;
    node.wait_for_condition("guest", "Ready", "True", "Discovered").await;
}

#[tokio::test] // rule 91
async fn revoked_grant_applies_to_a_running_round_and_a_broken_file() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let (node, agent) =
        begin(&format!("  grants:\n    http:\n    - {{networks: [127.0.0.1/32], ports: [{port}]}}\n")).await;
    // A round that began under other grants must not publish what they allowed.
    node.write_configuration("web", "guest", &format!("      get:http://127.0.0.1:{port}/\n"), "");
    let (mut request, _) = server.accept().await.unwrap();
    node.write_handler("guest", "guest.wasm", "  interval: 200ms\n");
    let applied = |times: usize| move |log: &String| log.matches("handler ready handler=\"guest\"").count() == times;
    wait_for("the grants of today", || agent.log(), applied(2)).await;
    request.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
    let refused = node.wait_for_instances("the next round's device", |list| list.len() == 2).await;
    let of_web = refused.iter().find(|instance| instance.spec.configuration_name == "web").unwrap();
    assert!(!of_web.spec.broker_properties.contains_key("BODY"), "{of_web:?}");
    node.remove("manifests/web.yaml");
    node.wait_for_instances("the first device", |list| list.len() == 1).await;

    let grants = "  interval: 200ms\n  grants: {udev: {subsystems: [mem]}, devicePaths: [/dev/**]}\n";
    node.write_handler("guest", "guest.wasm", grants);
    wait_for("other grants", || agent.log(), applied(3)).await;
    node.write_configuration("guest", "guest", "      udev:m?m\n", "");
    node.wait_for_instances("devices of a granted subsystem", |list| list.len() > 1).await;
    replace(&node, b"not a component");
    is_refused(&node, "Invalid").await;
    node.write_handler("guest", "guest.wasm", "  interval: 200ms\n");
    let refused = node.wait_for_condition("guest", "Ready", "False", "NotGranted").await;
    assert!(refused.message.contains("udev"), "{}", refused.message);
    assert_eq!(node.handler("guest").unwrap().digest, Some(digest(&version(0))));
}

/// Of two objects with one handler the one that served first serves on, whatever they are called, and over restarts.
#[tokio::test] // rule 132, threat 58
async fn handler_name_stays_with_its_first_object() {
    let (node, agent) = begin("").await;
    fs::copy(node.path("components/guest.wasm"), node.path("components/z.wasm")).unwrap();
    for object in ["guest", "z-first"] {
        let path = format!("components/{object}.yaml");
        if object == "guest" { node.remove(&path) } else { node.write_handler(object, "z.wasm", NAMED_GUEST) }
    }
    let serves = |status: &DiscoveryHandlerStatus| status.state == HandlerState::Active;
    node.wait_for_handler("z-first", "its turn", serves).await;
    let refused =
        |status: &DiscoveryHandlerStatus| accepted(status).is_some_and(|accepted| accepted.reason == "NameTaken");
    fs::write(node.path("components/a.wasm"), version(1)).unwrap();
    node.write_handler("a-rival", "a.wasm", NAMED_GUEST);
    node.write_handler("guest", "a.wasm", "  interval: 200ms\n");
    for rival in ["a-rival", "guest"] {
        let rival = node.wait_for_handler(rival, "a refusal", refused).await;
        assert_eq!(rival.state, HandlerState::Refused);
        let expected = "handler 'guest' belongs to DiscoveryHandler 'z-first', which served it first: delete one of them, or \
                        give one another component and spec.name";
        assert_eq!(accepted(&rival).unwrap().message, expected);
    }
    finds(&node, 2).await;
    let found = node.instances();

    // The component of the owner can't be read at the next start, and the others are there at once.
    drop(agent);
    fs::rename(node.path("components/z.wasm"), node.path("components/z.gone")).unwrap();
    node.remove("manifests/guest.yaml");
    let _agent = node.start();
    node.wait_for_handler("a-rival", "a refusal", refused).await;
    node.write_configuration("guest", "guest", "      devices:3\n", "");
    node.wait_for_condition("guest", "HandlerAvailable", "False", "NoHandler").await;
    assert_eq!(identities(&node.instances()), identities(&found), "its devices stay");
    fs::rename(node.path("components/z.gone"), node.path("components/z.wasm")).unwrap();
    node.wait_for_handler("z-first", "its turn", serves).await;
    finds(&node, 3).await;
    node.remove("components/z-first.yaml");
    node.wait_for_handler("guest", "its turn", serves).await;
    finds(&node, 4).await;
}

/// A cache belongs to one Configuration, and to one version of one handler under the same grants.
#[tokio::test] // rule 91, rule 92, threat 51
async fn new_version_validates_details_and_has_an_empty_cache() {
    let (node, agent) = begin("").await;
    // Details that were refused may be good for another version.
    node.write_configuration("bad", "guest", "      invalid-details\n", "");
    node.wait_for_condition("bad", "DetailsValid", "False", "InvalidDetails").await;
    let refusals = |log: &String| log.matches("round failed: invalid discoveryDetails").count();
    wait_for("one refusal, for they are not tried again by themselves", || agent.log(), |log| refusals(log) == 1).await;
    replace(&node, &version(1));
    wait_for("another look at the details", || agent.log(), |log| refusals(log) == 2).await;
    node.wait_for_condition("guest", "Ready", "True", "Discovered").await;

    let write = |name: &str, details: &str| node.write_configuration(name, "guest", &format!("      {details}\n"), "");
    let value = async |name: &str, value: &str| {
        let has = |list: &[Instance]| {
            let mine = list.iter().filter(|instance| instance.spec.configuration_name == name);
            let values: Vec<_> = mine.map(|instance| instance.spec.broker_properties.get("VALUE")).collect();
            values == [Some(&value.to_owned())]
        };
        node.wait_for_instances(&format!("{name}: {value}"), has).await;
    };
    write("guest", "write-cache:key=first");
    value("guest", "first").await;
    write("guest", "read-cache:key");
    write("other", "read-cache:key");
    value("other", "none").await;
    value("guest", "first").await;
    // An edit of the DiscoveryHandler is none of the component.
    node.write_handler("guest", "guest.wasm", "  interval: 200ms\n  limits: {round: 5s}\n");
    write("guest", "read-cache:other");
    value("guest", "none").await;
    write("guest", "read-cache:key");
    value("guest", "first").await;
    replace(&node, &version(2));
    runs(&node, 2).await;
    value("guest", "none").await;
    // Nor must what was learnt by a grant outlive it.
    write("guest", "write-cache:key=second");
    value("guest", "second").await;
    write("guest", "read-cache:other"); // no round of the former details comes after it
    value("guest", "none").await;
    write("guest", "read-cache:key");
    value("guest", "second").await;
    node.write_handler("guest", "guest.wasm", "  interval: 200ms\n  grants: {names: [a]}\n");
    value("guest", "none").await;
}
