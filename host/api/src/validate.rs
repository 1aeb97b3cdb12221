//! Validation of objects beyond their schema. The agent, the webhook and the command line all use it.

use std::collections::{BTreeMap, BTreeSet};

use akri_brokers::needs_instance;
use akri_model::configuration::MAX_CAPACITY;
use akri_model::environment;
use akri_model::names::MAX_CONFIGURATION_NAME;
use akri_model::remote::{MAX_NAME, is_handler_name};
use akri_model::resolve::{MAX_PROPERTIES, MAX_VALUE, is_registry_login};
use kube::ResourceExt;

use crate::configuration::{
    BrokerSpec, Configuration, ConfigurationSpec, DiscoveryProperty, KeyRef, Resources, ValueFrom,
};
use crate::document::{MAX_DETAILS, pointer_token};
use crate::duration::parse_duration;
use crate::handler::DiscoveryHandler;
use crate::{component, discover_on, grants, limits, templates};

/// Longest spec of a broker or a Service, in bytes of JSON. Each device has a copy of it in the API server.
const MAX_BROKER: usize = 256 << 10;

/// Bytes of all `brokerProperties`, names and values: each Instance has them.
const MAX_BROKER_PROPERTIES: usize = 16 << 10;

/// A problem of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// JSON pointer into the object, such as `/spec/capacity`.
    pub path: String,
    /// The problem and the correction.
    pub message: String,
}

impl FieldError {
    /// At a JSON pointer, "" for the whole object.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// The problems of an object, as they are found.
#[derive(Debug, Default)]
pub(crate) struct FieldErrors(pub(crate) Vec<FieldError>);

impl FieldErrors {
    /// Adds a problem at a JSON pointer, "" for the whole object.
    pub(crate) fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError::new(path, message));
    }

    /// Returns an object if it has no problems.
    pub(crate) fn check<T>(self, object: T) -> Result<T, Vec<FieldError>> {
        if self.0.is_empty() { Ok(object) } else { Err(self.0) }
    }
}

/// Returns an object if it has no problems.
///
/// # Errors
/// All problems in one line.
pub fn valid<T>(object: T, problems: fn(&T) -> Vec<FieldError>) -> Result<T, String> {
    let line = |error: &FieldError| format!("{}: {}", error.path, error.message);
    let errors: Vec<String> = problems(&object).iter().map(line).collect();
    if errors.is_empty() { Ok(object) } else { Err(errors.join("; ")) }
}

/// Returns all problems of a Configuration, in the order of its fields.
pub fn configuration(object: &Configuration) -> Vec<FieldError> {
    let spec = &object.spec;
    let mut errors = FieldErrors::default();
    check_name(&object.name_any(), &mut errors);
    check_namespace("/metadata/namespace", object.metadata.namespace.as_deref().unwrap_or("default"), &mut errors);
    match spec.discovery_handler.name.as_str() {
        name if name.trim().is_empty() => errors.add("/spec/discoveryHandler/name", "names no discovery handler"),
        name if name.len() > MAX_NAME => {
            errors.add("/spec/discoveryHandler/name", format!("has {} bytes, more than {MAX_NAME}", name.len()));
        }
        _ => {}
    }
    check_details(&spec.discovery_handler.discovery_details, &mut errors);
    check_properties(spec.discovery_handler.discovery_properties.as_deref().unwrap_or_default(), &mut errors);
    if !(1..=i64::from(MAX_CAPACITY)).contains(&spec.capacity) {
        errors.add("/spec/capacity", format!("{} is not between 1 and {MAX_CAPACITY}", spec.capacity));
    }
    if let Some(BrokerSpec { broker_pod_spec: Some(_), broker_job_spec: Some(_), .. }) = spec.broker_spec {
        errors.add("/spec/brokerSpec", "brokerPodSpec and brokerJobSpec exclude each other; keep one");
    }
    check_broker_sizes(spec, &mut errors);
    check_broker_resource(spec, &mut errors);
    check_broker_annotations(spec, &mut errors);
    check_broker_properties(&spec.broker_properties, &mut errors);
    check_duration("/spec/offlineGracePeriod", spec.offline_grace_period.as_deref(), &mut errors);
    discover_on::check(spec.discover_on.as_ref(), &mut errors);
    templates::check(&object.name_any(), spec, &mut errors);
    errors.0
}

