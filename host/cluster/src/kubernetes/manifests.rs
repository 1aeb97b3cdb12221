//! A cache of Configurations and DiscoveryHandlers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use akri_api::validate::{self, FieldError, valid};
use akri_api::{Configuration, DiscoveryHandler, configuration_to_model, discover_on_to_model};
use akri_kube::watch::{Change, key_of, typed};
use akri_model::discover_on::{DiscoverOn, Role};
use akri_model::names::Key;
use akri_node::saved::Saved;
use kube::ResourceExt as _;
use kube::api::{DynamicObject, ObjectMeta};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tracing::error;

use crate::{HandlerObject, InvalidHandler, Manifests, send_changed};

/// The last valid version of each object of a kind, by UID: an agent that starts while one is invalid, or that is stricter than
/// the one before, keeps serving what was in force (rule 44).
type InForce<T> = Saved<BTreeMap<String, T>>;

/// Assembles the manifests from both watches. Clones share them.
#[derive(Clone)]
pub(super) struct Assembler {
    sources: Arc<Mutex<Sources>>,
    pub(super) manifests: watch::Sender<Arc<Manifests>>,
}

struct Sources {
    node: String,
    /// The labels of this node, once they are known.
    labels: Option<BTreeMap<String, String>>,
    /// `discoverOn` of the Configurations that have it.
    discover_on: BTreeMap<Key, DiscoverOn>,
    configurations: InForce<Configuration>,
    handlers: InForce<DiscoveryHandler>,
    /// Set once Configurations were listed. Before that, a missing one may still exist.
    has_configurations: bool,
    /// Set once DiscoveryHandlers were listed.
    has_handlers: bool,
}

impl Assembler {
    pub(super) fn new(node: &str, state: &Path) -> Self {
        let sources = Arc::new(Mutex::new(Sources {
            node: node.to_owned(),
            labels: None,
            discover_on: BTreeMap::new(),
            configurations: Saved::open(Some(state), "configurations-in-force.json"),
            handlers: Saved::open(Some(state), "handlers-in-force.json"),
            has_configurations: false,
            has_handlers: false,
        }));
        Self { sources, manifests: watch::Sender::default() }
    }

    pub(super) fn configurations(&self, change: Change<DynamicObject>) {
        self.change(|manifests, sources| {
            match change {
                Change::All(objects) => {
                    sources.has_configurations = true;
                    manifests.configurations.clear();
                    manifests.invalid.clear();
                    sources.discover_on.clear();
                    keep_listed(&mut sources.configurations, &objects);
                    objects.iter().for_each(|object| put_configuration(manifests, sources, object));
                }
                Change::Put(object) => put_configuration(manifests, sources, &object),
                Change::Deleted(metadata) => remove_configuration(manifests, sources, &metadata),
            }
            sources.configurations.save();
        });
    }

    /// Takes the labels of this node: with them its roles change.
    pub(super) fn labels(&self, labels: Option<BTreeMap<String, String>>) {
        self.change(|manifests, sources| {
            sources.labels = labels;
            for (key, configuration) in &mut manifests.configurations {
                let role = sources.role(key);
                if configuration.role != role {
                    Arc::make_mut(configuration).role = role;
                }
            }
        });
    }

    /// Returns the nodes that run discovery for a Configuration, if not all do (rule 126).
    pub(super) fn discovering(&self, configuration: &Key) -> Option<BTreeSet<String>> {
        self.sources.lock().discover_on.get(configuration).map(|on| on.nodes.clone())
    }

    pub(super) fn handlers(&self, change: Change<DynamicObject>) {
        self.change(|manifests, sources| {
            let saved = &mut sources.handlers;
            match change {
                Change::All(objects) => {
                    sources.has_handlers = true;
                    manifests.handlers.clear();
                    manifests.invalid_handlers.clear();
                    keep_listed(saved, &objects);
                    objects.iter().for_each(|object| put_handler(manifests, saved, object));
                }
                Change::Put(object) => put_handler(manifests, saved, &object),
                Change::Deleted(metadata) => remove_handler(manifests, saved, &metadata),
            }
            saved.save();
        });
    }

