//! Kubernetes Events of Instances whose brokers need attention. The condition says the same for as long as it holds.

use akri_model::names::Key;
use akri_model::summary::{Truth, Verdict};
use akri_model::text::cut;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tracing::debug;

/// Events that wait to be sent; further ones are lost.
const WAITING: usize = 256;

/// Reasons of `BrokersReady` that a person has to do something about.
const NOTABLE: [&str; 5] = ["Backoff", "Crashing", "NameTaken", "Refused", "RolloutStopped"];

/// The queue of Events. Sending never waits.
#[derive(Debug, Clone)]
pub(crate) struct Events(mpsc::Sender<(ObjectReference, Event)>);

impl Events {
    /// Starts the recorder. It ends with the last sender.
    pub(crate) fn start(client: Client, identity: String) -> Self {
        let (sender, mut events) = mpsc::channel::<(ObjectReference, Event)>(WAITING);
        let reporter = Reporter { controller: "akri-controller".to_owned(), instance: Some(identity) };
        let recorder = Recorder::new(client, reporter);
        tokio::spawn(async move {
            while let Some((object, event)) = events.recv().await {
                if let Err(error) = recorder.publish(&event, &object).await {
                    debug!(object = object.name, "cannot record the event: {error}");
                }
            }
        });
        Self(sender)
    }

    /// Records that brokers of an Instance need attention, if `verdict` says so and the condition before had another reason.
    pub(crate) fn record(&self, instance: &Key, uid: &str, before: Option<&str>, verdict: Option<&Verdict>) {
        let Some(verdict) = verdict.filter(|verdict| is_notable(before, verdict)) else { return };
        let object = ObjectReference {
            api_version: Some("akri.sh/v0".to_owned()),
            kind: Some("Instance".to_owned()),
            namespace: Some(instance.namespace.clone()),
            name: Some(instance.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: EventType::Warning,
            reason: verdict.reason.clone(),
            note: Some(cut(&verdict.message, 1000).to_owned()),
            action: "RunBroker".to_owned(),
            secondary: None,
        };
        let _ = self.0.try_send((object, event)); // the condition says it, too
    }
}

fn is_notable(before: Option<&str>, verdict: &Verdict) -> bool {
    verdict.truth == Truth::False && before != Some(&verdict.reason) && NOTABLE.contains(&verdict.reason.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_reasons_to_act_are_events() {
        let verdict = |truth, reason: &str| Verdict::new("BrokersReady", truth, reason, "m");
        assert!(is_notable(None, &verdict(Truth::False, "Refused")));
        assert!(is_notable(Some("Pending"), &verdict(Truth::False, "Backoff")));
        assert!(!is_notable(Some("Backoff"), &verdict(Truth::False, "Backoff")), "it is known");
        assert!(!is_notable(None, &verdict(Truth::False, "Pending")), "it is a matter of time");
        assert!(!is_notable(Some("Backoff"), &verdict(Truth::True, "Running")));
    }
}
