//! Pod brokers on a real API server: where they run, what they ask for, and what follows their end.

use std::slice;
use std::time::{Duration, Instant};

use akri_api::condition::Condition;
use akri_api::{Configuration, Instance};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::brokers::{Brokers, is_going, names_of, pod_broker};
use crate::support::cluster::wait_for;

fn strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

fn spec_of(pod: &Pod) -> Value {
    serde_json::to_value(&pod.spec).unwrap()
}

#[tokio::test] // rule 52
async fn broker_runs_on_every_node_within_capacity() {
    let Some(mut site) = Brokers::begin("placed").await else { return };
    let nodes = site.nodes(["a", "b", "c", "d"]).await;
    let cam = site.configure("cam", json!({"capacity": 2, "brokerSpec": pod_broker(json!({}))["brokerSpec"]})).await;
    site.instance(&cam, "000001", &strs(&nodes)).await;
    let placed = names_of(&site.wait_for_pods(2).await);
    for pod in &placed {
        site.run(pod).await;
    }
    site.wait_for_instance_condition("cam-000001", "True", "Running").await;
    let status = site.get::<Instance>("cam-000001").await.unwrap().status.unwrap();
    assert_eq!(status.brokers.map(|brokers| (brokers.desired, brokers.running)), Some((2, 2)));

    site.kill_controller();
    site.controller = Some(site.start_controller());
    site.controller.as_ref().unwrap().wait_for_log("this controller leads").await;
    site.instance(&cam, "000002", &[&nodes[0]]).await;
    let other = format!("{}-cam-000002-pod", nodes[0]);
    let all: Vec<&str> = placed.iter().map(String::as_str).chain([other.as_str()]).collect();
    site.wait_for_names::<Pod>(&all).await;

    // A node that has no broker takes over for one that does not see the device any more.
    let gone = nodes.iter().find(|node| placed.contains(&format!("{node}-cam-000001-pod"))).unwrap();
    let left: Vec<&String> = nodes.iter().filter(|node| *node != gone).collect();
    site.change_instance("cam-000001", json!({"nodes": left})).await;
    let moved = async || names_of(&site.list::<Pod>().await);
    wait_for("a broker elsewhere", moved, |names| {
        names.len() == 3 && !names.contains(&format!("{gone}-cam-000001-pod"))
    })
    .await;
}

