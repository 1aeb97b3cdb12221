//! The patches that change an Instance. Each states what it expects to find, so that of two concurrent writers one must
//! retry.

use std::collections::{BTreeMap, BTreeSet};

use akri_api::IDENTITY_ANNOTATION;
use akri_api::document::pointer_token;
use akri_kube::json_patch::{add, remove, test};
use akri_model::instance::Instance;
use akri_model::instance_labels::{MANY_NODES_LABEL, node_label, node_label_value};
use akri_model::names::{Identity, slot_name};
use akri_model::slots::SlotPatch;
use kube::ResourceExt as _;
use serde_json::Value;

/// Returns the patch by which a node joins the nodes of an Instance (rule 23, rule 77): its entry, its label unless the Instance has so
/// many nodes that it has the label for all, and the identity if it has none, as one of upstream Akri. `None` if it has joined. Nodes that join at once do not disturb each other, unless
/// they make a list or a map that was empty.
pub(super) fn joining(object: &akri_api::Instance, identity: Option<&Identity>, node: &str) -> Option<Value> {
    let (metadata, mut changes, mut is_first) = (&object.metadata, Vec::new(), false);
    if !object.spec.nodes.iter().any(|entry| entry == node) {
        is_first = object.spec.nodes.is_empty();
        changes.push(if is_first { add("/spec/nodes", [node]) } else { add("/spec/nodes/-", node) });
    }
    let mut put = |map: &str, known: Option<&BTreeMap<String, String>>, key: &str, value: &str| {
        let path = format!("/metadata/{map}");
        match known.filter(|known| !known.is_empty()) {
            Some(known) if known.get(key).is_some_and(|known| known == value) => {}
            Some(_) => changes.push(add(&format!("{path}/{}", pointer_token(key)), value)),
            None => {
                is_first = true;
                changes.push(add(&path, BTreeMap::from([(key, value)])));
            }
        }
    };
    if !object.labels().contains_key(MANY_NODES_LABEL) {
        put("labels", metadata.labels.as_ref(), &node_label(node), node_label_value(node));
    }
    if let Some(identity) = identity {
        put("annotations", metadata.annotations.as_ref(), IDENTITY_ANNOTATION, identity.as_str());
    }
    if changes.is_empty() {
        return None;
    }
    let version = is_first.then(|| test("/metadata/resourceVersion", &metadata.resource_version));
    Some(Value::Array([test("/metadata/uid", &metadata.uid)].into_iter().chain(version).chain(changes).collect()))
}

