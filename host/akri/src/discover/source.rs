//! The rounds of one Configuration.

use std::sync::Arc;

use akri_agent::discovery::Outcome;
use akri_agent::discovery::registry::Handlers;
use akri_agent::discovery::rounds::Rounds;
use akri_agent::metrics::Metrics;
use akri_api::suggestion::did_you_mean;
use akri_model::configuration::Configuration;
use akri_model::device::{Device, DeviceSet, Note};
use tokio::sync::{mpsc, watch};

use super::DiscoveredDevice;
use super::load::Loaded;
use crate::subject::{self, Failure, Subject};

/// A Configuration and the results of its rounds.
pub(super) struct RoundSource<'a> {
    subject: &'a Subject,
    handlers: watch::Receiver<Arc<Handlers>>,
    outcomes: mpsc::Receiver<Outcome>,
    /// Warnings already shown.
    notes: Vec<Note>,
    _rounds: Rounds,
    _configuration: watch::Sender<Arc<Configuration>>,
}

/// The result of a successful round, with properties as brokers see them.
pub(super) struct RoundResult {
    pub(super) set: DeviceSet,
    pub(super) shared: bool,
}

impl<'a> RoundSource<'a> {
    /// Starts the rounds of all Configurations.
    pub(super) fn start_all(loaded: &'a Loaded) -> Vec<Self> {
        loaded.subjects.iter().map(|subject| Self::start(subject, loaded)).collect()
    }

    fn start(subject: &'a Subject, loaded: &Loaded) -> Self {
        let handlers = loaded.handlers.clone();
        let (_configuration, configuration) = watch::channel(Arc::clone(&subject.configuration));
        let (sender, outcomes) = mpsc::channel(1);
        let _rounds =
            Rounds::start(configuration, handlers.clone(), loaded.properties.clone(), sender, Metrics::default());
        Self { subject, handlers, outcomes, notes: Vec::new(), _rounds, _configuration }
    }

    pub(super) fn configuration(&self) -> &'a Configuration {
        &self.subject.configuration
    }

    /// Waits for the next round, and shows its warnings if they changed.
    pub(super) async fn next(&mut self) -> Result<RoundResult, Failure> {
        match self.outcomes.recv().await {
            Some(Outcome::Found { mut set, shared }) => {
                if set.notes != self.notes {
                    self.notes.clone_from(&set.notes);
                    subject::warn(&set, self.configuration());
                }
                for device in &mut set.devices {
                    device.properties = self.configuration().broker_view(&device.properties);
                }
                Ok(RoundResult { set, shared })
            }
            Some(Outcome::Failed(error)) => Err(self.subject.failure(&error)),
            Some(Outcome::NoHandler(_)) => Err(self.subject.no_handler(&self.handlers.borrow())),
            None => Err(Failure { reason: "Stopped", message: "no more rounds are run".to_owned(), is_lasting: true }),
        }
    }
}

/// What is said where no component is.
const NONE: &str = "there are none; name the directory that holds components (*.wasm) and their DiscoveryHandlers";

impl RoundResult {
    /// Returns the devices with their resource names.
    pub(super) fn devices(self, configuration: &Configuration, node: &str) -> impl Iterator<Item = DiscoveredDevice> {
        let found = move |device: Device| DiscoveredDevice::new(device, configuration, self.shared, node);
        self.set.devices.into_iter().map(found)
    }
}

impl Subject {
    /// Returns the failure for a missing handler.
    pub(super) fn no_handler(&self, handlers: &Handlers) -> Failure {
        let ready: Vec<&str> = handlers.ready.keys().map(String::as_str).collect();
        let refused = handlers.refused.iter().map(|(object, why)| format!("\n  {object}: {why}"));
        let message = format!(
            "{}: no discovery handler '{}' among those of --components: {}{}{}",
            self.configuration.key,
            self.configuration.handler,
            if ready.is_empty() { NONE.to_owned() } else { ready.join(", ") },
            did_you_mean(&self.configuration.handler, ready.iter().copied()),
            refused.collect::<String>()
        );
        Failure { reason: "NoHandler", message, is_lasting: true }
    }
}
