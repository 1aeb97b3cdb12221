//! Clients whose requests are recorded: what was sent by whom, and what came back.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use akri_kube::api_metrics::RequestKind;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::MapFrame;
use hyper::body::{Body as _, Bytes, Frame};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::{Layer, Service};

/// The beginning of a watch event that is none.
const BOOKMARK: &[u8] = br#"{"type":"BOOKMARK""#;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The sender.
    pub actor: String,
    /// `get`, `list`, `watch`, `create`, `patch`, `update` or `delete`.
    pub verb: &'static str,
    /// The resource and the subresource, such as `instances` or `configurations/status`.
    pub resource: String,
    /// The path and the query.
    pub uri: String,
    /// Bytes of its body.
    pub sent: u64,
    /// Bytes of the answer's body so far.
    pub received: u64,
    /// Events of a watch so far.
    pub events: u64,
}

impl Recorded {
    /// Returns whether it changes something.
    pub fn writes(&self) -> bool {
        matches!(self.verb, "create" | "patch" | "update" | "delete")
    }

    fn new(actor: &str, request: &Request<Body>) -> Self {
        let RequestKind { verb, resource } = RequestKind::of(request);
        let (uri, sent) = (request.uri().to_string(), request.body().size_hint().exact().unwrap_or_default());
        Self { actor: actor.to_owned(), verb, resource, uri, sent, received: 0, events: 0 }
    }
}

/// All requests so far. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Mutex<Vec<Recorded>>>);

impl Recorder {
    /// Makes a client of a kubeconfig, whose requests are recorded as this actor's.
    pub async fn client(&self, kubeconfig: &Path, actor: &str) -> Client {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let layer = Recording { inner: (), recorder: self.clone(), actor: actor.into() };
        ClientBuilder::try_from(config).unwrap().with_layer(&layer).build()
    }

    /// Returns the requests from the one of that number on.
    pub fn since(&self, number: usize) -> Vec<Recorded> {
        self.lock()[number..].to_vec()
    }

    /// Returns the number of requests so far.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Returns the events of all watches so far, by resource.
    pub fn events(&self) -> BTreeMap<String, u64> {
        let mut events = BTreeMap::new();
        for watch in self.lock().iter().filter(|request| request.verb == "watch") {
            *events.entry(watch.resource.clone()).or_default() += watch.events;
        }
        events
    }

    /// Returns the bytes sent and received by all so far.
    pub fn bytes(&self) -> (u64, u64) {
        let requests = self.lock();
        (requests.iter().map(|request| request.sent).sum(), requests.iter().map(|request| request.received).sum())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.0.lock().unwrap()
    }

    fn add(&self, request: Recorded) -> usize {
        let mut all = self.lock();
        all.push(request);
        all.len() - 1
    }

    fn received(&self, number: usize, data: &[u8]) {
        let request = &mut self.lock()[number];
        request.received += data.len() as u64;
        if request.verb == "watch" {
            let lines = data.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
            let is_bookmark = |line: &[u8]| line.windows(BOOKMARK.len()).any(|part| part == BOOKMARK);
            request.events += lines.filter(|line| !is_bookmark(line)).count() as u64;
        }
    }
}

/// A service that records what goes through it.
#[derive(Clone)]
struct Recording<S> {
    inner: S,
    recorder: Recorder,
    actor: Arc<str>,
}

impl<S> Layer<S> for Recording<()> {
    type Service = Recording<S>;

    fn layer(&self, inner: S) -> Recording<S> {
        Recording { inner, recorder: self.recorder.clone(), actor: Arc::clone(&self.actor) }
    }
}

type OnFrame = Box<dyn FnMut(Frame<Bytes>) -> Frame<Bytes> + Send>;

impl<S, B> Service<Request<Body>> for Recording<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<MapFrame<B, OnFrame>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let recorder = self.recorder.clone();
        let number = recorder.add(Recorded::new(&self.actor, &request));
        let answer = self.inner.call(request);
        Box::pin(async move {
            let on_frame: OnFrame = Box::new(move |frame| {
                if let Some(data) = frame.data_ref() {
                    recorder.received(number, data);
                }
                frame
            });
            Ok(answer.await?.map(|body| body.map_frame(on_frame)))
        })
    }
}
