//! Limits the number of concurrent requests of a round: the others wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Requests to one host at once: many cameras have no more sockets.
const HOST: usize = 4;
/// Hosts after which those that nobody talks to any more are forgotten.
const MAX_HOSTS: usize = 1024;

/// The permits of one round.
#[derive(Debug)]
pub(crate) struct RequestPermits {
    all: Arc<Semaphore>,
    hosts: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

/// Held while a request is under way.
pub(crate) type RequestPermit = [OwnedSemaphorePermit; 2];

impl RequestPermits {
    /// So many at once.
    pub(crate) fn new(all: usize) -> Self {
        let all = all.clamp(1, Semaphore::MAX_PERMITS);
        Self { all: Arc::new(Semaphore::new(all)), hosts: Mutex::default() }
    }

    /// Waits for a permit of a host, and then for one of all: a request that waits for a slow host takes nothing from the others.
    pub(crate) async fn acquire(&self, host: IpAddr) -> Result<RequestPermit, AcquireError> {
        Ok([self.host(host).acquire_owned().await?, self.all.clone().acquire_owned().await?])
    }

    fn host(&self, host: IpAddr) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock();
        if hosts.len() >= MAX_HOSTS {
            hosts.retain(|_, permits| Arc::strong_count(permits) > 1);
        }
        Arc::clone(hosts.entry(host).or_insert_with(|| Arc::new(Semaphore::new(HOST))))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn host(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    async fn take(permits: &RequestPermits, number: u32) -> Option<RequestPermit> {
        tokio::time::timeout(Duration::from_millis(10), permits.acquire(host(number))).await.ok().map(Result::unwrap)
    }

    #[tokio::test]
    async fn host_gets_four_requests_at_once_and_all_of_them_so_many() {
        let permits = RequestPermits::new(6);
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(take(&permits, 1).await.unwrap());
        }
        assert!(take(&permits, 1).await.is_none());
        held.push(take(&permits, 2).await.unwrap());
        held.push(take(&permits, 3).await.unwrap());
        assert!(take(&permits, 4).await.is_none());
        drop(held);
        assert!(take(&permits, 1).await.is_some());
    }

    #[tokio::test]
    async fn idle_hosts_are_forgotten() {
        let permits = RequestPermits::new(6);
        let held = take(&permits, 0).await.unwrap();
        for number in 1..5000 {
            drop(take(&permits, number).await.unwrap());
        }
        assert!(permits.hosts.lock().len() <= MAX_HOSTS);
        drop(held);
    }
}
