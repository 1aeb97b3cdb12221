//! From the opaque specs of a Configuration to the objects that are created (rule 38, rule 54). What is not of the expected
//! shape is left as it is: the API server says what is wrong with it better than this could.

use std::collections::BTreeMap;

use blake2::Blake2b;
use blake2::digest::consts::U8;
use serde_json::{Map, Value, json};

use crate::names::{label_value, pod_name};
use akri_model::names::{RESOURCE_PREFIX, hex, resource_name};

/// Stands for the Instance's resource in the limits and requests of a broker.
pub const PLACEHOLDER: &str = "{{PLACEHOLDER}}";

/// Annotation of a broker Pod: the mark of the spec it was created with. Of a Service: the hash of its spec.
pub const BROKER_HASH: &str = "akri.sh/broker-hash";

/// Annotation of a broker Pod: how many ended before it.
pub const FAILURES: &str = "akri.sh/broker-failures";

/// Annotation of an Instance: the Job that was last created for it.
pub const JOB_RECORD: &str = "akri.sh/broker-job";

/// Label of all objects that the controller makes.
pub const SELECTOR: (&str, &str) = ("controller", "akri.sh");

/// Label: the Configuration's name.
const CONFIGURATION_LABEL: &str = "akri.sh/configuration";

/// Label: the Instance's name.
pub const INSTANCE_LABEL: &str = "akri.sh/instance";

const NODE_LABEL: &str = "akri.sh/target-node";

/// An opaque object.
pub type Manifest = Map<String, Value>;

/// Annotations that the user wrote.
pub type Annotations = BTreeMap<String, String>;

/// The owner of an object, by UID.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    /// `Instance` or `Configuration`.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

impl Owner<'_> {
    /// Returns the label that its brokers have, with its name.
    pub(crate) fn label(self) -> &'static str {
        if self.kind == "Instance" { INSTANCE_LABEL } else { CONFIGURATION_LABEL }
    }

    /// Returns the metadata of an object that it owns.
    pub(crate) fn metadata(self, namespace: &str, name: &str, labels: Manifest) -> Manifest {
        let reference = json!({
            "apiVersion": "akri.sh/v0", "kind": self.kind, "name": self.name, "uid": self.uid,
            "controller": true, "blockOwnerDeletion": false,
        });
        let fields = [
            ("namespace", Value::from(namespace)),
            ("name", name.into()),
            ("labels", labels.into()),
            ("ownerReferences", json!([reference])),
        ];
        fields.map(|(field, value)| (field.to_owned(), value)).into_iter().collect()
    }
}

/// The Instance that a broker is for.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
    /// Its Configuration's name.
    pub configuration: &'a str,
    /// True if several nodes see the device.
    pub shared: bool,
}

impl<'a> Target<'a> {
    /// The owner reference of what is made for it.
    pub fn owner(&self) -> Owner<'a> {
        Owner { kind: "Instance", name: self.name, uid: self.uid }
    }

    fn labels(&self, app: &str) -> Manifest {
        let mut labels = self.template_labels();
        labels.insert("app".to_owned(), label_value(app).into());
        labels
    }

    fn template_labels(&self) -> Manifest {
        let mut labels = Map::new();
        labels.insert(SELECTOR.0.to_owned(), SELECTOR.1.into());
        labels.insert(CONFIGURATION_LABEL.to_owned(), label_value(self.configuration).into());
        labels.insert(INSTANCE_LABEL.to_owned(), label_value(self.name).into());
        labels
    }
}

/// The mark of what is made of a spec. It is the hash of what the user wrote, so that a program that makes something else of that
/// replaces nothing (rule 118).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecMark {
    /// The mark that new objects get.
    pub text: String,
    /// The hash of what is made of the spec, with which version 0.1 marked it.
    pub(crate) former: String,
}

impl SpecMark {
    fn new(written: &Manifest, annotations: &Annotations, made: &Value) -> Self {
        let spec = Value::Object(written.clone());
        let written = if annotations.is_empty() { spec } else { json!([spec, annotations]) };
        Self { text: spec_hash(&written), former: spec_hash(made) }
    }

    /// Returns whether an object is of this spec, by that mark: of today, of version 0.1, or none at all, as of upstream Akri.
    pub fn is_of_spec(&self, mark: &str) -> bool {
        mark.is_empty() || mark == self.text || mark == self.former
    }
}

/// Returns the broker Pod of an Instance on a node, with the mark of its spec.
pub fn pod(
    target: &Target<'_>,
    written: &Manifest,
    annotations: &Annotations,
    node: &str,
    failures: u32,
) -> (Value, SpecMark) {
    let mut spec = written.clone();
    request_device(&mut spec, &resource_name(target.name));
    pin_to_node(&mut spec, node);
    let spec = Value::Object(spec);
    let mark = SpecMark::new(written, annotations, &spec);
    let name = pod_name(target.name, node, target.shared);
    let mut labels = target.labels(&name);
    labels.insert(NODE_LABEL.to_owned(), label_value(node).into());
    let mut annotations = annotations.clone();
    annotations.insert(BROKER_HASH.to_owned(), mark.text.clone());
    if failures > 0 {
        annotations.insert(FAILURES.to_owned(), failures.to_string());
    }
    let mut metadata = target.owner().metadata(target.namespace, &name, labels);
    metadata.insert("annotations".to_owned(), json!(annotations));
    (json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}), mark)
}

