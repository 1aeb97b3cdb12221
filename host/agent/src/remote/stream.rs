//! The conversation with one endpoint for one Configuration: what it is asked, what it answers, and when it is asked again.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use akri_grpc::discovery::DiscoverRequest;
use akri_model::device::DeviceSet;
use akri_model::discovery::RoundError;
use akri_model::grant::Grants;
use akri_model::names::Key;
use akri_model::policy::{self, Refusal};
use akri_model::remote::{Address, Endpoint};
use akri_model::retry::Backoff;
use akri_model::revealed::Revealed;
use bytes::Bytes;
use futures::FutureExt as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use tracing::{debug, warn};

use super::codec::Undecoded;
use super::dial::dial;
use super::{Inner, Remote, convert};
use crate::discovery::properties::Answer;
use crate::discovery::{admission, dice};

const METHOD: &str = "/v0.DiscoveryHandler/Discover";

/// Largest message, in bytes: what gRPC stacks take unless told otherwise, and so what works with upstream Akri.
const MAX_MESSAGE: usize = 4 << 20;

/// A connection that has stood for so long without an error stands.
const STANDS: Duration = Duration::from_secs(1);

/// A connection that was lost after so long was a good one, even if nothing was said.
const LASTS: Duration = Duration::from_secs(60);

/// Shortest pause between messages. Of those that come meanwhile only the last counts.
const PACE: Duration = Duration::from_millis(50);

/// Messages passed over in one go; a stream that has more of them is read on after the next pause.
const PASSED_OVER: usize = 1000;

/// Shortest time from one attempt to the next, however often a handler registers.
const ATTEMPT: Duration = Duration::from_millis(250);

/// What a Configuration asks all endpoints of its handler.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Question {
    /// Its `discoveryDetails`.
    pub(crate) details: String,
    /// The values of its properties; nothing is asked without them.
    pub(crate) properties: Answer,
}

/// Something from an endpoint.
pub(crate) struct Heard {
    /// From which.
    pub(crate) address: Address,
    /// What.
    pub(crate) news: News,
}

/// What is heard.
pub(crate) enum News {
    /// The connection stands.
    Connected,
    /// All devices it sees now.
    Found(DeviceSet),
    /// It failed, or found fault with the question.
    Failed(RoundError),
}

