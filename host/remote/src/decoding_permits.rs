//! Permits for decoding messages: one for each endpoint, and for large messages one for each user or host, and a few for all (rule 136).

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Weak};

use akri_model::remote::{Address, Endpoint};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Messages above this are decoded a few at a time: each takes several times its size.
const LARGE: usize = 64 << 10;

/// Maximum number of large messages decoded at once, of all handlers together.
const LARGE_AT_ONCE: usize = 2;

/// The permits of all endpoints.
pub(crate) struct DecodingPermits {
    endpoints: Shared<Endpoint>,
    peers: Shared<Peer>,
    large: Semaphore,
}

/// The server of an endpoint: the owner of its socket, if that exists, or a host.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Peer {
    User(Option<u32>),
    Host(IpAddr),
}

impl Peer {
    fn of(address: &Address) -> Self {
        match address {
            Address::Unix(path) => Self::User(fs::symlink_metadata(path).ok().map(|socket| socket.uid())),
            Address::Network(address) => Self::Host(address.ip()),
        }
    }
}

/// One permit for each key that is in use.
struct Shared<K>(Mutex<BTreeMap<K, Weak<Semaphore>>>);

impl<K: Ord> Shared<K> {
    fn of(&self, key: K) -> Arc<Semaphore> {
        let mut permits = self.0.lock();
        permits.retain(|_, permit| permit.strong_count() > 0);
        let known = permits.get(&key).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let permit = Arc::new(Semaphore::new(1));
            permits.insert(key, Arc::downgrade(&permit));
            permit
        })
    }
}

impl Default for DecodingPermits {
    fn default() -> Self {
        let (endpoints, peers) = (Shared(Mutex::default()), Shared(Mutex::default()));
        Self { endpoints, peers, large: Semaphore::new(LARGE_AT_ONCE) }
    }
}

impl DecodingPermits {
    /// Returns the permit of an endpoint, which all its streams share.
    pub(crate) fn of(&self, endpoint: &Endpoint) -> Arc<Semaphore> {
        self.endpoints.of(endpoint.clone())
    }

    /// Waits until an endpoint that has its own permit may have a message decoded. Only a large one waits for other endpoints: for those
    /// of the same peer before it waits for those of others, so that a peer with many endpoints has one turn, too.
    pub(crate) async fn acquire<'a>(&'a self, address: &Address, bytes: usize) -> impl Sized + use<'a> {
        if bytes <= LARGE {
            return None;
        }
        let peer = self.peers.of(Peer::of(address)).acquire_owned().await; // never closed, as the other
        Some((peer, self.large.acquire().await))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn at(host: u8, port: u16) -> Address {
        Address::Network(([10, 0, 0, host], port).into())
    }

    #[tokio::test] // rule 136
    async fn small_messages_wait_for_their_own_endpoint_only() {
        let permits = DecodingPermits::default();
        let of = |name: &str| permits.of(&Endpoint { handler: name.to_owned(), address: at(1, 1) });
        let (own, one, two, three) = (of("a"), at(1, 1), at(2, 1), at(3, 1));
        let held = [permits.acquire(&one, LARGE + 1).await, permits.acquire(&two, LARGE + 1).await];
        assert!(permits.acquire(&three, LARGE).now_or_never().is_some());
        assert!(permits.acquire(&three, LARGE + 1).now_or_never().is_none());
        drop(held);
        assert!(permits.acquire(&one, LARGE + 1).now_or_never().is_some());
        assert!(Arc::ptr_eq(&own, &of("a")) && !Arc::ptr_eq(&own, &of("b")), "all streams of an endpoint have one");
    }

    #[tokio::test] // rule 136, threat 60
    async fn many_endpoints_of_one_peer_delay_no_other_peer() {
        let permits = DecodingPermits::default();
        let addresses: Vec<Address> = (0..8).map(|port| at(1, port)).collect();
        let _held = permits.acquire(&addresses[0], LARGE + 1).await;
        let mut waiting: Vec<_> =
            addresses.iter().skip(1).map(|one| Box::pin(permits.acquire(one, LARGE + 1))).collect();
        assert!(waiting.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        assert!(permits.acquire(&at(2, 1), LARGE + 1).now_or_never().is_some(), "it waits for none of them");
    }

    #[test]
    fn peer_of_a_socket_is_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let of = || Peer::of(&Address::Unix(path.display().to_string()));
        assert_eq!(of(), Peer::User(None));
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(of(), Peer::User(Some(rustix::process::geteuid().as_raw())));
        assert_eq!(Peer::of(&at(1, 2)), Peer::of(&at(1, 3)));
    }
}
