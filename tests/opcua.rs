//! OPC UA servers are found through discovery servers of other people's making, and are devices as long as they are there.

use akri_api::Instance;
use serde_json::json;

use crate::support::node::{Node, identities, is_online};
use crate::support::opcua::{
    Peer, add_handler, discover, discovery_server, entry, found, machine, node, server, url, warnings,
    write_configuration,
};

fn property<'i>(instance: &'i Instance, name: &str) -> &'i str {
    instance.spec.broker_properties.get(name).map(String::as_str).unwrap_or_default()
}

fn of<'i>(instances: &'i [Instance], uri: &str) -> Option<&'i Instance> {
    instances.iter().find(|instance| property(instance, "OPCUA_APPLICATION_URI") == uri)
}

#[tokio::test]
async fn servers_that_are_listed_and_there_are_devices() {
    let (at, node) = (machine(), node());
    let lds = url(at, 4840);
    let entries = [
        entry("stale", &url(at, 4999)),
        entry("before-pump", &url(at, 4841)), // was at the port that the pump has now
        entry("mixer", "opc.tcp://mixer.invalid:4842/"),
        entry("unwanted", &url(at, 4841)),
    ];
    let Some(_lds) = discovery_server(&lds, &entries).await else { return };
    let pump = server("pump", &url(at, 4841), &lds).await.unwrap();
    let _mixer = Peer::asyncua(&json!({"url": url(at, 4842), "uri": "urn:mixer", "name": "mixer"})).await.unwrap();
    let filter = "      applicationNames:\n        action: Exclude\n        items: [unwanted]\n";
    write_configuration(&node, &[&lds], filter);
    let agent = node.start();

    let instances = node.wait_for_instances("both servers", |list| list.len() == 2).await;
    let pump_device = of(&instances, "urn:pump").unwrap();
    let expected = [
        ("OPCUA_DISCOVERY_URL", url(at, 4841)),
        ("OPCUA_APPLICATION_NAME", "pump".to_owned()),
        ("OPCUA_PRODUCT_URI", "urn:freeopcua.github.io:python:server".to_owned()),
        ("OPCUA_SECURITY_POLICIES", "None".to_owned()),
        ("OPCUA_USER_TOKEN_TYPES", "Anonymous,UserName".to_owned()),
    ];
    for (name, value) in expected {
        assert_eq!(property(pump_device, name), value);
    }
    assert!(
        pump_device.spec.shared
            && !pump_device.spec.broker_properties.contains_key("OPCUA_SERVER_CERTIFICATE_THUMBPRINT")
    );
    let mixer = of(&instances, "urn:mixer").unwrap();
    assert_eq!(property(mixer, "OPCUA_DISCOVERY_URL"), url(at, 4842), "beside the discovery server, on its own port");
    node.wait_for_condition("plant", "DiscoveryComplete", "True", "Complete").await;
    agent.wait_for_log("'urn:stale' is listed, but was not found").await;

    drop(pump); // killed: it stays listed
    let pump = of(&instances, "urn:pump").unwrap().metadata.name.clone().unwrap();
    node.wait_for_instance(&pump, "offline", |instance| !is_online(instance)).await;
    assert!(of(&node.instances(), "urn:mixer").is_some_and(is_online));
}

#[tokio::test]
async fn a_dead_discovery_server_takes_no_device_away() {
    let (at, other, node) = (machine(), machine(), node());
    let (lds, other_lds) = (url(at, 4840), url(other, 4840));
    let Some(peer) = discovery_server(&lds, &[]).await else { return };
    let _other_peer = discovery_server(&other_lds, &[]).await.unwrap();
    let _pump = server("pump", &url(at, 4841), &lds).await.unwrap();
    let mixer = server("mixer", &url(other, 4841), &other_lds).await.unwrap();
    write_configuration(&node, &[&lds, &other_lds], "");
    let _agent = node.start();
    let found = node.wait_for_instances("both servers", |list| list.len() == 2).await;

    drop(peer);
    let condition = node.wait_for_condition("plant", "DiscoveryComplete", "False", "Unreachable").await;
    assert!(condition.message.contains(&format!("{lds}: connection refused")), "{}", condition.message);
    drop(mixer);
    let gone = |list: &[Instance]| of(list, "urn:mixer").is_some_and(|mixer| !is_online(mixer));
    let instances = node.wait_for_instances("that the other one goes", gone).await;
    assert!(of(&instances, "urn:pump").is_some_and(is_online), "nobody knows better");
    assert_eq!(identities(&instances), identities(&found));

    let _peer = discovery_server(&lds, &[entry("pump", &url(at, 4841))]).await.unwrap();
    node.wait_for_condition("plant", "DiscoveryComplete", "True", "Complete").await;
    assert_eq!(identities(&node.instances()), identities(&found));
}

