//! A cache of Configurations and DiscoveryHandlers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use akri_api::validate::{self, valid};
use akri_api::{Configuration, configuration_to_model};
use akri_kube::watch::{Change, key_of, typed};
use kube::ResourceExt as _;
use kube::api::{DynamicObject, ObjectMeta};
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::error;

use crate::saved::Saved;
use crate::{HandlerObject, Manifests, send_changed};

/// The last valid version of each Configuration, by UID: an agent that starts while one is invalid, or that is stricter than
/// the one before, keeps serving what was in force (rule 44).
type SavedConfigurations = Saved<BTreeMap<String, Configuration>>;

/// Assembles the manifests from both watches. Clones share them.
#[derive(Clone)]
pub(super) struct Assembler {
    sources: Arc<Mutex<Sources>>,
    sender: watch::Sender<Arc<Manifests>>,
}

struct Sources {
    saved: SavedConfigurations,
    /// Set once Configurations were listed. Before that, a missing one may still exist.
    has_configurations: bool,
    /// Set once DiscoveryHandlers were listed.
    has_handlers: bool,
}

impl Assembler {
    pub(super) fn new(state: &Path) -> Self {
        let saved = Saved::open(state, "configurations-in-force.json");
        let sources = Arc::new(Mutex::new(Sources { saved, has_configurations: false, has_handlers: false }));
        Self { sources, sender: watch::Sender::new(Arc::default()) }
    }

    pub(super) fn manifests(&self) -> watch::Receiver<Arc<Manifests>> {
        self.sender.subscribe()
    }

    pub(super) fn configurations(&self, change: Change<DynamicObject>) {
        self.change(|manifests, sources| {
            sources.has_configurations |= matches!(change, Change::All(_));
            take_configurations(manifests, &mut sources.saved, change);
            sources.saved.save();
        });
    }

    pub(super) fn handlers(&self, change: Change<DynamicObject>) {
        self.change(|manifests, sources| {
            sources.has_handlers |= matches!(change, Change::All(_));
            take_handlers(&mut manifests.handlers, change);
        });
    }

    fn change(&self, change: impl FnOnce(&mut Manifests, &mut Sources)) {
        let mut sources = self.sources.lock();
        let mut manifests = Manifests::clone(&self.sender.borrow());
        change(&mut manifests, &mut sources);
        manifests.complete = sources.has_configurations && sources.has_handlers;
        send_changed(&self.sender, manifests);
    }
}

type Handlers = BTreeMap<String, Arc<HandlerObject>>;

fn take_configurations(manifests: &mut Manifests, saved: &mut SavedConfigurations, change: Change<DynamicObject>) {
    match change {
        Change::All(objects) => {
            let before = std::mem::take(&mut manifests.configurations);
            manifests.invalid.clear();
            saved
                .value
                .retain(|uid, _| objects.iter().any(|object| object.metadata.uid.as_deref() == Some(uid.as_str())));
            for object in &objects {
                if let Some(kept) =
                    before.get(&key_of(&object.metadata)).filter(|kept| object.metadata.uid.as_ref() == Some(&kept.uid))
                {
                    manifests.configurations.insert(key_of(&object.metadata), Arc::clone(kept));
                }
                put_configuration(manifests, saved, object);
            }
        }
        Change::Put(object) => put_configuration(manifests, saved, &object),
        Change::Deleted(metadata) => remove_configuration(manifests, saved, &metadata),
    }
}

fn remove_configuration(manifests: &mut Manifests, saved: &mut SavedConfigurations, metadata: &ObjectMeta) {
    manifests.configurations.remove(&key_of(metadata));
    manifests.invalid.remove(&key_of(metadata));
    saved.value.remove(metadata.uid.as_deref().unwrap_or_default());
}