/// A conversation. It ends when this is dropped, and with it the Discover stream.
pub(crate) struct Stream {
    remote: Remote,
    endpoint: Endpoint,
    user: Key,
    registrations: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Stream {
    /// Begins to ask an endpoint, and anew whenever the question is another one.
    pub(crate) fn start(
        remote: &Remote,
        endpoint: Endpoint,
        user: Key,
        question: watch::Receiver<Arc<Question>>,
        heard: mpsc::Sender<Heard>,
    ) -> Self {
        remote.0.endpoints.used(&endpoint, &user);
        let known = remote.0.endpoints.watch().borrow().get(&endpoint).map(|record| record.registrations);
        let (sender, registrations) = watch::channel(known.unwrap_or_default());
        let conversation = Conversation {
            inner: Arc::clone(&remote.0),
            endpoint: endpoint.clone(),
            user: user.clone(),
            question,
            registrations,
            heard,
            revealed: Arc::default(),
            backoff: Backoff::default(),
            stands: None,
        };
        let task = tokio::spawn(conversation.run());
        Self { remote: remote.clone(), endpoint, user, registrations: sender, task }
    }

    /// The endpoint has registered so many times. If it could not be reached, that is worth another try; a stream that
    /// stands is left alone, since handlers register again when they lose one.
    pub(crate) fn registered(&self, times: u64) {
        // It may have been forgotten and be back.
        self.remote.0.endpoints.used(&self.endpoint, &self.user);
        self.registrations.send_if_modified(|known| std::mem::replace(known, times) != times);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
        self.remote.0.endpoints.released(&self.endpoint, &self.user);
    }
}

struct Conversation {
    inner: Arc<Inner>,
    endpoint: Endpoint,
    user: Key,
    question: watch::Receiver<Arc<Question>>,
    registrations: watch::Receiver<u64>,
    heard: mpsc::Sender<Heard>,
    /// The secrets the endpoint is asked with, and may not repeat.
    revealed: Arc<Revealed>,
    backoff: Backoff,
    /// When the connection of now will have stood for long enough, unless it has.
    stands: Option<Instant>,
}

impl Conversation {
    async fn run(mut self) {
        loop {
            let question = self.question.borrow_and_update().clone();
            self.registrations.mark_unchanged();
            let started = Instant::now();
            let mut another = self.question.clone();
            let error = tokio::select! {
                error = self.ask(&question) => error,
                changed = another.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            self.failed(&error).await;
            if !self.pause(&error, started).await {
                return;
            }
        }
    }

    /// Asks and listens until something goes wrong.
    async fn ask(&mut self, question: &Question) -> RoundError {
        let properties = match &question.properties {
            Ok(properties) => properties,
            Err(unresolved) => return RoundError::PropertiesUnresolved(unresolved.clone()),
        };
        let channel = match dial(&self.endpoint.address, &self.inner.trust).await {
            Ok(channel) => channel,
            Err(error) => return self.at(RoundError::Unavailable(convert::clean(&error.to_string(), 1024))),
        };
        self.stands = Some(Instant::now() + STANDS);
        self.revealed = Arc::new(Revealed::all(&properties.secrets));
        let request = convert::request(&question.details, properties);
        match self.attend(discover(channel, request)).await {
            Ok(stream) => self.listen(Messages { stream, end: None }).await,
            Err(status) => self.at(convert::failure(&status, &self.revealed)),
        }
    }

    async fn listen(&mut self, mut messages: Messages) -> RoundError {
        loop {
            let message = match self.attend(messages.latest()).await {
                Ok(message) => message,
                Err(status) => return self.at(convert::failure(&status, &self.revealed)),
            };
            let received = Instant::now();
            match self.read(message).await {
                Ok(set) => self.found(set).await,
                Err(error) => return self.at(error),
            }
            // A stream of large messages may not keep anything busy for more than a fifth of the time.
            sleep(PACE.max(received.elapsed() * 4)).await;
        }
    }

    /// Waits for something, and says meanwhile when the connection stands.
    async fn attend<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        if let Some(stands) = self.stands {
            tokio::select! {
                biased;
                output = &mut future => return output,
                () = sleep_until(stands) => self.connected().await,
            }
        }
        future.await
    }

    async fn connected(&mut self) {
        if self.stands.take().is_some() {
            debug!(configuration = %self.user, handler = self.endpoint.handler, endpoint = %self.endpoint.address, "connected");
            self.inner.endpoints.connected(&self.endpoint, &self.user, Some(true));
            self.tell(News::Connected).await;
        }
    }

    async fn found(&mut self, set: DeviceSet) {
        self.connected().await;
        self.backoff.reset();
        self.inner.endpoints.told(&self.endpoint, &self.user, Ok(set.devices.len()));
        self.tell(News::Found(set)).await;
    }

    /// Decodes a message and checks what it says, off the async threads and for few at once.
    async fn read(&self, message: Bytes) -> Result<DeviceSet, RoundError> {
        let _permit = self.inner.decoding.acquire().await; // never closed
        let (inner, revealed) = (Arc::clone(&self.inner), Arc::clone(&self.revealed));
        let read = tokio::task::spawn_blocking(move || {
            let set = convert::devices(&message, &inner.limits).map_err(|error| revealed.hide_in_error(error))?;
            revealed.withhold(set, inner.limits.notes).map(|set| inner.admit(set))
        });
        read.await.unwrap_or_else(|error| Err(RoundError::Unavailable(error.to_string())))
    }

