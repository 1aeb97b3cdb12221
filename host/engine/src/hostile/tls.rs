//! Authentication of HTTPS servers.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sha2::{Digest, Sha256};

use super::server::{head, ok, serve};
use super::*;

/// An authority, and the certificate of a server at 127.0.0.1 that it made.
struct Certificates {
    authority: String,
    server: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Certificates {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let server = server.signed_by(&key, &authority).unwrap().der().clone();
        Self { authority: authority.pem(), server, key: key.into() }
    }

    fn fingerprint(&self) -> [u8; 32] {
        Sha256::digest(&self.server).into()
    }

    fn serve(&self) -> SocketAddr {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth();
        let config = Arc::new(config.with_single_cert(vec![self.server.clone()], self.key.clone_key()).unwrap());
        serve("127.0.0.1", move |stream| {
            let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
            head(&mut stream);
            let _ = stream.write_all(ok("sealed").as_bytes()); // who does not trust us has gone
            stream.conn.send_close_notify();
            let _ = stream.flush();
        })
    }
}

async fn seen(server: SocketAddr, tls: Tls) -> BTreeMap<String, String> {
    let http = vec![HttpDestinations { to: to(&["127.0.0.0/8"]), tls }];
    properties(with(Grants { http, ..Grants::default() }, &format!("get:https://{server}/"))).await
}

#[tokio::test] // threat 46
async fn server_is_trusted_by_its_grant() {
    let certificates = Certificates::new();
    let server = certificates.serve();
    for tls in [
        Tls::CaBundle(format!("some words before\n{}", certificates.authority)),
        Tls::Fingerprints(vec![[0; 32], certificates.fingerprint()]),
        Tls::Insecure,
    ] {
        assert_eq!(seen(server, tls.clone()).await.get("BODY").map(String::as_str), Some("sealed"), "{tls:?}");
    }
    for tls in [
        Tls::System,
        Tls::CaBundle(Certificates::new().authority),
        Tls::CaBundle("-----BEGIN CERTIFICATE-----\nnot one\n-----END CERTIFICATE-----\n".to_owned()),
        Tls::Fingerprints(vec![Certificates::new().fingerprint()]),
        Tls::Fingerprints(Vec::new()),
    ] {
        let seen = seen(server, tls.clone()).await;
        assert!(seen["ERROR"].contains("TlsCertificateError"), "{tls:?}: {seen:?}");
    }
}

/// A certificate is public: whoever shows it has to have its key.
#[tokio::test] // threat 46
async fn fingerprint_is_no_use_without_the_key() {
    let mut stolen = Certificates::new();
    let pinned = Tls::Fingerprints(vec![stolen.fingerprint()]);
    stolen.key = KeyPair::generate().unwrap().into();
    let provider = rustls::crypto::ring::default_provider();
    let key = rustls::sign::CertifiedKey::new(
        vec![stolen.server.clone()],
        provider.key_provider.load_private_key(stolen.key).unwrap(),
    );
    let resolver = Arc::new(rustls::sign::SingleCertAndKey::from(key));
    let config = ServerConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_cert_resolver(resolver));
    let server = serve("127.0.0.1", move |stream| {
        head(&mut StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream));
    });
    let seen = seen(server, pinned).await;
    assert!(seen["ERROR"].contains("TlsCertificateError"), "{seen:?}");
}

#[tokio::test]
async fn server_without_tls_is_named() {
    let plain = serve("127.0.0.1", |mut stream| {
        stream.write_all(ok("plain").as_bytes()).unwrap();
        let _ = stream.read(&mut [0; 1024]); // until the other side has enough
    });
    let seen = seen(plain, Tls::Insecure).await;
    assert!(seen["ERROR"].contains("TlsProtocolError"), "{seen:?}");
}
