//! Several sources of one name: a component and remote handlers, of which some are slow, some go, and some come back.

use akri_api::Instance;
use akri_api::condition;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, identities, is_online, name_of, resource_of, used, wait_for};
use crate::support::remote::{Answer, Handler};

fn write(node: &Node, name: &str, handler: &str) {
    node.write_configuration(name, handler, "      -\n", "  capacity: 2\n  offlineGracePeriod: 0s\n");
}

/// The names of devices that are there, in order.
fn online(instances: &[Instance]) -> Vec<&str> {
    let mut names: Vec<&str> = instances.iter().filter(|instance| is_online(instance)).map(value_of).collect();
    names.sort_unstable();
    names
}

/// The name of its device.
fn value_of(instance: &Instance) -> &str {
    instance.spec.broker_properties.values().next().unwrap()
}

#[tokio::test] // rule 31
async fn component_and_two_remote_handlers_are_merged() {
    let node = Node::new();
    node.write_echo("echo", 1, &["foo0", "foo1"]);
    let _agent = node.start();
    node.wait_for_instances("the component's devices", |list| online(list) == ["foo0", "foo1"]).await;
    let a = Handler::start(&node, "debugEcho", "a", &["foo0", "r1"]).shared();
    let b = Handler::start(&node, "debugEcho", "b", &["r1", "r2"]).shared();
    a.register(&node).await.unwrap();
    b.register(&node).await.unwrap();
    let all = node.wait_for_instances("the union", |list| online(list) == ["foo0", "foo1", "r1", "r2"]).await;
    let foo0 = all.iter().find(|instance| value_of(instance) == "foo0").unwrap();
    assert!(foo0.spec.broker_properties.contains_key("DEBUG_ECHO_DESCRIPTION"), "the component's view counts");

    a.sees(&["foo0"]).await;
    b.sees(&["r1", "r2", "r3"]).await;
    node.wait_for_instances("what b still sees", |list| online(list) == ["foo0", "foo1", "r1", "r2", "r3"]).await;
    drop(b);
    let noted = node.wait_for_condition("echo", "DiscoveryComplete", "False", "DiscoveryIncomplete").await;
    assert!(noted.message.contains("b.sock") && noted.message.ends_with("its devices stay as they are"), "{noted:?}");
    node.write_echo("echo", 1, &["foo1", "foo2"]);
    // foo0 is a's alone now, and b's last word counts.
    let wanted = ["foo0", "foo1", "foo2", "r1", "r2", "r3"];
    node.wait_for_instances("the union without b", |list| online(list) == wanted).await;
    node.wait_for_condition("echo", "Ready", "True", "Discovered").await;

    let _b = Handler::start(&node, "debugEcho", "b", &["r2"]).shared();
    node.wait_for_instances("what b sees now", |list| online(list) == ["foo0", "foo1", "foo2", "r2"]).await;
    node.wait_for_condition("echo", "DiscoveryComplete", "True", "Complete").await;
}

/// The remote handler has registered with another `shared` while there was no component.
#[tokio::test] // rule 132, rule 133, threat 58
async fn component_wins_over_remote_handler_of_before() {
    let node = Node::new();
    node.add_guest("");
    node.write_configuration("cam", "guest", "      devices:2\n", "  offlineGracePeriod: 0s\n");
    let agent = node.start();
    let found = node.wait_for_instances("the component's devices", |list| online(list).len() == 2).await;
    agent.kill();
    node.remove("components/guest.yaml");
    let agent = node.start();
    let other = Handler::start(&node, "guest", "other", &[]).shared();
    other.set(Answer::Silence);
    other.register(&node).await.unwrap();
    agent.kill();
    node.add_guest("");
    other.sees(&["r1"]).await;
    let agent = node.start();
    agent.wait_for_log("endpoint removed: the component of that name has shared=false").await;
    agent.wait_for_log("round done").await;
    node.wait_for_condition("cam", "Ready", "True", "Discovered").await;
    assert_eq!(identities(&node.instances()), identities(&found));
    assert!(node.instances().iter().all(|instance| is_online(instance) && !instance.spec.shared));
    let refused = other.register(&node).await.unwrap_err();
    assert!(refused.message().contains("the component of that name serves it as shared=false"), "{refused:?}");
}

