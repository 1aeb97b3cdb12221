//! HTTP servers: health and metrics (`/healthz`, `/readyz`, `/metrics`), the page, and the limits of every server of the product.
//!
//! The ports are open to every pod of the cluster, so that a connection costs little: there are bounds on its head and on
//! its idle time, and when too many are open the oldest one of who has the most makes room. A probe or a review is answered however many
//! other connections are held open.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use axum_server::Handle;
use axum_server::accept::Accept;
use hyper::Request;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tower::util::BoxCloneService;
use tower::{Service, ServiceExt as _};
use tracing::{debug, info, warn};

use crate::process_metrics::with_process_metrics;

/// The content type of OpenMetrics 1.0, as Prometheus requests it.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Limit on open connections for health and metrics.
const CONNECTIONS: usize = 64;
/// Limit on a request head, in bytes; hyper accepts no smaller one.
const HEAD: usize = 8 << 10;
/// Limit on the headers of a request.
const HEADERS: usize = 32;
/// Time to read a request head for health and metrics.
const HEAD_TIME: Duration = Duration::from_secs(5);

/// The content that is served.
#[derive(Clone)]
pub struct Pages {
    /// Returns all metrics as text.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Returns what the process still lacks to be ready, a line each.
    pub missing: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
}

impl Pages {
    /// Returns the routes. The process is healthy while it answers, and ready while nothing is missing.
    pub fn router(self) -> Router {
        let Self { metrics, missing } = self;
        let readyz = move || async move {
            match missing().as_slice() {
                [] => (StatusCode::OK, "ok\n".to_owned()),
                lines => (StatusCode::SERVICE_UNAVAILABLE, lines.join("\n") + "\n"),
            }
        };
        let metricsz = move || async move { ([(header::CONTENT_TYPE, OPEN_METRICS)], with_process_metrics(metrics())) };
        Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metricsz))
    }
}

/// The address of a server can't be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {reason}; set another address with {flag}")]
pub struct ListenError {
    address: SocketAddr,
    flag: &'static str,
    reason: io::Error,
}

/// The server of health and metrics; it stops when this is dropped.
#[derive(Debug)]
pub struct Server(Handle<SocketAddr>);

impl Server {
    /// Binds the address and starts to serve.
    ///
    /// # Errors
    /// If the address can't be bound.
    pub async fn start(address: SocketAddr, pages: Pages) -> Result<Self, ListenError> {
        let (server, address) = Self::serve(address, "--listen", pages.router()).await?;
        info!(%address, "serving health and metrics");
        Ok(server)
    }

    /// Binds the address, which is the value of `flag`, and starts to serve routes; a connection serves one request. Returns the
    /// address with its port.
    ///
    /// # Errors
    /// If the address can't be bound.
    pub async fn serve(
        address: SocketAddr,
        flag: &'static str,
        routes: Router,
    ) -> Result<(Self, SocketAddr), ListenError> {
        let listener = bind(address).await.map_err(|error| ListenError { flag, ..error })?;
        let address = listener.local_addr().unwrap_or(address);
        let handle = Handle::new();
        let mut server = limited(listener, CONNECTIONS, HEAD_TIME).handle(handle.clone());
        server.http_builder().http1().keep_alive(false);
        tokio::spawn(server.serve(routes.into_make_service()));
        Ok((Self(handle), address))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

/// Binds a TCP address. `[::]` accepts IPv4, too, and stands for `0.0.0.0` on a node without IPv6.
///
/// # Errors
/// If the address can't be bound.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let bound = match TcpListener::bind(address).await {
        Err(error) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await.map_err(|_| error)
        }
        bound => bound,
    };
    bound.map_err(|reason| ListenError { address, flag: "--listen", reason })
}

/// Returns an HTTP/1.1 server with limits on its connections and heads. `idle` is the time to read a head, and with it the
/// time that a connection may rest between requests.
pub fn limited(
    listener: TcpListener,
    connections: usize,
    idle: Duration,
) -> axum_server::Server<SocketAddr, ConnectionLimit> {
    let server = axum_server::Server::<SocketAddr>::from_listener(listener);
    let mut server = server.http1_only().acceptor(ConnectionLimit::new(connections)).accept_error_handler(log_error);
    server.http_builder().http1().max_buf_size(HEAD).max_headers(HEADERS).header_read_timeout(idle);
    server
}

fn log_error(peer: Option<&SocketAddr>, error: &io::Error) {
    match peer {
        Some(peer) => debug!(%peer, %error, "a connection ended before its first request"),
        None => warn!(%error, "accepting a connection failed; retrying"), // usually too many files are open
    }
}

/// Limits the open connections of a server: if there are too many, the peer that has the most loses its oldest idle one, or its
/// oldest if all of them are busy.
#[derive(Debug, Clone)]
pub struct ConnectionLimit {
    limit: usize,
    open: Arc<Mutex<VecDeque<Weak<Connection>>>>,
}

/// An open connection; its service holds it.
#[derive(Debug)]
struct Connection {
    /// A second handle of the socket, to close the connection with.
    socket: std::net::TcpStream,
    peer: Option<IpAddr>,
    /// Set while a request is under way.
    is_busy: AtomicBool,
}

impl Connection {
    /// Marks the connection as busy while `request` runs.
    async fn busy_during<T>(self: Arc<Self>, request: impl Future<Output = T>) -> T {
        self.is_busy.store(true, Ordering::Relaxed);
        let output = request.await;
        self.is_busy.store(false, Ordering::Relaxed);
        output
    }

