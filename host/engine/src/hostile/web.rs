//! Behaviours of a guest that uses `wasi:http`: its destinations, and their number.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use super::server::{answering, head, ok, serve};
use super::*;
use crate::network::resolver::Lookup;

fn named(names: &[&str], networks: &[&str]) -> Grants {
    Grants { names: names.iter().map(ToString::to_string).collect(), ..http(networks) }
}

/// A guest of a host that asks nobody else for addresses.
async fn resolving(lookup: impl Fn(&str) -> Vec<&'static str> + Send + Sync + 'static) -> LocalComponent {
    let addresses = move |name: &str| lookup(name).iter().map(|address| address.parse::<IpAddr>().unwrap()).collect();
    let lookup: Lookup = Arc::new(move |name| Ok(addresses(name)));
    LocalHost::resolving(config(None), lookup).unwrap().load(bytes()).await.unwrap()
}

#[tokio::test]
pub(super) async fn granted_server_answers() {
    let (asked, received) = mpsc::channel();
    let asked = Mutex::new(asked);
    let server = serve("127.0.0.1", move |mut stream| {
        asked.lock().unwrap().send(head(&mut stream)).unwrap();
        stream.write_all(ok("hello").as_bytes()).unwrap();
    });
    let seen = properties(with(http(&["127.0.0.0/8"]), &format!("get:http://{server}/path?query=1"))).await;
    assert_eq!((seen["STATUS"].as_str(), seen["BODY"].as_str()), ("200", "hello"));
    let head = received.recv().unwrap();
    assert!(head.starts_with("GET /path?query=1 HTTP/1.1\r\n"), "{head}");
    for line in [format!("host: {server}"), "connection: close".to_owned()] {
        assert!(head.to_lowercase().contains(&format!("{line}\r\n")), "{head}");
    }
}

#[tokio::test] // threat 39
pub(super) async fn ungranted_server_is_not_asked() {
    logged("");
    let server = serve("127.0.0.1", |_| panic!("nobody may connect"));
    let other_port =
        HttpDestinations { to: Destinations { ports: vec![1..=1], ..to(&["127.0.0.0/8"]) }, tls: Tls::System };
    for grants in [
        Grants::default(),
        http(&["10.0.0.0/8"]),
        Grants { http: vec![other_port], ..Grants::default() },
        // A grant of another kind is none.
        Grants { tcp: vec![to(&["127.0.0.0/8"])], udp: vec![to(&["127.0.0.0/8"])], ..Grants::default() },
    ] {
        let seen = properties(with(grants, &format!("get:http://{server}/ungranted"))).await;
        assert!(seen["ERROR"].contains("HttpRequestDenied"), "{seen:?}");
    }
    let log = logged(&format!("test/get:http://{server}/ungranted"));
    let port = server.port();
    let refused = format!("refused: http to 127.0.0.1, port {port}, is not covered by grants.http");
    assert!(log.iter().any(|line| line.contains(&refused)), "{log:?}");
}

#[tokio::test] // threat 40
pub(super) async fn name_has_to_be_granted_and_so_has_what_it_means() {
    let server = answering("127.0.0.1", ok("hello"));
    let guest = resolving(|name| if name == "camera.example" { vec!["127.0.0.1"] } else { vec![] }).await;
    let url = format!("get:http://camera.example:{}/", server.port());
    for (grants, error) in [
        (named(&[], &["127.0.0.0/8"]), "HttpRequestDenied"),
        (named(&["*.other"], &["127.0.0.0/8"]), "HttpRequestDenied"),
        (named(&["*"], &["10.0.0.0/8", "::/0"]), "DestinationIpProhibited"),
    ] {
        let seen = of(guest.discover(with(grants, &url)).await);
        assert!(seen["ERROR"].contains(error), "{error}: {seen:?}");
    }
    let seen = of(guest.discover(with(named(&["camera.*"], &["127.0.0.0/8"]), &url)).await);
    assert_eq!(seen["STATUS"], "200");
    let unknown = of(guest.discover(with(named(&["*"], &["0.0.0.0/0"]), "get:http://unknown.example/")).await);
    assert!(unknown["ERROR"].contains("DnsError"), "{unknown:?}");
}

/// The node's own resolver says that `localhost` is loopback: that does not open it.
#[tokio::test] // threat 40
pub(super) async fn localhost_is_a_name_like_any_other() {
    let server = answering("127.0.0.1", ok("hello"));
    let url = format!("get:http://localhost:{}/", server.port());
    let seen = properties(with(named(&["localhost"], &["10.0.0.0/8"]), &url)).await;
    assert!(seen["ERROR"].contains("DestinationIpProhibited"), "{seen:?}");
    assert_eq!(properties(with(named(&["localhost"], &["127.0.0.0/8"]), &url)).await["STATUS"], "200");
}

