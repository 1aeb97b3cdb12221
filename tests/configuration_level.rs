//! `akri.sh/<configuration>`: pods that ask for some device of a Configuration, and never are refused one that is there.

use std::fs;

use akri_api::Instance;
use akri_grpc::deviceplugin::{AllocateRequest, ContainerAllocateRequest, PreStartContainerRequest};
use tonic::Code;

use crate::support::kubelet::{AdmissionError, Kubelet, View};
use crate::support::node::{Agent, Node, usage};

const CAMERAS: &str = "akri.sh/cam";

/// A node with as many debugEcho cameras, registered.
async fn cameras(capacity: u32, names: &[&str]) -> (Node, Kubelet, Agent) {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_echo("cam", capacity, names);
    let agent = node.start();
    let count = names.len();
    kubelet.wait_for("an id for each camera", |view| ids(view).len() == count).await;
    (node, kubelet, agent)
}

fn ids(view: &View) -> Vec<String> {
    view.resource(CAMERAS).healthy.into_iter().collect()
}

fn used(instances: &[Instance]) -> Vec<String> {
    let usages =
        instances.iter().flat_map(|i| usage(i).into_iter().map(|(_, usage)| usage.to_owned()).collect::<Vec<_>>());
    let mut used: Vec<String> = usages.filter(|usage| !usage.is_empty()).collect();
    used.sort();
    used
}

fn resource_of(instances: &[Instance], device: &str) -> String {
    let is_it = |i: &&Instance| i.spec.broker_properties["DEBUG_ECHO_DESCRIPTION"] == device;
    format!("akri.sh/{}", instances.iter().find(is_it).unwrap().metadata.name.as_ref().unwrap())
}

#[tokio::test] // rule 4, rule 5
async fn resource_is_registered_before_any_device() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_echo("cam", 2, &[]);
    let _agent = node.start();
    kubelet.wait_for("an empty list", |view| view.resource(CAMERAS).lists.last().is_some_and(Vec::is_empty)).await;
    node.write_echo("cam", 2, &["one", "two"]);
    kubelet.wait_for("two ids", |view| ids(view) == ["0", "1"]).await;
    node.remove("manifests/cam.yaml");
    kubelet
        .wait_for("an empty list and the end", |view| {
            let resource = view.resource(CAMERAS);
            resource.lists.last().is_some_and(Vec::is_empty) && !resource.connected
        })
        .await;
}

#[tokio::test] // rule 14, rule 39
async fn pod_gets_two_distinct_cameras_and_a_reboot_keeps_them() {
    let (node, mut kubelet, agent) = cameras(2, &["one", "two"]).await;
    let admitted = kubelet.admit("pod", "container", CAMERAS, 2).await.unwrap();
    let envs = &admitted.response.envs;
    let mut suffixed: Vec<&str> =
        envs.iter().filter(|(key, _)| key.starts_with("DEBUG_ECHO_DESCRIPTION_")).map(|(_, v)| v.as_str()).collect();
    suffixed.sort_unstable();
    assert_eq!(suffixed, ["one", "two"]);
    let mut annotations: Vec<&String> = admitted.response.annotations.values().collect();
    annotations.sort();
    assert!(annotations[0].starts_with("C:0:cam-") && annotations[1].starts_with("C:1:cam-"), "{annotations:?}");
    // Containers report nothing unless the Configuration asks for it.
    assert!(!envs.contains_key("AKRI_BROKER_INFO_DIR") && admitted.response.mounts.is_empty());
    assert_eq!(fs::read_dir(node.path("state/broker-info")).unwrap().count(), 0);
    node.wait_for_instances("both claims", |list| used(list) == ["C:0:node-a", "C:1:node-a"]).await;
    assert!(matches!(kubelet.admit("big", "container", CAMERAS, 5).await, Err(AdmissionError::TooFew { .. })));

    agent.kill();
    kubelet.stop();
    kubelet.start_again();
    let _agent = node.start();
    kubelet.wait_for("the held ids", |view| admitted.ids.iter().all(|held| ids(view).contains(held))).await;
    kubelet.readmit("pod").unwrap();
    node.wait_for_instances("the claims", |list| used(list) == ["C:0:node-a", "C:1:node-a"]).await;
}

