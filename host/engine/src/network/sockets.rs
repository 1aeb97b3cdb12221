//! `wasi:sockets`: each use of an address is checked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use akri_model::grant::Destinations;
use ipnet::IpNet;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::sockets::SocketAddrUse;

use crate::log::RoundLog;
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
                log.refused(&refusal(address, usage));
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
}

/// Returns the message about a refused address, with the grant that would allow it.
fn refusal(address: SocketAddr, usage: SocketAddrUse) -> String {
    let missing = |grant: &str| {
        let wanted = grant_for(&[address.ip()], address.port());
        format!("{usage:?} {address} is not covered by grants.{grant}; {wanted} would allow it")
    };
    match usage {
        SocketAddrUse::TcpConnect => missing("tcp"),
        SocketAddrUse::UdpSend | SocketAddrUse::UdpReceive if address.ip().is_multicast() => {
            format!("{usage:?} {address}: groups are reached by the interface multicast, and grants.multicast")
        }
        SocketAddrUse::UdpSend | SocketAddrUse::UdpReceive => missing("udp"),
        SocketAddrUse::TcpListen | SocketAddrUse::TcpAccept => {
            format!("{usage:?} {address}: nobody connects to a handler")
        }
        SocketAddrUse::TcpBind | SocketAddrUse::UdpBind => {
            format!("{usage:?} {address}: sockets are bound to the unspecified address and port 0 only")
        }
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

    #[test]
    fn refusals_name_the_grant_that_would_allow_it() {
        let refused = |address: &str, usage| refusal(address.parse().unwrap(), usage);
        assert_eq!(
            refused("10.0.0.1:80", TcpConnect),
            "TcpConnect 10.0.0.1:80 is not covered by grants.tcp; {networks: ['10.0.0.1/32'], ports: [80]} would allow it"
        );
        assert!(
            refused("[fd00::1]:53", UdpSend).contains("grants.udp; {networks: ['fd00::1/128'], ports: [53]} would")
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
