//! Start, upkeep and end of the webhook.

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use akri_kube::http::bind;
use akri_sandbox::{Host, HostConfig};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::certificate::{CertificateSource, Material, ServingCertificate, certified_key, service_names};
use crate::components::Components;
use crate::configuration::Checks;
use crate::registration::{is_due, read_secret, register, write_secret};
use crate::server;

/// Pause between two checks of the certificate and the registration.
const UPKEEP: Duration = Duration::from_secs(15);
/// Pause after a failure, and while the API server learns of a new certificate.
const RETRY: Duration = Duration::from_secs(3);
/// Pause between two checks of the components.
const REFRESH: Duration = Duration::from_secs(30);

/// The settings of the webhook.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// The address for reviews, health and metrics.
    pub listen: SocketAddr,
    /// The source of the certificate.
    pub certificate: CertificateSource,
    /// The ValidatingWebhookConfiguration that gets the certificates to trust, if they are made here.
    pub registration: Option<String>,
    /// Directory of components that are asked about details.
    pub components: PathBuf,
    /// The settings of the processes in which components are compiled and run. Details are all that components are asked about:
    /// nothing of the node is needed, and nothing granted.
    pub host: HostConfig,
    /// Set if brokers and Services are dry-run. Otherwise mistakes in them show when the controller creates the first one.
    pub dry_run: bool,
}

/// The reason why the webhook can't run, or its certificate or registration is not up to date.
pub type WebhookError = Box<dyn Error + Send + Sync>;

/// Runs until `stop` ends; requests under way are finished.
///
/// # Errors
/// If it cannot start. From then on failures are logged and what failed is tried again.
pub async fn run(
    client: Client,
    settings: WebhookSettings,
    stop: impl Future<Output = ()>,
) -> Result<(), WebhookError> {
    let address = settings.listen;
    let listener = bind(address).await?;
    info!(address = %listener.local_addr().unwrap_or(address), "the webhook listens");
    let components = Components::new(
        Host::new(settings.host.clone()).map_err(|error| format!("components cannot be run: {error}"))?,
        settings.components.clone(),
    );
    let certificate = ServingCertificate::default();
    let loaded = Arc::new(AtomicBool::new(false));
    let (serving, all_loaded) = (certificate.clone(), loaded.clone());
    let is_ready = move || serving.is_set() && all_loaded.load(Ordering::Relaxed);
    let checks = Checks { client: client.clone(), components: components.clone(), dry_run: settings.dry_run };
    let router = server::router(checks, is_ready);
    let served = server::serve(
        listener,
        server::tls(certificate.clone()).map_err(|error| format!("TLS cannot be set up: {error}"))?,
        router,
        stop,
    );
    tokio::select! {
        () = served => {}
        () = refresh(components, &loaded) => {}
        () = keep(client, settings, certificate) => {}
    }
    Ok(())
}

async fn refresh(components: Components, loaded: &AtomicBool) {
    loop {
        components.refresh().await;
        loaded.store(true, Ordering::Relaxed);
        sleep(REFRESH).await;
    }
}

/// Keeps the certificate and the registration as they should be.
async fn keep(client: Client, settings: WebhookSettings, serving: ServingCertificate) {
    loop {
        let pause = match upkeep(&client, &settings, &serving).await {
            Ok(true) => UPKEEP,
            Ok(false) => RETRY,
            Err(error) => {
                warn!(%error, "the webhook's certificate or registration is not up to date; retrying");
                RETRY
            }
        };
        sleep(pause).await;
    }
}

/// Checks the certificate and the registration. Returns false if an object was written: the next check shows whether it is there.
async fn upkeep(
    client: &Client,
    settings: &WebhookSettings,
    serving: &ServingCertificate,
) -> Result<bool, WebhookError> {
    let (key, bundle) = match &settings.certificate {
        CertificateSource::Files { certificate, key } => (certified_key(&read(certificate)?, &read(key)?)?, None),
        CertificateSource::Secret { name, service, lifetime } => {
            let secrets = Api::namespaced(client.clone(), &service.namespace);
            let names = service_names(&service.namespace, &service.name);
            let Some(material) = current(&secrets, name, &names, *lifetime).await? else { return Ok(false) };
            (material.certified_key()?, Some(material.bundle))
        }
    };
    let is_registered = match (&settings.registration, bundle) {
        (Some(name), Some(bundle)) => register(client, name, &bundle).await?,
        _ => true,
    };
    // A first certificate has none before it that could serve until the new one is known.
    if (is_registered || !serving.is_set()) && !serving.is(&key) {
        serving.set(key);
        info!("serving with a new certificate");
    }
    Ok(is_registered)
}

/// The certificate in the Secret. None: it was just renewed, or another replica did.
async fn current(
    secrets: &Api<Secret>,
    name: &str,
    names: &[String],
    lifetime: Duration,
) -> Result<Option<Material>, WebhookError> {
    let (object, stored) = read_secret(secrets, name).await?;
    let now = SystemTime::now();
    if !is_due(stored.as_ref(), names, now, lifetime) {
        return Ok(stored);
    }
    let previous = stored.filter(|stored| stored.is_good(names, now));
    let made = Material::make(names, now, lifetime, previous.as_ref())?;
    if write_secret(secrets, object, &made).await? {
        info!(days = lifetime.as_secs() / 86_400, "made a new certificate");
    }
    Ok(None)
}

