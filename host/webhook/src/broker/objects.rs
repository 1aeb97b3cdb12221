//! The objects that the controller will create for a Configuration, as far as they can be known before a device is found.

use akri_api::Configuration;
use akri_model::names::RESOURCE_PREFIX;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt as _;
use kube::api::{DynamicObject, TypeMeta};
use kube::core::{ApiResource, ObjectMeta};
use serde_json::{Map, Value, json};

/// What stands for the resource of the device in the resource lists of a broker.
const PLACEHOLDER: &str = "{{PLACEHOLDER}}";
/// Lists of containers in a PodSpec.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// An object to try.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    /// The field of the Configuration that holds its spec.
    pub(super) field: &'static str,
    /// Its kind.
    pub(super) resource: ApiResource,
    /// Its spec.
    pub(super) spec: Value,
}

impl Expected {
    fn new<K: kube::Resource<DynamicType = ()>>(field: &'static str, spec: &Map<String, Value>) -> Self {
        Self { field, resource: ApiResource::erase::<K>(&()), spec: Value::Object(spec.clone()) }
    }

    pub(super) fn object(&self) -> DynamicObject {
        let metadata = ObjectMeta { generate_name: Some("akri-dry-run-".to_owned()), ..ObjectMeta::default() };
        let types = TypeMeta { api_version: self.resource.api_version.clone(), kind: self.resource.kind.clone() };
        DynamicObject { types: Some(types), metadata, data: json!({"spec": self.spec}) }
    }

    /// A field of the object as a field of the Configuration.
    pub(super) fn field_of(&self, path: &str) -> String {
        match path.strip_prefix("spec") {
            Some(rest) if rest.is_empty() || rest.starts_with(['.', '[']) => format!("{}{rest}", self.field),
            _ => format!("{}: {path}", self.field),
        }
    }
}

/// What the Configuration makes the controller create.
pub(super) fn expected(configuration: &Configuration) -> Vec<Expected> {
    let spec = &configuration.spec;
    let resource = format!("{RESOURCE_PREFIX}{}", configuration.name_any());
    let broker = spec.broker_spec.clone().unwrap_or_default();
    let pod = broker.broker_pod_spec.as_ref().map(|pod| Expected::new::<Pod>("spec.brokerSpec.brokerPodSpec", pod));
    let job = broker.broker_job_spec.as_ref().map(|job| Expected::new::<Job>("spec.brokerSpec.brokerJobSpec", job));
    let service = |field, service: &Option<Map<String, Value>>| {
        service.as_ref().map(|service| Expected::new::<Service>(field, service))
    };
    let services = [
        service("spec.instanceServiceSpec", &spec.instance_service_spec),
        service("spec.configurationServiceSpec", &spec.configuration_service_spec),
    ];
    let mut found: Vec<Expected> = [pod, job].into_iter().chain(services).flatten().collect();
    for Expected { spec, .. } in &mut found {
        replace_placeholder(spec, &resource);
        if let Some(template) = spec.pointer_mut("/template/spec") {
            replace_placeholder(template, &resource);
        }
    }
    found
}

/// Puts a resource of this Configuration in the place of the placeholder: its own name serves, since no device is known yet.
fn replace_placeholder(pod: &mut Value, resource: &str) {
    for list in CONTAINERS {
        for container in pod.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            for field in ["limits", "requests"] {
                let quantities = container.get_mut("resources").and_then(|resources| resources.get_mut(field));
                let Some(quantities) = quantities.and_then(Value::as_object_mut) else { continue };
                if let Some(quantity) = quantities.remove(PLACEHOLDER) {
                    quantities.insert(resource.to_owned(), quantity);
                }
            }
        }
    }
}

/// The Secrets that a broker's containers would get, each with the field that names it.
pub(crate) fn broker_secrets(configuration: &Configuration) -> Vec<(String, String)> {
    let broker = configuration.spec.broker_spec.clone().unwrap_or_default();
    let mut found = Vec::new();
    if let Some(pod) = broker.broker_pod_spec {
        collect(&Value::Object(pod), "spec.brokerSpec.brokerPodSpec", &mut found);
    }
    if let Some(pod) = broker.broker_job_spec.as_ref().and_then(|job| job.get("template")?.get("spec")) {
        collect(pod, "spec.brokerSpec.brokerJobSpec.template.spec", &mut found);
    }
    found
}

