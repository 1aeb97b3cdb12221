//! Metrics of this process's requests to the API server, as every server of the product shows them.

use std::sync::LazyLock;

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::MapFrame;
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::metrics::MetricSet;

/// The code of a request without an answer.
const NO_ANSWER: &str = "none";

/// The metrics of this process.
pub(crate) static METRICS: LazyLock<ApiMetrics> = LazyLock::new(ApiMetrics::default);

type Label = (&'static str, String);

/// A body whose frames are counted.
pub(crate) type CountedBody = MapFrame<Body, Box<dyn FnMut(Frame<Bytes>) -> Frame<Bytes> + Send>>;

/// Counters of requests, of bytes and of events.
pub(crate) struct ApiMetrics {
    pub(crate) set: MetricSet,
    requests: Family<[Label; 3], Counter>,
    received: Family<[Label; 2], Counter>,
    events: Family<[Label; 1], Counter>,
}

impl Default for ApiMetrics {
    fn default() -> Self {
        let mut set = MetricSet::new("akri_api");
        let help = "requests to the API server, each try; `code` is `none` without an answer";
        Self {
            requests: set.add("requests", &["verb", "resource", "code"], help),
            received: set.add("received_bytes", &["verb", "resource"], "bytes of its answers"),
            events: set.add("watch_events", &["resource"], "events of watches, bookmarks as well"),
            set,
        }
    }
}

/// The verb and the resource of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKind {
    /// `get`, `list`, `watch`, `create`, `patch`, `update` or `delete`.
    pub verb: &'static str,
    /// The resource and the subresource, such as `instances` or `configurations/status`.
    pub resource: String,
}

impl RequestKind {
    /// Reads them from `/api/v1/...` or `/apis/GROUP/VERSION/...`, in which `namespaces/NAMESPACE` may come before the resource.
    pub fn of<B>(request: &Request<B>) -> Self {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let mut parts = path.trim_start_matches('/').split('/');
        let skipped = if parts.next() == Some("apis") { 2 } else { 1 };
        let mut parts = parts.skip(skipped).peekable();
        if parts.next_if_eq(&"namespaces").is_some() {
            parts.next();
        }
        let (resource, name) = (parts.next().unwrap_or_default(), parts.next());
        let resource = parts.next().map_or(resource.to_owned(), |sub| format!("{resource}/{sub}"));
        let verb = match *request.method() {
            Method::GET if query.contains("watch=true") => "watch",
            Method::GET if name.is_none() => "list",
            Method::GET => "get",
            Method::POST => "create",
            Method::PATCH => "patch",
            Method::PUT => "update",
            _ => "delete",
        };
        Self { verb, resource }
    }

    /// Counts the answer, and its body as that is read.
    pub(crate) fn count(self, answer: kube::Result<Response<Body>>) -> kube::Result<Response<CountedBody>> {
        let code = answer.as_ref().map_or(NO_ANSWER.to_owned(), |answer| answer.status().as_u16().to_string());
        let (verb, resource) = (("verb", self.verb.to_owned()), ("resource", self.resource));
        METRICS.requests.get_or_create(&[verb.clone(), resource.clone(), ("code", code)]).inc();
        let received = METRICS.received.get_or_create(&[verb, resource.clone()]).clone();
        let events = (self.verb == "watch").then(|| METRICS.events.get_or_create(&[resource]).clone());
        let on_frame = move |frame: Frame<Bytes>| {
            let data = frame.data_ref().map_or(&[][..], |data| data);
            received.inc_by(data.len() as u64);
            if let Some(events) = &events {
                events.inc_by(data.iter().filter(|byte| **byte == b'\n').count() as u64);
            }
            frame
        };
        Ok(answer?.map(|body| body.map_frame(Box::new(on_frame) as Box<_>)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(method: Method, uri: &str) -> RequestKind {
        RequestKind::of(&Request::builder().method(method).uri(uri).body(()).unwrap())
    }

    #[test]
    fn request_has_a_verb_and_a_resource() {
        let instances = "/apis/akri.sh/v0/instances";
        let one = "/apis/akri.sh/v0/namespaces/default/instances/cam-1";
        for (method, uri, verb, resource) in [
            (Method::GET, instances, "list", "instances"),
            (Method::GET, &*format!("{instances}?allowWatchBookmarks=true&watch=true"), "watch", "instances"),
            (Method::GET, one, "get", "instances"),
            (Method::GET, "/api/v1/nodes/namespaces", "get", "nodes"),
            (Method::POST, "/apis/akri.sh/v0/namespaces/default/instances?", "create", "instances"),
            (Method::PATCH, &*format!("{one}/status?fieldManager=x"), "patch", "instances/status"),
            (Method::PUT, "/api/v1/namespaces/default/secrets/s", "update", "secrets"),
            (Method::DELETE, one, "delete", "instances"),
            (Method::GET, "/", "list", ""),
        ] {
            assert_eq!(kind(method, uri), RequestKind { verb, resource: resource.to_owned() }, "{uri}");
        }
    }

    #[tokio::test]
    async fn answers_bodies_and_events_are_counted() {
        let uri = "/api/v1/cameras?watch=true";
        let body = Body::from(b"{\"type\": \"ADDED\"}\n{\"type\": \"BOOKMARK\"}\n{".to_vec());
        let answer = kind(Method::GET, uri).count(Ok(Response::new(body))).unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes().len(), 40);
        let lost = kube::Error::LinesCodecMaxLineLengthExceeded;
        assert!(kind(Method::GET, uri).count(Err(lost)).is_err());
        let text = METRICS.set.encode();
        for line in [
            r#"akri_api_requests_total{verb="watch",resource="cameras",code="200"} 1"#,
            r#"akri_api_requests_total{verb="watch",resource="cameras",code="none"} 1"#,
            r#"akri_api_received_bytes_total{verb="watch",resource="cameras"} 40"#,
            r#"akri_api_watch_events_total{resource="cameras"} 2"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