#[tokio::test] // rule 54
async fn broker_asks_for_its_device_on_its_node() {
    let Some(mut site) = Brokers::begin("asks").await else { return };
    let node = site.node("a").await;
    let zone = json!([{"key": "zone", "operator": "In", "values": ["a"]}]);
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": zone}, {"matchExpressions": zone}]});
    let placeholder = json!({"{{PLACEHOLDER}}": "1"});
    let quantities = json!({"limits": placeholder, "requests": placeholder});
    let spec = json!({
        "initContainers": [{"name": "init", "image": "broker:1", "resources": quantities}],
        "containers": [{"name": "main", "image": "broker:1", "resources": quantities}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "tolerations": [{"operator": "Exists"}],
    });
    let evict = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    let spec = json!({"brokerSpec": {"brokerPodSpec": spec, "brokerPodAnnotations": {evict: "true"}}});
    let cam = site.configure("cam", spec).await;
    let instance = site.instance(&cam, "000001", &[&node]).await;
    let pod = site.wait_for_pods(1).await.remove(0);
    assert_eq!(pod.annotations()[evict], "true");
    assert_eq!(pod.name_any(), format!("{node}-cam-000001-pod"));
    let made = spec_of(&pod);
    let one = json!({"akri.sh/cam-000001": "1"});
    for list in ["initContainers", "containers"] {
        assert_eq!(made[list][0]["resources"], json!({"limits": one, "requests": one}), "{list}");
    }
    let here = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    let required = &made["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let both = json!({"matchExpressions": zone, "matchFields": here});
    assert_eq!(required["nodeSelectorTerms"], json!([both, both]));
    let owner = &pod.owner_references()[0];
    assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("Instance", instance.uid().as_ref()));

    site.configure("bare", pod_broker(json!({}))).await;
    let bare = site.get::<Configuration>("bare").await.unwrap();
    site.instance_with(&bare, "000002", &[&node], json!({"shared": false})).await;
    let pods = site.wait_for_pods(2).await;
    let bare =
        pods.iter().find(|pod| pod.name_any() == "bare-000002-pod").expect("the name of a local device's broker");
    assert_eq!(spec_of(bare)["containers"][0]["resources"]["limits"], json!({"akri.sh/bare-000002": "1"}));
    // Annotations are those that the user wrote, but no key of Akri's.
    site.configure("cam", json!({"brokerSpec": {"brokerPodAnnotations": {"akri.sh/broker-hash": "x"}}})).await;
    let ready = async || {
        let status = site.get::<Configuration>("cam").await.unwrap().status.unwrap_or_default();
        status.conditions.into_iter().find(|condition| condition.type_ == "Ready").map(|ready| ready.message)
    };
    let refused =
        |message: &Option<String>| message.as_ref().is_some_and(|message| message.contains("akri.sh~1broker-hash"));
    wait_for("a refusal of a key of ours", ready, refused).await;
}

#[tokio::test] // rule 52, rule 121
async fn broker_that_fails_backs_off_and_the_others_run() {
    let Some(mut site) = Brokers::begin("fails").await else { return };
    let nodes = site.nodes(["a", "b"]).await;
    let cam = site.configure("cam", pod_broker(json!({}))).await;
    site.instance(&cam, "000001", &strs(&nodes)).await;
    let [bad, good] = nodes.clone().map(|node| format!("{node}-cam-000001-pod"));
    site.wait_for_names::<Pod>(&[&bad, &good]).await;
    site.run(&good).await;
    let first = site.get::<Pod>(&bad).await.unwrap();
    let failed = Timestamp::now();
    site.fail(&bad, "UnexpectedAdmissionError").await;
    let why = site.wait_for_instance_condition("cam-000001", "False", "Backoff").await.message;
    assert!(why.contains(&nodes[0]) && why.contains("UnexpectedAdmissionError: as the story says"), "{why}");

    let pod = async || site.get::<Pod>(&bad).await;
    let second = wait_for("the next one", pod, |pod| pod.as_ref().is_some_and(|pod| pod.uid() != first.uid())).await;
    let second = second.unwrap();
    let pause = second.creation_timestamp().unwrap().0.duration_since(failed).as_secs();
    assert!(pause >= 9, "{pause}");
    assert_eq!(second.annotations()["akri.sh/broker-failures"], "1");
    site.fail(&bad, "Error").await;
    site.kill_controller();
    site.controller = Some(site.start_controller());
    let twice = |message: &str| message.contains("has ended 2 times in a row");
    let why = async || site.wait_for_instance_condition("cam-000001", "False", "Backoff").await.message;
    wait_for("two failures, after a restart of the controller", why, |why| twice(why)).await;
    assert_eq!(site.get::<Pod>(&bad).await.unwrap().uid(), second.uid(), "it waits 20 s now");
    assert!(site.get::<Pod>(&good).await.is_some_and(|pod| !is_going(&pod)));
}

#[tokio::test] // rule 53
async fn broker_of_a_missing_device_goes_after_its_grace() {
    let Some(mut site) = Brokers::begin("missing").await else { return };
    let nodes = site.nodes(["a", "b"]).await;
    let mut spec = pod_broker(json!({}));
    spec["offlineGracePeriod"] = json!("10s");
    let cam = site.configure("cam", spec).await;
    site.instance(&cam, "000001", &strs(&nodes)).await;
    let [a, b] = nodes.clone().map(|node| format!("{node}-cam-000001-pod"));
    site.wait_for_names::<Pod>(&[&a, &b]).await;
    site.run(&a).await;
    site.run(&b).await;
    let missed = Instant::now();
    site.miss("cam-000001", &nodes[1], 4000).await; // by a clock that is behind
    site.wait_for_names::<Pod>(&[&a]).await;
    assert!(missed.elapsed() >= Duration::from_secs(9), "{:?}", missed.elapsed());
    site.change_instance("cam-000001", json!({"nodes": [nodes[0]]})).await;
    site.wait_for_instance_condition("cam-000001", "True", "Running").await;
}

#[tokio::test] // rule 38, rule 60
async fn spec_that_is_refused_disturbs_no_other() {
    let Some(mut site) = Brokers::begin("refused").await else { return };
    let node = site.node("a").await;
    let bad = site.configure("bad", pod_broker(json!({"imagePullPolicy": "Sometimes"}))).await;
    let strange = site.configure("strange", json!({"brokerSpec": {"brokerPodSpec": {"containers": "none"}}})).await;
    // Its broker needs a resource of the Instance, which is not advertised.
    let mut spec = pod_broker(json!({}));
    spec["resources"] = json!("configuration");
    let unadvertised = site.configure("unadvertised", spec).await;
    let good = site.configure("good", pod_broker(json!({}))).await;
    for configuration in [&bad, &strange, &unadvertised, &good] {
        site.instance(configuration, "000001", &[&node]).await;
    }
    let ready = async || {
        let status = site.get::<Configuration>("unadvertised").await.unwrap().status.unwrap_or_default();
        status.conditions.into_iter().find(|condition| condition.type_ == "Ready")
    };
    let is_invalid = |ready: &Option<Condition>| ready.as_ref().is_some_and(|c| c.reason == "InvalidConfiguration");
    let invalid = wait_for("an invalid Configuration", ready, is_invalid).await;
    assert!(invalid.unwrap().message.contains("/spec/brokerSpec/brokerPodSpec: "));
    site.wait_for_names::<Pod>(&[&format!("{node}-good-000001-pod")]).await;
    let why = site.wait_for_instance_condition("bad-000001", "False", "Refused").await.message;
    assert!(why.contains("imagePullPolicy") && why.contains("Sometimes"), "{why}");
    site.wait_for_configuration_condition("bad", "False", "Refused").await;
    let why = site.wait_for_instance_condition("strange-000001", "False", "Refused").await.message;
    assert!(why.contains("ontainers"), "{why}");
    site.configure("bad", pod_broker(json!({"imagePullPolicy": "Never"}))).await;
    site.wait_for_pods(2).await;
}

#[tokio::test] // rule 51, rule 62
async fn pods_of_others_are_waited_for_and_forgeries_ignored() {
    let Some(mut site) = Brokers::begin_without_controller("taken").await else { return };
    let node = site.node("a").await;
    let cam = site.configure("cam", pod_broker(json!({}))).await;
    let name = format!("{node}-cam-000001-pod");
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"containers": [{"name": "mine", "image": "mine:1"}]},
    }))
    .unwrap();
    let mine = site.story.api::<Pod>().create(&PostParams::default(), &pod).await.unwrap();
    site.controller = Some(site.start_controller());
    // Instances without an owner, and of an owner that there is not.
    let forged: Value = json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": "cam-00000f"},
        "spec": {
            "configurationName": "cam", "cdiName": "akri.sh/cam=00000f", "capacity": 1, "nodes": [node], "deviceUsage": {},
        },
    });
    site.story.apply_one(forged).await.unwrap();
    let mut elsewhere = cam.clone();
    elsewhere.metadata.uid = Some("3f1c2d84-0000-4000-8000-000000000000".to_owned());
    site.instance(&elsewhere, "00000e", &[&node]).await;
    site.instance(&cam, "000001", &[&node]).await;
    site.wait_for_instance_condition("cam-000001", "False", "NameTaken").await;
    assert_eq!(site.get::<Pod>(&name).await.unwrap().uid(), mine.uid());
    site.delete::<Pod>(&name).await;
    let pod = async || site.get::<Pod>(&name).await;
    wait_for("the broker", pod, |pod| pod.as_ref().is_some_and(|pod| !pod.owner_references().is_empty())).await;
    site.wait_for_names::<Pod>(&[&name]).await;
    site.run(&name).await;
    site.wait_for_configuration_condition("cam", "True", "Running").await;
    assert_eq!(site.list::<Pod>().await.len(), 1);

    // Somebody takes its label, by which the controller watches it.
    let isolated = site.get::<Pod>(&name).await.unwrap();
    let label = Patch::Merge(json!({"metadata": {"labels": {"controller": null}}}));
    site.story.api::<Pod>().patch(&name, &PatchParams::default(), &label).await.unwrap();
    site.wait_for_instance_condition("cam-000001", "False", "Creating").await;
    site.delete::<Pod>(&name).await;
    wait_for("another broker", pod, |pod| pod.as_ref().is_some_and(|pod| pod.uid() != isolated.uid())).await;
}

