//! Akri as the chart installs it: the image, the rights, an agent on every node and the controller.

use std::path::Path;

use akri_api::{Configuration, Instance, condition};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::monitoring::{all_names, assert_scraped_are_documented, wait_for_dashboard};
use crate::support::cluster::{BUSYBOX, Installation, NAMESPACE, Story, wait_for};
use crate::support::node::resource_of;
use crate::support::prometheus::{Prometheus, Target, is_installed};

#[test]
fn deployed_handlers_match_the_built_in_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let handlers = ["debug-echo", "mdns", "onvif", "opcua", "udev"];
    let expected = handlers.map(|name| {
        let manifest = std::fs::read_to_string(root.join("handlers").join(name).join("handler.yaml")).unwrap();
        format!("---\n{manifest}")
    });
    let deployed = std::fs::read_to_string(root.join("deploy/handlers.yaml")).unwrap();
    assert!(deployed == expected.concat(), "run 'make manifests'");
}

#[tokio::test]
async fn device_seen_by_two_nodes_serves_pods_of_both() {
    let Some(story) = Story::begin_alone("deployed").await else { return };
    let Some(installed) = Installation::new(&story, &[]).await else { return };
    let spec = json!({
        "discoveryHandler": {"name": "debugEcho", "discoveryDetails": "descriptions: [lamp]"}, "capacity": 2,
    });
    let configuration = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "lamp"}, "spec": spec,
    });
    story.apply_one(configuration).await.unwrap();
    let list = async || story.api::<Instance>().list(&ListParams::default()).await.unwrap().items;
    let found = wait_for("an Instance of two nodes", list, |all| all.len() == 1 && all[0].spec.nodes.len() == 2).await;
    for node in ["node-a", "node-b"] {
        story.wait_for_allocatable(node, &resource_of(&found[0]), 2).await;
        story.wait_for_allocatable(node, "akri.sh/lamp", 1).await;
    }
    for node in ["node-a", "node-b"] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": node},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": BUSYBOX, "command": ["sh", "-c", "env; sleep 100000"],
                    "resources": {"limits": {"akri.sh/lamp": "1"}},
                }],
            },
        });
        story.apply_one(pod).await.unwrap();
        story.wait_for_running(node).await;
        story.wait_for_log(node, "DEBUG_ECHO_DESCRIPTION=lamp").await;
    }
    let used = |all: &Vec<Instance>| {
        let mut used: Vec<&str> = all[0].spec.device_usage.values().map(String::as_str).collect();
        used.sort_unstable();
        used == ["C:0:node-a", "C:0:node-b"]
    };
    wait_for("a slot for each node", list, used).await;
    assert_dashboard_shows_everything(&story).await;
    assert_events_are_transitions(&story, &found[0]).await;
    let logs = installed.logs().await;
    assert!(!logs.contains("orbidden"), "a right is missing: {logs}");
    installed.end().await;
}

/// All pods of the installation, as its PodMonitors find them.
async fn targets(story: &Story) -> Vec<Target> {
    let pods: Api<Pod> = Api::namespaced(story.client(), NAMESPACE);
    let target = |pod: Pod| {
        let pod_name = pod.name_any();
        let (port, scheme) = match &pod_name {
            name if name.starts_with("akri-agent") => (9464, "http"),
            name if name.starts_with("akri-controller") => (9465, "http"),
            _ => (8443, "https"),
        };
        let address = format!("{}:{port}", pod.status.unwrap().pod_ip.unwrap());
        Target { address, scheme, pod: pod_name }
    };
    pods.list(&ListParams::default()).await.unwrap().into_iter().map(target).collect()
}

