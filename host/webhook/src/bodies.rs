//! Turns to receive bodies, which any pod can send slowly. A client waits for none of a client that has more of them.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The bodies that are being received, in order of their start.
pub(crate) struct Bodies {
    limit: usize,
    under_way: Mutex<Vec<Body>>,
    /// Notified when one of them ends.
    ended: Notify,
}

#[derive(Clone)]
struct Body {
    client: IpAddr,
    /// Notified when it has to make room.
    superseded: Arc<Notify>,
}

impl Bodies {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, under_way: Mutex::default(), ended: Notify::new() }
    }

    /// Receives a body when it is its turn; `None` if it had to make room for a client with fewer.
    pub(crate) async fn receive<T>(&self, client: IpAddr, receive: impl Future<Output = T>) -> Option<T> {
        let body = Body { client, superseded: Arc::default() };
        loop {
            let ended = self.ended.notified(); // also of what ends before it is polled
            if self.begin(&body) {
                break;
            }
            ended.await;
        }
        let reception = Reception { bodies: self, body };
        tokio::select! {
            biased;
            received = receive => Some(received),
            () = reception.body.superseded.notified() => None,
        }
    }

    /// Begins to receive a body, if necessary in place of the oldest one of the client with the most.
    fn begin(&self, body: &Body) -> bool {
        let mut under_way = self.under_way.lock();
        if under_way.len() >= self.limit {
            let count = |client: IpAddr| under_way.iter().filter(|other| other.client == client).count();
            // The first one with the highest count is the oldest of its client.
            let fullest = under_way.iter().enumerate().rev().max_by_key(|(_, other)| count(other.client));
            let Some((oldest, other)) = fullest.filter(|(_, other)| count(other.client) > count(body.client)) else {
                return false;
            };
            other.superseded.notify_one();
            under_way.remove(oldest);
        }
        under_way.push(body.clone());
        true
    }
}

/// A body that is being received.
struct Reception<'a> {
    bodies: &'a Bodies,
    body: Body,
}

impl Drop for Reception<'_> {
    fn drop(&mut self) {
        self.bodies.under_way.lock().retain(|other| !Arc::ptr_eq(&other.superseded, &self.body.superseded));
        self.bodies.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures::FutureExt as _;

    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[tokio::test] // rule 136, threat 6
    async fn client_with_fewer_bodies_waits_for_none() {
        let bodies = Bodies::new(3);
        let mut slow: Vec<_> = (0..6).map(|_| Box::pin(bodies.receive(client(1), pending::<()>()))).collect();
        assert!(slow.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        assert_eq!(bodies.receive(client(2), ready(7)).now_or_never(), Some(Some(7)));
        let ended: Vec<_> = slow.iter_mut().map(|one| one.as_mut().now_or_never()).collect();
        assert_eq!(ended, [Some(None), None, None, None, None, None], "the oldest one has made room");
    }

    #[tokio::test] // rule 136
    async fn client_with_as_many_waits() {
        let bodies = Bodies::new(2);
        let [mut one, mut two] = [1, 2].map(|of| Box::pin(bodies.receive(client(of), pending::<()>())));
        assert!(one.as_mut().now_or_never().is_none() && two.as_mut().now_or_never().is_none());
        let mut third = Box::pin(bodies.receive(client(1), ready(())));
        assert!(third.as_mut().now_or_never().is_none());
        drop(one);
        assert_eq!(third.await, Some(()));
        assert_eq!(bodies.under_way.lock().len(), 1);
    }
}