#[tokio::test] // rule 51, rule 52
async fn deleted_broker_and_configuration_get_new_brokers() {
    let Some(mut site) = Brokers::begin("again").await else { return };
    let node = site.node("a").await;
    let cam = site.configure("cam", pod_broker(json!({}))).await;
    site.instance(&cam, "000001", &[&node]).await;
    let deleted = site.wait_for_pods(1).await.remove(0);
    site.delete::<Pod>(&deleted.name_any()).await;
    let pods = async || site.list::<Pod>().await;
    let is_another = |pods: &Vec<Pod>| pods.len() == 1 && pods[0].uid() != deleted.uid() && !is_going(&pods[0]);
    let first = wait_for("another Pod", pods, is_another).await.remove(0);
    site.delete::<Configuration>("cam").await;
    let cam = site.configure("cam", pod_broker(json!({}))).await;
    wait_for("no old Instance", async || site.get::<Instance>("cam-000001").await, Option::is_none).await;
    site.instance(&cam, "000001", &[&node]).await;
    let pods = async || site.list::<Pod>().await;
    let is_new = |pods: &Vec<Pod>| pods.len() == 1 && pods[0].uid() != first.uid() && !is_going(&pods[0]);
    let second = wait_for("another broker", pods, is_new).await.remove(0);
    assert_eq!(second.name_any(), first.name_any());
}