    async fn failed(&mut self, error: &RoundError) {
        let (handler, endpoint) = (&self.endpoint.handler, &self.endpoint.address);
        warn!(configuration = %self.user, handler, %endpoint, "discovery failed: {error}");
        let reached = matches!(error, RoundError::Unavailable(_)).then_some(false);
        self.inner.endpoints.told(&self.endpoint, &self.user, Err(error.to_string()));
        self.inner.endpoints.connected(&self.endpoint, &self.user, reached);
        self.stands = None;
        self.tell(News::Failed(error.clone())).await;
    }

    /// Waits until it is time to ask again; false if nobody listens any more.
    async fn pause(&mut self, error: &RoundError, started: Instant) -> bool {
        if started.elapsed() >= LASTS {
            self.backoff.reset();
        }
        let pause = match error {
            RoundError::InvalidDetails(_) | RoundError::PropertiesUnresolved(_) => None,
            _ => Some(self.backoff.failed(dice())),
        };
        let over = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        let goes_on = tokio::select! {
            () = over => return true,
            changed = self.question.changed() => changed.is_ok(),
            changed = self.registrations.changed() => changed.is_ok(),
        };
        self.backoff.reset();
        sleep_until(started + ATTEMPT).await;
        goes_on
    }

    /// An error with the endpoint's address, where the text is for people.
    fn at(&self, error: RoundError) -> RoundError {
        let at = |what: String| format!("{}: {what}", self.endpoint.address);
        match error {
            RoundError::Unavailable(what) => RoundError::Unavailable(at(what)),
            RoundError::LimitExceeded(what) => RoundError::LimitExceeded(at(what)),
            other => other,
        }
    }

    async fn tell(&self, news: News) {
        let heard = Heard { address: self.endpoint.address.clone(), news };
        let _ = self.heard.send(heard).await; // who no longer listens drops this task, too
    }
}

impl Inner {
    /// Withholds what a container must not be given.
    fn admit(&self, set: DeviceSet) -> DeviceSet {
        let paths = |pattern: &str| Grants {
            device_paths: vec![pattern.to_owned()],
            mount_paths: vec![pattern.to_owned()],
            ..Grants::default()
        };
        if self.trust_paths {
            let anything = paths("/**");
            return admission::withhold(set, &self.limits, |device| {
                policy::check(device, &anything).err().map(|refusal| refusal.to_string())
            });
        }
        let devices = paths("/dev/**");
        admission::withhold(set, &self.limits, |device| admission::refusal(device, &devices, told))
    }
}

/// A remote handler has no grants that could be changed.
fn told(refusal: &Refusal) -> String {
    match refusal {
        Refusal::PathNotGranted { path, .. } => {
            format!("path '{path}' is not below /dev; --trust-remote-paths of the agent allows others")
        }
        other => other.to_string(),
    }
}

/// Opens the stream. That may take as long as the first message does: some servers answer nothing at all before it.
async fn discover(channel: Channel, request: DiscoverRequest) -> Result<Streaming<Bytes>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = Undecoded::<DiscoverRequest>::default();
    let method = PathAndQuery::from_static(METHOD);
    client.server_streaming(tonic::Request::new(request), method, codec).await.map(tonic::Response::into_inner)
}

/// The messages of a stream.
struct Messages {
    stream: Streaming<Bytes>,
    /// How it ended, behind messages that were read before.
    end: Option<Status>,
}

impl Messages {
    /// The last message of those that are there, or the next one.
    async fn latest(&mut self) -> Result<Bytes, Status> {
        let mut latest = match self.end.take() {
            Some(end) => return Err(end),
            None => self.stream.message().await?.ok_or_else(ended)?,
        };
        for _ in 0..PASSED_OVER {
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

/// A handler streams for as long as it is asked: one that ends has failed, whatever it says.
fn ended() -> Status {
    Status::unavailable("the handler ended the stream")
}