async fn assert_dashboard_shows_everything(story: &Story) {
    if !is_installed() {
        return;
    }
    let targets = targets(story).await;
    assert!(targets.len() >= 6, "two of each: {targets:?}");
    let prometheus = Prometheus::start(&targets, &story.cluster().entrance().unwrap());
    wait_for_dashboard(&prometheus, &all_names()).await;
    assert_scraped_are_documented(&prometheus);
    let brokers = prometheus.query(r#"akri_controller_brokers{namespace="akri-system"}"#).unwrap();
    assert!(brokers.is_empty(), "the namespace is that of the Configuration: {brokers:?}");
}

/// Each transition is one Event, of the node that makes it, and there is none before or after.
async fn assert_events_are_transitions(story: &Story, instance: &Instance) {
    let events = async || {
        let all = story.api::<Event>().list(&ListParams::default()).await.unwrap().items;
        let of_it = all.into_iter().filter(|event| event.involved_object.uid == instance.metadata.uid);
        let mut reasons: Vec<_> = of_it
            .inspect(|event| assert_eq!(event.type_.as_deref(), Some("Normal"), "{event:?}"))
            .map(|event| (event.reason.unwrap(), event.related.and_then(|pod| pod.name), event.series.is_some()))
            .collect();
        reasons.sort_unstable();
        reasons
    };
    let event =
        |reason: &str, pod: &str| (reason.to_owned(), Some(pod.to_owned()).filter(|pod| !pod.is_empty()), false);
    let mut expected = vec![event("DeviceFound", ""), event("SlotClaimed", "node-a"), event("SlotClaimed", "node-b")];
    wait_for("the device and its users", events, |events| *events == expected).await;
    story.delete_pod("node-b").await;
    expected.push(event("SlotReleased", "node-b"));
    wait_for("the end of a container", events, |events| *events == expected).await;
    let without_device = |grace: &str| {
        let handler = json!({"name": "debugEcho", "discoveryDetails": "descriptions: []"});
        let spec = json!({"discoveryHandler": handler, "capacity": 2, "offlineGracePeriod": grace});
        json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "lamp"}, "spec": spec})
    };
    story.apply_one(without_device("1h")).await.unwrap();
    expected.insert(1, event("DeviceOffline", ""));
    wait_for("a device that is offline", events, |events| *events == expected).await;
    story.delete_pod("node-a").await;
    expected.insert(4, event("SlotReleased", "node-a"));
    wait_for("the end of the other container", events, |events| *events == expected).await;
    story.apply_one(without_device("0s")).await.unwrap();
    expected.insert(2, event("DeviceRemoved", ""));
    wait_for("a device that has gone", events, |events| *events == expected).await;
}

#[tokio::test]
async fn secret_is_read_only_where_rbac_allows() {
    let Some(story) = Story::begin_alone("secret").await else { return };
    let Some(installed) = Installation::new(&story, &[]).await else { return };
    let object = |api: &str, kind: &str, name: &str, more: Value| {
        let mut object = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    };
    let rbac = "rbac.authorization.k8s.io";
    story.apply_one(object("v1", "Secret", "login", json!({"stringData": {"user": "admin"}}))).await.unwrap();
    let reference = json!({"secretKeyRef": {"name": "login", "namespace": story.namespace(), "key": "user"}});
    let handler = json!({
        "name": "debugEcho",
        "discoveryDetails": "descriptions: [lamp]",
        "discoveryProperties": [{"name": "user", "valueFrom": reference}],
    });
    let configuration = json!({"spec": {"discoveryHandler": handler}});
    story.apply_one(object("akri.sh/v0", "Configuration", "locked", configuration)).await.unwrap();
    let unresolved = |configuration: &Configuration| {
        let conditions = configuration.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        condition::find(conditions, "PropertiesResolved").is_some_and(|condition| condition.status == "False")
    };
    story.wait_for_object("locked", "properties that are not resolved", unresolved).await;
    assert!(story.api::<Instance>().list(&ListParams::default()).await.unwrap().items.is_empty());

    let rule = json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["login"], "verbs": ["get", "list", "watch"]});
    story.apply_one(object(&format!("{rbac}/v1"), "Role", "login", json!({"rules": [rule]}))).await.unwrap();
    let binding = json!({
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "login"},
        "subjects": [{"kind": "ServiceAccount", "name": "akri-agent", "namespace": NAMESPACE}],
    });
    story.apply_one(object(&format!("{rbac}/v1"), "RoleBinding", "login", binding)).await.unwrap();
    let list = async || story.api::<Instance>().list(&ListParams::default()).await.unwrap().items;
    wait_for("the device", list, |all| all.len() == 1).await;
    installed.end().await;
}
