//! The cluster's certificate authority, certificates and kubeconfigs.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use serde_json::json;

use super::layout::Layout;
use super::machine::{API_SERVICE, CONTROL, Machine};

/// The group of administrators.
const MASTERS: &str = "system:masters";

/// The authority trusted by all components.
struct Authority<'a> {
    issuer: Issuer<'a, KeyPair>,
    directory: &'a Path,
}

/// Creates all certificates and kubeconfigs. `port` is the API server's port outside of the cluster's network.
pub(super) fn make(layout: &Layout, nodes: &[Machine], port: u16) -> anyhow::Result<()> {
    let directory = layout.certificates();
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let authority = Authority::new(&directory)?;
    let local = IpAddr::from(Ipv4Addr::LOCALHOST);
    authority.server("api-server", "kube-apiserver", None, &[local, CONTROL.into(), API_SERVICE.into()])?;
    let outside = format!("https://127.0.0.1:{port}");
    let inside = format!("https://{CONTROL}");
    authority.client("admin", "admin", Some(MASTERS), &outside)?;
    authority.client("controller-manager", "system:kube-controller-manager", None, &inside)?;
    authority.client("scheduler", "system:kube-scheduler", None, &inside)?;
    for node in nodes {
        let (name, subject) = (node.name(), format!("system:node:{}", node.name()));
        authority.client(name, &subject, Some("system:nodes"), &inside)?;
        authority.server(&format!("{name}-serving"), &subject, Some("system:nodes"), &[node.address().into()])?;
    }
    let accounts = KeyPair::generate()?;
    fs::write(directory.join("service-accounts.key"), accounts.serialize_pem())?;
    Ok(fs::write(directory.join("service-accounts.pub"), accounts.public_key_pem())?)
}

impl<'a> Authority<'a> {
    fn new(directory: &'a Path) -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test cluster");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        fs::write(directory.join("ca.crt"), params.self_signed(&key)?.pem())?;
        Ok(Self { issuer: Issuer::new(params, key), directory })
    }

    fn server(&self, file: &str, name: &str, group: Option<&str>, addresses: &[IpAddr]) -> anyhow::Result<()> {
        let mut params = subject(name, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = addresses.iter().copied().map(SanType::IpAddress).collect();
        self.sign(file, params)
    }

    /// Creates a certificate and a kubeconfig.
    fn client(&self, file: &str, name: &str, group: Option<&str>, server: &str) -> anyhow::Result<()> {
        let mut params = subject(name, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, params)?;
        let path = |name: String| self.directory.join(name).display().to_string();
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": file}}],
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": path("ca.crt".into())}}],
            "users": [{"name": file, "user": {
                "client-certificate": path(format!("{file}.crt")),
                "client-key": path(format!("{file}.key")),
            }}],
        });
        Ok(fs::write(path(format!("{file}.kubeconfig")), format!("{kubeconfig:#}\n"))?)
    }

    fn sign(&self, file: &str, mut params: CertificateParams) -> anyhow::Result<()> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        fs::write(self.directory.join(format!("{file}.key")), key.serialize_pem())?;
        Ok(fs::write(self.directory.join(format!("{file}.crt")), certificate.pem())?)
    }
}

/// Returns the subject, from which Kubernetes takes user and group.
fn subject(name: &str, group: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params
}