#[tokio::test] // rule 31
async fn restart_keeps_devices_until_all_sources_report() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    write(&node, "cam", "cam");
    let agent = node.start();
    let a = Handler::start(&node, "cam", "a", &["a1", "a2"]);
    let b = Handler::start(&node, "cam", "b", &["b1"]);
    a.register(&node).await.unwrap();
    b.register(&node).await.unwrap();
    let before = node.wait_for_instances("all devices", |list| online(list) == ["a1", "a2", "b1"]).await;
    let b1 = before.iter().find(|instance| value_of(instance) == "b1").unwrap();
    let resource = resource_of(b1);
    kubelet.wait_for("two slots", |view| view.resource(&resource).allocatable() == 2).await;
    let admitted = kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    node.wait_for_instance(name_of(b1), "the claim", |i| used(i) == admitted.ids).await;

    agent.kill();
    b.set(Answer::Silence);
    a.sees(&["a1", "a2"]).await;
    let agent = node.start();
    wait_for("both are asked", || (a.open_streams(), b.open_streams()), |open| *open == (1, 1)).await;
    // What a says about its own devices counts at once; about b's it can't say anything.
    a.sees(&["a1", "a2", "a3"]).await;
    node.wait_for_instances("another device", |list| online(list) == ["a1", "a2", "a3", "b1"]).await;
    a.sees(&["a1", "a3"]).await;
    node.wait_for_instances("what a sees", |list| online(list) == ["a1", "a3", "b1"]).await;
    b.sees(&["b1", "b2"]).await;
    let after = node.wait_for_instances("what both see", |list| online(list) == ["a1", "a3", "b1", "b2"]).await;
    let same = |value| {
        let of =
            |all: &[Instance]| identities(&all.iter().filter(|i| value_of(i) == value).cloned().collect::<Vec<_>>());
        of(&before) == of(&after)
    };
    assert!(same("a1") && same("b1"), "the same objects");
    assert_eq!(used(after.iter().find(|i| value_of(i) == "b1").unwrap()), admitted.ids, "with their slots");

    // b no longer sees its device once it speaks.
    agent.kill();
    b.set(Answer::Silence);
    let _agent = node.start();
    wait_for("both are asked", || (a.open_streams(), b.open_streams()), |open| *open == (1, 1)).await;
    b.sees(&[]).await;
    node.wait_for_instances("what a sees", |list| online(list) == ["a1", "a3"]).await;
}

/// Returns whether the agent says of all devices that it can't tell.
fn unknown(instances: &[Instance]) -> Vec<&str> {
    let is_unknown = |instance: &&Instance| {
        let conditions = &instance.status.as_ref().unwrap().conditions;
        condition::find(conditions, "Online").unwrap().status == "Unknown"
    };
    instances.iter().filter(is_unknown).map(value_of).collect()
}

