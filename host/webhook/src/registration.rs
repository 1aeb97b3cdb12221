//! The ValidatingWebhookConfiguration, which registers the webhook with the API server: the certificates to trust. Everything else
//! stays as it was written (rule 120).

use std::time::SystemTime;

use akri_kube::json_patch::{add, test};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::certificate::Material;
use crate::run::WebhookError;

/// Keys of the Secret, as cert-manager names them.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const BUNDLE: &str = "ca.crt";

/// Reads the Secret that replicas share. None inside: it holds no certificate yet.
pub(crate) async fn read_secret(secrets: &Api<Secret>, name: &str) -> Result<(Secret, Option<Material>), WebhookError> {
    let secret = secrets.get(name).await.map_err(|error| format!("the Secret '{name}' cannot be read: {error}"))?;
    let material = material(&secret);
    Ok((secret, material))
}

fn material(secret: &Secret) -> Option<Material> {
    let text = |key: &str| String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok();
    Some(Material { certificate: text(CERTIFICATE)?, key: text(KEY)?, bundle: text(BUNDLE)? })
}

/// Stores a certificate in the Secret. False: another replica was faster.
pub(crate) async fn write_secret(
    secrets: &Api<Secret>,
    mut secret: Secret,
    material: &Material,
) -> Result<bool, WebhookError> {
    let entries = [(CERTIFICATE, &material.certificate), (KEY, &material.key), (BUNDLE, &material.bundle)];
    let data = secret.data.get_or_insert_default();
    for (key, text) in entries {
        data.insert(key.to_owned(), ByteString(text.clone().into_bytes()));
    }
    secret.metadata.managed_fields = None;
    // With the resourceVersion it was read with: a conflict is another replica's certificate.
    match secrets.replace(&secret.name_any(), &PostParams::default(), &secret).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(format!("the Secret '{}' cannot be written: {error}", secret.name_any()).into()),
    }
}

/// Returns whether a certificate has to be replaced: there is none, it is wrong, or a third of its lifetime or less is
/// left.
pub(crate) fn is_due(
    material: Option<&Material>,
    names: &[String],
    now: SystemTime,
    lifetime: std::time::Duration,
) -> bool {
    material.is_none_or(|material| !material.is_good(names, now) || !material.is_good(names, now + lifetime / 3))
}

/// Writes the bundle of certificates to trust into the ValidatingWebhookConfiguration. True: it was there already.
pub(crate) async fn register(client: &Client, name: &str, bundle: &str) -> Result<bool, WebhookError> {
    let failed = |done| {
        move |error: kube::Error| format!("the ValidatingWebhookConfiguration '{name}' cannot be {done}: {error}")
    };
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let registered = api.get(name).await.map_err(failed("read"))?;
    let changes = changes(&registered, bundle);
    if changes.is_empty() {
        return Ok(true);
    }
    let version = test("/metadata/resourceVersion", &registered.metadata.resource_version);
    let operations: Vec<Value> = std::iter::once(version).chain(changes).collect();
    let patch = serde_json::from_value(Value::Array(operations)).map_err(kube::Error::SerdeError);
    let patch: Patch<()> = Patch::Json(patch.map_err(failed("changed"))?);
    api.patch(name, &PatchParams::default(), &patch).await.map_err(failed("changed"))?;
    Ok(false)
}

/// The operations that are missing, for each webhook.
fn changes(registered: &ValidatingWebhookConfiguration, bundle: &str) -> Vec<Value> {
    let bundle = ByteString(bundle.as_bytes().to_vec());
    let webhooks = registered.webhooks.iter().flatten().enumerate();
    let outdated = webhooks.filter(|(_, webhook)| webhook.client_config.ca_bundle.as_ref() != Some(&bundle));
    outdated.map(|(index, _)| add(&format!("/webhooks/{index}/clientConfig/caBundle"), json!(bundle))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::certificate::service_names;
    use crate::testing::api;

    fn registered(bundle: Option<&str>) -> Value {
        let bundle = bundle.map(|bundle| ByteString(bundle.as_bytes().to_vec()));
        let webhook = |name: &str| {
            json!({
                "name": name, "clientConfig": {"caBundle": bundle}, "failurePolicy": "Ignore", "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            })
        };
        json!({"metadata": {"name": "akri", "resourceVersion": "7"}, "webhooks": [webhook("a.akri.sh"), webhook("b.akri.sh")]})
    }

    #[tokio::test] // rule 120
    async fn webhooks_get_the_bundle_alone_unless_the_object_changed() {
        let (client, requests) = api(|_, _, _| (200, registered(None)));
        assert!(!register(&client, "akri", "PEM").await.unwrap());
        let (method, _, patch) = requests.lock().unwrap()[1].clone();
        assert_eq!(method, "PATCH");
        assert_eq!(
            patch,
            json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
                {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "UEVN"},
                {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": "UEVN"},
            ])
        );
    }

    #[tokio::test]
    async fn current_registration_is_not_written_again() {
        let (client, requests) = api(|_, _, _| (200, registered(Some("PEM"))));
        assert!(register(&client, "akri", "PEM").await.unwrap());
        assert_eq!(requests.lock().unwrap().len(), 1);
    }

    #[tokio::test] // rule 63
    async fn another_replicas_certificate_is_not_overwritten() {
        let secret = json!({"metadata": {"name": "tls", "namespace": "akri-system", "resourceVersion": "3"}});
        let conflict = json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409});
        let answer = secret.clone();
        let (client, requests) =
            api(move |method, _, _| if method == "GET" { (200, answer.clone()) } else { (409, conflict.clone()) });
        let secrets = Api::namespaced(client, "akri-system");
        let (object, material) = read_secret(&secrets, "tls").await.unwrap();
        assert!(material.is_none());
        let made = Material::make(&service_names("akri-system", "w"), SystemTime::now(), Duration::from_hours(1), None)
            .unwrap();
        assert!(!write_secret(&secrets, object, &made).await.unwrap());
        let sent = requests.lock().unwrap()[1].2.clone();
        assert_eq!(sent["metadata"]["resourceVersion"], "3");
        assert_eq!(sent["data"].as_object().unwrap().len(), 3);
    }

    #[test]
    fn certificate_is_renewed_in_the_last_third_of_its_life() {
        let (names, now) = (service_names("akri-system", "w"), UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        let life = Duration::from_hours(90);
        let made = Material::make(&names, now, life, None).unwrap();
        let due = |hours: u64| is_due(Some(&made), &names, now + Duration::from_hours(hours), life);
        assert_eq!([due(0), due(59), due(61), due(91)], [false, false, true, true]);
        assert!(is_due(None, &names, now, life));
        assert!(is_due(Some(&made), &service_names("akri-system", "renamed"), now, life));
    }
}
