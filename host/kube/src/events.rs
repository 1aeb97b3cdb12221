//! Kubernetes Events of Akri's objects.

use std::collections::BTreeMap;
use std::time::Instant;

use akri_model::budget::Budget;
use akri_model::events::{DeviceEvent, is_normal};
use akri_model::names::Key;
use akri_model::text::cut;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tracing::debug;

/// Maximum number of queued events; further ones are lost.
const MAX_QUEUED: usize = 256;

/// Seconds for each event that is no warning, of one object and of all, and how many of these may come at once.
const PER_OBJECT: (u64, u64) = (60, 10);
const OF_ALL: (u64, u64) = (5, 25);

/// Maximum number of objects whose budgets are kept.
const MAX_OBJECTS: usize = 1024;

/// An event of an object, shown to users in addition to its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEvent {
    /// `Instance` or `Configuration`.
    pub kind: &'static str,
    /// The object.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// A CamelCase word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
    /// The pod that it is about, too.
    pub pod: Option<Key>,
}

impl ObjectEvent {
    /// Returns an event that is about no pod.
    pub fn new(kind: &'static str, key: &Key, uid: &str, reason: &'static str, message: String) -> Self {
        Self { kind, key: key.clone(), uid: uid.to_owned(), reason, message, pod: None }
    }

    /// Returns an event of an Instance.
    pub fn of_device(key: Key, uid: String, event: DeviceEvent) -> Self {
        let DeviceEvent { reason, message, pod } = event;
        Self { kind: "Instance", key, uid, reason, message, pod }
    }
}

/// The queue of events. Clones share it.
#[derive(Debug, Clone)]
pub struct EventRecorder(mpsc::Sender<ObjectEvent>);

impl EventRecorder {
    /// Starts to record events about an action in the name of a component and its instance. It ends with the last clone.
    pub fn start(client: Client, component: &str, instance: String, action: &'static str) -> Self {
        let (sender, mut events) = mpsc::channel::<ObjectEvent>(MAX_QUEUED);
        let recorder = Recorder::new(client, Reporter { controller: component.to_owned(), instance: Some(instance) });
        let mut limit = NormalEvents::default();
        tokio::spawn(async move {
            while let Some(ObjectEvent { kind, key, uid, reason, message, pod }) = events.recv().await {
                let is_normal = is_normal(reason);
                if is_normal && !limit.admit(&uid, Instant::now()) {
                    debug!(object = %key, reason, "too many events: this one is not recorded");
                    continue;
                }
                let object = reference("akri.sh/v0", kind, &key, Some(uid));
                let event = Event {
                    type_: if is_normal { EventType::Normal } else { EventType::Warning },
                    reason: reason.to_owned(),
                    note: Some(cut(&message, 1000).to_owned()),
                    action: action.to_owned(),
                    secondary: pod.map(|pod| reference("v1", "Pod", &pod, None)),
                };
                if let Err(error) = recorder.publish(&event, &object).await {
                    debug!(object = %key, "cannot record the event: {error}");
                }
            }
        });
        Self(sender)
    }

    /// Queues an event. It never waits: an event that finds the queue full is lost, and the status says the same.
    pub fn record(&self, event: ObjectEvent) {
        let _ = self.0.try_send(event);
    }
}

fn reference(api_version: &str, kind: &str, key: &Key, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid,
        ..ObjectReference::default()
    }
}

/// Budgets of events that are no warnings, by object, and that of all: each event is one more write to the API server.
#[derive(Default)]
struct NormalEvents(BTreeMap<String, Budget>);

impl NormalEvents {
    /// Returns whether another event of an object may be recorded.
    fn admit(&mut self, uid: &str, now: Instant) -> bool {
        if self.0.len() > MAX_OBJECTS {
            self.0.retain(|of, _| of.is_empty());
        }
        let mut take = |of: &str, (seconds, at_once)| {
            let budget = self.0.entry(of.to_owned()).or_insert_with(|| Budget::new(seconds * at_once, 1));
            budget.take(seconds, now)
        };
        take(uid, PER_OBJECT) && take("", OF_ALL)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test] // rule 78
    fn one_object_uses_up_neither_the_budget_of_others_nor_memory() {
        let (mut limit, start) = (NormalEvents::default(), Instant::now());
        let mut admitted = |uid: &str, count: usize, after: u64| {
            let now = start + Duration::from_secs(after);
            (0..count).filter(|_| limit.admit(uid, now)).count()
        };
        assert_eq!(admitted("a", 100, 0), 10);
        assert_eq!(admitted("b", 1, 0), 1);
        assert_eq!(admitted("a", 100, 60), 1, "one a minute from then on");
        let many: usize = (0..2000).map(|object| admitted(&object.to_string(), 1, 61)).sum();
        assert_eq!(many, 25, "of all objects together");
        assert_eq!(admitted("new", 1, 300), 1);
        assert!(limit.0.len() <= MAX_OBJECTS + 1);
    }
}
