//! Kubernetes Events of Instances and Configurations.

use akri_model::text::cut;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tracing::debug;

use crate::ObjectEvent;

/// Maximum number of queued events; further ones are only logged.
const WAITING: usize = 256;

/// The queue of events. Sending never waits.
pub(super) type Events = mpsc::Sender<ObjectEvent>;

/// Starts the recorder. It ends with the last sender.
pub(super) fn start(client: Client, node: &str) -> Events {
    let (sender, mut events) = mpsc::channel::<ObjectEvent>(WAITING);
    let reporter = Reporter { controller: "akri-agent".to_owned(), instance: Some(node.to_owned()) };
    let recorder = Recorder::new(client, reporter);
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            if let Err(error) = recorder.publish(&kubernetes_event(&event), &reference(&event)).await {
                debug!(object = %event.key, "cannot record the event: {error}");
            }
        }
    });
    sender
}

fn kubernetes_event(event: &ObjectEvent) -> Event {
    Event {
        type_: EventType::Warning,
        reason: event.reason.to_owned(),
        note: Some(cut(&event.message, 1000).to_owned()),
        action: "Discover".to_owned(),
        secondary: None,
    }
}

fn reference(event: &ObjectEvent) -> ObjectReference {
    ObjectReference {
        api_version: Some("akri.sh/v0".to_owned()),
        kind: Some(event.kind.to_owned()),
        namespace: Some(event.key.namespace.clone()),
        name: Some(event.key.name.clone()),
        uid: Some(event.uid.clone()),
        ..ObjectReference::default()
    }
}