/// Pod specs are opaque here, and name Secrets in a few ways that all share these fields: `secretKeyRef.name`,
/// `secretRef.name`, `secret.secretName`, `secret.name` of projected volumes, and `imagePullSecrets[].name`.
fn collect(value: &Value, field: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let field = format!("{field}.{key}");
                let names = match key.as_str() {
                    "imagePullSecrets" => named_in_list(value, &field),
                    "secretKeyRef" | "secretRef" | "secret" | "nodePublishSecretRef" => named(value, &field),
                    _ => Vec::new(),
                };
                found.extend(names);
                collect(value, &field, found);
            }
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| collect(item, &format!("{field}[{index}]"), found));
        }
        _ => {}
    }
}

fn named(value: &Value, field: &str) -> Vec<(String, String)> {
    let name = value.get("secretName").or_else(|| value.get("name")).and_then(Value::as_str);
    name.map(|name| (field.to_owned(), name.to_owned())).into_iter().collect()
}

fn named_in_list(value: &Value, field: &str) -> Vec<(String, String)> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default().iter().enumerate();
    items.flat_map(|(index, item)| named(item, &format!("{field}[{index}]"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(broker: Value) -> Configuration {
        let spec = json!({"discoveryHandler": {"name": "x"}, "brokerSpec": broker});
        serde_json::from_value(json!({"metadata": {"name": "cam"}, "spec": spec})).unwrap()
    }

    #[test]
    fn the_placeholder_becomes_a_resource_with_its_quantity() {
        let container =
            |resource: &str| json!({"resources": {"limits": {resource: "2"}, "requests": {resource: "2", "cpu": 1}}});
        let pod = |resource: &str| json!({"containers": [container(resource)], "initContainers": [container(resource), {}, 7]});
        let found = expected(&configuration(json!({"brokerPodSpec": pod(PLACEHOLDER)})));
        assert_eq!(found[0].spec, pod("akri.sh/cam"));
        let job = |resource: &str| json!({"template": {"spec": pod(resource)}});
        assert_eq!(expected(&configuration(json!({"brokerJobSpec": job(PLACEHOLDER)})))[0].spec, job("akri.sh/cam"));
    }

    #[test]
    fn fields_of_the_object_are_fields_of_the_configuration() {
        let pod = &expected(&configuration(json!({"brokerPodSpec": {}})))[0];
        assert_eq!(pod.field_of("spec.containers[0].name"), "spec.brokerSpec.brokerPodSpec.containers[0].name");
        assert_eq!(pod.field_of("spec"), "spec.brokerSpec.brokerPodSpec");
        assert_eq!(pod.field_of("metadata.labels"), "spec.brokerSpec.brokerPodSpec: metadata.labels");
    }

    #[test]
    fn secrets_are_found_however_a_pod_names_them() {
        let pod = json!({
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}}],
                "envFrom": [{"secretRef": {"name": "from"}}, {"configMapRef": {"name": "no"}}],
            }],
            "volumes": [
                {"name": "v", "secret": {"secretName": "volume"}},
                {"name": "p", "projected": {"sources": [{"secret": {"name": "projected"}}]}},
                {"name": "c", "csi": {"nodePublishSecretRef": {"name": "csi"}}},
                {"name": "r", "rbd": {"secretRef": {"name": "rbd"}}},
            ],
        });
        let names = |broker: Value| {
            let mut names: Vec<String> =
                broker_secrets(&configuration(broker)).into_iter().map(|(_, name)| name).collect();
            names.sort();
            names
        };
        let expected = ["csi", "env", "from", "projected", "pull", "rbd", "volume"];
        assert_eq!(names(json!({"brokerPodSpec": pod})), expected);
        assert_eq!(names(json!({"brokerJobSpec": {"template": {"spec": pod}}})), expected);
    }
}
