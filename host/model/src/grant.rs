//! Grants and limits of a handler. Empty grants allow nothing.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Resources that a handler may access. The default is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants {
    /// Kernel subsystems whose devices the `udev` interface shows, as shell globs; `*` is all.
    pub udev_subsystems: Vec<String>,
    /// Node paths that device specs may name: see [`covers`](crate::device_path::covers).
    pub device_paths: Vec<String>,
    /// Node paths that mounts may name, written likewise.
    pub mount_paths: Vec<String>,
    /// Paths outside of `/dev` at which device nodes and mounts may appear in containers, written likewise.
    pub container_paths: Vec<String>,
    /// Every path of the node and of containers: what `--trust-remote-paths` gives to remote handlers.
    pub any_path: bool,
    /// Environment variables that may be set although they choose what programs run, such as `PATH`.
    pub environment: Vec<String>,
    /// Groups the `multicast` interface opens.
    pub multicast: Vec<Group>,
    /// Permitted destinations of TCP connections.
    pub tcp: Vec<Destinations>,
    /// Permitted peers of UDP datagrams.
    pub udp: Vec<Destinations>,
    /// Permitted destinations of HTTP requests.
    pub http: Vec<HttpDestinations>,
    /// DNS names that may be resolved, as globs: `cam-*.example`. The resolved addresses must be granted as well.
    pub names: Vec<String>,
    /// Properties that come from a Secret and may be revealed, as globs over their names.
    pub secrets: Vec<String>,
    /// The object that holds them, and its file if it has one, for messages: `DiscoveryHandler 'udev' (etc/udev.yaml)`.
    pub holder: String,
}

impl Grants {
    /// Returns a field with the object that it belongs to, for messages.
    pub fn field(&self, name: &str) -> String {
        let holder = if self.holder.is_empty() { "the DiscoveryHandler" } else { &self.holder };
        format!("grants.{name} of {holder}")
    }

    /// Returns the interfaces on which a multicast group may be used; none if it is not granted.
    pub fn interfaces(&self, group: SocketAddr) -> Vec<String> {
        let granted = self.multicast.iter().filter(|to| (to.address, to.port) == (group.ip(), group.port()));
        granted.flat_map(|granted| granted.interfaces.clone()).collect()
    }
}

/// A multicast group on some of the node's interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The group.
    pub address: IpAddr,
    /// The port datagrams are sent to.
    pub port: u16,
    /// Interfaces, as globs over their names. `*` is all but loopback, which has to be named.
    pub interfaces: Vec<String>,
}

/// Addresses and ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destinations {
    /// The networks.
    pub networks: Vec<IpNet>,
    /// The ports.
    pub ports: Vec<RangeInclusive<u16>>,
}

impl Destinations {
    /// Returns whether they contain an address. An IPv4 address mapped into IPv6 (RFC 4291, 2.5.5.2) is that IPv4
    /// address. The unspecified address is never granted, since connecting to it reaches loopback.
    pub fn contain(&self, to: SocketAddr) -> bool {
        let address = to.ip().to_canonical();
        !address.is_unspecified()
            && self.ports.iter().any(|ports| ports.contains(&to.port()))
            && self.networks.iter().any(|network| network.contains(&address))
    }
}

/// Permitted destinations of HTTP requests, with the trust in their certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpDestinations {
    /// Addresses and ports.
    pub to: Destinations,
    /// The verification of servers.
    pub tls: Tls,
}

/// The verification of an HTTPS server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tls {
    /// By a certificate of an authority that the node trusts.
    #[default]
    System,
    /// By a certificate of one of these authorities, in PEM.
    CaBundle(String),
    /// By one of these certificates: SHA-256 of their DER.
    Fingerprints(Vec<[u8; 32]>),
    /// No verification.
    Insecure,
}

/// The process in which a component runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Isolation {
    /// The process that it shares with other components.
    #[default]
    Shared,
    /// One of its own.
    Own,
}

/// The longest time of a round: one of more than a day is a mistake, and beyond some point no clock could say when it ends.
pub const LONGEST_ROUND: Duration = Duration::from_secs(24 * 60 * 60);

/// Limits on one round of one handler; the default applies where its DiscoveryHandler has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Wall-clock time of a round.
    pub round: Duration,
    /// Linear memory of the whole store, in bytes.
    pub memory_bytes: usize,
    /// Devices in one answer.
    pub devices: usize,
    /// Properties, and likewise mounts and device specs, of one device.
    pub properties: usize,
    /// Bytes of any one string.
    pub string_bytes: usize,
    /// Log lines; the rest is counted.
    pub log_lines: usize,
    /// Notes shown; the rest is counted.
    pub notes: usize,
    /// Bytes the handler's cache holds for one Configuration, keys and values together.
    pub cache_bytes: usize,
    /// Sockets open and HTTP requests under way at once.
    pub connections: usize,
    /// Limits on compiling the component.
    pub compile: CompileLimits,
}

/// Bounds on compiling a component.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CompileLimits {
    /// Bytes of memory.
    pub memory_bytes: usize,
    /// Processor time.
    pub time: Duration,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self { memory_bytes: 256 << 20, time: Duration::from_secs(30) }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            round: Duration::from_secs(10),
            memory_bytes: 64 << 20,
            devices: 4096,
            properties: 64,
            string_bytes: 4096,
            log_lines: 64,
            notes: 10,
            cache_bytes: 256 << 10,
            connections: 64,
            compile: CompileLimits::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_granted_by_network_and_port_together() {
        let to = Destinations { networks: vec!["10.1.0.0/16".parse().unwrap()], ports: vec![80..=80, 8000..=8999] };
        for (address, granted) in [
            ("10.1.2.3:80", true),
            ("10.1.255.255:8999", true),
            ("10.1.2.3:81", false),
            ("10.2.0.1:80", false),
            ("[::ffff:10.1.2.3]:80", true),
            ("[::ffff:10.2.0.1]:80", false),
            ("[::10.1.2.3]:80", false),
            ("[fe80::1]:80", false),
        ] {
            assert_eq!(to.contain(address.parse().unwrap()), granted, "{address}");
        }
        assert!(!Destinations::default().contain("127.0.0.1:80".parse().unwrap()));
    }

    #[test]
    fn every_ipv6_address_is_not_every_ipv4_address() {
        let to = Destinations { networks: vec!["::/0".parse().unwrap()], ports: vec![0..=u16::MAX] };
        assert!(!to.contain("127.0.0.1:1".parse().unwrap()));
        assert!(!to.contain("[::ffff:127.0.0.1]:1".parse().unwrap()));
        assert!(to.contain("[2001:db8::1]:1".parse().unwrap()));
    }

    #[test] // threat 41
    fn no_address_is_not_loopback_by_another_name() {
        let networks = ["0.0.0.0/0", "::/0"].iter().map(|network| network.parse().unwrap()).collect();
        let everything = Destinations { networks, ports: vec![0..=u16::MAX] };
        for address in ["0.0.0.0:80", "[::]:80", "[::ffff:0.0.0.0]:80"] {
            assert!(!everything.contain(address.parse().unwrap()), "{address}");
        }
        assert!(everything.contain("127.0.0.1:80".parse().unwrap()), "it is granted by its own");
    }
}
