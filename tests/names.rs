//! Names that are hard to give: two devices with one hash, and Configurations with long names.

use std::collections::HashMap;
use std::time::Duration;

use akri_api::Instance;
use akri_model::names::{HashInput, HashLength, Identity};

use crate::support::kubelet::Kubelet;
use crate::support::node::{Agent, Node, identities, name_of, resource_of, usage, wait_for};

/// Two devices whose short hashes are the same. A few thousand are enough to find them: there are 2^24.
fn twins() -> [String; 2] {
    let mut seen = HashMap::new();
    for number in 0.. {
        let device = format!("twin-{number}");
        if let Some(other) = seen.insert(hash(&device, HashLength::Short), device.clone()) {
            return [other, device];
        }
    }
    unreachable!("there are more devices than hashes")
}

/// Of a device that is shared by nodes, as debugEcho's are.
fn hash(device: &str, length: HashLength) -> String {
    HashInput::new(device, true, "").hash(length)
}

fn identity(device: &str) -> Identity {
    HashInput::new(device, true, "").identity()
}

fn description(instance: &Instance) -> &str {
    &instance.spec.broker_properties["DEBUG_ECHO_DESCRIPTION"]
}

fn of<'i>(instances: &'i [Instance], device: &str) -> &'i Instance {
    instances.iter().find(|instance| description(instance) == device).unwrap()
}

#[tokio::test] // rule 22
async fn devices_with_colliding_hashes_stay_two_instances() {
    let [one, other] = twins();
    let (short, medium) = (format!("echo-{}", hash(&one, HashLength::Short)), |d: &str| hash(d, HashLength::Medium));
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    let write = |devices: &[&str]| node.write_echo("echo", 1, devices);
    write(&[&one, &other, "plain"]);
    let agent = node.start();
    let found = node.wait_for_instances("three devices", |list| list.len() == 3).await;
    // Who is named first has the short name.
    let (first, second) = if name_of(of(&found, &one)) == short { (&one, &other) } else { (&other, &one) };
    assert_eq!(name_of(of(&found, first)), short);
    assert_eq!(name_of(of(&found, second)), format!("echo-{}", medium(second)));
    for device in [first, second] {
        let instance = of(&found, device);
        let annotation = &instance.metadata.annotations.as_ref().unwrap()["akri.sh/identity"];
        assert_eq!(annotation, identity(device).as_str());
        let resource = resource_of(instance);
        kubelet.wait_for("its slot", |view| view.resource(&resource).allocatable() == 1).await;
        let admitted = kubelet.admit(device, "container", &resource, 1).await.unwrap();
        assert_eq!(&admitted.response.envs["DEBUG_ECHO_DESCRIPTION"], device, "each name stands for its device");
        let suffix = name_of(instance).strip_prefix("echo-").unwrap().to_uppercase();
        assert_eq!(&admitted.response.envs[&format!("DEBUG_ECHO_DESCRIPTION_{suffix}")], device);
        let slot = format!("{}-0", name_of(instance));
        node.wait_for_instance(name_of(instance), "the claim", |i| usage(i) == [(slot.as_str(), "node-a")]).await;
    }

    // Over restarts, with the journal and without it, in whatever order the handler tells them.
    let agent = restart(&node, agent, &found).await;
    write(&[second, "plain", first]);
    node.remove("state/journal.jsonl");
    let agent = restart(&node, agent, &found).await;
    agent.sees_in_use(&[format!("{short}-0")]).await;

    // The one with the short name goes: the other keeps its own, and so it does when the first is back.
    first_goes_and_returns(&node, &kubelet, &found, [first, second]).await;
    drop(agent);
}

async fn restart(node: &Node, agent: Agent, found: &[Instance]) -> Agent {
    agent.kill();
    let agent = node.start();
    agent.wait_for_log("round done").await;
    node.wait_for_condition("echo", "Ready", "True", "Discovered").await;
    assert_eq!(identities(&node.instances()), identities(found));
    agent
}

