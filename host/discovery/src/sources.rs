//! The discovery sources of one Configuration: the rounds of a component, and a stream from each endpoint of the remote
//! handler of that name (rule 31). They run in tasks of their own and send what they find to the owner, which merges it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_cluster::send_changed;
use akri_model::configuration::Configuration;
use akri_model::configuration_status::DiscoveryStatus;
use akri_model::device::Device;
use akri_model::discovery::RoundError;
use akri_model::grant::Limits;
use akri_model::handler_names::remote_may_join;
use akri_model::policy::DeviceRefusal;
use akri_model::remote::{Address, Endpoints};
use akri_model::resolve::{DiscoveryInput, Values};
use akri_model::sources::{DiscoverySource, MergedResult, SourceEvent, SourceStates};
use akri_node::admission::refusal;
use akri_node::sleep_until_some;
use akri_node::uevent::Uevents;
use akri_remote::{EndpointStream, Remote};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::missing_handler;
use crate::registry::Handlers;
use crate::round_metrics::RoundMetrics;
use crate::rounds;

/// Shortest pause between results caused by streams; results of rounds are not delayed.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// The dependencies of discovery sources; cheap to clone.
#[derive(Clone)]
pub struct Providers {
    /// The component handlers.
    pub handlers: watch::Receiver<Arc<Handlers>>,
    /// The kernel events that start their rounds.
    pub uevents: Uevents,
    /// The content of ConfigMaps and Secrets.
    pub values: watch::Receiver<Arc<Values>>,
    /// The remote handlers.
    pub remote: Remote,
    /// The metrics of rounds.
    pub metrics: RoundMetrics,
}

/// The sources of one Configuration; they stop when this is dropped. They are replaced when the Configuration names another
/// handler, which must get neither the results nor the secrets of this one.
pub struct Sources {
    providers: Providers,
    endpoints: watch::Receiver<Arc<Endpoints>>,
    /// The time of the next merge, if anything has changed since the last one.
    due: Option<Instant>,
    last_merged: Instant,
    /// The Configuration as the owner last applied it, with its properties, for rounds and streams.
    input: watch::Sender<Arc<DiscoveryInput>>,
    /// The generation of the Configuration since which handlers get the same request.
    since: i64,
    /// The newest generation whose answer was merged: before that nobody knows what it was.
    answered: i64,
    states: SourceStates,
    streams: BTreeMap<Address, EndpointStream>,
    /// The reason for which a remote handler of that name could not register.
    refusal: Option<String>,
    _rounds: JoinSet<()>,
    /// Boxed: a channel has room for 32 from the start.
    events: mpsc::Receiver<Box<SourceEvent>>,
    event_sender: mpsc::Sender<Box<SourceEvent>>,
}

impl Sources {
    /// Starts the sources. Changes of the properties and the handlers take effect at once.
    pub fn start(configuration: Arc<Configuration>, mut providers: Providers) -> Self {
        let since = configuration.generation;
        let input = watch::Sender::new(Arc::new(providers.input(configuration)));
        let Providers { handlers, uevents, metrics, remote, .. } = providers.clone();
        let (event_sender, events) = mpsc::channel(1);
        let mut states = SourceStates::default();
        states.add(DiscoverySource::Component, None, true);
        let mut sources = Self {
            providers,
            endpoints: remote.endpoints(),
            due: None,
            last_merged: Instant::now(),
            since,
            answered: 0,
            states,
            streams: BTreeMap::new(),
            refusal: None,
            _rounds: rounds::start(input.subscribe(), handlers, uevents, event_sender.clone(), metrics),
            input,
            events,
            event_sender,
        };
        sources.update_streams(true);
        sources
    }

    /// Waits until the result of [`Sources::merge`] has changed. Events are combined first, so that a busy owner merges the
    /// latest state only. Nothing is lost if the future is dropped.
    pub async fn changed(&mut self) {
        loop {
            let timeout = self.providers.remote.offline_timeout();
            let silence = self.states.silent_since().map(|since| Instant::from_std(since) + timeout);
            tokio::select! {
                biased;
                // Before the component's results, so that no endpoint is used that differs from it.
                Ok(()) = self.providers.handlers.changed() => self.update_streams(false),
                Some(event) = self.events.recv() => {
                    let was_awaited = self.states.awaits_component();
                    self.apply(*event);
                    if was_awaited && !self.states.awaits_component() {
                        self.update_streams(false);
                    }
                }
                Ok(()) = self.providers.values.changed() => self.update_input(self.configuration()),
                Ok(()) = self.endpoints.changed() => self.update_streams(false),
                () = sleep_until_some(silence) => {
                    self.states.expire_silent(Instant::now().into_std(), timeout);
                    self.due = Some(Instant::now());
                }
                () = sleep_until_some(self.due) => return,
            }
        }
    }