    fn change(&self, change: impl FnOnce(&mut Manifests, &mut Sources)) {
        let mut sources = self.sources.lock();
        let mut manifests = Manifests::clone(&self.manifests.borrow());
        change(&mut manifests, &mut sources);
        manifests.complete = sources.has_configurations && sources.has_handlers;
        send_changed(&self.manifests, manifests);
    }
}

impl Sources {
    fn role(&self, configuration: &Key) -> Role {
        let on = self.discover_on.get(configuration);
        on.map_or(Role::Every, |on| on.role(&self.node, self.labels.as_ref()))
    }
}

/// Returns the version of an object that is in force, if one was ever valid, and what is wrong with it as it is.
fn in_force<'a, T: DeserializeOwned + PartialEq>(
    saved: &'a mut InForce<T>,
    object: &DynamicObject,
    problems: fn(&T) -> Vec<FieldError>,
) -> (Option<&'a T>, Option<String>) {
    let uid = object.metadata.uid.as_deref().unwrap_or_default();
    // What changes without an edit is not kept: it would be written each time.
    let mut spec = object.clone();
    (spec.metadata.resource_version, spec.metadata.managed_fields) = (None, None);
    if let Some(fields) = spec.data.as_object_mut() {
        fields.remove("status");
    }
    let why = match typed(&spec).and_then(|object| valid(object, problems)) {
        Ok(valid) if saved.get(uid) == Some(&valid) => None,
        Ok(valid) => {
            saved.insert(uid.to_owned(), valid);
            None
        }
        Err(why) => Some(why),
    };
    (saved.get(uid), why)
}

/// Forgets the objects that are not listed.
fn keep_listed<T>(saved: &mut InForce<T>, objects: &[DynamicObject]) {
    let listed: BTreeSet<&String> = objects.iter().filter_map(|object| object.metadata.uid.as_ref()).collect();
    saved.retain(|uid, _| listed.contains(uid));
}

fn remove_configuration(manifests: &mut Manifests, sources: &mut Sources, metadata: &ObjectMeta) {
    let key = key_of(metadata);
    manifests.configurations.remove(&key);
    manifests.invalid.remove(&key);
    sources.discover_on.remove(&key);
    sources.configurations.remove(metadata.uid.as_deref().unwrap_or_default());
}

/// Returns the nodes that the controller has chosen.
fn chosen(object: &DynamicObject) -> BTreeSet<String> {
    let nodes = object.data.pointer("/status/discoverOn").and_then(Value::as_array);
    nodes.into_iter().flatten().filter_map(|node| Some(node.as_str()?.to_owned())).collect()
}

/// Stores a Configuration. An invalid one keeps its last valid version in force, also if that was before the agent started
/// (rule 44); the controller reports it in the status.
fn put_configuration(manifests: &mut Manifests, sources: &mut Sources, object: &DynamicObject) {
    if object.metadata.deletion_timestamp.is_some() {
        return remove_configuration(manifests, sources, &object.metadata); // it counts as deleted (rule 26)
    }
    let key = key_of(&object.metadata);
    let (last, why) = in_force(&mut sources.configurations, object, validate::configuration);
    let on = last.and_then(|last| discover_on_to_model(last, chosen(object)));
    let mut last = last.map(configuration_to_model);
    sources.discover_on.remove(&key);
    sources.discover_on.extend(on.map(|on| (key.clone(), on)));
    last.iter_mut().for_each(|last| last.role = sources.role(&key));
    manifests.configurations.remove(&key);
    manifests.configurations.extend(last.map(|last| (key.clone(), Arc::new(last))));
    manifests.invalid.remove(&key);
    if let Some(why) = why {
        error!(configuration = %key, "ignoring an invalid object; what was in force stays: {why}");
        manifests.invalid.insert(key);
    }
}

fn remove_handler(manifests: &mut Manifests, saved: &mut InForce<DiscoveryHandler>, metadata: &ObjectMeta) {
    let name = key_of(metadata).name;
    manifests.handlers.remove(&name);
    manifests.invalid_handlers.remove(&name);
    saved.remove(metadata.uid.as_deref().unwrap_or_default());
}

