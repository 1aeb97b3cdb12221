//! Datagrams that start a round: what was said to multicast groups since the last one, such as a camera's Hello.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use akri_sandbox::{Host, Listener};
use tokio::time::{Instant, sleep_until};

use super::round::Wanted;

/// Pause between rounds that datagrams start. Anybody on the network can send them.
const PAUSE: Duration = Duration::from_secs(1);

/// The listeners of one Configuration. They stay from round to round, so that nothing that is said meanwhile is missed.
#[derive(Debug)]
pub(super) struct Ears {
    listeners: BTreeMap<SocketAddr, (Wanted, Listener)>,
    /// Before this, no datagram starts a round.
    earliest: Instant,
}

impl Ears {
    pub(super) fn new(now: Instant) -> Self {
        Self { listeners: BTreeMap::new(), earliest: now }
    }

    /// Listens to these groups and to no others.
    pub(super) fn tune(&mut self, host: &Host, groups: &BTreeMap<SocketAddr, Wanted>) {
        self.listeners.retain(|group, (wanted, _)| groups.get(group) == Some(wanted));
        for (group, wanted) in groups {
            self.listeners.entry(*group).or_insert_with(|| {
                let listener = host.listen(*group, &wanted.interfaces, wanted.texts.clone());
                (wanted.clone(), listener)
            });
        }
    }

    /// Listens to nothing.
    pub(super) fn close(&mut self) {
        self.listeners.clear();
    }

    /// Waits until a datagram is to start a round: the first one at once, further ones when a second is over.
    pub(super) async fn heard(&mut self) {
        if self.listeners.is_empty() {
            return std::future::pending().await;
        }
        let listeners = self.listeners.values_mut().map(|(_, listener)| Box::pin(listener.heard()));
        futures::future::select_all(listeners).await;
        sleep_until(self.earliest).await;
        self.earliest = Instant::now() + PAUSE;
    }
}
