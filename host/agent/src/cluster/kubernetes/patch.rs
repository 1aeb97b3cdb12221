//! The patches that change an Instance: each says what it expects to find, so that of two writers one has to look again.

use std::collections::{BTreeMap, BTreeSet};

use akri_api::IDENTITY_ANNOTATION;
use akri_model::instance::Instance;
use akri_model::names::node_hash;
use serde_json::{Value, json};

/// The field manager of a node (rule 23).
pub(super) fn manager(node: &str) -> String {
    format!("akri-{}", node_hash(node))
}

/// Its field manager for what it says in a status. API servers before 1.22 keep one set of fields a manager, whatever it was
/// applied to: under one name, a status would take away what the node says of the rest.
pub(super) fn status_manager(node: &str) -> String {
    format!("{}-status", manager(node))
}

/// The label by which an agent finds the Instances of its node.
pub(super) fn node_label(node: &str) -> String {
    format!("node.akri.sh/{}", node_hash(node))
}

/// What a node applies to be among those that see the device (rule 23). The UID keeps it from reviving an Instance that was
/// deleted meanwhile. One that upstream Akri made has no identity: whoever joins it gives it one.
pub(super) fn joining(instance: &Instance, node: &str) -> Value {
    let annotation = instance.identity.as_ref().map(|identity| (IDENTITY_ANNOTATION, identity.as_str()));
    let metadata = json!({
        "name": instance.key.name,
        "uid": instance.uid,
        "labels": {node_label(node): ""},
        "annotations": BTreeMap::from_iter(annotation),
    });
    json!({"apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": metadata, "spec": {"nodes": [node]}})
}

/// What it applies to leave them: what it applied before goes, and its label with it.
pub(super) fn leaving(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "akri.sh/v0",
        "kind": "Instance",
        "metadata": {"name": name, "uid": uid},
        "spec": {"nodes": []},
    })
}

/// Changes who uses a slot, if it is used as expected (rule 10).
pub(super) fn usage(slot: &str, from: &str, to: &str) -> Value {
    let path = pointer(slot);
    json!([{"op": "test", "path": path, "value": from}, {"op": "replace", "path": path, "value": to}])
}

/// The same for a slot whose key does not exist, which is free: the version says that nobody has made it meanwhile.
pub(super) fn missing_usage(slot: &str, version: &str, to: &str) -> Value {
    json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": pointer(slot), "value": to},
    ])
}

fn pointer(slot: &str) -> String {
    format!("/spec/deviceUsage/{}", slot.replace('~', "~0").replace('/', "~1"))
}

/// What of an Instance has to change for it to say what this node says, and whether it is for this node to say so: of a local
/// device everything, of a shared one capacity and properties by the first of its nodes (rule 24), and nothing of a slot that
/// somebody uses (rule 10). None if nothing has to.
pub(super) fn agreement(published: &Instance, wanted: &Instance, node: &str) -> Option<Value> {
    let mine = !wanted.shared || published.nodes.iter().min().is_none_or(|first| first == node);
    if !mine {
        return None;
    }
    let mut patch = vec![test("/metadata/uid", &wanted.uid)];
    if published.capacity != wanted.capacity {
        patch.push(test("/spec/capacity", published.capacity));
        patch.push(add("/spec/capacity", wanted.capacity));
    }
    if published.properties != wanted.properties {
        patch.push(add("/spec/brokerProperties", &wanted.properties));
    }
    patch.extend(slots(published, wanted));
    (patch.len() > 1).then_some(Value::Array(patch))
}

fn slots(published: &Instance, wanted: &Instance) -> Vec<Value> {
    let names: BTreeSet<&String> = published.device_usage.keys().chain(wanted.device_usage.keys()).collect();
    names.into_iter().flat_map(|name| slot(name, published, wanted)).collect()
}

fn slot(name: &str, published: &Instance, wanted: &Instance) -> Vec<Value> {
    let (was, is) = (published.device_usage.get(name), wanted.device_usage.get(name));
    match (was, is) {
        (None, Some(is)) => vec![add(&pointer(name), if wanted.shared { "" } else { is.as_str() })],
        (Some(was), None) if was.is_empty() || !wanted.shared => {
            vec![test(&pointer(name), was), json!({"op": "remove", "path": pointer(name)})]
        }
        (Some(was), Some(is)) if was != is && !wanted.shared => vec![add(&pointer(name), is)],
        _ => Vec::new(),
    }
}

fn test(path: &str, value: impl serde::Serialize) -> Value {
    json!({"op": "test", "path": path, "value": value})
}

fn add(path: &str, value: impl serde::Serialize) -> Value {
    json!({"op": "add", "path": path, "value": value})
}

