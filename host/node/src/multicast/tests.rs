//! Conversations and listeners with real sockets: on loopback, and in network namespaces of their own.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use akri_model::datagram::DatagramFilter;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use super::*;
use crate::Stop;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

/// Runs `test` in a network namespace of its own, where only loopback is, and is up. Needs root.
fn in_namespace(test: impl AsyncFnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "CI must not skip this: it needs root");
        return skipped("this needs root");
    }
    // A namespace belongs to the thread, and ends with it.
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    });
    thread.join().unwrap();
}

/// Records a skipped test, as the stories do (`tests/support/skip.rs`).
fn skipped(reason: &str) {
    let Some(path) = std::env::var_os("AKRI_SKIPPED") else { return eprintln!("skipped: {reason}") };
    let line = format!("{}\t{reason}\n", std::thread::current().name().unwrap_or("?"));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    std::io::Write::write_all(&mut file.unwrap(), line.as_bytes()).unwrap();
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Two interfaces that are joined, both up.
fn wire(near: &str, far: &str) {
    ip(&format!("link add {near} type veth peer name {far}"));
    ip(&format!("link set {near} up"));
    ip(&format!("link set {far} up"));
}

/// The kernel gives interfaces their IPv6 addresses a moment after they are up.
fn await_addresses(interfaces: &[&str]) {
    let end = Instant::now() + LONG;
    let has_one = |name: &&str| {
        let listed = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
        listed.lines().any(|line| line.starts_with("fe80") && line.ends_with(&format!(" {name}")))
    };
    while !interfaces.iter().all(has_one) {
        assert!(Instant::now() < end, "no addresses on {interfaces:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn lo() -> Vec<String> {
    vec!["lo".to_owned()]
}

/// A member of the group on an interface: a camera that can be asked.
fn camera(group: SocketAddr, interface: &str) -> UdpSocket {
    let index = if_nametoindex(interface).unwrap();
    let socket = Socket::new(Domain::for_address(group), Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    match group {
        SocketAddr::V4(v4) => {
            socket.bind(&group.into()).unwrap();
            socket.join_multicast_v4_n(v4.ip(), &InterfaceIndexOrAddress::Index(index)).unwrap();
            socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap(); // of IPv4 only loopback is asked
        }
        SocketAddr::V6(v6) => {
            socket.bind(&SocketAddrV6::new(*v6.ip(), v6.port(), 0, index).into()).unwrap();
            socket.join_multicast_v6(v6.ip(), index).unwrap();
            socket.set_multicast_if_v6(index).unwrap();
        }
    }
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.into()
}

fn payloads(datagrams: &[Datagram]) -> Vec<&str> {
    datagrams.iter().map(|datagram| std::str::from_utf8(&datagram.payload).unwrap()).collect()
}

/// Asks a camera that is on one interface from another, or the same; it answers, and then says something by itself.
async fn ask(group: SocketAddr, from: &str, at: &str) {
    let camera = camera(group, at);
    let conversation = Conversation::open(group, &[from.to_owned()], &OwnSenders::default()).unwrap();
    conversation.send(b"Probe").await.unwrap();
    let mut buffer = [0; 64];
    let (length, asked_by) = camera.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"Probe");
    camera.send_to(b"ProbeMatches", asked_by).unwrap();
    let answer = conversation.receive(9, LONG).await;
    assert_eq!(payloads(&answer), ["ProbeMatches"], "and not what it said itself");
    assert_eq!(&*answer[0].interface, from);

    camera.send_to(b"Hello", group).unwrap();
    assert_eq!(payloads(&conversation.receive(9, LONG).await), ["Hello"]);
    assert!(conversation.receive(9, SHORT).await.is_empty());
    assert_eq!(conversation.dropped(), 0);
}

#[tokio::test]
async fn group_is_asked_and_answers_come_back() {
    ask("239.255.77.1:37021".parse().unwrap(), "lo", "lo").await;
}

#[test]
fn namespace_with_loopback_alone_is_enough() {
    in_namespace(async || ask("239.255.255.250:3702".parse().unwrap(), "lo", "lo").await);
}

#[test]
fn group_of_ipv6_is_asked_too() {
    in_namespace(async || {
        // An address can be used as soon as it is there.
        std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
        wire("near", "far");
        await_addresses(&["near", "far"]);
        ask("[ff02::fb]:5353".parse().unwrap(), "near", "far").await;
    });
}

#[tokio::test]
async fn without_an_interface_there_is_no_conversation() {
    let group = "239.255.77.2:37022".parse().unwrap();
    let error = Conversation::open(group, &["absent*".to_owned()], &OwnSenders::default()).unwrap_err();
    assert!(matches!(&error, Stop::Unavailable(why) if why.contains("absent*") && why.contains("IPv4")), "{error}");
}

#[tokio::test]
async fn sent_datagrams_are_bounded_in_size() {
    let conversation =
        Conversation::open("239.255.77.3:37023".parse().unwrap(), &lo(), &OwnSenders::default()).unwrap();
    conversation.send(&[0; 9000]).await.unwrap();
    assert!(matches!(conversation.send(&[0; 9001]).await, Err(Stop::Limit(_))));
}

#[test]
fn each_interface_carries_its_own_group() {
    in_namespace(async || {
        // Two wires with two ends each; datagrams on one do not reach the other.
        for number in [1, 2] {
            let ends = ["near", "far"].map(|end| format!("{end}{number}"));
            wire(&ends[0], &ends[1]);
            for (host, end) in ends.iter().enumerate() {
                ip(&format!("address add 192.0.2.{number}{host}/32 dev {end}"));
                // The namespace is both ends: its own addresses come in by a wire.
                for (setting, value) in [("accept_local", "1"), ("rp_filter", "0")] {
                    std::fs::write(format!("/proc/sys/net/ipv4/conf/{end}/{setting}"), value).unwrap();
                }
            }
        }
        let group = "239.255.255.250:3702".parse().unwrap();
        let globs = |globs: &[&str]| globs.iter().map(ToString::to_string).collect::<Vec<_>>();
        let near = Conversation::open(group, &globs(&["near*"]), &OwnSenders::default()).unwrap();
        let far = Conversation::open(group, &globs(&["far2"]), &OwnSenders::default()).unwrap();
        near.send(b"Probe").await.unwrap();
        let received = far.receive(9, LONG).await;
        assert_eq!((payloads(&received), &*received[0].interface), (vec!["Probe"], "far2"));
        assert_eq!(received[0].from.ip().to_string(), "192.0.2.20", "from the address of near2");
        assert!(far.receive(9, SHORT).await.is_empty(), "what went out on near1 is not for far2");
    });
}

#[tokio::test]
async fn listener_receives_matching_datagrams_only() {
    let group = "239.255.77.4:37024".parse().unwrap();
    let mut listener = listening(group, &["discovery/Hello", "discovery/Bye"], &OwnSenders::default());
    let camera = camera(group, "lo");
    camera.send_to(b"<Action>discovery/Probe</Action>", group).unwrap();
    assert!(tokio::time::timeout(SHORT, listener.received()).await.is_err());
    camera.send_to(b"<Action>discovery/Hello</Action>", group).unwrap();
    camera.send_to(b"<Action>discovery/Bye</Action>", group).unwrap();
    tokio::time::timeout(LONG, listener.received()).await.unwrap();
    assert!(tokio::time::timeout(SHORT, listener.received()).await.is_err(), "what came together counts as one");
}

fn listening(group: SocketAddr, filters: &[&str], own: &OwnSenders) -> Listener {
    let filters = filters.iter().map(|text| DatagramFilter::parse(text).unwrap()).collect();
    Listener::new(group, &lo(), filters, own.clone())
}

#[tokio::test] // threat 23
async fn listener_ignores_own_datagrams() {
    let group = "239.255.77.6:37026".parse().unwrap();
    let own = OwnSenders::default();
    let mut listener = listening(group, &[""], &own);
    let conversation = Conversation::open(group, &lo(), &own).unwrap();
    conversation.send(b"Probe").await.unwrap();
    assert!(tokio::time::timeout(SHORT, listener.received()).await.is_err());
    drop(conversation);
    camera(group, "lo").send_to(b"Hello", group).unwrap();
    tokio::time::timeout(LONG, listener.received()).await.unwrap();
}

#[tokio::test] // threat 48
async fn listener_receives_through_a_flood() {
    let group = "239.255.77.5:37025".parse().unwrap();
    let mut listener = listening(group, &["Hello"], &OwnSenders::default());
    let camera = camera(group, "lo");
    for _ in 0..2000 {
        camera.send_to(&[b'x'; 500], group).unwrap();
    }
    camera.send_to(b"Hello", group).unwrap();
    tokio::time::timeout(LONG, listener.received()).await.unwrap();
}

#[test]
fn listener_follows_interfaces() {
    in_namespace(async || {
        ip("link set lo down");
        let group = "239.255.255.250:3702".parse().unwrap();
        let mut listener = Listener::new(group, &lo(), vec![DatagramFilter::Any], OwnSenders::default());
        listener.rescan = tokio::time::interval(Duration::from_millis(20));
        assert!(tokio::time::timeout(SHORT, listener.received()).await.is_err());
        ip("link set lo up");
        let camera = camera(group, "lo");
        let send_late = async {
            loop {
                camera.send_to(b"Hello", group).unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = listener.received() => {}
            () = send_late => {}
        }
    });
}
