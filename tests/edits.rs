//! Edits of a Configuration: they take effect, and nothing is made anew for it (rule 32).

use std::fs;
use std::slice::from_ref;

use akri_api::Instance;

use crate::support::kubelet::{Kubelet, View};
use crate::support::node::{Agent, Node, identities, name_of, resource_of, usage, used, wait_for};

const FOO0: &str = "      descriptions: [foo0]\n";

/// A node, its kubelet, its agent and the Instance of its one device, which belongs to the node alone.
async fn fixture(spec: &str) -> (Node, Kubelet, Agent, Instance) {
    let node = Node::new();
    node.make_echo_local();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_configuration("echo", "debugEcho", FOO0, spec);
    let agent = node.start();
    let instance = node.wait_for_instances("the device", |list| list.len() == 1).await.remove(0);
    let resource = resource_of(&instance);
    let slots = usage(&instance).len();
    kubelet.wait_for("its slots", |view| view.resource(&resource).allocatable() == slots).await;
    (node, kubelet, agent, instance)
}

/// The ids the kubelet knows, and whether each is healthy.
fn ids(view: &View, resource: &str) -> Vec<(String, bool)> {
    let resource = view.resource(resource);
    let healthy = resource.healthy.iter().map(|id| (id.clone(), true));
    let mut ids: Vec<_> = healthy.chain(resource.unhealthy.iter().map(|id| (id.clone(), false))).collect();
    ids.sort();
    ids
}

fn slots(instance: &Instance, list: &[(u32, bool)]) -> Vec<(String, bool)> {
    list.iter().map(|(slot, healthy)| (format!("{}-{slot}", name_of(instance)), *healthy)).collect()
}

#[tokio::test] // rule 18, rule 32
async fn broker_properties_reach_instance_and_new_containers() {
    let (node, kubelet, _agent, instance) = fixture("  capacity: 2\n  brokerProperties: {COLOUR: black}\n").await;
    let (name, resource) = (name_of(&instance), resource_of(&instance));
    let first = kubelet.admit("first", "container", &resource, 1).await.unwrap();
    assert_eq!(first.response.envs["COLOUR"], "black");

    let spec = "  capacity: 2\n  brokerProperties: {COLOUR: red, SIZE: large, DEBUG_ECHO_DESCRIPTION: mine}\n";
    node.write_configuration("echo", "debugEcho", FOO0, spec);
    let edited = node.wait_for_instance(name, "the edit", |i| i.spec.broker_properties["COLOUR"] == "red").await;
    assert_eq!(edited.spec.broker_properties["DEBUG_ECHO_DESCRIPTION"], "mine", "the Configuration's word wins");
    assert_eq!(edited.metadata.uid, instance.metadata.uid);
    assert_eq!(used(&edited), first.ids);
    let second = kubelet.admit("second", "container", &resource, 1).await.unwrap();
    assert_eq!((second.response.envs["COLOUR"].as_str(), second.response.envs["SIZE"].as_str()), ("red", "large"));
    let again = kubelet.admit("first", "container", &resource, 1).await.unwrap();
    assert_eq!(again, first, "a running container keeps what it got");

    node.write_configuration("echo", "debugEcho", FOO0, "  capacity: 2\n");
    let bare = node.wait_for_instance(name, "no edit", |i| i.spec.broker_properties.len() == 1).await;
    assert_eq!(bare.spec.broker_properties["DEBUG_ECHO_DESCRIPTION"], "foo0");
}

#[tokio::test] // rule 4, rule 9, rule 12, rule 32
async fn capacity_change_keeps_slots_in_use() {
    let (node, kubelet, agent, instance) = fixture("  capacity: 1\n").await;
    let (name, resource) = (name_of(&instance), resource_of(&instance));
    let capacity = |slots: u32| node.write_configuration("echo", "debugEcho", FOO0, &format!("  capacity: {slots}\n"));
    capacity(4);
    let four = slots(&instance, &[(0, true), (1, true), (2, true), (3, true)]);
    kubelet.wait_for("four slots", |view| ids(view, &resource) == four).await;
    kubelet.admit("low", "container", &resource, 2).await.unwrap();
    let high = kubelet.admit("high", "container", &resource, 1).await.unwrap();
    assert_eq!(high.ids, [format!("{name}-2")], "the lowest free one");
    let used_up = node.wait_for_instance(name, "three claims", |i| used(i).len() == 3).await;
    assert_eq!((used_up.spec.capacity, &used_up.metadata.uid), (4, &instance.metadata.uid));

    // Above the lowered capacity slot 2 is in use and stays, slot 3 is not and goes.
    capacity(2);
    let lowered = slots(&instance, &[(0, true), (1, true), (2, true)]);
    kubelet.wait_for("slots below two and in use", |view| ids(view, &resource) == lowered).await;
    let keys =
        |i: &Instance| usage(i).iter().map(|(slot, _)| slot.rsplit('-').next().unwrap().to_owned()).collect::<Vec<_>>();
    node.wait_for_instance(name, "their keys alone", |i| keys(i) == ["0", "1", "2"] && i.spec.capacity == 2).await;
    agent.kill();
    let agent = node.start();
    kubelet.wait_for("another registration", |view| view.resource(&resource).registrations == 2).await;
    kubelet.wait_for("the same slots after a restart", |view| ids(view, &resource) == lowered).await;
    kubelet.readmit("high").unwrap();
    agent.sees_in_use(&high.ids).await;
    kubelet.remove_pod("high");
    let end = slots(&instance, &[(0, true), (1, true)]);
    kubelet.wait_for("no slot above the capacity once it is released", |view| ids(view, &resource) == end).await;
    let left = node.wait_for_instance(name, "its key gone", |i| keys(i) == ["0", "1"]).await;
    assert_eq!((used(&left).len(), &left.metadata.uid), (2, &instance.metadata.uid));

    capacity(3);
    kubelet.wait_for("one more, free", |view| view.resource(&resource).allocatable() == 3).await;
    kubelet.admit("next", "container", &resource, 1).await.unwrap();
}