#[tokio::test] // rule 7, rule 20
async fn recreated_pod_is_never_refused_in_fifty_tries() {
    let (_node, kubelet, _agent) = cameras(1, &["one", "two"]).await;
    for round in 0..50 {
        let pod = format!("pod-{round}");
        kubelet.wait_for("an id to give", |view| view.resource(CAMERAS).allocatable() > 0).await;
        let admitted = kubelet.admit(&pod, "container", CAMERAS, 1).await;
        assert!(admitted.is_ok(), "round {round}: {admitted:?}");
        kubelet.remove_pod(&pod);
    }
}

#[tokio::test] // rule 4, rule 12
async fn instance_and_configuration_claims_exclude_each_other() {
    let (node, kubelet, agent) = cameras(1, &["one", "two"]).await;
    let instances = node.wait_for_instances("two", |list| list.len() == 2).await;
    let one = resource_of(&instances, "one");
    kubelet.wait_for("its slot", |view| view.resource(&one).allocatable() == 1).await;

    kubelet.admit("direct", "container", &one, 1).await.unwrap();
    kubelet.wait_for("one camera left", |view| ids(view).len() == 1).await;
    let some = kubelet.admit("some", "container", CAMERAS, 1).await.unwrap();
    assert_eq!(some.response.envs["DEBUG_ECHO_DESCRIPTION"], "two");
    let two = resource_of(&instances, "two");
    kubelet.wait_for("its slot taken", |view| view.resource(&two).allocatable() == 0).await;
    assert_eq!(kubelet.view(ids), ["0"], "what is held stays healthy");

    agent.wait_for_log("a container uses it").await;
    kubelet.wait_for_polls(3).await; // then both are known to be in use
    kubelet.remove_pod("direct");
    kubelet.remove_pod("some");
    node.wait_for_instances("no claims", |list| used(list).is_empty()).await;
    kubelet
        .wait_for("everything free", |view| {
            ids(view) == ["0", "1"] && view.resource(&one).allocatable() == 1 && view.resource(&two).allocatable() == 1
        })
        .await;
}

#[tokio::test] // rule 2, rule 4, rule 14
async fn refused_calls_change_nothing_and_resend_the_list() {
    let (node, kubelet, _agent) = cameras(2, &["one"]).await;
    let one = resource_of(&node.instances(), "one");
    kubelet.wait_for("its slots", |view| view.resource(&one).allocatable() == 2).await;
    let instance = one.strip_prefix("akri.sh/").unwrap();
    let [free, above, nonsense] = ["0", "3", "x"].map(|slot| format!("{instance}-{slot}"));
    for (resource, ids) in [
        (CAMERAS, vec!["x"]),
        (CAMERAS, vec!["01"]),
        (CAMERAS, vec!["0", "1"]),
        (CAMERAS, vec![""]),
        (CAMERAS, vec![]),
        (&one, vec![above.as_str()]),
        (&one, vec![&free, &nonsense]),
        (&one, vec![&free, &above]),
        (&one, vec![]),
    ] {
        // The list is repeated by itself as well, but not that often.
        let lists = |view: &View| view.resource(resource).lists.len();
        let before = kubelet.view(lists);
        let devices_ids = ids.iter().map(ToString::to_string).collect();
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] };
        let refused = kubelet.plugin(resource).allocate(request).await.unwrap_err();
        assert!(!refused.message().is_empty(), "{resource} {ids:?}");
        kubelet.wait_for("one more list", |view| lists(view) > before).await;
    }
    assert_eq!(used(&node.instances()), Vec::<String>::new());

    // A PreStartContainer is for what this node has claimed through that resource.
    kubelet.admit("some", "container", CAMERAS, 1).await.unwrap();
    kubelet.admit("direct", "container", &one, 1).await.unwrap();
    let slots = [format!("{instance}-0"), format!("{instance}-1")];
    let [by_some, direct] = slots.each_ref().map(String::as_str);
    for (resource, ids, claimed) in [
        (CAMERAS, &["0"][..], true),
        (CAMERAS, &["1"], false),
        (CAMERAS, &["0", "1"], false),
        (CAMERAS, &[], false),
        (&one, &[direct], true),
        (&one, &[by_some], false), // claimed, but through the other resource
        (&one, &["x"], false),
    ] {
        let devices_ids = ids.iter().map(ToString::to_string).collect();
        let answer = kubelet.plugin(resource).pre_start_container(PreStartContainerRequest { devices_ids }).await;
        let code = answer.map(drop).map_err(|status| status.code());
        assert_eq!(code, if claimed { Ok(()) } else { Err(Code::NotFound) }, "{resource} {ids:?}");
    }
}
