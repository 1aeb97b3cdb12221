//! Health and metrics over HTTP: `/healthz`, `/readyz` and `/metrics`.
//!
//! The port is open to every pod of the cluster, so that a connection costs little and ends soon: one request each, a bound
//! on its head and on its time, and when too many are open the oldest makes room. A probe, which takes milliseconds, is
//! answered however many others are held open.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// The content that is served.
#[derive(Clone)]
pub struct Pages {
    /// Returns all metrics as text.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Returns what the process still lacks to be ready, a line each.
    pub missing: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
}

/// The HTTP server; it stops when this is dropped.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Server {
    /// Binds the address and starts to serve. The process is healthy while it answers, and ready while nothing is missing.
    ///
    /// # Errors
    /// If the address can't be bound.
    pub async fn start(address: SocketAddr, pages: Pages) -> io::Result<Self> {
        let listener = bind(address).await?;
        info!(address = %listener.local_addr()?, "serving health and metrics");
        Ok(Self(tokio::spawn(serve(listener, router(pages)))))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Binds a TCP address. `[::]` accepts IPv4, too, and stands for `0.0.0.0` on a node without IPv6.
///
/// # Errors
/// If the address can't be bound.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await.map_err(|_| error)
        }
        bound => bound,
    }
}

fn router(pages: Pages) -> Router {
    let Pages { metrics, missing } = pages;
    let readyz = move || async move {
        match missing().as_slice() {
            [] => (StatusCode::OK, "ok\n".to_owned()),
            what => (StatusCode::SERVICE_UNAVAILABLE, what.join("\n") + "\n"),
        }
    };
    let metricsz = move || async move { ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics()) };
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(readyz)).route("/metrics", get(metricsz))
}

async fn serve(listener: TcpListener, router: Router) {
    let mut connections = Connections::new(CONNECTIONS);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connections.add(|_| answer(stream, router.clone())),
                Err(error) => {
                    warn!("accepting a connection for health and metrics failed; retrying: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            () = connections.reap() => {}
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

/// The open connections of a server, at most so many: if there are too many, the oldest idle one is closed, so that a client
/// is served however many others hold connections open. All are closed when this is dropped.
#[derive(Debug)]
pub struct Connections {
    limit: usize,
    tasks: JoinSet<()>,
    order: VecDeque<(AbortHandle, Activity)>,
}

/// Set while a connection has a request under way.
#[derive(Debug, Clone, Default)]
pub struct Activity(Arc<AtomicBool>);

impl Activity {
    /// Marks the connection as busy while `request` runs.
    pub async fn during<T>(self, request: impl Future<Output = T>) -> T {
        self.0.store(true, Ordering::Relaxed);
        let output = request.await;
        self.0.store(false, Ordering::Relaxed);
        output
    }

    fn is_busy(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Connections {
    /// Creates an empty set of at most `limit` connections.
    pub fn new(limit: usize) -> Self {
        Self { limit, tasks: JoinSet::new(), order: VecDeque::new() }
    }

    /// Serves one more. If there are too many, the oldest idle one ends, or the oldest if all are busy.
    pub fn add<F: Future<Output = ()> + Send + 'static>(&mut self, serve: impl FnOnce(Activity) -> F) {
        if self.order.len() >= self.limit {
            self.order.retain(|(task, _)| !task.is_finished());
        }
        if self.order.len() >= self.limit {
            let idle = self.order.iter().position(|(_, activity)| !activity.is_busy());
            if let Some((task, _)) = self.order.remove(idle.unwrap_or_default()) {
                task.abort();
            }
        }
        let activity = Activity::default();
        self.order.push_back((self.tasks.spawn(serve(activity.clone())), activity));
    }

    /// Removes connections that have ended, one after the other; never returns. Cancel safe.
    pub async fn reap(&mut self) {
        while self.tasks.join_next().await.is_some() {}
        std::future::pending().await
    }

    /// Waits until all connections have ended.
    pub async fn drain(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::watch;

    use super::*;

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn start(ready: &watch::Sender<bool>) -> (SocketAddr, Server) {
        let probe = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = probe.local_addr().unwrap();
        drop(probe);
        let ready = ready.subscribe();
        let missing = Arc::new(move || if *ready.borrow() { Vec::new() } else { vec!["starting".to_owned()] });
        let pages = Pages { metrics: Arc::new(|| "# EOF\n".to_owned()), missing };
        (address, Server::start(address, pages).await.unwrap())
    }

    #[tokio::test]
    async fn it_is_ready_once_it_says_so() {
        let ready = watch::Sender::new(false);
        let (address, _server) = start(&ready).await;
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        ready.send_replace(true);
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/metrics").await.contains("# EOF"));
        assert!(ask(address, "/secrets").await.starts_with("HTTP/1.1 404"));
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

    #[tokio::test] // threat 5
    async fn endless_request_head_is_cut_off() {
        let ready = watch::Sender::new(true);
        let (address, _server) = start(&ready).await;
        let line = format!("GET /{} HTTP/1.1\r\n", "x".repeat(1 << 20));
        let headers = format!("X: {}\r\n", "y".repeat(4000));
        for piece in [line.as_bytes(), headers.as_bytes()] {
            let took = flood(address, piece).await;
            assert!(took < 64 << 20, "{took} bytes");
        }
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn unspecified_ipv6_address_serves_ipv4() {
        let listener = bind((Ipv6Addr::UNSPECIFIED, 0).into()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    }

    #[tokio::test] // threat 6
    async fn busy_connection_outlives_idle_ones() {
        let mut connections = Connections::new(2);
        let (ended, mut end) = tokio::sync::mpsc::unbounded_channel();
        let mut add = |name: &'static str, busy: bool| {
            let ended = ended.clone();
            connections.add(|activity| async move {
                let _guard = OnDrop(name, ended);
                let wait = std::future::pending::<()>();
                if busy { activity.during(wait).await } else { wait.await }
            });
        };
        add("busy", true);
        add("idle", false);
        tokio::task::yield_now().await;
        add("third", false);
        assert_eq!(end.recv().await, Some("idle"), "though another one is older");
        add("fourth", true);
        assert_eq!(end.recv().await, Some("third"));
    }

    struct OnDrop(&'static str, tokio::sync::mpsc::UnboundedSender<&'static str>);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            let _ = self.1.send(self.0);
        }
    }

    #[tokio::test] // threat 5
    async fn probe_is_answered_beside_many_held_connections() {
        let ready = watch::Sender::new(true);
        let (address, _server) = start(&ready).await;
        let mut held = Vec::new();
        for _ in 0..4 * CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n").await;
            held.push(stream);
        }
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        // The oldest have been hung up on.
        for stream in held.iter_mut().take(CONNECTIONS) {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        }
    }
}
