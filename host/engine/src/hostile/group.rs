//! Behaviours of a guest that uses `multicast`.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use akri_model::grant::Group;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use super::*;

fn granted_group(address: &str, port: u16, interfaces: &[&str]) -> Grants {
    let interfaces = interfaces.iter().map(ToString::to_string).collect();
    Grants { multicast: vec![Group { address: address.parse().unwrap(), port, interfaces }], ..Grants::default() }
}

/// Returns a socket that has joined the group on loopback.
fn member(group: Ipv4Addr, port: u16) -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&(group, port).into_sockaddr()).unwrap();
    socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(1)).unwrap();
    socket.into()
}

trait IntoSockaddr {
    fn into_sockaddr(self) -> socket2::SockAddr;
}

impl IntoSockaddr for (Ipv4Addr, u16) {
    fn into_sockaddr(self) -> socket2::SockAddr {
        std::net::SocketAddr::from(self).into()
    }
}

#[tokio::test]
pub(super) async fn granted_group_is_asked_and_answers() {
    let camera = member(Ipv4Addr::new(239, 255, 78, 1), 37031);
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        let (length, from) = camera.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"Probe");
        camera.send_to(b"ProbeMatches", from).unwrap();
    });
    let seen = properties(with(granted_group("239.255.78.1", 37031, &["lo"]), "ask:239.255.78.1 37031")).await;
    let expected = [("FROM", "127.0.0.1"), ("HEARD", "ProbeMatches"), ("INTERFACE", "lo")];
    assert_eq!(seen, BTreeMap::from(expected.map(|(name, value)| (name.to_owned(), value.to_owned()))));
}

#[tokio::test] // threat 44
pub(super) async fn ungranted_group_port_or_interface_is_refused() {
    for (grants, error) in [
        (Grants::default(), "NotGranted"),
        (granted_group("239.255.78.3", 37032, &["lo"]), "NotGranted"),
        (granted_group("239.255.78.2", 37033, &["lo"]), "NotGranted"),
        (granted_group("239.255.78.2", 37032, &[]), "NotGranted"),
        (granted_group("239.255.78.2", 37032, &["l*"]), "Unavailable"),
        (granted_group("239.255.78.2", 37032, &["absent"]), "Unavailable"),
    ] {
        let seen = properties(with(grants.clone(), "ask:239.255.78.2 37032")).await;
        assert!(seen["ERROR"].contains(error), "{grants:?}: {seen:?}");
    }
    let nonsense = properties(with(granted_group("239.255.78.2", 37032, &["lo"]), "ask:camera.example 37032")).await;
    assert!(nonsense["ERROR"].contains("NotGranted"), "{nonsense:?}");
}

#[tokio::test] // threat 31
pub(super) async fn host_waits_end_before_the_round() {
    let grants = granted_group("239.255.78.4", 37034, &["lo"]);
    let call = Call { limits: short(), ..with(grants, "wait-an-hour:239.255.78.4 37034") };
    let seen = properties(call).await;
    assert_eq!(seen["HEARD"], "OPEN", "there was time to return what there is");
}

#[tokio::test] // threat 47
pub(super) async fn datagrams_are_bounded_in_number_and_size() {
    let seen = properties(with(granted_group("239.255.78.5", 37035, &["lo"]), "send-flood:239.255.78.5 37035")).await;
    assert_eq!((seen["SENT"].as_str(), seen["AGAIN"].as_str()), ("255", "Ok(0)"), "one was too large");
    assert!(seen["LARGE"].contains("Limit"), "{seen:?}");
}

#[tokio::test] // threat 47
pub(super) async fn conversations_are_bounded() {
    let grants = granted_group("239.255.78.6", 37036, &["lo"]);
    assert_eq!(properties(with(grants, "conversations:9 239.255.78.6 37036")).await["HELD"], "4");
}

#[tokio::test] // threat 48
pub(super) async fn flood_fills_the_queue_and_no_more() {
    let flood = member(Ipv4Addr::new(239, 255, 78, 7), 37037);
    let is_over = Arc::new(AtomicBool::new(false));
    let stops = Arc::clone(&is_over);
    std::thread::spawn(move || {
        let (_, guest) = flood.recv_from(&mut [0; 100]).unwrap();
        while !stops.load(Ordering::Relaxed) {
            let _ = flood.send_to(b"x", guest); // the guest may be gone
        }
    });
    let grants = granted_group("239.255.78.7", 37037, &["lo"]);
    let call = Call { limits: long("").limits, ..with(grants, "receive-flood:239.255.78.7 37037") };
    let seen = properties(call).await;
    is_over.store(true, Ordering::Relaxed);
    let received: usize = seen["HEARD"].parse().unwrap();
    assert!(received >= 8192, "what came first is there: {seen:?}");
    assert_ne!(seen["DROPPED"], "0");
}