    fn is_idle(&self) -> bool {
        !self.is_busy.load(Ordering::Relaxed)
    }
}

impl ConnectionLimit {
    fn new(limit: usize) -> Self {
        Self { limit, open: Arc::default() }
    }

    /// Adds a connection, and closes another one if there are too many.
    fn admit(&self, stream: &TcpStream) -> io::Result<Arc<Connection>> {
        let socket = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?);
        let peer = socket.peer_addr().ok().map(|peer| peer.ip());
        let connection = Arc::new(Connection { socket, peer, is_busy: AtomicBool::new(false) });
        let mut open = self.open.lock();
        open.retain(|other| other.strong_count() > 0);
        if open.len() >= self.limit {
            let superfluous = superfluous(&open);
            if let Some(closed) = open.remove(superfluous).and_then(|other| other.upgrade()) {
                let _ = closed.socket.shutdown(Shutdown::Both); // the client may have closed it
            }
        }
        open.push_back(Arc::downgrade(&connection));
        Ok(connection)
    }
}

/// Returns the index of the connection that makes room. A flood from one address closes none of another one, whatever it sends.
fn superfluous(open: &VecDeque<Weak<Connection>>) -> usize {
    let mut peers = BTreeMap::<Option<IpAddr>, Vec<(usize, bool)>>::new();
    for (index, connection) in open.iter().enumerate().filter_map(|(index, other)| Some((index, other.upgrade()?))) {
        peers.entry(connection.peer).or_default().push((index, connection.is_idle()));
    }
    let most = peers.into_values().max_by_key(Vec::len).unwrap_or_default();
    let oldest = most.iter().find(|(_, is_idle)| *is_idle).or(most.first());
    oldest.map(|(index, _)| *index).unwrap_or_default()
}

impl<S> Accept<TcpStream, S> for ConnectionLimit
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Stream = TcpStream;
    type Service = BoxCloneService<Request<Incoming>, Response, Infallible>;
    type Future = Ready<io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        ready(self.admit(&stream).map(|connection| {
            let service = service.map_future(move |response| Arc::clone(&connection).busy_during(response));
            (stream, BoxCloneService::new(service))
        }))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;
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
        let ready = ready.subscribe();
        let missing = Arc::new(move || if *ready.borrow() { Vec::new() } else { vec!["starting".to_owned()] });
        let pages = Pages { metrics: Arc::new(|| "# EOF\n".to_owned()), missing };
        let (server, address) =
            Server::serve("127.0.0.1:0".parse().unwrap(), "--listen", pages.router()).await.unwrap();
        (address, server)
    }

    #[tokio::test]
    async fn readiness_follows_the_probe() {
        let ready = watch::Sender::new(false);
        let (address, _server) = start(&ready).await;
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        ready.send_replace(true);
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/metrics").await.contains("process_cpu_seconds_total "));
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

    /// Returns both ends of a connection.
    async fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    /// Waits until the server has closed a connection.
    async fn end(client: &mut TcpStream) {
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test] // threat 6
    async fn busy_connection_outlives_idle_ones() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limit = ConnectionLimit::new(2);
        let [(busy, a), (mut idle, b), (mut third, c), (_fourth, d)] =
            [connect(&listener).await, connect(&listener).await, connect(&listener).await, connect(&listener).await];
        let first = limit.admit(&a).unwrap();
        let request = tokio::spawn(Arc::clone(&first).busy_during(std::future::pending::<()>()));
        while first.is_idle() {
            tokio::task::yield_now().await;
        }
        let _second = limit.admit(&b).unwrap();
        let _third = limit.admit(&c).unwrap();
        end(&mut idle).await; // though another one is older
        let _last = limit.admit(&d).unwrap();
        end(&mut third).await;
        assert_eq!(busy.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        request.abort();
    }

    #[tokio::test] // threat 6
    async fn flood_from_one_address_closes_none_of_another() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let oldest = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let limit = ConnectionLimit::new(3);
        let mut held = vec![limit.admit(&accepted).unwrap()];
        let mut flood = Vec::new();
        for _ in 0..6 {
            let (client, server) = connect(&listener).await;
            held.push(limit.admit(&server).unwrap());
            flood.push((client, server));
        }
        end(&mut flood[0].0).await;
        assert_eq!(oldest.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[tokio::test] // threat 6
    async fn busy_flood_from_one_address_closes_no_idle_one_of_another() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let idle = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        let limit = ConnectionLimit::new(3);
        let _held = limit.admit(&listener.accept().await.unwrap().0).unwrap();
        let mut flood = Vec::new();
        for _ in 0..6 {
            let (client, server) = connect(&listener).await;
            let busy = limit.admit(&server).unwrap();
            busy.is_busy.store(true, Ordering::Relaxed);
            flood.push((client, server, busy));
        }
        end(&mut flood[0].0).await;
        assert_eq!(idle.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn ended_connections_are_not_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limit = ConnectionLimit::new(1);
        let [(_client, a), (_other, b)] = [connect(&listener).await, connect(&listener).await];
        drop(limit.admit(&a).unwrap());
        let _second = limit.admit(&b).unwrap();
        assert_eq!(limit.open.lock().len(), 1);
        assert_eq!(a.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock, "it was not closed");
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
