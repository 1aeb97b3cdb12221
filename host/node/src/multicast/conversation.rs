//! The datagrams that a guest sends to a group and receives from it during a round.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use crate::Stop;
use crate::multicast::DATAGRAM;
use crate::multicast::interfaces::{self, Interface};
use crate::multicast::own_senders::OwnSenders;
use crate::multicast::queue::{Datagram, Queue};
use crate::multicast::sockets;

/// Bytes of a datagram that is sent. Requests are small; answers may be as large as UDP allows.
const SENT: usize = 9000;
/// The pause after an error of a socket. Its interface is gone, or a port it sent to is closed.
const PAUSE: Duration = Duration::from_millis(10);

/// A socket on each interface to speak from and one to hear the group with, all read into one queue until this is dropped.
#[derive(Debug)]
pub struct Conversation {
    group: SocketAddr,
    talkers: Vec<(Interface, Arc<UdpSocket>)>,
    queue: Arc<Queue>,
    /// Ends with the conversation.
    _drains: JoinSet<()>,
}

impl Conversation {
    /// Joins the group on each interface that the globs cover and that can carry it. Has to be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// If there is none.
    pub fn open(group: SocketAddr, globs: &[String], senders: &OwnSenders) -> Result<Self, Stop> {
        let none = |why: String| Stop::Unavailable(format!("no interface for {group}: {why}"));
        let (mut pairs, mut last) = (Vec::new(), None);
        for interface in interfaces::granted(globs, group.ip()).map_err(|error| none(error.to_string()))? {
            match pair(&interface, group) {
                Ok((sender_socket, member)) => pairs.push((interface, sender_socket, member)),
                Err(error) => last = Some(format!("{}: {error}", interface.name)),
            }
        }
        if pairs.is_empty() {
            let family = if group.is_ipv4() { "IPv4" } else { "IPv6" };
            let absent = || format!("none of those granted ({}) is up and has an {family} address", globs.join(", "));
            return Err(none(last.unwrap_or_else(absent)));
        }
        // What we send to the group comes back to its members on this node, so also to our own.
        let own: Arc<[SocketAddr]> =
            pairs.iter().filter_map(|(_, sender_socket, _)| sender_socket.local_addr().ok()).collect();
        own.iter().for_each(|address| senders.add(*address));
        let queue = Arc::new(Queue::default());
        let (mut talkers, mut drains) = (Vec::new(), JoinSet::new());
        for (interface, sender_socket, member) in pairs {
            for socket in [sender_socket.clone(), member] {
                drains.spawn(drain(socket, interface.name.as_str().into(), own.clone(), queue.clone()));
            }
            talkers.push((interface, sender_socket));
        }
        Ok(Self { group, talkers, queue, _drains: drains })
    }

    /// Sends a datagram to the group on every interface.
    ///
    /// # Errors
    /// If it is too large, or if no interface carries it.
    pub async fn send(&self, payload: &[u8]) -> Result<(), Stop> {
        if payload.len() > SENT {
            return Err(Stop::Limit(format!("a datagram of {} bytes (at most {SENT})", payload.len())));
        }
        let (mut sent, mut last) = (false, String::new());
        for (interface, sender_socket) in &self.talkers {
            match sender_socket.send_to(payload, sockets::on(interface, self.group)).await {
                Ok(_) => sent = true,
                Err(error) => last = format!("{}: {error}", interface.name),
            }
        }
        if sent { Ok(()) } else { Err(Stop::Unavailable(format!("nothing was sent to {}: {last}", self.group))) }
    }

    /// See [`Queue::take`].
    pub async fn receive(&self, max: usize, wait: Duration) -> Vec<Datagram> {
        self.queue.take(max, wait).await
    }

    /// Datagrams that did not fit into the queue.
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
    }
}

fn pair(interface: &Interface, group: SocketAddr) -> io::Result<(Arc<UdpSocket>, Arc<UdpSocket>)> {
    Ok((sockets::sender_socket(interface, group)?.into(), sockets::member(interface, group)?.into()))
}

/// Reads one socket into the queue, but for what is sent by our own.
async fn drain(socket: Arc<UdpSocket>, interface: Arc<str>, own: Arc<[SocketAddr]>, queue: Arc<Queue>) {
    let mut buffer = vec![0; DATAGRAM];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((_, from)) if own.contains(&from) => {}
            Ok((length, from)) => {
                let payload = buffer.get(..length).unwrap_or_default().to_vec();
                queue.push(Datagram { from, interface: interface.clone(), payload });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
