//! `wasi:sockets`: each use of an address is checked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use akri_model::grant::Destinations;
use ipnet::IpNet;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::sockets::SocketAddrUse;

use crate::log::{Place, RoundLog};
use crate::rates::Rates;

/// The permitted destinations of the sockets of a round.
#[derive(Debug)]
pub(crate) struct Addresses {
    pub(crate) tcp: Vec<Destinations>,
    pub(crate) udp: Vec<Destinations>,
}

impl Addresses {
    /// Sets what sockets may be used for, and how fast; what they are refused is said in the log.
    pub(crate) fn set(self, wasi: &mut WasiCtxBuilder, log: &Arc<RoundLog>, rates: Rates) {
        wasi.allow_tcp(!self.tcp.is_empty()).allow_udp(!self.udp.is_empty()).allow_ip_name_lookup(false);
        if self.tcp.is_empty() && self.udp.is_empty() {
            return;
        }
        let log = log.clone();
        wasi.socket_addr_check(move |address, usage| {
            let allowed = self.allow(address, usage);
            // What comes in from elsewhere is not the guest's doing.
            if !allowed && !matches!(usage, SocketAddrUse::UdpReceive) {
                self.refuse(address, usage, &log);
            }
            let rates = rates.clone();
            Box::pin(async move {
                match usage {
                    SocketAddrUse::TcpConnect if allowed => rates.connection().await,
                    SocketAddrUse::UdpSend if allowed => rates.datagram().await,
                    _ => {}
                }
                allowed
            })
        });
    }

    /// A socket is bound to whatever port is free, and nobody connects to it. Groups have an interface of their own,
    /// `multicast`, and a grant of their own.
    fn allow(&self, address: SocketAddr, usage: SocketAddrUse) -> bool {
        let granted = |grants: &[Destinations]| grants.iter().any(|grant| grant.contain(address));
        match usage {
            SocketAddrUse::TcpBind | SocketAddrUse::UdpBind => address.ip().is_unspecified() && address.port() == 0,
            SocketAddrUse::TcpListen | SocketAddrUse::TcpAccept => false,
            SocketAddrUse::TcpConnect => granted(&self.tcp),
            SocketAddrUse::UdpSend | SocketAddrUse::UdpReceive => !address.ip().is_multicast() && granted(&self.udp),
        }
    }

    /// Logs what a socket may not be used for, with the grant that would allow it.
    fn refuse(&self, address: SocketAddr, usage: SocketAddrUse, log: &RoundLog) {
        let missing = |grant: &'static str, granted: &[Destinations]| {
            let (ip, port) = (address.ip(), address.port());
            let what = format!("{grant} to {ip}, port {port},");
            log.unreachable(grant, granted, Place::from(address), &what, &grant_for(&[ip], port));
        };
        let why = match usage {
            SocketAddrUse::TcpConnect => return missing("tcp", &self.tcp),
            SocketAddrUse::UdpSend | SocketAddrUse::UdpReceive if !address.ip().is_multicast() => {
                return missing("udp", &self.udp);
            }
            SocketAddrUse::UdpSend | SocketAddrUse::UdpReceive => {
                "groups are reached by the interface multicast, and grants.multicast"
            }
            SocketAddrUse::TcpListen | SocketAddrUse::TcpAccept => "nobody connects to a handler",
            SocketAddrUse::TcpBind | SocketAddrUse::UdpBind => {
                "sockets are bound to the unspecified address and port 0 only"
            }
        };
        log.refused(&format_args!("a socket at {address}: {why}"));
    }
}

/// Writes the entry of a grant that covers these addresses, and nothing else.
pub(crate) fn grant_for(addresses: &[IpAddr], port: u16) -> String {
    let networks: Vec<String> = addresses.iter().map(|address| format!("'{}'", IpNet::from(*address))).collect();
    format!("{{networks: [{}], ports: [{port}]}}", networks.join(", "))
}

#[cfg(test)]
mod tests {
    use SocketAddrUse::{TcpAccept, TcpBind, TcpConnect, TcpListen, UdpBind, UdpReceive, UdpSend};

    use super::*;

    #[test] // rule 138
    fn refusals_name_the_grant_that_would_allow_it() {
        let to = vec![Destinations { networks: vec!["192.0.2.0/24".parse().unwrap()], ports: vec![1..=1] }];
        let addresses = Addresses { tcp: to.clone(), udp: to };
        let refused = |address: &str, usage| {
            let (copy, lines) = std::sync::mpsc::channel();
            let log = RoundLog::new("h", &crate::Call { log: Some(copy), ..crate::Call::default() });
            addresses.refuse(address.parse().unwrap(), usage, &log);
            lines.recv().unwrap().message
        };
        assert_eq!(
            refused("10.0.0.1:80", TcpConnect),
            "tcp to 10.0.0.1, port 80, is not covered by grants.tcp of the DiscoveryHandler; {networks: ['10.0.0.1/32'], ports: [80]} \
             would allow it"
        );
        assert!(
            refused("[fd00::1]:53", UdpSend).ends_with("; {networks: ['fd00::1/128'], ports: [53]} would allow it")
        );
        assert!(refused("239.255.255.250:3702", UdpSend).contains("grants.multicast"));
        assert!(refused("0.0.0.0:80", TcpListen).contains("nobody connects"));
        assert!(refused("10.0.0.1:80", TcpBind).contains("port 0 only"));
    }

    #[test] // threat 41
    fn each_use_of_an_address_is_checked_by_itself() {
        let grant = |network: &str, port| Destinations { networks: vec![network.parse().unwrap()], ports: vec![port] };
        let addresses = Addresses {
            tcp: vec![grant("10.0.0.0/8", 4840..=4840)],
            udp: vec![grant("10.0.0.0/8", 1..=u16::MAX), grant("224.0.0.0/4", 1..=u16::MAX)],
        };
        for (usage, address, allowed) in [
            (TcpBind, "0.0.0.0:0", true),
            (TcpBind, "[::]:0", true),
            (TcpBind, "0.0.0.0:8080", false),
            (TcpBind, "10.0.0.1:0", false),
            (UdpBind, "0.0.0.0:0", true),
            (UdpBind, "0.0.0.0:5353", false),
            (UdpBind, "127.0.0.1:0", false),
            (TcpListen, "0.0.0.0:0", false),
            (TcpAccept, "10.0.0.1:4840", false),
            (TcpConnect, "10.0.0.1:4840", true),
            (TcpConnect, "10.0.0.1:4841", false),
            (TcpConnect, "127.0.0.1:4840", false),
            (TcpConnect, "[::ffff:10.0.0.1]:4840", true),
            (TcpConnect, "[::ffff:127.0.0.1]:4840", false),
            (UdpSend, "10.0.0.1:53", true),
            (UdpSend, "127.0.0.1:53", false),
            (UdpSend, "239.255.255.250:3702", false),
            (UdpReceive, "10.0.0.1:53", true),
            (UdpReceive, "192.0.2.1:53", false),
        ] {
            assert_eq!(addresses.allow(address.parse().unwrap(), usage), allowed, "{usage:?} {address}");
        }
    }
}
