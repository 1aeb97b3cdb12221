//! Configurations on a real API server: what is wrong with them, and what an edit does.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use akri_api::DiscoveryHandler;
use akri_api::condition;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::support::cluster::{program, wait_for};
use crate::support::cluster_fixture::ClusterFixture;
use crate::support::node::{is_online, name_of, resource_of};
use crate::support::skip::skip;

#[tokio::test] // rule 34
async fn problem_is_in_the_status_until_fixed_and_harms_no_device() {
    let Some(cluster) = ClusterFixture::begin("trouble").await else { return };
    let spec =
        |handler: &str, details: &str| json!({"discoveryHandler": {"name": handler, "discoveryDetails": details}});
    cluster.configure(cluster.name(), spec("debugEko", "descriptions: [one]")).await;
    let a = cluster.add("node-a");
    let missing = cluster.wait_for_condition(cluster.name(), "HandlerAvailable", "False", "NoHandler").await;
    assert!(missing.message.contains("node-a: ") && missing.message.contains("debugEko"), "{}", missing.message);
    cluster.configure(cluster.name(), spec("debugEcho", "description: [one]")).await;
    cluster.wait_for_condition(cluster.name(), "DetailsValid", "False", "InvalidDetails").await;
    cluster.wait_for_condition(cluster.name(), "Ready", "False", "InvalidDetails").await;
    cluster.configure(cluster.name(), spec("debugEcho", "descriptions: [one]")).await;
    cluster.wait_for_condition(cluster.name(), "Ready", "True", "Discovered").await;
    cluster.wait_for_condition(cluster.name(), "DetailsValid", "True", "Accepted").await;
    let counted = async || cluster.configurations().get(cluster.name()).await.unwrap().status.unwrap();
    let status = wait_for("one Instance", counted, |status| status.instances == 1).await;
    assert!(status.nodes.is_empty() && status.observed_generation == Some(3), "{status:?}");

    cluster.echo(cluster.name(), 2, &["one"], json!({})).await;
    let made = cluster.wait_for_the_instance("two slots", |i| is_online(i) && i.spec.capacity == 2).await;
    a.offers(&resource_of(&made), 2).await;
    // What the CRD bounds, the API server refuses itself.
    cluster.echo(cluster.name(), 2, &["one"], json!({"offlineGracePeriod": "soon"})).await;
    let invalid = cluster.wait_for_condition(cluster.name(), "Ready", "False", "InvalidConfiguration").await;
    assert!(invalid.message.contains("/spec/offlineGracePeriod: "), "{}", invalid.message);
    a.offers(&resource_of(&made), 2).await;
    cluster.echo(cluster.name(), 1, &["one"], json!({})).await;
    cluster.wait_for_condition(cluster.name(), "Ready", "True", "Discovered").await;
    let after = cluster.wait_for_the_instance("one slot", |i| i.spec.capacity == 1).await;
    assert_eq!(after.uid(), made.uid());
}

