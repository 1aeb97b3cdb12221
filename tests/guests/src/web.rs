//! Requests by `wasi:http`, without a library between: a bad handler would not use one either.

use wasip2::http::outgoing_handler::{self, ErrorCode};
use wasip2::http::types::{
    Fields, FutureIncomingResponse, IncomingBody, IncomingResponse, Method, OutgoingBody, OutgoingRequest,
    RequestOptions, Scheme,
};
use wasip2::io::streams::StreamError;

use crate::behaviour::Web;
use crate::{Round, device, hint, number};

pub(crate) fn discover(behaviour: Web, argument: &str) -> Round {
    Ok(vec![device(
        "web",
        match behaviour {
            Web::Get => outcome(get(argument)),
            Web::Follow => outcome(get(argument).and_then(|answer| get(&answer.location))),
            Web::Post => outcome(post(argument)),
            Web::GetMany => get_many(argument),
            Web::Connect => outcome(request(&Method::Connect, argument).and_then(answer)),
            Web::NoPath => no_path(argument),
            Web::HeaderFlood => header_flood(),
            Web::LongMethod => long_method(),
            Web::LongTarget => long_target(),
            Web::Abandon => abandon(argument),
        },
    )])
}

struct Answer {
    status: u16,
    location: String,
    body: Result<Vec<u8>, String>,
}

fn outcome(result: Result<Answer, ErrorCode>) -> Vec<(String, String)> {
    match result {
        Err(error) => vec![hint("ERROR", &format!("{error:?}"))],
        Ok(Answer { status, body, .. }) => match body {
            Err(error) => vec![hint("STATUS", &status.to_string()), hint("BODY_ERROR", &error)],
            Ok(body) => {
                let start = String::from_utf8_lossy(&body[..body.len().min(100)]).into_owned();
                vec![hint("STATUS", &status.to_string()), hint("BODY", &start), hint("BYTES", &body.len().to_string())]
            }
        },
    }
}

fn get(url: &str) -> Result<Answer, ErrorCode> {
    request(&Method::Get, url).and_then(answer)
}

fn outgoing(method: &Method, url: &str) -> OutgoingRequest {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let request = OutgoingRequest::new(Fields::new());
    request.set_method(method).unwrap();
    request.set_scheme(Some(if scheme == "https" { &Scheme::Https } else { &Scheme::Http })).unwrap();
    request.set_authority(Some(authority)).unwrap();
    if !path.is_empty() {
        request.set_path_with_query(Some(path)).unwrap();
    }
    request
}

/// The times of the host would make a test of a slow server slow.
fn times(url: &str) -> Option<RequestOptions> {
    if !url.ends_with("/slow") {
        return None;
    }
    let options = RequestOptions::new();
    options.set_first_byte_timeout(Some(2_000_000_000)).unwrap();
    options.set_between_bytes_timeout(Some(100_000_000)).unwrap();
    Some(options)
}

fn request(method: &Method, url: &str) -> Result<FutureIncomingResponse, ErrorCode> {
    outgoing_handler::handle(outgoing(method, url), times(url))
}

fn answer(future: FutureIncomingResponse) -> Result<Answer, ErrorCode> {
    future.subscribe().block();
    let response = future.get().expect("it is ready").expect("it is taken once")?;
    let location = response.headers().get("location").first().cloned().unwrap_or_default();
    let location = String::from_utf8_lossy(&location).into_owned();
    Ok(Answer { status: response.status(), location, body: read(&response) })
}

fn read(response: &IncomingResponse) -> Result<Vec<u8>, String> {
    let body: IncomingBody = response.consume().map_err(|()| "no body".to_owned())?;
    let stream = body.stream().map_err(|()| "no stream".to_owned())?;
    let mut all = Vec::new();
    loop {
        match stream.blocking_read(1 << 20) {
            Ok(bytes) => all.extend(bytes),
            Err(StreamError::Closed) => return Ok(all),
            Err(StreamError::LastOperationFailed(error)) => return Err(error.to_debug_string()),
        }
    }
}

/// `BYTES URL`: sends so many.
fn post(argument: &str) -> Result<Answer, ErrorCode> {
    let (bytes, url) = argument.split_once(' ').unwrap_or(("0", argument));
    let request = outgoing(&Method::Post, url);
    let body = request.body().unwrap();
    let future = outgoing_handler::handle(request, times(url))?;
    let stream = body.write().unwrap();
    let piece = [b'x'; 4096];
    let mut left = number(bytes, 0);
    while left > 0 {
        let now = left.min(piece.len());
        if stream.blocking_write_and_flush(&piece[..now]).is_err() {
            break;
        }
        left -= now;
    }
    drop(stream);
    let _ = OutgoingBody::finish(body, None);
    answer(future)
}

/// `COUNT URL`: so many requests at once.
fn get_many(argument: &str) -> Vec<(String, String)> {
    let (count, url) = argument.split_once(' ').unwrap_or(("1", argument));
    let futures: Vec<_> = (0..number(count, 1)).filter_map(|_| request(&Method::Get, url).ok()).collect();
    let sent = futures.len();
    let answered = futures.into_iter().map(answer).filter(|answer| answer.as_ref().is_ok_and(|a| a.body.is_ok()));
    vec![hint("ANSWERED", &answered.count().to_string()), hint("SENT", &sent.to_string())]
}

/// `COUNT URL`: as often, requests that lack what a request needs.
fn no_path(argument: &str) -> Vec<(String, String)> {
    let (count, url) = argument.split_once(' ').unwrap_or(("1", argument));
    let mut last = Vec::new();
    for _ in 0..number(count, 1) {
        last = outcome(get(url));
    }
    last
}

fn header_flood() -> Vec<(String, String)> {
    let fields = Fields::new();
    for number in 0..100_000 {
        fields.append(&format!("x-{number}"), &[b'x'; 1000]).unwrap();
    }
    vec![hint("HEADERS", "100000")]
}

fn long_method() -> Vec<(String, String)> {
    let request = OutgoingRequest::new(Fields::new());
    request.set_method(&Method::Other("X".repeat(64))).unwrap();
    vec![hint("METHOD", &format!("{:?}", request.set_method(&Method::Other("X".repeat(65)))))]
}

/// Requests that are only made, each with as much as it takes.
fn long_target() -> Vec<(String, String)> {
    let request = OutgoingRequest::new(Fields::new());
    let taken = |set: &dyn Fn(&str) -> Result<(), ()>| {
        let longest = (0..20).map(|power| 1 << power).filter(|length| set(&"x".repeat(*length)).is_ok()).max();
        longest.unwrap_or(0).to_string()
    };
    let path = |text: &str| request.set_path_with_query(Some(&format!("/{text}")));
    vec![hint("AUTHORITY", &taken(&|text| request.set_authority(Some(text)))), hint("PATH", &taken(&path))]
}

/// Asks and does not wait.
fn abandon(url: &str) -> Vec<(String, String)> {
    let future = request(&Method::Get, url);
    let sent = future.is_ok();
    std::mem::forget(future);
    std::thread::sleep(std::time::Duration::from_millis(100));
    vec![hint("SENT", &sent.to_string())]
}
