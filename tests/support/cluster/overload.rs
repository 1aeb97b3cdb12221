//! A stand-in before the API server that turns requests away for a while and says when to come back, as priority and fairness does.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{ACCEPT_ENCODING, HOST, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A request that came.
#[derive(Debug, Clone)]
pub struct Received {
    /// Method and path, with the query.
    pub what: String,
    pub at: Instant,
    /// The time it was told to wait, if it was turned away.
    pub retry_after: Option<Duration>,
}

impl Received {
    /// Returns whether it reads: reads and writes have separate limits.
    pub fn is_read(&self) -> bool {
        self.what.starts_with("GET ")
    }
}

#[derive(Default)]
struct State {
    /// Seconds to wait; 0 while requests are served.
    retry_after: AtomicU64,
    /// Of so many requests one is turned away.
    one_of: AtomicU64,
    received: Mutex<Vec<Received>>,
}

/// The stand-in. It ends when it is dropped.
pub struct Overload {
    address: SocketAddr,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

impl Overload {
    /// Starts one before the API server of a client. It serves everybody as that client.
    pub async fn before(client: Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::<State>::default());
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (client, state) = (client.clone(), Arc::clone(&shared));
                let answer = service_fn(move |request| answer(client.clone(), Arc::clone(&state), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self { address, state, accepting }
    }

    /// Writes a kubeconfig that leads here.
    pub fn kubeconfig(&self, to: PathBuf) -> PathBuf {
        let cluster = serde_json::json!({"name": "c", "cluster": {"server": format!("http://{}", self.address)}});
        let context = serde_json::json!({"name": "c", "context": {"cluster": "c"}});
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "current-context": "c",
        });
        std::fs::write(&to, config.to_string()).unwrap();
        to
    }

    /// Turns requests away from now on, to come back after so many seconds; none with 0.
    pub fn refuse_for(&self, seconds: u64) {
        self.refuse_one_of(1, seconds);
    }

    /// Turns one of so many requests away.
    pub fn refuse_one_of(&self, requests: u64, seconds: u64) {
        self.state.one_of.store(requests, Ordering::SeqCst);
        self.state.retry_after.store(seconds, Ordering::SeqCst);
    }

    /// Returns the requests that came.
    pub fn received(&self) -> Vec<Received> {
        self.state.received.lock().unwrap().clone()
    }
}

impl Drop for Overload {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn answer(client: Client, state: Arc<State>, request: Request<Incoming>) -> kube::Result<Response<Body>> {
    let (mut head, body) = request.into_parts();
    let what = format!("{} {}", head.method, head.uri);
    let seconds = {
        let mut received = state.received.lock().unwrap();
        let one_of = state.one_of.load(Ordering::SeqCst).max(1);
        let is_served = !(received.len() as u64).is_multiple_of(one_of);
        let seconds = if is_served { 0 } else { state.retry_after.load(Ordering::SeqCst) };
        let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds));
        received.push(Received { what, at: Instant::now(), retry_after });
        seconds
    };
    let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
    if seconds > 0 {
        let refused = Response::builder().status(StatusCode::TOO_MANY_REQUESTS).header(RETRY_AFTER, seconds);
        return Ok(refused.body(Body::from(b"Too many requests, please try again later.".to_vec())).unwrap());
    }
    for header in [HOST, ACCEPT_ENCODING] {
        head.headers.remove(header);
    }
    client.send(Request::from_parts(head, Body::from(body))).await
}
