//! Behaviours of a guest that uses `wasi:sockets`: its destinations, and the number of sockets.

use std::io::{Read, Write};
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use super::server::serve;
use super::*;
use crate::network::names::NameError;

fn tcp(networks: &[&str]) -> Grants {
    Grants { tcp: vec![to(networks)], ..Grants::default() }
}

fn udp(networks: &[&str]) -> Grants {
    Grants { udp: vec![to(networks)], ..Grants::default() }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[tokio::test] // threat 39
pub(super) async fn tcp_goes_where_it_is_granted() {
    logged("");
    let server = serve("127.0.0.1", |mut stream| {
        let mut bytes = [0; 6];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    assert_eq!(properties(with(tcp(&["127.0.0.1/32"]), &format!("tcp:{server}"))).await["TCP"], "hello\n");
    for grants in [Grants::default(), tcp(&["127.0.0.2/32", "::/0"]), udp(&["127.0.0.0/8"]), http(&["127.0.0.0/8"])] {
        assert_eq!(properties(with(grants, &format!("tcp:{server}"))).await["TCP"], "PermissionDenied");
    }
    let refused = format!("refused: tcp to {}, port {}, is not covered by grants.tcp", server.ip(), server.port());
    let log = logged(&format!("test/tcp:{server}"));
    assert!(log.iter().any(|line| line.contains(&refused)), "{log:?}");
}

#[tokio::test] // threat 40
pub(super) async fn granted_name_opens_nothing_by_itself() {
    let server = serve("127.0.0.1", |_| panic!("nobody may connect"));
    let grants = Grants { names: names(&["localhost"]), ..tcp(&["10.0.0.0/8"]) };
    assert_eq!(properties(with(grants, &format!("tcp:localhost:{}", server.port()))).await["TCP"], "PermissionDenied");
}

#[tokio::test] // threat 43
pub(super) async fn nobody_connects_to_a_guest() {
    let everything = Grants { udp: vec![to(&["0.0.0.0/0"])], ..tcp(&["0.0.0.0/0", "::/0"]) };
    for address in ["0.0.0.0:0", "127.0.0.1:0", "0.0.0.0:8080", "[::]:0"] {
        let seen = properties(with(everything.clone(), &format!("listen:{address}"))).await;
        assert!(seen["LISTEN"].contains("PermissionDenied"), "{address}: {seen:?}");
    }
}

#[tokio::test] // threat 39
pub(super) async fn udp_goes_to_and_comes_from_granted_addresses() {
    let echo = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = echo.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = echo.recv_from(&mut buffer) {
            echo.send_to(&buffer[..length], from).unwrap();
        }
    });
    let seen = properties(with(udp(&["127.0.0.1/32"]), &format!("udp:{address}"))).await;
    assert_eq!(seen["UDP"], "hello from 127.0.0.1");
    for grants in [Grants::default(), udp(&["127.0.0.2/32"]), tcp(&["127.0.0.0/8"])] {
        assert_eq!(properties(with(grants, &format!("udp:{address}"))).await["UDP"], "PermissionDenied");
    }
    let group = properties(with(udp(&["0.0.0.0/0"]), "udp:239.255.255.250:3702")).await;
    assert_eq!(group["UDP"], "PermissionDenied", "groups have a grant of their own");
}

/// A granted peer tells another where the guest is: what that one sends does not arrive.
#[tokio::test] // threat 43
pub(super) async fn reflected_datagram_does_not_arrive() {
    let granted = UdpSocket::bind("127.0.0.1:0").unwrap();
    let other = UdpSocket::bind("127.0.0.2:0").unwrap();
    let address = granted.local_addr().unwrap();
    let bounced = std::thread::spawn(move || {
        let (_, guest) = granted.recv_from(&mut [0; 1500]).unwrap();
        other.send_to(b"from elsewhere", guest).unwrap()
    });
    let seen = properties(with(udp(&["127.0.0.1/32"]), &format!("udp-bounce:{address}"))).await;
    assert_eq!((seen["UDP"].as_str(), bounced.join().unwrap()), ("WouldBlock", 14));
}

#[tokio::test] // threat 47
pub(super) async fn sockets_are_bounded_and_a_closed_one_makes_room() {
    let limited = |connections, details: &str| Call {
        limits: Limits { connections, ..Limits::default() },
        ..with(udp(&["127.0.0.1/32"]), details)
    };
    for connections in [8, 64] {
        let seen = properties(limited(connections, "socket-flood:1000")).await;
        assert_eq!(seen["OPEN"], connections.to_string());
        assert_ne!(seen["NEXT"], "OPEN");
    }
    assert_eq!(properties(limited(1, "socket-reuse:1000")).await["OPENED"], "1000");
}

#[tokio::test] // threat 47
pub(super) async fn only_granted_names_are_resolved_and_a_bounded_number() {
    let lookup = Arc::new(|name: &str| match name {
        "camera.example" => Ok(vec!["10.0.0.1".parse::<IpAddr>().unwrap(), "::ffff:10.0.0.2".parse().unwrap()]),
        _ => Err(NameError::Unresolved("nobody knows it".to_owned())),
    });
    let guest = LocalHost::resolving(config(None), lookup).unwrap().load(bytes()).await.unwrap();
    let seen = async |details: &str| {
        let grants = Grants { names: names(&["*.example"]), ..Grants::default() };
        of(guest.discover(Call { limits: long("").limits, ..with(grants, details) }).await)
    };
    assert_eq!(seen("resolve:camera.example").await["NAME"], "10.0.0.1 10.0.0.2");
    assert_eq!(seen("resolve:192.0.2.1").await["NAME"], "192.0.2.1", "an address needs no grant; it opens nothing");
    for name in ["localhost", "unknown.example", "evil.com", "a b.example"] {
        assert!(seen(&format!("resolve:{name}")).await["NAME"].starts_with("error"), "{name}");
    }
    assert_eq!(seen("resolve-flood:2000 camera.example").await["RESOLVED"], "1024");
}

/// A thread that asks can't be ended: those that hang are few, and only their own component waits for them.
#[tokio::test] // threat 31
pub(super) async fn resolver_that_hangs_holds_up_nobody_else() {
    let (release, hung) = std::sync::mpsc::channel::<()>();
    let hung = Mutex::new(hung);
    let lookup = Arc::new(move |_: &str| {
        let _ = hung.lock().unwrap().recv(); // until the test is over
        Ok(Vec::new())
    });
    let host = LocalHost::resolving(config(None), lookup).unwrap();
    let (hanging, other) = (host.load(bytes()).await.unwrap(), host.load(bytes()).await.unwrap());
    let mut tries = 0..40; // on a busy machine a guest may not have begun when its time is over
    let mut hung = 0;
    while hung < 8 && tries.next().is_some() {
        let grants = Grants { names: names(&["*"]), ..Grants::default() };
        let call = Call { limits: brief("").limits, ..with(grants, "resolve:camera.example") };
        hung += usize::from(matches!(hanging.discover(call).await, Err(RoundError::DeadlineExceeded(_))));
    }
    assert_eq!(hung, 8);
    assert!(!other.discover(granted("udev:mem", "mem")).await.unwrap().devices.is_empty());
    drop(release);
}
