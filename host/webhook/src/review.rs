//! AdmissionReviews as they come in and as they go out.

use akri_api::validate;
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::core::admission::Operation;
use kube::core::{GroupVersionKind, GroupVersionResource};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::configuration::read;
use crate::review_outcome::ReviewOutcome;

/// The only version there is; `v1beta1` ended with Kubernetes 1.22.
const VERSION: &str = "admission.k8s.io/v1";

/// Most objects, lists and members of what is read: each may take 700 bytes of memory, for a few of its text.
const PARTS: usize = 1 << 14;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    kind: String,
    request: Option<Request>,
}

/// An object that someone wants to create or update, without all that nobody looks at: any pod can send one of 4 MiB.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub(crate) uid: String,
    pub(crate) kind: GroupVersionKind,
    resource: GroupVersionResource,
    #[serde(default)]
    sub_resource: String,
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    operation: Operation,
    #[serde(default, deserialize_with = "bounded")]
    pub(crate) user_info: UserInfo,
    pub(crate) object: Option<Object>,
    old_object: Option<Object>,
}

/// A part of an object.
#[derive(Debug, Deserialize)]
pub(crate) struct Object {
    pub(crate) metadata: Metadata,
    /// Not read yet.
    pub(crate) spec: Option<Box<RawValue>>,
}

impl Object {
    fn spec_text(&self) -> &str {
        self.spec.as_ref().map_or("null", |spec| spec.get())
    }
}

/// A part of the metadata of an object.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: Option<String>,
    deletion_timestamp: Option<String>,
}

/// Reads the body of a request.
///
/// # Errors
/// If it is not an AdmissionReview with a request.
pub fn parse(body: &[u8]) -> Result<Request, String> {
    let review: Review =
        serde_json::from_slice(body).map_err(|error| format!("the body is not an AdmissionReview: {error}"))?;
    let Review { api_version, kind, request } = review;
    if api_version != VERSION || kind != "AdmissionReview" {
        return Err(format!("expected kind AdmissionReview of {VERSION}, not '{kind}' of '{api_version}'"));
    }
    request.ok_or_else(|| "the AdmissionReview holds no request".to_owned())
}

fn bounded<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    parse_bounded(<&RawValue>::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Reads what may take much more memory than its text. Nesting is bounded by the JSON library.
///
/// # Errors
/// If it is too large, or no `T`.
pub(crate) fn parse_bounded<T: DeserializeOwned>(json: &RawValue) -> Result<T, String> {
    let parts = json.get().bytes().filter(|byte| matches!(byte, b'{' | b'[' | b',')).count();
    if parts > PARTS {
        return Err(format!("has {parts} objects, lists and members, counted by '{{', '[' and ',': more than {PARTS}"));
    }
    serde_json::from_str(json.get()).map_err(|error| error.to_string())
}

/// Returns the body of the response.
///
/// # Errors
/// If it cannot be written, which no outcome should cause.
pub fn response_body(request: &Request, outcome: ReviewOutcome) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&outcome.respond(request).into_review())
}

/// Runs the checks that need neither the API server nor a component. The others are made of valid objects only.
pub fn check_alone(request: &Request) -> ReviewOutcome {
    let read = match subject(request) {
        Subject::Configuration => read(request, validate::configuration).map(drop),
        Subject::DiscoveryHandler => read(request, validate::discovery_handler).map(drop),
        Subject::Nothing => Ok(()),
    };
    read.err().unwrap_or_default()
}

/// The part of a request that has to be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The spec of a Configuration.
    Configuration,
    /// The spec of a DiscoveryHandler.
    DiscoveryHandler,
    /// Nothing: another kind, a subresource, a deletion, or an object whose spec stays as it is.
    Nothing,
}

