//! Turns of reviews, which any pod can ask for, with bodies that it may send slowly. A client waits for none of a client that has
//! more of them.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The bodies that are being received, wait for their review, or are reviewed, in order of their start.
pub(crate) struct Bodies {
    limit: usize,
    reviews: usize,
    under_way: Mutex<Vec<Body>>,
    /// Notified when one of them ends, or gets its review.
    changed: Notify,
}

#[derive(Clone)]
struct Body {
    client: IpAddr,
    state: BodyState,
    /// Notified when it has to make room.
    superseded: Arc<Notify>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyState {
    Received,
    Waiting,
    Reviewed,
}

impl Body {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.superseded, &other.superseded)
    }
}

impl Bodies {
    /// So many that are being received or wait, and so many that are reviewed.
    pub(crate) fn new(limit: usize, reviews: usize) -> Self {
        Self { limit, reviews, under_way: Mutex::default(), changed: Notify::new() }
    }

    /// Receives a body and reviews it, each when it is its turn; `None` if it had to make room for a client with fewer.
    pub(crate) async fn review<B, T>(
        &self,
        client: IpAddr,
        receive: impl Future<Output = B>,
        review: impl AsyncFnOnce(B) -> T,
    ) -> Option<T> {
        let body = Body { client, state: BodyState::Received, superseded: Arc::default() };
        self.until(|| self.begin(&body)).await;
        let reception = Reception { bodies: self, body };
        let received = async {
            let received = receive.await;
            self.set_state(&reception.body, BodyState::Waiting);
            self.until(|| self.begin_review(&reception.body)).await;
            received
        };
        let received = tokio::select! {
            biased;
            received = received => received,
            () = reception.body.superseded.notified() => return None,
        };
        Some(review(received).await)
    }

    async fn until(&self, mut is_ready: impl FnMut() -> bool) {
        loop {
            let changed = self.changed.notified(); // also of what ends before it is polled
            if is_ready() {
                return self.changed.notify_waiters(); // there may be a turn for the next one, too
            }
            changed.await;
        }
    }

    /// Begins to receive a body, if necessary in place of the oldest one of the client with the most. What is being reviewed stays.
    fn begin(&self, body: &Body) -> bool {
        let mut under_way = self.under_way.lock();
        let count = |client: IpAddr| under_way.iter().filter(|other| other.client == client).count();
        let is_open = |other: &Body| other.state != BodyState::Reviewed;
        if under_way.iter().filter(|other| is_open(other)).count() >= self.limit {
            // The first one with the highest count is the oldest of its client.
            let open = under_way.iter().enumerate().rev().filter(|(_, other)| is_open(other));
            let fullest = open.max_by_key(|(_, other)| count(other.client));
            let Some((oldest, other)) = fullest.filter(|(_, other)| count(other.client) > count(body.client)) else {
                return false;
            };
            other.superseded.notify_one();
            under_way.remove(oldest);
        }
        under_way.push(body.clone());
        true
    }

    /// Begins the review of a body, if it is the first of those whose clients have the fewest.
    fn begin_review(&self, body: &Body) -> bool {
        let is_next = {
            let under_way = self.under_way.lock();
            let reviewed = || under_way.iter().filter(|other| other.state == BodyState::Reviewed);
            let count = |client: IpAddr| reviewed().filter(|other| other.client == client).count();
            let waiting = under_way.iter().filter(|other| other.state == BodyState::Waiting);
            let next = waiting.min_by_key(|other| count(other.client));
            reviewed().count() < self.reviews && next.is_some_and(|next| next.is(body))
        };
        if is_next {
            self.set_state(body, BodyState::Reviewed);
        }
        is_next
    }

    fn set_state(&self, body: &Body, state: BodyState) {
        self.under_way.lock().iter_mut().filter(|other| other.is(body)).for_each(|other| other.state = state);
    }
}

/// A body that is under way.
struct Reception<'a> {
    bodies: &'a Bodies,
    body: Body,
}

impl Drop for Reception<'_> {
    fn drop(&mut self) {
        self.bodies.under_way.lock().retain(|other| !other.is(&self.body));
        self.bodies.changed.notify_waiters();
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

    async fn none<B>(_: B) {}

    #[tokio::test] // rule 136, threat 6
    async fn client_with_fewer_bodies_waits_for_none() {
        let bodies = Bodies::new(3, 1);
        let mut slow: Vec<_> = (0..6).map(|_| Box::pin(bodies.review(client(1), pending::<()>(), none))).collect();
        assert!(slow.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        assert_eq!(bodies.review(client(2), ready(7), async |seven| seven).now_or_never(), Some(Some(7)));
        let ended: Vec<_> = slow.iter_mut().map(|one| one.as_mut().now_or_never()).collect();
        assert_eq!(ended, [Some(None), None, None, None, None, None], "the oldest one has made room");
    }

    #[tokio::test] // rule 136
    async fn client_with_as_many_waits() {
        let bodies = Bodies::new(2, 1);
        let [mut one, mut two] = [1, 2].map(|of| Box::pin(bodies.review(client(of), pending::<()>(), none)));
        assert!(one.as_mut().now_or_never().is_none() && two.as_mut().now_or_never().is_none());
        let mut third = Box::pin(bodies.review(client(1), ready(()), none));
        assert!(third.as_mut().now_or_never().is_none());
        drop(one);
        assert_eq!(third.await, Some(()));
        assert_eq!(bodies.under_way.lock().len(), 1);
    }

    #[tokio::test] // rule 136, threat 69
    async fn client_with_fewer_reviews_is_next() {
        let bodies = Bodies::new(4, 2);
        let slow = |of| Box::pin(bodies.review(client(of), ready(()), |()| pending::<()>()));
        let mut many: Vec<_> = (0..9).map(|_| slow(1)).collect();
        assert!(many.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        let mut other = slow(2);
        assert!(other.as_mut().now_or_never().is_none(), "it waits for the end of one review");
        let reviewed = |of| {
            let under_way = bodies.under_way.lock();
            under_way.iter().filter(|body| body.client == client(of) && body.state == BodyState::Reviewed).count()
        };
        let open = bodies.under_way.lock().iter().filter(|body| body.state != BodyState::Reviewed).count();
        assert_eq!((reviewed(1), reviewed(2), open), (2, 0, 4), "no review makes room, and no more bodies wait");
        assert_eq!(many[2].as_mut().now_or_never(), Some(None), "the oldest that waits has made room");
        drop(many.remove(0));
        assert!(many.iter_mut().skip(2).all(|one| one.as_mut().now_or_never().is_none()));
        assert!(other.as_mut().now_or_never().is_none());
        assert_eq!((reviewed(1), reviewed(2)), (1, 1), "and not one that has waited for longer");
    }
}
