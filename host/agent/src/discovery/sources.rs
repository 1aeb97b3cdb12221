//! The discovery sources of one Configuration combined: the rounds of a component, and a stream from each endpoint of
//! the remote handler of that name (rule 31).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_model::configuration::Configuration;
use akri_model::grant::Limits;
use akri_model::remote::{Address, Endpoints};
use akri_model::resolve::Resolution;
use akri_model::sources::{DiscoverySource, MergedDevices, MergedResult, Sources as Model};
use akri_remote::{DiscoveryInput, EndpointEvent, EndpointStream, EndpointUpdate, Remote};
use tokio::sync::mpsc::OwnedPermit;
use tokio::sync::watch::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::properties::Properties;
use super::registry::Handlers;
use super::rounds::Rounds;
use super::{Outcome, moment};
use crate::metrics::Metrics;

/// Shortest pause between results caused by streams; results of rounds are not delayed.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// Maximum number of queued endpoint events.
const MAX_QUEUED: usize = 8;

/// The task that combines all sources of one Configuration; it stops when this is dropped.
#[derive(Debug)]
pub struct Sources {
    task: JoinHandle<()>,
}

/// An event for the owner of a Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiscoveryEvent {
    /// The combined result of all sources.
    Outcome(Outcome),
    /// A remote handler is connected, and no source has reported devices yet.
    Silent,
    /// A remote handler was removed: its devices are `Unknown` until a handler of that name reports.
    Lost,
}

/// The dependencies of discovery sources; cheap to clone.
#[derive(Clone)]
pub struct Providers {
    /// The component handlers.
    pub handlers: watch::Receiver<Arc<Handlers>>,
    /// The values of properties.
    pub properties: Properties,
    /// The remote handlers.
    pub remote: Remote,
    /// The metrics.
    pub metrics: Metrics,
}