#[tokio::test] // rule 117, rule 131
async fn ready_is_never_of_an_earlier_generation_nor_of_silence() {
    let Some(cluster) = ClusterFixture::begin("answers").await else { return };
    let (mut a, name) = (cluster.add("node-a"), cluster.name());
    let spec = |details: &str| json!({"discoveryHandler": {"name": "debugEcho", "discoveryDetails": details}});
    for (details, answer) in [
        ("descriptions: [one]", "Discovered"),
        ("description: [one]", "InvalidDetails"),
        ("descriptions: [one, two]", "Discovered"),
    ] {
        cluster.configure(name, spec(details)).await;
        assert_eq!(cluster.first_answer(name).await, answer, "{details}");
    }
    a.stop();
    cluster.wait_for_condition(name, "Ready", "Unknown", "NoAgent").await;
    a.start();
    cluster.wait_for_condition(name, "Ready", "True", "Discovered").await;
    a.kill();
    cluster.configure(name, spec("descriptions: [one]")).await;
    cluster.wait_for_condition(name, "Ready", "Unknown", "Pending").await;
    a.start();
    cluster.wait_for_condition(name, "Ready", "True", "Discovered").await;
    // What waits for a condition sees no answer of before an edit, either.
    for round in 0..3 {
        // A failure: that the answer of before was a success, or that the agent's Lease came first, is not seen.
        cluster.configure(name, spec(&format!("description: [of-{round}]"))).await;
        let Some(never) = kubectl_wait(&cluster, "Ready", 8) else { return };
        assert!(succeeds(kubectl_wait(&cluster, "Ready=False", 60).unwrap()).await);
        let failed = cluster.first_answer(name).await;
        assert_eq!((succeeds(never).await, &*failed), (false, "InvalidDetails"), "round {round}");
        // A success, and not the failure of before.
        cluster.configure(name, spec(&format!("descriptions: [of-{round}]"))).await;
        let never = kubectl_wait(&cluster, "Ready=False", 8).unwrap();
        assert!(succeeds(kubectl_wait(&cluster, "Ready", 60).unwrap()).await);
        let succeeded = cluster.first_answer(name).await;
        assert_eq!((succeeds(never).await, &*succeeded), (false, "Discovered"), "round {round}");
    }
    a.kill();
    cluster.configure(name, spec("descriptions: [last]")).await;
    assert!(!succeeds(kubectl_wait(&cluster, "Ready", 5).unwrap()).await, "nobody has looked");
}

