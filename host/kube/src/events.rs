//! Kubernetes Events of Akri's objects.

use akri_model::names::Key;
use akri_model::text::cut;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tracing::debug;

/// Maximum number of queued events; further ones are lost.
const MAX_QUEUED: usize = 256;

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
}

/// The queue of events. Clones share it.
#[derive(Debug, Clone)]
pub struct EventRecorder(mpsc::Sender<ObjectEvent>);

impl EventRecorder {
    /// Starts to record events about an action in the name of a component and its instance. It ends with the last clone.
    pub fn start(client: Client, component: &str, instance: String, action: &'static str) -> Self {
        let (sender, mut events) = mpsc::channel::<ObjectEvent>(MAX_QUEUED);
        let recorder = Recorder::new(client, Reporter { controller: component.to_owned(), instance: Some(instance) });
        tokio::spawn(async move {
            while let Some(ObjectEvent { kind, key, uid, reason, message }) = events.recv().await {
                let reference = ObjectReference {
                    api_version: Some("akri.sh/v0".to_owned()),
                    kind: Some(kind.to_owned()),
                    namespace: Some(key.namespace.clone()),
                    name: Some(key.name.clone()),
                    uid: Some(uid),
                    ..ObjectReference::default()
                };
                let warning = Event {
                    type_: EventType::Warning,
                    reason: reason.to_owned(),
                    note: Some(cut(&message, 1000).to_owned()),
                    action: action.to_owned(),
                    secondary: None,
                };
                if let Err(error) = recorder.publish(&warning, &reference).await {
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
