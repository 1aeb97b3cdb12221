//! The imports of a component, compared with its grants.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use akri_model::grant::{Destinations, Grants, Group, HttpDestinations, Tls};
use ipnet::IpNet;
use serde::Serialize;

/// It works for every handler, or is empty for every handler.
pub(crate) const ALWAYS: &str = "always";
/// A grant opens it, as far as the note says.
pub(crate) const GRANTED: &str = "granted";
/// It needs a grant and has none: it answers that it is not granted.
pub(crate) const NOT_GRANTED: &str = "not granted";

/// An interface that a component imports. Every import is linked in any case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Import {
    /// Such as `akri:discovery/udev@0.1.0`.
    pub name: String,
    /// The party that needs it: `asked` if the handler named one of ours; `runtime` if it comes with the runtime of its language,
    /// which imports all of WASI whether the handler uses it or not.
    pub kind: &'static str,
    /// `always`, `granted` or `not granted`.
    pub covered: &'static str,
    /// The grants or what is missing; "" if there is nothing to say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Import {
    /// Judges an import by its name.
    pub fn new(name: &str, grants: &Grants) -> Self {
        let kind = if name.starts_with("akri:") { "asked" } else { "runtime" };
        let (covered, note) = coverage(name.split('@').next().unwrap_or_default(), grants);
        Self { name: name.to_owned(), kind, covered, note }
    }
}

/// Returns warnings about these grants.
pub fn grant_warnings(grants: &Grants) -> Vec<&'static str> {
    // Name servers learn every name that is looked up, so that `names` alone can leak a secret.
    let silent = grants.tcp.is_empty() && grants.udp.is_empty() && grants.http.is_empty();
    let silent = silent && grants.multicast.is_empty() && grants.names.is_empty();
    let secrets = (!silent && !grants.secrets.is_empty()).then_some(
        "it gets secrets and may use the network: it can send them wherever it may send anything; grant no more \
         destinations than it needs",
    );
    let node = networks(grants).any(holds_the_node).then_some(
        "it may connect to the node itself (loopback) or to link-local addresses, where clouds have their metadata \
         services, since a network it is granted holds them; grant narrower networks",
    );
    secrets.into_iter().chain(node).collect()
}

fn networks(grants: &Grants) -> impl Iterator<Item = &IpNet> {
    let http = grants.http.iter().map(|http| &http.to);
    grants.tcp.iter().chain(&grants.udp).chain(http).flat_map(|to| &to.networks)
}

/// Returns whether a network contains loopback or link-local addresses beside others. A network that contains nothing else
/// was granted on purpose.
fn holds_the_node(network: &IpNet) -> bool {
    let special = |(address, length): (IpAddr, u8)| network.contains(&address) && network.prefix_len() < length;
    [
        (Ipv4Addr::LOCALHOST.into(), 8),
        (Ipv4Addr::new(169, 254, 169, 254).into(), 16),
        (Ipv6Addr::LOCALHOST.into(), 128),
        (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(), 10),
    ]
    .into_iter()
    .any(special)
}

fn coverage(interface: &str, grants: &Grants) -> (&'static str, String) {
    match interface {
        "akri:discovery/udev" => granted("udev", &grants.udev_subsystems),
        "akri:discovery/multicast" => {
            let group = |g: &Group| format!("{} port {} on {}", g.address, g.port, g.interfaces.join(" "));
            granted("multicast", grants.multicast.iter().map(group))
        }
        "akri:discovery/secrets" => granted("secrets", &grants.secrets),
        "wasi:sockets/tcp" | "wasi:sockets/tcp-create-socket" => granted("tcp", grants.tcp.iter().map(place)),
        "wasi:sockets/udp" | "wasi:sockets/udp-create-socket" => granted("udp", grants.udp.iter().map(place)),
        "wasi:sockets/ip-name-lookup" => granted("names", &grants.names),
        "wasi:http/outgoing-handler" => {
            let place = |http: &HttpDestinations| format!("{}{}", place(&http.to), trust(&http.tls));
            granted("http", grants.http.iter().map(place))
        }
        "wasi:cli/stdout" | "wasi:cli/stderr" => (ALWAYS, "ends in the log".to_owned()),
        _ if interface.starts_with("wasi:filesystem/") || interface.starts_with("wasi:cli/") => {
            (ALWAYS, "empty".to_owned())
        }
        _ => (ALWAYS, String::new()),
    }
}

fn granted(grant: &str, what: impl IntoIterator<Item = impl ToString>) -> (&'static str, String) {
    let what: Vec<String> = what.into_iter().map(|entry| entry.to_string()).collect();
    if what.is_empty() {
        return (NOT_GRANTED, format!("grants.{grant}: nothing granted"));
    }
    (GRANTED, format!("grants.{grant}: {}", what.join(", ")))
}

