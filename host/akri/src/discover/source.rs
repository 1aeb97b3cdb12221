//! The rounds of one Configuration, one after the other.

use std::sync::Arc;

use akri_agent::discovery::Outcome;
use akri_agent::discovery::registry::Handlers;
use akri_agent::discovery::rounds::Rounds;
use akri_agent::metrics::Metrics;
use akri_model::configuration::Configuration;
use akri_model::device::{Device, DeviceSet, Note};
use tokio::sync::{mpsc, watch};

use super::Found;
use super::load::Loaded;
use crate::subject::{self, Failure, Subject};

/// A Configuration and what its rounds come to.
pub(super) struct Source<'a> {
    subject: &'a Subject,
    handlers: watch::Receiver<Arc<Handlers>>,
    outcomes: mpsc::Receiver<Outcome>,
    /// Warnings that were shown.
    notes: Vec<Note>,
    _rounds: Rounds,
    _configuration: watch::Sender<Arc<Configuration>>,
}

/// A round that succeeded, with properties as brokers see them.
pub(super) struct Round {
    pub(super) set: DeviceSet,
    pub(super) shared: bool,
}

impl<'a> Source<'a> {
    /// The rounds of all Configurations start.
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

    /// Waits for the end of the next round, and shows its warnings if they are others than before.
    pub(super) async fn next(&mut self) -> Result<Round, Failure> {
        match self.outcomes.recv().await {
            Some(Outcome::Found { mut set, shared }) => {
                if set.notes != self.notes {
                    self.notes.clone_from(&set.notes);
                    subject::warn(&set, self.configuration());
                }
                for device in &mut set.devices {
                    device.properties = self.configuration().broker_view(&device.properties);
                }
                Ok(Round { set, shared })
            }
            Some(Outcome::Failed(error)) => Err(self.subject.failure(&error)),
            Some(Outcome::NoHandler(_)) => Err(self.subject.no_handler(&self.handlers.borrow())),
            None => Err(Failure { reason: "Stopped", message: "no more rounds are run".to_owned(), is_lasting: true }),
        }
    }
}

impl Round {
    /// Its devices by name.
    pub(super) fn devices(self, configuration: &Configuration, node: &str) -> impl Iterator<Item = Found> {
        let found = move |device: Device| Found::new(device, configuration, self.shared, node);
        self.set.devices.into_iter().map(found)
    }
}

impl Subject {
    /// There is no handler of the name.
    pub(super) fn no_handler(&self, handlers: &Handlers) -> Failure {
        let ready: Vec<&str> = handlers.ready.keys().map(String::as_str).collect();
        let refused = handlers.refused.iter().map(|(object, why)| format!("\n  {object}: {why}"));
        let message = format!(
            "{}: no discovery handler '{}' among those of --components: {}{}",
            self.configuration.key,
            self.configuration.handler,
            if ready.is_empty() { "there are none".to_owned() } else { ready.join(", ") },
            refused.collect::<String>()
        );
        Failure { reason: "NoHandler", message, is_lasting: true }
    }
}