/// Returns all problems of a DiscoveryHandler.
pub fn discovery_handler(object: &DiscoveryHandler) -> Vec<FieldError> {
    let spec = &object.spec;
    let mut errors = FieldErrors::default();
    check_object_name("/metadata/name", &object.name_any(), &mut errors);
    if let Some(name) = spec.name.as_ref().filter(|name| !is_handler_name(name)) {
        errors.add("/spec/name", format!("'{}' is not 1 to {MAX_NAME} bytes without spaces", name.escape_debug()));
    }
    component::check(&spec.component, &mut errors);
    check_duration("/spec/interval", spec.interval.as_deref(), &mut errors);
    grants::read(&spec.grants, &mut errors);
    limits::read(&spec.limits, &mut errors);
    errors.0
}

fn check_name(name: &str, errors: &mut FieldErrors) {
    if name.len() > MAX_CONFIGURATION_NAME {
        let message = format!(
            "has {} characters; with at most {MAX_CONFIGURATION_NAME} its resources fit into Kubernetes names",
            name.len()
        );
        errors.add("/metadata/name", message);
    }
    check_object_name("/metadata/name", name, errors);
}

/// The rules of Kubernetes for names of most objects.
pub(crate) fn check_object_name(path: &str, name: &str, errors: &mut FieldErrors) {
    if !is_dns_subdomain(name) {
        errors.add(path, format!("'{name}' is not a Kubernetes name: lower-case letters, digits, '-' and '.'"));
    }
}

pub(crate) fn check_namespace(path: &str, namespace: &str, errors: &mut FieldErrors) {
    if !is_dns_label(namespace) {
        errors.add(path, format!("'{namespace}' is not a namespace: up to 63 lower-case letters, digits and '-'"));
    }
}

fn check_details(details: &str, errors: &mut FieldErrors) {
    if details.len() > MAX_DETAILS {
        let message = format!("has {} bytes, more than {MAX_DETAILS}", details.len());
        errors.add("/spec/discoveryHandler/discoveryDetails", message);
    }
}

fn check_broker_sizes(spec: &ConfigurationSpec, errors: &mut FieldErrors) {
    let broker = spec.broker_spec.as_ref();
    for (field, value) in [
        ("brokerSpec/brokerPodSpec", broker.and_then(|broker| broker.broker_pod_spec.as_ref())),
        ("brokerSpec/brokerJobSpec", broker.and_then(|broker| broker.broker_job_spec.as_ref())),
        ("instanceServiceSpec", spec.instance_service_spec.as_ref()),
        ("configurationServiceSpec", spec.configuration_service_spec.as_ref()),
    ] {
        let bytes = value.and_then(|value| serde_json::to_string(value).ok()).map_or(0, |text| text.len());
        if bytes > MAX_BROKER {
            let message = format!("has {bytes} bytes, more than {MAX_BROKER}; put large data into a ConfigMap");
            errors.add(format!("/spec/{field}"), message);
        }
    }
}

fn check_properties(properties: &[DiscoveryProperty], errors: &mut FieldErrors) {
    let list = "/spec/discoveryHandler/discoveryProperties";
    if properties.len() > MAX_PROPERTIES {
        errors.add(list, format!("has {} properties, more than {MAX_PROPERTIES}", properties.len()));
    }
    let mut names = BTreeSet::new();
    for (index, property) in properties.iter().enumerate() {
        let path = format!("{list}/{index}");
        if !environment::is_name(&property.name) || property.name.contains(['-', '.']) {
            let like = property.name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            let message =
                format!("'{}' is not a C identifier: letters, digits and '_', such as '{like}'", property.name);
            errors.add(format!("{path}/name"), message);
        }
        if !names.insert(property.name.as_str()) {
            errors.add(format!("{path}/name"), format!("'{}' is there twice", property.name));
        }
        check_source(&path, property, errors);
    }
}