/// Returns the patch by which a node leaves an Instance: its entry and its label go, and nothing of other nodes. The index of the
/// entry is of the version that was read: the test keeps a concurrent change from losing another node's entry. `None` if the
/// Instance has neither.
pub(super) fn leaving(object: &akri_api::Instance, node: &str) -> Option<Value> {
    let (mut patch, label) = (vec![test("/metadata/uid", &object.metadata.uid)], node_label(node));
    if let Some(index) = object.spec.nodes.iter().position(|entry| entry == node) {
        let path = format!("/spec/nodes/{index}");
        patch.extend([test(&path, node), remove(&path)]);
    }
    if object.labels().contains_key(&label) {
        patch.push(remove(&format!("/metadata/labels/{}", pointer_token(&label))));
    }
    (patch.len() > 1).then_some(Value::Array(patch))
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
pub(super) fn common_fields(published: &Instance, wanted: &Instance) -> Option<Value> {
    let mut patch = vec![test("/metadata/uid", &wanted.uid)];
    if published.capacity != wanted.capacity {
        patch.push(test("/spec/capacity", published.capacity));
        patch.push(add("/spec/capacity", wanted.capacity));
    }
    if published.properties != wanted.properties {
        patch.push(add("/spec/brokerProperties", &wanted.properties));
    }
    if wanted.shared && wanted.device_usage.keys().any(|slot| !published.device_usage.contains_key(slot)) {
        patch.push(test("/metadata/resourceVersion", &published.version.0)); // nobody has claimed a new slot meanwhile
    }
    let names: BTreeSet<&String> = published.device_usage.keys().chain(wanted.device_usage.keys()).collect();
    patch.extend(names.into_iter().flat_map(|name| slot(name, published, wanted)));
    (patch.len() > 1).then_some(Value::Array(patch))
}

/// Returns whether nothing but the usage of a local device differs, of which this node's journal has the truth (rule 77).
pub(super) fn only_usage_differs(published: &Instance, wanted: &Instance) -> bool {
    let is_same = (published.capacity, &published.properties) == (wanted.capacity, &wanted.properties);
    !wanted.shared && is_same && published.device_usage.keys().eq(wanted.device_usage.keys())
}

fn slot(name: &str, published: &Instance, wanted: &Instance) -> Vec<Value> {
    let (was, is) = (published.device_usage.get(name), wanted.device_usage.get(name));
    match (was, is) {
        (None, Some(is)) => vec![add(&pointer(name), if wanted.shared { "" } else { is.as_str() })],
        (Some(was), None) if was.is_empty() || !wanted.shared => {
            vec![test(&pointer(name), was), remove(&pointer(name))]
        }
        (Some(was), Some(is)) if was != is && !wanted.shared => vec![add(&pointer(name), is)],
        _ => Vec::new(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use akri_api::instance_from_model;
    use akri_model::instance::{Online, Version};
    use akri_model::names::{Key, Usage};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use serde_json::json;

    use super::*;

    pub(in crate::kubernetes) fn instance(shared: bool, nodes: &[&str], usage: &[(&str, &str)]) -> Instance {
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
        let operations = common_fields(published, wanted)?;
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
        assert_eq!(common_fields(&one, &one), None);
    }

    #[test] // rule 24
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

    #[test] // rule 24
    fn usage_of_shared_devices_is_never_overwritten() {
        let published = instance(true, &["a"], &[("cam-1-0", "b"), ("cam-1-1", ""), ("cam-1-2", "a")]);
        let wanted = instance(true, &["a"], &[("cam-1-0", "a")]);
        let spec = applied(&published, &wanted).unwrap();
        assert_eq!(spec["deviceUsage"], json!({"cam-1-0": "b", "cam-1-2": "a"}), "only the free one above goes");
    }

    #[test] // rule 24
    fn usage_of_local_devices_is_written_by_this_node() {
        let published = instance(false, &["a"], &[("cam-1-0", "x"), ("cam-1-1", "a")]);
        let wanted = instance(false, &["a"], &[("cam-1-0", "a")]);
        let spec = applied(&published, &wanted).unwrap();
        assert_eq!((&spec["capacity"], &spec["deviceUsage"]), (&json!(1), &json!({"cam-1-0": "a"})));
    }

    #[test] // rule 10, rule 41
    fn slots_patch_tests_what_it_expects() {
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

    fn patched(object: &akri_api::Instance, operations: Value) -> Option<akri_api::Instance> {
        let mut object = serde_json::to_value(object).unwrap();
        let patch: json_patch::Patch = serde_json::from_value(operations).unwrap();
        json_patch::patch(&mut object, &patch.0).ok()?;
        Some(serde_json::from_value(object).unwrap())
    }

    fn object(nodes: &[&str]) -> akri_api::Instance {
        let mut object = instance_from_model(
            &instance(true, nodes, &[("cam-1-0", "")]),
            None,
            k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
        );
        object.metadata.resource_version = Some("7".into());
        object
    }

    #[test] // rule 23
    fn nodes_join_and_leave_and_touch_nothing_of_others() {
        let identity = Identity::from_text("i");
        let first = joining(&object(&[]), Some(&identity), "a").unwrap();
        let one = patched(&object(&[]), first.clone()).unwrap();
        assert_eq!(joining(&one, Some(&identity), "a"), None, "it has joined");
        let concurrent = akri_api::Instance {
            metadata: ObjectMeta { resource_version: Some("8".into()), ..one.metadata.clone() },
            ..one.clone()
        };
        assert_eq!(
            patched(&concurrent, first),
            None,
            "what makes a map must not remove what another node put into one"
        );
        let joins = ["b", "c"].map(|node| joining(&one, Some(&identity), node).unwrap());
        let three = joins.into_iter().fold(concurrent, |object, join| patched(&object, join).unwrap());
        assert_eq!(three.spec.nodes, ["a", "b", "c"], "both saw the Instance of the first alone");
        assert_eq!(three.metadata.labels.as_ref().unwrap().len(), 3);
        assert_eq!(three.metadata.annotations, Some([(IDENTITY_ANNOTATION.to_owned(), "i".to_owned())].into()));
        let leave = leaving(&three, "b").unwrap();
        let two = patched(&three, leave.clone()).unwrap();
        assert_eq!(
            (&*two.spec.nodes, two.metadata.labels.as_ref().unwrap().len()),
            (&["a", "c"].map(str::to_owned)[..], 2)
        );
        assert_eq!(patched(&two, leave), None, "the index is another node's now");
        assert_eq!(leaving(&two, "b"), None);
    }

    #[test] // rule 23, rule 65
    fn instance_of_upstream_gets_label_and_identity_of_a_node_in_it() {
        let identity = Identity::from_text("i");
        let mut made = object(&["a"]);
        made.metadata.labels = Some([("app".to_owned(), "akri".to_owned())].into());
        let adopted = patched(&made, joining(&made, Some(&identity), "a").unwrap()).unwrap();
        assert_eq!((adopted.spec.nodes, adopted.metadata.labels.unwrap().len()), (vec!["a".to_owned()], 2));
        assert!(adopted.metadata.annotations.unwrap().contains_key(IDENTITY_ANNOTATION));
    }

    #[test] // rule 77
    fn usage_of_a_local_device_alone_is_a_copy() {
        let published = instance(false, &["a"], &[("cam-1-0", "")]);
        let claimed = instance(false, &["a"], &[("cam-1-0", "a")]);
        assert!(only_usage_differs(&published, &claimed));
        assert!(!only_usage_differs(&published, &instance(false, &["a"], &[("cam-1-0", "a"), ("cam-1-1", "")])));
        assert!(!only_usage_differs(&published, &instance(true, &["a"], &[("cam-1-0", "a")])));
        let mut changed = claimed.clone();
        changed.properties.insert("K".into(), "v".into());
        assert!(!only_usage_differs(&published, &changed));
    }
}
