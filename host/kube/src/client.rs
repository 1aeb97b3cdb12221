//! The client for the API server. It counts its requests, and leaves an API server that is overloaded alone for as long as that asks (rule 77).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use kube::client::retry::RetryPolicy;
use kube::{Client, Config, Error};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tower::retry::Retry;
use tower::{BoxError, service_fn};

use crate::api_metrics::RequestKind;

/// Longest time without a byte: a machine that lost its power closes no connection. Watches end after 290 s.
const SILENCE: Duration = Duration::from_secs(300);

/// Longest time that an API server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Tries of one request. Those who send it have their own time limits, and try again.
const TRIES: u32 = 15;

/// Returns a client whose requests wait for as long as the API server asks.
///
/// # Errors
/// If the configuration makes no client.
pub fn client(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false; // it would wait for each request alone
    (config.read_timeout, config.reset_reader_on_write) = (Some(SILENCE), true);
    let namespace = config.default_namespace.clone();
    let (client, pauses) = (Client::try_from(config)?, Pauses::default());
    let paused = service_fn(move |request: Request<Body>| {
        let (client, pauses) = (client.clone(), pauses.clone());
        async move {
            let kind = RequestKind::of(&request);
            kind.count(pauses.send(request, |request| client.send(request)).await).map_err(BoxError::from)
        }
    });
    let retries = RetryPolicy::new(Duration::from_millis(5), LONGEST_PAUSE, TRIES, false);
    let retries = retries.map_err(|error| Error::Service(error.into()))?;
    Ok(Client::new(Retry::new(retries, paused), namespace))
}

/// The pauses of requests: reads and writes have separate limits in an API server. Clones share them.
#[derive(Clone, Default)]
struct Pauses {
    reads: Arc<Pause>,
    writes: Arc<Pause>,
}

impl Pauses {
    /// Sends a request after the pause of its class, and begins one if the answer asks for it.
    async fn send<B, F>(&self, request: Request<B>, send: impl FnOnce(Request<B>) -> F) -> kube::Result<Response<B>>
    where
        F: Future<Output = kube::Result<Response<B>>>,
    {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let pause = if is_read { &self.reads } else { &self.writes };
        while let Some(end) = pause.end(Instant::now()) {
            sleep_until(end).await;
        }
        let answer = send(request).await?;
        pause.answered(&answer, Instant::now());
        Ok(answer)
    }
}

/// The time before which no request is sent.
#[derive(Default)]
struct Pause(Mutex<Option<Instant>>);

impl Pause {
    /// Returns its end, if that is still to come.
    fn end(&self, now: Instant) -> Option<Instant> {
        self.0.lock().filter(|end| *end > now)
    }

    /// Prolongs it to the time that an answer asks for.
    fn answered<B>(&self, answer: &Response<B>, now: Instant) {
        let is_overloaded = matches!(answer.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let asked = answer.headers().get(RETRY_AFTER).filter(|_| is_overloaded);
        if let Some(seconds) = asked.and_then(|asked| asked.to_str().ok()?.parse().ok()) {
            let mut end = self.0.lock();
            *end = (*end).max(Some(now + Duration::from_secs(seconds).min(LONGEST_PAUSE)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, retry_after: &str) -> Response<()> {
        Response::builder().status(status).header(RETRY_AFTER, retry_after).body(()).unwrap()
    }

    #[test] // rule 77
    fn pause_is_as_long_as_asked_and_at_most_a_minute() {
        let (pause, start) = (Pause::default(), Instant::now());
        let left_after = |second, status, retry_after: &str| {
            let now = start + Duration::from_secs(second);
            pause.answered(&answer(status, retry_after), now);
            pause.end(now).map_or(0, |end| end.duration_since(now).as_secs())
        };
        for (second, status, retry_after, left) in [
            (0, 200, "7", 0),
            (0, 500, "7", 0),
            (0, 429, "soon", 0),
            (0, 429, "10", 10),
            (2, 429, "5", 8), // of answers that come together the longest time counts
            (4, 503, "20", 20),
            (24, 200, "", 0),
            (30, 429, "86400", 60),
        ] {
            assert_eq!(left_after(second, status, retry_after), left, "{second} s: {status}, {retry_after}");
        }
    }

    #[tokio::test] // rule 77
    async fn other_class_goes_on_meanwhile() {
        let sent = async |pauses: &Pauses, method: Method, status, seconds| {
            let request = Request::builder().method(method).body(()).unwrap();
            pauses.send(request, async |_| Ok(answer(status, seconds))).await.unwrap();
        };
        let pauses = Pauses::default();
        sent(&pauses, Method::GET, 429, "60").await;
        for (method, goes_on) in [(Method::PATCH, true), (Method::POST, true), (Method::GET, false)] {
            let request = std::pin::pin!(sent(&pauses, method.clone(), 200, ""));
            assert_eq!(futures::poll!(request).is_ready(), goes_on, "{method}");
        }
        let (pauses, start) = (Pauses::default(), Instant::now());
        sent(&pauses, Method::GET, 429, "1").await;
        sent(&pauses, Method::GET, 200, "").await;
        assert!(start.elapsed() >= Duration::from_secs(1));
    }
}