fn read(path: &Path) -> Result<Vec<u8>, WebhookError> {
    std::fs::read(path).map_err(|source| format!("cannot read '{}': {source}", path.display()).into())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use akri_model::names::Key;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{api, host_config};

    fn settings(certificate: CertificateSource) -> WebhookSettings {
        WebhookSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            certificate,
            registration: Some("akri".to_owned()),
            components: "/nonexistent".into(),
            host: host_config("/nonexistent".as_ref()),
            dry_run: false,
        }
    }

    /// An API server with the Secret and the registration, which stores what is written.
    fn cluster() -> (Client, Arc<Mutex<[Value; 2]>>) {
        let secret = json!({"metadata": {"name": "tls", "resourceVersion": "1"}});
        let webhook =
            json!({"name": "a.akri.sh", "clientConfig": {}, "sideEffects": "None", "admissionReviewVersions": ["v1"]});
        let registration = json!({"metadata": {"name": "akri", "resourceVersion": "1"}, "webhooks": [webhook]});
        let state = Arc::new(Mutex::new([secret, registration]));
        let stored = state.clone();
        let (client, _) = api(move |method, path, body| {
            let mut objects = stored.lock().unwrap();
            let object = &mut objects[usize::from(!path.contains("/secrets/"))];
            match method {
                "PUT" => *object = body.clone(),
                "PATCH" => object["webhooks"][0]["clientConfig"]["caBundle"] = body[1]["value"].clone(),
                _ => {}
            }
            (200, object.clone())
        });
        (client, state)
    }

    fn in_secret(lifetime: Duration) -> WebhookSettings {
        let service = Key::new("akri-system", "akri-webhook");
        settings(CertificateSource::Secret { name: "tls".to_owned(), service, lifetime })
    }

    #[tokio::test]
    async fn certificate_is_made_registered_and_served_in_this_order() {
        let (client, state) = cluster();
        let (settings, serving) = (in_secret(Duration::from_hours(1)), ServingCertificate::default());
        let check = async || upkeep(&client, &settings, &serving).await.unwrap();
        assert_eq!((check().await, serving.is_set()), (false, false), "made");
        assert!(state.lock().unwrap()[0]["data"]["tls.key"].is_string());
        assert_eq!((check().await, serving.is_set()), (false, true), "registered, and there is no other to serve");
        assert!(check().await);
    }

    #[tokio::test] // rule 63
    async fn renewed_certificate_waits_until_the_api_server_trusts_it() {
        let (client, state) = cluster();
        let (settings, serving) = (in_secret(Duration::from_hours(1)), ServingCertificate::default());
        let check = async |settings: &WebhookSettings| upkeep(&client, settings, &serving).await.unwrap();
        for _ in 0..3 {
            check(&settings).await;
        }
        let key = |state: &Mutex<[Value; 2]>| state.lock().unwrap()[0]["data"]["tls.crt"].clone();
        let before = key(&state);
        // With a lifetime that is so much longer a third of it is not left any more.
        let longer = in_secret(Duration::from_hours(24));
        assert!(!check(&longer).await);
        assert_ne!(key(&state), before);
        let old = serving.current().unwrap();
        assert!(!check(&longer).await, "only registered");
        assert!(serving.is(&old));
        assert!(check(&longer).await);
        assert!(!serving.is(&old));
    }

    #[tokio::test] // rule 63
    async fn files_are_read_again_and_bad_ones_do_not_replace_good_ones() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = (directory.path().join("tls.crt"), directory.path().join("tls.key"));
        let write = |material: &Material| {
            std::fs::write(&certificate, &material.certificate).unwrap();
            std::fs::write(&key, &material.key).unwrap();
        };
        let settings = settings(CertificateSource::Files { certificate: certificate.clone(), key: key.clone() });
        let (client, state) = cluster();
        let serving = ServingCertificate::default();
        let check = async || upkeep(&client, &settings, &serving).await;
        assert!(check().await.unwrap_err().to_string().contains("tls.crt"));
        let make = || Material::make(&["w".to_owned()], SystemTime::now(), Duration::from_hours(1), None).unwrap();
        let (first, second) = (make(), make());
        write(&first);
        assert!(check().await.unwrap());
        assert!(serving.is(&first.certified_key().unwrap()));
        std::fs::write(&key, &second.key).unwrap();
        assert!(check().await.unwrap_err().to_string().contains("the private key cannot be used"));
        assert!(serving.is(&first.certified_key().unwrap()));
        write(&second);
        check().await.unwrap();
        assert!(serving.is(&second.certified_key().unwrap()));
        assert!(state.lock().unwrap()[1]["webhooks"][0]["clientConfig"]["caBundle"].is_null(), "not ours to write");
    }
}