#[tokio::test] // threat 40
pub(super) async fn name_that_changes_its_meaning_is_dialled_as_it_was_checked() {
    let server = answering("127.0.0.1", ok("granted"));
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let guest = resolving(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => vec!["127.0.0.1"],
        _ => vec!["127.0.0.2"],
    });
    let guest = guest.await;
    let call = || {
        with(
            named(&["rebinding.example"], &["127.0.0.1/32"]),
            &format!("get:http://rebinding.example:{}/", server.port()),
        )
    };
    let first = of(guest.discover(call()).await);
    assert_eq!((first["BODY"].as_str(), asked.load(Ordering::SeqCst)), ("granted", 1), "it is resolved once");
    assert!(of(guest.discover(call()).await)["ERROR"].contains("DestinationIpProhibited"));
}

#[tokio::test] // threat 40
pub(super) async fn of_many_addresses_only_granted_ones_are_dialled() {
    let server = answering("127.0.0.3", ok("granted"));
    let guest = resolving(|_| vec!["127.0.0.1", "::ffff:127.0.0.2", "::1", "127.0.0.3"]).await;
    let url = format!("get:http://many.example:{}/", server.port());
    assert_eq!(of(guest.discover(with(named(&["*"], &["127.0.0.3/32"]), &url)).await)["BODY"], "granted");
}

#[tokio::test] // threat 41
pub(super) async fn ipv4_address_mapped_into_ipv6_is_that_ipv4_address() {
    let server = answering("127.0.0.1", ok("hello"));
    let url = format!("get:http://[::ffff:127.0.0.1]:{}/", server.port());
    let seen = properties(with(http(&["::/0", "::ffff:0:0/96"]), &url)).await;
    assert!(seen["ERROR"].contains("HttpRequestDenied"), "{seen:?}");
    assert_eq!(properties(with(http(&["127.0.0.0/8"]), &url)).await["STATUS"], "200");
    let guest = resolving(|_| vec!["::ffff:127.0.0.1"]).await;
    let url = format!("get:http://mapped.example:{}/", server.port());
    let seen = of(guest.discover(with(named(&["*"], &["::/0"]), &url)).await);
    assert!(seen["ERROR"].contains("DestinationIpProhibited"), "{seen:?}");
}

#[tokio::test] // threat 42
pub(super) async fn redirect_is_left_to_the_guest_and_checked_again() {
    let elsewhere = serve("127.0.0.2", |_| panic!("nobody may connect"));
    let redirect = format!("HTTP/1.1 302 Found\r\nLocation: http://{elsewhere}/\r\nContent-Length: 0\r\n\r\n");
    let server = answering("127.0.0.1", redirect);
    let seen = properties(with(http(&["127.0.0.1/32"]), &format!("get:http://{server}/"))).await;
    assert_eq!(seen["STATUS"], "302");
    let seen = properties(with(http(&["127.0.0.1/32"]), &format!("follow:http://{server}/"))).await;
    assert!(seen["ERROR"].contains("HttpRequestDenied"), "{seen:?}");
}

#[tokio::test] // threat 45
pub(super) async fn bodies_are_bounded_both_ways() {
    let (announced, large) = ("Content-Length: 2097152\r\n", "x".repeat(2 << 20));
    let chunked = format!("Transfer-Encoding: chunked\r\n\r\n200000\r\n{large}\r\n0\r\n\r\n");
    let announced = answering("127.0.0.1", format!("HTTP/1.1 200 OK\r\n{announced}\r\n{large}"));
    let endless = answering("127.0.0.1", format!("HTTP/1.1 200 OK\r\n{chunked}"));
    let seen = properties(with(http(&["127.0.0.0/8"]), &format!("get:http://{announced}/"))).await;
    assert!(seen["ERROR"].contains("HttpResponseBodySize(Some(2097152))"), "{seen:?}");
    let seen = properties(with(http(&["127.0.0.0/8"]), &format!("get:http://{endless}/"))).await;
    assert!(seen["BODY_ERROR"].contains("body size exceeds limit: 1048576"), "{seen:?}");

    let echo = serve("127.0.0.1", |mut stream| drop(std::io::copy(&mut stream, &mut std::io::sink())));
    let seen = properties(with(http(&["127.0.0.0/8"]), &format!("post:1048577 http://{echo}/"))).await;
    assert!(seen["ERROR"].contains("HttpRequestBodySize(Some(1048576))"), "{seen:?}");
    let full = serve("127.0.0.1", |mut stream| {
        let head = head(&mut stream);
        assert!(head.to_lowercase().contains("transfer-encoding: chunked"), "{head}");
        let mut body = Vec::new();
        while !body.ends_with(b"0\r\n\r\n") {
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).unwrap();
            body.extend(&piece[..count]);
        }
        stream.write_all(ok("taken").as_bytes()).unwrap();
    });
    let seen = properties(with(http(&["127.0.0.0/8"]), &format!("post:1048576 http://{full}/"))).await;
    assert_eq!(seen["BODY"], "taken");
}