/// Returns the Job of an Instance under a name of [`crate::job_name`], with the mark of its spec.
pub fn job(target: &Target<'_>, written: &Manifest, name: &str) -> (Value, SpecMark) {
    let mut spec = written.clone();
    let template = spec.get_mut("template").and_then(Value::as_object_mut);
    if let Some(template) = template {
        if let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut) {
            request_device(pod, &resource_name(target.name));
        }
        if let Some(labels) = object(template, "metadata").and_then(|metadata| object(metadata, "labels")) {
            labels.extend(target.template_labels());
        }
    }
    let spec = Value::Object(spec);
    let mark = SpecMark::new(written, &Annotations::new(), &spec);
    let metadata = target.owner().metadata(target.namespace, name, target.labels(name));
    (json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}), mark)
}

/// Returns whether a broker requests the Instance's resource, by the placeholder or because it requests none of Akri's.
pub fn needs_instance(pod_spec: &Manifest) -> bool {
    let names: Vec<&String> = containers(pod_spec).flat_map(resource_names).collect();
    names.iter().any(|name| *name == PLACEHOLDER) || !names.iter().any(|name| name.starts_with(RESOURCE_PREFIX))
}

/// Returns the hash of a spec; the order of fields makes no difference.
pub fn spec_hash(spec: &Value) -> String {
    let mut text = String::new();
    write_canonical(spec, &mut text);
    hex::<Blake2b<U8>>(&text)
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_unstable_by_key(|(key, _)| key.as_str());
            text.push('{');
            for (key, value) in sorted {
                text.push_str(&Value::from(key.as_str()).to_string());
                write_canonical(value, text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            items.iter().for_each(|item| write_canonical(item, text));
            text.push(']');
        }
        scalar => {
            text.push_str(&scalar.to_string());
            text.push(',');
        }
    }
}

/// Replaces the placeholder. Without one, and without any resource of Akri's, the first container asks for the device.
fn request_device(pod_spec: &mut Manifest, resource: &str) {
    let is_default =
        needs_instance(pod_spec) && !containers(pod_spec).flat_map(resource_names).any(|n| n == PLACEHOLDER);
    for container in containers_mut(pod_spec) {
        for list in ["limits", "requests"] {
            rename_placeholder(container, list, resource);
        }
    }
    if is_default {
        request_in_first_container(pod_spec, resource);
    }
}

fn rename_placeholder(container: &mut Manifest, list: &str, resource: &str) {
    let quantities = container.get_mut("resources").and_then(|resources| resources.get_mut(list));
    let Some(quantities) = quantities.and_then(Value::as_object_mut) else { return };
    if let Some(quantity) = quantities.remove(PLACEHOLDER) {
        quantities.insert(resource.to_owned(), quantity);
    }
}

fn request_in_first_container(pod_spec: &mut Manifest, resource: &str) {
    let first = pod_spec.get_mut("containers").and_then(|containers| containers.get_mut(0));
    let Some(resources) = first.and_then(Value::as_object_mut).and_then(|first| object(first, "resources")) else {
        return;
    };
    for list in ["limits", "requests"] {
        if let Some(quantities) = object(resources, list) {
            quantities.insert(resource.to_owned(), "1".into());
        }
    }
}

/// The object in a field, which is made if there is none; nothing if something else is there.
fn object<'a>(of: &'a mut Manifest, field: &str) -> Option<&'a mut Manifest> {
    let value = of.entry(field).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];

fn containers(pod_spec: &Manifest) -> impl Iterator<Item = &Manifest> {
    let lists = CONTAINER_LISTS.iter().filter_map(|list| pod_spec.get(*list)?.as_array());
    lists.flatten().filter_map(Value::as_object)
}

fn containers_mut(pod_spec: &mut Manifest) -> impl Iterator<Item = &mut Manifest> {
    let is_list = |(name, _): &(&String, &mut Value)| CONTAINER_LISTS.contains(&name.as_str());
    let lists = pod_spec.iter_mut().filter(is_list).filter_map(|(_, list)| list.as_array_mut());
    lists.flatten().filter_map(Value::as_object_mut)
}

fn resource_names(container: &Manifest) -> impl Iterator<Item = &String> {
    let resources = container.get("resources");
    let lists = ["limits", "requests"].into_iter().filter_map(move |list| resources?.get(list)?.as_object());
    lists.flat_map(Map::keys)
}

/// ANDs "on this node" into each of the user's terms of required node affinity, since terms are alternatives. A term without
/// any requirement matches nothing and stays like that.
fn pin_to_node(pod_spec: &mut Manifest, node: &str) {
    let required = object(pod_spec, "affinity")
        .and_then(|affinity| object(affinity, "nodeAffinity"))
        .and_then(|affinity| object(affinity, "requiredDuringSchedulingIgnoredDuringExecution"));
    let Some(required) = required else { return };
    let terms = required.entry("nodeSelectorTerms").or_insert(Value::Null);
    let here = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    match terms.as_array_mut() {
        Some(terms) if !terms.is_empty() => {
            for term in terms.iter_mut().filter_map(Value::as_object_mut).filter(|term| has_requirements(term)) {
                let fields = term.entry("matchFields").or_insert(Value::Null);
                match fields.as_array_mut() {
                    Some(fields) => fields.push(here.clone()),
                    None => *fields = json!([here]),
                }
            }
        }
        _ => *terms = json!([{"matchFields": [here]}]),
    }
}

fn has_requirements(term: &Manifest) -> bool {
    term.values().any(|list| list.as_array().is_some_and(|list| !list.is_empty()))
}

#[cfg(test)]
mod tests;
