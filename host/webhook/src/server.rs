//! HTTPS with bounds on everything that a client can choose: the number of connections, their pace and the bytes sent.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use akri_http::{Activity, Connections};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::crypto::ring;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::certificate::Serving;
use crate::configuration::{self, Checks};
use crate::handler;
use crate::metrics::Metrics;
use crate::review::{self, Subject, answer, parse, subject};
use crate::verdict::Verdict;

/// Bytes of a request: as much as API servers take for an object, twice, since an update brings the old one along.
const BODY: usize = 3 << 20;
/// Time for a request, from its first byte to the answer: what API servers are told to wait.
const REQUEST: Duration = Duration::from_secs(5);
/// Time for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time for the headers, which is also how long a connection may be idle.
const HEADERS: Duration = Duration::from_secs(15);
/// Bytes of the headers.
const HEADER_BYTES: usize = 16 << 10;
/// Limit on open connections; beyond it the oldest idle one is closed, since any pod can open them.
const CONNECTIONS: usize = 128;
/// Time to receive a body. An API server sends one at once.
const BODY_TIME: Duration = Duration::from_secs(1);
/// Limit on bodies received at once, which bounds their memory to 48 MiB.
const BODIES: usize = 16;
/// Reviews at once: each may take some times the size of its body.
const REVIEWS: usize = 4;
/// Time for requests under way when the webhook ends.
const DRAIN: Duration = Duration::from_secs(6);
/// OpenMetrics 1.0, as Prometheus asks for it.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The readiness to answer requests.
#[derive(Debug, Clone)]
pub(crate) struct Readiness {
    pub(crate) serving: Serving,
    /// Components have been loaded.
    pub(crate) loaded: Arc<AtomicBool>,
}

impl Readiness {
    pub(crate) fn is_ready(&self) -> bool {
        self.serving.is_set() && self.loaded.load(Ordering::Relaxed)
    }
}

/// The dependencies of reviews.
#[derive(Clone)]
struct Reviews {
    checks: Checks,
    bodies: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    metrics: Metrics,
}

/// The paths. `/validate` is upstream's, too.
pub(crate) fn router(checks: Checks, readiness: Readiness, metrics: Metrics) -> Router {
    let readyz = move || async move {
        match readiness.is_ready() {
            true => (StatusCode::OK, "ok\n"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
        }
    };
    let (bodies, turns) = (Arc::new(Semaphore::new(BODIES)), Arc::new(Semaphore::new(REVIEWS)));
    let counted = metrics.clone();
    let metricsz = move || async move { ([(header::CONTENT_TYPE, OPEN_METRICS)], counted.encode()) };
    Router::new()
        .route("/validate", post(validate))
        .with_state(Reviews { checks, bodies, turns, metrics })
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metricsz))
}

async fn validate(State(reviews): State<Reviews>, request: Request) -> Response {
    let start = Instant::now();
    let (result, response) = match timeout(REQUEST, reviewed(&reviews, request)).await {
        Ok(answered) => answered,
        Err(_) => ("malformed", (StatusCode::REQUEST_TIMEOUT, "not within 5 s\n").into_response()),
    };
    reviews.metrics.count(result, start.elapsed());
    response
}

/// Receives a body, then waits for a turn: a client that is slow to send keeps no other's review waiting.
async fn reviewed(reviews: &Reviews, request: Request) -> (&'static str, Response) {
    let Ok(_body) = reviews.bodies.acquire().await else {
        return ("malformed", StatusCode::SERVICE_UNAVAILABLE.into_response());
    };
    let body = match timeout(BODY_TIME, to_bytes(request.into_body(), BODY)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return ("malformed", (StatusCode::PAYLOAD_TOO_LARGE, "more than 3 MiB\n").into_response()),
        Err(_) => return ("malformed", (StatusCode::REQUEST_TIMEOUT, "no body within 1 s\n").into_response()),
    };
    let Ok(_turn) = reviews.turns.acquire().await else {
        return ("malformed", StatusCode::SERVICE_UNAVAILABLE.into_response());
    };
    let request = match parse(&body) {
        Ok(request) => request,
        Err(error) => return ("malformed", (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()),
    };
    let verdict = check(&reviews.checks, &request).await;
    let result = if verdict.is_allowed() { "allowed" } else { "denied" };
    debug!(kind = request.kind.kind, namespace = request.namespace, name = request.name, result, "reviewed");
    match answer(&request, verdict) {
        Ok(body) => (result, ([(header::CONTENT_TYPE, "application/json")], Body::from(body)).into_response()),
        Err(error) => ("malformed", (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()),
    }
}

async fn check(checks: &Checks, request: &review::Request) -> Verdict {
    match subject(request) {
        Subject::Configuration => configuration::check(checks, request).await,
        Subject::DiscoveryHandler => handler::check(request),
        Subject::Nothing => Verdict::default(),
    }
}

/// TLS 1.2 and 1.3 with whatever certificate serves at the time.
pub(crate) fn tls(serving: Serving) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let mut config = builder.with_cert_resolver(Arc::new(serving));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Serves until `stop` ends, and then what is under way.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    stop: impl Future<Output = ()>,
) {
    let mut stop = pin!(stop);
    let mut connections = Connections::new(CONNECTIONS);
    let (ending, ended) = watch::channel(false);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            () = connections.reap() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (acceptor, router, ended) = (TlsAcceptor::from(tls.clone()), router.clone(), ended.clone());
                connections.add(|activity| connection(stream, acceptor, router, ended, activity));
            }
            Err(error) => {
                warn!(%error, "accepting a connection failed; retrying");
                tokio::time::sleep(Duration::from_millis(100)).await; // usually too many files are open
            }
        }
    }
    ending.send_replace(true);
    let _ = timeout(DRAIN, connections.drain()).await; // those that take longer are cut
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    mut ended: watch::Receiver<bool>,
    activity: Activity,
) {
    let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "a TLS handshake failed"),
        Err(_) => return debug!("a TLS handshake took too long"),
    };
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request| activity.clone().during(router.call(request)));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS).max_header_size(HEADER_BYTES);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = async { drop(ended.wait_for(|ended| *ended).await) } => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        debug!(%error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests;
