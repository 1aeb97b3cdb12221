//! HTTPS with bounds on everything that a client can choose: how many there are, how slowly they speak and how much they send.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::crypto::ring;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
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
/// Connections at once. More wait until one ends.
const CONNECTIONS: usize = 128;
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
    let counted = metrics.clone();
    let metricsz = move || async move { ([(header::CONTENT_TYPE, OPEN_METRICS)], counted.encode()) };
    Router::new()
        .route("/validate", post(validate))
        .with_state(Reviews { checks, turns: Arc::new(Semaphore::new(REVIEWS)), metrics })
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

/// Waits for its turn before it reads anything, so that memory is bounded by turns.
async fn reviewed(reviews: &Reviews, request: Request) -> (&'static str, Response) {
    let Ok(_turn) = reviews.turns.acquire().await else {
        return ("malformed", StatusCode::SERVICE_UNAVAILABLE.into_response());
    };
    let Ok(body) = to_bytes(request.into_body(), BODY).await else {
        return ("malformed", (StatusCode::PAYLOAD_TOO_LARGE, "more than 3 MiB\n").into_response());
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
    let turns = Arc::new(Semaphore::new(CONNECTIONS));
    let (ending, ended) = watch::channel(false);
    loop {
        let accepted = async {
            let turn = turns.clone().acquire_owned().await.ok()?;
            Some((turn, listener.accept().await))
        };
        let (turn, accepted) = tokio::select! {
            () = &mut stop => break,
            accepted = accepted => match accepted { Some(accepted) => accepted, None => break },
        };
        match accepted {
            Ok((stream, _)) => {
                tokio::spawn(connection(stream, TlsAcceptor::from(tls.clone()), router.clone(), ended.clone(), turn));
            }
            Err(error) => {
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await; // usually too many files are open
            }
        }
    }
    ending.send_replace(true);
    let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
    let _ = timeout(DRAIN, turns.acquire_many(all)).await; // those that take longer are cut
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    mut ended: watch::Receiver<bool>,
    _turn: OwnedSemaphorePermit,
) {
    let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "a TLS handshake failed"),
        Err(_) => return debug!("a TLS handshake took too long"),
    };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS).max_header_size(HEADER_BYTES);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
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