#[tokio::test]
async fn a_server_of_two_discovery_servers_is_one_device_and_outlives_either() {
    let (at, other, node) = (machine(), machine(), node());
    let (lds, other_lds) = (url(at, 4840), url(other, 4840));
    let listed = [entry("pump", &url(at, 4841))];
    let Some(peer) = discovery_server(&lds, &listed).await else { return };
    let other_peer = discovery_server(&other_lds, &listed).await.unwrap();
    let _pump = Peer::asyncua(&json!({"url": url(at, 4841), "uri": "urn:pump", "name": "pump"})).await.unwrap();
    write_configuration(&node, &[&lds, &other_lds], "");
    let _agent = node.start();
    let found = node.wait_for_instances("the server", |list| !list.is_empty()).await;

    for (peer, other) in [(peer, &lds), (other_peer, &other_lds)] {
        drop(peer);
        let condition = node.wait_for_condition("plant", "DiscoveryComplete", "False", "Unreachable").await;
        assert!(condition.message.contains(other), "{}", condition.message);
        let instances = node.instances();
        assert_eq!((identities(&instances), instances.iter().all(is_online)), (identities(&found), true));
        if *other == lds {
            drop(discovery_server(&lds, &listed).await.unwrap());
        }
    }
}

#[tokio::test]
async fn what_is_not_granted_is_not_asked_and_is_named() {
    let (at, node) = (machine(), Node::new());
    let grants = format!("  grants:\n    tcp:\n    - networks: [{at}/32]\n      ports: [4840]\n");
    add_handler(&node, &grants);
    let lds = url(at, 4840);
    let entries = [entry("elsewhere", &url(at, 4841)), entry("named", "opc.tcp://localhost:4841/")];
    let Some(_lds) = discovery_server(&lds, &entries).await else { return };
    let output = discover(&node, &[&lds, "opc.tcp://localhost:4840/"], "");
    let warnings = warnings(&output);
    assert_eq!(found(&output), [""; 0]);
    for said in [
        format!("{}: not granted: TCP to {at}:4841 (grants.tcp)", url(at, 4841)),
        "opc.tcp://localhost:4841/: not granted: resolving 'localhost' (grants.names)".to_owned(),
        "opc.tcp://localhost:4840/: not granted: resolving 'localhost' (grants.names)".to_owned(),
    ] {
        assert!(warnings.contains(&said), "no '{said}' in\n{warnings}");
    }
    let output = discover(&node, &["opc.tcp://localhost:4840/"], "");
    assert!(!output.status.success());
}

#[test]
fn discovery_urls_that_cannot_work_are_named_with_their_line() {
    let node = node();
    let output =
        discover(&node, &["opc.tcp://127.0.0.1:4840/", "http://127.0.0.1:4840/", "opc.tcp://127.0.0.1:0/"], "");
    let said = warnings(&output);
    assert!(!output.status.success());
    assert!(said.contains("try.yaml:11"), "{said}");
    assert!(said.contains("'http://127.0.0.1:4840/' is no discovery URL"), "{said}");
    assert!(said.contains("'0' is not a port from 1 to 65535"), "{said}");
}

#[tokio::test]
async fn a_node_without_a_discovery_server_says_so_and_goes_on_trying() {
    let (at, node) = (machine(), node());
    write_configuration(&node, &[&url(at, 4840)], "");
    let _agent = node.start();
    let ready = node.wait_for_condition("plant", "Ready", "False", "Unavailable").await;
    assert!(ready.message.contains(&format!("{}: connection refused", url(at, 4840))), "{}", ready.message);
    let alone = json!({"url": url(at, 4840), "uri": "urn:alone", "name": "alone", "type": "ClientAndServer"});
    let Some(_server) = Peer::asyncua(&alone).await else { return };
    let instances = node.wait_for_instances("the server", |list| !list.is_empty()).await;
    assert_eq!(property(&instances[0], "OPCUA_APPLICATION_URI"), "urn:alone", "a server lists itself");
}
