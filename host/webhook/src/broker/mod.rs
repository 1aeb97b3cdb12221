//! Dry runs of what a Configuration makes the controller create, so that the API server names misspelled fields in its own
//! words: it knows the fields of its version, and this program does not.

mod objects;
mod unknown;

use std::time::Duration;

use akri_api::Configuration;
use futures::future::join_all;
use kube::api::DynamicObject;
use kube::core::Status;
use kube::{Client, Resource as _, ResourceExt as _};
use tokio::time::timeout;

use crate::review_outcome::{Finding, ReviewOutcome, reason};

pub(crate) use objects::broker_secrets;
use objects::{Expected, expected};

/// Time limit of a dry run.
const DRY_RUN_TIMEOUT: Duration = Duration::from_secs(3);

/// Codes with which an API server refuses an invalid object. With others it refuses its creation at this time.
const INVALID: [u16; 2] = [400, 422];

/// The beginning of a refusal by another webhook.
const OTHER_WEBHOOK: &str = "admission webhook ";

/// A part of the refusal of an address or a port of a Service that another one has.
const ALLOCATED: &str = "already allocated";

/// Dry-runs the Pod or Job and the Services of a Configuration, with the webhook's own account, which therefore may create them.
pub(crate) async fn check_brokers(client: &Client, dry_run: bool, configuration: &Configuration) -> ReviewOutcome {
    if !dry_run {
        return ReviewOutcome::default();
    }
    let namespace = configuration.namespace().unwrap_or_else(|| "default".to_owned());
    let outcomes = expected(configuration).into_iter().map(|object| check(client, &namespace, object));
    join_all(outcomes).await.into_iter().fold(ReviewOutcome::default(), ReviewOutcome::and)
}

async fn check(client: &Client, namespace: &str, expected: Expected) -> ReviewOutcome {
    match timeout(DRY_RUN_TIMEOUT, create(client, namespace, &expected)).await {
        Ok(Ok(stored)) => {
            let fields = unknown::dropped(&expected.spec, stored.data.get("spec"));
            ReviewOutcome::invalid(
                fields.into_iter().map(|path| Finding::new(expected.field_of(&path), "unknown field")),
            )
        }
        Ok(Err(kube::Error::Api(status))) => outcome_of_failure(&expected, &status),
        Ok(Err(error)) => unchecked(&expected, &reason(&error)),
        Err(_) => unchecked(&expected, "the API server did not answer in time"),
    }
}

/// Creates the object without storing it. Unknown fields are dropped by all versions in the same way: errors of strict decoding
/// would name them in the API server's own words, and only those of one object (rule 122).
async fn create(client: &Client, namespace: &str, expected: &Expected) -> kube::Result<DynamicObject> {
    let path = DynamicObject::url_path(&expected.resource, Some(namespace));
    let body = serde_json::to_vec(&expected.object()).map_err(kube::Error::SerdeError)?;
    let request = http::Request::post(format!("{path}?dryRun=All&fieldValidation=Ignore"));
    let request = request.header(http::header::CONTENT_TYPE, "application/json").body(body);
    client.request(request.map_err(kube::Error::HttpError)?).await
}

fn outcome_of_failure(expected: &Expected, status: &Status) -> ReviewOutcome {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    // Policies name no field. The address or port of a Service is taken by the one that was made before.
    let own = causes.iter().filter(|cause| cause.field.starts_with("spec") && !cause.message.contains(ALLOCATED));
    let own: Vec<Finding> =
        own.map(|cause| Finding::new(expected.field_of(&cause.field), cause.message.clone())).collect();
    match INVALID.contains(&status.code) && !status.message.starts_with(OTHER_WEBHOOK) {
        true if causes.is_empty() => ReviewOutcome::invalid([Finding::new(expected.field, status.message.clone())]),
        true if !own.is_empty() => ReviewOutcome::invalid(own),
        _ => unchecked(expected, &status.message),
    }
}

