//! Handlers that run as processes of their own, made with other people's gRPC stacks: each finds the files in a directory.

use std::fs;

use akri_api::Instance;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, identities, is_online, name_of, resource_of, used};
use crate::support::remote::Stack;
use crate::support::skip::leave_out;

fn files(node: &Node, names: &[&str]) {
    let directory = node.path("files");
    let _ = fs::remove_dir_all(&directory); // of before
    fs::create_dir(&directory).unwrap();
    names.iter().for_each(|name| fs::write(directory.join(name), "").unwrap());
}

fn write_configuration(node: &Node, name: &str, directory: &str) {
    node.write_configuration(name, name, &format!("      {directory}\n"), "  capacity: 2\n  offlineGracePeriod: 0s\n");
}

fn found(instances: &[Instance]) -> Vec<&str> {
    let mut found: Vec<&str> = instances.iter().map(|i| i.spec.broker_properties["FILE"].as_str()).collect();
    found.sort_unstable();
    found
}

/// A handler is started before the agent, finds devices, stops, and comes back.
async fn story(stack: Stack) {
    if !stack.is_installed() {
        return;
    }
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    files(&node, &["a", "b"]);
    let name = format!("{stack:?}").to_lowercase();
    write_configuration(&node, &name, node.path("files").to_str().unwrap());
    let handler = stack.start(&node, &name);
    let agent = node.start();
    let first = node.wait_for_instances("two devices", |list| found(list) == ["a", "b"]).await;
    assert!(first.iter().all(|instance| !instance.spec.shared));
    let resource = resource_of(&first[0]);
    kubelet.wait_for("its slots", |view| view.resource(&resource).allocatable() == 2).await;
    let admitted = kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    assert_eq!(admitted.response.envs["FILE"], first[0].spec.broker_properties["FILE"]);

    drop(handler);
    node.wait_for_condition(&name, "Ready", "False", "Unavailable").await;
    assert!(node.instances().iter().all(is_online), "the devices stay as they were");
    files(&node, &["a", "b", "c"]);
    let _handler = stack.start(&node, &name);
    let second = node.wait_for_instances("a third device", |list| found(list) == ["a", "b", "c"]).await;
    let before = |all: &[(String, String)]| identities(&first).iter().all(|one| all.contains(one));
    assert!(before(&identities(&second)), "the others are the same objects");
    let claimed = second.iter().find(|instance| name_of(instance) == name_of(&first[0])).unwrap();
    assert_eq!(used(claimed), admitted.ids);

    files(&node, &["b", "c"]);
    node.wait_for_instances("a device that is gone", |list| list.iter().filter(|i| is_online(i)).count() == 2).await;

    // The agent starts anew, and the handler does nothing about it.
    agent.kill();
    files(&node, &["b", "c", "d"]);
    let _agent = node.start();
    node.wait_for_instances("a fourth device", |list| found(list).contains(&"d")).await;
    write_configuration(&node, &name, "relative/path");
    let invalid = node.wait_for_condition(&name, "DetailsValid", "False", "InvalidDetails").await;
    assert!(invalid.message.contains("'relative/path' is not an absolute path"), "{}", invalid.message);
}

#[tokio::test] // rule 1, rule 31
async fn handlers_of_all_grpc_stacks_are_served() {
    tokio::join!(story(Stack::Tonic), story(Stack::Grpcio), story(Stack::GrpcGo));
    if std::env::var_os("AKRI_LANGUAGES").is_none() {
        return leave_out("grpclib and grpc-js run by 'make languages'");
    }
    tokio::join!(story(Stack::Grpclib), story(Stack::GrpcJs));
}
