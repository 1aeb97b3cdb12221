//! Edits of brokers reach their Pods (rule 57): a few at a time, and no further if the new ones fail.

use akri_api::{Configuration, Instance, condition};
use akri_brokers::{Annotations, BROKER_HASH, Target, spec_hash};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::brokers::{Brokers, is_going, names_of, pod_broker};
use crate::support::cluster::wait_for;

fn image(pod: &Pod) -> &str {
    pod.spec.as_ref().unwrap().containers[0].image.as_deref().unwrap()
}

fn of_version(version: u32) -> Value {
    pod_broker(json!({"image": format!("broker:{version}")}))
}

/// Three Instances whose brokers run.
async fn three(name: &str) -> Option<Brokers> {
    let mut site = Brokers::begin(name).await?;
    let node = site.node("a").await;
    let cam = site.configure("cam", of_version(1)).await;
    for hash in ["000001", "000002", "000003"] {
        site.instance(&cam, hash, &[&node]).await;
    }
    for pod in names_of(&site.wait_for_pods(3).await) {
        site.run(&pod).await;
    }
    site.wait_for_configuration_condition("cam", "True", "Running").await;
    Some(site)
}

/// Waits until one more Pod has the new image, and all Pods are there.
async fn new_one(site: &Brokers, before: &[String]) -> String {
    let pods = async || site.list::<Pod>().await;
    let is_new = |pod: &Pod| image(pod) == "broker:2" && !before.contains(&pod.name_any()) && !is_going(pod);
    let found = wait_for("the next new broker", pods, |pods| pods.len() == 3 && pods.iter().any(is_new)).await;
    let new: Vec<&Pod> = found.iter().filter(|pod| is_new(pod)).collect();
    assert_eq!(new.len(), 1, "one at a time");
    new[0].name_any()
}

#[tokio::test] // rule 32, rule 57, rule 117
async fn edit_replaces_one_broker_after_the_other() {
    let Some(site) = three("rolled").await else { return };
    let instances = async || site.list::<Instance>().await.iter().map(|i| i.uid().unwrap()).collect::<Vec<_>>();
    let before = instances().await;
    site.configure("cam", of_version(2)).await;
    let mut replaced = Vec::new();
    let configuration = async || site.get::<Configuration>("cam").await.unwrap();
    for left in (0..3).rev() {
        let pod = new_one(&site, &replaced).await;
        let old = site.list::<Pod>().await.iter().filter(|pod| image(pod) == "broker:1").count();
        assert_eq!(old, 2 - replaced.len(), "the others run on");
        site.run(&pod).await;
        replaced.push(pod);
        let run = |object: &Configuration| {
            object
                .status
                .as_ref()
                .and_then(|status| status.brokers.as_ref())
                .is_some_and(|brokers| brokers.running == 3)
        };
        let object = wait_for("all brokers to run", configuration, run).await;
        let ready = condition::find(&object.status.as_ref().unwrap().conditions, "BrokersReady").unwrap();
        let is_new = ready.status == "True" && ready.observed_generation == object.metadata.generation;
        assert!(left == 0 || !is_new, "{left} run the previous spec: {ready:?}");
    }
    site.wait_for_configuration_condition("cam", "True", "Running").await;
    assert_eq!(instances().await, before);
}

#[tokio::test] // rule 57
async fn edit_that_fails_stops_and_goes_on_when_it_is_mended() {
    let Some(site) = three("stopped").await else { return };
    site.configure("cam", of_version(2)).await;
    let first = new_one(&site, &[]).await;
    site.fail(&first, "Error").await;
    let why = site.wait_for_configuration_condition("cam", "False", "RolloutStopped").await.message;
    assert!(why.contains("2 brokers keep the previous spec"), "{why}");
    site.configure("cam", of_version(1)).await;
    let pods = async || site.list::<Pod>().await;
    let old = |pods: &Vec<Pod>| pods.len() == 3 && pods.iter().all(|pod| image(pod) == "broker:1" && !is_going(pod));
    wait_for("the brokers of before", pods, old).await;
    site.run(&first).await;
    site.wait_for_configuration_condition("cam", "True", "Running").await;
}

#[tokio::test] // rule 57
async fn broker_that_never_ran_is_replaced_at_once() {
    let Some(mut site) = Brokers::begin("pending").await else { return };
    let node = site.node("a").await;
    let cam = site.configure("cam", of_version(1)).await;
    for hash in ["000001", "000002", "000003"] {
        site.instance(&cam, hash, &[&node]).await;
    }
    site.wait_for_pods(3).await;
    site.wait_for_instance_condition("cam-000001", "False", "Pending").await;
    site.configure("cam", of_version(2)).await;
    let pods = async || site.list::<Pod>().await;
    wait_for("all new", pods, |pods| pods.len() == 3 && pods.iter().all(|pod| image(pod) == "broker:2")).await;
}

/// As upstream Akri and version 0.1 of the controller left them: without a mark, or with that of the Pod that was made.
#[tokio::test] // rule 118
async fn brokers_of_earlier_programs_run_on_until_an_edit() {
    let Some(mut site) = three("taken-over").await else { return };
    let before = site.list::<Pod>().await;
    let mark = before[0].annotations()[BROKER_HASH].clone();
    site.kill_controller();
    let marks = [Value::Null, spec_hash(&made(&site, &before[1]).await).into(), "of-another-spec".into()];
    for (pod, mark) in before.iter().zip(marks) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {BROKER_HASH: mark}}}));
        site.story.api::<Pod>().patch(&pod.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }
    site.controller = Some(site.start_controller());
    let pods = async || site.list::<Pod>().await;
    let is_marked = |pod: &Pod| pod.annotations().get(BROKER_HASH) == Some(&mark);
    let after = wait_for("marks of today", pods, |pods| pods.len() == 3 && pods.iter().all(is_marked)).await;
    let uids = |pods: &[Pod]| pods.iter().map(|pod| pod.uid().unwrap()).collect::<Vec<_>>();
    assert_eq!(uids(&after)[..2], uids(&before)[..2]);
    assert_ne!(uids(&after)[2], uids(&before)[2], "it was of another spec");
    site.run(&after[2].name_any()).await;
    site.wait_for_configuration_condition("cam", "True", "Running").await;
    site.configure("cam", of_version(2)).await;
    new_one(&site, &[]).await;
}

/// The spec that version 0.1 hashed.
async fn made(site: &Brokers, pod: &Pod) -> Value {
    let cam = site.get::<Configuration>("cam").await.unwrap();
    let spec = cam.spec.broker_spec.unwrap().broker_pod_spec.unwrap();
    let instance = pod.owner_references()[0].name.as_str();
    let node = pod.labels()["akri.sh/target-node"].as_str();
    let target = Target { namespace: site.namespace(), name: instance, uid: "", configuration: "cam", shared: true };
    akri_brokers::pod(&target, &spec, &Annotations::new(), node, 0).0["spec"].clone()
}