/// Returns a warning. The object may be valid: quotas, missing rights and other webhooks are no faults of the Configuration, and
/// their policies may be about what only the real object has.
fn unchecked(expected: &Expected, why: &str) -> ReviewOutcome {
    ReviewOutcome::warning(format!("{} could not be tried: {why}", expected.field))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::api;

    fn configuration(spec: Value) -> Configuration {
        let mut object =
            json!({"metadata": {"name": "cam", "namespace": "lab"}, "spec": {"discoveryHandler": {"name": "x"}}});
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn with_pod() -> Configuration {
        let pod =
            json!({"containers": [{"name": "b", "image": "b:1", "resources": {"limits": {"{{PLACEHOLDER}}": "2"}}}]});
        configuration(json!({"brokerSpec": {"brokerPodSpec": pod}}))
    }

    fn failure(code: u16, message: &str, causes: Value) -> (u16, Value) {
        let details = json!({"causes": causes});
        (code, json!({"kind": "Status", "status": "Failure", "message": message, "code": code, "details": details}))
    }

    #[tokio::test]
    async fn every_object_is_created_without_being_stored() {
        let (client, requests) = api(|_, _, body| (201, body.clone()));
        let service = json!({"ports": [{"port": 80}]});
        let job = json!({"template": {"spec": {"containers": []}}});
        let spec = json!({
            "brokerSpec": {"brokerJobSpec": job}, "instanceServiceSpec": service, "configurationServiceSpec": service,
        });
        assert_eq!(check_brokers(&client, true, &configuration(spec)).await, ReviewOutcome::default());
        let mut paths: Vec<String> = requests.lock().unwrap().iter().map(|(_, path, _)| path.clone()).collect();
        paths.sort();
        let query = "?dryRun=All&fieldValidation=Ignore";
        let services = format!("/api/v1/namespaces/lab/services{query}");
        assert_eq!(paths, [services.clone(), services, format!("/apis/batch/v1/namespaces/lab/jobs{query}")]);
    }

    #[tokio::test]
    async fn nothing_is_created_when_dry_runs_are_off() {
        let (client, requests) = api(|_, _, body| (201, body.clone()));
        assert_eq!(check_brokers(&client, false, &with_pod()).await, ReviewOutcome::default());
        assert!(requests.lock().unwrap().is_empty());
    }

    #[tokio::test] // rule 63
    async fn api_server_errors_are_named_in_the_configuration() {
        let cause =
            json!([{"field": "spec.containers[0].image", "message": "Required value", "reason": "FieldValueRequired"}]);
        let (client, _) = api(move |_, _, _| failure(422, "Pod is invalid", cause.clone()));
        let outcome = check_brokers(&client, true, &with_pod()).await;
        let expected = Finding::new("spec.brokerSpec.brokerPodSpec.containers[0].image", "Required value");
        assert_eq!(outcome.invalid, [expected]);
    }

    #[tokio::test] // rule 63, rule 122
    async fn field_dropped_by_the_api_server_is_unknown() {
        let (client, _) = api(|_, _, body| {
            let mut stored = body.clone();
            stored["spec"]["containers"][0].as_object_mut().unwrap().remove("image");
            (201, stored)
        });
        let outcome = check_brokers(&client, true, &with_pod()).await;
        let expected = Finding::new("spec.brokerSpec.brokerPodSpec.containers[0].image", "unknown field");
        assert_eq!(outcome.invalid, [expected]);
    }

    #[tokio::test] // rule 63
    async fn refusal_that_is_not_about_the_object_is_a_warning() {
        for code in [403, 404, 429, 500] {
            let (client, _) = api(move |_, _, _| failure(code, "exceeded quota", json!([])));
            let outcome = check_brokers(&client, true, &with_pod()).await;
            assert!(outcome.is_allowed() && outcome.warnings[0].contains("exceeded quota"), "{outcome:?}");
        }
        let taken = json!([{"field": "spec.ports[0].nodePort", "message": "provided port is already allocated"}]);
        for (code, message, causes) in [
            (422, "Service is invalid: port", taken),
            (400, "admission webhook \"x\" denied the request: no", json!([])),
            (422, "pods is forbidden: policy denied request: no", json!([{"field": "", "message": "no"}])),
        ] {
            let (client, _) = api(move |_, _, _| failure(code, message, causes.clone()));
            let outcome = check_brokers(&client, true, &with_pod()).await;
            assert!(outcome.is_allowed() && outcome.warnings[0].contains(message), "{outcome:?}");
        }
    }
}