/// Stores a DiscoveryHandler. An invalid one keeps its last valid version, and without one the name that it claims (rule 132).
fn put_handler(manifests: &mut Manifests, saved: &mut InForce<DiscoveryHandler>, object: &DynamicObject) {
    if object.metadata.deletion_timestamp.is_some() {
        return remove_handler(manifests, saved, &object.metadata); // it counts as deleted (rule 26)
    }
    let name = object.name_any();
    let (last, why) = in_force(saved, object, validate::discovery_handler);
    manifests.handlers.remove(&name);
    manifests.handlers.extend(last.map(|last| (name.clone(), Arc::new(HandlerObject::from(last)))));
    manifests.invalid_handlers.remove(&name);
    manifests.invalid_handlers.extend(why.map(|why| {
        let claimed = object.data.pointer("/spec/name").and_then(Value::as_str).unwrap_or(&name).to_owned();
        let ObjectMeta { uid, generation, .. } = &object.metadata;
        let generation = (uid.clone().unwrap_or_default(), generation.unwrap_or_default());
        (name, InvalidHandler { name: claimed, why, generation })
    }));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, uid: &str, spec: Value) -> DynamicObject {
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration",
            "metadata": {"namespace": "default", "name": name, "uid": uid}, "spec": spec,
        });
        serde_json::from_value(object).unwrap()
    }

    fn camera(uid: &str, capacity: i64) -> DynamicObject {
        object("cam", uid, json!({"discoveryHandler": {"name": "udev"}, "capacity": capacity}))
    }

    fn capacities(assembler: &Assembler) -> Vec<u32> {
        assembler.manifests.borrow().configurations.values().map(|configuration| configuration.capacity).collect()
    }

    #[test]
    fn manifests_are_complete_after_both_kinds_are_listed() {
        let state = tempfile::tempdir().unwrap();
        let assembler = Assembler::new("a", state.path());
        assembler.configurations(Change::All(vec![camera("u", 1)]));
        assert!(!assembler.manifests.borrow().complete);
        assembler.handlers(Change::All(Vec::new()));
        assert!(assembler.manifests.borrow().complete);
    }

    #[test] // rule 44
    fn invalid_object_is_served_as_saved_after_a_restart() {
        let state = tempfile::tempdir().unwrap();
        let start = || Assembler::new("a", state.path());
        start().configurations(Change::All(vec![camera("u", 2)]));
        let restarted = start();
        restarted.configurations(Change::All(vec![camera("u", 0)]));
        assert_eq!(capacities(&restarted), [2]);
        let invalid = restarted.manifests.borrow().invalid.clone();
        assert_eq!(invalid, [Key::new("default", "cam")].into());
        restarted.configurations(Change::Put(camera("u", 3)));
        assert!(restarted.manifests.borrow().invalid.is_empty());
        let another = start();
        another.configurations(Change::All(vec![camera("another", 0)]));
        assert!(capacities(&another).is_empty(), "another object of the name was never valid");
    }

    #[test] // rule 44
    fn invalid_edit_keeps_the_previous_version() {
        let state = tempfile::tempdir().unwrap();
        let assembler = Assembler::new("a", state.path());
        assembler.configurations(Change::Put(camera("u", 2)));
        assembler.configurations(Change::Put(camera("u", 0)));
        assert_eq!(capacities(&assembler), [2]);
        assembler.configurations(Change::All(vec![camera("u", 0)]));
        assert_eq!(capacities(&assembler), [2], "also when it is listed anew");
        assembler.configurations(Change::All(vec![camera("another", 0)]));
        assert!(capacities(&assembler).is_empty(), "but not of another object of the name");
        let typeless = object("cam", "u", json!({"discoveryHandler": 3}));
        assembler.configurations(Change::Put(typeless));
        assert!(capacities(&assembler).is_empty());
    }

    #[test] // rule 126
    fn role_changes_with_the_choice_and_the_labels() {
        let state = tempfile::tempdir().unwrap();
        let assembler = Assembler::new("a", state.path());
        let show = |nodes: &[&str]| {
            let on = json!({"count": 1, "nodeSelector": {"zone": "x"}});
            let mut object = object("cam", "u", json!({"discoveryHandler": {"name": "onvif"}, "discoverOn": on}));
            object.data["status"] = json!({"discoverOn": nodes});
            assembler.configurations(Change::Put(object));
        };
        let role = || assembler.manifests.borrow().configurations.values().next().unwrap().role;
        show(&[]);
        assert_eq!(role(), Role::Follows, "until its labels are known");
        assembler.labels(Some(BTreeMap::new()));
        assert_eq!(role(), Role::Excluded);
        assembler.labels(Some([("zone".to_owned(), "x".to_owned())].into()));
        assert_eq!(role(), Role::Follows);
        show(&["a"]);
        assert_eq!(role(), Role::Probes);
        assembler.configurations(Change::Put(camera("u", 1)));
        assert_eq!(role(), Role::Every);
    }

    #[test] // rule 26
    fn deleted_and_unlisted_objects_are_removed() {
        let state = tempfile::tempdir().unwrap();
        let assembler = Assembler::new("a", state.path());
        assembler.configurations(Change::Put(camera("u", 2)));
        let mut deleting = camera("u", 2);
        deleting.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assembler.configurations(Change::Put(deleting));
        assert!(capacities(&assembler).is_empty());
        assembler.configurations(Change::Put(camera("u", 2)));
        assembler.configurations(Change::All(Vec::new()));
        assert!(capacities(&assembler).is_empty());
    }

    fn handler(uid: &str, spec: Value) -> DynamicObject {
        let mut object = object("node-devices", uid, spec);
        object.types.as_mut().unwrap().kind = "DiscoveryHandler".to_owned();
        object
    }

    fn files(assembler: &Assembler) -> Vec<String> {
        let manifests = assembler.manifests.borrow().clone();
        manifests.handlers.values().map(|handler| format!("{:?}", handler.source)).collect()
    }

    #[test] // rule 44, rule 132
    fn invalid_handler_is_kept_as_saved_after_a_restart() {
        let state = tempfile::tempdir().unwrap();
        let start = || Assembler::new("a", state.path());
        let valid = || handler("u", json!({"name": "udev", "component": {"file": "a.wasm"}}));
        let invalid = || handler("u", json!({"name": "udev", "component": {}}));
        start().handlers(Change::All(vec![valid()]));
        let restarted = start();
        restarted.handlers(Change::All(vec![invalid()]));
        assert_eq!(files(&restarted).len(), 1);
        let of = |assembler: &Assembler| assembler.manifests.borrow().invalid_handlers.get("node-devices").cloned();
        assert_eq!(of(&restarted).unwrap().name, "udev");
        restarted.handlers(Change::Put(valid()));
        assert_eq!((files(&restarted).len(), of(&restarted)), (1, None));
        restarted.handlers(Change::Put(invalid()));
        assert_eq!(files(&restarted).len(), 1, "nor does an edit stop it");
        restarted.handlers(Change::All(vec![handler("another", json!({"name": 3}))]));
        assert_eq!(files(&restarted).len(), 0, "another object of the name was never valid");
        assert_eq!(of(&restarted).unwrap().name, "node-devices", "it claims its own name");
        restarted.handlers(Change::All(Vec::new()));
        assert_eq!(of(&restarted), None);
    }

    #[test]
    fn status_of_a_handler_is_not_written_to_disk() {
        let state = tempfile::tempdir().unwrap();
        let assembler = Assembler::new("a", state.path());
        let mut object = handler("u", json!({"component": {"file": "a.wasm"}}));
        object.metadata.resource_version = Some("77".to_owned());
        object.data["status"] = json!({"devices": 4711});
        assembler.handlers(Change::Put(object));
        let written = std::fs::read_to_string(state.path().join("handlers-in-force.json")).unwrap();
        assert!(written.contains("a.wasm") && !written.contains("77") && !written.contains("4711"), "{written}");
    }
}
