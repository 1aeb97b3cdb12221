//! `wasi:http` with a tape: whole requests with their responses.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt as _, Full};
use wasmtime_wasi_http::{Error, WasiBody};

use crate::network::http::{Answered, Finished};
use akri_cassette::Payload;
use akri_cassette::Player;
use akri_cassette::Recorder;
use akri_cassette::call::{Recorded, Request, Response};

/// Headers that the host sets, which may change with the version of a library.
const OWN_HEADERS: [&str; 1] = ["host"];

/// A name and its error.
type NamedError = (&'static str, fn() -> Error);

/// Errors without details, by name.
const ERRORS: [NamedError; 22] = [
    ("dns-timeout", || Error::DnsTimeout),
    ("dns-error", || Error::DnsError { rcode: None, info_code: None }),
    ("destination-not-found", || Error::DestinationNotFound),
    ("destination-unavailable", || Error::DestinationUnavailable),
    ("destination-IP-prohibited", || Error::DestinationIpProhibited),
    ("destination-IP-unroutable", || Error::DestinationIpUnroutable),
    ("connection-refused", || Error::ConnectionRefused),
    ("connection-terminated", || Error::ConnectionTerminated),
    ("connection-timeout", || Error::ConnectionTimeout),
    ("connection-read-timeout", || Error::ConnectionReadTimeout),
    ("connection-limit-reached", || Error::ConnectionLimitReached),
    ("TLS-protocol-error", || Error::TlsProtocolError),
    ("TLS-certificate-error", || Error::TlsCertificateError),
    ("TLS-alert-received", || Error::TlsAlertReceived { alert_id: None, alert_message: None }),
    ("HTTP-request-denied", || Error::HttpRequestDenied),
    ("HTTP-request-method-invalid", || Error::HttpRequestMethodInvalid),
    ("HTTP-request-URI-invalid", || Error::HttpRequestUriInvalid),
    ("HTTP-response-timeout", || Error::HttpResponseTimeout),
    ("HTTP-response-incomplete", || Error::HttpResponseIncomplete),
    ("HTTP-response-body-size", || Error::HttpResponseBodySize(None)),
    ("HTTP-request-body-size", || Error::HttpRequestBodySize(None)),
    ("HTTP-protocol-error", || Error::HttpProtocolError),
];

/// The error of that name.
pub(super) fn error(name: &str) -> Option<Error> {
    ERRORS.iter().find(|(known, _)| *known == name).map(|(_, error)| error())
}

/// The name of an error. One that the table lacks is an error of the protocol.
fn named(error: &Error) -> String {
    let is_it = |known: &Error| std::mem::discriminant(known) == std::mem::discriminant(error);
    let name = ERRORS.iter().find(|(_, known)| is_it(&known())).map_or("HTTP-protocol-error", |(name, _)| name);
    name.to_owned()
}

/// Headers in the order of their names.
fn pairs(headers: &HeaderMap) -> Vec<(String, Payload)> {
    let pairs = headers.iter().map(|(name, value)| (name.as_str().to_owned(), Payload::from(value.as_bytes())));
    let mut pairs: Vec<_> = pairs.filter(|(name, _)| !OWN_HEADERS.contains(&name.as_str())).collect();
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs
}

fn request(parts: &http::request::Parts, body: Vec<u8>) -> Request {
    Request {
        method: parts.method.to_string(),
        uri: parts.uri.to_string(),
        headers: Some(pairs(&parts.headers)),
        body: Some(Payload(body)),
    }
}

/// Sends a request by `send`, and writes it down with its response, which the guest gets as a whole.
pub(crate) fn record(
    recorder: Arc<Recorder>,
    asked: http::Request<WasiBody>,
    send: impl AsyncFnOnce(http::Request<WasiBody>) -> Answered,
) -> impl Future<Output = Answered> {
    let (parts, body) = asked.into_parts();
    // If the guest gives up, this is all that is known of it.
    let begun = Request { body: None, ..request(&parts, Vec::new()) };
    let (at, response, error) = (recorder.at(), None, None);
    let index = recorder.begin(Recorded::HttpRequest { at, request: begun, response, error, silent: true });
    async move {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let request = http::Request::from_parts(parts.clone(), copied(body, sent.clone()));
        let answer = match send(request).await {
            Ok((answer, finished)) => whole(answer, finished).await,
            Err(error) => Err(error),
        };
        let request = self::request(&parts, sent.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let (response, error) = match &answer {
            Ok((parts, body)) => {
                let (status, headers) = (parts.status.as_u16(), pairs(&parts.headers));
                (Some(Response { status, headers, body: Payload::from(&**body) }), None)
            }
            Err(error) => (None, Some(named(error))),
        };
        let at = recorder.at();
        recorder.finish(index, Recorded::HttpRequest { at, request, response, error, silent: false });
        let (parts, body) = answer?;
        let finished: Finished = Box::new(std::future::ready(Ok(())));
        Ok((http::Response::from_parts(parts, full(body)), finished))
    }
}

/// Copies a body as it is sent.
fn copied(body: WasiBody, copy: Arc<Mutex<Vec<u8>>>) -> WasiBody {
    let copied = body.map_frame(move |frame| {
        if let Some(bytes) = frame.data_ref() {
            copy.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        }
        frame
    });
    copied.boxed_unsync()
}

async fn whole(answer: http::Response<WasiBody>, finished: Finished) -> Result<(http::response::Parts, Bytes), Error> {
    let (parts, body) = answer.into_parts();
    let finished = Box::into_pin(finished);
    // The connection goes on while its body is read.
    let body = async {
        let read = body.collect();
        tokio::pin!(read);
        tokio::select! {
            body = &mut read => body,
            _ = finished => read.await,
        }
    };
    Ok((parts, body.await?.to_bytes()))
}

/// Answers a request as the cassette does.
pub(crate) fn play(player: Arc<Player>, asked: http::Request<WasiBody>) -> impl Future<Output = Answered> + Send {
    let (parts, body) = asked.into_parts();
    // Which one it is has to be decided before anything else is asked.
    let place = player.begin_request(parts.method.as_str(), &parts.uri.to_string());
    let busy = player.busy();
    async move {
        let differs = |_| Error::InternalError(None);
        let place = place.map_err(differs)?;
        let body = body.collect().await?.to_bytes();
        let (due, answer) = player.respond(place, request(&parts, body.to_vec())).map_err(differs)?;
        let waiting = player.clock.until(due);
        tokio::pin!(waiting);
        // It waits by the clock first, and lets that go on then.
        let mut busy = Some(busy);
        std::future::poll_fn(|context| {
            let polled = waiting.as_mut().poll(context);
            busy.take();
            polled
        })
        .await;
        let answer = answer.map_err(|name| error(&name).unwrap_or(Error::HttpProtocolError))?;
        let (status, headers) = answer.head().map_err(|_| Error::HttpProtocolError)?;
        let mut response = http::Response::new(full(answer.body.0.into()));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        let finished: Finished = Box::new(std::future::ready(Ok(())));
        Ok((response, finished))
    }
}

fn full(body: Bytes) -> WasiBody {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use akri_cassette::HTTP_ERRORS;

    use super::*;

    #[test]
    fn errors_of_requests_are_those_of_cassettes() {
        assert!(ERRORS.iter().map(|(name, _)| *name).eq(HTTP_ERRORS));
    }
}
