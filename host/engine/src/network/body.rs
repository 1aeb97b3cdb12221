//! Bodies: how large, and how slow.

use std::error::Error as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};
use wasmtime_wasi_http::{Error, WasiBody};

/// Bytes of a body, of requests and of responses.
pub(crate) const BODY: usize = 1 << 20;

/// A request's body that fails once it is too large.
pub(crate) fn sent(body: WasiBody) -> WasiBody {
    Limited::new(body, BODY).map_err(|error| too_large(error, Error::HttpRequestBodySize)).boxed_unsync()
}

/// A response's body that fails once it is too large, if nothing comes for so long, or at the `last` moment.
pub(crate) fn received(body: Incoming, pause: Duration, last: std::time::Instant) -> WasiBody {
    let last = Instant::from_std(last);
    let first = (Instant::now() + pause).min(last);
    let paced = Paced { body, pause, last, limit: Box::pin(tokio::time::sleep_until(first)) };
    Limited::new(paced, BODY).map_err(|error| too_large(error, Error::HttpResponseBodySize)).boxed_unsync()
}

fn too_large(error: Box<dyn std::error::Error + Send + Sync>, error_of: fn(Option<u64>) -> Error) -> Error {
    if error.is::<LengthLimitError>() {
        return error_of(Some(BODY as u64));
    }
    error.downcast().map_or(Error::HttpProtocolError, |error| *error)
}

/// Returns the cause of a failure: a body's own bound, or the connection.
pub(crate) fn why(error: hyper::Error) -> Error {
    match error.source().and_then(|cause| cause.downcast_ref()) {
        Some(Error::HttpRequestBodySize(size)) => Error::HttpRequestBodySize(*size),
        _ if error.is_parse_too_large() => Error::HttpResponseHeaderSectionSize(None),
        _ if error.is_incomplete_message() || error.is_closed() || error.is_canceled() => Error::ConnectionTerminated,
        _ => Error::Hyper(error),
    }
}

/// Fails if the next piece does not come in time.
struct Paced {
    body: Incoming,
    pause: Duration,
    last: Instant,
    limit: Pin<Box<Sleep>>,
}

impl Body for Paced {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let next = (Instant::now() + self.pause).min(self.last);
            self.limit.as_mut().reset(next);
            return Poll::Ready(frame.map(|frame| frame.map_err(why)));
        }
        ready!(self.limit.as_mut().poll(cx));
        Poll::Ready(Some(Err(Error::ConnectionReadTimeout)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
