//! Brokers that can't run: people see why, and nothing else suffers.

use akri_api::Configuration;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::support::brokers::{Brokers, pod_broker};
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
async fn invalid_broker_spec_disturbs_no_other() {
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
    let large = json!([{"name": "LARGE", "value": "x".repeat(1 << 20)}]);
    let large = pod_broker(json!({"env": large}))["brokerSpec"].clone();
    for (name, wrong, reason) in
        [("bad", both, "exclude each other"), ("large", large, "/spec/brokerSpec/brokerPodSpec: has 1048")]
    {
        site.story.apply_one(object(name, wrong)).await.unwrap();
        let why = wait_for_invalid(&site, name).await;
        assert!(why.contains(reason), "{why}");
        let invalid = site.get::<Configuration>(name).await.unwrap();
        site.instance(&invalid, "000001", &[&node]).await;
    }
    let good = site.configure("good", pod_broker(json!({}))).await;
    site.instance(&good, "000001", &[&node]).await;
    site.wait_for_names::<Pod>(&[&format!("{node}-good-000001-pod")]).await;
    site.configure("large", pod_broker(json!({}))).await;
    let pods = ["good", "large"].map(|name| format!("{node}-{name}-000001-pod"));
    site.wait_for_names::<Pod>(&pods.each_ref().map(String::as_str)).await;
}
