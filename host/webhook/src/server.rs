//! HTTPS with bounds on everything that a client can choose: the number of connections, their pace and the bytes sent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use akri_kube::http::{Pages, limited};
use axum::Router;
use axum::body::to_bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use rustls::ServerConfig;
use rustls::crypto::ring;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tracing::debug;

use crate::bodies::Bodies;
use crate::certificate::ServingCertificate;
use crate::configuration::{self, Checks};
use crate::metrics::Metrics;
use crate::review::{self, Subject, check_alone, parse, response_body, subject};
use crate::review_outcome::ReviewOutcome;

/// Seconds for one: tests run on busy machines.
const SCALE: u64 = if cfg!(test) { 60 } else { 1 };
/// Bytes of a request: twice what etcd takes for an object, 1.5 MiB, since an update brings the old one along, and more.
const BODY: usize = 4 << 20;
/// Time for a request, from its first byte to the answer: what API servers are told to wait.
const REQUEST: Duration = Duration::from_secs(5 * SCALE);
/// Time for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5 * SCALE);
/// Time for the headers, which is also how long a connection may be idle.
const IDLE: Duration = Duration::from_secs(15 * SCALE);
/// Limit on open connections; beyond it the oldest idle one is closed, since any pod can open them.
const CONNECTIONS: usize = 128;
/// Time to receive a body. An API server sends one at once.
const BODY_TIME: Duration = Duration::from_secs(SCALE);
/// Limit on bodies that are received or wait for their review, which bounds their memory to 64 MiB. Beyond it a client with more
/// of them makes room.
const BODIES: usize = 16;
/// Reviews at once: each may take some times the size of its body.
const REVIEWS: usize = 4;
/// Time for requests under way when the webhook ends.
const DRAIN: Duration = Duration::from_secs(6);

/// The dependencies of reviews.
#[derive(Clone)]
struct Reviews {
    checks: Checks,
    bodies: Arc<Bodies>,
    metrics: Metrics,
}

/// The paths. `/validate` is upstream's, too.
pub(crate) fn router(checks: Checks, is_ready: impl Fn() -> bool + Send + Sync + 'static) -> Router {
    let (bodies, metrics) = (Arc::new(Bodies::new(BODIES, REVIEWS)), Metrics::default());
    let missing = move || if is_ready() { Vec::new() } else { vec!["starting".to_owned()] };
    let counted = metrics.clone();
    let pages = Pages { metrics: Arc::new(move || counted.encode()), missing: Arc::new(missing) };
    let validate = post(validate).with_state(Reviews { checks, bodies, metrics });
    pages.router().route("/validate", validate)
}

async fn validate(
    State(reviews): State<Reviews>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let start = Instant::now();
    let reviewed = timeout(REQUEST, review(&reviews, client, request)).await;
    let reviewed = reviewed.unwrap_or_else(|_| Err((StatusCode::REQUEST_TIMEOUT, "not within 5 s\n".to_owned())));
    let (result, response) = match reviewed {
        Ok((result, body)) => (result, ([(header::CONTENT_TYPE, "application/json")], body).into_response()),
        Err(refused) => ("malformed", refused.into_response()),
    };
    reviews.metrics.count(result, start.elapsed());
    response
}

/// Receives a body and reviews it, each in its turn: a slow client does not delay the reviews of others. Returns the result and the
/// body of the response.
async fn review(
    reviews: &Reviews,
    client: SocketAddr,
    request: Request,
) -> Result<(&'static str, Vec<u8>), (StatusCode, String)> {
    let body = async { timeout(BODY_TIME, to_bytes(request.into_body(), BODY)).await }; // from its turn on
    let reviewed = reviews.bodies.review(client.ip(), body, async |body| match body {
        Ok(Ok(body)) => answer(&reviews.checks, &body).await,
        Ok(Err(_)) => Err(refused(StatusCode::PAYLOAD_TOO_LARGE, "more than 4 MiB")),
        Err(_) => Err(refused(StatusCode::REQUEST_TIMEOUT, "no body within 1 s")),
    });
    reviewed.await.unwrap_or_else(|| Err(refused(StatusCode::TOO_MANY_REQUESTS, "too many bodies at once")))
}

fn refused(code: StatusCode, why: &str) -> (StatusCode, String) {
    (code, format!("{why}\n"))
}

async fn answer(checks: &Checks, body: &[u8]) -> Result<(&'static str, Vec<u8>), (StatusCode, String)> {
    let request = parse(body).map_err(|error| refused(StatusCode::BAD_REQUEST, &error))?;
    let outcome = check(checks, &request).await;
    let result = if outcome.is_allowed() { "allowed" } else { "denied" };
    debug!(kind = request.kind.kind, namespace = request.namespace, name = request.name, result, "reviewed");
    let body = response_body(&request, outcome);
    Ok((result, body.map_err(|error| refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()))?))
}

async fn check(checks: &Checks, request: &review::Request) -> ReviewOutcome {
    match subject(request) {
        Subject::Configuration => configuration::check(checks, request).await,
        Subject::DiscoveryHandler | Subject::Nothing => check_alone(request),
    }
}

/// Returns the settings of TLS 1.2 and 1.3 with whatever certificate serves at the time.
pub(crate) fn tls(certificate: ServingCertificate) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let mut config = builder.with_cert_resolver(Arc::new(certificate));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Serves until `stop` ends, and then finishes the requests under way.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    stop: impl Future<Output = ()>,
) {
    let handle = Handle::new();
    let tls = RustlsAcceptor::new(RustlsConfig::from_config(tls)).handshake_timeout(HANDSHAKE);
    let server = limited(listener, CONNECTIONS, IDLE).map(|limit| tls.acceptor(limit)).handle(handle.clone());
    let end = async {
        stop.await;
        handle.graceful_shutdown(Some(DRAIN));
    };
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let (_served, ()) = tokio::join!(server.serve(service), end); // a bound listener serves until it ends
}

#[cfg(test)]
mod tests;
