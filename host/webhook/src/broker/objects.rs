//! The objects that the controller will create for a Configuration, for an Instance that stands for any.

use akri_api::Configuration;
use akri_brokers::{Manifest, Owner, Target};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt as _;
use kube::api::{DynamicObject, TypeMeta};
use kube::core::{ApiResource, ObjectMeta};
use serde_json::{Value, json};

/// A node that stands for any.
const NODE: &str = "node";

/// Keys of what names a Secret in a pod spec.
const SECRET_KEYS: [&str; 6] =
    ["imagePullSecrets", "secretKeyRef", "secretRef", "secret", "nodePublishSecretRef", "azureFile"];

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
    fn new<K: kube::Resource<DynamicType = ()>>(field: &'static str, mut object: Value) -> Self {
        let spec = object.get_mut("spec").map(Value::take).unwrap_or_default();
        Self { field, resource: ApiResource::erase::<K>(&()), spec }
    }

    /// Returns the object with a name of its own: the one of the real object may be taken.
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

/// Returns the objects that the controller creates for the Configuration.
pub(super) fn expected(configuration: &Configuration) -> Vec<Expected> {
    let (spec, name) = (&configuration.spec, configuration.name_any());
    let (namespace, instance) = (configuration.namespace().unwrap_or_default(), format!("{name}-000000"));
    let target = Target { namespace: &namespace, name: &instance, uid: "", configuration: &name, shared: true };
    let of_configuration = Owner { kind: "Configuration", name: &name, uid: "" };
    let service = |field, owner, service: &Option<Manifest>| {
        let object = service.as_ref().map(|spec| akri_brokers::service(&namespace, owner, spec).0);
        object.map(|object| Expected::new::<Service>(field, object))
    };
    let brokers = spec.broker_spec.clone().unwrap_or_default();
    let annotations = &brokers.broker_pod_annotations;
    let pod = brokers.broker_pod_spec.map(|pod| {
        let pod = akri_brokers::pod(&target, &pod, annotations, NODE, 0).0;
        Expected::new::<Pod>("spec.brokerSpec.brokerPodSpec", pod)
    });
    let job = brokers.broker_job_spec.map(|job| {
        Expected::new::<Job>("spec.brokerSpec.brokerJobSpec", akri_brokers::job(&target, &job, &instance).0)
    });
    let services = [
        service("spec.instanceServiceSpec", target.owner(), &spec.instance_service_spec),
        service("spec.configurationServiceSpec", of_configuration, &spec.configuration_service_spec),
    ];
    [pod, job].into_iter().chain(services).flatten().collect()
}

/// The Secrets that a broker's containers would get, each with the field that names it.
pub(crate) fn broker_secrets(configuration: &Configuration) -> Vec<(String, String)> {
    let broker = configuration.spec.broker_spec.clone().unwrap_or_default();
    let mut found = Vec::new();
    if let Some(pod) = broker.broker_pod_spec {
        collect(&Value::Object(pod), "", "spec.brokerSpec.brokerPodSpec", &mut found);
    }
    if let Some(pod) = broker.broker_job_spec.as_ref().and_then(|job| job.get("template")?.get("spec")) {
        collect(pod, "", "spec.brokerSpec.brokerJobSpec.template.spec", &mut found);
    }
    found
}

/// Pod specs are opaque here, and name Secrets in a few ways that all share these fields: `secretKeyRef.name`,
/// `secretRef.name`, `secret.secretName`, `secret.name` of projected volumes, and `imagePullSecrets[].name`. An item of a list has the
/// key of that list.
fn collect(value: &Value, key: &str, field: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            if SECRET_KEYS.contains(&key) {
                let name = fields.get("secretName").or_else(|| fields.get("name")).and_then(Value::as_str);
                found.extend(name.map(|name| (field.to_owned(), name.to_owned())));
            }
            fields.iter().for_each(|(key, value)| collect(value, key, &format!("{field}.{key}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| collect(item, key, &format!("{field}[{index}]"), found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(broker: Value) -> Configuration {
        let spec = json!({"discoveryHandler": {"name": "x"}, "brokerSpec": broker});
        serde_json::from_value(json!({"metadata": {"name": "cam"}, "spec": spec})).unwrap()
    }

    #[test]
    fn brokers_ask_for_a_device_as_the_controllers_do() {
        let pod = json!({"containers": [{"name": "b", "resources": {"limits": {"{{PLACEHOLDER}}": "2"}}}]});
        let limit = |found: &[Expected], spec: &str| {
            let path = format!("{spec}/containers/0/resources/limits/akri.sh~1cam-000000");
            found[0].spec.pointer(&path).cloned()
        };
        let found = expected(&configuration(json!({"brokerPodSpec": pod})));
        assert_eq!(limit(&found, ""), Some(json!("2")));
        assert!(found[0].spec.pointer("/affinity/nodeAffinity").is_some(), "{:?}", found[0].spec);
        let found = expected(&configuration(json!({"brokerJobSpec": {"template": {"spec": pod}}})));
        assert_eq!(limit(&found, "/template/spec"), Some(json!("2")));
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
                {"name": "a", "azureFile": {"secretName": "azure", "shareName": "s"}},
            ],
        });
        let names = |broker: Value| {
            let mut names: Vec<String> =
                broker_secrets(&configuration(broker)).into_iter().map(|(_, name)| name).collect();
            names.sort();
            names
        };
        let expected = ["azure", "csi", "env", "from", "projected", "pull", "rbd", "volume"];
        assert_eq!(names(json!({"brokerPodSpec": pod})), expected);
        assert_eq!(names(json!({"brokerJobSpec": {"template": {"spec": pod}}})), expected);
    }
}
