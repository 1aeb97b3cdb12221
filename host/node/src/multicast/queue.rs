//! A bounded queue of received datagrams.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Datagrams that wait: each camera of a thousand may answer several times.
const WAITING: usize = 8192;
/// Bytes of them.
const WAITING_BYTES: usize = 8 << 20;
/// Datagrams of one answer.
const PAGE: usize = 1024;
/// Bytes of one answer, about: it becomes memory of the guest at once.
const PAGE_BYTES: usize = 1 << 20;
/// The size of a datagram without a payload.
const OVERHEAD: usize = 128;

/// A datagram that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// The sender.
    pub from: SocketAddr,
    /// The name of the interface it came in by.
    pub interface: Arc<str>,
    /// The content.
    pub payload: Vec<u8>,
}

impl Datagram {
    fn bytes(&self) -> usize {
        self.payload.len() + OVERHEAD
    }
}

/// Bounded by count and by bytes; what does not fit is dropped and counted.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    datagrams: VecDeque<Datagram>,
    bytes: usize,
    dropped: u64,
}

impl Queue {
    pub(crate) fn push(&self, datagram: Datagram) {
        self.waiting.lock().push(datagram);
        self.arrived.notify_one();
    }

    /// At most `max` datagrams, in the order they came in, as soon as there is one; none after `wait`. There may be one
    /// caller at a time.
    pub(crate) async fn take(&self, max: usize, wait: Duration) -> Vec<Datagram> {
        let some = async {
            loop {
                let page = self.waiting.lock().take(max);
                if !page.is_empty() {
                    return page;
                }
                self.arrived.notified().await;
            }
        };
        tokio::time::timeout(wait, some).await.unwrap_or_default()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.waiting.lock().dropped
    }
}

impl Waiting {
    fn push(&mut self, datagram: Datagram) {
        let bytes = self.bytes + datagram.bytes();
        if self.datagrams.len() >= WAITING || bytes > WAITING_BYTES {
            self.dropped += 1;
        } else {
            self.bytes = bytes;
            self.datagrams.push_back(datagram);
        }
    }

    /// At least one, if there is one and it is asked for.
    fn take(&mut self, max: usize) -> Vec<Datagram> {
        let (mut page, mut bytes) = (Vec::new(), 0);
        while page.len() < max.min(PAGE) && bytes < PAGE_BYTES {
            let Some(datagram) = self.datagrams.pop_front() else { break };
            bytes += datagram.bytes();
            page.push(datagram);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(number: usize, bytes: usize) -> Datagram {
        let from = SocketAddr::from(([127, 0, 0, 1], u16::try_from(number % 60_000).unwrap()));
        Datagram { from, interface: "lo".into(), payload: vec![0; bytes] }
    }

    fn filled(count: usize, bytes: usize) -> Queue {
        let queue = Queue::default();
        (0..count).for_each(|number| queue.push(datagram(number, bytes)));
        queue
    }

    #[tokio::test]
    async fn datagrams_come_in_order_and_none_comes_twice() {
        let queue = filled(3, 1);
        let first = queue.take(2, Duration::ZERO).await;
        assert_eq!(first.iter().map(|d| d.from.port()).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(queue.take(2, Duration::ZERO).await, [datagram(2, 1)]);
        assert!(queue.take(2, Duration::ZERO).await.is_empty());
        assert!(filled(1, 1).take(0, Duration::ZERO).await.is_empty());
    }

    #[tokio::test]
    async fn datagram_ends_the_wait() {
        let queue = Queue::default();
        let (taken, ()) = tokio::join!(queue.take(9, Duration::from_secs(3600)), async {
            tokio::task::yield_now().await;
            queue.push(datagram(7, 1));
        });
        assert_eq!(taken, [datagram(7, 1)]);
    }

    #[tokio::test]
    async fn queue_is_bounded_and_counts_what_it_drops() {
        let many = filled(WAITING + 5, 0);
        assert_eq!(many.dropped(), 5);
        let large = filled(9, WAITING_BYTES / 8);
        assert_eq!(large.dropped(), 2, "seven fit with what they take beside their payload");
        // Taking one makes room for one.
        large.take(1, Duration::ZERO).await;
        large.push(datagram(0, WAITING_BYTES / 8));
        assert_eq!(large.dropped(), 2);
        large.push(datagram(0, WAITING_BYTES / 8));
        assert_eq!(large.dropped(), 3);
    }

    #[tokio::test]
    async fn one_answer_is_bounded_by_count_and_by_bytes() {
        let many = filled(PAGE + 5, 0);
        assert_eq!(many.take(usize::MAX, Duration::ZERO).await.len(), PAGE);
        assert_eq!(many.take(usize::MAX, Duration::ZERO).await.len(), 5);
        let large = filled(4, PAGE_BYTES / 2);
        assert_eq!(large.take(9, Duration::ZERO).await.len(), 2);
        assert_eq!(filled(1, 2 * PAGE_BYTES).take(9, Duration::ZERO).await.len(), 1);
    }
}
