//! The patches that change an Instance. Each states what it expects to find, so that of two concurrent writers one must
//! retry.

use std::collections::{BTreeMap, BTreeSet};

use akri_api::IDENTITY_ANNOTATION;
use akri_api::document::pointer_token;
use akri_model::instance::Instance;
use akri_model::names::{Identity, node_hash, slot_name};
use akri_model::slots::SlotPatch;
use serde_json::{Value, json};

/// Returns the field manager of a node (rule 23).
pub(super) fn manager(node: &str) -> String {
    format!("akri-{}", node_hash(node))
}

/// Returns the label that selects the Instances of a node.
pub(super) fn node_label(node: &str) -> String {
    format!("node.akri.sh/{}", node_hash(node))
}

/// The value of that label: the node's name, by which an admission policy sees whose label it is. Empty if it is too long.
pub(super) fn node_label_value(node: &str) -> &str {
    if node.len() <= 63 { node } else { "" }
}

/// Returns the apply patch by which a node joins the nodes of an Instance (rule 23). The UID keeps it from recreating a
/// deleted Instance. An Instance made by upstream Akri gets its identity annotation.
pub(super) fn joining(instance: &Instance, node: &str) -> Value {
    let annotation = instance.identity.as_ref().map(|identity| (IDENTITY_ANNOTATION, identity.as_str()));
    let metadata = json!({
        "name": instance.key.name,
        "uid": instance.uid,
        "labels": {node_label(node): node_label_value(node)},
        "annotations": BTreeMap::from_iter(annotation),
    });
    json!({"apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": metadata, "spec": {"nodes": [node]}})
}

/// Returns the apply patch by which a node leaves an Instance: the fields it applied before are removed, including its
/// label. The identity stays, which agents alone own if upstream Akri made the Instance.
pub(super) fn leaving(name: &str, uid: &str, identity: Option<&Identity>) -> Value {
    let annotation = identity.map(|identity| (IDENTITY_ANNOTATION, identity.as_str()));
    let metadata = json!({"name": name, "uid": uid, "annotations": BTreeMap::from_iter(annotation)});
    json!({"apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": metadata, "spec": {"nodes": []}})
}

/// Removes an entry that stays when this node has left, since a field manager of upstream Akri owns it, too (rule 65). The index
/// is of the version that was read: the test keeps a concurrent change from losing another node's entry.
pub(super) fn removing_entry(uid: &str, nodes: &[String], node: &str) -> Option<Value> {
    let path = format!("/spec/nodes/{}", nodes.iter().position(|entry| entry == node)?);
    Some(json!([test("/metadata/uid", uid), test(&path, node), {"op": "remove", "path": path}]))
}

/// Changes who uses slots, if they are used as expected (rule 10).
pub(super) fn slots_patch(instance: &str, patch: &SlotPatch) -> Value {
    let version = patch.version.as_ref().map(|version| test("/metadata/resourceVersion", &version.0));
    let changes = patch.changes.iter().flat_map(|(slot, (from, to))| {
        let path = pointer(&slot_name(instance, *slot));
        let expected = from.as_ref().map(|from| test(&path, from.to_string()));
        expected.into_iter().chain([add(&path, to.to_string())])
    });
    Value::Array([test("/metadata/uid", &patch.uid)].into_iter().chain(version).chain(changes).collect())
}

fn pointer(slot: &str) -> String {
    format!("/spec/deviceUsage/{}", pointer_token(slot))
}

/// Returns the nodes of a shared Instance that write what all have in common rather than this one, in order (rule 24).
pub(super) fn nodes_before<'a>(published: &'a Instance, node: &str) -> BTreeSet<&'a str> {
    let nodes = published.nodes.iter().map(String::as_str);
    nodes.filter(|other| published.shared && *other < node).collect()
}

