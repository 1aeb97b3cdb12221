//! The rounds of one Configuration.

use std::sync::Arc;

use akri_api::suggestion::did_you_mean;
use akri_cli::output::{plain, print_message};
use akri_cli::subject::{self, Failure, Subject};
use akri_discovery::round_metrics::RoundMetrics;
use akri_discovery::rounds;
use akri_model::configuration::Configuration;
use akri_model::device::{DeviceSet, Note};
use akri_model::discovery::RoundError;
use akri_model::left_out::LeftOut;
use akri_model::resolve::DiscoveryInput;
use akri_model::sources::{SourceEvent, SourceUpdate};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::load::Loaded;

/// A Configuration and the results of its rounds.
pub(super) struct RoundSource<'a> {
    pub(super) subject: &'a Subject,
    loaded: &'a Loaded,
    events: mpsc::Receiver<Box<SourceEvent>>,
    /// Warnings already shown.
    notes: Vec<Note>,
    /// The devices that filters left out, likewise.
    left_out: LeftOut,
    _rounds: JoinSet<()>,
    _input: watch::Sender<Arc<DiscoveryInput>>,
}

impl<'a> RoundSource<'a> {
    /// Starts the rounds of all Configurations.
    pub(super) fn start_all(loaded: &'a Loaded) -> Vec<Self> {
        loaded.subjects.iter().map(|subject| Self::start(subject, loaded)).collect()
    }

    fn start(subject: &'a Subject, loaded: &'a Loaded) -> Self {
        let (handlers, uevents) = (loaded.handlers.clone(), loaded.uevents.clone());
        let input = DiscoveryInput::new(Arc::clone(&subject.configuration), &loaded.values.borrow());
        let (_input, input) = watch::channel(Arc::new(input));
        let (sender, events) = mpsc::channel(1);
        let _rounds = rounds::start(input, handlers, uevents, sender, RoundMetrics::default());
        Self { subject, loaded, events, notes: Vec::new(), left_out: LeftOut::default(), _rounds, _input }
    }

    pub(super) fn configuration(&self) -> &'a Configuration {
        &self.subject.configuration
    }

    /// Waits for the next round, and shows its warnings if they changed. Returns the devices, with properties as brokers see
    /// them, and whether they are shared.
    pub(super) async fn next(&mut self) -> Result<(DeviceSet, bool), Failure> {
        while let Some(event) = self.events.recv().await {
            match event.update {
                SourceUpdate::Found { set, shared } => return Ok((self.found(set), shared.unwrap_or_default())),
                SourceUpdate::NoComponent(_) | SourceUpdate::Failed(RoundError::NoHandler(_)) => {
                    return Err(no_handler(self.subject, self.loaded));
                }
                SourceUpdate::Failed(error) => return Err(self.subject.failure(&error)),
                SourceUpdate::Connected => {} // only of remote handlers
            }
        }
        Err(Failure { reason: "Stopped", message: "no more rounds are run".to_owned(), is_lasting: true })
    }

    fn found(&mut self, mut set: DeviceSet) -> DeviceSet {
        if set.left_out != self.left_out {
            self.left_out.clone_from(&set.left_out);
            print_message(format!(
                "{}: {}",
                plain(&self.configuration().key.to_string()),
                plain(&set.left_out.to_string())
            ));
        }
        if set.notes != self.notes {
            self.notes.clone_from(&set.notes);
            subject::warn(&set.notes, set.notes_dropped, &self.configuration().key.to_string());
        }
        for device in &mut set.devices {
            device.properties = self.configuration().broker_view(&device.properties);
        }
        set
    }
}

/// The end of the error message if there is no component.
const NONE: &str = "there are none; name the directory that holds components (*.wasm) and their DiscoveryHandlers";

/// Returns the failure for a missing handler.
pub(super) fn no_handler(subject: &Subject, loaded: &Loaded) -> Failure {
    let (configuration, handlers) = (&subject.configuration, loaded.handlers.borrow());
    let refused = |name: &&String| {
        handlers.claims.iter().any(|(object, of)| of == *name && handlers.refused.contains_key(object))
    };
    let ready: Vec<&str> = loaded.known.iter().filter(|name| !refused(name)).map(String::as_str).collect();
    let refused = handlers.refused.iter().map(|(object, why)| format!("\n  {object}: {}", why.message));
    let message = format!(
        "{}: no discovery handler '{}' among those of --components: {}{}; remote ones run with an agent only{}",
        configuration.key,
        configuration.handler,
        if ready.is_empty() { NONE.to_owned() } else { ready.join(", ") },
        did_you_mean(&configuration.handler, ready.iter().copied()),
        refused.collect::<String>()
    );
    Failure { reason: "NoHandler", message, is_lasting: true }
}
