//! Kubernetes Events: what happened to an Instance or a Configuration that a person may want to know.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tracing::debug;

use crate::cluster::Occurrence;

/// Occurrences that wait for the API server; more are only in the log.
const WAITING: usize = 256;

/// Where occurrences go. It never waits.
pub(super) type Events = mpsc::Sender<Occurrence>;

/// Starts to record. It ends with the last sender.
pub(super) fn start(client: Client, node: &str) -> Events {
    let (sender, mut occurrences) = mpsc::channel::<Occurrence>(WAITING);
    let reporter = Reporter { controller: "akri-agent".to_owned(), instance: Some(node.to_owned()) };
    let recorder = Recorder::new(client, reporter);
    tokio::spawn(async move {
        while let Some(occurrence) = occurrences.recv().await {
            if let Err(error) = recorder.publish(&event(&occurrence), &reference(&occurrence)).await {
                debug!(object = %occurrence.key, "the event is only in the log: {error}");
            }
        }
    });
    sender
}

fn event(occurrence: &Occurrence) -> Event {
    Event {
        type_: EventType::Warning,
        reason: occurrence.reason.to_owned(),
        note: Some(super::cut(&occurrence.message, 1000).to_owned()),
        action: "Discover".to_owned(),
        secondary: None,
    }
}

fn reference(occurrence: &Occurrence) -> ObjectReference {
    ObjectReference {
        api_version: Some("akri.sh/v0".to_owned()),
        kind: Some(occurrence.kind.to_owned()),
        namespace: Some(occurrence.key.namespace.clone()),
        name: Some(occurrence.key.name.clone()),
        uid: Some(occurrence.uid.clone()),
        ..ObjectReference::default()
    }
}
