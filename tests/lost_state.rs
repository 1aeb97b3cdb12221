//! State that was damaged or lost while no agent ran: what is left of it is enough.

use std::fs;

use akri_api::Instance;

use crate::support::kubelet::{Admitted, Kubelet};
use crate::support::node::{Agent, Node, identities, name_of, resource_of, used};

/// Two devices of two slots, and a pod that uses one slot of the first.
struct Fixture {
    node: Node,
    kubelet: Kubelet,
    found: Vec<Instance>,
    resource: String,
    admitted: Admitted,
    /// The journal before the pod.
    before: String,
}

impl Fixture {
    /// Up to the death of the agent.
    async fn play(shared: bool) -> Self {
        let node = Node::new();
        if !shared {
            node.make_echo_local();
        }
        node.write_echo("echo", 2, &["foo0", "foo1"]);
        let kubelet = Kubelet::start(&node.path("kubelet"));
        let agent = node.start();
        let found = node.wait_for_instances("two devices", |list| list.len() == 2).await;
        let resource = resource_of(&found[0]);
        kubelet.wait_for("two slots", |view| view.resource(&resource).allocatable() == 2).await;
        let before = fs::read_to_string(node.path("state/journal.jsonl")).unwrap();
        let admitted = kubelet.admit("pod", "container", &resource, 1).await.unwrap();
        node.wait_for_instance(name_of(&found[0]), "the claim", |i| used(i) == admitted.ids).await;
        agent.kill();
        Self { node, kubelet, found, resource, admitted, before }
    }

    /// Agent and kubelet start anew; everything is as it was, and only the free slot can be had.
    async fn is_restored(&mut self) -> Agent {
        let Self { node, kubelet, found, resource, admitted, .. } = self;
        kubelet.restart();
        let agent = node.start();
        kubelet.wait_for("two slots again", |view| view.resource(resource).allocatable() == 2).await;
        kubelet.readmit("pod").unwrap();
        node.wait_for_instance(name_of(&found[0]), "the claim again", |i| used(i) == admitted.ids).await;
        node.wait_for_condition("echo", "Ready", "True", "Discovered").await;
        node.wait_for_instances("the same objects", |list| identities(list) == identities(found)).await;
        assert_eq!(used(&node.instance(name_of(&found[0])).unwrap()), admitted.ids, "a round changes no claim");
        let other = kubelet.admit("other", "container", resource, 1).await.unwrap();
        assert_ne!(other.ids, admitted.ids);
        node.wait_for_instance(name_of(&found[0]), "both claims", |i| used(i).len() == 2).await;
        agent
    }

    fn journal(&self) -> String {
        fs::read_to_string(self.node.path("state/journal.jsonl")).unwrap()
    }
}

#[tokio::test] // rule 28, rule 108
async fn lost_or_old_journal_is_completed_from_what_others_have() {
    for shared in [true, false] {
        let mut fixture = Fixture::play(shared).await;
        fixture.node.remove("state/journal.jsonl");
        fixture.is_restored().await;
        let claims = fixture.journal().matches(&format!("akri.agent.slot-{}", fixture.admitted.ids[0])).count();
        assert!(claims > 0, "the claim is in the new journal");

        // A journal from a backup is whole, and lacks the claim of a container that runs.
        let mut fixture = Fixture::play(shared).await;
        fs::write(fixture.node.path("state/journal.jsonl"), &fixture.before).unwrap();
        let agent = fixture.is_restored().await;
        let has_restored = agent.log().contains("restored from the kubelet's checkpoint: the journal lacks it");
        assert!(has_restored || shared, "what is published of a local device does not count: {}", agent.log());
    }
}

#[tokio::test] // rule 28
async fn held_slots_are_served_and_a_lost_device_noticed_later() {
    let mut fixture = Fixture::play(false).await;
    fixture.node.remove("state/journal.jsonl");
    let component = fixture.node.path("components/debug_echo.wasm");
    fs::rename(&component, component.with_extension("away")).unwrap();
    // The other device goes while nobody knows of it.
    let held = &fixture.found[0].spec.broker_properties["DEBUG_ECHO_DESCRIPTION"];
    fixture.node.write_echo("echo", 2, &[held]);
    fixture.kubelet.restart();
    let _agent = fixture.node.start();
    let resource = &fixture.resource;
    fixture.kubelet.wait_for("the held slot", |view| view.resource(resource).capacity() == 2).await;
    assert_eq!(fixture.kubelet.view(|view| view.resource(resource).allocatable()), 1);
    fixture.kubelet.readmit("pod").unwrap();
    assert_eq!(identities(&fixture.node.instances()), identities(&fixture.found));
    fs::rename(component.with_extension("away"), &component).unwrap();
    fixture.kubelet.wait_for("the free slot", |view| view.resource(resource).allocatable() == 2).await;
    fixture.node.wait_for_instances("one device", |list| list.len() == 1).await;
}

#[tokio::test] // rule 6, rule 28
async fn damaged_journal_is_set_aside_and_nothing_is_lost() {
    for shared in [true, false] {
        for line_to_damage in ["last", "all"] {
            let mut fixture = Fixture::play(shared).await;
            let journal = fixture.journal();
            let mut lines: Vec<String> = journal.lines().map(str::to_owned).collect();
            let first = if line_to_damage == "all" { 1 } else { lines.len() - 1 }; // the header is first
            let damage = |line: &mut String| *line = line.replacen("\"online\":\"true\"", "\"online\":\"frue\"", 1);
            lines[first..].iter_mut().for_each(damage);
            lines.insert(1, "\u{0}\u{1}garbage \u{fffd}".to_owned());
            let damaged = lines.join("\n") + "\n";
            fs::write(fixture.node.path("state/journal.jsonl"), &damaged).unwrap();

            let agent = fixture.is_restored().await;

            let path = fixture.node.path("state/journal.jsonl.damaged");
            assert_eq!(fs::read_to_string(path).unwrap(), damaged, "kept for a person to look at");
            let count = lines.len() - first;
            let expected = format!("has {count} damaged lines: kept as '");
            assert!(agent.log().contains(&expected), "{expected}");
        }
    }
}

#[tokio::test] // rule 27, rule 28
async fn damaged_instances_are_recreated_with_their_claims() {
    for shared in [true, false] {
        let mut fixture = Fixture::play(shared).await;
        let path = |index: usize| format!("state/instances/default/{}.json", name_of(&fixture.found[index]));
        let (lost, damaged) = (path(0), path(1));
        fixture.node.remove(&lost);
        fixture.node.write(&damaged, "{\"apiVersion\": \"akri");
        let aside = fixture.node.path(&damaged).with_extension("damaged");
        let agent = fixture.is_restored().await;
        assert_eq!(fs::read_to_string(aside).unwrap(), "{\"apiVersion\": \"akri", "kept for a person to look at");
        assert!(agent.log().contains("is not a valid object"));
    }
}

#[tokio::test]
async fn lost_state_is_rediscovered_as_new_objects() {
    let fixture = Fixture::play(false).await;
    let Fixture { node, mut kubelet, found, resource, .. } = fixture;
    fs::remove_dir_all(node.path("state")).unwrap();
    kubelet.restart();
    let _agent = node.start();
    kubelet.wait_for("two slots again", |view| view.resource(&resource).allocatable() == 2).await;
    kubelet.readmit("pod").unwrap();
    let names = |list: &[Instance]| identities(list).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&node.instances()), names(&found), "names are made of the devices alone");
}
