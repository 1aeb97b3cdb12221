//! Helpers of unit tests: reviews as the API server sends them, and an API server that responds as a test demands.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};

use akri_sandbox::{Host, HostConfig, SandboxProgram};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::components::Components;

/// A review of an object; a null object is left out.
pub(crate) fn review(resource: &str, operation: &str, object: &Value, old: &Value) -> Value {
    let kind = match resource {
        "configurations" => "Configuration",
        "discoveryhandlers" => "DiscoveryHandler",
        other => other,
    };
    let typed = |object: &Value| {
        let mut object = object.clone();
        if let Some(fields) = object.as_object_mut() {
            fields.insert("apiVersion".to_owned(), json!("akri.sh/v0"));
            fields.insert("kind".to_owned(), json!(kind));
        }
        object
    };
    let group = if resource == "pods" { "" } else { "akri.sh" };
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "0c9a8d74",
            "kind": {"group": group, "version": "v0", "kind": kind},
            "resource": {"group": group, "version": "v0", "resource": resource},
            "name": object.pointer("/metadata/name").cloned().unwrap_or_else(|| json!("cam")),
            "namespace": "lab",
            "operation": operation,
            "userInfo": {"username": "jo", "groups": ["operators", "system:authenticated"], "extra": {"a": ["b"]}},
            "object": typed(object),
            "oldObject": typed(old),
            "dryRun": false,
        },
    })
}

/// The requests that the API server received: method, path with query, body.
pub(crate) type ReceivedRequests = Arc<Mutex<Vec<(String, String, Value)>>>;

/// A client of an API server that answers by a function of method, path with query, and body.
pub(crate) fn api(
    answer: impl Fn(&str, &str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> (Client, ReceivedRequests) {
    let requests = ReceivedRequests::default();
    let (answer, log) = (Arc::new(answer), requests.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (answer, log) = (answer.clone(), log.clone());
        async move {
            let (method, path) = (request.method().to_string(), request.uri().to_string());
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let (code, value) = answer(&method, &path, &body);
            log.lock().unwrap().push((method, path, body));
            let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
            Ok::<_, Infallible>(response.body(Body::from(value.to_string().into_bytes())).unwrap())
        }
    });
    (Client::new(service, "default"), requests)
}

/// The settings of a host that starts no processes.
pub(crate) fn host_config(directory: &Path) -> HostConfig {
    let (sysfs, udev_data) = (directory.to_owned(), directory.to_owned());
    let program = SandboxProgram { path: "/nonexistent".into(), arguments: Vec::new(), memory_bytes: 0 };
    HostConfig { program, cache_dir: None, precompiled: None, sysfs, udev_data }
}

/// The components of an empty directory.
pub(crate) fn no_components() -> Components {
    let directory = tempfile::tempdir().unwrap().keep();
    Components::new(Host::new(host_config(&directory)).unwrap(), directory)
}

/// Any JSON of some depth.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-zA-Z{}/~]{0,8}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}
