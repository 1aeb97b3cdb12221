//! A conversation with one camera: questions, credentials in the way the camera wants them, answers.

use std::time::Duration;

use http_auth::DigestClient;
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use percent_encoding::percent_decode_str;

use crate::credentials::Credentials;
use crate::device_service::{self, Request};
use crate::security;
use crate::service_url::ServiceUrl;
use crate::soap;
use crate::xml::Element;

/// How requests get to cameras, and what else of the outside world a round needs.
pub trait Transport {
    /// Sends a SOAP message and waits for the answer, both with an end: a transport bounds time and bytes.
    fn post(&self, post: Post<'_>) -> impl Future<Output = Result<Reply, TransportError>>;
    /// Waits.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;
    /// The time by our clock.
    fn now(&self) -> Timestamp;
    /// Random bytes.
    fn nonce(&self) -> [u8; 16];
}

/// One request.
pub struct Post<'a> {
    /// Where to.
    pub url: &'a ServiceUrl,
    /// The `Authorization` header.
    pub authorization: Option<String>,
    /// The body.
    pub message: String,
}

/// What came back.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The `WWW-Authenticate` headers, with commas between them.
    pub challenge: Option<String>,
    /// The `Date` header.
    pub date: Option<String>,
    /// The body.
    pub message: Vec<u8>,
}

/// Why nothing came back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The host does not let us.
    #[error("grants.http of the handler's DiscoveryHandler object does not cover it")]
    NotGranted,
    /// It takes too long.
    #[error("it does not answer in time")]
    TimedOut,
    /// No connection, no TLS, an answer that is too large, or the like.
    #[error("{0}")]
    Failed(String),
}

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing came back.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The camera wants credentials, or others.
    #[error("it asks for other credentials")]
    Refused,
    /// The camera can't, in its words.
    #[error("it answers: {0}")]
    Fault(String),
    /// Something else than a SOAP message came back.
    #[error("it answers with HTTP status {status}, and {why}")]
    NotSoap {
        /// The HTTP status.
        status: u16,
        /// What is wrong with the body.
        why: soap::SoapError,
    },
}

/// A conversation that has begun.
pub struct Session<'a, T> {
    transport: &'a T,
    credentials: Option<&'a Credentials>,
    skew: SignedDuration,
    /// Set once the camera has asked for HTTP digest; what it wants instead of a header in the message.
    digest: Option<DigestClient>,
}

impl<'a, T: Transport> Session<'a, T> {
    /// Asks for the time, which shows that there is a camera, and by how much its clock is wrong.
    ///
    /// # Errors
    /// If there is nothing that speaks SOAP.
    pub async fn open(
        transport: &'a T,
        url: &ServiceUrl,
        credentials: Option<&'a Credentials>,
    ) -> Result<Self, CallError> {
        let message = soap::envelope("", &device_service::get_system_date_and_time().body);
        let reply = transport.post(Post { url, authorization: None, message }).await?;
        let clock = match read(&reply) {
            Ok(body) => device_service::clock(&body),
            // Some want credentials even for this, though they should not. Then the server's clock has to do.
            Err(CallError::Refused | CallError::Fault(_)) => reply.date.as_deref().and_then(http_date),
            Err(error) => return Err(error),
        };
        Ok(Self { transport, credentials, skew: security::skew(clock, transport.now()), digest: None })
    }

    /// Asks a question; the body of the answer.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn call(&mut self, url: &ServiceUrl, request: &Request) -> Result<Element, CallError> {
        let reply = self.send(url, request).await?;
        let challenge = reply.challenge.as_deref().filter(|_| reply.status == 401 && self.credentials.is_some());
        match challenge.and_then(security::digest_challenge) {
            // Wrong credentials are not tried twice: cameras lock users out.
            Some(challenge) if self.digest.is_none() || challenge.stale() => {
                self.digest = Some(challenge);
                read(&self.send(url, request).await?)
            }
            _ => read(&reply),
        }
    }

    /// Whether a URI gives the password away, as it is or percent-encoded. A very short one is in anything.
    pub fn is_password_in(&self, uri: &str) -> bool {
        let decoded = percent_decode_str(uri).decode_utf8_lossy();
        let is_in = |password: &str| uri.contains(password) || decoded.contains(password);
        self.credentials.is_some_and(|own| own.password.len() >= 4 && is_in(&own.password))
    }

    async fn send(&mut self, url: &ServiceUrl, request: &Request) -> Result<Reply, TransportError> {
        let (header, authorization) = match (self.credentials, &mut self.digest) {
            (None, _) => (String::new(), None),
            (Some(credentials), None) => {
                let now = self.transport.now().checked_add(self.skew).unwrap_or(Timestamp::UNIX_EPOCH);
                (security::username_token(credentials, self.transport.nonce(), now), None)
            }
            (Some(credentials), Some(challenge)) => {
                (String::new(), security::digest_answer(challenge, credentials, url.path()))
            }
        };
        let message = soap::envelope(&header, &request.body);
        self.transport.post(Post { url, authorization, message }).await
    }
}

fn read(reply: &Reply) -> Result<Element, CallError> {
    if matches!(reply.status, 401 | 403) {
        return Err(CallError::Refused);
    }
    let body = soap::body(&reply.message).map_err(|why| CallError::NotSoap { status: reply.status, why })?;
    match soap::fault(&body) {
        Some(fault) if fault.not_authorized => Err(CallError::Refused),
        Some(fault) => Err(CallError::Fault(fault.reason)),
        None => Ok(body),
    }
}

/// The time in a `Date` header, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(date: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
}
