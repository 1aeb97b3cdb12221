//! Brokers that can't run: people see why, and nothing else suffers.

use akri_api::{Configuration, Instance};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::support::brokers::{Brokers, names_of, pod_broker};
use crate::support::cluster::wait_for;

/// Waits until a Configuration is invalid, and returns why.
async fn wait_for_invalid(site: &Brokers, name: &str) -> String {
    let ready = async || {
        let status = site.get::<Configuration>(name).await.unwrap().status.unwrap_or_default();
        status.conditions.into_iter().find(|condition| condition.type_ == "Ready")
    };
    let is_invalid = |found: &Option<akri_api::condition::Condition>| {
        found.as_ref().is_some_and(|condition| condition.reason == "InvalidConfiguration")
    };
    wait_for("an invalid Configuration", ready, is_invalid).await.unwrap().message
}

#[tokio::test] // rule 52
async fn image_that_does_not_exist_is_named_and_waited_for() {
    let Some(mut site) = Brokers::begin("no-image").await else { return };
    let node = site.node("a").await;
    let cam = site.configure("cam", pod_broker(json!({"image": "registry.example/missing:1"}))).await;
    site.instance(&cam, "000001", &[&node]).await;
    let pod = site.wait_for_pods(1).await.remove(0);
    let waiting = |reason: &str| {
        let message = "Back-off pulling image \"registry.example/missing:1\"";
        json!([{
            "name": "main", "image": "registry.example/missing:1", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": reason, "message": message}},
        }])
    };
    for reason in ["ErrImagePull", "ImagePullBackOff"] {
        let status = json!({"phase": "Pending", "containerStatuses": waiting(reason)});
        site.set_status(&pod.name_any(), status).await;
        let why = async || site.wait_for_instance_condition("cam-000001", "False", "Pending").await.message;
        let is_named = |why: &String| why.contains(reason) && why.contains("registry.example/missing:1");
        wait_for("the image in the condition", why, is_named).await;
    }
    site.kill_controller();
    site.controller = Some(site.start_controller());
    site.instance(&cam, "000002", &[]).await;
    site.wait_for_instance_condition("cam-000002", "True", "NoNodes").await;
    assert_eq!(site.wait_for_pods(1).await[0].uid(), pod.uid(), "a Pod that waits is not replaced");
}

#[tokio::test] // rule 54
async fn broker_spec_that_is_no_object_disturbs_no_other() {
    let Some(mut site) = Brokers::begin("syntax").await else { return };
    let node = site.node("a").await;
    let object = |name: &str, spec: Value| {
        json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": name},
            "spec": {"discoveryHandler": {"name": "debugEcho"}, "brokerSpec": spec},
        })
    };
    for wrong in [json!("containers: ["), json!([]), json!({"brokerPodSpec": "containers: ["})] {
        let refused = site.story.apply_one(object("bad", wrong.clone())).await.unwrap_err().to_string();
        assert!(refused.contains("brokerSpec"), "{wrong}: {refused}");
    }
    let both = json!({"brokerPodSpec": {"containers": []}, "brokerJobSpec": {"template": {}}});
    site.story.apply_one(object("bad", both)).await.unwrap();
    assert!(wait_for_invalid(&site, "bad").await.contains("exclude each other"));
    let bad = site.get::<Configuration>("bad").await.unwrap();
    site.instance(&bad, "000001", &[&node]).await;
    let good = site.configure("good", pod_broker(json!({}))).await;
    site.instance(&good, "000001", &[&node]).await;
    site.wait_for_names::<Pod>(&[&format!("{node}-good-000001-pod")]).await;
}

#[tokio::test] // rule 54
async fn broker_spec_of_a_mebibyte_is_refused() {
    let Some(mut site) = Brokers::begin("large").await else { return };
    let node = site.node("a").await;
    let large = json!([{"name": "LARGE", "value": "x".repeat(1 << 20)}]);
    let cam = site.configure("cam", pod_broker(json!({"env": large}))).await;
    site.instance(&cam, "000001", &[&node]).await;
    let why = wait_for_invalid(&site, "cam").await;
    assert!(why.contains("/spec/brokerSpec/brokerPodSpec: has 1048") && why.contains("ConfigMap"), "{why}");
    assert!(site.list::<Pod>().await.is_empty());
    site.configure("cam", pod_broker(json!({}))).await;
    site.wait_for_names::<Pod>(&[&format!("{node}-cam-000001-pod")]).await;
    assert_eq!(names_of(&site.list::<Instance>().await), ["cam-000001"]);
}
