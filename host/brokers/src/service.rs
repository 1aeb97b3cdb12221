//! Services in front of brokers (rule 56).

use serde_json::{Map, Value, json};

use crate::names::{label_value, service_name};
use crate::template::{Manifest, Owner, SELECTOR, spec_hash};

/// Returns the Service of an Instance or a Configuration, with the hash of its spec. It selects what the user selects, among the
/// brokers of that owner.
pub fn service(namespace: &str, owner: Owner<'_>, spec: &Manifest) -> (Value, String) {
    let name = service_name(owner.name);
    let label = (owner.label().to_owned(), Value::from(label_value(owner.name)));
    let ours = [(SELECTOR.0.to_owned(), Value::from(SELECTOR.1)), label];
    let mut spec = spec.clone();
    let mut selector = spec.get("selector").and_then(Value::as_object).cloned().unwrap_or_default();
    selector.extend(ours.clone());
    spec.insert("selector".to_owned(), Value::Object(selector));
    name_protocols(&mut spec);
    let spec = Value::Object(spec);
    let hash = spec_hash(&spec);
    let mut labels: Map<String, Value> = ours.into_iter().collect();
    labels.insert("app".to_owned(), label_value(&name).into());
    let mut metadata = owner.metadata(namespace, &name, labels);
    metadata.insert("annotations".to_owned(), json!({crate::BROKER_HASH: hash}));
    (json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}), hash)
}

/// Writes out the default protocol of ports: it is part of the key of a port, and API servers before 1.21 refuse to apply one
/// without it.
fn name_protocols(spec: &mut Manifest) {
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
    for port in ports.filter_map(Value::as_object_mut) {
        port.entry("protocol").or_insert_with(|| "TCP".into());
    }
}

/// Returns whether a Service should exist: it is created when the first broker runs, and kept as long as one is wanted,
/// so that a replaced broker does not cost the Service its address.
pub fn is_service_wanted(exists: bool, running: usize, desired: usize) -> bool {
    running > 0 || exists && desired > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 56
    fn service_selects_brokers_and_what_the_user_selects() {
        let spec = json!({"ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}], "selector": {"tier": "front", "controller": "mine"}});
        let owner = Owner { kind: "Configuration", name: "cam", uid: "u" };
        let (service, hash) = service("plant", owner, spec.as_object().unwrap());
        assert_eq!(
            service["spec"]["selector"],
            json!({"tier": "front", "controller": "akri.sh", "akri.sh/configuration": "cam"})
        );
        let ports = json!([{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]);
        assert_eq!(service["spec"]["ports"], ports);
        assert_eq!(
            service["metadata"]["labels"],
            json!({"app": "cam-svc", "controller": "akri.sh", "akri.sh/configuration": "cam"})
        );
        assert_eq!(service["metadata"]["annotations"], json!({"akri.sh/broker-hash": hash}));
        assert_eq!(service["metadata"]["ownerReferences"][0]["kind"], "Configuration");
    }

    #[test] // rule 56
    fn service_comes_with_the_first_broker_and_goes_with_the_last() {
        for (exists, running, desired, wanted) in [
            (false, 0, 1, false),
            (false, 1, 1, true),
            (true, 0, 1, true),
            (true, 1, 1, true),
            (true, 1, 0, true),
            (true, 0, 0, false),
            (false, 0, 0, false),
        ] {
            assert_eq!(is_service_wanted(exists, running, desired), wanted, "{exists} {running} {desired}");
        }
    }
}
