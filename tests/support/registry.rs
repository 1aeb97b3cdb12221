//! Registries on loopback: Debian's `docker-registry`, and servers that misbehave.

use std::convert::Infallible;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{KeyPair, SigningKey as _};
use sha2::{Digest as _, Sha256};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::skip::{is_left_to_make_test, skip};

/// User and password of registries with a login.
pub const LOGIN: &str = "user:word";

/// A registry, ended on drop.
pub struct Registry {
    child: Child,
    directory: tempfile::TempDir,
    port: u16,
    login: bool,
}

impl Registry {
    /// Starts a registry. Skips the test if there is no program for it.
    pub fn start(login: bool) -> Option<Self> {
        if is_left_to_make_test() {
            return None;
        }
        if !Path::new("/usr/bin/docker-registry").exists() {
            skip("no registry (Debian: docker-registry)");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        // The hash of LOGIN's password by bcrypt.
        let users = "user:$2b$04$e8qlLO0pQuKopJgn//NM0evfVH1zSMz9KLxllgnk6h1hpyrq6YQb6\n";
        fs::write(directory.path().join("users"), users).unwrap();
        Some(Self { child: Self::spawn(directory.path(), port, login), directory, port, login })
    }

    fn spawn(directory: &Path, port: u16, login: bool) -> Child {
        let path = directory.display();
        let auth = format!("auth: {{htpasswd: {{realm: test, path: {path}/users}}}}\n");
        let config = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage: {{filesystem: {{rootdirectory: \
             {path}/data}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n{}",
            if login { &auth } else { "" }
        );
        fs::write(directory.join("config.yml"), config).unwrap();
        let mut command = Command::new("/usr/bin/docker-registry");
        command.arg("serve").arg(directory.join("config.yml"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(Instant::now() < deadline, "the registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }

    /// Returns its name in references.
    pub fn name(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again with what it stores.
    pub fn restart(&mut self) {
        self.child = Self::spawn(self.directory.path(), self.port, self.login);
    }

    /// Publishes a signature of an image as cosign does.
    pub fn sign(&self, repository: &str, digest: &str, key: &KeyPair) {
        let payload = format!(
            r#"{{"critical":{{"identity":{{"docker-reference":"{repository}"}},"image":{{"docker-manifest-digest":"{digest}"}},"type":"cosign container image signature"}},"optional":null}}"#
        );
        let signature = BASE64_STANDARD.encode(key.sign(payload.as_bytes()).unwrap());
        let annotations = serde_json::json!({"dev.cosignproject.cosign/signature": signature});
        let config = "{}";
        self.upload(repository, payload.as_bytes());
        self.upload(repository, config.as_bytes());
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", config.as_bytes(), &serde_json::json!({})),
            "layers": [descriptor("application/vnd.dev.cosign.simplesigning.v1+json", payload.as_bytes(), &annotations)],
        });
        let tag = digest.replace(':', "-");
        let (path, kind) = (format!("/v2/{repository}/manifests/{tag}.sig"), manifest["mediaType"].as_str().unwrap());
        assert!(self.request("PUT", &path, kind, manifest.to_string().as_bytes()).starts_with("HTTP/1.1 201"));
    }

    fn upload(&self, repository: &str, blob: &[u8]) {
        let started = self.request("POST", &format!("/v2/{repository}/blobs/uploads/"), "text/plain", b"");
        let location = started.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap();
        let path = location.strip_prefix(&format!("http://{}", self.name())).unwrap();
        let path = format!("{path}&digest={}", digest_of(blob));
        assert!(self.request("PUT", &path, "application/octet-stream", blob).starts_with("HTTP/1.1 201"));
    }

    fn request(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        let (host, length) = (self.name(), body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        String::from_utf8_lossy(&response).into_owned()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have been stopped
        let _ = self.child.wait();
    }
}

/// Returns the digest of a content as registries write it.
pub fn digest_of(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Returns the descriptor of a content.
pub fn descriptor(kind: &str, content: &[u8], annotations: &serde_json::Value) -> serde_json::Value {
    serde_json::json!({
        "mediaType": kind, "digest": digest_of(content), "size": content.len(), "annotations": annotations,
    })
}

/// The body of a response.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

type Answer = dyn Fn(&Request<Incoming>) -> Response<Body> + Send + Sync;

/// A server on loopback that answers as a test says.
pub struct FakeRegistry {
    address: SocketAddr,
    /// Method, path and `Authorization` of each request.
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl FakeRegistry {
    /// Starts a server, with TLS if there is a certificate.
    pub async fn start(
        certificate: Option<(CertificateDer<'static>, &KeyPair)>,
        answer: impl Fn(&Request<Incoming>) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = certificate.map(|(certificate, key)| acceptor(certificate, key));
        let (requests, answer): (Arc<Mutex<Vec<String>>>, Arc<Answer>) = (Arc::default(), Arc::new(answer));
        let log = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, answer, log) = (tls.clone(), Arc::clone(&answer), Arc::clone(&log));
                let serve = service_fn(move |request: Request<Incoming>| {
                    let authorization = request.headers().get("authorization").and_then(|value| value.to_str().ok());
                    let line = format!("{} {} {}", request.method(), request.uri(), authorization.unwrap_or("-"));
                    log.lock().unwrap().push(line);
                    let response = answer(&request);
                    async move { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(async move {
                    match tls {
                        None => drop(http1::Builder::new().serve_connection(TokioIo::new(stream), serve).await),
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), serve).await;
                        }
                    }
                });
            }
        });
        Self { address, requests, task }
    }

    /// Returns its name in references.
    pub fn name(&self) -> String {
        self.address.to_string()
    }

    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for FakeRegistry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn acceptor(certificate: CertificateDer<'static>, key: &KeyPair) -> TlsAcceptor {
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(tokio_rustls::rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// An image of a component, and what a registry makes of it.
#[derive(Clone)]
pub struct Image {
    /// Its manifest.
    pub manifest: String,
    /// The bytes of the component.
    pub component: Vec<u8>,
}

impl Image {
    /// Returns the image of a component.
    pub fn of(component: &[u8]) -> Self {
        let none = serde_json::json!({});
        Self::with(component, &serde_json::json!([descriptor("application/wasm", component, &none)]))
    }

    /// Returns an image of these layers.
    pub fn with(component: &[u8], layers: &serde_json::Value) -> Self {
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.wasm.config.v0+json", b"{}", &serde_json::json!({})),
            "layers": layers,
        });
        Self { manifest: manifest.to_string(), component: component.to_owned() }
    }

    /// Answers a request as a good registry.
    pub fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let is_manifest = request.uri().path().contains("/manifests/");
        text(200, if is_manifest { self.manifest.clone().into() } else { self.component.clone() })
    }
}

/// Starts a registry of one image.
pub async fn fake(image: Image) -> FakeRegistry {
    FakeRegistry::start(None, move |request| image.answer(request)).await
}

/// Returns a response of that body.
pub fn text(status: u16, body: impl Into<Bytes>) -> Response<Body> {
    Response::builder().status(status).body(BodyExt::boxed_unsync(Full::new(body.into()))).unwrap()
}
