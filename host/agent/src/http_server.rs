//! Health and metrics over HTTP: `/healthz`, `/readyz` and `/metrics`.
//!
//! The port is open to every pod of the cluster, so that a connection costs little and ends soon: one request each, a bound
//! on its head and on its time, and when too many are open the oldest makes room. A probe, which takes milliseconds, is
//! answered however many others are held open.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// The content type of OpenMetrics 1.0, as Prometheus requests it.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Limit on open connections.
const CONNECTIONS: usize = 64;
/// Limit on a request head, in bytes; hyper accepts no smaller one.
const HEAD: usize = 8 << 10;
/// Limit on the headers of a request.
const HEADERS: usize = 32;
/// Time to read a request head.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Lifetime of a connection, including the time to read the response.
const LIFETIME: Duration = Duration::from_secs(15);
/// Pause after a failed accept: the process is probably out of file descriptors, and an immediate retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The HTTP server; it stops when this is dropped.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Server {
    /// Binds the address and starts to serve. The agent is healthy while it answers, and ready when nothing is missing.
    ///
    /// # Errors
    /// If the address can't be bound.
    pub async fn start(address: SocketAddr, metrics: Metrics, readiness: Readiness) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        info!(address = %listener.local_addr()?, "serving health and metrics");
        Ok(Self(tokio::spawn(serve(listener, router(metrics, readiness)))))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn router(metrics: Metrics, readiness: Readiness) -> Router {
    let progress = readiness.clone();
    let readyz = move || async move {
        match progress.missing().as_slice() {
            [] => (StatusCode::OK, "ok\n".to_owned()),
            missing => (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n"),
        }
    };
    let metricsz = move || async move {
        readiness.measure(&metrics);
        ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics.encode())
    };
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(readyz)).route("/metrics", get(metricsz))
}

async fn serve(listener: TcpListener, router: Router) {
    let mut connections = Connections::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connections.add(answer(stream, router.clone())),
                Err(error) => {
                    warn!("accepting a connection for health and metrics failed; retrying: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.tasks.join_next() => {}
        }
    }
}

/// Answers one request. What fails is the client's loss.
async fn answer(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD)
        .max_headers(HEADERS)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let _ = timeout(LIFETIME, connection).await;
}

/// The open connections, the oldest first. They end with this.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    order: VecDeque<AbortHandle>,
}

impl Connections {
    /// Serves one more. If there are too many, the oldest ends.
    fn add(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        if self.order.len() >= CONNECTIONS {
            self.order.retain(|task| !task.is_finished());
        }
        if self.order.len() >= CONNECTIONS
            && let Some(oldest) = self.order.pop_front()
        {
            oldest.abort();
        }
        self.order.push_back(self.tasks.spawn(connection));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::watch;

    use super::*;
    use crate::discovery::registry::Handlers;
    use crate::readiness::Sources;

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn start(readiness: &Readiness) -> (SocketAddr, Server) {
        let probe = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = probe.local_addr().unwrap();
        drop(probe);
        (address, Server::start(address, Metrics::default(), readiness.clone()).await.unwrap())
    }

    #[tokio::test]
    async fn it_is_ready_once_it_says_so() {
        let readiness = Readiness::default();
        let (address, _server) = start(&readiness).await;
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let starting = ask(address, "/readyz").await;
        assert!(starting.starts_with("HTTP/1.1 503") && starting.contains("have not all been read"), "{starting}");
        let (sources, _senders) = ready();
        readiness.observe(sources);
        readiness.listed();
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/metrics").await.contains("# EOF"));
        assert!(ask(address, "/secrets").await.starts_with("HTTP/1.1 404"));
    }

    /// What a ready agent observes.
    fn ready() -> (Sources, impl Sized) {
        let handlers = Handlers { pending: Some(BTreeSet::new()), ..Handlers::default() };
        let manifests = watch::Sender::new(Arc::default());
        let handlers = watch::Sender::new(Arc::new(handlers));
        let (resources, journal) = (watch::Sender::default(), watch::Sender::default());
        let sources = Sources {
            manifests: manifests.subscribe(),
            handlers: handlers.subscribe(),
            resources: resources.subscribe(),
            journal: journal.subscribe(),
            optional_kubelet: None,
        };
        (sources, (manifests, handlers, resources, journal))
    }

    /// Sends until the server hangs up; how many bytes it took, about.
    async fn flood(address: SocketAddr, piece: &[u8]) -> usize {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut sent = 0;
        while sent < 64 << 20 && stream.write_all(piece).await.is_ok() {
            sent += piece.len();
        }
        sent
    }

    #[tokio::test]
    async fn endless_request_head_is_cut_off() {
        let (address, _server) = start(&Readiness::default()).await;
        let line = format!("GET /{} HTTP/1.1\r\n", "x".repeat(1 << 20));
        let headers = format!("X: {}\r\n", "y".repeat(4000));
        for piece in [line.as_bytes(), headers.as_bytes()] {
            let took = flood(address, piece).await;
            assert!(took < 64 << 20, "{took} bytes");
        }
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn probe_is_answered_beside_many_held_connections() {
        let (address, _server) = start(&Readiness::default()).await;
        let mut held = Vec::new();
        for _ in 0..4 * CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n").await;
            held.push(stream);
        }
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        // The oldest have been hung up on.
        for stream in held.iter_mut().take(CONNECTIONS) {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        }
    }
}
