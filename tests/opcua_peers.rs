//! OPC UA peers of other kinds: node-opcua, very many at once, and ones that break the rules.

use std::process::Command;

use akri_api::Instance;
use serde_json::{Value, json};

use crate::support::namespace::Namespace;
use crate::support::node::{Node, akri, is_online};
use crate::support::opcua::hostile::{BEHAVIOURS, CROWD, EXAGGERATOR};
use crate::support::opcua::{
    LOOPBACK, Peer, add_handler, certificates, discover, discovery_server, entry, found, free_port, machine, node,
    server, url, warnings, write_configuration,
};

const LDS: &str = "opc.tcp://127.0.0.1:4840/";

/// A discovery server by node-opcua, with a certificate of that name.
async fn discovery_server_in(network: &Namespace, name: &str) -> Option<Peer> {
    let wanted = json!({"port": 4840, "uri": "urn:lds", "name": "LDS", "type": "DiscoveryServer"});
    Peer::node_opcua(network, name, &wanted).await
}

#[tokio::test]
async fn node_opcua_servers_appear_and_disappear_secured_or_not() {
    let Some(network) = Namespace::new() else { return };
    let Some(_lds) = discovery_server_in(&network, "lds").await else { return };
    let server = |port: u16| json!({"port": port, "uri": "urn:pump", "name": "pump", "register": LDS});
    let pump = Peer::node_opcua(&network, "pump", &server(4841)).await.unwrap();
    let node = Node::new();
    // The server registers by the name of this machine, which may lead out of the namespace or nowhere.
    add_handler(&node, &format!("  interval: 300ms\n{LOOPBACK}"));
    write_configuration(&node, &[LDS], "");
    let _agent = node.start_by(network.command(&akri()), &[]);

    let found = node.wait_for_instances("the server", |list| !list.is_empty()).await;
    let properties = &found[0].spec.broker_properties;
    let expected = [
        ("OPCUA_APPLICATION_NAME", "pump"),
        ("OPCUA_APPLICATION_URI", "urn:pump"),
        ("OPCUA_PRODUCT_URI", "NodeOPCUA-Server"),
        ("OPCUA_SECURITY_POLICIES", "Aes128_Sha256_RsaOaep,Aes256_Sha256_RsaPss,Basic256Sha256,None"),
        ("OPCUA_USER_TOKEN_TYPES", "Anonymous,UserName,Certificate"),
        ("OPCUA_SERVER_CERTIFICATE_THUMBPRINT", &thumbprint("pump")),
    ];
    for (name, value) in expected {
        assert_eq!(properties[name], value, "{name}");
    }
    let name = found[0].metadata.name.clone().unwrap();

    pump.stop(); // it takes its entry back
    node.wait_for_instance(&name, "offline", |instance| !is_online(instance)).await;
    let pump = Peer::node_opcua(&network, "pump", &server(4842)).await.unwrap();
    let back = node.wait_for_instance(&name, "back", is_online).await;
    assert!(back.spec.broker_properties["OPCUA_DISCOVERY_URL"].contains(":4842"), "moved, and the same device");
    drop(pump); // killed: its entry stays
    node.wait_for_instance(&name, "offline", |instance| !is_online(instance)).await;

    // A server that refuses insecure sessions is a device, too.
    let vault = json!({"port": 4843, "uri": "urn:vault", "name": "vault", "register": LDS, "secured": true});
    let vault = Peer::node_opcua(&network, "vault", &vault).await.unwrap();
    let is_vault = |instance: &Instance| instance.spec.broker_properties["OPCUA_APPLICATION_URI"] == "urn:vault";
    let found = node.wait_for_instances("the secured server", |list| list.iter().any(is_vault)).await;
    let device = found.into_iter().find(is_vault).unwrap();
    assert_eq!(device.spec.broker_properties["OPCUA_APPLICATION_NAME"], "vault");
    assert!(!device.spec.broker_properties.contains_key("OPCUA_SECURITY_POLICIES"), "it does not say so");
    drop(vault); // killed: its entry stays
    node.wait_for_instance(device.metadata.name.as_ref().unwrap(), "offline", |instance| !is_online(instance)).await;
}

/// As node itself says it.
fn thumbprint(name: &str) -> String {
    let program = "const c = new crypto.X509Certificate(fs.readFileSync(process.argv[1])); console.log(c.fingerprint)";
    let certificate = certificates(name).join("own/certs/certificate.pem");
    let output = Command::new("node").args(["-e", program]).arg(certificate).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().replace(':', "").to_lowercase()
}