fn check_source(path: &str, property: &DiscoveryProperty, errors: &mut FieldErrors) {
    if let Some(value) = property.value.as_deref().filter(|value| value.len() > MAX_VALUE) {
        errors.add(format!("{path}/value"), format!("has {} bytes, more than {MAX_VALUE}", value.len()));
    }
    let Some(from) = &property.value_from else { return };
    let path = format!("{path}/valueFrom");
    if property.value.is_some() {
        errors.add(&path, "value and valueFrom exclude each other; keep one");
    }
    match from {
        ValueFrom { secret_key_ref: Some(secret), config_map_key_ref: None } => {
            check_reference(&format!("{path}/secretKeyRef"), secret, errors);
            check_no_login(&format!("{path}/secretKeyRef/key"), &secret.key, errors);
        }
        ValueFrom { secret_key_ref: None, config_map_key_ref: Some(config_map) } => {
            check_reference(&format!("{path}/configMapKeyRef"), config_map, errors);
        }
        ValueFrom { secret_key_ref: None, config_map_key_ref: None } => {
            errors.add(&path, "names nothing; give secretKeyRef or configMapKeyRef");
        }
        _ => errors.add(&path, "secretKeyRef and configMapKeyRef exclude each other; keep one"),
    }
}

fn check_reference(path: &str, reference: &KeyRef, errors: &mut FieldErrors) {
    if reference.key.is_empty() {
        errors.add(path, "names no key");
    }
    check_object_name(&format!("{path}/name"), &reference.name, errors);
    if let Some(namespace) = &reference.namespace {
        check_namespace(&format!("{path}/namespace"), namespace, errors);
    }
}

fn check_no_login(path: &str, key: &str, errors: &mut FieldErrors) {
    if is_registry_login(key) {
        errors.add(path, format!("'{key}' is the login of a registry, which handlers don't get"));
    }
}

/// A broker of which no resource is named asks for its Instance's (rule 38), which has to be advertised.
fn check_broker_resource(spec: &ConfigurationSpec, errors: &mut FieldErrors) {
    let Some(broker) = spec.broker_spec.as_ref().filter(|_| spec.resources == Resources::Configuration) else { return };
    let job = broker.broker_job_spec.as_ref().and_then(|job| job.get("template")?.get("spec")?.as_object());
    let specs = [("brokerPodSpec", broker.broker_pod_spec.as_ref()), ("brokerJobSpec", job)];
    for (field, _) in specs.into_iter().filter(|(_, spec)| spec.is_some_and(needs_instance)) {
        let message = "the broker asks for the resource of its Instance, which 'resources: configuration' does not \
                       advertise; set 'resources: both', or let the broker ask for akri.sh/<configuration>";
        errors.add(format!("/spec/brokerSpec/{field}"), message);
    }
}

/// Keys of ours in the annotations of brokers are the controller's.
fn check_broker_annotations(spec: &ConfigurationSpec, errors: &mut FieldErrors) {
    let annotations = spec.broker_spec.iter().flat_map(|broker| broker.broker_pod_annotations.keys());
    for key in annotations.filter(|key| key.starts_with("akri.sh/") || key.contains(".akri.sh/")) {
        let path = format!("/spec/brokerSpec/brokerPodAnnotations/{}", pointer_token(key));
        errors.add(path, "annotations of akri.sh are Akri's own; use another prefix");
    }
}