#[tokio::test] // rule 32
async fn edits_keep_devices_until_the_first_good_round() {
    let (node, kubelet, _agent, foo0) = fixture("").await;
    node.write_configuration("echo", "debugEcho", "      descriptions: [foo0, foo1]\n", "");
    let both = node.wait_for_instances("two devices", |list| list.len() == 2).await;
    assert!(identities(&both).contains(&identities(from_ref(&foo0))[0]));
    // Details the handler refuses, then such as give no device at all.
    node.write_configuration("echo", "debugEcho", "      descriptions: 7\n", "");
    let refused = node.wait_for_condition("echo", "DetailsValid", "False", "InvalidDetails").await;
    assert!(refused.message.contains("descriptions: invalid type: integer `7`"), "{}", refused.message);
    assert_eq!(identities(&node.instances()), identities(&both), "old devices stay until the first good round");
    node.write_configuration("echo", "debugEcho", "      descriptions: [foo1, foo2]\n", "");
    let is_foo0 = |i: &Instance| name_of(i) == name_of(&foo0);
    let after = node.wait_for_instances("others", |list| list.len() == 2 && !list.iter().any(is_foo0)).await;
    let kept = identities(&after).into_iter().filter(|known| identities(&both).contains(known)).count();
    assert_eq!(kept, 1, "foo1 is the same object");
    node.wait_for_condition("echo", "DetailsValid", "True", "Accepted").await;
    let removed = resource_of(&foo0);
    kubelet.wait_for("the end of foo0", |view| !view.resource(&removed).connected).await;

    // Another handler takes over likewise.
    node.add_guest("");
    let resources: Vec<String> = after.iter().map(resource_of).collect();
    let slots = |view: &View| resources.iter().map(|one| view.resource(one).allocatable()).collect::<Vec<_>>();
    kubelet.wait_for("their slots", |view| slots(view) == [1, 1]).await;
    for (handler, details, reason) in
        [("nobody", "      x\n", "NoHandler"), ("guest", "      unavailable\n", "Unavailable")]
    {
        node.write_configuration("echo", handler, details, "");
        node.wait_for_condition("echo", "Ready", "False", reason).await;
        assert_eq!(identities(&node.instances()), identities(&after), "{handler} has found nothing yet");
        assert_eq!(kubelet.view(slots), [1, 1]);
    }
    node.write_configuration("echo", "guest", "      devices:2\n", "");
    node.wait_for_condition("echo", "Ready", "True", "Discovered").await;
    let properties = |i: &Instance| i.spec.broker_properties.contains_key("PROPERTY_0");
    node.wait_for_instances("its devices alone", |list| list.len() == 2 && list.iter().all(properties)).await;
    let is_gone = |view: &View| resources.iter().all(|one| !view.resource(one).connected);
    kubelet.wait_for("the end of the others", is_gone).await;
}

#[tokio::test] // rule 5, rule 32
async fn disabled_resource_is_removed_and_held_ids_stay() {
    let (node, kubelet, agent, instance) = fixture("  capacity: 2\n").await;
    let (name, resource) = (name_of(&instance), resource_of(&instance));
    let held = kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    agent.sees_in_use(&held.ids).await;
    node.write_configuration("echo", "debugEcho", FOO0, "  capacity: 2\n  resources: configuration\n");
    kubelet
        .wait_for("an empty list and the end", |view| {
            let resource = view.resource(&resource);
            let is_gone = resource.lists.last().is_some_and(Vec::is_empty) && !resource.connected;
            is_gone && view.resource("akri.sh/echo").connected
        })
        .await;
    let without = node.wait_for_instance(name, "the claim", |i| used(i) == held.ids).await;
    assert_eq!(without.metadata.uid, instance.metadata.uid, "the device is there as before");
    node.write_configuration("echo", "debugEcho", FOO0, "  capacity: 2\n  resources: instance\n");
    kubelet.wait_for("both slots", |view| view.resource(&resource).allocatable() == 2).await;
    kubelet.wait_for("the Instance's alone", |view| !view.resource("akri.sh/echo").connected).await;
    kubelet.readmit("pod").unwrap();
    assert_eq!(used(&node.instance(name).unwrap()), held.ids);
    let other = kubelet.admit("other", "container", &resource, 1).await.unwrap();
    assert_ne!(other.ids, held.ids);
    node.write_configuration("echo", "debugEcho", FOO0, "  capacity: 2\n  resources: both\n");
    let both = |view: &View| view.resource("akri.sh/echo").connected && view.resource(&resource).connected;
    kubelet.wait_for("both resources", both).await;
}