async fn first_goes_and_returns(node: &Node, kubelet: &Kubelet, found: &[Instance], [first, second]: [&String; 2]) {
    kubelet.remove_pod(first);
    node.write_echo("echo", 1, &[second, "plain"]);
    let left = node.wait_for_instances("two devices", |list| list.len() == 2).await;
    let kept = |list: &[Instance]| identities(&[of(list, "plain").clone(), of(list, second).clone()]);
    assert_eq!(kept(&left), kept(found));
    node.write_echo("echo", 1, &[first, second, "plain"]);
    let again = node.wait_for_instances("three devices again", |list| list.len() == 3).await;
    assert_eq!(name_of(of(&again, first)), name_of(of(found, first)), "the short name was free");
    assert_eq!(kept(&again), kept(found));
}

#[tokio::test] // rule 30
async fn device_whose_extended_name_does_not_fit_is_reported() {
    let [one, other] = twins();
    let configuration = "c".repeat(56);
    let node = Node::new();
    node.write_echo(&configuration, 1, &[&one, &other, "plain"]);
    let agent = node.start();
    let ready = node.wait_for_condition(&configuration, "Ready", "False", "NotPublished").await;
    let found = node.wait_for_instances("two of three devices", |list| list.len() == 2).await;
    let missing = if found.iter().any(|i| description(i) == one) { &other } else { &one };
    let hash = hash(missing, HashLength::Medium);
    let expected = format!(
        "1 devices have no Instance, such as '{missing}': '{configuration}-{hash}' is too long for a resource name; \
         give the Configuration a shorter name"
    );
    assert_eq!(ready.message, expected);

    // It stays so, round after round.
    let rounds = || agent.log().matches("round done").count();
    let (before, mut states) = (rounds(), Vec::new());
    while rounds() <= before + 5 {
        states.extend(node.condition(&configuration, "Ready"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(states.iter().all(|state| *state == ready), "{states:?}");

    node.write_echo(&configuration, 1, &[missing, "plain"]);
    node.wait_for_condition(&configuration, "Ready", "True", "Discovered").await;
    node.wait_for_instances("the one that has the name now", |list| list.iter().any(|i| description(i) == missing))
        .await;
}

/// Local devices whose Instances are named after them.
fn write_named(node: &Node, devices: &[&str], template: &str) {
    let details: String = devices.iter().map(|device| format!("      - \"{device}\"\n")).collect();
    let name = if template.is_empty() { String::new() } else { format!("  instanceName: '{template}'\n") };
    let spec = format!("  capacity: 1\n  offlineGracePeriod: 0s\n{name}");
    node.write_configuration("echo", "debugEcho", &format!("      descriptions:\n{details}"), &spec);
}

/// Returns the names of all Instances.
fn names(node: &Node) -> Vec<String> {
    node.instances().iter().map(|instance| name_of(instance).to_owned()).collect()
}

async fn wait_for_names(node: &Node, expected: &[&str]) {
    wait_for("the names", || names(node), |names| names == expected).await;
}

const ECHO: &str = "echo-{{DEBUG_ECHO_DESCRIPTION}}";

#[tokio::test] // rule 125
async fn instances_have_the_names_of_their_configuration() {
    let node = Node::new();
    node.make_echo_local();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    write_named(&node, &["SN_1", "SN.2"], ECHO);
    let cdi = node.path("cdi");
    let agent = node.start_with(&["--cdi-dir", cdi.to_str().unwrap()]);
    wait_for_names(&node, &["echo-sn-1", "echo-sn-2"]).await;
    node.wait_for_condition("echo", "DiscoveryComplete", "True", "Complete").await;
    let instance = node.instance("echo-sn-1").unwrap();
    assert_eq!(instance.spec.cdi_name, "akri.sh/echo=echo-sn-1");
    let written = || std::fs::read_dir(&cdi).map(Iterator::count).unwrap_or_default();
    wait_for("two files", written, |count| *count == 2).await;
    kubelet.wait_for("its slot", |view| view.resource("akri.sh/echo-sn-1").allocatable() == 1).await;
    let admitted = kubelet.admit("pod", "container", "akri.sh/echo-sn-1", 1).await.unwrap();
    assert_eq!(admitted.response.envs["DEBUG_ECHO_DESCRIPTION_ECHO_SN_1"], "SN_1");
    let before = identities(&node.instances());
    agent.kill();
    let agent = node.start_with(&["--cdi-dir", cdi.to_str().unwrap()]);
    agent.sees_in_use(&["echo-sn-1-0".to_owned()]).await;
    agent.wait_for_log("round done").await;
    assert_eq!(identities(&node.instances()), before);
    assert_eq!(written(), 2);
}

#[tokio::test] // rule 125
async fn name_that_can_not_be_given_is_in_the_status() {
    let node = Node::new();
    node.make_echo_local();
    let long = "x".repeat(300);
    write_named(&node, &["a.b", "a:b", "\u{430}", &long, "...", "good"], ECHO);
    let _agent = node.start();
    let found = node.wait_for_instances("all devices", |list| list.len() == 6).await;
    assert_eq!(
        names(&node).iter().filter(|name| !name.starts_with("echo-good") && name.len() == 11).count(),
        5,
        "{found:?}"
    );
    let is_complete = |message: &String| {
        let has = |device: &str| message.contains(&format!("is {}: ", name_of(of(&found, device))));
        ["a.b", "a:b", "\u{430}", "..."].into_iter().all(has)
    };
    let message = || node.condition("echo", "DiscoveryComplete").map(|condition| condition.message).unwrap_or_default();
    let message = wait_for("all names that can't be given", message, is_complete).await;
    assert!(message.contains("would be 'echo-a-b', too") && message.contains("is not 1 to 63 of a-z"), "{message}");
    node.wait_for_condition("echo", "Ready", "True", "Discovered").await;

    // The one that has a name keeps it, whoever comes.
    write_named(&node, &["a.b"], ECHO);
    wait_for_names(&node, &["echo-a-b"]).await;
    let before = identities(&node.instances());
    write_named(&node, &["a:b", "a.b"], ECHO);
    let both = node.wait_for_instances("both", |list| list.len() == 2).await;
    assert!(identities(&both).contains(&before[0]), "{both:?}");

    // Another Configuration's Instance has it.
    node.write_echo("other", 1, &["x"]);
    let other = node.wait_for_instances("the other one", |list| list.len() == 3).await;
    let other = other.iter().find(|instance| name_of(instance).starts_with("other-")).unwrap();
    write_named(&node, &["x", "y"], name_of(other));
    let message = |node: &Node| node.condition("echo", "DiscoveryComplete").map(|one| one.message).unwrap_or_default();
    wait_for("the repeated name", || message(&node), |message| message.contains(&format!("'{}', too", name_of(other))))
        .await;
    write_named(&node, &["x"], name_of(other));
    let taken = format!("another Instance or Configuration has the name '{}'", name_of(other));
    wait_for(&taken, || message(&node), |message| message.contains(&taken)).await;
    assert_eq!(node.instances().len(), 2);
}

#[tokio::test] // rule 125
async fn used_instance_keeps_its_name_until_it_is_free() {
    for is_local in [true, false] {
        let node = Node::new();
        if is_local {
            node.make_echo_local();
        }
        let kubelet = Kubelet::start(&node.path("kubelet"));
        write_named(&node, &["used", "free"], "");
        let agent = node.start();
        let found = node.wait_for_instances("two devices", |list| list.len() == 2).await;
        let (used, free) = (name_of(of(&found, "used")).to_owned(), name_of(of(&found, "free")).to_owned());
        let resource = resource_of(of(&found, "used"));
        kubelet.wait_for("its slot", |view| view.resource(&resource).allocatable() == 1).await;
        kubelet.admit("pod", "container", &resource, 1).await.unwrap();
        agent.sees_in_use(&[format!("{used}-0")]).await;
        write_named(&node, &["used", "free"], ECHO);
        let mut expected = [used.as_str(), "echo-free"];
        expected.sort_unstable();
        wait_for_names(&node, &expected).await;
        let message =
            node.wait_for_condition("echo", "DiscoveryComplete", "False", "DiscoveryIncomplete").await.message;
        assert!(
            message.contains(&format!("'{used}' keeps its name while containers use it; then it gets echo-used")),
            "{message}"
        );
        kubelet.wait_for("the new name", |view| view.resource("akri.sh/echo-free").allocatable() == 1).await;
        kubelet.wait_for("no old one", |view| view.resource(&format!("akri.sh/{free}")).capacity() == 0).await;
        kubelet.remove_pod("pod");
        wait_for_names(&node, &["echo-free", "echo-used"]).await;
        node.wait_for_condition("echo", "DiscoveryComplete", "True", "Complete").await;

        // And back.
        write_named(&node, &["used", "free"], "");
        let mut hashed = [used.as_str(), free.as_str()];
        hashed.sort_unstable();
        wait_for_names(&node, &hashed).await;
    }
}

#[tokio::test] // rule 22
async fn instance_without_device_id_is_matched_by_name() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_echo("echo", 1, &["foo0"]);
    let agent = node.start();
    let mut found = node.wait_for_instances("the device", |list| list.len() == 1).await.remove(0);
    agent.kill();
    // As upstream Akri makes them.
    node.remove("state/journal.jsonl");
    let annotations = found.metadata.annotations.take();
    node.write(&format!("state/instances/default/{}.json", name_of(&found)), &serde_json::to_string(&found).unwrap());
    let _agent = node.start();
    let adopted = |list: &[Instance]| list.len() == 1 && list[0].metadata.annotations == annotations;
    let after = node.wait_for_instances("its identity", adopted).await;
    assert_eq!(identities(&after), identities(&[found]));
    let resource = resource_of(&after[0]);
    kubelet.wait_for("its slot", |view| view.resource(&resource).allocatable() == 1).await;
}

#[tokio::test] // rule 29
async fn configurations_of_one_name_are_served_one_at_a_time() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    let write = |namespace: &str, capacity: u32| {
        let metadata = format!("metadata: {{name: echo, namespace: {namespace}}}");
        let handler = "{name: debugEcho, discoveryDetails: 'descriptions: [foo0]'}";
        let spec = format!("spec: {{discoveryHandler: {handler}, capacity: {capacity}}}");
        let text = format!("apiVersion: akri.sh/v0\nkind: Configuration\n{metadata}\n{spec}\n");
        node.write(&format!("manifests/{namespace}.yaml"), &text);
    };
    let in_namespace = |list: &[Instance], namespace: &str| {
        list.len() == 1 && list[0].metadata.namespace.as_deref() == Some(namespace)
    };
    write("later", 1);
    let agent = node.start();
    let found = node.wait_for_instances("its device", |list| in_namespace(list, "later")).await;
    let resource = resource_of(&found[0]);
    kubelet.wait_for("its slot", |view| view.resource(&resource).allocatable() == 1).await;
    let refusals =
        || agent.log().matches("akri.sh/echo is the resource of Configuration later/echo, which was first").count();
    for edits in 1..=2 {
        write("earlier", edits);
        wait_for("a refusal of each edit", refusals, |count| *count == edits as usize).await;
    }
    kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    assert_eq!(identities(&node.instances()), identities(&found), "the one that has the name keeps it");
    assert_eq!(kubelet.view(|view| view.resource(&resource).registrations), 1);

    node.remove("manifests/later.yaml");
    node.wait_for_instances("the other one's device", |list| in_namespace(list, "earlier")).await;
    kubelet.wait_for("its registration", |view| view.resource(&resource).registrations == 2).await;
}