/// What a node applies to the status of an object: its own trouble with it, or nothing (rule 34).
pub(super) fn trouble(kind: &str, name: &str, uid: &str, node: &str, trouble: Option<(&str, &str)>) -> Value {
    let entry = trouble.map(|(reason, message)| (node.to_owned(), json!({"reason": reason, "message": message})));
    let nodes: BTreeMap<String, Value> = entry.into_iter().collect();
    json!({
        "apiVersion": "akri.sh/v0",
        "kind": kind,
        "metadata": {"name": name, "uid": uid},
        "status": {"nodes": nodes},
    })
}

#[cfg(test)]
mod tests {
    use akri_model::instance::Online;
    use akri_model::names::Key;

    use super::*;

    fn instance(shared: bool, nodes: &[&str], usage: &[(&str, &str)]) -> Instance {
        Instance {
            key: Key::new("default", "cam-1"),
            uid: "u".into(),
            identity: None,
            configuration: "cam".into(),
            configuration_uid: "c".into(),
            cdi_name: "akri.sh/cam=1".into(),
            capacity: u32::try_from(usage.len()).unwrap(),
            properties: BTreeMap::new(),
            shared,
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            device_usage: usage.iter().map(|(slot, usage)| ((*slot).to_owned(), (*usage).to_owned())).collect(),
            online: Online::True,
        }
    }

    fn applied(published: &Instance, wanted: &Instance, node: &str) -> Option<Value> {
        let operations = agreement(published, wanted, node)?;
        let object = json!({
            "metadata": {"uid": published.uid},
            "spec": {
                "capacity": published.capacity,
                "brokerProperties": published.properties,
                "deviceUsage": published.device_usage,
            },
        });
        let mut object = object;
        let patch: json_patch::Patch = serde_json::from_value(operations).unwrap();
        json_patch::patch(&mut object, &patch.0).unwrap();
        Some(object["spec"].clone())
    }

    #[test]
    fn what_is_as_wanted_is_left_alone() {
        let one = instance(true, &["a", "b"], &[("cam-1-0", "b")]);
        assert_eq!(agreement(&one, &one, "a"), None);
    }

    #[test]
    fn of_many_nodes_the_first_writes_what_all_agree_on() {
        let published = instance(true, &["b", "a"], &[("cam-1-0", "b")]);
        let mut wanted = instance(true, &["b"], &[("cam-1-0", "b"), ("cam-1-1", "")]);
        wanted.properties.insert("K".into(), "v".into());
        assert_eq!(agreement(&published, &wanted, "b"), None);
        let spec = applied(&published, &wanted, "a").unwrap();
        assert_eq!(spec["capacity"], 2);
        assert_eq!(spec["brokerProperties"], json!({"K": "v"}));
        assert_eq!(spec["deviceUsage"], json!({"cam-1-0": "b", "cam-1-1": ""}));
    }

    #[test]
    fn who_uses_a_slot_of_a_shared_device_is_never_written() {
        let published = instance(true, &["a"], &[("cam-1-0", "b"), ("cam-1-1", ""), ("cam-1-2", "a")]);
        let wanted = instance(true, &["a"], &[("cam-1-0", "a")]);
        let spec = applied(&published, &wanted, "a").unwrap();
        assert_eq!(spec["deviceUsage"], json!({"cam-1-0": "b", "cam-1-2": "a"}), "only the free one above goes");
    }

    #[test]
    fn of_a_local_device_this_node_has_the_truth() {
        let published = instance(false, &["a"], &[("cam-1-0", "x"), ("cam-1-1", "a")]);
        let wanted = instance(false, &["a"], &[("cam-1-0", "a")]);
        let spec = applied(&published, &wanted, "a").unwrap();
        assert_eq!((&spec["capacity"], &spec["deviceUsage"]), (&json!(1), &json!({"cam-1-0": "a"})));
    }

    #[test]
    fn a_claim_says_what_it_expects() {
        assert_eq!(
            usage("cam-1-0", "", "C:0:a"),
            json!([
                {"op": "test", "path": "/spec/deviceUsage/cam-1-0", "value": ""},
                {"op": "replace", "path": "/spec/deviceUsage/cam-1-0", "value": "C:0:a"},
            ])
        );
    }

    #[test]
    fn a_node_leaves_with_its_label() {
        let joins = joining(&instance(true, &[], &[]), "a");
        assert_eq!((&joins["spec"]["nodes"], &joins["metadata"]["uid"]), (&json!(["a"]), &json!("u")));
        assert_eq!(joins["metadata"]["labels"], json!({node_label("a"): ""}));
        let leaves = leaving("cam-1", "u");
        assert_eq!((&leaves["spec"]["nodes"], &leaves["metadata"]["uid"]), (&json!([]), &json!("u")));
        assert!(leaves["metadata"].get("labels").is_none());
    }
}
