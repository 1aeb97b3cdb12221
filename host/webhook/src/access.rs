//! Checks that the user may read the referenced Secrets, since the agent reads them on the user's behalf.

use std::collections::BTreeMap;

use akri_api::Configuration;
use futures::future::ready;
use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};

use crate::broker::broker_secrets;
use crate::review_outcome::{Finding, ReviewOutcome, reason};

/// Secrets that one Configuration may reference: each is a request to the API server.
const SECRETS: usize = 64;
/// Requests at once.
const PARALLEL: usize = 8;

/// Secrets by namespace and name, each with the first field that references it.
type References = BTreeMap<(String, String), String>;

/// Asks the API server for each referenced Secret whether the user may read it. Without an answer the object is refused.
pub(crate) async fn check_access(client: &Client, user: &UserInfo, configuration: &Configuration) -> ReviewOutcome {
    let references = references(configuration);
    if references.len() > SECRETS {
        let message = format!("references {} Secrets, more than {SECRETS}", references.len());
        return ReviewOutcome::invalid([Finding::new("spec", message)]);
    }
    let refusals = stream::iter(references)
        .map(|((namespace, name), field)| async move { refusal(client, user, &namespace, &name, &field).await });
    let forbidden = refusals.buffered(PARALLEL).filter_map(ready).collect().await;
    ReviewOutcome { forbidden, ..ReviewOutcome::default() }
}

fn references(configuration: &Configuration) -> References {
    let properties = configuration.spec.discovery_handler.discovery_properties.iter().flatten().enumerate();
    let of_properties = properties.filter_map(|(index, property)| {
        let secret = property.value_from.as_ref()?.secret_key_ref.as_ref()?;
        let namespace = secret.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let field = format!("spec.discoveryHandler.discoveryProperties[{index}].valueFrom.secretKeyRef");
        Some(((namespace, secret.name.clone()), field))
    });
    let own = configuration.namespace().unwrap_or_else(|| "default".to_owned());
    let of_brokers = broker_secrets(configuration).into_iter().map(|(field, name)| ((own.clone(), name), field));
    let mut found = References::new();
    of_properties.chain(of_brokers).for_each(|(secret, field)| {
        found.entry(secret).or_insert(field);
    });
    found
}

async fn refusal(client: &Client, user: &UserInfo, namespace: &str, name: &str, field: &str) -> Option<Finding> {
    let who = user.username.as_deref().unwrap_or_default();
    let reviews = Api::<SubjectAccessReview>::all(client.clone());
    let message = match reviews.create(&PostParams::default(), &access_review(user, namespace, name)).await {
        Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => return None,
        Ok(_) => format!(
            "user '{who}' may not get the Secret '{name}' in namespace '{namespace}'; who references a Secret has to be \
             allowed to read it"
        ),
        Err(error) => format!(
            "could not find out whether user '{who}' may get the Secret '{name}' in namespace '{namespace}': {}; try again",
            reason(&error)
        ),
    };
    Some(Finding::new(field, message))
}