#[tokio::test]
async fn thousand_registered_servers_are_found() {
    let node = node();
    let port = free_port();
    let lds = url(machine(), port);
    let farm = json!({"url": lds, "uri": "urn:lds", "name": "LDS", "type": "DiscoveryServer", "farm": 1000});
    let Some(_farm) = Peer::asyncua(&farm).await else { return };
    add_handler(&node, &format!("{LOOPBACK}  limits:\n    round: 60s\n"));
    let output = discover(&node, &[&lds], "");
    assert_eq!(warnings(&output), "");
    let mut expected: Vec<String> = (0..1000).map(|number| format!("urn:farm:{number}")).collect();
    expected.sort();
    assert_eq!(found(&output), expected);

    add_handler(&node, &format!("{LOOPBACK}  limits:\n    connections: 4\n"));
    let output = discover(&node, &[&lds], "");
    let (found, warnings) = (found(&output), warnings(&output));
    assert!(found.iter().all(|id| expected.contains(id)), "{found:?}");
    let printed = format!("{lds}: {} of the servers listed there were not asked", 1000 - found.len());
    assert!(warnings.contains(&printed), "no '{printed}' in\n{warnings}");
}

#[tokio::test]
async fn protocol_violations_are_named_and_hide_no_server() {
    let (at, node) = (machine(), Node::new());
    // Time enough for those who are silent twice, when they are asked for servers and when they are looked for.
    add_handler(&node, &format!("{LOOPBACK}  limits:\n    round: 15s\n    notes: 32\n"));
    let ports = || 5001u16..;
    for (behaviour, port) in BEHAVIOURS.iter().zip(ports()) {
        behaviour.start((at, port).into());
    }
    let lds = url(at, 4840);
    let listed: Vec<Value> =
        BEHAVIOURS.iter().zip(ports()).map(|(behaviour, port)| entry(behaviour.name, &url(at, port))).collect();
    let pump = url(at, 4841);
    let listed = [listed, vec![entry("pump", &pump)]].concat();
    let peers = tokio::join!(discovery_server(&lds, &listed), server("pump", &pump));
    let (Some(_lds), Some(_pump)) = peers else { return };
    let urls: Vec<String> = ports().take(BEHAVIOURS.len()).map(|port| url(at, port)).chain([lds]).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();

    let output = discover(&node, &urls, "");
    let warnings = warnings(&output);
    assert_eq!(found(&output), ["urn:pump"], "{warnings}");
    for (behaviour, port) in BEHAVIOURS.iter().zip(ports()) {
        let printed = format!("{}: {}", url(at, port), behaviour.printed);
        assert!(warnings.contains(&printed), "{}: no '{printed}' in\n{warnings}", behaviour.name);
    }
    let busy = "3 of the servers listed there have no connection left to say who they are";
    assert!(warnings.contains(busy), "the one that refuses, and those that end connections: {warnings}");
    assert_eq!(warnings.lines().count(), BEHAVIOURS.len() + 1, "{warnings}");
}

/// With the memory that the handler has by default.
#[tokio::test]
async fn oversized_lists_and_responses_hide_no_server() {
    let (at, node) = (machine(), Node::new());
    add_handler(&node, &format!("{LOOPBACK}  limits:\n    round: 60s\n    notes: 64\n"));
    let crowds: Vec<String> = (5001..5041).map(|port| url(at, port)).collect();
    (5001..5041).for_each(|port| CROWD.start((at, port).into()));
    let (lds, pump) = (url(at, 4840), url(at, 4841));
    let listed = [entry("pump", &pump)];
    let peers = tokio::join!(discovery_server(&lds, &listed), server("pump", &pump));
    let (Some(_lds), Some(_pump)) = peers else { return };
    let urls: Vec<&str> = crowds.iter().map(String::as_str).chain([lds.as_str()]).collect();
    let output = discover(&node, &urls, "");
    let text = warnings(&output);
    assert_eq!(found(&output), ["urn:pump"], "{text}");
    assert!(text.contains("not taken: the memory of the round was used up"), "{text}");
    {
        let (at, node) = (machine(), Node::new());
        add_handler(&node, &format!("{LOOPBACK}  limits:\n    round: 60s\n"));
        let urls: Vec<String> = (5001..5009).map(|port| url(at, port)).collect();
        (5001..5009).for_each(|port| EXAGGERATOR.start((at, port).into()));
        let nobody = json!({"uri": "urn:nobody", "name": "nobody", "urls": urls, "count": 1500});
        let (lds, pump) = (url(at, 4840), url(at, 4841));
        let listed = [nobody, entry("pump", &pump)];
        let peers = tokio::join!(discovery_server(&lds, &listed), server("pump", &pump));
        let (Some(_lds), Some(_pump)) = peers else { return };
        // With that many servers each has little time, too little for a Python server on a busy machine: a later round asks
        // it again. What would be wrong is that no round has the memory for it.
        let rounds = || std::iter::repeat_with(|| discover(&node, &[&lds], "")).take(5);
        let output = rounds().find(|output| !found(output).is_empty()).expect("no round found the server");
        assert_eq!((found(&output), warnings(&output).as_str()), (vec!["urn:pump".to_owned()], ""));
    }
}
