//! Configurations and DiscoveryHandlers as the API server tells them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use akri_api::validate::{self, FieldError};
use akri_api::{DiscoveryHandler, configuration_to_model};
use akri_model::names::Key;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use tokio::sync::watch;
use tracing::error;

use super::feed::{Change, typed};
use crate::cluster::{HandlerObject, Manifests};

/// Puts the manifests together. Clones are the same.
#[derive(Clone)]
pub(super) struct Assembler {
    listed: Arc<Mutex<Listed>>,
    sender: watch::Sender<Arc<Manifests>>,
}

/// What has been listed once: before that, what is not there may only not have been told yet.
#[derive(Default)]
struct Listed {
    configurations: bool,
    handlers: bool,
}

impl Assembler {
    pub(super) fn new() -> Self {
        Self { listed: Arc::default(), sender: watch::Sender::new(Arc::default()) }
    }

    pub(super) fn manifests(&self) -> watch::Receiver<Arc<Manifests>> {
        self.sender.subscribe()
    }

    pub(super) fn configurations(&self, change: Change) {
        let listed = matches!(change, Change::All(_));
        self.change(
            |manifests| take_configurations(&mut manifests.configurations, change),
            |all| {
                all.configurations |= listed;
            },
        );
    }

    pub(super) fn handlers(&self, change: Change) {
        let listed = matches!(change, Change::All(_));
        self.change(|manifests| take_handlers(&mut manifests.handlers, change), |all| all.handlers |= listed);
    }

    fn change(&self, change: impl FnOnce(&mut Manifests), list: impl FnOnce(&mut Listed)) {
        let complete = {
            let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
            list(&mut listed);
            listed.configurations && listed.handlers
        };
        self.sender.send_if_modified(|current| {
            let mut manifests = Manifests::clone(current);
            change(&mut manifests);
            manifests.complete = complete;
            let changed = **current != manifests;
            *current = Arc::new(manifests);
            changed
        });
    }
}

type Configurations = BTreeMap<Key, Arc<akri_model::configuration::Configuration>>;
type Handlers = BTreeMap<String, Arc<HandlerObject>>;

fn take_configurations(known: &mut Configurations, change: Change) {
    match change {
        Change::All(objects) => {
            let before = std::mem::take(known);
            for object in &objects {
                if let Some(kept) =
                    before.get(&key(object)).filter(|kept| object.metadata.uid.as_ref() == Some(&kept.uid))
                {
                    known.insert(key(object), Arc::clone(kept));
                }
                put_configuration(known, object);
            }
        }
        Change::Put(object) => put_configuration(known, &object),
        Change::Gone(object) => drop(known.remove(&key(&object))),
    }
}

/// An object that makes no sense leaves in force what it was before (invariant 8); the controller says so in its status.
fn put_configuration(known: &mut Configurations, object: &DynamicObject) {
    if object.metadata.deletion_timestamp.is_some() {
        known.remove(&key(object)); // it counts as gone (rule 26)
        return;
    }
    match checked(object, validate::configuration) {
        Ok(configuration) => drop(known.insert(key(object), Arc::new(configuration_to_model(&configuration)))),
        Err(why) => error!(configuration = %key(object), "not valid, and not used: {why}"),
    }
}

fn take_handlers(known: &mut Handlers, change: Change) {
    match change {
        Change::All(objects) => {
            known.retain(|name, _| objects.iter().any(|object| object.name_any() == *name));
            objects.iter().for_each(|object| put_handler(known, object));
        }
        Change::Put(object) => put_handler(known, &object),
        Change::Gone(object) => drop(known.remove(&object.name_any())),
    }
}

fn put_handler(known: &mut Handlers, object: &DynamicObject) {
    match checked::<DiscoveryHandler>(object, validate::discovery_handler) {
        Ok(handler) => drop(known.insert(object.name_any(), Arc::new(HandlerObject::from(&handler)))),
        Err(why) => error!(object = object.name_any(), "the DiscoveryHandler is not valid, and not used: {why}"),
    }
}

/// An object as its type, if it is valid beyond its schema, too.
fn checked<T: serde::de::DeserializeOwned>(
    object: &DynamicObject,
    validate: impl Fn(&T) -> Vec<FieldError>,
) -> Result<T, String> {
    let typed: T = typed(object)?;
    let errors: Vec<String> =
        validate(&typed).iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
    if errors.is_empty() { Ok(typed) } else { Err(errors.join("; ")) }
}

fn key(object: &DynamicObject) -> Key {
    Key::new(object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
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
    fn nothing_is_complete_before_both_kinds_were_listed() {
        let assembler = Assembler::new();
        assembler.configurations(Change::All(vec![camera("u", 1)]));
        assert!(!assembler.manifests().borrow().complete);
        assembler.handlers(Change::All(Vec::new()));
        assert!(assembler.manifests().borrow().complete);
    }

    #[test]
    fn an_edit_that_makes_no_sense_leaves_what_was_in_force() {
        let assembler = Assembler::new();
        assembler.configurations(Change::Put(Box::new(camera("u", 2))));
        assembler.configurations(Change::Put(Box::new(camera("u", 0))));
        assert_eq!(capacities(&assembler), [2]);
        assembler.configurations(Change::All(vec![camera("u", 0)]));
        assert_eq!(capacities(&assembler), [2], "also when it is listed anew");
        assembler.configurations(Change::All(vec![camera("another", 0)]));
        assert!(capacities(&assembler).is_empty(), "but not of another object of the name");
        let typeless = object("cam", "u", json!({"discoveryHandler": 3}));
        assembler.configurations(Change::Put(Box::new(typeless)));
        assert!(capacities(&assembler).is_empty());
    }

    #[test]
    fn what_is_being_deleted_and_what_is_not_listed_any_more_is_gone() {
        let assembler = Assembler::new();
        assembler.configurations(Change::Put(Box::new(camera("u", 2))));
        let mut deleting = camera("u", 2);
        deleting.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assembler.configurations(Change::Put(Box::new(deleting)));
        assert!(capacities(&assembler).is_empty());
        assembler.configurations(Change::Put(Box::new(camera("u", 2))));
        assembler.configurations(Change::All(Vec::new()));
        assert!(capacities(&assembler).is_empty());
    }
}
