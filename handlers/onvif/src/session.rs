//! A session with one camera: requests with the authentication it requires.

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

/// The transport to cameras, with a clock and random numbers.
pub trait Transport {
    /// Sends a SOAP message and waits for the response, bounded in time and size.
    fn post(&self, post: Post<'_>) -> impl Future<Output = Result<Reply, TransportError>>;
    /// Waits for a time.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;
    /// Returns the current time.
    fn now(&self) -> Timestamp;
    /// Returns random bytes.
    fn nonce(&self) -> [u8; 16];
}

/// A request.
pub struct Post<'a> {
    /// The URL.
    pub url: &'a ServiceUrl,
    /// The `Authorization` header.
    pub authorization: Option<String>,
    /// The body.
    pub message: String,
}

/// A response.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The `WWW-Authenticate` headers, joined with commas.
    pub challenge: Option<String>,
    /// The `Date` header.
    pub date: Option<String>,
    /// The body.
    pub message: Vec<u8>,
}

/// The reason for a missing response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The host denies the request; names the grant.
    #[error("not granted ({0})")]
    NotGranted(&'static str),
    /// The request timed out.
    #[error("it does not answer in time")]
    TimedOut,
    /// Connecting or TLS failed, the response was too large, or similar.
    #[error("{0}")]
    Failed(String),
}

impl TransportError {
    /// Returns the error for a request that is denied. A host that is a name needs a grant of the name first; whether that
    /// is the missing one shows in `is_by_address`.
    pub fn not_granted(url: &ServiceUrl, is_by_address: bool) -> Self {
        Self::NotGranted(if url.ip().is_some() || is_by_address { "grants.http" } else { "grants.names" })
    }
}

/// The reason for a failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No response.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The camera requires credentials, or other ones.
    #[error("it asks for other credentials")]
    Refused,
    /// A SOAP fault, with the camera's reason.
    #[error("it answers: {0}")]
    Fault(String),
    /// The response is not SOAP.
    #[error("it answers with HTTP status {status}, and {why}")]
    NotSoap {
        /// The HTTP status.
        status: u16,
        /// The error of the body.
        why: soap::SoapError,
    },
}

/// An open session.
pub struct Session<'a, T> {
    transport: &'a T,
    credentials: Option<&'a Credentials>,
    skew: SignedDuration,
    is_open: bool,
    is_accepted: bool,
    /// The digest state, set once the camera has requested HTTP digest; it replaces the header in the message.
    digest: Option<DigestClient>,
}

impl<'a, T: Transport> Session<'a, T> {
    /// Opens a session by requesting the time, which also yields the difference of the clocks.
    ///
    /// # Errors
    /// If nothing at the URL speaks SOAP.
    pub async fn open(
        transport: &'a T,
        url: &ServiceUrl,
        credentials: Option<&'a Credentials>,
    ) -> Result<Self, CallError> {
        let message = soap::envelope("", &device_service::get_system_date_and_time().body);
        let reply = transport.post(Post { url, authorization: None, message }).await?;
        let (clock, is_open) = match read(&reply) {
            Ok(body) => (device_service::clock(&body), true),
            // Some cameras require credentials even for this.
            Err(error @ (CallError::Refused | CallError::Fault(_))) => (None, error != CallError::Refused),
            Err(error) => return Err(error),
        };
        let clock = clock.or_else(|| reply.date.as_deref().and_then(http_date));
        let skew = security::skew(clock, transport.now());
        Ok(Self { transport, credentials, skew, is_open, is_accepted: false, digest: None })
    }

    /// Returns whether it was opened without credentials.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns whether a request with credentials was accepted.
    pub fn is_accepted(&self) -> bool {
        self.is_accepted
    }

    /// Sends a request; returns the body of the response.
    ///
    /// # Errors
    /// If there is no valid response.
    pub async fn call(&mut self, url: &ServiceUrl, request: &Request) -> Result<Element, CallError> {
        let reply = self.send(url, request).await?;
        let challenge = reply.challenge.as_deref().filter(|_| reply.status == 401 && self.credentials.is_some());
        let answer = match challenge.and_then(security::digest_challenge) {
            // Wrong credentials are not repeated: cameras lock users out.
            Some(challenge) if self.digest.is_none() || challenge.stale() => {
                self.digest = Some(challenge);
                read(&self.send(url, request).await?)
            }
            _ => read(&reply),
        };
        self.is_accepted |= answer.is_ok() && self.credentials.is_some();
        answer
    }

    /// Returns whether a URI contains the password, verbatim or percent-encoded. Very short passwords are ignored.
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

/// Parses the time of a `Date` header, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(date: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_grant_is_named() {
        let url = |text| ServiceUrl::parse(text).unwrap();
        for (text, is_by_address, grant) in [
            ("http://10.0.0.9/", false, "grants.http"),
            ("http://camera.example/", false, "grants.names"),
            ("http://camera.example/", true, "grants.http"),
        ] {
            let error = TransportError::not_granted(&url(text), is_by_address).to_string();
            assert_eq!(error, format!("not granted ({grant})"), "{text}");
        }
    }
}
