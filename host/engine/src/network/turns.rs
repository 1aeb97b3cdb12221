//! Limits the number of concurrent requests of a round: the others wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Requests to one host at once: many cameras have no more sockets.
const HOST: usize = 4;
/// Hosts after which those that nobody talks to any more are forgotten.
const REMEMBERED: usize = 1024;

/// The turns of one round.
#[derive(Debug)]
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    hosts: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

/// Held while a request is under way.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    _host: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Turns {
    /// So many at once.
    pub(crate) fn new(all: usize) -> Self {
        let all = all.clamp(1, Semaphore::MAX_PERMITS);
        Self { all: Arc::new(Semaphore::new(all)), hosts: Mutex::default() }
    }

    /// Waits for a turn at a host, and then for one at all: who waits for a slow host takes nothing from the others.
    pub(crate) async fn turn(&self, host: IpAddr) -> Result<RequestPermit, AcquireError> {
        let host = self.host(host).acquire_owned().await?;
        Ok(RequestPermit { _host: host, _all: self.all.clone().acquire_owned().await? })
    }

    fn host(&self, host: IpAddr) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() >= REMEMBERED {
            hosts.retain(|_, turns| turns.strong_count() > 0);
        }
        let known = hosts.get(&host).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let turns = Arc::new(Semaphore::new(HOST));
            hosts.insert(host, Arc::downgrade(&turns));
            turns
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn host(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    async fn take(turns: &Turns, number: u32) -> Option<RequestPermit> {
        tokio::time::timeout(Duration::from_millis(10), turns.turn(host(number))).await.ok().map(Result::unwrap)
    }

    #[tokio::test]
    async fn a_host_gets_four_requests_at_once_and_all_of_them_so_many() {
        let turns = Turns::new(6);
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(take(&turns, 1).await.unwrap());
        }
        assert!(take(&turns, 1).await.is_none());
        held.push(take(&turns, 2).await.unwrap());
        held.push(take(&turns, 3).await.unwrap());
        assert!(take(&turns, 4).await.is_none());
        drop(held);
        assert!(take(&turns, 1).await.is_some());
    }

    #[tokio::test]
    async fn hosts_that_nobody_talks_to_are_forgotten() {
        let turns = Turns::new(6);
        let held = take(&turns, 0).await.unwrap();
        for number in 1..5000 {
            drop(take(&turns, number).await.unwrap());
        }
        assert!(turns.hosts.lock().unwrap().len() <= REMEMBERED);
        drop(held);
    }
}
