//! Health and metrics over HTTP: `/healthz`, `/readyz` and `/metrics`.

use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::metrics::Metrics;

/// OpenMetrics 1.0, as Prometheus asks for it.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until it is dropped.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Server {
    /// Binds, and serves from then on. The agent is healthy while it answers, and ready once it has an owner for all that
    /// it was told to do.
    ///
    /// # Errors
    /// If the address can't be bound.
    pub async fn start(address: SocketAddr, metrics: Metrics, ready: watch::Receiver<bool>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        info!(address = %listener.local_addr()?, "health and metrics");
        let readyz = move || async move {
            match *ready.borrow() {
                true => (StatusCode::OK, "ok\n"),
                false => (StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
            }
        };
        let metricsz = move || async move { ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics.encode()) };
        let router = Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metricsz));
        Ok(Self(tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                warn!("health and metrics are not served any more: {error}");
            }
        })))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn it_is_ready_once_it_says_so() {
        let probe = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = probe.local_addr().unwrap();
        drop(probe);
        let ready = watch::Sender::new(false);
        let _server = Server::start(address, Metrics::default(), ready.subscribe()).await.unwrap();
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        ready.send_replace(true);
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/metrics").await.contains("# EOF"));
        assert!(ask(address, "/secrets").await.starts_with("HTTP/1.1 404"));
    }
}
