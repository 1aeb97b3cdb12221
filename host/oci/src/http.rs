//! HTTP to servers that are not trusted: bounds on time, size and redirects; TLS, except for this machine.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use akri_model::image::is_loopback;
use bytes::Bytes;
use futures::stream;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, LOCATION};
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::address::{host_of, join, origin};
use crate::error::{causes, message};
use crate::{Progress, RegistryError, Settings};

/// Redirects that are followed.
const MAX_REDIRECTS: usize = 5;

/// Bytes that are sent at once.
const CHUNK: usize = 64 << 10;

/// Bounds on what a registry may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Time for a connection, with TLS.
    pub connect: Duration,
    /// Time until the head of a response.
    pub response: Duration,
    /// A window of time, in which `window_bytes` have to arrive, unless the body ends.
    pub window: Duration,
    /// See `window`.
    pub window_bytes: u64,
    /// Time for a whole pull or push.
    pub total: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            response: Duration::from_secs(30),
            window: Duration::from_secs(10),
            window_bytes: 16 << 10,
            total: Duration::from_secs(600),
        }
    }
}

/// A body to send.
#[derive(Clone, Default)]
pub(crate) struct Upload {
    pub(crate) bytes: Bytes,
    pub(crate) progress: Option<Arc<Progress>>,
}

/// Returns a request, which may be sent more than once.
pub(crate) fn outgoing(method: Method, uri: Uri, upload: Upload) -> Request<Upload> {
    let mut request = Request::new(upload);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    request
}

/// A response, of which the body is still to be read.
pub(crate) struct Answer {
    /// The host that sent it.
    pub(crate) host: String,
    /// The address that was asked in the end.
    pub(crate) uri: Uri,
    pub(crate) response: Response<Incoming>,
}

type Body = BoxBody<Bytes, Infallible>;

/// A client for HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    insecure: Vec<String>,
    pub(crate) limits: Limits,
}

impl Http {
    pub(crate) fn new(settings: &Settings) -> Result<Self, RegistryError> {
        let tls = tls(settings.authorities.as_deref())?;
        let connector = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_max_idle_per_host(1).pool_idle_timeout(Duration::from_secs(10));
        Ok(Self {
            client: client.build(connector.wrap_connector(connector_of(settings))),
            insecure: settings.insecure.iter().filter(|registry| is_loopback(registry)).cloned().collect(),
            limits: settings.limits.clone(),
        })
    }

    /// Returns whether a registry is reached without TLS.
    pub(crate) fn is_insecure(&self, registry: &str) -> bool {
        self.insecure.iter().any(|insecure| insecure == registry)
    }

    /// Returns the registries without TLS that a registry may lead to: none if it is reached by TLS itself.
    pub(crate) fn insecure_beside(&self, registry: &str) -> &[String] {
        if self.is_insecure(registry) { &self.insecure } else { &[] }
    }

    /// Returns an address of a registry.
    pub(crate) fn address(&self, registry: &str, path: &str) -> Result<Uri, RegistryError> {
        let scheme = if self.is_insecure(registry) { "http" } else { "https" };
        let host = if registry == "docker.io" { "registry-1.docker.io" } else { registry };
        let text = format!("{scheme}://{host}{path}");
        text.parse().map_err(|_| RegistryError::address(&text))
    }

    /// Sends a request. Redirects of reads are followed: to https, or to one of these registries. Other hosts don't get the
    /// credentials.
    pub(crate) async fn send(&self, request: &Request<Upload>, insecure: &[String]) -> Result<Answer, RegistryError> {
        let mut request = request.clone();
        let first = host_of(request.uri());
        for _ in 0..=MAX_REDIRECTS {
            let (host, uri) = (host_of(request.uri()), request.uri().clone());
            let response = self.request(&request, &host).await?;
            let is_redirect = response.status().is_redirection() && is_read(request.method());
            let location = response.headers().get(LOCATION).filter(|_| is_redirect);
            let Some(location) = location else { return Ok(Answer { host, uri, response }) };
            let target = join(&uri, location, insecure)?;
            if origin(&target) != origin(&uri) {
                request.headers_mut().remove(AUTHORIZATION);
            }
            *request.uri_mut() = target;
        }
        Err(RegistryError::Failed(format!("{first} redirects more than {MAX_REDIRECTS} times")))
    }