fn check_broker_properties(properties: &BTreeMap<String, String>, errors: &mut FieldErrors) {
    let bytes = properties.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    if bytes > MAX_BROKER_PROPERTIES {
        let message = format!(
            "has {bytes} bytes, more than {MAX_BROKER_PROPERTIES}: each Instance gets a copy; put large data into a ConfigMap"
        );
        errors.add("/spec/brokerProperties", message);
    }
    for name in properties.keys() {
        if !environment::is_name(name) {
            let message =
                format!("'{name}' can't be an environment variable: letters, digits, '_', '-' and '.', no digit first");
            errors.add("/spec/brokerProperties", message);
        } else if environment::is_reserved(name) {
            let message = format!(
                "'{name}' chooses what programs in the container run or trust; set it in the broker's own specification"
            );
            errors.add("/spec/brokerProperties", message);
        }
    }
}

fn check_duration(path: &str, text: Option<&str>, errors: &mut FieldErrors) {
    if let Some(Err(error)) = text.map(parse_duration) {
        errors.add(path, error);
    }
}

/// Returns whether a name is a DNS subdomain (RFC 1123), as the names of most objects of Kubernetes are.
pub fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_part)
}

/// RFC 1123, as Kubernetes checks namespaces.
fn is_dns_label(name: &str) -> bool {
    name.len() <= 63 && is_dns_part(name)
}