#[tokio::test] // rule 36, rule 100
async fn node_out_of_service_alone_loses_brokers_to_others() {
    let Some(mut site) = Brokers::begin("nodes").await else { return };
    let nodes = site.nodes(["a", "b"]).await;
    let cam = site.configure("cam", pod_broker(json!({}))).await;
    let mut with_one_slot = pod_broker(json!({}));
    with_one_slot["capacity"] = json!(1);
    let one = site.configure("one", with_one_slot).await;
    site.instance(&one, "000001", &strs(&nodes)).await;
    let first = site.wait_for_pods(1).await.remove(0);
    let holder = first.labels()["akri.sh/target-node"].clone();
    let other = nodes.iter().find(|node| **node != holder).unwrap();
    site.run(&first.name_any()).await;
    site.change_instance("one-000001", json!({"deviceUsage": {"one-000001-0": holder}})).await;
    site.instance(&cam, "000001", &strs(&nodes)).await;
    let [of_holder, of_other] = [&holder, other].map(|node| format!("{node}-cam-000001-pod"));
    site.wait_for_names::<Pod>(&[&first.name_any(), &of_holder, &of_other]).await;

    // That a node is not ready frees nothing: its containers may still run.
    let not_ready = Patch::Strategic(json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}));
    Api::<Node>::all(site.story.client()).patch_status(&holder, &PatchParams::default(), &not_ready).await.unwrap();
    site.instance(&one, "000002", &[other]).await;
    let second = format!("{other}-one-000002-pod");
    let kept = site.wait_for_names::<Pod>(&[&first.name_any(), &of_holder, &of_other, &second]).await;
    assert!(kept.iter().any(|pod| pod.uid() == first.uid()));
    let spec = async |name: &str| site.get::<Instance>(name).await.unwrap().spec;
    let usage = async || spec("one-000001").await.device_usage["one-000001-0"].clone();
    assert_eq!(usage().await, holder);

    site.take_out_of_service(&holder).await;
    site.wait_for_names::<Pod>(&[&of_other, &format!("{other}-one-000001-pod"), &second]).await;
    assert_eq!(usage().await, "");
    assert_eq!(spec("cam-000001").await.nodes, slice::from_ref(other));

    // An agent that joins again is left alone for a while, so that the two do not take turns.
    site.change_instance("cam-000001", json!({"nodes": nodes})).await;
    site.instance(&cam, "000002", &strs(&nodes)).await;
    wait_for("another clean-up", async || spec("cam-000002").await.nodes, |left| *left == [other.clone()]).await;
    assert_eq!(spec("cam-000001").await.nodes, nodes);
}

#[tokio::test] // rule 100, rule 107
async fn unknown_usage_stays_and_is_a_condition_with_its_remedy() {
    let Some(mut site) = Brokers::begin("usage").await else { return };
    let nodes = site.nodes(["a", "b"]).await;
    for node in &nodes {
        site.renew_lease(node).await;
    }
    let cam = site.configure("cam", json!({})).await;
    // The agent of a deleted Node runs on.
    let used = json!({"deviceUsage": {"cam-000001-0": nodes[0], "cam-000001-1": format!("C:0:{}", nodes[1])}});
    let before = site.instance_with(&cam, "000001", &strs(&nodes), used).await;
    site.delete_node(&nodes[1]).await;
    let usage = async || site.instance_condition("cam-000001", "UsageKnown").await;
    let missing = wait_for("a missing Node", usage, Option::is_some).await.unwrap();
    assert_eq!((&*missing.status, &*missing.reason), ("False", "NodeMissing"));
    assert!(missing.message.contains(&nodes[1]) && !missing.message.contains(&nodes[0]), "{}", missing.message);
    let written = site.writes().await;
    for number in 2..5 {
        let name = site.instance(&cam, &format!("00000{number}"), &[&nodes[0]]).await.name_any();
        let online = async || site.instance_condition(&name, "Online").await;
        wait_for("a reconcile that comes later", online, Option::is_some).await;
    }
    let left = site.get::<Instance>("cam-000001").await.unwrap();
    assert_eq!((left.spec, left.metadata.labels), (before.spec, before.metadata.labels));
    let of_first =
        |writes: &[String]| writes.iter().filter(|write| write.contains("000001")).cloned().collect::<Vec<_>>();
    assert_eq!(of_first(&site.writes().await), of_first(&written));
    site.node("b").await;
    let usage = async || site.instance_condition("cam-000001", "UsageKnown").await;
    wait_for("a Node that is there again", usage, Option::is_none).await;
    unreadable_usage_is_mended(&site, &cam, &nodes[0]).await;
}

