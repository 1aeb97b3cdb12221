//! All checks of a Configuration. Cheap ones come first.

use akri_api::manifest::typed;
use akri_api::validate::FieldError;
use akri_api::{Configuration, validate};
use akri_model::names::LONG_CONFIGURATION_NAME;
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::join;

use crate::access::check_access;
use crate::broker::check_brokers;
use crate::components::Components;
use crate::review::{Request, parse_bounded};
use crate::review_outcome::{Finding, ReviewOutcome};

/// The dependencies of the checks.
#[derive(Clone)]
pub(crate) struct Checks {
    pub(crate) client: Client,
    pub(crate) components: Components,
    pub(crate) dry_run: bool,
}

/// Checks the Configuration of a request. Checks that depend on others follow only if it is valid in itself.
pub(crate) async fn check(checks: &Checks, request: &Request) -> ReviewOutcome {
    let configuration = match read(request, validate::configuration) {
        Ok(configuration) => configuration,
        Err(outcome) => return outcome,
    };
    let (details, brokers, access) = join!(
        checks.components.check_details(&checks.client, &configuration),
        check_brokers(&checks.client, checks.dry_run, &configuration),
        check_access(&checks.client, &request.user_info, &configuration),
    );
    name_warning(&configuration).and(details).and(brokers).and(access)
}

/// Returns the object of a request if it is valid in itself. Only `spec` is read: metadata is the API server's, and may have fields
/// that are newer than this program.
pub(crate) fn read<K: DeserializeOwned>(
    request: &Request,
    validate: impl Fn(&K) -> Vec<FieldError>,
) -> Result<K, ReviewOutcome> {
    let spec = request.object.as_ref().and_then(|object| object.spec.as_deref()).map_or(Ok(Value::Null), parse_bounded);
    let spec = spec.map_err(|error| ReviewOutcome::invalid([Finding::new("spec", error)]))?;
    let metadata = json!({"name": name(request), "namespace": request.namespace});
    let object = Value::Object([("metadata".to_owned(), metadata), ("spec".to_owned(), spec)].into_iter().collect());
    let object: K = typed(&object).map_err(ReviewOutcome::invalid)?;
    let errors = validate(&object);
    if errors.is_empty() { Ok(object) } else { Err(ReviewOutcome::invalid(errors)) }
}

/// Returns the name of the object. A request to create may leave the choice to the API server, which has chosen by now.
pub(crate) fn name(request: &Request) -> String {
    let chosen = request.object.as_ref().and_then(|object| object.metadata.name.clone());
    chosen.unwrap_or_else(|| request.name.clone())
}

fn name_warning(configuration: &Configuration) -> ReviewOutcome {
    let length = configuration.metadata.name.as_deref().unwrap_or_default().len();
    if length <= LONG_CONFIGURATION_NAME {
        return ReviewOutcome::default();
    }
    ReviewOutcome::warning(format!(
        "metadata.name has {length} characters: devices whose short hashes are equal cannot be told apart by longer ones \
         above {LONG_CONFIGURATION_NAME}"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::review::parse;
    use crate::testing::{any_json, api, no_components, review};

    fn request(spec: &Value) -> Request {
        let object = json!({"metadata": {"name": "cam", "namespace": "lab"}, "spec": spec});
        parse(review("configurations", "CREATE", &object, &Value::Null).to_string().as_bytes()).unwrap()
    }

    fn checks(client: Client) -> Checks {
        Checks { client, components: no_components(), dry_run: true }
    }

    async fn outcome(spec: &Value) -> ReviewOutcome {
        let allow = |_: &str, _: &str, body: &Value| (201, body.clone());
        check(&checks(api(allow).0), &request(spec)).await
    }

    #[tokio::test]
    async fn valid_configuration_is_accepted() {
        let spec = json!({"discoveryHandler": {"name": "udev"}, "brokerSpec": {"brokerPodSpec": {"containers": []}}});
        assert_eq!(outcome(&spec).await, ReviewOutcome::default());
    }

    #[tokio::test] // rule 63
    async fn invalid_configuration_names_its_fields() {
        for (spec, field, message) in [
            (Value::Null, "spec", "invalid type"),
            (json!({}), "spec", "missing field `discoveryHandler`"),
            (json!({"discoveryHandler": vec![json!({}); 10_000]}), "spec", "has 20001 objects, lists and members"),
            (json!({"discoveryHandler": {"name": "udev"}, "capacity": 0}), "spec.capacity", "0 is not between"),
            (json!({"discoveryHandler": {"name": "udev"}, "capacity": "two"}), "spec.capacity", "invalid type"),
            (
                json!({"discoveryHandler": {"name": "udev"}, "brokerPodSpec": {}}),
                "spec.brokerPodSpec",
                "unknown field; today it is spec.brokerSpec.brokerPodSpec",
            ),
        ] {
            let found = outcome(&spec).await;
            let [Finding { field: named, message: found_message }] = found.invalid.as_slice() else {
                panic!("{found:?}")
            };
            assert!(named == field && found_message.starts_with(message), "{named}: {found_message}");
        }
    }

    #[tokio::test] // rule 63
    async fn invalid_configuration_causes_no_requests() {
        let (client, requests) = api(|_, _, body| (201, body.clone()));
        let spec = json!({"discoveryHandler": {"name": ""}, "brokerSpec": {"brokerPodSpec": {}}});
        assert!(!check(&checks(client), &request(&spec)).await.is_allowed());
        assert!(requests.lock().unwrap().is_empty());
    }

    #[test]
    fn long_name_is_a_warning() {
        let mut configuration = Configuration::default();
        configuration.metadata.name = Some("c".repeat(52));
        assert_eq!(name_warning(&configuration), ReviewOutcome::default());
        configuration.metadata.name = Some("c".repeat(53));
        assert_eq!(name_warning(&configuration).warnings.len(), 1);
    }

    proptest! {
        #[test] // rule 63
        fn any_spec_gets_an_outcome(spec in any_json(), field in 0_usize..6, value in any_json()) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(outcome(&spec));
            let fields = ["capacity", "brokerSpec", "instanceServiceSpec", "brokerProperties", "resources", "discoveryHandler"];
            let mut spec = json!({"discoveryHandler": {"name": "udev"}});
            spec[fields[field]] = value;
            runtime.block_on(outcome(&spec));
        }
    }
}
