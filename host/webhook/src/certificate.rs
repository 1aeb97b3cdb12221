//! The certificate the webhook serves with: made and renewed by itself and shared by its replicas through a Secret, or read
//! from files that somebody else renews.
//!
//! The API server trusts exactly the certificates in the bundle: the one in use and the one before it. A renewed certificate
//! is served only after the bundle that the API server has holds it, so that no request meets a certificate it does not know.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, date_time_ymd};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use crate::run::WebhookError;

/// Clocks of nodes differ.
const SKEW: Duration = Duration::from_secs(300);

/// The source of the certificate.
#[derive(Debug, Clone)]
pub enum CertificateSource {
    /// Files in PEM, read again when they change.
    Files {
        /// The chain, the own certificate first.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// Made here, and kept in a Secret.
    Secret {
        /// The Secret's name, in the Service's namespace. It has to exist.
        name: String,
        /// The Service that leads to the webhook, as namespace and name.
        service: akri_model::names::Key,
        /// The lifetime of a certificate. It is renewed when a third of that is left.
        lifetime: Duration,
    },
}

/// A certificate with its key and what trusts it, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Material {
    pub(crate) certificate: String,
    pub(crate) key: String,
    /// The certificates that the API server has to trust: this one and the one before it.
    pub(crate) bundle: String,
}

/// The names by which API servers call a Service.
pub(crate) fn service_names(namespace: &str, name: &str) -> Vec<String> {
    [format!("{name}.{namespace}.svc"), format!("{name}.{namespace}.svc.cluster.local"), format!("{name}.{namespace}")]
        .into()
}

impl Material {
    /// Makes a certificate for these names, which is its own authority. `previous` stays trusted.
    pub(crate) fn make(
        names: &[String],
        now: SystemTime,
        lifetime: Duration,
        previous: Option<&Self>,
    ) -> Result<Self, WebhookError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        params.not_before = date_time_ymd(1970, 1, 1) + since_epoch.saturating_sub(SKEW);
        params.not_after = date_time_ymd(1970, 1, 1) + since_epoch + lifetime;
        params.distinguished_name.push(DnType::CommonName, names.first().map_or("akri-webhook", String::as_str));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.self_signed(&key)?.pem();
        let trusted = previous.map(|previous| previous.certificate.as_str()).unwrap_or_default();
        Ok(Self { bundle: format!("{certificate}{trusted}"), certificate, key: key.serialize_pem() })
    }

    /// Returns whether an API server that trusts the bundle accepts this certificate for all names at a moment, and the
    /// key belongs to it.
    pub(crate) fn is_good(&self, names: &[String], at: SystemTime) -> bool {
        self.certified_key().is_ok() && verify(self, names, at).is_some()
    }

    /// Returns the certificate and key for TLS.
    pub(crate) fn certified_key(&self) -> Result<Arc<CertifiedKey>, WebhookError> {
        certified_key(self.certificate.as_bytes(), self.key.as_bytes())
    }
}

/// A chain and its key for TLS, if they belong together.
pub(crate) fn certified_key(certificate: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, WebhookError> {
    let chain = certificates(certificate)?;
    let failed = |error: &dyn Display| format!("the private key cannot be used: {error}");
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| failed(&error))?;
    let key = CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| failed(&error))?;
    Ok(Arc::new(key))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, WebhookError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|error| format!("the certificate is not PEM: {error}"))?;
    if chain.is_empty() { Err("the certificate is not PEM: it holds no certificate".into()) } else { Ok(chain) }
}

fn verify(material: &Material, names: &[String], at: SystemTime) -> Option<()> {
    let mut roots = RootCertStore::empty();
    for trusted in certificates(material.bundle.as_bytes()).ok()? {
        roots.add(trusted).ok()?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().ok()?;
    let certificate = certificates(material.certificate.as_bytes()).ok()?.into_iter().next()?;
    let at = UnixTime::since_unix_epoch(at.duration_since(UNIX_EPOCH).ok()?);
    for name in names {
        let name = ServerName::try_from(name.as_str()).ok()?;
        verifier.verify_server_cert(&certificate, &[], &name, &[], at).ok()?;
    }
    Some(())
}

/// The certificate that new connections get. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServingCertificate(watch::Sender<Option<Arc<CertifiedKey>>>);

impl ServingCertificate {
    /// Replaces the certificate of new connections.
    pub(crate) fn set(&self, key: Arc<CertifiedKey>) {
        self.0.send_replace(Some(key));
    }

    /// The one in use.
    pub(crate) fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().clone()
    }

    /// Returns whether there is one.
    pub(crate) fn is_set(&self) -> bool {
        self.current().is_some()
    }

    /// Returns whether it is this one.
    pub(crate) fn is(&self, key: &CertifiedKey) -> bool {
        self.current().is_some_and(|own| own.cert == key.cert)
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn names() -> Vec<String> {
        service_names("akri-system", "akri-webhook")
    }

    #[test]
    fn certificate_is_good_for_its_names_and_its_time() {
        let made = Material::make(&names(), now(), DAY * 90, None).unwrap();
        assert!(made.is_good(&names(), now()) && made.is_good(&names(), now() + DAY * 89));
        assert!(!made.is_good(&names(), now() + DAY * 91), "expired");
        assert!(!made.is_good(&names(), now() - DAY), "not yet");
        assert!(!made.is_good(&service_names("akri-system", "other"), now()), "another Service");
    }

    #[test] // rule 63
    fn previous_certificate_stays_trusted_and_no_older_one() {
        let first = Material::make(&names(), now(), DAY, None).unwrap();
        let second = Material::make(&names(), now(), DAY, Some(&first)).unwrap();
        let third = Material::make(&names(), now(), DAY, Some(&second)).unwrap();
        let served = |old: &Material, bundle: &str| Material { bundle: bundle.to_owned(), ..old.clone() };
        assert!(served(&first, &second.bundle).is_good(&names(), now()));
        assert!(served(&second, &third.bundle).is_good(&names(), now()));
        assert!(!served(&first, &third.bundle).is_good(&names(), now()));
    }

    #[test]
    fn parts_of_different_certificates_are_not_good() {
        let (one, other) = (Material::make(&names(), now(), DAY, None), Material::make(&names(), now(), DAY, None));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert!(!Material { key: other.key, ..one.clone() }.is_good(&names(), now()));
        assert!(!Material { bundle: other.bundle, ..one.clone() }.is_good(&names(), now()));
        for text in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(!Material { certificate: text.to_owned(), ..one.clone() }.is_good(&names(), now()));
            assert!(!Material { key: text.to_owned(), ..one.clone() }.is_good(&names(), now()));
            assert!(!Material { bundle: text.to_owned(), ..one.clone() }.is_good(&names(), now()));
        }
    }
}
