//! `wasi:http` with a tape: complete requests with their responses.

use std::sync::Arc;

use akri_engine::linking::{Answered, Finished, SendRequest};
use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use wasmtime_wasi_http::{Error, WasiBody};

use crate::call::{Recorded, Request, Response};
use crate::errors::{http_error, http_error_name};
use crate::payload::Payload;
use crate::player::Player;
use crate::recorder::Recorder;

/// Headers that the host sets, which may change with the version of a library.
const OWN_HEADERS: [&str; 1] = ["host"];

/// Headers in the order of their names.
fn pairs(headers: &HeaderMap) -> Vec<(String, Payload)> {
    let pairs = headers.iter().map(|(name, value)| (name.as_str().to_owned(), Payload::from(value.as_bytes())));
    let mut pairs: Vec<_> = pairs.filter(|(name, _)| !OWN_HEADERS.contains(&name.as_str())).collect();
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs
}

fn recorded_request(parts: &http::request::Parts, body: Vec<u8>) -> Request {
    Request {
        method: parts.method.to_string(),
        uri: parts.uri.to_string(),
        headers: Some(pairs(&parts.headers)),
        body: Some(Payload(body)),
    }
}

/// Sends a request by `send`, and records it with its response, whose body is read before the guest gets it.
pub(super) fn record(
    recorder: Arc<Recorder>,
    request: http::Request<WasiBody>,
    send: SendRequest,
) -> impl Future<Output = Answered> + Send {
    let (parts, body) = request.into_parts();
    // If the guest gives up, this is all that is known of it.
    let begun = Request { body: None, ..recorded_request(&parts, Vec::new()) };
    let begun = Recorded::HttpRequest { request: begun, response: None, error: None, silent: true };
    let index = recorder.begin(begun);
    async move {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let request = http::Request::from_parts(parts.clone(), copied(body, sent.clone()));
        let answer = match send(request).await {
            Ok((answer, finished)) => read_body(answer, finished).await,
            Err(error) => Err(error),
        };
        let request = recorded_request(&parts, sent.lock().clone());
        let (response, error) = match &answer {
            Ok((parts, body)) => {
                let (status, headers) = (parts.status.as_u16(), pairs(&parts.headers));
                (Some(Response { status, headers, body: Payload::from(&**body) }), None)
            }
            Err(error) => (None, Some(http_error_name(error))),
        };
        recorder.finish(index, Recorded::HttpRequest { request, response, error, silent: false });
        let (parts, body) = answer?;
        let finished: Finished = Box::new(std::future::ready(Ok(())));
        Ok((http::Response::from_parts(parts, full(body)), finished))
    }
}

/// Copies a body as it is sent.
fn copied(body: WasiBody, copy: Arc<Mutex<Vec<u8>>>) -> WasiBody {
    let copied = body.map_frame(move |frame| {
        if let Some(bytes) = frame.data_ref() {
            copy.lock().extend_from_slice(bytes);
        }
        frame
    });
    copied.boxed_unsync()
}

async fn read_body(
    answer: http::Response<WasiBody>,
    finished: Finished,
) -> Result<(http::response::Parts, Bytes), Error> {
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
pub(super) fn play(player: Arc<Player>, request: http::Request<WasiBody>) -> impl Future<Output = Answered> + Send {
    let (parts, body) = request.into_parts();
    // Which one it is has to be decided before anything else is asked.
    let place = player.begin_request(parts.method.as_str(), &parts.uri.to_string());
    let busy = player.clock.busy();
    async move {
        let differs = |_| Error::InternalError(None);
        let place = place.map_err(differs)?;
        let body = body.collect().await?.to_bytes();
        let (due, answer) = player.respond(place, recorded_request(&parts, body.to_vec())).map_err(differs)?;
        // It waits by the clock first, and lets that go on then.
        let waiting = player.clock.until(due);
        drop(busy);
        waiting.await;
        let answer = answer.map_err(|name| http_error(&name))?;
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