    /// Returns the combined result of all sources.
    pub fn merge(&mut self) -> MergedResult {
        (self.due, self.last_merged) = (None, Instant::now());
        self.answered = self.states.answered();
        let mut merged = self.states.merge(Limits::default().notes);
        if let Some(DiscoveryStatus::Failed(RoundError::NoHandler(message))) = &mut merged.status {
            let name = &self.configuration().handler;
            let (handlers, socket) =
                (self.providers.handlers.borrow(), self.providers.remote.socket().display().to_string());
            let refusal = self.refusal.as_deref();
            message.push_str(&missing_handler::describe_registration(name, &handlers, refusal, &socket));
            message.push_str(&missing_handler::describe_others(name, &handlers));
        }
        merged
    }

    /// Returns whether the last merge has an answer to the request of the Configuration as it is now.
    pub fn are_current(&self) -> bool {
        self.answered >= self.since
    }

    /// Applies a change of the Configuration.
    pub fn reconfigure(&mut self, configuration: Arc<Configuration>) {
        if configuration.handler == self.configuration().handler {
            return self.update_input(configuration);
        }
        *self = Self::start(configuration, self.providers.clone());
    }

    fn configuration(&self) -> Arc<Configuration> {
        Arc::clone(&self.input.borrow().configuration)
    }

    fn apply(&mut self, event: SourceEvent) {
        let due = match event.source {
            DiscoverySource::Component => Instant::now(),
            DiscoverySource::Remote(_) => self.last_merged + MIN_PAUSE,
        };
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
        self.states.apply(event, Instant::now().into_std());
    }

    /// Gives rounds and streams a Configuration with its properties as they are now, if something differs.
    fn update_input(&mut self, configuration: Arc<Configuration>) {
        let input = self.providers.input(configuration);
        if !self.input.borrow().has_same_request(&input) {
            self.since = input.configuration.generation;
        }
        send_changed(&self.input, input);
    }

    /// Opens a stream to every endpoint of the handler, and closes those of removed ones. Endpoints known at the first
    /// call may have reported devices before a restart. Where objects claim the name, none is opened before the component has
    /// spoken (rule 132).
    fn update_streams(&mut self, first: bool) {
        let configuration = self.configuration();
        let handlers = self.providers.handlers.borrow_and_update().clone();
        if let Some(component) = handlers.ready.get(&configuration.handler) {
            self.providers.remote.remove_differing(&configuration.handler, component.shared);
        }
        let service = handlers.names.get(&configuration.handler);
        let may_join = handlers.pending.is_some() && remote_may_join(service, self.states.awaits_component());
        let endpoints = self.endpoints.borrow_and_update().clone();
        let refusal = endpoints.refusal(&configuration.handler).map(str::to_owned);
        if self.refusal != refusal {
            self.refusal = refusal;
            self.due = Some(Instant::now());
        }
        let is_removed =
            |address: &Address| endpoints.of(&configuration.handler).all(|(endpoint, _)| endpoint.address != *address);
        self.streams.retain(|address, _| !is_removed(address));
        if self.states.retain_remote(|address| !is_removed(address)) {
            self.due = Some(Instant::now());
        }
        for (endpoint, record) in endpoints.of(&configuration.handler) {
            self.states.add(DiscoverySource::Remote(endpoint.address.clone()), Some(record.shared), first);
            if !may_join && !self.streams.contains_key(&endpoint.address) {
                continue;
            }
            let stream = self.streams.entry(endpoint.address.clone()).or_insert_with(|| {
                let (input, events) = (self.input.subscribe(), self.event_sender.clone());
                let user = configuration.key.clone();
                EndpointStream::start(&self.providers.remote, endpoint.clone(), user, input, events)
            });
            stream.registered(record.registrations);
        }
    }
}

impl Providers {
    /// Returns the reason why no handler of a name may give a device to a container, by the files that its paths lead to now: a
    /// node that was missing when the device was admitted may be a link to a disk since. Without a handler there is none.
    pub fn refusal(&self, handler: &str, device: &Device) -> Option<String> {
        let mounts = device.mounts.iter().filter(|mount| mount.host_path.starts_with("/dev/")); // others may hang
        let device = Device { mounts: mounts.cloned().collect(), ..device.clone() };
        let component = self.handlers.borrow().ready.get(handler).cloned();
        let component = component.map(|component| refusal(&device, &component.rules.grants, DeviceRefusal::to_string));
        let remote = self.remote.refusal(handler, &device);
        [component, remote].into_iter().flatten().reduce(Option::and).flatten()
    }

    fn input(&mut self, configuration: Arc<Configuration>) -> DiscoveryInput {
        DiscoveryInput::new(configuration, &self.values.borrow_and_update())
    }
}
