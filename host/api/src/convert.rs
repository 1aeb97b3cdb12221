//! Between Akri's objects and the model.

use std::collections::BTreeMap;
use std::time::Duration;

use akri_model::configuration::{self as model, MAX_CAPACITY};
use akri_model::container_paths::PathRule;
use akri_model::grant;
use akri_model::instance;
use akri_model::names::{Identity, Key};
use akri_model::property::{KeyRef, PropertySource};
use akri_model::summary::{NOT_SEEN, online_condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::{Resource as _, ResourceExt as _};

use crate::condition;
use crate::configuration::{self, Configuration, ContainerPath, DiscoveryProperty};
use crate::duration::parse_duration;
use crate::handler::DiscoveryHandler;
use crate::instance::{Instance, InstanceSpec};
use crate::validate::FieldErrors;
use crate::{grants, limits};

/// The annotation with the identity of an Instance's device; the hash in its name is shorter.
pub const IDENTITY_ANNOTATION: &str = "akri.sh/identity";

/// Converts a Configuration to the agent's type. Invalid objects should not get here
/// ([`crate::validate::configuration`]); invalid fields of one are ignored.
pub fn configuration_to_model(object: &Configuration) -> model::Configuration {
    let spec = &object.spec;
    let properties = spec.discovery_handler.discovery_properties.as_deref().unwrap_or_default();
    let capacity = spec.capacity.clamp(1, i64::from(MAX_CAPACITY));
    model::Configuration {
        key: Key::new(object.namespace().unwrap_or_else(|| "default".to_owned()), object.name_any()),
        uid: object.uid().unwrap_or_default(),
        created: object.creation_timestamp().map(|Time(at)| at.as_second()).unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or_default(),
        handler: spec.discovery_handler.name.clone(),
        details: spec.discovery_handler.discovery_details.clone(),
        properties: properties.iter().map(|property| (property.name.clone(), source(property))).collect(),
        capacity: u32::try_from(capacity).unwrap_or(1),
        broker_properties: spec.broker_properties.clone(),
        resources: spec.resources,
        offline_grace: spec.offline_grace_period.as_deref().and_then(|text| parse_duration(text).ok()),
        broker_info: spec.broker_info,
        role: Default::default(),
        paths: spec.container.iter().flat_map(|container| &container.paths).filter_map(path_rule).collect(),
        instance_name: spec.instance_name.as_deref().and_then(|text| text.parse().ok()),
    }
}

fn path_rule(rule: &ContainerPath) -> Option<PathRule> {
    Some(PathRule { host_path: rule.host_path.clone(), container_path: rule.container_path.parse().ok()? })
}

/// Neither value nor reference is an empty value, as in upstream Akri.
fn source(property: &DiscoveryProperty) -> PropertySource {
    let from = property.value_from.as_ref();
    if let Some(secret) = from.and_then(|from| from.secret_key_ref.as_ref()) {
        return PropertySource::Secret(key_ref(secret));
    }
    if let Some(config_map) = from.and_then(|from| from.config_map_key_ref.as_ref()) {
        return PropertySource::ConfigMap(key_ref(config_map));
    }
    PropertySource::Value(property.value.clone().unwrap_or_default().into_bytes())
}

fn key_ref(reference: &configuration::KeyRef) -> KeyRef {
    let namespace = reference.namespace.clone().unwrap_or_else(|| "default".to_owned());
    KeyRef {
        object: Key::new(namespace, reference.name.clone()),
        key: reference.key.clone(),
        optional: reference.optional.unwrap_or_default(),
    }
}

/// The rules of a DiscoveryHandler object, beside its component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerRules {
    /// Overrides the `shared` of the component.
    pub shared: Option<bool>,
    /// Overrides the component's own pause between rounds.
    pub interval: Option<Duration>,
    /// The process in which the component runs.
    pub isolation: grant::Isolation,
    /// The grants of the component.
    pub grants: grant::Grants,
    /// Limits on the component's resources.
    pub limits: grant::Limits,
}

impl From<&DiscoveryHandler> for HandlerRules {
    fn from(object: &DiscoveryHandler) -> Self {
        let spec = &object.spec;
        let mut errors = FieldErrors::default(); // validation has reported them
        let holder = object.metadata.name.as_ref().map(|name| format!("DiscoveryHandler '{name}'"));
        Self {
            shared: spec.shared,
            interval: spec.interval.as_deref().and_then(|text| parse_duration(text).ok()),
            isolation: spec.isolation.unwrap_or_default(),
            grants: grant::Grants { holder: holder.unwrap_or_default(), ..grants::read(&spec.grants, &mut errors) },
            limits: limits::read(&spec.limits, &mut errors),
        }
    }
}

