//! The Discover stream of one endpoint for one Configuration: requests, responses and retries.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use akri_grpc::discovery::DiscoverRequest;
use akri_model::configuration::Configuration;
use akri_model::device::{Device, DeviceSet};
use akri_model::discovery::RoundError;
use akri_model::names::Key;
use akri_model::policy::{self, DeviceRefusal};
use akri_model::remote::Endpoint;
use akri_model::resolve::DiscoveryInput;
use akri_model::retry::{Backoff, jitter};
use akri_model::secret_scanner::SecretScanner;
use akri_model::sources::{DiscoverySource, SourceEvent, SourceUpdate};
use akri_model::text::clean;
use akri_node::{admission, sleep_until_some};
use bytes::Bytes;
use futures::FutureExt as _;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use tracing::{debug, warn};

use crate::codec::RawCodec;
use crate::dial::dial;
use crate::{Inner, Remote, convert};

const METHOD: &str = "/v0.DiscoveryHandler/Discover";

/// Limit on a message, in bytes: the default of gRPC stacks, which upstream Akri has as well.
const MAX_MESSAGE: usize = 4 << 20;

/// Time without an error after which a connection counts as connected.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// A connection that lasted this long resets the backoff, even without a message.
const LONG_LIVED: Duration = Duration::from_secs(60);

/// Shortest pause between messages. Of those received meanwhile only the last is decoded.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// Maximum number of messages skipped at once; the rest is read after the next pause.
const MAX_SKIPPED: usize = 1000;

/// Shortest time between attempts, however often a handler registers.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// A Discover stream. Dropping this ends it.
pub struct EndpointStream {
    remote: Remote,
    endpoint: Endpoint,
    user: Key,
    registrations: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl EndpointStream {
    /// Starts requesting devices from an endpoint, and again whenever the request changes.
    pub fn start(
        remote: &Remote,
        endpoint: Endpoint,
        user: Key,
        input: watch::Receiver<Arc<DiscoveryInput>>,
        events: mpsc::Sender<Box<SourceEvent>>,
    ) -> Self {
        remote.0.endpoints.add_user(&endpoint, &user);
        let known = remote.0.endpoints.watch().borrow().get(&endpoint).map(|record| record.registrations);
        let (sender, registrations) = watch::channel(known.unwrap_or_default());
        let stream_task = StreamTask {
            inner: Arc::clone(&remote.0),
            endpoint: endpoint.clone(),
            user: user.clone(),
            configuration: Arc::default(),
            input,
            registrations,
            events,
            permit: remote.0.decoding.of(&endpoint),
            scanner: Arc::default(),
            backoff: Backoff::default(),
            stable_at: None,
        };
        let task = tokio::spawn(stream_task.run());
        Self { remote: remote.clone(), endpoint, user, registrations: sender, task }
    }

    /// Sets the endpoint's number of registrations. A new registration causes a retry if the endpoint was unreachable;
    /// a connected stream is kept, since handlers register again when they lose one.
    pub fn registered(&self, times: u64) {
        // The endpoint may have been removed and added again.
        self.remote.0.endpoints.add_user(&self.endpoint, &self.user);
        self.registrations.send_if_modified(|known| std::mem::replace(known, times) != times);
    }
}

impl Drop for EndpointStream {
    fn drop(&mut self) {
        self.task.abort();
        self.remote.0.endpoints.change(|all, now| all.remove_user(&self.endpoint, &self.user, now));
    }
}

struct StreamTask {
    inner: Arc<Inner>,
    endpoint: Endpoint,
    user: Key,
    input: watch::Receiver<Arc<DiscoveryInput>>,
    /// The Configuration that the current request was made with.
    configuration: Arc<Configuration>,
    registrations: watch::Receiver<u64>,
    events: mpsc::Sender<Box<SourceEvent>>,
    /// The permit for decoding a message of the endpoint.
    permit: Arc<Semaphore>,
    /// Detects the secrets sent to the endpoint, which must not appear in its responses.
    scanner: Arc<SecretScanner>,
    backoff: Backoff,
    /// The time at which the current connection counts as stable; `None` if it already does or there is none.
    stable_at: Option<Instant>,
}

impl StreamTask {
    async fn run(mut self) {
        loop {
            let input = self.input.borrow_and_update().clone();
            self.configuration = Arc::clone(&input.configuration);
            self.registrations.mark_unchanged();
            let started = Instant::now();
            let mut inputs = self.input.clone();
            let other_request = async { inputs.wait_for(|now| !now.has_same_request(&input)).await.map(drop) };
            let error = tokio::select! {
                error = self.run_stream(&input) => error,
                changed = other_request => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            self.failed(&error).await;
            if !self.wait_for_retry(&error, started).await {
                return;
            }
        }
    }

    /// Sends the request and reads messages until an error occurs.
    async fn run_stream(&mut self, input: &DiscoveryInput) -> RoundError {
        let properties = match &input.properties {
            Ok(properties) => properties,
            Err(unresolved) => return RoundError::PropertiesUnresolved(unresolved.clone()),
        };
        let channel = match dial(&self.endpoint.address, &self.inner.settings).await {
            Ok(channel) => channel,
            Err(error) => return self.with_address(RoundError::Unavailable(clean(&error, 1024))),
        };
        self.stable_at = Some(Instant::now() + STABLE_AFTER);
        self.scanner = Arc::new(SecretScanner::all(&properties.secrets));
        let request = convert::request(&input.configuration.details, properties);
        match self.await_reporting_connected(discover(channel, request)).await {
            Ok(stream) => self.read_messages(Messages { stream, end: None }).await,
            Err(status) => self.with_address(convert::failure(&status, &self.scanner)),
        }
    }

    async fn read_messages(&mut self, mut messages: Messages) -> RoundError {
        loop {
            let message = match self.await_reporting_connected(messages.latest()).await {
                Ok(message) => message,
                Err(status) => return self.with_address(convert::failure(&status, &self.scanner)),
            };
            let (decoded, took) = self.decode(message).await;
            match decoded {
                Ok(set) => self.found(set).await,
                Err(error) => return self.with_address(error),
            }
            // A stream of large messages may use at most a fifth of the time.
            sleep(MIN_PAUSE.max(took * 4)).await;
        }
    }

    /// Awaits a future, and reports the connection as stable meanwhile.
    async fn await_reporting_connected<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        if let Some(stable_at) = self.stable_at {
            tokio::select! {
                biased;
                output = &mut future => return output,
                () = sleep_until(stable_at) => self.connected().await,
            }
        }
        future.await
    }