fn access_review(user: &UserInfo, namespace: &str, name: &str) -> SubjectAccessReview {
    let attributes = ResourceAttributes {
        namespace: Some(namespace.to_owned()),
        verb: Some("get".to_owned()),
        version: Some("v1".to_owned()),
        resource: Some("secrets".to_owned()),
        name: Some(name.to_owned()),
        ..ResourceAttributes::default()
    };
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::api;

    fn configuration(properties: &Value, broker: &Value) -> Configuration {
        let spec = json!({
            "discoveryHandler": {"name": "onvif", "discoveryProperties": properties}, "brokerSpec": broker,
        });
        serde_json::from_value(json!({"metadata": {"name": "cam", "namespace": "lab"}, "spec": spec})).unwrap()
    }

    fn secret(name: &str, namespace: Option<&str>) -> Value {
        json!({"name": "p", "valueFrom": {"secretKeyRef": {"name": name, "namespace": namespace, "key": "k"}}})
    }

    fn user() -> UserInfo {
        let user = json!({"username": "jo", "uid": "7", "groups": ["operators"], "extra": {"scopes": ["a", "b"]}});
        serde_json::from_value(user).unwrap()
    }

    fn allow(except: &'static str) -> impl Fn(&str, &str, &Value) -> (u16, Value) {
        move |_, _, body| {
            let mut answer = body.clone();
            answer["status"] = json!({"allowed": body["spec"]["resourceAttributes"]["name"] != except});
            (201, answer)
        }
    }

    #[tokio::test] // rule 63
    async fn access_review_is_about_the_user_of_the_request() {
        let (client, requests) = api(allow(""));
        let configuration =
            configuration(&json!([secret("login", Some("vault")), secret("other", None)]), &Value::Null);
        assert_eq!(check_access(&client, &user(), &configuration).await, ReviewOutcome::default());
        let requests = requests.lock().unwrap();
        let spec = |index: usize| &requests[index].2["spec"];
        assert_eq!(requests[0].1, "/apis/authorization.k8s.io/v1/subjectaccessreviews?");
        for (field, value) in [
            ("user", json!("jo")),
            ("uid", json!("7")),
            ("groups", json!(["operators"])),
            ("extra", json!({"scopes": ["a", "b"]})),
        ] {
            assert_eq!(spec(0)[field], value);
        }
        let attributes = |index: usize, field: &str| spec(index)["resourceAttributes"][field].clone();
        assert_eq!([attributes(0, "namespace"), attributes(0, "name")], [json!("default"), json!("other")]);
        assert_eq!([attributes(1, "namespace"), attributes(1, "verb")], [json!("vault"), json!("get")]);
    }

    #[tokio::test]
    async fn secret_the_user_may_not_read_is_refused_by_field() {
        let (client, _) = api(allow("login"));
        let configuration = configuration(&json!([{"name": "a", "value": ""}, secret("login", None)]), &Value::Null);
        let outcome = check_access(&client, &user(), &configuration).await;
        let [Finding { field, message }] = outcome.forbidden.as_slice() else { panic!("{outcome:?}") };
        assert_eq!(field, "spec.discoveryHandler.discoveryProperties[1].valueFrom.secretKeyRef");
        assert!(message.starts_with("user 'jo' may not get the Secret 'login' in namespace 'default'"), "{message}");
    }

    #[tokio::test] // rule 63
    async fn no_answer_is_a_refusal() {
        let (client, _) =
            api(|_, _, _| (500, json!({"kind": "Status", "status": "Failure", "message": "down", "code": 500})));
        let outcome =
            check_access(&client, &user(), &configuration(&json!([secret("login", None)]), &Value::Null)).await;
        assert!(outcome.forbidden[0].message.contains("down; try again"), "{outcome:?}");
    }

    #[tokio::test] // rule 63
    async fn secrets_of_brokers_count_and_each_is_reviewed_once() {
        let (client, requests) = api(allow("pull"));
        let pod = json!({
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [
                {"name": "a", "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
                {"name": "b", "envFrom": [{"secretRef": {"name": "s"}}]},
            ],
        });
        let outcome = check_access(&client, &user(), &configuration(&json!([]), &json!({"brokerPodSpec": pod}))).await;
        assert_eq!(outcome.forbidden[0].field, "spec.brokerSpec.brokerPodSpec.imagePullSecrets[0]");
        assert_eq!(requests.lock().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn there_are_not_more_questions_than_a_request_has_time_for() {
        let (client, requests) = api(allow(""));
        let many: Vec<Value> = (0..65).map(|n| secret(&format!("s{n}"), None)).collect();
        let outcome = check_access(&client, &user(), &configuration(&json!(many), &Value::Null)).await;
        assert_eq!(outcome.invalid[0].message, "references 65 Secrets, more than 64");
        assert!(requests.lock().unwrap().is_empty());
    }
}
