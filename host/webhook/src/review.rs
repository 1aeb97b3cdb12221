//! AdmissionReviews as they come in and as they go out.

use akri_api::validate;
use kube::api::{DynamicObject, TypeMeta};
use kube::core::admission::{AdmissionRequest, AdmissionReview, Operation};
use serde_json::Value;

use crate::configuration::read;
use crate::review_outcome::ReviewOutcome;

/// An object that someone wants to create or update.
pub type Request = AdmissionRequest<DynamicObject>;

/// The only version there is; `v1beta1` ended with Kubernetes 1.22.
const VERSION: &str = "admission.k8s.io/v1";

/// Reads the body of a request. Nesting is bounded by the JSON library.
///
/// # Errors
/// If it is not an AdmissionReview with a request.
pub fn parse(body: &[u8]) -> Result<Request, String> {
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_slice(body).map_err(|error| format!("the body is not an AdmissionReview: {error}"))?;
    if review.types.api_version != VERSION || review.types.kind != "AdmissionReview" {
        let TypeMeta { kind, api_version } = review.types;
        return Err(format!("expected kind AdmissionReview of {VERSION}, not '{kind}' of '{api_version}'"));
    }
    review.try_into().map_err(|_| "the AdmissionReview holds no request".to_owned())
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
    let is_subresource = request.sub_resource.as_deref().is_some_and(|name| !name.is_empty());
    let Some(object) = request.object.as_ref().filter(|_| is_write && !is_subresource) else { return Subject::Nothing };
    let spec = |object: &DynamicObject| object.data.get("spec").cloned().unwrap_or(Value::Null);
    let before = request.old_object.as_ref().filter(|_| request.operation == Operation::Update);
    let is_same = before.is_some_and(|before| spec(before) == spec(object));
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
    use serde_json::json;

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
        for (body, reason) in [
            (String::new(), "the body is not an AdmissionReview"),
            ("{}".to_owned(), "the body is not an AdmissionReview"),
            (deep, "the body is not an AdmissionReview: recursion limit exceeded"),
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