    async fn connected(&mut self) {
        if self.stable_at.take().is_some() {
            debug!(configuration = %self.user, handler = self.endpoint.handler, endpoint = %self.endpoint.address, "connected");
            self.inner.endpoints.change(|all, now| all.set_connected(&self.endpoint, &self.user, Some(true), now));
            self.send(SourceUpdate::Connected).await;
        }
    }

    async fn found(&mut self, set: DeviceSet) {
        self.connected().await;
        self.backoff.reset();
        self.inner.endpoints.change(|all, _| all.record_result(&self.endpoint, &self.user, Ok(set.devices.len())));
        self.send(SourceUpdate::Found { set, shared: None }).await;
    }

    /// Decodes and checks a message on a blocking thread, when the endpoint has its permit, which a thread that hangs keeps; also
    /// returns the time that this took from then on.
    async fn decode(&self, message: Bytes) -> (Result<DeviceSet, RoundError>, Duration) {
        let longest = 2 * self.inner.limits.round;
        let hangs = |_| {
            RoundError::Unavailable(format!("a file or directory of its devices does not answer within {longest:?}"))
        };
        let own = match timeout(longest, Arc::clone(&self.permit).acquire_owned()).await.map_err(hangs) {
            Ok(own) => own,
            Err(error) => return (Err(error), longest),
        };
        let _large = self.inner.decoding.acquire(&self.endpoint.address, message.len()).await;
        let began = Instant::now();
        let (inner, scanner) = (Arc::clone(&self.inner), Arc::clone(&self.scanner));
        let configuration = Arc::clone(&self.configuration);
        let read = tokio::task::spawn_blocking(move || {
            let _own = own;
            let set = convert::devices(&message, &inner.limits).map_err(|error| scanner.hide_in_error(error))?;
            let is_over = || began.elapsed() > inner.limits.round;
            let set = scanner.withhold(set, inner.limits.notes, is_over)?;
            admission::withhold(set, &configuration, &inner.limits, |device| inner.refusal(device), is_over)
        });
        let read = timeout(longest, read).await.map_err(hangs);
        let failed = |error: JoinError| Err(RoundError::Unavailable(error.to_string()));
        (read.and_then(|read| read.unwrap_or_else(failed)), began.elapsed())
    }