#[tokio::test] // rule 31
async fn devices_of_lost_or_silent_handlers_stay_unknown_until_seen() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    write(&node, "cam", "cam");
    let timeout_flag = ["--handler-offline-seconds", "2"];
    let agent = node.start_with(&timeout_flag);
    let cam = Handler::start(&node, "cam", "cam", &["one", "two"]);
    cam.register(&node).await.unwrap();
    let mut before = node.wait_for_instances("both devices", |list| online(list) == ["one", "two"]).await;
    before.sort_by(|a, b| value_of(a).cmp(value_of(b)));
    let (used_one, free_one) = (resource_of(&before[0]), resource_of(&before[1]));
    kubelet.wait_for("two slots", |view| view.resource(&used_one).allocatable() == 2).await;
    let admitted = kubelet.admit("pod", "container", &used_one, 1).await.unwrap();

    drop(cam);
    agent.wait_for_log("endpoint removed: it was offline for too long").await;
    node.wait_for_instances("devices nobody knows about", |list| unknown(list).len() == 2).await;
    node.wait_for_condition("cam", "HandlerAvailable", "False", "NoHandler").await;
    kubelet.wait_for("no free slot", |view| view.resource(&free_one).allocatable() == 0).await;
    let held = kubelet.view(|view| view.resource(&used_one));
    assert_eq!(held.healthy.into_iter().collect::<Vec<_>>(), admitted.ids, "the container keeps its slot");
    wait_for("nothing remembered", || node.remote_handlers(), |list| list.is_empty()).await;
    let now = identities(&node.instances());
    assert!(identities(&before).iter().all(|one| now.contains(one)), "the same objects");

    // Not even the agent's restart makes them known.
    agent.kill();
    let _agent = node.start_with(&timeout_flag);
    kubelet.wait_for("the same slot", |view| view.resource(&used_one).registrations == 2).await;
    kubelet.wait_for("only the slot in use", |view| view.resource(&used_one).allocatable() == 1).await;
    assert_eq!(unknown(&node.instances()).len(), 2);

    let other = Handler::start(&node, "cam", "other", &["one"]);
    other.set(Answer::Silence);
    other.register(&node).await.unwrap();
    node.wait_for_condition("cam", "HandlerAvailable", "Unknown", "NothingReported").await;
    assert_eq!(unknown(&node.instances()).len(), 2, "being there says nothing");
    other.sees(&["one"]).await;
    let after = node.wait_for_instances("what is there", |list| online(list) == ["one"] && list.len() == 1).await;
    assert_eq!(identities(&after), identities(&before[..1]).as_slice());
    assert_eq!(used(&after[0]), admitted.ids);

    // It starts anew as Akri's own handlers do, which send nothing while they see nothing.
    other.sees(&["one", "two"]).await;
    node.wait_for_instances("both devices again", |list| online(list) == ["one", "two"]).await;
    drop(other);
    let other = Handler::start(&node, "cam", "other", &[]);
    other.set(Answer::Silence);
    other.register(&node).await.unwrap();
    node.wait_for_instances("devices nobody knows about again", |list| unknown(list).len() == 2).await;
    other.sees(&["one"]).await;
    node.wait_for_instances("the one that is there", |list| online(list) == ["one"] && list.len() == 1).await;
}

#[tokio::test]
async fn both_kinds_of_handlers_are_listed_with_their_status() {
    let node = Node::new();
    node.write_echo("echo", 1, &["foo0", "foo1", "foo2"]);
    write(&node, "cam", "cam");
    let _agent = node.start();
    let cam = Handler::start(&node, "cam", "cam", &["one", "two"]);
    cam.register(&node).await.unwrap();
    let idle = Handler::start(&node, "idle", "idle", &[]);
    idle.register(&node).await.unwrap();
    let table = || {
        let shown = node.akri(&["get", "handlers", "--state-dir", node.path("state").to_str().unwrap()]);
        String::from_utf8(shown.stdout).unwrap()
    };
    // Everything but the digest and the times.
    let rows = |table: &String| -> Vec<String> {
        let columns = |row: &str| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        table.lines().skip(1).map(columns).map(|columns| [&columns[..4], &columns[5..7]].concat().join(" ")).collect()
    };
    let expected = [
        "debugEcho debug-echo component Active Discovered 3",
        "udev udev component Waiting - 0",
        "cam - remote Active Discovered 2",
        "idle - remote Waiting - 0",
    ];
    let shown = wait_for("all handlers", table, |table| rows(table) == expected).await;
    let header = "NAME        OBJECT       KIND        STATE     SINCE                  LAST RESULT   DEVICES   \
                  ENDPOINT/DIGEST/REFUSAL";
    assert_eq!(shown.lines().next(), Some(header));
    assert!(shown.contains("sha256:") && shown.contains(&format!("unix:{}", cam.endpoint)), "{shown}");
    drop(cam);
    let failed = |table: &String| {
        table.contains("cam         -            remote      Offline") && table.contains("unavailable: unix:")
    };
    wait_for("a handler that is offline", table, failed).await;
    let json = node.akri(&["get", "handlers", "-o", "json", "--state-dir", node.path("state").to_str().unwrap()]);
    let all: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&all[0]["object"], &all[2]["state"]), (&"debug-echo".into(), &"Offline".into()));
}
