//! `discoverOn` of a Configuration: the nodes that run discovery for others (rule 126).

use std::collections::{BTreeMap, BTreeSet};

use akri_model::discover_on::{self as model, MAX_COUNT};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::null_is_empty;
use crate::configuration::Configuration;
use crate::validate::{FieldErrors, is_dns_subdomain};

/// Most labels of a selector.
const MAX_LABELS: usize = 16;

/// The nodes that run discovery for others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))] // else the server leaves an empty object of one that is taken back
pub struct DiscoverOn {
    /// Number of nodes that run discovery. If there are fewer, all do.
    #[schemars(range(min = 1, max = MAX_COUNT))]
    pub count: i64,
    /// Labels of the nodes that serve the devices, and of which `count` run discovery. Default all nodes.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true, "maxProperties" = MAX_LABELS))]
    pub node_selector: BTreeMap<String, String>,
}

/// Returns `discoverOn` of a Configuration, if it has one, with the nodes that were chosen.
pub fn discover_on_to_model(object: &Configuration, nodes: BTreeSet<String>) -> Option<model::DiscoverOn> {
    let DiscoverOn { count, node_selector } = object.spec.discover_on.as_ref()?;
    let count = usize::try_from(*count).unwrap_or_default().clamp(1, MAX_COUNT);
    Some(model::DiscoverOn { count, node_selector: node_selector.clone(), nodes })
}

pub(crate) fn check(on: Option<&DiscoverOn>, errors: &mut FieldErrors) {
    let Some(DiscoverOn { count, node_selector }) = on else { return };
    if !(1..=MAX_COUNT as i64).contains(count) {
        let message =
            format!("{count} is not between 1 and {MAX_COUNT}; without discoverOn, discovery runs on every node");
        errors.add("/spec/discoverOn/count", message);
    }
    let path = "/spec/discoverOn/nodeSelector";
    if node_selector.len() > MAX_LABELS {
        errors.add(path, format!("has {} labels, more than {MAX_LABELS}", node_selector.len()));
    }
    for (key, value) in node_selector {
        let (prefix, name) = key.rsplit_once('/').map_or((None, &**key), |(prefix, name)| (Some(prefix), name));
        if !prefix.is_none_or(is_dns_subdomain) || !is_label_part(name) {
            errors.add(path, format!("'{}' is not the key of a label", key.escape_debug()));
        } else if !value.is_empty() && !is_label_part(value) {
            let value = value.escape_debug();
            errors.add(
                path,
                format!("'{value}' of '{key}' is not the value of a label: up to 63 letters, digits, '-', '_' and '.'"),
            );
        }
    }
}

/// Returns whether a text is the value of a label, or the name in its key.
fn is_label_part(text: &str) -> bool {
    let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.len() <= 63
        && is_edge(text.bytes().next())
        && is_edge(text.bytes().last())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;
    use serde_json::{Value, json};

    use super::*;

    fn errors_of(on: Value) -> Vec<String> {
        let spec = json!({"discoveryHandler": {"name": "onvif"}, "discoverOn": on});
        let object = serde_json::from_value(json!({"metadata": {"name": "cam"}, "spec": spec})).unwrap();
        crate::validate::configuration(&object)
            .into_iter()
            .map(|error| format!("{}: {}", error.path, error.message))
            .collect()
    }

    #[test] // rule 126
    fn count_and_labels_are_checked() {
        let long = "x".repeat(64);
        for good in [
            json!({"count": 1}),
            json!({"count": 100, "nodeSelector": null}),
            json!({"count": 2, "nodeSelector": {"kubernetes.io/arch": "arm64", "camera-vlan": ""}}),
        ] {
            assert_eq!(errors_of(good.clone()), [""; 0], "{good}");
        }
        for (bad, expected) in [
            (json!({"count": 0}), "count: 0 is not between 1 and 100"),
            (json!({"count": 101}), "count: 101 is not between 1 and 100"),
            (json!({"count": 1, "nodeSelector": {"a b": "x"}}), "nodeSelector: 'a b' is not the key of a label"),
            (json!({"count": 1, "nodeSelector": {"A_b/x": "x"}}), "nodeSelector: 'A_b/x' is not the key"),
            (json!({"count": 1, "nodeSelector": {"x": long}}), "nodeSelector: 'xxx"),
        ] {
            let found = errors_of(bad);
            assert!(found.len() == 1 && found[0].starts_with(&format!("/spec/discoverOn/{expected}")), "{found:?}");
        }
        let many: BTreeMap<String, &str> = (0..17).map(|number| (format!("l{number}"), "")).collect();
        assert_eq!(errors_of(json!({"count": 1, "nodeSelector": many})).len(), 1);
    }

    #[test] // rule 126
    fn schema_bounds_the_count() {
        let crd = serde_json::to_value(Configuration::crd()).unwrap();
        let on = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/discoverOn";
        let bound = |name: &str| crd.pointer(&format!("{on}/properties/count/{name}")).and_then(Value::as_f64);
        assert_eq!((bound("minimum"), bound("maximum")), (Some(1.0), Some(MAX_COUNT as f64)));
    }
}