    async fn failed(&mut self, error: &RoundError) {
        let (handler, endpoint) = (&self.endpoint.handler, &self.endpoint.address);
        warn!(configuration = %self.user, handler, %endpoint, "discovery failed: {error}");
        let reached = matches!(error, RoundError::Unavailable(_)).then_some(false);
        self.inner.endpoints.change(|all, now| {
            all.record_result(&self.endpoint, &self.user, Err(error.to_string()));
            all.set_connected(&self.endpoint, &self.user, reached, now);
        });
        self.stable_at = None;
        self.send(SourceUpdate::Failed(error.clone())).await;
    }

    /// Waits for the next attempt; returns false if the stream is closed.
    async fn wait_for_retry(&mut self, error: &RoundError, started: Instant) -> bool {
        if started.elapsed() >= LONG_LIVED {
            self.backoff.reset();
        }
        let pause = match error {
            RoundError::InvalidDetails(_) | RoundError::PropertiesUnresolved(_) => None,
            _ => Some(self.backoff.failed(jitter())),
        };
        let retry_due = sleep_until_some(pause.map(|pause| Instant::now() + pause));
        let open = tokio::select! {
            () = retry_due => return true,
            changed = self.input.changed() => changed.is_ok(),
            changed = self.registrations.changed() => changed.is_ok(),
        };
        self.backoff.reset();
        sleep_until(started + MIN_RETRY_INTERVAL).await;
        open
    }

    /// Adds the endpoint's address to an error with a free text.
    fn with_address(&self, error: RoundError) -> RoundError {
        let at = |what: String| format!("{}: {what}", self.endpoint.address);
        match error {
            RoundError::Unavailable(what) => RoundError::Unavailable(at(what)),
            RoundError::LimitExceeded(what) => RoundError::LimitExceeded(at(what)),
            RoundError::InvalidResult(what) => RoundError::InvalidResult(at(what)),
            other => other,
        }
    }

    async fn send(&self, update: SourceUpdate) {
        let source = DiscoverySource::Remote(self.endpoint.address.clone());
        let event = SourceEvent { source, generation: self.configuration.generation, event_at: None, update };
        let _ = self.events.send(Box::new(event)).await; // the receiver ends this task when it goes
    }
}

impl Inner {
    /// Returns the reason why a device must not be allocated, if any.
    pub(crate) fn refusal(&self, device: &Device) -> Option<String> {
        if self.grants.any_path {
            return policy::check(device, &self.grants).err().map(|refusal| refusal.to_string());
        }
        admission::refusal(device, &self.grants, describe)
    }
}

/// Describes a refusal: the remedy is a flag, since a remote handler has no grants.
fn describe(refusal: &DeviceRefusal) -> String {
    match refusal {
        DeviceRefusal::PathNotGranted { path, .. } => {
            format!("path '{path}' is not covered by --remote-path of the agent, which may be given more than once")
        }
        DeviceRefusal::PathNotNamed { path, .. } => {
            format!(
                "path '{path}' leads to the node's memory, log or disks; --remote-path of the agent has to name it itself"
            )
        }
        DeviceRefusal::ContainerPathNotGranted { path, .. } => {
            format!("path '{path}' in the container is not below /dev; --trust-remote-paths of the agent allows others")
        }
        DeviceRefusal::ReservedPropertyName { name, .. } => {
            format!("property '{name}' would choose what programs in the container run or trust")
        }
        other => other.to_string(),
    }
}

/// Opens the stream. This may take as long as the first message: some servers send no headers before it.
async fn discover(channel: Channel, request: DiscoverRequest) -> Result<Streaming<Bytes>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = RawCodec::<DiscoverRequest>::default();
    let method = PathAndQuery::from_static(METHOD);
    client.server_streaming(tonic::Request::new(request), method, codec).await.map(tonic::Response::into_inner)
}

/// The messages of a stream.
struct Messages {
    stream: Streaming<Bytes>,
    /// The end of the stream, if it was read together with earlier messages.
    end: Option<Status>,
}

impl Messages {
    /// Returns the last of the available messages, or waits for the next one.
    async fn latest(&mut self) -> Result<Bytes, Status> {
        let mut latest = match self.end.take() {
            Some(end) => return Err(end),
            None => self.stream.message().await?.ok_or_else(ended)?,
        };
        for _ in 0..MAX_SKIPPED {
            match self.stream.message().now_or_never() {
                Some(Ok(Some(later))) => latest = later,
                Some(Ok(None)) => self.end = Some(ended()),
                Some(Err(end)) => self.end = Some(end),
                None => break,
            }
            if self.end.is_some() {
                break;
            }
        }
        Ok(latest)
    }
}

/// Returns the error of a stream that ended: handlers must keep streaming.
fn ended() -> Status {
    Status::unavailable("the handler ended the stream")
}