/// Stores a Configuration. An invalid one keeps its last valid version in force, also if that was before the agent started
/// (rule 44); the controller reports it in the status.
fn put_configuration(manifests: &mut Manifests, saved: &mut SavedConfigurations, object: &DynamicObject) {
    if object.metadata.deletion_timestamp.is_some() {
        return remove_configuration(manifests, saved, &object.metadata); // it counts as deleted (rule 26)
    }
    let (key, uid) = (key_of(&object.metadata), object.metadata.uid.as_deref().unwrap_or_default());
    let known = &mut manifests.configurations;
    match typed(object).and_then(|object| valid(object, validate::configuration)) {
        Ok(configuration) => {
            known.insert(key.clone(), Arc::new(configuration_to_model(&configuration)));
            manifests.invalid.remove(&key);
            saved.value.insert(uid.to_owned(), configuration);
        }
        Err(why) => {
            error!(configuration = %key, "ignoring an invalid object; what was in force stays: {why}");
            let is_known = known.get(&key).is_some_and(|known| known.uid == uid);
            if !is_known {
                known.remove(&key);
                let last = saved.value.get(uid).map(|last| Arc::new(configuration_to_model(last)));
                known.extend(last.map(|last| (key.clone(), last)));
            }
            manifests.invalid.insert(key);
        }
    }
}

fn take_handlers(known: &mut Handlers, change: Change<DynamicObject>) {
    match change {
        Change::All(objects) => {
            known.retain(|name, _| objects.iter().any(|object| object.name_any() == *name));
            objects.iter().for_each(|object| put_handler(known, object));
        }
        Change::Put(object) => put_handler(known, &object),
        Change::Deleted(metadata) => drop(known.remove(&key_of(&metadata).name)),
    }
}

fn put_handler(known: &mut Handlers, object: &DynamicObject) {
    match typed(object).and_then(|object| valid(object, validate::discovery_handler)) {
        Ok(handler) => drop(known.insert(object.name_any(), Arc::new(HandlerObject::from(&handler)))),
        Err(why) => error!(object = object.name_any(), "ignoring an invalid DiscoveryHandler: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use akri_model::names::Key;
    use serde_json::{Value, json};

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
        assembler.manifests().borrow().configurations.values().map(|configuration| configuration.capacity).collect()
    }

    #[test]
    fn manifests_are_complete_after_both_kinds_are_listed() {
        let state = tempfile::tempdir().unwrap();
        let assembler = Assembler::new(state.path());
        assembler.configurations(Change::All(vec![camera("u", 1)]));
        assert!(!assembler.manifests().borrow().complete);
        assembler.handlers(Change::All(Vec::new()));
        assert!(assembler.manifests().borrow().complete);
    }

    #[test] // rule 44
    fn invalid_object_is_served_as_saved_after_a_restart() {
        let state = tempfile::tempdir().unwrap();
        let start = || Assembler::new(state.path());
        start().configurations(Change::All(vec![camera("u", 2)]));
        let restarted = start();
        restarted.configurations(Change::All(vec![camera("u", 0)]));
        assert_eq!(capacities(&restarted), [2]);
        let invalid = restarted.manifests().borrow().invalid.clone();
        assert_eq!(invalid, [Key::new("default", "cam")].into());
        restarted.configurations(Change::Put(camera("u", 3)));
        assert!(restarted.manifests().borrow().invalid.is_empty());
        let another = start();
        another.configurations(Change::All(vec![camera("another", 0)]));
        assert!(capacities(&another).is_empty(), "another object of the name was never valid");
    }

    #[test] // rule 44
    fn invalid_edit_keeps_the_previous_version() {
        let state = tempfile::tempdir().unwrap();
        let assembler = Assembler::new(state.path());
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

    #[test] // rule 26
    fn deleted_and_unlisted_objects_are_removed() {
        let state = tempfile::tempdir().unwrap();
        let assembler = Assembler::new(state.path());
        assembler.configurations(Change::Put(camera("u", 2)));
        let mut deleting = camera("u", 2);
        deleting.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assembler.configurations(Change::Put(deleting));
        assert!(capacities(&assembler).is_empty());
        assembler.configurations(Change::Put(camera("u", 2)));
        assembler.configurations(Change::All(Vec::new()));
        assert!(capacities(&assembler).is_empty());
    }
}