    async fn request(&self, request: &Request<Upload>, host: &str) -> Result<Response<Incoming>, RegistryError> {
        let (mut parts, upload) = request.clone().into_parts();
        let length = upload.bytes.len();
        if !is_read(&parts.method) {
            parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        // Sending a body takes its time, which the time for a whole push bounds.
        let limit = if length == 0 { self.limits.response } else { self.limits.total };
        let sending = self.client.request(Request::from_parts(parts, body(upload)));
        match timeout(self.limits.connect + limit, sending).await {
            Err(_) => Err(RegistryError::Failed(format!("{host} did not answer within {limit:?}"))),
            Ok(Err(error)) => Err(RegistryError::Failed(unreachable(host, &causes(&error)))),
            Ok(Ok(response)) => Ok(response),
        }
    }

    /// Reads a body of at most `limit` bytes, which has to make progress.
    pub(crate) async fn read(
        &self,
        answer: Answer,
        limit: u64,
        progress: Option<&Progress>,
    ) -> Result<Vec<u8>, RegistryError> {
        let Answer { host, response, .. } = answer;
        let too_large = || RegistryError::Failed(format!("{host} sent more than {limit} bytes"));
        let mut body = response.into_body();
        if hyper::body::Body::size_hint(&body).lower() > limit {
            return Err(too_large());
        }
        let (window, bytes) = (self.limits.window, self.limits.window_bytes);
        let (mut end, mut got) = (Instant::now() + window, 0);
        let mut content = Vec::with_capacity(usize::try_from(limit).unwrap_or_default());
        loop {
            let frame = match timeout_at(end, body.frame()).await {
                Err(_) if got < bytes => {
                    let text = format!("{host} is too slow: it sent less than {bytes} bytes in {window:?}");
                    return Err(RegistryError::Failed(text));
                }
                Err(_) => {
                    (end, got) = (Instant::now() + window, 0);
                    continue;
                }
                Ok(None) => return Ok(content),
                Ok(Some(frame)) => frame,
            };
            let broken =
                |error| RegistryError::Failed(format!("the connection to {host} broke off: {}", causes(&error)));
            let frame = frame.map_err(broken)?;
            let Ok(data) = frame.into_data() else { continue };
            if content.len() as u64 + data.len() as u64 > limit {
                return Err(too_large());
            }
            got += data.len() as u64;
            if let Some(progress) = progress {
                progress.add(data.len());
            }
            content.extend_from_slice(&data);
        }
    }

    /// Turns an answer that is no success into an error with the beginning of what it says.
    pub(crate) async fn success(&self, answer: Answer) -> Result<Answer, RegistryError> {
        let status = answer.response.status();
        if status.is_success() {
            return Ok(answer);
        }
        let host = answer.host.clone();
        let body = self.read(answer, 16 << 10, None).await.unwrap_or_default();
        Err(RegistryError::Status { host, status, message: message(&body) })
    }
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn connector_of(settings: &Settings) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(settings.limits.connect));
    connector
}

fn tls(authorities: Option<&[u8]>) -> Result<ClientConfig, RegistryError> {
    let not_pem = |why: &dyn Display| {
        RegistryError::Failed(format!("the certificates of authorities for registries are not PEM: {why}"))
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(pem) = authorities {
        let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let certificates = certificates.map_err(|error| not_pem(&error))?;
        if certificates.is_empty() {
            return Err(not_pem(&"there is no certificate"));
        }
        for certificate in certificates {
            roots.add(certificate).map_err(|error| not_pem(&error))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| RegistryError::Failed(format!("cannot set up TLS: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn body(Upload { bytes, progress }: Upload) -> Body {
    if bytes.is_empty() {
        return BodyExt::boxed(Empty::new());
    }
    let frames = (0..bytes.len()).step_by(CHUNK).map(move |start| {
        let chunk = bytes.slice(start..bytes.len().min(start + CHUNK));
        progress.iter().for_each(|progress| progress.add(chunk.len()));
        Ok(Frame::data(chunk))
    });
    BodyExt::boxed(StreamBody::new(stream::iter(frames)))
}

/// Says why a registry can't be reached, and what allows one on loopback that answers without TLS.
fn unreachable(host: &str, why: &str) -> String {
    let remedy = match why.contains("InvalidContentType") {
        true if is_loopback(host) => format!("; it answers without TLS, which --insecure-registry {host} allows"),
        true => "; it answers without TLS, which is allowed on loopback only".to_owned(),
        false => String::new(),
    };
    format!("cannot reach {host}: {why}{remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 74
    fn only_this_machine_is_reached_without_tls() {
        let insecure = ["localhost:5000", "r.example:5000", "10.0.0.1:5000"].map(str::to_owned).to_vec();
        let http = Http::new(&Settings { insecure, ..Settings::default() }).unwrap();
        for (registry, scheme) in [
            ("localhost:5000", "http"),
            ("r.example:5000", "https"),
            ("10.0.0.1:5000", "https"),
            ("localhost", "https"),
        ] {
            assert_eq!(http.address(registry, "/v2/").unwrap().scheme_str(), Some(scheme), "{registry}");
        }
        assert_eq!(http.address("docker.io", "/v2/").unwrap().host(), Some("registry-1.docker.io"));
    }

    #[test]
    fn authorities_have_to_be_certificates() {
        for pem in ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            let settings = Settings { authorities: Some(pem.into()), ..Settings::default() };
            let error = Http::new(&settings).unwrap_err().to_string();
            assert!(error.contains(" are not PEM: "), "{pem}: {error}");
        }
    }
}