/// An Instance object as the agent sees it.
pub fn instance_to_model(object: &Instance) -> instance::Instance {
    let spec = &object.spec;
    let owner = object.owner_references().iter().find(|owner| owner.controller == Some(true));
    let online = object.status.as_ref().and_then(|status| condition::online(&status.conditions));
    instance::Instance {
        key: Key::new(object.namespace().unwrap_or_default(), object.name_any()),
        uid: object.uid().unwrap_or_default(),
        version: instance::Version(object.resource_version().unwrap_or_default()),
        identity: object.annotations().get(IDENTITY_ANNOTATION).map(Identity::from_text),
        configuration: spec.configuration_name.clone(),
        configuration_uid: owner.map(|owner| owner.uid.clone()).unwrap_or_default(),
        cdi_name: spec.cdi_name.clone(),
        capacity: u32::try_from(spec.capacity).unwrap_or(1).min(MAX_CAPACITY),
        properties: spec.broker_properties.clone(),
        shared: spec.shared,
        nodes: spec.nodes.clone(),
        device_usage: spec.device_usage.clone(),
        online: online.unwrap_or_default(),
    }
}

/// The object of an Instance. The creation time and the condition's transition time of the earlier object are kept.
pub fn instance_from_model(instance: &instance::Instance, before: Option<&Instance>, now: Timestamp) -> Instance {
    let created = before.and_then(|object| object.metadata.creation_timestamp.clone()).unwrap_or(Time(now));
    let version = Some(instance.version.0.clone()).filter(|version| !version.is_empty());
    let annotation = instance.identity.as_ref().map(|id| (IDENTITY_ANNOTATION.to_owned(), id.as_str().to_owned()));
    let metadata = ObjectMeta {
        namespace: Some(instance.key.namespace.clone()),
        name: Some(instance.key.name.clone()),
        uid: (!instance.uid.is_empty()).then(|| instance.uid.clone()),
        resource_version: before.map_or(version, |object| object.metadata.resource_version.clone()),
        creation_timestamp: Some(created),
        annotations: annotation.map(|annotation| BTreeMap::from([annotation])),
        owner_references: Some(vec![owner_reference(instance)]),
        ..ObjectMeta::default()
    };
    let mut status = before.and_then(|object| object.status.clone()).unwrap_or_default();
    let online = online_condition(instance.online, NOT_SEEN);
    condition::set(&mut status.conditions, &online, None, now);
    Instance { metadata, spec: spec_of(instance), status: Some(status) }
}

fn spec_of(instance: &instance::Instance) -> InstanceSpec {
    InstanceSpec {
        configuration_name: instance.configuration.clone(),
        cdi_name: instance.cdi_name.clone(),
        capacity: i64::from(instance.capacity),
        broker_properties: instance.properties.clone(),
        shared: instance.shared,
        nodes: instance.nodes.clone(),
        device_usage: instance.device_usage.clone(),
    }
}

/// Deleting the Configuration deletes its Instances; no finalizer, so that nothing ever hangs (rule 26).
fn owner_reference(instance: &instance::Instance) -> OwnerReference {
    OwnerReference {
        api_version: Configuration::api_version(&()).into_owned(),
        kind: Configuration::kind(&()).into_owned(),
        name: instance.configuration.clone(),
        uid: instance.configuration_uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_those_of_akri() {
        let object = json!({"metadata": {"name": "cam"}, "spec": {"discoveryHandler": {"name": "udev"}}});
        let model = configuration_to_model(&serde_json::from_value(object).unwrap());
        assert_eq!(model.key, Key::new("default", "cam"));
        assert_eq!((model.capacity, model.resources, model.offline_grace), (1, model::Resources::Both, None));
    }

    #[test]
    fn handler_is_granted_nothing_by_default() {
        let object = json!({"metadata": {"name": "h"}, "spec": {"component": {"file": "h.wasm"}}});
        let object: DiscoveryHandler = serde_json::from_value(object).unwrap();
        let rules = HandlerRules::from(&object);
        let holder = "DiscoveryHandler 'h'".to_owned();
        assert_eq!(rules.grants, grant::Grants { holder, ..grant::Grants::default() });
        assert_eq!(rules.limits, grant::Limits::default());
    }

    #[test]
    fn instances_survive_the_way_there_and_back() {
        let before = instance::Instance {
            key: Key::new("ns", "cam-8120fe"),
            version: instance::Version("7".into()),
            uid: "u1".into(),
            identity: Some(Identity::from_text("i1")),
            configuration: "cam".into(),
            configuration_uid: "c1".into(),
            cdi_name: "akri.sh/cam=8120fe".into(),
            capacity: 2,
            properties: [("K".to_owned(), "v".to_owned())].into(),
            shared: true,
            nodes: vec!["a".into(), "b".into()],
            device_usage: [("cam-8120fe-0".to_owned(), "a".to_owned())].into(),
            online: instance::Online::False,
        };
        let object = instance_from_model(&before, None, Timestamp::UNIX_EPOCH);
        assert_eq!(instance_to_model(&object), before);
        let again = instance_from_model(&before, Some(&object), Timestamp::MAX);
        assert_eq!(again, object, "creation and transition times are kept");
    }
}