/// Chooses what to check. An object that is on its way out, or of which only metadata changes, passes: finalizers and labels
/// of objects that were stored before a rule became stricter have to stay editable.
pub(crate) fn subject(request: &Request) -> Subject {
    let is_write = matches!(request.operation, Operation::Create | Operation::Update);
    let is_subresource = !request.sub_resource.is_empty();
    let Some(object) = request.object.as_ref().filter(|_| is_write && !is_subresource) else { return Subject::Nothing };
    let before = request.old_object.as_ref().filter(|_| request.operation == Operation::Update);
    // One API server writes both, each field of a map in its place.
    let is_same = before.is_some_and(|before| before.spec_text() == object.spec_text());
    if is_same || object.metadata.deletion_timestamp.is_some() {
        return Subject::Nothing;
    }
    match (request.resource.group.as_str(), request.resource.resource.as_str()) {
        ("akri.sh", "configurations") => Subject::Configuration,
        ("akri.sh", "discoveryhandlers") => Subject::DiscoveryHandler,
        _ => Subject::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::review;

    fn parsed(review: &Value) -> Request {
        parse(review.to_string().as_bytes()).unwrap()
    }

    #[test] // rule 63
    fn grants_and_limits_are_checked_before_an_agent_gets_them() {
        let fields = |spec: &Value| {
            let object = json!({"metadata": {"name": "udev"}, "spec": spec});
            let request = review("discoveryhandlers", "CREATE", &object, &Value::Null);
            let outcome = check_alone(&parse(request.to_string().as_bytes()).unwrap());
            outcome.invalid.into_iter().map(|finding| finding.field).collect::<Vec<_>>()
        };
        assert!(fields(&json!({"component": {"file": "udev.wasm"}})).is_empty());
        let grants = json!({"tcp": [{"networks": ["10.0.0.0/33"], "ports": [0]}], "devicePaths": ["/dev/../etc"]});
        let expected = ["spec.grants.devicePaths[0]", "spec.grants.tcp[0].networks[0]", "spec.grants.tcp[0].ports[0]"];
        assert_eq!(fields(&json!({"component": {"file": "udev.wasm"}, "grants": grants})), expected);
        assert_eq!(fields(&json!({"component": {"file": "x.wasm"}, "grant": {}})), ["spec.grant"]);
        assert_eq!(fields(&json!({})), ["spec"]);
    }

    #[test] // rule 63
    fn only_writes_that_change_a_spec_are_checked() {
        let object = json!({"metadata": {"name": "cam", "namespace": "lab"}, "spec": {"capacity": 1}});
        let create = review("configurations", "CREATE", &object, &Value::Null);
        assert_eq!(subject(&parsed(&create)), Subject::Configuration);
        let handler = review("discoveryhandlers", "CREATE", &object, &Value::Null);
        assert_eq!(subject(&parsed(&handler)), Subject::DiscoveryHandler);
        let mut labelled = object.clone();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        let mut changed = object.clone();
        changed["spec"]["capacity"] = json!(2);
        let mut ending = changed.clone();
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let update = |new: &Value| subject(&parsed(&review("configurations", "UPDATE", new, &object)));
        assert_eq!(update(&changed), Subject::Configuration);
        assert_eq!([update(&labelled), update(&ending)], [Subject::Nothing; 2]);
        let delete = review("configurations", "DELETE", &Value::Null, &object);
        assert_eq!(subject(&parsed(&delete)), Subject::Nothing);
        let mut status = review("configurations", "UPDATE", &changed, &object);
        status["request"]["subResource"] = json!("status");
        assert_eq!(subject(&parsed(&status)), Subject::Nothing);
        assert_eq!(subject(&parsed(&review("pods", "CREATE", &object, &Value::Null))), Subject::Nothing);
    }

    #[test]
    fn bodies_that_are_no_request_are_refused_with_the_reason() {
        let mut old = review("configurations", "CREATE", &json!({"metadata": {}}), &Value::Null);
        old["apiVersion"] = json!("admission.k8s.io/v1beta1");
        let answer = json!({"apiVersion": VERSION, "kind": "AdmissionReview", "response": {"uid": "1", "allowed": true, "status": {}}});
        let deep = format!("{{\"x\":{}1{}}}", "[".repeat(500_000), "]".repeat(500_000));
        let mut groups = review("configurations", "CREATE", &json!({"metadata": {}}), &Value::Null);
        groups["request"]["userInfo"]["groups"] = json!(vec![""; 20_000]);
        for (body, reason) in [
            (String::new(), "the body is not an AdmissionReview"),
            ("{}".to_owned(), "the body is not an AdmissionReview"),
            (deep, "the body is not an AdmissionReview: missing field `apiVersion`"),
            (groups.to_string(), "the body is not an AdmissionReview: has 20005 objects, lists and members"),
            (
                old.to_string(),
                "expected kind AdmissionReview of admission.k8s.io/v1, not 'AdmissionReview' of 'admission",
            ),
            (answer.to_string(), "the AdmissionReview holds no request"),
        ] {
            let error = parse(body.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(reason), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            let _ = parse(&bytes).map(|request| check_alone(&request));
        }

        #[test]
        fn any_field_may_have_any_type(at in 0_usize..12, value in crate::testing::any_json()) {
            let object = json!({"metadata": {"name": "cam", "namespace": "lab"}, "spec": {}});
            let mut review = review("configurations", "UPDATE", &object, &object);
            let paths = [
                "/request", "/request/uid", "/request/kind", "/request/resource", "/request/operation", "/request/userInfo",
                "/request/object", "/request/oldObject", "/request/object/metadata", "/request/object/spec", "/kind",
                "/request/namespace",
            ];
            *review.pointer_mut(paths[at]).unwrap() = value;
            if let Ok(request) = parse(review.to_string().as_bytes()) {
                check_alone(&request);
            }
        }
    }
}
