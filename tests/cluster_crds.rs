//! The kinds in a real API server: what it takes, what it keeps, what it refuses and what it shows.

use akri_api::{Configuration, Instance};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::support::cluster::{Story, wait_for};
use crate::support::node::Node;

/// Defines the kinds as the program prints them.
async fn define(story: &Story) {
    let printed = Node::new().akri(&["crds"]);
    assert!(printed.status.success());
    let definitions = story.apply(&String::from_utf8(printed.stdout).unwrap()).await;
    assert_eq!(definitions.len(), 3);
    for kind in ["configurations", "instances", "discoveryhandlers"] {
        let served =
            async || story.client().request_text(get(&format!("/apis/akri.sh/v0/{kind}"), "*/*")).await.is_ok();
        wait_for(kind, served, |served| *served).await;
    }
}

fn get(path: &str, accept: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).header("Accept", accept).body(Vec::new()).unwrap()
}

/// Returns whether everything that was sent is there; the API server may have added defaults.
fn keeps(stored: &Value, sent: &Value) -> bool {
    match (stored, sent) {
        (Value::Object(stored), Value::Object(sent)) => {
            sent.iter().all(|(key, sent)| stored.get(key).is_some_and(|stored| keeps(stored, sent)))
        }
        (Value::Array(stored), Value::Array(sent)) => {
            stored.len() == sent.len() && stored.iter().zip(sent).all(|(stored, sent)| keeps(stored, sent))
        }
        _ => stored == sent,
    }
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "akri.sh/v0", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Specs with every field that upstream Akri has, in the forms its users write them.
fn upstream_configurations() -> Vec<Value> {
    let ports =
        json!({"type": "ClusterIP", "ports": [{"name": "grpc", "port": 80, "protocol": "TCP", "targetPort": 8083}]});
    let pod = json!({
        "containers": [{
            "name": "broker",
            "image": "broker:1",
            "env": [{"name": "FORMAT", "value": "YUYV"}, {"name": "IDENTIFIER", "value": null}],
            "securityContext": {"privileged": true},
            "resources": {"limits": {"{{PLACEHOLDER}}": "1"}, "requests": {"{{PLACEHOLDER}}": "1"}},
            "volumeMounts": [{"name": "credentials", "mountPath": "/etc/pki", "readOnly": false}],
        }],
        "volumes": [{"name": "credentials", "secret": {"secretName": "login", "items": [{"key": "k", "path": "a/b"}]}}],
    });
    let job = json!({
        "template": {"spec": {"containers": [{"name": "broker", "image": "broker:1"}], "restartPolicy": "Never"}},
        "backoffLimit": 4,
    });
    let properties = json!([
        {"name": "without_a_value"},
        {"name": "common", "value": "plain text"},
        {"name": "user", "valueFrom": {"secretKeyRef": {"name": "login", "key": "user", "optional": false}}},
        {"name": "token", "valueFrom": {"secretKeyRef": {"name": "login", "namespace": "other", "key": "t", "optional": true}}},
        {"name": "option", "valueFrom": {"configMapKeyRef": {"name": "options", "key": "o"}}},
    ]);
    let udev =
        json!({"name": "udev", "discoveryDetails": "udevRules:\n- 'KERNEL==\"video[0-9]*\"'\npermissions: rwm\n"});
    vec![
        json!({
            "discoveryHandler": udev, "brokerSpec": {"brokerPodSpec": pod}, "instanceServiceSpec": ports,
            "configurationServiceSpec": ports, "brokerProperties": {"RESOLUTION": "1280x720"}, "capacity": 5,
        }),
        json!({
            "discoveryHandler": {"name": "debugEcho", "discoveryDetails": "descriptions: [a]\n", "discoveryProperties": properties},
            "brokerSpec": {"brokerJobSpec": job}, "brokerProperties": {}, "capacity": 2,
        }),
        json!({"discoveryHandler": {"name": "onvif", "discoveryDetails": ""}}),
        json!({
            "discoveryHandler": {"name": "opcua", "discoveryProperties": null}, "brokerSpec": null,
            "instanceServiceSpec": null, "configurationServiceSpec": null,
        }),
    ]
}

#[tokio::test]
async fn upstream_fields_are_preserved() {
    let Some(story) = Story::begin("fields").await else { return };
    define(&story).await;
    for (number, spec) in upstream_configurations().iter().enumerate() {
        // What is null is nothing said, and the API server drops it where it is not ours.
        let stored = story.apply_one(object("Configuration", &format!("c{number}"), spec)).await.unwrap();
        assert!(keeps(&stored.data["spec"], &without_nulls(spec)), "{spec:#}\nbecame\n{:#}", stored.data["spec"]);
        let typed: Configuration = story.api().get(&stored.name_any()).await.unwrap();
        assert_eq!(typed.spec.capacity, spec["capacity"].as_i64().unwrap_or(1));
    }
    let spec = json!({
        "configurationName": "c0", "capacity": 2, "cdiName": "akri.sh/c0=ffffff", "shared": true, "nodes": ["b", "a"],
        "deviceUsage": {"c0-ffffff-0": "", "c0-ffffff-1": "C:0:b"}, "brokerProperties": {"WIDTH": "800"},
    });
    let stored = story.apply_one(object("Instance", "c0-ffffff", &spec)).await.unwrap();
    assert!(keeps(&stored.data["spec"], &spec), "{:#}", stored.data["spec"]);
    let instance: Instance = story.api().get("c0-ffffff").await.unwrap();
    assert!(instance.spec.shared);
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let kept = object.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

#[tokio::test]
async fn malformed_objects_are_refused_with_the_field() {
    let Some(story) = Story::begin("forms").await else { return };
    define(&story).await;
    for (kind, spec, field) in [
        ("Configuration", json!({}), "spec.discoveryHandler"),
        ("Configuration", json!({"discoveryHandler": {}}), "spec.discoveryHandler.name"),
        ("Configuration", json!({"discoveryHandler": {"name": "x"}, "capacity": "two"}), "spec.capacity"),
        ("Configuration", json!({"discoveryHandler": {"name": "x"}, "resources": "some"}), "spec.resources"),
        (
            "Configuration",
            json!({"discoveryHandler": {"name": "x", "discoveryProperties": [{"name": "a-b"}]}}),
            "spec.discoveryHandler.discoveryProperties",
        ),
        (
            "Configuration",
            json!({"discoveryHandler": {"name": "x", "discoveryProperties": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]}}),
            "spec.discoveryHandler.discoveryProperties: duplicate entries for key",
        ),
        ("Configuration", json!({"discoveryHandler": {"name": "x"}, "capacity": 1001}), "spec.capacity"),
        ("Configuration", json!({"discoveryHandler": {"name": ""}}), "spec.discoveryHandler.name"),
        ("Instance", json!({"configurationName": "c", "cdiName": "c"}), "spec.capacity"),
        ("Instance", json!({"configurationName": "c", "cdiName": "c", "capacity": 10_001}), "spec.capacity"),
        ("DiscoveryHandler", json!({"component": {"file": "x"}, "limits": {"devices": 0}}), "spec.limits.devices"),
        ("DiscoveryHandler", json!({"component": {"file": "x"}, "limits": {"memory": "64MB"}}), "spec.limits.memory"),
        ("DiscoveryHandler", json!({}), "spec.component"),
    ] {
        let refused = story.apply_one(object(kind, "wrong", &spec)).await.unwrap_err().to_string();
        assert!(refused.contains(field), "{spec} was refused with: {refused}");
    }
}

#[tokio::test]
async fn kubectl_columns_show_observed_state() {
    let Some(story) = Story::begin("tables").await else { return };
    define(&story).await;
    story.apply_one(object("Configuration", "cam", &json!({"discoveryHandler": {"name": "none-such"}}))).await.unwrap();
    for (kind, columns) in [
        (
            "configurations",
            vec![
                "Name",
                "Handler",
                "Capacity",
                "Instances",
                "Brokers",
                "Running",
                "Ready",
                "Complete",
                "Age",
                "Discovers",
            ],
        ),
        ("instances", vec!["Name", "Config", "Shared", "Nodes", "Online", "Brokers", "Running", "Why", "Age"]),
    ] {
        let path = format!("/apis/akri.sh/v0/namespaces/{}/{kind}", story.namespace());
        let request = get(&path, "application/json;as=Table;v=v1;g=meta.k8s.io");
        let table: Value = serde_json::from_str(&story.client().request_text(request).await.unwrap()).unwrap();
        let names: Vec<&str> =
            table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(names, columns);
        if kind == "configurations" {
            assert_eq!(
                table["rows"][0]["cells"].as_array().unwrap()[..3],
                [json!("cam"), json!("none-such"), json!(1)]
            );
        }
    }
}
