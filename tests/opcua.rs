//! OPC UA servers are found through discovery servers of other people's making, and are devices as long as they are there.

use std::fs;

use akri_api::Instance;
use serde_json::{Value, json};

use crate::support::dns::NameService;
use crate::support::node::{Node, akri, built_components, identities, is_online, wait_for};
use crate::support::opcua::{
    LOOPBACK, Peer, add_handler, discover, discovery_server, entry, found, free_port, machine, node, server, url,
    warnings, write_configuration,
};

fn property<'i>(instance: &'i Instance, name: &str) -> &'i str {
    instance.spec.broker_properties.get(name).map(String::as_str).unwrap_or_default()
}

fn of<'i>(instances: &'i [Instance], uri: &str) -> Option<&'i Instance> {
    instances.iter().find(|instance| property(instance, "OPCUA_APPLICATION_URI") == uri)
}

#[tokio::test]
async fn listed_and_reachable_servers_become_devices() {
    let (at, node) = (machine(), node());
    let lds = url(at, 4840);
    let nowhere = "mixer".repeat(13); // too long for DNS, so that nobody else is asked for it
    let entries = [
        entry("stale", &url(at, 4999)),
        entry("before-pump", &url(at, 4841)), // was at the port that the pump has now
        entry("mixer", &format!("opc.tcp://{nowhere}.invalid:4842/")),
        entry("unwanted", &url(at, 4841)),
    ];
    let mixer_url = url(at, 4842);
    let (lds_peer, mixer) = tokio::join!(discovery_server(&lds, &entries), server("mixer", &mixer_url));
    let (Some(_lds), Some(_mixer)) = (lds_peer, mixer) else { return };
    let pump = json!({"url": url(at, 4841), "uri": "urn:pump", "name": "pump", "register": lds});
    let pump = Peer::asyncua(&pump).await.unwrap();
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

/// A name may stand for an address where nobody listens, and for another one.
#[tokio::test]
async fn servers_are_found_by_name_ipv4_and_ipv6() {
    let node = node();
    let ports = [free_port(), free_port()];
    let [v4, v6] = [format!("opc.tcp://127.0.0.1:{}/", ports[0]), format!("opc.tcp://[::1]:{}/", ports[1])];
    let (Some(_v4), Some(_v6)) = tokio::join!(server("v4", &v4), server("v6", &v6)) else { return };
    let localhost = format!("opc.tcp://localhost:{}/", ports[0]);
    let output = discover(&node, &[&localhost, &v6], "");
    assert_eq!((warnings(&output).as_str(), found(&output)), ("", vec!["urn:v4".to_owned(), "urn:v6".to_owned()]));
}

#[tokio::test] // rule 35
async fn dead_discovery_server_removes_no_device() {
    let (at, other, node) = (machine(), machine(), node());
    let (lds, other_lds) = (url(at, 4840), url(other, 4840));
    let (pump_url, mixer_url) = (url(at, 4841), url(other, 4841));
    let (pump, mixer) = ([entry("pump", &pump_url)], [entry("mixer", &mixer_url)]);
    let peers = tokio::join!(
        discovery_server(&lds, &pump),
        discovery_server(&other_lds, &mixer),
        server("pump", &pump_url),
        server("mixer", &mixer_url),
    );
    let (Some(peer), Some(_other_peer), Some(_pump), Some(mixer)) = peers else { return };
    write_configuration(&node, &[&lds, &other_lds], "");
    let _agent = node.start();
    let found = node.wait_for_instances("both servers", |list| list.len() == 2).await;

    drop(peer);
    wait_for_loss(&node, &lds).await;
    drop(mixer);
    let removed = |list: &[Instance]| of(list, "urn:mixer").is_some_and(|mixer| !is_online(mixer));
    let instances = node.wait_for_instances("that the other one goes", removed).await;
    assert!(of(&instances, "urn:pump").is_some_and(is_online), "nobody knows better");
    assert_eq!(identities(&instances), identities(&found));

    let _peer = discovery_server(&lds, &pump).await.unwrap();
    node.wait_for_condition("plant", "DiscoveryComplete", "True", "Complete").await;
    assert_eq!(identities(&node.instances()), identities(&found));
}

#[tokio::test]
async fn server_listed_twice_is_one_device_and_survives_either() {
    let (at, other, node) = (machine(), machine(), node());
    let (lds, other_lds) = (url(at, 4840), url(other, 4840));
    let pump = url(at, 4841);
    let listed = [entry("pump", &pump)];
    let peers =
        tokio::join!(discovery_server(&lds, &listed), discovery_server(&other_lds, &listed), server("pump", &pump));
    let (Some(peer), Some(other_peer), Some(_pump)) = peers else { return };
    write_configuration(&node, &[&lds, &other_lds], "");
    let _agent = node.start();
    let found = node.wait_for_instances("the server", |list| !list.is_empty()).await;

    drop(peer);
    wait_for_loss(&node, &lds).await;
    assert_eq!((identities(&node.instances()), all_online(&node)), (identities(&found), true));
    let _peer = discovery_server(&lds, &listed).await.unwrap();
    node.wait_for_condition("plant", "DiscoveryComplete", "True", "Complete").await;
    drop(other_peer);
    wait_for_loss(&node, &other_lds).await;
    assert_eq!((identities(&node.instances()), all_online(&node)), (identities(&found), true));
}

/// The server is not beside its discovery server, so that only its names lead to it. Others have names that nobody knows.
#[tokio::test]
async fn failing_dns_removes_no_device() {
    let (at, other, dns, node) = (machine(), machine(), machine(), node());
    let known = [("pump", other), ("pump.plant.example", other)];
    let Some(mut names) = NameService::new(dns, &known) else { return };
    let (lds, pump_urls) = (url(at, 4840), ["opc.tcp://pump:4841/", "opc.tcp://pump.plant.example:4841/"]);
    let stranger = |number: usize| entry("stranger", &format!("opc.tcp://stranger-{number}:4841/"));
    let pump_entry = json!({"uri": "urn:pump", "name": "pump", "urls": pump_urls});
    let listed: Vec<Value> = (0..40).map(stranger).chain([pump_entry]).collect();
    let pump_at = url(other, 4841);
    let peers = tokio::join!(discovery_server(&lds, &listed), server("pump", &pump_at));
    let (Some(_lds), Some(pump)) = peers else { return };
    write_configuration(&node, &[&lds], "");
    let agent = node.start_by(names.command(&akri()), &[]);
    let found = node.wait_for_instances("the server", |list| !list.is_empty()).await;
    assert_eq!(property(&found[0], "OPCUA_DISCOVERY_URL"), pump_urls[0]);

    let (start, rounds) = (agent.log().len(), || agent.log().matches("round done").count());
    names.hang();
    node.wait_for_condition("plant", "DiscoveryComplete", "False", "DiscoveryIncomplete").await;
    let more = rounds() + 3;
    wait_for("rounds while nobody answers for names", rounds, |rounds| *rounds >= more).await;
    names.fail();
    let more = rounds() + 3;
    wait_for("rounds without a name service", rounds, |rounds| *rounds >= more).await;
    let log = agent.log();
    assert!(!log[start..].contains("device is missing"), "{log}");
    assert_eq!((identities(&node.instances()), all_online(&node)), (identities(&found), true));
    let _names = NameService::new(dns, &known).unwrap();
    node.wait_for_condition("plant", "DiscoveryComplete", "True", "Complete").await;
    drop(pump);
    node.wait_for_instances("that it goes", |list| list.iter().all(|instance| !is_online(instance))).await;
}

/// Waits until a discovery server is the only one that is named in the status.
async fn wait_for_loss(node: &Node, url: &str) {
    let observe =
        || node.condition("plant", "DiscoveryComplete").map(|condition| condition.message).unwrap_or_default();
    wait_for("a lost discovery server", observe, |message| message.starts_with(url) && !message.contains("; ")).await;
}

fn all_online(node: &Node) -> bool {
    node.instances().iter().all(is_online)
}

#[tokio::test]
async fn ungranted_servers_are_not_dialled_but_named() {
    let (at, node) = (machine(), Node::new());
    let (lds, beside, elsewhere) = (url(at, 4840), url(at, 4841), url(at, 5841));
    let listed = [entry("beside", &beside), entry("elsewhere", &elsewhere)];
    let peers =
        tokio::join!(discovery_server(&lds, &listed), server("beside", &beside), server("elsewhere", &elsewhere));
    let (Some(_lds), Some(_beside), Some(_elsewhere)) = peers else { return };
    add_handler(&node, "");
    fs::copy(built_components().join("opcua.yaml"), node.path("components/opcua.yaml")).unwrap();
    let output = discover(&node, &[&lds], "");
    let refused = format!("{elsewhere}: not granted: TCP to {at}:5841 (grants.tcp)");
    assert!(
        warnings(&output).contains(&refused),
        "of its node the built-in handler sees ports from 4840 on: {output:?}"
    );
    assert_eq!(found(&output), ["urn:beside"]);

    add_handler(&node, &LOOPBACK.replace("names: ['*']", "names: [plc]"));
    let named = "opc.tcp://localhost:4840/";
    let refused = format!("{named}: not granted: resolving 'localhost' (grants.names)");
    let output = discover(&node, &[&lds, named], "");
    assert!(warnings(&output).contains(&refused), "{output:?}");
    assert_eq!(found(&output), ["urn:beside", "urn:elsewhere"]);
    let output = discover(&node, &[named], "");
    assert!(!output.status.success() && warnings(&output).contains(&refused), "{output:?}");
}

/// No other server lists it, so that no other can say that it is gone.
#[tokio::test] // rule 35
async fn server_named_directly_comes_goes_and_returns() {
    let (at, node) = (machine(), node());
    let pump_url = url(at, 4841);
    write_configuration(&node, &[&pump_url], "");
    let agent = node.start();
    let is_refused = async || {
        let ready = node.wait_for_condition("plant", "Ready", "False", "NothingFound").await;
        assert!(ready.message.contains(&format!("{pump_url}: connection refused")), "{}", ready.message);
    };
    is_refused().await;
    let client_too = json!({"url": pump_url, "uri": "urn:pump", "name": "pump", "type": "ClientAndServer"});
    let Some(pump) = Peer::asyncua(&client_too).await else { return };
    let found = node.wait_for_instances("the server", |list| list.iter().any(is_online)).await;
    assert_eq!(property(&found[0], "OPCUA_APPLICATION_URI"), "urn:pump", "a server lists itself");

    let gone = |list: &[Instance]| list.iter().all(|instance| !is_online(instance));
    agent.kill(); // the handler of the next agent has never seen the server
    drop(pump);
    let _agent = node.start();
    node.wait_for_instances("that it is missed after a restart", gone).await;
    is_refused().await;

    let pump = server("pump", &pump_url).await.unwrap();
    let instances = node.wait_for_instances("that it returns", |list| list.iter().all(is_online)).await;
    assert_eq!(identities(&instances), identities(&found));
    drop(pump);
    node.wait_for_instances("that it goes", gone).await;
}
