//! Grants of a DiscoveryHandler, as administrators write them, and their conversion to the model.

use std::borrow::Borrow;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use akri_model::text::unhex;
use akri_model::{environment, grant as model};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::null_is_empty;
use crate::validate::FieldErrors;

/// The grants of a handler.
#[serde_with::skip_serializing_none]
#[serde_with::apply(
    Vec => #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))],
)]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grants {
    /// The node's devices as the kernel describes them.
    pub udev: Option<UdevGrant>,
    /// Node paths that device specs may name: a path, a pattern such as `/dev/video*`, or a directory and `/**`. The node's
    /// memory, log and disks are only covered by their own names. Default none.
    pub device_paths: Vec<String>,
    /// Node paths that mounts may name, written likewise. Default none.
    pub mount_paths: Vec<String>,
    /// Paths outside of `/dev` at which device nodes and mounts may appear in containers, written likewise. Default none.
    pub container_paths: Vec<String>,
    /// Environment variables that properties may set although they choose what programs run or trust, such as `PATH`.
    /// Default none.
    pub environment: Vec<String>,
    /// Multicast groups, such as that of WS-Discovery.
    pub multicast: Vec<MulticastGrant>,
    /// Permitted destinations of TCP connections.
    pub tcp: Vec<NetworkGrant>,
    /// Permitted peers of UDP datagrams.
    pub udp: Vec<NetworkGrant>,
    /// Permitted destinations of HTTP and HTTPS requests.
    pub http: Vec<HttpGrant>,
    /// DNS names that may be resolved, as globs. The addresses they resolve to have to be granted, too.
    pub names: Vec<String>,
    /// Properties from Secrets that may be revealed to the handler, as globs over their names.
    pub secrets: Vec<String>,
}

/// A multicast group on some of the node's interfaces.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MulticastGrant {
    /// Its address.
    pub group: String,
    /// The port datagrams are sent to.
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
    /// Interfaces, as globs over their names. Default `*`, which is all but loopback.
    pub interfaces: Option<Vec<String>>,
}

/// Addresses and ports.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkGrant {
    /// Networks in CIDR notation, such as `10.0.0.0/8`.
    pub networks: Vec<String>,
    /// Ports, such as `80` and `"8000-8999"`.
    pub ports: Vec<Ports>,
}

/// A port or a range of ports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(schema_with = "int_or_string")]
pub enum Ports {
    /// One port.
    One(i64),
    /// A port or `first-last`.
    Range(String),
}

/// A permitted destination of HTTP and HTTPS requests.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpGrant {
    /// Networks in CIDR notation.
    pub networks: Vec<String>,
    /// Ports, such as `80` and `"8000-8999"`.
    pub ports: Vec<Ports>,
    /// The proof of an HTTPS server's identity. Default: a certificate of an authority that the node trusts.
    pub tls: Option<TlsGrant>,
}

/// The proof of an HTTPS server's identity: exactly one of these.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsGrant {
    /// Certificates of authorities, in PEM.
    pub ca_bundle: Option<String>,
    /// SHA-256 of the only certificates allowed, as 64 hex digits each; colons may be between them.
    pub fingerprints: Option<Vec<String>>,
    /// True: certificates are not verified. Anyone on the path can then read and change the traffic.
    pub insecure: Option<bool>,
}

fn int_or_string(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"x-kubernetes-int-or-string": true})
}

/// The devices of the node that a handler may see.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UdevGrant {
    /// Kernel subsystems, as shell globs; `*` is all.
    pub subsystems: Vec<String>,
}

/// The grants in the model. An invalid grant grants nothing and is an error below `/spec/grants`.
pub(crate) fn read(grants: &Grants, errors: &mut FieldErrors) -> model::Grants {
    model::Grants {
        udev_subsystems: grants.udev.as_ref().map(|udev| udev.subsystems.clone()).unwrap_or_default(),
        device_paths: each(&grants.device_paths, "/spec/grants/devicePaths", errors, path),
        mount_paths: each(&grants.mount_paths, "/spec/grants/mountPaths", errors, path),
        container_paths: each(&grants.container_paths, "/spec/grants/containerPaths", errors, path),
        any_path: false,
        environment: each(&grants.environment, "/spec/grants/environment", errors, variable),
        multicast: each(&grants.multicast, "/spec/grants/multicast", errors, group),
        tcp: each(&grants.tcp, "/spec/grants/tcp", errors, peers),
        udp: each(&grants.udp, "/spec/grants/udp", errors, peers),
        http: each(&grants.http, "/spec/grants/http", errors, http),
        names: each(&grants.names, "/spec/grants/names", errors, name),
        secrets: grants.secrets.clone(),
        holder: String::new(),
    }
}

/// Reads a list; each item knows where it stands.
fn each<T: Borrow<B>, B: ?Sized, M>(
    list: &[T],
    at: &str,
    errors: &mut FieldErrors,
    read: fn(&B, &str, &mut FieldErrors) -> Option<M>,
) -> Vec<M> {
    let items = list.iter().enumerate();
    items.filter_map(|(index, item)| read(item.borrow(), &format!("{at}/{index}"), errors)).collect()
}

/// Returns a text that can be granted; an error explains the others.
fn accept(is_valid: bool, text: &str, at: &str, errors: &mut FieldErrors, remedy: &str) -> Option<String> {
    if !is_valid {
        errors.add(at, format!("'{text}' {remedy}"));
    }
    is_valid.then(|| text.to_owned())
}