/// Begins to wait for a condition of the story's Configuration as users do.
fn kubectl_wait(cluster: &ClusterFixture, condition: &str, seconds: u32) -> Option<Child> {
    let Some(kubectl) = program("kubectl") else {
        skip("kubectl is not there: run 'make peers'");
        return None;
    };
    let mut command = Command::new(kubectl);
    command.arg("--kubeconfig").arg(cluster.story.kubeconfig()).args(["--namespace", cluster.story.namespace()]);
    command.args(["wait", &format!("--for=condition={condition}"), &format!("--timeout={seconds}s")]);
    command.arg(format!("configurations.akri.sh/{}", cluster.name()));
    Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

async fn succeeds(waiting: Child) -> bool {
    tokio::task::spawn_blocking(move || waiting.wait_with_output().unwrap().status.success()).await.unwrap()
}

#[tokio::test] // rule 61, rule 131
async fn handler_is_ready_only_after_an_agent_has_looked_at_it() {
    let Some(cluster) = ClusterFixture::begin("handled").await else { return };
    let (name, mut a) = (format!("{}-handler", cluster.name()), cluster.add("node-a"));
    let api: Api<DiscoveryHandler> = Api::all(cluster.story.client());
    let ready = async || {
        let object = api.get(&name).await.unwrap();
        let ready = condition::find(&object.status?.conditions, "Ready").cloned()?;
        (ready.observed_generation == object.metadata.generation).then_some((ready.status, ready.reason))
    };
    let first_answer = async || {
        let is_answer =
            |ready: &Option<(String, String)>| ready.as_ref().is_some_and(|(status, _)| status != "Unknown");
        wait_for("an answer", ready, is_answer).await.unwrap().1
    };
    let missing = json!({"component": {"file": "missing.wasm"}});
    let udev = json!({"name": "udev", "component": {"file": "udev.wasm"}});
    for (spec, answer) in [(&missing, "Unreadable"), (&udev, "Loaded"), (&missing, "Unreadable")] {
        cluster.handle(&name, spec.clone()).await;
        assert_eq!(first_answer().await, answer, "{spec}");
        let status = api.get(&name).await.unwrap().status.unwrap();
        let message = &condition::find(&status.conditions, "Ready").unwrap().message;
        let names_node = message.starts_with("node-a: ") && message.contains("missing.wasm");
        let (is_missing, nodes) = (answer == "Unreadable", status.nodes.keys().collect::<Vec<_>>());
        assert_eq!((names_node, nodes == ["node-a"]), (is_missing, is_missing), "{status:?}");
    }
    a.kill();
    cluster.handle(&name, udev).await;
    let pending = Some(("Unknown".to_owned(), "Pending".to_owned()));
    wait_for("a generation that no agent has looked at", ready, |ready| *ready == pending).await;
    a.start();
    assert_eq!(first_answer().await, "Loaded");
    let status = api.get(&name).await.unwrap().status.unwrap();
    assert!(status.awaiting.is_empty() && status.nodes.is_empty(), "{status:?}");
    drop(a);
    api.delete(&name, &DeleteParams::default()).await.unwrap(); // it is the whole cluster's
}

#[tokio::test]
async fn changed_value_reaches_the_next_round() {
    let Some(cluster) = ClusterFixture::begin("values").await else { return };
    let reference = |key: &str| json!({"name": "camera", "namespace": cluster.name(), "key": key});
    let spec = json!({
        "discoveryHandler": {
            "name": "debugEcho",
            "discoveryDetails": "descriptions: [one]",
            "discoveryProperties": [
                {"name": "availability", "valueFrom": {"configMapKeyRef": reference("state")}},
                {"name": "password", "valueFrom": {"secretKeyRef": reference("word")}},
            ],
        },
        "offlineGracePeriod": "1h",
    });
    cluster.configure(cluster.name(), spec).await;
    let a = cluster.add("node-a");
    let object = |kind: &str, field: &str, data: Value| {
        json!({
            "apiVersion": "v1", "kind": kind, "metadata": {"name": "camera"}, field: data,
        })
    };
    let map = |value: &str| object("ConfigMap", "data", json!({"state": value}));
    let missing =
        cluster.wait_for_condition(cluster.name(), "PropertiesResolved", "False", "PropertiesUnresolved").await;
    assert!(
        missing.message.contains("'availability'") && missing.message.contains("'password'"),
        "{}",
        missing.message
    );
    cluster.story.apply_one(map("ONLINE")).await.unwrap();
    cluster.story.apply_one(object("Secret", "stringData", json!({"word": "opensesame"}))).await.unwrap();
    cluster.wait_for_condition(cluster.name(), "PropertiesResolved", "True", "Resolved").await;
    cluster.wait_for_the_instance("the device", is_online).await;
    cluster.story.apply_one(map("OFFLINE")).await.unwrap();
    cluster.wait_for_the_instance("no device", |i| !is_online(i)).await;
    cluster.story.apply_one(map("ONLINE")).await.unwrap();
    cluster.wait_for_the_instance("the device again", is_online).await;
    assert!(!a.log().contains("opensesame"));
}

/// Rule 48: `akri.sh/cam-8120fe` can be the resource of an Instance and that of a Configuration.
#[tokio::test] // rule 48
async fn resource_of_an_instance_is_taken_from_nobody() {
    let Some(cluster) = ClusterFixture::begin("names").await else { return };
    cluster.echo(cluster.name(), 1, &["one"], json!({})).await;
    let a = cluster.add("node-a");
    let made = cluster.wait_for_the_instance("a device", is_online).await;
    let (name, resource) = (name_of(&made), resource_of(&made));
    a.offers(&resource, 1).await;
    tokio::time::sleep(Duration::from_millis(1100)).await; // Configurations are ranked by the second
    cluster.echo(name, 1, &["two"], json!({})).await;
    let taken = cluster.wait_for_condition(name, "Ready", "False", "ResourceNameTaken").await;
    assert!(taken.message.contains(&resource), "{}", taken.message);
    assert_eq!(a.kubelet.view(|view| view.resource(&resource).registrations), 1);
    // Either of them may do without it for a while.
    for (edited, device, resources) in [(name, "two", "instance"), (cluster.name(), "one", "configuration")] {
        cluster.echo(edited, 1, &[device], json!({"resources": resources})).await;
        cluster.wait_for_condition(name, "Ready", "True", "Discovered").await;
        cluster.echo(edited, 1, &[device], json!({})).await;
        cluster.wait_for_condition(name, "Ready", "False", "ResourceNameTaken").await;
    }
    cluster.delete(cluster.name()).await;
    cluster.wait_for_condition(name, "Ready", "True", "Discovered").await;
}