/// Returns the patch from the published to the wanted Instance: everything for a local device; for a shared one what all nodes
/// have in common, which is capacity and properties, and no slot in use (rule 10). `None` if nothing has to change.
pub(super) fn agreement(published: &Instance, wanted: &Instance) -> Option<Value> {
    let mut patch = vec![test("/metadata/uid", &wanted.uid)];
    if published.capacity != wanted.capacity {
        patch.push(test("/spec/capacity", published.capacity));
        patch.push(add("/spec/capacity", wanted.capacity));
    }
    if published.properties != wanted.properties {
        patch.push(add("/spec/brokerProperties", &wanted.properties));
    }
    let slots = slots(published, wanted);
    if wanted.shared && wanted.device_usage.keys().any(|slot| !published.device_usage.contains_key(slot)) {
        patch.push(test("/metadata/resourceVersion", &published.version.0)); // nobody has claimed a new slot meanwhile
    }
    patch.extend(slots);
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

#[cfg(test)]
mod tests {
    use akri_model::instance::{Online, Version};
    use akri_model::names::{Key, Usage};

    use super::*;

    fn instance(shared: bool, nodes: &[&str], usage: &[(&str, &str)]) -> Instance {
        Instance {
            key: Key::new("default", "cam-1"),
            uid: "u".into(),
            version: Version::default(),
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

    fn applied(published: &Instance, wanted: &Instance) -> Option<Value> {
        let operations = agreement(published, wanted)?;
        let object = json!({
            "metadata": {"uid": published.uid, "resourceVersion": published.version.0},
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
    fn unchanged_instance_needs_no_patch() {
        let one = instance(true, &["a", "b"], &[("cam-1-0", "b")]);
        assert_eq!(agreement(&one, &one), None);
    }

    #[test]
    fn first_node_writes_what_all_agree_on() {
        let published = instance(true, &["b", "a"], &[("cam-1-0", "b")]);
        let mut wanted = instance(true, &["b"], &[("cam-1-0", "b"), ("cam-1-1", "")]);
        wanted.properties.insert("K".into(), "v".into());
        assert_eq!(nodes_before(&published, "b"), ["a"].into());
        assert_eq!(nodes_before(&published, "a"), BTreeSet::new());
        let spec = applied(&published, &wanted).unwrap();
        assert_eq!(spec["capacity"], 2);
        assert_eq!(spec["brokerProperties"], json!({"K": "v"}));
        assert_eq!(spec["deviceUsage"], json!({"cam-1-0": "b", "cam-1-1": ""}));
    }

    #[test]
    fn usage_of_shared_devices_is_never_overwritten() {
        let published = instance(true, &["a"], &[("cam-1-0", "b"), ("cam-1-1", ""), ("cam-1-2", "a")]);
        let wanted = instance(true, &["a"], &[("cam-1-0", "a")]);
        let spec = applied(&published, &wanted).unwrap();
        assert_eq!(spec["deviceUsage"], json!({"cam-1-0": "b", "cam-1-2": "a"}), "only the free one above goes");
    }

    #[test]
    fn usage_of_local_devices_is_written_by_this_node() {
        let published = instance(false, &["a"], &[("cam-1-0", "x"), ("cam-1-1", "a")]);
        let wanted = instance(false, &["a"], &[("cam-1-0", "a")]);
        let spec = applied(&published, &wanted).unwrap();
        assert_eq!((&spec["capacity"], &spec["deviceUsage"]), (&json!(1), &json!({"cam-1-0": "a"})));
    }

    #[test]
    fn slots_patch_says_what_it_expects() {
        let claimed = Usage::Configuration { vdev: "0".into(), node: "a".into() };
        let changes = [(0, (Some(Usage::Free), claimed.clone())), (1, (None, claimed))].into();
        let patch = SlotPatch { uid: "u".into(), version: Some(Version("7".into())), changes };
        assert_eq!(
            slots_patch("cam-1", &patch),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
                {"op": "test", "path": "/spec/deviceUsage/cam-1-0", "value": ""},
                {"op": "add", "path": "/spec/deviceUsage/cam-1-0", "value": "C:0:a"},
                {"op": "add", "path": "/spec/deviceUsage/cam-1-1", "value": "C:0:a"},
            ])
        );
    }

    #[test]
    fn an_entry_that_upstream_owns_is_removed_by_its_place() {
        let nodes = ["a", "b"].map(str::to_owned);
        let path = "/spec/nodes/1";
        let expected = json!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "test", "path": path, "value": "b"},
            {"op": "remove", "path": path},
        ]);
        assert_eq!(removing_entry("u", &nodes, "b"), Some(expected));
        assert_eq!(removing_entry("u", &nodes, "c"), None);
    }

    #[test]
    fn leaving_node_removes_its_label() {
        let joins = joining(&instance(true, &[], &[]), "a");
        assert_eq!((&joins["spec"]["nodes"], &joins["metadata"]["uid"]), (&json!(["a"]), &json!("u")));
        assert_eq!(joins["metadata"]["labels"], json!({node_label("a"): "a"}));
        let identity = Identity::from_text("i");
        let leaves = leaving("cam-1", "u", Some(&identity));
        assert_eq!(leaves["metadata"]["annotations"], json!({IDENTITY_ANNOTATION: "i"}));
        assert_eq!((&leaves["spec"]["nodes"], &leaves["metadata"]["uid"]), (&json!([]), &json!("u")));
        assert!(leaves["metadata"].get("labels").is_none());
    }
}
