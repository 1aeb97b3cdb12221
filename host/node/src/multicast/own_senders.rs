//! The addresses that rounds of this program send from: their own questions must not start rounds.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A listener that is busy reads what was sent so long ago.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// Addresses remembered: one for each conversation and interface.
const MOST: usize = 8192;

/// The addresses, and when each was added last. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct OwnSenders(Arc<Mutex<HashMap<SocketAddr, Instant>>>);

impl OwnSenders {
    /// Datagrams from this address are our own from now on, and for a while.
    pub fn add(&self, address: SocketAddr) {
        let mut sent = self.0.lock();
        sent.insert(plain(address), Instant::now());
        if sent.len() > MOST
            && let Some(oldest) = sent.iter().min_by_key(|(_, added)| **added).map(|(address, _)| *address)
        {
            sent.remove(&oldest);
        }
    }

    /// Returns whether a datagram from this address is our own.
    pub fn contain(&self, address: SocketAddr) -> bool {
        self.0.lock().get(&plain(address)).is_some_and(|sent| sent.elapsed() < KEPT_FOR)
    }
}

/// Without the zone, which not every call of the kernel tells.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_match_without_their_zone() {
        let own = OwnSenders::default();
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        own.add(address("[fe80::1%3]:4000"));
        own.clone().add(address("10.0.0.1:4000"));
        for (text, is_own) in
            [("[fe80::1]:4000", true), ("[fe80::1]:4001", false), ("10.0.0.1:4000", true), ("10.0.0.2:4000", false)]
        {
            assert_eq!(own.contain(address(text)), is_own, "{text}");
        }
    }

    #[test]
    fn own_senders_are_bounded() {
        let own = OwnSenders::default();
        let address = |number: u32| SocketAddr::new(number.to_be_bytes().into(), 1);
        (0..8500).for_each(|number| own.add(address(number)));
        assert_eq!(own.0.lock().len(), MOST);
        assert!(own.contain(address(8499)) && !own.contain(address(0)), "the oldest go first");
    }
}