#[tokio::test] // threat 45
pub(super) async fn body_that_trickles_ends_in_time() {
    let slow = serve("127.0.0.1", |mut stream| {
        head(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx").unwrap();
        let _ = stream.read(&mut [0]); // until the other side has enough
    });
    let seen = properties(with(http(&["127.0.0.0/8"]), &format!("get:http://{slow}/slow"))).await;
    assert!(seen["BODY_ERROR"].contains("read timeout"), "{seen:?}");
}

#[tokio::test] // threat 31
pub(super) async fn silent_server_times_out_before_the_round() {
    let (left, gone) = mpsc::channel();
    let left = Mutex::new(left);
    let silent = serve("127.0.0.1", move |mut stream| {
        head(&mut stream);
        let end = stream.read(&mut [0]);
        left.lock().unwrap().send(end.unwrap_or(0)).unwrap();
    });
    let url = format!("http://{silent}/slow");
    let waiting = Call { limits: short(), ..with(http(&["127.0.0.0/8"]), &format!("get:{url}")) };
    let seen = properties(waiting).await;
    assert!(format!("{seen:?}").contains("Timeout"), "{seen:?}");
    assert_eq!(gone.recv_timeout(Duration::from_secs(60)).unwrap(), 0, "its connection is closed");
    assert_eq!(properties(with(http(&["127.0.0.0/8"]), &format!("abandon:{url}"))).await["SENT"], "true");
    assert_eq!(gone.recv_timeout(Duration::from_secs(60)).unwrap(), 0, "also if the guest did not wait");
}

#[tokio::test] // threat 47
pub(super) async fn of_a_thousand_requests_a_host_gets_four_at_once() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let highest = most.clone();
    let server = serve("127.0.0.1", move |mut stream| {
        highest.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        head(&mut stream);
        std::thread::sleep(Duration::from_millis(1));
        now.fetch_sub(1, Ordering::SeqCst);
        let _ = stream.write_all(ok("x").as_bytes());
    });
    let many = |details: &str| Call { limits: long("").limits, ..with(http(&["127.0.0.0/8"]), details) };
    let seen = properties(many(&format!("get-many:1000 http://{server}/"))).await;
    assert_eq!((seen["SENT"].as_str(), seen["ANSWERED"].as_str()), ("1000", "1000"));
    assert_eq!(most.load(Ordering::SeqCst), 4);
    let RoundError::LimitExceeded(what) = error(many(&format!("get-many:2000 http://{server}/"))).await else {
        panic!("so many can't be held")
    };
    assert!(what.contains("resources"), "{what}");
}

#[tokio::test] // threat 42
pub(super) async fn tunnel_is_no_request() {
    let server = serve("127.0.0.1", |_| panic!("nobody may connect"));
    let seen = properties(with(http(&["127.0.0.0/8"]), &format!("connect:http://{server}/"))).await;
    assert!(seen["ERROR"].contains("HttpRequestMethodInvalid"), "{seen:?}");
}

#[tokio::test] // threat 35
pub(super) async fn refused_requests_do_not_fill_the_log() {
    log();
    let details = "no-path:3000 http://10.0.0.1";
    let seen = properties(with(http(&["127.0.0.0/8"]), details)).await;
    assert!(seen["ERROR"].contains("HttpRequestDenied"), "{seen:?}");
    assert_eq!(logged(&format!("test/{details}")).len(), 1, "it is said once");
    assert!(!log().contains("wasmtime_wasi_http"), "nor does anybody else say it");
}

#[tokio::test] // threat 45
pub(super) async fn headers_are_bounded() {
    let RoundError::LimitExceeded(what) = error(call("header-flood")).await else { panic!("100 MB of headers") };
    assert!(what.contains("HTTP headers"), "{what}");
    let endless = serve("127.0.0.1", |mut stream| {
        head(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(b"x-header: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n").is_ok() {}
    });
    let seen = properties(with(http(&["127.0.0.0/8"]), &format!("get:http://{endless}/"))).await;
    assert!(seen["ERROR"].contains("HttpResponseHeaderSectionSize"), "{seen:?}");
}

/// A guest may hold a thousand requests that it never sends: each is small.
#[tokio::test] // threat 47
pub(super) async fn parts_of_a_request_are_bounded() {
    assert_eq!(properties(call("long-method")).await, BTreeMap::from([("METHOD".to_owned(), "Err(())".to_owned())]));
    let longest = properties(call("long-target")).await;
    assert_eq!((longest["AUTHORITY"].as_str(), longest["PATH"].as_str()), ("256", "4096"));
}

#[tokio::test]
async fn failures_are_distinguished() {
    let bound = tokio::net::TcpSocket::new_v4().unwrap(); // it does not listen, and nobody else has its port
    bound.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let closed = bound.local_addr().unwrap();
    let hangs_up = serve("127.0.0.1", |mut stream| drop(head(&mut stream)));
    let babbles = answering("127.0.0.1", "this is no HTTP\r\n\r\n");
    for (server, error) in
        [(closed, "ConnectionRefused"), (hangs_up, "ConnectionTerminated"), (babbles, "HttpProtocolError")]
    {
        let seen = properties(with(http(&["127.0.0.0/8"]), &format!("get:http://{server}/"))).await;
        assert!(seen["ERROR"].contains(error), "{error}: {seen:?}");
    }
}
