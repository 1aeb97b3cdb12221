//! Receives datagrams of a group between rounds.

use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use akri_model::datagram::DatagramFilter;
use tokio::net::UdpSocket;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::multicast::DATAGRAM;
use crate::multicast::interfaces::{self, Interface};
use crate::multicast::own_senders::OwnSenders;
use crate::multicast::sockets;

/// The interval between scans of the interfaces. A new one is used after this at the latest.
const RESCAN: Duration = Duration::from_secs(15);
/// Datagrams and bytes read at once. After so many the listener rests, so that a flood costs a few percent of a processor;
/// what the kernel's buffers don't hold meanwhile is lost.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 1 << 20;
const REST: Duration = Duration::from_millis(10);

/// Receives datagrams to a multicast group that one of some filters lets through, on each granted interface, also those that
/// come up later. What this program's own rounds send does not count.
#[derive(Debug)]
pub struct Listener {
    group: SocketAddr,
    interfaces: Vec<String>,
    filters: Vec<DatagramFilter>,
    own: OwnSenders,
    members: Vec<(Interface, UdpSocket)>,
    pub(super) rescan: Interval,
}

impl Listener {
    /// Creates a listener to datagrams that pass one of the filters, on interfaces whose names match one of the globs.
    pub fn new(group: SocketAddr, interfaces: &[String], filters: Vec<DatagramFilter>, own: OwnSenders) -> Self {
        let mut rescan = interval_at(Instant::now() + RESCAN, RESCAN);
        rescan.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listener = Self { group, interfaces: interfaces.to_vec(), filters, own, members: Vec::new(), rescan };
        listener.follow();
        listener
    }

    /// Waits for a datagram that one of the filters lets through. All that came in by then count as one. May be
    /// dropped and called again: what comes in meanwhile is kept, as far as the kernel's buffers go.
    pub async fn received(&mut self) {
        loop {
            tokio::select! {
                () = readable(&self.members) => {
                    if self.read() {
                        return;
                    }
                    tokio::time::sleep(REST).await;
                }
                _ = self.rescan.tick() => self.follow(),
            }
        }
    }

    /// Joins the group on interfaces that came up, and leaves those that are gone.
    fn follow(&mut self) {
        let granted = match interfaces::granted(&self.interfaces, self.group.ip()) {
            Ok(granted) => granted,
            Err(error) => {
                return tracing::warn!("multicast from {}: the interfaces can't be listed: {error}", self.group);
            }
        };
        self.members.retain(|(interface, _)| granted.contains(interface));
        for interface in granted {
            if self.members.iter().any(|(known, _)| *known == interface) {
                continue;
            }
            match sockets::member(&interface, self.group) {
                Ok(socket) => self.members.push((interface, socket)),
                Err(error) => tracing::debug!("no multicast from {} on {}: {error}", self.group, interface.name),
            }
        }
    }

    /// Reads what is there, within bounds; returns whether one of them counts.
    fn read(&self) -> bool {
        let (mut counts, mut buffer) = (false, vec![0; DATAGRAM]);
        for (_, socket) in &self.members {
            let mut bytes = 0;
            for _ in 0..BATCH {
                match socket.try_recv_from(&mut buffer) {
                    Ok((length, from)) => {
                        bytes += length;
                        counts = counts || self.counts(buffer.get(..length).unwrap_or_default(), from);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // Its interface went down, for example; this is reported once.
                    Err(_) => {}
                }
                if bytes > BATCH_BYTES {
                    break;
                }
            }
        }
        counts
    }

    fn counts(&self, payload: &[u8], from: SocketAddr) -> bool {
        self.filters.iter().any(|filter| filter.matches(payload)) && !self.own.contain(from)
    }
}

/// Waits until one of the sockets has something.
async fn readable(members: &[(Interface, UdpSocket)]) {
    std::future::poll_fn(|context| {
        let ready = members.iter().any(|(_, socket)| socket.poll_recv_ready(context).is_ready());
        if ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
