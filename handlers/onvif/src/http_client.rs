//! HTTP requests through the host.

use std::time::Duration;

use jiff::Timestamp;
use wstd::future::FutureExt;
use wstd::http::body::util::{BodyExt, Limited};
use wstd::http::error::ErrorCode;
use wstd::http::{Body, Client, Error, HeaderMap, Request, Response};
use wstd::time::Timer;

use crate::service_url::ServiceUrl;
use crate::session::{Post, Reply, Transport, TransportError};

/// Connect timeout, TLS included: an unused address of a camera must not take the time of the others.
const CONNECT: Duration = Duration::from_secs(2);
/// Timeout of one exchange, from connecting to the last byte.
const EXCHANGE: Duration = Duration::from_secs(3);
/// Limit on a response, in bytes. The largest, lists of profiles, have several ten thousand.
const MAX_BODY: usize = 256 << 10;

/// The HTTP transport to cameras.
pub(crate) struct Http {
    client: Client,
}

impl Http {
    pub(crate) fn new() -> Self {
        let mut client = Client::new();
        client.set_connect_timeout(CONNECT);
        Self { client }
    }

    async fn exchange(&self, post: Post<'_>) -> Result<Reply, TransportError> {
        let mut request = Request::post(post.url.uri().clone())
            .header("Content-Type", "application/soap+xml; charset=utf-8")
            .header("Content-Length", post.message.len()); // many cameras understand no chunks
        if let Some(authorization) = post.authorization {
            request = request.header("Authorization", authorization);
        }
        let request = request.body(Body::from(post.message)).map_err(|error| failed(post.url, &error.into()))?;
        let response = self.client.send(request).await.map_err(|error| failed(post.url, &error))?;
        reply(response).await
    }
}

impl Transport for Http {
    async fn post(&self, post: Post<'_>) -> Result<Reply, TransportError> {
        let end = Timer::after(EXCHANGE.into());
        self.exchange(post).timeout(end.wait()).await.unwrap_or(Err(TransportError::TimedOut))
    }

    async fn sleep(&self, time: Duration) {
        Timer::after(time.into()).wait().await;
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn nonce(&self) -> [u8; 16] {
        random()
    }
}

/// Returns sixteen random bytes.
pub(crate) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    wstd::rand::get_random_bytes(&mut bytes);
    bytes
}

async fn reply(response: Response<Body>) -> Result<Reply, TransportError> {
    let (head, body) = response.into_parts();
    Ok(Reply {
        status: head.status.as_u16(),
        challenge: header(&head.headers, "WWW-Authenticate"),
        date: header(&head.headers, "Date"),
        message: read(body).await?,
    })
}

async fn read(body: Body) -> Result<Vec<u8>, TransportError> {
    let mut body = Limited::new(body.into_boxed_body(), MAX_BODY);
    let mut message = Vec::new();
    while let Some(frame) = body.frame().await {
        let too_large = |_| TransportError::Failed(format!("its answer breaks off or has more than {MAX_BODY} bytes"));
        message.extend_from_slice(frame.map_err(too_large)?.data_ref().map_or(&[], |data| data));
    }
    Ok(message)
}

/// Joins all values of a header with commas.
fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    if values.is_empty() { None } else { Some(values.join(", ")) }
}

fn failed(url: &ServiceUrl, error: &Error) -> TransportError {
    let Some(code) = error.downcast_ref::<ErrorCode>() else { return TransportError::Failed(error.to_string()) };
    let why = match code {
        ErrorCode::HttpRequestDenied => return TransportError::not_granted(url, false),
        ErrorCode::DestinationIpProhibited => return TransportError::not_granted(url, true),
        ErrorCode::ConnectionTimeout
        | ErrorCode::ConnectionReadTimeout
        | ErrorCode::ConnectionWriteTimeout
        | ErrorCode::HttpResponseTimeout => return TransportError::TimedOut,
        ErrorCode::DestinationIpUnroutable => "there is no route to its address",
        ErrorCode::DestinationNotFound | ErrorCode::DestinationUnavailable => "nobody answers at its address",
        ErrorCode::DnsTimeout => "its name could not be looked up in time",
        ErrorCode::ConnectionTerminated | ErrorCode::HttpResponseIncomplete => "the connection broke off",
        ErrorCode::ConnectionLimitReached => "limits.connections of the handler's DiscoveryHandler object are in use",
        ErrorCode::TlsProtocolError | ErrorCode::TlsAlertReceived(_) => "it does not agree on TLS",
        ErrorCode::HttpProtocolError => "it does not answer as an HTTP server",
        ErrorCode::ConnectionRefused => "the connection is refused",
        ErrorCode::DnsError(_) => "its name is not known",
        ErrorCode::TlsCertificateError => "its certificate is not trusted",
        ErrorCode::HttpResponseBodySize(_) => "its answer is too large",
        ErrorCode::InternalError(Some(why)) => why,
        other => return TransportError::Failed(format!("the request failed ({other:?})")),
    };
    TransportError::Failed(why.to_owned())
}