fn is_dns_part(part: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    edge(part.bytes().next())
        && edge(part.bytes().last())
        && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn errors_of(spec: Value) -> Vec<String> {
        let object = json!({"metadata": {"name": "cam"}, "spec": spec});
        let parsed: Configuration = serde_json::from_value(object).unwrap();
        configuration(&parsed).into_iter().map(|error| format!("{}: {}", error.path, error.message)).collect()
    }

    #[test]
    fn minimal_configuration_is_valid() {
        assert_eq!(errors_of(json!({"discoveryHandler": {"name": "udev"}})), Vec::<String>::new());
    }

    #[test]
    fn each_wrong_field_is_named_with_its_remedy() {
        let named = |spec: Value, path: &str| {
            let errors = errors_of(spec);
            assert!(errors.len() == 1 && errors[0].starts_with(path), "{path}: {errors:?}");
        };
        let with = |field: &str, value: Value| {
            let mut spec = json!({"discoveryHandler": {"name": "udev"}});
            spec[field] = value;
            spec
        };
        named(json!({"discoveryHandler": {"name": " "}}), "/spec/discoveryHandler/name: ");
        for capacity in [0, -1, 1001] {
            named(with("capacity", json!(capacity)), "/spec/capacity: ");
        }
        named(with("brokerSpec", json!({"brokerPodSpec": {}, "brokerJobSpec": {}})), "/spec/brokerSpec: ");
        let annotations =
            |key: &str| with("brokerSpec", json!({"brokerPodSpec": {}, "brokerPodAnnotations": {key: "x"}}));
        named(annotations("akri.sh/broker-hash"), "/spec/brokerSpec/brokerPodAnnotations/akri.sh~1broker-hash: ");
        named(annotations("node.akri.sh/x"), "/spec/brokerSpec/brokerPodAnnotations/node.akri.sh~1x: ");
        assert_eq!(errors_of(annotations("akri.sh.example.com/x")), [""; 0]);
        named(with("brokerProperties", json!({"A=B": "c"})), "/spec/brokerProperties: ");
        named(with("brokerProperties", json!({"A": "x".repeat(16 << 10)})), "/spec/brokerProperties: has 16385 bytes");
        named(with("discoveryHandler", json!({"name": "x".repeat(300)})), "/spec/discoveryHandler/name: has 300 bytes");
        named(with("brokerProperties", json!({"LD_PRELOAD": "c"})), "/spec/brokerProperties: 'LD_PRELOAD' chooses");
        named(with("offlineGracePeriod", json!("soon")), "/spec/offlineGracePeriod: ");
        let large = json!({"metadata": "x".repeat(MAX_BROKER)});
        named(with("brokerSpec", json!({"brokerPodSpec": large})), "/spec/brokerSpec/brokerPodSpec: has 262159 bytes");
        named(with("instanceServiceSpec", large), "/spec/instanceServiceSpec: has 262159 bytes");
        let details = json!({"discoveryHandler": {"name": "udev", "discoveryDetails": "x".repeat(MAX_DETAILS + 1)}});
        named(details, "/spec/discoveryHandler/discoveryDetails: has 262145 bytes");
        let properties = |list: Value| json!({"discoveryHandler": {"name": "udev", "discoveryProperties": list}});
        let first = "/spec/discoveryHandler/discoveryProperties/0/";
        named(properties(json!([{"name": "9x", "value": ""}])), &format!("{first}name: "));
        let twice = json!([{"name": "x", "value": ""}, {"name": "x", "value": ""}]);
        named(properties(twice), "/spec/discoveryHandler/discoveryProperties/1/name: 'x' is there twice");
    }

    /// The API server knows the same bounds, so that `kubectl` refuses at once what the agent would refuse later.
    #[test]
    fn schema_has_the_bounds_of_the_validator() {
        let crd = serde_json::to_value(<Configuration as kube::CustomResourceExt>::crd()).unwrap();
        let spec = crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties").unwrap();
        let bound = |path: &str| spec.pointer(path).and_then(Value::as_f64).map(|bound| bound as usize);
        assert_eq!((bound("/capacity/minimum"), bound("/capacity/maximum")), (Some(1), Some(MAX_CAPACITY as usize)));
        let handler = |path: &str| bound(&format!("/discoveryHandler/properties/{path}"));
        assert_eq!(handler("name/minLength"), Some(1));
        assert_eq!(handler("discoveryDetails/maxLength"), Some(MAX_DETAILS));
        assert_eq!(handler("discoveryProperties/maxItems"), Some(MAX_PROPERTIES));
        assert_eq!(handler("discoveryProperties/items/properties/value/maxLength"), Some(MAX_VALUE));
    }

    #[test] // rule 38
    fn broker_can_not_need_a_resource_that_is_not_advertised() {
        let errors = |resources: &str, broker: Value| {
            errors_of(json!({"discoveryHandler": {"name": "udev"}, "resources": resources, "brokerSpec": broker}))
        };
        let pod = |limits: Value| json!({"containers": [{"name": "c", "resources": {"limits": limits}}]});
        let job = |limits: Value| json!({"brokerJobSpec": {"template": {"spec": pod(limits)}}});
        let placeholder = json!({"{{PLACEHOLDER}}": "1"});
        for (resources, broker, path) in [
            ("configuration", json!({"brokerPodSpec": pod(placeholder.clone())}), "/spec/brokerSpec/brokerPodSpec: "),
            ("configuration", json!({"brokerPodSpec": pod(json!({}))}), "/spec/brokerSpec/brokerPodSpec: "),
            ("configuration", job(placeholder.clone()), "/spec/brokerSpec/brokerJobSpec: "),
        ] {
            let found = errors(resources, broker);
            assert!(found.len() == 1 && found[0].starts_with(path), "{path}: {found:?}");
        }
        assert!(errors("configuration", json!({"brokerPodSpec": pod(json!({"akri.sh/cam": "1"}))})).is_empty());
        assert!(errors("instance", json!({"brokerPodSpec": pod(placeholder)})).is_empty());
    }

    #[test] // rule 90
    fn value_has_one_source_that_is_named_in_full() {
        let errors = |source: Value| {
            let mut property = json!({"name": "x"});
            property.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            errors_of(json!({"discoveryHandler": {"name": "udev", "discoveryProperties": [property]}}))
        };
        let secret = json!({"name": "s", "key": "k", "optional": true, "namespace": "kube-system"});
        for good in [
            json!({}),
            json!({"value": "v"}),
            json!({"valueFrom": {"secretKeyRef": secret}}),
            json!({"valueFrom": {"configMapKeyRef": {"name": "c.example", "key": "k"}}}),
        ] {
            assert_eq!(errors(good.clone()), Vec::<String>::new(), "{good}");
        }
        let at = "/spec/discoveryHandler/discoveryProperties/0/value";
        for (bad, expected) in [
            (
                json!({"value": "v", "valueFrom": {"secretKeyRef": secret}}),
                "From: value and valueFrom exclude each other",
            ),
            (
                json!({"valueFrom": {"secretKeyRef": secret, "configMapKeyRef": secret}}),
                "From: secretKeyRef and configMapKeyRef exclude each other",
            ),
            (json!({"valueFrom": {}}), "From: names nothing"),
            (json!({"valueFrom": {"secretKeyRef": {"name": "s"}}}), "From/secretKeyRef: names no key"),
            (
                json!({"valueFrom": {"secretKeyRef": {"name": "s", "key": ".dockerconfigjson"}}}),
                "From/secretKeyRef/key: '.dockerconfigjson' is the login of a registry",
            ),
            (json!({"valueFrom": {"configMapKeyRef": {"name": "S", "key": "k"}}}), "From/configMapKeyRef/name: 'S'"),
            (
                json!({"valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "namespace": "a.b"}}}),
                "From/secretKeyRef/namespace: 'a.b'",
            ),
            (json!({"value": "x".repeat(MAX_VALUE + 1)}), ": has 1048577 bytes, more than 1048576"),
        ] {
            let found = errors(bad);
            assert!(found.len() == 1 && found[0].starts_with(&format!("{at}{expected}")), "{expected}: {found:?}");
        }
        let many: Vec<Value> = (0..=MAX_PROPERTIES).map(|n| json!({"name": format!("p{n}"), "value": ""})).collect();
        let found = errors_of(json!({"discoveryHandler": {"name": "udev", "discoveryProperties": many}}));
        assert_eq!(found, ["/spec/discoveryHandler/discoveryProperties: has 257 properties, more than 256"]);
    }

    #[test] // rule 30
    fn names_that_no_resource_could_have_are_refused() {
        let named = |name: &str| {
            let object = json!({"metadata": {"name": name}, "spec": {"discoveryHandler": {"name": "udev"}}});
            configuration(&serde_json::from_value(object).unwrap()).len()
        };
        assert_eq!([named("cam"), named("my.cam-2"), named(&"c".repeat(56))], [0, 0, 0]);
        for name in ["", "Cam", "cam_1", "-cam", "cam-", "a..b", &"c".repeat(57)] {
            assert_eq!(named(name), 1, "{name}");
        }
    }

    #[test]
    fn handler_can_not_name_a_path_or_boundless_limits() {
        let errors = |spec: Value| {
            let object = json!({"metadata": {"name": "h"}, "spec": spec});
            discovery_handler(&serde_json::from_value(object).unwrap()).into_iter().map(|e| e.path).collect::<Vec<_>>()
        };
        assert!(errors(json!({"component": {"file": "udev.wasm"}})).is_empty());
        for file in ["", "../x.wasm", "/etc/x", ".hidden"] {
            assert_eq!(errors(json!({"component": {"file": file}})), ["/spec/component/file"], "{file}");
        }
        assert_eq!(errors(json!({"component": {"file": "x", "digest": "sha256:1"}})), ["/spec/component/digest"]);
        let image = json!({"component": {"image": "registry.example/udev:1"}});
        assert_eq!(errors(image), ["/spec/component/image"], "not pinned");
        let limits = json!({"component": {"file": "x"}, "limits": {"round": "1h"}, "grants": {"udp": [{"networks": ["x"], "ports": []}]}});
        assert_eq!(errors(limits), ["/spec/grants/udp/0/networks/0", "/spec/limits/round"]);
    }
}
