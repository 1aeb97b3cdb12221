//! The routes of the page.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::Stream;
use futures::stream::unfold;
use tokio::time::sleep_until;

use super::observer::Observer;
use super::view::Query;

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Nothing but the page's own files, and nobody frames it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// Names of this machine. A page of another site that leads its own name here (DNS rebinding) sends that name.
const HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

pub(super) fn router(observer: Observer) -> Router {
    Router::new()
        .route("/", get(async || file("text/html; charset=utf-8", HTML)))
        .route("/page.css", get(async || file("text/css; charset=utf-8", STYLE)))
        .route("/page.js", get(async || file("text/javascript; charset=utf-8", SCRIPT)))
        .route("/events", get(events))
        .fallback(async || StatusCode::NOT_FOUND)
        .layer(middleware::from_fn(guard))
        .with_state(Arc::new(observer))
}

fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], text)
}

/// Refuses requests to other hosts, and says what browsers may do with the answers.
async fn guard(request: Request, next: Next) -> Response {
    let is_page = request.uri().path() == "/";
    let mut response = match request.headers() {
        headers if !is_this_machine(headers) => refused(StatusCode::MISDIRECTED_REQUEST),
        headers if !is_page && !is_of_page(headers) => refused(StatusCode::FORBIDDEN),
        _ => next.run(request).await,
    };
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn refused(status: StatusCode) -> Response {
    (status, "this page is served to localhost alone\n").into_response()
}

/// Returns whether the page itself asks, or no browser does: a page of another site must not let everything be observed.
fn is_of_page(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_none_or(|site| site == "same-origin" || site == "none")
}

fn is_this_machine(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let is_port =
        |rest: &str| rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    host.is_some_and(|host| HOSTS.iter().any(|known| host.strip_prefix(known).is_some_and(is_port)))
}

/// Sends what a reader wants to see, and again whenever it has changed. Nothing is made before the last piece was read.
async fn events(State(observer): State<Arc<Observer>>, uri: Uri) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let query = Query::parse(uri.query().unwrap_or_default());
    let stream = unfold((observer, query, None), async |(observer, query, last)| {
        let next = changed(&observer, &query, last.as_deref()).await;
        Some((Ok(Event::default().data(&next)), (observer, query, Some(next))))
    });
    Sse::new(stream).keep_alive(KeepAlive::default())
}

async fn changed(observer: &Observer, query: &Query, last: Option<&str>) -> String {
    loop {
        let (snapshot, next) = observer.snapshot().await;
        let view = snapshot.view(query);
        if last != Some(&view) {
            return view;
        }
        sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::request::Builder;
    use tower::ServiceExt as _;

    use super::*;
    use crate::get::args::SourceArgs;

    async fn ask(method: &str, path: &str, host: Option<&str>) -> Response {
        let request = Request::builder().method(method).uri(path);
        send(host.into_iter().fold(request, |request, host| request.header(header::HOST, host))).await
    }

    async fn send(request: Builder) -> Response {
        let directory = tempfile::tempdir().unwrap();
        let source = SourceArgs { state_dir: directory.path().to_owned(), ..SourceArgs::default() };
        let router = router(Observer::new(source, None));
        router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    #[tokio::test] // threat 70
    async fn requests_to_other_hosts_are_refused() {
        for host in ["localhost:9466", "127.0.0.1", "[::1]:1"] {
            assert_eq!(ask("GET", "/", Some(host)).await.status(), StatusCode::OK, "{host}");
        }
        for host in
            ["rebound.example:9466", "localhost.example", "127.0.0.1.example", "localhost:http", "127.0.0.10", ""]
        {
            assert_eq!(ask("GET", "/", Some(host)).await.status(), StatusCode::MISDIRECTED_REQUEST, "{host}");
        }
        assert_eq!(ask("GET", "/events", None).await.status(), StatusCode::MISDIRECTED_REQUEST);
    }

    #[tokio::test] // threat 70
    async fn pages_of_other_sites_observe_nothing() {
        let statuses = [("same-origin", StatusCode::OK), ("none", StatusCode::OK)];
        let others = ["cross-site", "same-site", "other"].map(|site| (site, StatusCode::FORBIDDEN));
        for (site, status) in statuses.into_iter().chain(others) {
            let asked =
                |path| Request::builder().uri(path).header(header::HOST, "localhost").header("sec-fetch-site", site);
            assert_eq!(send(asked("/events")).await.status(), status, "{site}");
            assert_eq!(send(asked("/")).await.status(), StatusCode::OK, "a link from {site}");
        }
    }

    #[tokio::test] // threat 70
    async fn answers_allow_nothing_from_elsewhere_and_no_frames() {
        for path in ["/", "/page.js", "/page.css", "/events", "/etc/passwd"] {
            let response = ask("GET", path, Some("localhost")).await;
            let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{path}");
            assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
        }
        assert_eq!(ask("POST", "/", Some("localhost")).await.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(ask("GET", "/other", Some("localhost")).await.status(), StatusCode::NOT_FOUND);
    }
}