#[tokio::test] // rule 4, rule 26
async fn objects_go_with_their_file_and_not_with_its_directory() {
    let (node, kubelet, agent, instance) = fixture("  capacity: 2\n").await;
    let resource = resource_of(&instance);
    node.write_echo("other", 1, &["bar"]);
    let other = node.wait_for_instances("the other's device", |list| list.len() == 2).await;
    let other = other.into_iter().find(|i| i.spec.configuration_name == "other").unwrap();
    kubelet.wait_for("its slot", |view| view.resource(&resource_of(&other)).allocatable() == 1).await;
    kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    node.remove("manifests/echo.yaml");
    node.wait_for_instances("the other's device alone", |list| identities(list) == identities(from_ref(&other))).await;
    kubelet.wait_for("the end of its plugin", |view| !view.resource(&resource).connected).await;
    kubelet.wait_for("an empty list", |view| view.resource(&resource).lists.last().is_some_and(Vec::is_empty)).await;
    let lists = kubelet.view(|view| view.resource(&resource).lists);
    assert_eq!(lists.iter().filter(|list| list.is_empty()).count(), 1, "once: {lists:?}");
    let live = || kubelet.view(|view| view.resources.values().filter(|resource| resource.connected).count());
    wait_for("its sockets gone", || node.sockets().len(), |count| *count == live()).await;
    wait_for("no status", || node.condition("echo", "Ready"), Option::is_none).await;
    assert!(agent.stop());
    let agent = node.start();
    agent.wait_for_log("round done").await;
    let journal = fs::read_to_string(node.path("state/journal.jsonl")).unwrap();
    assert!(journal.contains(name_of(&other)), "{journal}");

    // The same file again is another Configuration's worth of objects.
    node.write_configuration("echo", "debugEcho", FOO0, "  capacity: 2\n");
    let again = node
        .wait_for_instance(name_of(&instance), "the device with the claim of its pod", |i| used(i).len() == 1)
        .await;
    assert_ne!(again.metadata.uid, instance.metadata.uid);
    kubelet.wait_for("its slots", |view| view.resource(&resource).allocatable() == 2).await;
    rename_manifest_directory(&node, &kubelet, agent, &again).await;
}

/// Renames the directory of an agent that runs, of one that starts, and of one that finds it again. None of them deletes anything.
async fn rename_manifest_directory(node: &Node, kubelet: &Kubelet, agent: Agent, instance: &Instance) {
    let all = node.wait_for_instances("all devices", |list| list.len() == 2).await;
    fs::rename(node.path("manifests"), node.path("elsewhere")).unwrap();
    agent.wait_for_log(&format!("{}: cannot list the directory", node.path("manifests").display())).await;
    let rounds = || agent.log().matches("round done").count();
    let before = rounds();
    wait_for("more rounds", rounds, |now| *now > before + 2).await;
    assert_eq!(identities(&node.instances()), identities(&all));
    kubelet.admit("another", "container", &resource_of(instance), 1).await.unwrap();
    agent.kill();

    // An agent that starts without the directory does not start: it would have no wishes to serve.
    let agent = node.start();
    agent.wait_for_log(&format!("--local '{}' is not a directory", node.path("manifests").display())).await;
    drop(agent);
    fs::rename(node.path("elsewhere"), node.path("manifests")).unwrap();
    let agent = node.start();
    agent.wait_for_log("round done").await;
    let after = node.wait_for_instance(name_of(instance), "both claims", |i| used(i).len() == 2).await;
    assert_eq!(identities(&[after]), identities(from_ref(instance)));

    // A directory that comes back is found, and edits in it count again.
    fs::rename(node.path("manifests"), node.path("elsewhere")).unwrap();
    agent.wait_for_log("cannot list the directory").await;
    fs::rename(node.path("elsewhere"), node.path("manifests")).unwrap();
    agent.wait_for_log("all manifests are readable again").await;
    node.write_configuration("echo", "debugEcho", FOO0, "  capacity: 3\n");
    node.wait_for_instance(name_of(instance), "the edit", |i| i.spec.capacity == 3).await;
}
