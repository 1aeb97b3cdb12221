//! Akri installed on a real cluster: the webhook between users and the API server, and the way out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_api::{Configuration, Instance};
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};

use crate::support::cluster::{BUSYBOX, Installation, NAMESPACE, Story, kubernetes_version, wait_for};

/// The nodes of the cluster.
const NODES: [&str; 2] = ["node-a", "node-b"];

/// A Configuration as YAML.
fn configuration(story: &Story, name: &str, spec: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": story.namespace()});
    json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": metadata, "spec": spec})
}

fn lamp() -> Value {
    json!({"discoveryHandler": {"name": "debugEcho", "discoveryDetails": "descriptions: [lamp]"}})
}

/// Applies an object with `kubectl`, and returns its error.
fn apply(installed: &Installation<'_>, object: &Value, user: Option<&str>) -> Result<(), String> {
    let mut arguments = vec!["apply", "--validate=false", "--filename=-"];
    arguments.extend(user.iter().flat_map(|user| ["--as", *user]));
    let output = installed.try_kubectl(&arguments, &object.to_string());
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[track_caller]
fn assert_refused(result: Result<(), String>, sentence: &str) {
    let error = result.unwrap_err();
    let is_refusal = error.contains("denied the request") || error.contains("is invalid: ");
    assert!(is_refusal && error.contains(sentence), "expected '{sentence}' in: {error}");
}

#[tokio::test] // rule 63, rule 120
async fn objects_of_users_are_checked_before_they_are_stored() {
    let Some(story) = Story::begin_alone("webhook").await else { return };
    let Some(installed) = Installation::new(&story, &[]).await else { return };
    assert_mistakes_are_refused(&story, &installed);
    assert_secrets_are_guarded(&story, &installed);
    assert_metadata_pass_without_webhook(&story, &installed).await;
    installed.end().await;
}

/// Finalizers have to be removable while nothing answers. API servers before 1.28 ask the webhook for that, too.
async fn assert_metadata_pass_without_webhook(story: &Story, installed: &Installation<'_>) {
    apply(installed, &configuration(story, "stays", &lamp()), None).unwrap();
    installed.kubectl(&["scale", "deployment/akri-webhook", "--replicas=0", "--namespace", NAMESPACE], "");
    let create = async || apply(installed, &configuration(story, "new", &lamp()), None);
    let is_missed = |result: &Result<(), String>| result.as_ref().is_err_and(|error| error.contains("failed calling"));
    wait_for("a refusal without the webhook", create, is_missed).await.unwrap_err();
    if kubernetes_version().minor >= 28 {
        let metadata = ["label", "configurations.akri.sh/stays", "room=hall", "--namespace", story.namespace()];
        installed.kubectl(&metadata, "");
    }
}

fn assert_mistakes_are_refused(story: &Story, installed: &Installation<'_>) {
    let try_spec = |spec: Value| apply(installed, &configuration(story, "cam", &spec), None);

    let mut capacity = lamp();
    capacity["capacity"] = json!(0);
    assert_refused(try_spec(capacity), "spec.capacity");
    // The handler's own validation, with the line in the details.
    let rules = "udevRules:\n- 'KERNEL==\"video*\"'\n- 'KERNAL==\"x\"'\n";
    let udev = json!({"discoveryHandler": {"name": "udev", "discoveryDetails": rules}});
    assert_refused(try_spec(udev), "spec.discoveryHandler.discoveryDetails.udevRules[1]: line 3: ");
    // A field that no Pod has, and a Pod that lacks one.
    let broker = |container: Value| {
        let mut spec = lamp();
        spec["brokerSpec"] = json!({"brokerPodSpec": {"containers": [container]}});
        spec
    };
    let misspelt = broker(json!({"name": "b", "image": "b:1", "comand": ["x"]}));
    assert_refused(try_spec(misspelt), "spec.brokerSpec.brokerPodSpec.containers[0].comand: unknown field");
    assert_refused(
        try_spec(broker(json!({"image": "b:1"}))),
        "spec.brokerSpec.brokerPodSpec.containers[0].name: Required",
    );
    let mut service = lamp();
    service["instanceServiceSpec"] = json!({"ports": [{"port": 0}]});
    assert_refused(try_spec(service), "spec.instanceServiceSpec.ports[0].port: Invalid value");
    let handler = json!({
        "apiVersion": "akri.sh/v0", "kind": "DiscoveryHandler", "metadata": {"name": "other"},
        "spec": {"component": {"file": "../x.wasm"}},
    });
    assert_refused(apply(installed, &handler, None), "spec.component.file: ");
    let limits = json!({"limits": {"{{PLACEHOLDER}}": "1"}});
    try_spec(broker(json!({"name": "b", "image": "b:1", "resources": limits}))).unwrap();
}

/// A user who references a Secret has to be allowed to read it.
fn assert_secrets_are_guarded(story: &Story, installed: &Installation<'_>) {
    let namespace = story.namespace();
    let kubectl = |command: &str| {
        let arguments: Vec<&str> = command.split(' ').chain(["--namespace", namespace]).collect();
        installed.kubectl(&arguments, "");
    };
    kubectl("create secret generic login --from-literal=user=admin");
    kubectl("create role operator --verb=get,create,update,patch --resource=configurations.akri.sh");
    kubectl("create rolebinding operator --role=operator --user=jo");
    let mut spec = lamp();
    apply(installed, &configuration(story, "plain", &spec), Some("jo")).unwrap();
    let reference = json!({"secretKeyRef": {"name": "login", "namespace": namespace, "key": "user"}});
    spec["discoveryHandler"]["discoveryProperties"] = json!([{"name": "user", "valueFrom": reference}]);
    let with_secret = configuration(story, "secret", &spec);
    let field =
        "spec.discoveryHandler.discoveryProperties[0].valueFrom.secretKeyRef: user 'jo' may not get the Secret 'login'";
    assert_refused(apply(installed, &with_secret, Some("jo")), field);
    kubectl("create role login --verb=get --resource=secrets --resource-name=login");
    kubectl("create rolebinding login --role=login --user=jo");
    apply(installed, &with_secret, Some("jo")).unwrap();
}

#[tokio::test] // rule 63
async fn certificate_is_renewed_while_requests_come() {
    let Some(story) = Story::begin_alone("certificate").await else { return };
    let values = ["webhookConfiguration.certificate.lifetime=60s"];
    let Some(installed) = Installation::new(&story, &values).await else { return };
    let secrets: Api<Secret> = Api::namespaced(story.client(), NAMESPACE);
    let certificate = async || secrets.get("akri-webhook-tls").await.unwrap().data.unwrap()["tls.crt"].0.clone();
    let first = certificate().await;
    let api: Api<Configuration> = story.api();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let valid: Configuration = serde_json::from_value(configuration(&story, "valid", &lamp())).unwrap();
    let mut invalid = valid.clone();
    invalid.spec.capacity = 0;
    let ask = async || {
        api.create(&dry_run, &valid).await.unwrap();
        let refused = api.create(&dry_run, &invalid).await.unwrap_err().to_string();
        assert!(refused.contains("spec.capacity"), "{refused}");
    };
    let renewed = async || {
        ask().await;
        certificate().await != first
    };
    wait_for("a new certificate", renewed, |renewed| *renewed).await;
    for _ in 0..100 {
        ask().await; // while the replicas take it up
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let logs = installed.logs().await;
    assert!(
        logs.matches("serving with a new certificate").count() >= 4,
        "each replica a first and a second one: {logs}"
    );
    installed.end().await;
}

#[tokio::test] // rule 66
async fn rolling_update_interrupts_no_container() {
    let Some(story) = Story::begin_alone("rolling").await else { return };
    let Some(installed) = Installation::new(&story, &["webhookConfiguration.enabled=false"]).await else { return };
    let name = story.namespace(); // names of resources are the cluster's
    let mut spec = lamp();
    spec["capacity"] = json!(2);
    story.apply_one(configuration(&story, name, &spec)).await.unwrap();
    for node in NODES {
        story.wait_for_allocatable(node, &format!("akri.sh/{name}"), 1).await;
        let limits = json!({"limits": {format!("akri.sh/{name}"): "1"}});
        let container = json!({"name": "main", "image": BUSYBOX, "command": ["sleep", "100000"], "resources": limits});
        let spec = json!({"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": node}, "spec": spec});
        story.apply_one(pod).await.unwrap();
        story.wait_for_running(node).await;
    }
    let used = async || {
        let found = story.api::<Instance>().list(&ListParams::default()).await.unwrap().items;
        found.into_iter().map(|instance| (instance.metadata.uid, instance.spec.device_usage)).collect::<Vec<_>>()
    };
    let both = |used: &Vec<(Option<String>, BTreeMap<String, String>)>| {
        used.len() == 1 && used[0].1.values().filter(|usage| !usage.is_empty()).count() == 2
    };
    let before = wait_for("both claims", used, both).await;
    let events = async || {
        let all = story.api::<Event>().list(&ListParams::default()).await.unwrap().items;
        let normal = all.into_iter().filter(|event| event.type_.as_deref() == Some("Normal"));
        normal.filter(|event| event.involved_object.kind.as_deref() == Some("Instance")).collect::<Vec<_>>()
    };
    let recorded = wait_for("an Event of the device and of each claim", events, |events| events.len() == 3).await;
    let agents = async || {
        let pods: Api<Pod> = Api::namespaced(story.client(), NAMESPACE);
        let agents = ListParams::default().labels("app.kubernetes.io/name=akri-agent");
        pods.list(&agents).await.unwrap().into_iter().filter_map(|pod| pod.metadata.uid).collect::<BTreeSet<_>>()
    };
    let old = agents().await;
    let in_namespace = ["--namespace", NAMESPACE];
    installed.kubectl(&[&["rollout", "restart", "daemonset/akri-agent"][..], &in_namespace].concat(), "");
    wait_for("new agents", agents, |new| new.len() == 2 && new.is_disjoint(&old)).await;
    for node in NODES {
        story.wait_for_allocatable(node, &format!("akri.sh/{name}"), 1).await;
        let pod = story.wait_for_running(node).await;
        let containers = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        assert!(containers.iter().all(|container| container.restart_count == 0), "{containers:?}");
    }
    assert_eq!(used().await, before);
    assert_eq!(events().await, recorded, "a restart is no transition");
    installed.end().await;
}

#[tokio::test] // rule 66, rule 120
async fn uninstallation_leaves_nothing() {
    let Some(story) = Story::begin_alone("uninstall").await else { return };
    let Some(installed) = Installation::new(&story, &[]).await else { return };
    assert_eq!(installed.differences(), "");
    apply(&installed, &configuration(&story, "lamp", &lamp()), None).unwrap();
    let instances = async || story.api::<Instance>().list(&ListParams::default()).await.unwrap().items;
    wait_for("the device", instances, |all| all.len() == 1).await;
    installed.uninstall().await;
    // Users' Configurations are theirs. They go without an agent or a webhook, and their Instances with them.
    assert_eq!(instances().await.len(), 1);
    installed.kubectl(&["delete", "configurations.akri.sh", "--all", "--namespace", story.namespace()], "");
    wait_for("no Instance", instances, Vec::is_empty).await;
    let kinds = "clusterroles,clusterrolebindings,validatingwebhookconfigurations,discoveryhandlers.akri.sh";
    let left = installed.kubectl(&["get", kinds, "--selector=app.kubernetes.io/part-of=akri", "--output=name"], "");
    assert_eq!(left, "");
    assert_eq!(installed.kubectl(&["get", "discoveryhandlers.akri.sh", "--output=name"], ""), "");
    let Some(again) = Installation::new(&story, &[]).await else { return };
    again.end().await;
}