impl Sources {
    /// Starts the task. Changes of the Configuration, its properties and the handlers take effect at once. `shared` is
    /// assumed for devices whose handler has not declared whether they are shared.
    pub fn start(
        configuration: watch::Receiver<Arc<Configuration>>,
        providers: Providers,
        shared: bool,
        owner: mpsc::Sender<DiscoveryEvent>,
    ) -> Self {
        let task = MergeTask::new(configuration, providers, shared, owner);
        Self { task: tokio::spawn(task.run()) }
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct MergeTask {
    configuration: watch::Receiver<Arc<Configuration>>,
    providers: Providers,
    endpoints: watch::Receiver<Arc<Endpoints>>,
    shared: bool,
    owner: mpsc::Sender<DiscoveryEvent>,
    active: ActiveHandler,
    input: watch::Sender<Arc<DiscoveryInput>>,
    /// When to send events to the owner, if any are pending.
    due: Option<Instant>,
    /// When events were last sent.
    last_sent: Instant,
}

/// The state of one handler. It is replaced when the Configuration names another handler.
struct ActiveHandler {
    handler: String,
    model: Model,
    _rounds: Rounds,
    outcomes: mpsc::Receiver<Outcome>,
    streams: BTreeMap<Address, StreamState>,
    events: mpsc::Receiver<EndpointEvent>,
    event_sender: mpsc::Sender<EndpointEvent>,
    /// The message that explains the absence of a component.
    no_component: String,
}

struct StreamState {
    stream: EndpointStream,
    /// The time since which a connected stream has sent no message.
    silent_since: Option<Instant>,
}

impl MergeTask {
    fn new(
        mut configuration: watch::Receiver<Arc<Configuration>>,
        mut providers: Providers,
        shared: bool,
        owner: mpsc::Sender<DiscoveryEvent>,
    ) -> Self {
        let now = configuration.borrow_and_update().clone();
        let input = watch::Sender::new(Arc::new(input(&now, providers.properties.of(&now))));
        let active = ActiveHandler::new(&now, configuration.clone(), &providers);
        let endpoints = providers.remote.endpoints();
        Self { configuration, providers, endpoints, shared, owner, active, input, due: None, last_sent: Instant::now() }
    }

    async fn run(mut self) {
        self.update_streams(true);
        while self.next().await.is_ok() {}
    }

    /// Waits for the next change. Events are combined before they are sent, so that a busy owner gets the latest state
    /// only.
    async fn next(&mut self) -> Result<(), Closed> {
        let configuration = self.configuration.borrow().clone();
        let answer = self.input.borrow().properties.clone();
        let offline_timeout = self.providers.remote.offline_timeout();
        let silence = self.active.longest_silence().map(|since| since + offline_timeout);
        tokio::select! {
            biased;
            Some(outcome) = self.active.outcomes.recv() => {
                self.active.apply_outcome(outcome);
                self.due = Some(Instant::now());
            }
            Some(event) = self.active.events.recv() => {
                self.active.apply_event(event);
                self.due.get_or_insert(self.last_sent + MIN_PAUSE);
            }
            changed = self.configuration.changed() => {
                changed?;
                self.reconfigured();
            }
            other = self.providers.properties.other_than(&answer, &configuration) => {
                self.update_input(&configuration, other?);
            }
            changed = self.endpoints.changed() => {
                changed?;
                self.update_streams(false);
            }
            () = moment(silence) => {
                self.active.expire_silent(offline_timeout);
                self.due = Some(Instant::now());
            }
            permit = wait_to_send(self.due, self.owner.clone()) => self.send_events(permit.ok_or(Closed)?).await?,
        }
        Ok(())
    }

    fn reconfigured(&mut self) {
        let configuration = self.configuration.borrow_and_update().clone();
        let answer = self.providers.properties.of(&configuration);
        let is_other = configuration.handler != self.active.handler;
        if is_other {
            // Replace the handler first: the new input may hold secrets that the old one must not get.
            self.active = ActiveHandler::new(&configuration, self.configuration.clone(), &self.providers);
        }
        self.update_input(&configuration, answer);
        if is_other {
            self.update_streams(true);
        }
    }

    fn update_input(&self, configuration: &Configuration, answer: Resolution) {
        let input = input(configuration, answer);
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
        let user = self.configuration.borrow().key.clone();
        let active = &mut self.active;
        let is_gone =
            |address: &Address| endpoints.of(&active.handler).all(|(endpoint, _)| endpoint.address != *address);
        for (address, _) in active.streams.extract_if(.., |address, _| is_gone(address)) {
            active.model.remove(&DiscoverySource::Remote(address));
            self.due = Some(Instant::now());
        }
        for (endpoint, record) in endpoints.of(&active.handler) {
            active.model.add(DiscoverySource::Remote(endpoint.address.clone()), record.shared, first);
            let state = active.streams.entry(endpoint.address.clone()).or_insert_with(|| {
                let (input, events) = (self.input.subscribe(), active.event_sender.clone());
                let stream =
                    EndpointStream::start(&self.providers.remote, endpoint.clone(), user.clone(), input, events);
                StreamState { stream, silent_since: None }
            });
            state.stream.registered(record.registrations);
        }
    }

    /// Sends the combined result of all sources to the owner.
    async fn send_events(&mut self, permit: OwnedPermit<DiscoveryEvent>) -> Result<(), Closed> {
        (self.due, self.last_sent) = (None, Instant::now());
        let mut events = self.merged_events().into_iter();
        let Some(first) = events.next() else { return Ok(()) };
        permit.send(first);
        for next in events {
            self.owner.send(next).await.map_err(|_| Closed)?;
        }
        Ok(())
    }

    fn merged_events(&mut self) -> Vec<DiscoveryEvent> {
        let merged = self.active.model.merge(Limits::default().notes);
        let lost = self.active.model.is_lost() && !matches!(merged, MergedResult::Found(_));
        let mut events: Vec<DiscoveryEvent> = lost.then_some(DiscoveryEvent::Lost).into_iter().collect();
        match merged {
            MergedResult::NoSource => events.push(DiscoveryEvent::Outcome(Outcome::NoHandler(self.describe_missing()))),
            MergedResult::NoReport => events.extend(self.active.is_connected().then_some(DiscoveryEvent::Silent)),
            MergedResult::Failed(error, unsent) => {
                events.extend(unsent.map(|unsent| self.found(unsent)));
                events.push(DiscoveryEvent::Outcome(Outcome::Failed(Arc::new(error))));
            }
            MergedResult::Found(all) => events.push(self.found(all)),
        }
        events
    }

    fn found(&self, found: MergedDevices) -> DiscoveryEvent {
        let MergedDevices { set, shared } = found;
        DiscoveryEvent::Outcome(Outcome::Found { set, shared: shared.unwrap_or(self.shared) })
    }

    fn describe_missing(&self) -> String {
        let socket = self.providers.remote.socket().display();
        format!("{}; none of that name has registered at {socket}", self.active.no_component)
    }
}

impl ActiveHandler {
    fn new(now: &Configuration, configuration: watch::Receiver<Arc<Configuration>>, providers: &Providers) -> Self {
        let Providers { handlers, properties, metrics, .. } = providers.clone();
        let (sender, outcomes) = mpsc::channel(1);
        let (event_sender, events) = mpsc::channel(MAX_QUEUED);
        let mut model = Model::default();
        model.add(DiscoverySource::Component, None, true);
        let _rounds = Rounds::start(configuration, handlers, properties, sender, metrics);
        let (handler, streams) = (now.handler.clone(), BTreeMap::new());
        Self { handler, model, _rounds, outcomes, streams, events, event_sender, no_component: String::new() }
    }

    fn apply_outcome(&mut self, outcome: Outcome) {
        let component = DiscoverySource::Component;
        match outcome {
            Outcome::NoHandler(message) => {
                self.model.remove_absent(&component);
                self.no_component = message;
            }
            Outcome::Failed(error) => {
                self.model.add(component.clone(), None, false);
                self.model.record_failure(&component, (*error).clone());
            }
            Outcome::Found { set, shared } => {
                self.model.add(component.clone(), Some(shared), false);
                self.model.record_devices(&component, set);
            }
        }
    }

    fn apply_event(&mut self, EndpointEvent { address, update }: EndpointEvent) {
        let Some(state) = self.streams.get_mut(&address) else { return };
        let source = DiscoverySource::Remote(address);
        state.silent_since = None;
        match update {
            EndpointUpdate::Connected => {
                state.silent_since = Some(Instant::now());
                self.model.clear_error(&source);
            }
            EndpointUpdate::Found(set) => self.model.record_devices(&source, set),
            EndpointUpdate::Failed(error) => self.model.record_failure(&source, error),
        }
    }

    fn is_connected(&self) -> bool {
        self.streams.values().any(|state| state.silent_since.is_some())
    }

    fn longest_silence(&self) -> Option<Instant> {
        self.streams.values().filter_map(|state| state.silent_since).min()
    }

    /// Discards the devices of endpoints whose new stream was silent for the timeout. Upstream Akri's handlers send
    /// nothing while they find nothing.
    fn expire_silent(&mut self, offline_timeout: Duration) {
        let now = Instant::now();
        for (address, state) in &mut self.streams {
            if state.silent_since.is_some_and(|since| since + offline_timeout <= now) {
                state.silent_since = None;
                self.model.expire(&DiscoverySource::Remote(address.clone()));
            }
        }
    }
}

fn input(configuration: &Configuration, properties: Resolution) -> DiscoveryInput {
    DiscoveryInput { details: configuration.details.clone(), properties }
}

/// Waits until events are due and the owner has capacity.
async fn wait_to_send(
    due: Option<Instant>,
    owner: mpsc::Sender<DiscoveryEvent>,
) -> Option<OwnedPermit<DiscoveryEvent>> {
    moment(due).await;
    owner.reserve_owned().await.ok()
}

/// The owner has stopped, or no further change is possible.
struct Closed;

impl From<RecvError> for Closed {
    fn from(_: RecvError) -> Self {
        Self
    }
}
