//! Authentication of HTTPS servers.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use akri_model::grant::Tls;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use wasmtime_wasi_http::Error;

/// TLS for all requests: what the node trusts is read when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    system: OnceCell<Arc<ClientConfig>>,
}

impl Trust {
    /// Makes sure of the server that was dialled, by its name if it has one.
    pub(crate) async fn secure(
        &self,
        stream: TcpStream,
        name: Option<&str>,
        address: IpAddr,
        tls: &Tls,
    ) -> Result<TlsStream<TcpStream>, Error> {
        let config = match tls {
            Tls::System => self.system.get_or_try_init(system).await?.clone(),
            Tls::CaBundle(bundle) => trusting(authorities(bundle))?,
            Tls::Fingerprints(fingerprints) => verified_by(Pinned::to(Some(fingerprints.clone())))?,
            Tls::Insecure => verified_by(Pinned::to(None))?,
        };
        let name = server_name(name, address, tls)?;
        TlsConnector::from(config).connect(name, stream).await.map_err(why)
    }
}

/// Returns the name that a certificate has to contain. A certificate that is pinned may contain any, so that a name that
/// TLS can't carry does no harm.
fn server_name(name: Option<&str>, address: IpAddr, tls: &Tls) -> Result<ServerName<'static>, Error> {
    let address = ServerName::from(address);
    match name.map(|name| ServerName::try_from(name.to_owned())) {
        None => Ok(address),
        Some(Ok(name)) => Ok(name),
        Some(Err(_)) if matches!(tls, Tls::Fingerprints(_) | Tls::Insecure) => Ok(address),
        Some(Err(_)) => Err(Error::TlsCertificateError),
    }
}

async fn system() -> Result<Arc<ClientConfig>, Error> {
    let read = tokio::task::spawn_blocking(|| {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            tracing::warn!("the node trusts no certificate authority: {:?}", found.errors);
        }
        found.certs
    });
    trusting(read.await.map_err(|error| Error::InternalError(Some(error.to_string())))?)
}

/// The certificates of a bundle that are ones.
fn authorities(bundle: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(bundle.as_bytes()).filter_map(Result::ok).collect()
}

fn trusting(authorities: Vec<CertificateDer<'static>>) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities);
    Ok(Arc::new(builder()?.with_root_certificates(roots).with_no_client_auth()))
}

fn verified_by(verifier: Pinned) -> Result<Arc<ClientConfig>, Error> {
    let config = builder()?.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(Arc::new(config.with_no_client_auth()))
}

/// With a provider of its own: no library may depend on what the process has set as its default.
fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, Error> {
    let builder =
        ClientConfig::builder_with_provider(ring::default_provider().into()).with_safe_default_protocol_versions();
    builder.map_err(|_| Error::ConfigurationError)
}

/// Converts the error of a failed handshake for the guest.
fn why(error: io::Error) -> Error {
    match error.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(_)) => Error::TlsCertificateError,
        Some(rustls::Error::AlertReceived(alert)) => {
            let alert_message = alert.as_str().map(str::to_owned);
            Error::TlsAlertReceived { alert_id: Some((*alert).into()), alert_message }
        }
        Some(_) => Error::TlsProtocolError,
        None => Error::ConnectionTerminated,
    }
}

/// Accepts certificates by what they are, and not by who made them out to whom: those with the fingerprints, or all.
#[derive(Debug)]
struct Pinned {
    fingerprints: Option<Vec<[u8; 32]>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn to(fingerprints: Option<Vec<[u8; 32]>>) -> Self {
        Self { fingerprints, algorithms: ring::default_provider().signature_verification_algorithms }
    }

    /// A fingerprint says nothing if its certificate's key is not there; without one there is nothing to say.
    fn signed(
        &self,
        verify: impl FnOnce() -> Result<HandshakeSignatureValid, rustls::Error>,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.fingerprints.is_some() { verify() } else { Ok(HandshakeSignatureValid::assertion()) }
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let fingerprint: [u8; 32] = Sha256::digest(end_entity).into();
        match &self.fingerprints {
            Some(known) if !known.contains(&fingerprint) => {
                Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed(|| verify_tls12_signature(message, certificate, signature, &self.algorithms))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed(|| verify_tls13_signature(message, certificate, signature, &self.algorithms))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