fn path(text: &str, at: &str, errors: &mut FieldErrors) -> Option<String> {
    let remedy = "is not a path that can be granted; write a path, such as /dev/video0, a pattern of names, such as /dev/video*, \
                  or a directory and /**, such as /dev/snd/**, for everything below it";
    accept(is_grantable(text), text, at, errors, remedy)
}

/// Returns whether the policy can find anything covered by the text: only plain absolute paths are handed out, and of
/// globs only `*` is known.
fn is_grantable(text: &str) -> bool {
    let plain =
        |part: &str| !matches!(part, "" | "." | "..") && !part.contains("**") && !part.contains(['?', '[', '\0']);
    let directory = text.strip_suffix("/**");
    directory == Some("") || directory.unwrap_or(text).strip_prefix('/').is_some_and(|path| path.split('/').all(plain))
}

fn variable(text: &str, at: &str, errors: &mut FieldErrors) -> Option<String> {
    let remedy = "is not the name of an environment variable: letters, digits, '_', '-' and '.', no digit first";
    accept(environment::is_name(text), text, at, errors, remedy)
}

fn name(text: &str, at: &str, errors: &mut FieldErrors) -> Option<String> {
    let remedy = "is not a DNS name, such as camera-1.example, or a glob over them, such as *.example; schemes, ports and paths \
                  are no part of one";
    accept(is_name_glob(text), text, at, errors, remedy)
}

/// Returns whether a DNS name can match: its own characters, and those of globs. A colon is only in classes:
/// `[[:digit:]]`.
fn is_name_glob(text: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || "-_.*?[]!^|\\".contains(c);
    !text.is_empty() && text.replace("[:", "[").replace(":]", "]").chars().all(known)
}

fn group(grant: &MulticastGrant, path: &str, errors: &mut FieldErrors) -> Option<model::Group> {
    let address = grant.group.parse().ok().filter(IpAddr::is_multicast);
    if address.is_none() {
        let message = format!("'{}' is not a multicast address, such as 239.255.255.250 or ff02::fb", grant.group);
        errors.add(format!("{path}/group"), message);
    }
    if grant.port == 0 {
        errors.add(format!("{path}/port"), "is not between 1 and 65535");
    }
    let interfaces = grant.interfaces.clone().unwrap_or_else(|| vec!["*".to_owned()]);
    Some(model::Group { address: address?, port: grant.port, interfaces })
}

fn peers(grant: &NetworkGrant, path: &str, errors: &mut FieldErrors) -> Option<model::Destinations> {
    Some(destinations(&grant.networks, &grant.ports, path, errors))
}

fn http(grant: &HttpGrant, path: &str, errors: &mut FieldErrors) -> Option<model::HttpDestinations> {
    let to = destinations(&grant.networks, &grant.ports, path, errors);
    let Some(tls) = grant.tls.as_ref() else {
        return Some(model::HttpDestinations { to, tls: model::Tls::System });
    };
    match trust(tls) {
        Ok(tls) => Some(model::HttpDestinations { to, tls }),
        Err(message) => {
            errors.add(format!("{path}/tls"), message);
            None
        }
    }
}

fn trust(tls: &TlsGrant) -> Result<model::Tls, String> {
    match (&tls.ca_bundle, &tls.fingerprints, tls.insecure.unwrap_or_default()) {
        (None, None, false) => Ok(model::Tls::System),
        (None, None, true) => Ok(model::Tls::Insecure),
        (Some(bundle), None, false) if bundle.contains("-----BEGIN CERTIFICATE-----") => {
            Ok(model::Tls::CaBundle(bundle.clone()))
        }
        (Some(_), None, false) => Err("caBundle holds no certificate in PEM".to_owned()),
        (None, Some(texts), false) => {
            texts.iter().map(|text| fingerprint(text)).collect::<Result<_, _>>().map(model::Tls::Fingerprints)
        }
        _ => Err("caBundle, fingerprints and insecure exclude each other; keep one".to_owned()),
    }
}

fn fingerprint(text: &str) -> Result<[u8; 32], String> {
    let digest = unhex(&text.replace(':', "")).and_then(|bytes| bytes.try_into().ok());
    digest.ok_or_else(|| format!("'{text}' is not a SHA-256: 64 hex digits, perhaps with colons"))
}

fn destinations(networks: &[String], ports: &[Ports], at: &str, errors: &mut FieldErrors) -> model::Destinations {
    model::Destinations {
        networks: each(networks, &format!("{at}/networks"), errors, network),
        ports: each(ports, &format!("{at}/ports"), errors, range),
    }
}

/// A network, or an address alone. An IPv4 network mapped into IPv6 would never hold an address: it is a mistake.
fn network(text: &str, at: &str, errors: &mut FieldErrors) -> Option<IpNet> {
    let is_mapped = |network: &IpNet| matches!(network, IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some());
    let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    let network = network.filter(|network| !is_mapped(network));
    accept(network.is_some(), text, at, errors, "is not a network, such as 10.0.0.0/8, 192.168.1.20 or fc00::/7");
    network
}

fn range(ports: &Ports, at: &str, errors: &mut FieldErrors) -> Option<RangeInclusive<u16>> {
    let range = match ports {
        Ports::One(port) => u16::try_from(*port).ok().map(|port| port..=port),
        Ports::Range(text) => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            first.trim().parse().ok().zip(last.trim().parse().ok()).map(|(first, last)| first..=last)
        }
    };
    let range = range.filter(|range| *range.start() > 0 && !range.is_empty());
    if range.is_none() {
        errors.add(at, "is not a port from 1 to 65535, such as 80, or a range of them, such as '8000-8999'");
    }
    range
}

#[cfg(test)]
mod tests;
