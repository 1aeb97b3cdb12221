//! The server over real TLS, with well-behaved and hostile clients.

use std::net::SocketAddr;
use std::time::SystemTime;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::certificate::Material;
use crate::testing::{api, no_components, review};

struct Server {
    address: SocketAddr,
    material: Material,
    serving: ServingCertificate,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

fn make() -> Material {
    Material::make(&["webhook".to_owned()], SystemTime::now(), Duration::from_hours(1), None).unwrap()
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (material, serving) = (make(), ServingCertificate::default());
        serving.set(material.certified_key().unwrap());
        let (client, _) = api(|_, _, body| (201, body.clone()));
        let checks = Checks { client, components: no_components(), dry_run: true };
        let certificate = serving.clone();
        let router = router(checks, move || certificate.is_set());
        let (stop, stopped) = oneshot::channel();
        let config = tls(serving.clone()).unwrap();
        let task = tokio::spawn(async move {
            serve(listener, config, router, async {
                let _ = stopped.await;
            })
            .await;
        });
        Self { address, material, serving, stop: Some(stop), task }
    }

    async fn connect(&self, trusted: &Material) -> std::io::Result<TlsStream<TcpStream>> {
        self.secure(trusted, TcpStream::connect(self.address).await?).await
    }

    async fn secure(&self, trusted: &Material, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.certificate.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("webhook").unwrap(), stream).await
    }

    /// Connects from another loopback address, as another pod does.
    async fn connect_from(&self, address: &str) -> TlsStream<TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
        self.secure(&self.material, socket.connect(self.address).await.unwrap()).await.unwrap()
    }

    /// Sends a request on a connection of its own. Returns the code and the body.
    async fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        let mut stream = self.connect(&self.material).await.unwrap();
        send(&mut stream, method, path, body, "close").await;
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text).await;
        parse_response(&String::from_utf8_lossy(&text))
    }
}

async fn send(stream: &mut TlsStream<TcpStream>, method: &str, path: &str, body: &[u8], connection: &str) {
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let _ = stream.write_all(body).await; // the server may have closed the connection
}

fn parse_response(text: &str) -> (u16, String) {
    let code = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    (code, text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

fn configuration(capacity: i64) -> Value {
    let spec = json!({"discoveryHandler": {"name": "udev"}, "capacity": capacity});
    review("configurations", "CREATE", &json!({"metadata": {"name": "cam"}, "spec": spec}), &Value::Null)
}

#[tokio::test]
async fn review_is_answered() {
    let server = Server::start().await;
    let (code, body) = server.ask("POST", "/validate", configuration(1).to_string().as_bytes()).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &answer["response"]["allowed"]), (200, &json!(true)));
    let (code, body) = server.ask("POST", "/validate?timeout=5s", configuration(0).to_string().as_bytes()).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &answer["response"]["allowed"]), (200, &json!(false)));
    let (_, metrics) = server.ask("GET", "/metrics", b"").await;
    assert!(metrics.contains("akri_webhook_reviews_total{result=\"denied\"} 1"), "{metrics}");
    assert_eq!(server.ask("GET", "/readyz", b"").await.0, 200);
}

#[tokio::test] // rule 63
async fn hostile_bodies_are_refused_and_the_next_is_served() {
    let server = Server::start().await;
    let deep = format!("{{\"request\":{}1{}}}", "[".repeat(200_000), "]".repeat(200_000));
    let large = vec![b' '; BODY + 1];
    let wide = format!("[{}0]", "0,".repeat(1_000_000));
    for (body, code) in [
        (b"".as_slice(), 400),
        (b"{}", 400),
        (b"\xff\xfe", 400),
        (deep.as_bytes(), 400),
        (wide.as_bytes(), 400),
        (&large, 413),
    ] {
        let (answered, text) = server.ask("POST", "/validate", body).await;
        assert_eq!(answered, code, "{text}");
    }
    assert_eq!(server.ask("GET", "/validate", b"").await.0, 405);
    assert_eq!(server.ask("POST", "/", b"").await.0, 404);
    assert_eq!(server.ask("POST", "/validate", configuration(1).to_string().as_bytes()).await.0, 200);
}

#[tokio::test] // rule 63
async fn clients_without_tls_or_trust_get_nothing() {
    let server = Server::start().await;
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut text = Vec::new();
    let _ = plain.read_to_end(&mut text).await;
    assert!(!String::from_utf8_lossy(&text).contains("akri"));
    assert!(server.connect(&make()).await.is_err(), "another certificate is trusted");
    assert_eq!(server.ask("GET", "/healthz", b"").await.0, 200);
}

#[tokio::test]
async fn new_certificate_serves_new_connections_and_old_ones_go_on() {
    let server = Server::start().await;
    let mut old = server.connect(&server.material).await.unwrap();
    let renewed = make();
    server.serving.set(renewed.certified_key().unwrap());
    assert!(server.connect(&renewed).await.is_ok());
    send(&mut old, "GET", "/healthz", b"", "close").await;
    let mut text = String::new();
    old.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

#[tokio::test]
async fn shutdown_waits_for_requests_under_way() {
    let mut server = Server::start().await;
    let mut stream = server.connect(&server.material).await.unwrap();
    let body = configuration(1).to_string();
    let length = body.len();
    let head =
        format!("POST /validate HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut go_on).await.unwrap();
    server.stop.take().unwrap().send(()).unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text).await;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("\"allowed\":true"), "{text}");
    server.task.await.unwrap();
}

#[tokio::test] // threat 6
async fn idle_connections_and_slow_bodies_keep_no_review_waiting() {
    let server = Server::start().await;
    let mut held = Vec::new();
    for _ in 0..2 * CONNECTIONS {
        held.push(TcpStream::connect(server.address).await.unwrap());
    }
    for _ in 0..2 * REVIEWS {
        let mut slow = server.connect(&server.material).await.unwrap();
        slow.write_all(b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{").await.unwrap();
        held.push(slow.into_inner().0);
    }
    let review = configuration(1).to_string();
    let answer = server.ask("POST", "/validate", review.as_bytes());
    let (code, body) = tokio::time::timeout(BODY_TIME / 2, answer).await.expect("it waits for others");
    assert_eq!(code, 200, "{body}");
}

/// Pods that send 128 bodies slowly, some of them from addresses of their own.
#[tokio::test] // rule 136, threat 6
async fn slow_bodies_of_many_delay_no_review() {
    let server = Server::start().await;
    let mut idle = server.connect(&server.material).await.unwrap(); // as an API server keeps one
    let mut held = Vec::new();
    for number in 0..CONNECTIONS {
        let mut slow = server.connect_from(&format!("127.0.0.{}", 2 + number % 20)).await;
        slow.write_all(b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{").await.unwrap();
        held.push(slow);
    }
    let review = configuration(1).to_string();
    for _ in 0..2 {
        let began = Instant::now();
        send(&mut idle, "POST", "/validate", review.as_bytes(), "keep-alive").await;
        let mut answer = vec![0; 4096];
        let length = timeout(BODY_TIME / 2, idle.read(&mut answer)).await.expect("it waits for others").unwrap();
        assert!(answer[..length].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..length]));
        assert!(began.elapsed() < BODY_TIME / 2);
    }
}