/// The condition of an Instance with two unreadable usages has the patch that mends the first of them, and then the next.
async fn unreadable_usage_is_mended(site: &Brokers, cam: &Configuration, node: &str) {
    let used = json!({"deviceUsage": {"cam-000005-0": node, "cam-000005-1": "C:0", "cam-000005-2": "no node"}});
    site.instance_with(cam, "000005", &[node], used).await;
    let usage = async || site.instance_condition("cam-000005", "UsageKnown").await;
    for (left, slot) in [(2, 1), (1, 2)] {
        let starts = format!("{left} slots name no node as their user, the first of them is cam-000005-{slot}:");
        let matches =
            |found: &Option<Condition>| found.as_ref().is_some_and(|found| found.message.starts_with(&starts));
        let found = wait_for(&starts, usage, matches).await.unwrap();
        assert_eq!(found.reason, "UnreadableUsage");
        let patch = found.message.split('\'').rfind(|part| part.starts_with('[')).unwrap();
        let patch = Patch::<()>::Json(serde_json::from_str(patch).unwrap());
        site.story.api::<Instance>().patch("cam-000005", &PatchParams::default(), &patch).await.unwrap();
    }
    wait_for("no condition", usage, Option::is_none).await;
    let left = site.get::<Instance>("cam-000005").await.unwrap().spec.device_usage;
    assert_eq!(left.values().filter(|usage| !usage.is_empty()).collect::<Vec<_>>(), [node]);
}

#[tokio::test] // rule 51
async fn names_that_are_long_or_odd_are_served() {
    let Some(mut site) = Brokers::begin("odd").await else { return };
    let node = site.node("a").await;
    let ports = json!({"ports": [{"port": 80}]});
    for name in ["c".repeat(56), "my.cam".to_owned(), "0cam".to_owned()] {
        let mut spec = pod_broker(json!({}));
        spec["instanceServiceSpec"] = ports.clone();
        spec["configurationServiceSpec"] = ports.clone();
        let configuration = site.configure(&name, spec).await;
        site.instance(&configuration, "000001", &[&node]).await;
    }
    let pods = site.wait_for_pods(3).await;
    for pod in names_of(&pods) {
        site.run(&pod).await;
    }
    let services = async || names_of(&site.list::<k8s_openapi::api::core::v1::Service>().await);
    let names = wait_for("six Services", services, |names| names.len() == 6).await;
    assert!(names.contains(&"my-cam-svc".to_owned()) && names.contains(&"my-cam-000001-svc".to_owned()), "{names:?}");
    assert_eq!(names.iter().filter(|name| name.starts_with("akri-0cam-")).count(), 2, "{names:?}");
    let long = "c".repeat(56) + "-000001";
    let pod = pods.iter().find(|pod| pod.labels()["akri.sh/instance"] == long).unwrap();
    assert!(pod.labels().values().all(|value| value.len() <= 63));
}

#[tokio::test] // rule 57
async fn slot_changes_cause_no_writes_of_the_controller() {
    let Some(mut site) = Brokers::begin("quiet").await else { return };
    let node = site.node("a").await;
    let cam = site.configure("cam", pod_broker(json!({}))).await;
    site.instance(&cam, "000001", &[&node]).await;
    let pod = site.wait_for_pods(1).await.remove(0);
    site.run(&pod.name_any()).await;
    site.wait_for_configuration_condition("cam", "True", "Running").await;
    let before = site.writes().await;
    for number in 0..1000 {
        let user = if number % 2 == 0 { node.as_str() } else { "" };
        site.change_instance("cam-000001", json!({"deviceUsage": {"cam-000001-0": user}})).await;
    }
    // Whatever the controller had to say of these, it has said by the time it has said something of this.
    site.instance(&cam, "000002", &[]).await;
    site.wait_for_instance_condition("cam-000002", "True", "NoNodes").await;
    let after = site.writes().await;
    let of_first =
        |writes: &[String]| writes.iter().filter(|write| write.contains("000001")).cloned().collect::<Vec<_>>();
    assert_eq!(of_first(&before), of_first(&after));
}
