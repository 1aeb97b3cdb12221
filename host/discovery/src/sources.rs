//! The discovery sources of one Configuration: the rounds of a component, and a stream from each endpoint of the remote
//! handler of that name (rule 31). They run in tasks of their own and send what they find to the owner, which merges it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_model::configuration::Configuration;
use akri_model::configuration_status::DiscoveryStatus;
use akri_model::discovery::RoundError;
use akri_model::grant::Limits;
use akri_model::remote::{Address, Endpoints};
use akri_model::resolve::Resolution;
use akri_model::sources::{DiscoverySource, MergedResult, SourceEvent, SourceStates};
use akri_remote::{DiscoveryInput, EndpointStream, Remote};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::properties::Properties;
use crate::registry::Handlers;
use crate::round_metrics::RoundMetrics;
use crate::rounds::Rounds;
use crate::sleep_until_some;

/// Shortest pause between results caused by streams; results of rounds are not delayed.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// The dependencies of discovery sources; cheap to clone.
#[derive(Clone)]
pub struct Providers {
    /// The component handlers.
    pub handlers: watch::Receiver<Arc<Handlers>>,
    /// The values of properties.
    pub properties: Properties,
    /// The remote handlers.
    pub remote: Remote,
    /// The metrics of rounds.
    pub metrics: RoundMetrics,
}

/// The sources of one Configuration; they stop when this is dropped.
pub struct Sources {
    /// The Configuration as the owner last applied it. A newer one may name another handler, which must get neither the
    /// results nor the secrets of this one.
    configuration: Arc<Configuration>,
    providers: Providers,
    endpoints: watch::Receiver<Arc<Endpoints>>,
    active: ActiveHandler,
    input: watch::Sender<Arc<DiscoveryInput>>,
    /// The time of the next merge, if anything has changed since the last one.
    due: Option<Instant>,
    last_merged: Instant,
}

/// The sources of one handler. They are replaced when the Configuration names another one.
struct ActiveHandler {
    handler: String,
    /// The Configuration for the rounds.
    configuration: watch::Sender<Arc<Configuration>>,
    states: SourceStates,
    streams: BTreeMap<Address, EndpointStream>,
    _rounds: Rounds,
    events: mpsc::Receiver<SourceEvent>,
    event_sender: mpsc::Sender<SourceEvent>,
}

impl Sources {
    /// Starts the sources. Changes of the properties and the handlers take effect at once.
    pub fn start(configuration: Arc<Configuration>, mut providers: Providers) -> Self {
        let input = watch::Sender::new(Arc::new(input(&configuration, providers.properties.of(&configuration))));
        let active = ActiveHandler::start(&configuration, &providers);
        let endpoints = providers.remote.endpoints();
        let last_merged = Instant::now();
        let mut sources = Self { configuration, providers, endpoints, active, input, due: None, last_merged };
        sources.update_streams(true);
        sources
    }

    /// Waits until the result of [`Sources::merge`] has changed. Events are combined first, so that a busy owner merges the
    /// latest state only. Nothing is lost if the future is dropped.
    pub async fn changed(&mut self) {
        loop {
            let properties = self.input.borrow().properties.clone();
            let timeout = self.providers.remote.offline_timeout();
            let silence = self.active.states.silent_since().map(|since| Instant::from_std(since) + timeout);
            tokio::select! {
                biased;
                Some(event) = self.active.events.recv() => self.apply(event),
                Ok(properties) = self.providers.properties.other_than(&properties, &self.configuration) => {
                    self.update_input(properties);
                }
                Ok(()) = self.endpoints.changed() => self.update_streams(false),
                () = sleep_until_some(silence) => {
                    self.active.states.expire_silent(Instant::now().into_std(), timeout);
                    self.due = Some(Instant::now());
                }
                () = sleep_until_some(self.due) => return,
            }
        }
    }

    /// Returns the combined result of all sources.
    pub fn merge(&mut self) -> MergedResult {
        (self.due, self.last_merged) = (None, Instant::now());
        let mut merged = self.active.states.merge(Limits::default().notes);
        if let Some(DiscoveryStatus::Failed(RoundError::NoHandler(message))) = &mut merged.status {
            let socket = self.providers.remote.socket().display();
            message.push_str(&format!("; none of that name has registered at {socket}"));
        }
        merged
    }

    /// Applies a change of the Configuration.
    pub fn reconfigure(&mut self, configuration: Arc<Configuration>) {
        let properties = self.providers.properties.of(&configuration);
        let is_other = configuration.handler != self.active.handler;
        if is_other {
            // Replace the handler first: the new input may hold secrets that the old one must not get.
            self.active = ActiveHandler::start(&configuration, &self.providers);
            self.due = None;
        } else {
            self.active.configuration.send_replace(Arc::clone(&configuration));
        }
        self.configuration = configuration;
        self.update_input(properties);
        if is_other {
            self.update_streams(true);
        }
    }

    fn apply(&mut self, event: SourceEvent) {
        let due = match event.source {
            DiscoverySource::Component => Instant::now(),
            DiscoverySource::Remote(_) => self.last_merged + MIN_PAUSE,
        };
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
        self.active.states.apply(event, Instant::now().into_std());
    }

    fn update_input(&self, properties: Resolution) {
        let input = input(&self.configuration, properties);
        self.input.send_if_modified(|active| {
            let differs = **active != input;
            *active = Arc::new(input);
            differs
        });
    }

    /// Opens a stream to every endpoint of the handler, and closes those of removed ones. Endpoints known at the first
    /// call may have reported devices before a restart.
    fn update_streams(&mut self, first: bool) {
        let endpoints = self.endpoints.borrow_and_update().clone();
        let user = self.configuration.key.clone();
        let active = &mut self.active;
        let is_gone =
            |address: &Address| endpoints.of(&active.handler).all(|(endpoint, _)| endpoint.address != *address);
        for (address, _) in active.streams.extract_if(.., |address, _| is_gone(address)) {
            active.states.remove(&DiscoverySource::Remote(address));
            self.due = Some(Instant::now());
        }
        for (endpoint, record) in endpoints.of(&active.handler) {
            active.states.add(DiscoverySource::Remote(endpoint.address.clone()), record.shared, first);
            let stream = active.streams.entry(endpoint.address.clone()).or_insert_with(|| {
                let (input, events) = (self.input.subscribe(), active.event_sender.clone());
                EndpointStream::start(&self.providers.remote, endpoint.clone(), user.clone(), input, events)
            });
            stream.registered(record.registrations);
        }
    }
}

impl ActiveHandler {
    fn start(now: &Arc<Configuration>, providers: &Providers) -> Self {
        let Providers { handlers, properties, metrics, .. } = providers.clone();
        let (event_sender, events) = mpsc::channel(1);
        let mut states = SourceStates::default();
        states.add(DiscoverySource::Component, None, true);
        let configuration = watch::Sender::new(Arc::clone(now));
        let rounds = Rounds::start(configuration.subscribe(), handlers, properties, event_sender.clone(), metrics);
        let (handler, streams) = (now.handler.clone(), BTreeMap::new());
        Self { handler, configuration, states, streams, _rounds: rounds, events, event_sender }
    }
}

fn input(configuration: &Configuration, properties: Resolution) -> DiscoveryInput {
    DiscoveryInput { details: configuration.details.clone(), properties }
}