/// `10.0.0.0/8 port 80 8000-8999`
fn place(to: &Destinations) -> String {
    let networks: Vec<String> = to.networks.iter().map(ToString::to_string).collect();
    let ports = to.ports.iter().map(|ports| match (ports.start(), ports.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    });
    format!("{} port {}", networks.join(" "), ports.collect::<Vec<_>>().join(" "))
}

fn trust(tls: &Tls) -> &'static str {
    match tls {
        Tls::System => "",
        Tls::CaBundle(_) => " (TLS: own authorities)",
        Tls::Fingerprints(_) => " (TLS: by fingerprint)",
        Tls::Insecure => " (TLS: insecure)",
    }
}

#[cfg(test)]
mod tests {
    use akri_model::grant::{Group, HttpDestinations};

    use super::*;

    fn some() -> Grants {
        let to =
            |ports| Destinations { networks: vec!["10.0.0.0/8".parse().unwrap()], ports: vec![ports, 8000..=8999] };
        Grants {
            udev_subsystems: vec!["tty".to_owned(), "usb*".to_owned()],
            multicast: vec![Group {
                address: [239, 255, 255, 250].into(),
                port: 3702,
                interfaces: vec!["*".to_owned()],
            }],
            tcp: vec![to(4840..=4840)],
            http: vec![HttpDestinations { to: to(80..=80), tls: Tls::Insecure }],
            ..Grants::default()
        }
    }

    #[test]
    fn imports_stand_beside_what_is_granted() {
        let [handler, runtime] = ["asked", "runtime"];
        for (name, kind, covered, note) in [
            ("akri:discovery/udev@0.1.0", handler, GRANTED, "grants.udev: tty, usb*"),
            ("akri:discovery/multicast@0.1.0", handler, GRANTED, "grants.multicast: 239.255.255.250 port 3702 on *"),
            ("akri:discovery/secrets@0.1.0", handler, NOT_GRANTED, "grants.secrets: nothing granted"),
            ("akri:discovery/cache@0.1.0", handler, ALWAYS, ""),
            ("wasi:sockets/tcp@0.2.6", runtime, GRANTED, "grants.tcp: 10.0.0.0/8 port 4840 8000-8999"),
            ("wasi:sockets/udp-create-socket@0.2.6", runtime, NOT_GRANTED, "grants.udp: nothing granted"),
            ("wasi:sockets/ip-name-lookup@0.2.6", runtime, NOT_GRANTED, "grants.names: nothing granted"),
            (
                "wasi:http/outgoing-handler@0.2.9",
                runtime,
                GRANTED,
                "grants.http: 10.0.0.0/8 port 80 8000-8999 (TLS: insecure)",
            ),
            ("wasi:http/types@0.2.9", runtime, ALWAYS, ""),
            ("wasi:cli/stderr@0.2.6", runtime, ALWAYS, "ends in the log"),
            ("wasi:filesystem/preopens@0.2.6", runtime, ALWAYS, "empty"),
            ("wasi:clocks/monotonic-clock@0.2.6", runtime, ALWAYS, ""),
        ] {
            let import = Import { name: name.to_owned(), kind, covered, note: note.to_owned() };
            assert_eq!(Import::new(name, &some()), import);
        }
    }

    #[test]
    fn secrets_beside_a_network_are_worth_a_thought() {
        let secrets = || vec!["password".to_owned()];
        assert!(grant_warnings(&some()).is_empty());
        assert!(grant_warnings(&Grants { secrets: secrets(), ..Grants::default() }).is_empty());
        let resolver = Grants { names: vec!["*".to_owned()], ..Grants::default() };
        for network in [some(), resolver] {
            let warnings = grant_warnings(&Grants { secrets: secrets(), ..network });
            assert!(matches!(warnings.as_slice(), [one] if one.contains("send them")), "{warnings:?}");
        }
    }

    #[test]
    fn networks_that_happen_to_hold_the_node_are_worth_a_thought() {
        for (network, worth) in [
            ("0.0.0.0/0", true),
            ("::/0", true),
            ("126.0.0.0/7", true),
            ("169.0.0.0/8", true),
            ("fe00::/8", true),
            ("::/64", true),
            ("127.0.0.0/8", false),
            ("::1/128", false),
            ("169.254.169.254/32", false),
            ("fe80::/10", false),
            ("10.0.0.0/8", false),
            ("fc00::/7", false),
        ] {
            let to = Destinations { networks: vec![network.parse().unwrap()], ports: vec![1..=1] };
            let udp = Grants { udp: vec![to.clone()], ..Grants::default() };
            let http = Grants { http: vec![HttpDestinations { to, tls: Tls::System }], ..Grants::default() };
            for grants in [udp, http] {
                assert_eq!(grant_warnings(&grants).len(), usize::from(worth), "{network}");
            }
        }
    }
}
