//! Permits for decoding messages: one for each endpoint, and a few for large messages (rule 136).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use akri_model::remote::Endpoint;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Messages above this are decoded a few at a time: each takes several times its size.
const LARGE: usize = 64 << 10;

/// Maximum number of large messages decoded at once, of all handlers together.
const LARGE_AT_ONCE: usize = 2;

/// The permits of all endpoints.
pub(crate) struct DecodingPermits {
    endpoints: Mutex<BTreeMap<Endpoint, Weak<Semaphore>>>,
    large: Semaphore,
}

impl Default for DecodingPermits {
    fn default() -> Self {
        Self { endpoints: Mutex::default(), large: Semaphore::new(LARGE_AT_ONCE) }
    }
}

impl DecodingPermits {
    /// Returns the permit of an endpoint, which all its streams share.
    pub(crate) fn of(&self, endpoint: &Endpoint) -> Arc<Semaphore> {
        let mut endpoints = self.endpoints.lock();
        endpoints.retain(|_, permit| permit.strong_count() > 0);
        let known = endpoints.get(endpoint).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let permit = Arc::new(Semaphore::new(1));
            endpoints.insert(endpoint.clone(), Arc::downgrade(&permit));
            permit
        })
    }

    /// Waits until an endpoint may have a message decoded. Only a large one waits for other endpoints.
    pub(crate) async fn acquire<'a>(&'a self, own: &'a Semaphore, bytes: usize) -> [Option<SemaphorePermit<'a>>; 2] {
        let own = own.acquire().await.ok(); // never closed
        let large = if bytes > LARGE { self.large.acquire().await.ok() } else { None };
        [own, large]
    }
}

#[cfg(test)]
mod tests {
    use akri_model::remote::Address;
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test] // rule 136
    async fn small_messages_wait_for_their_own_endpoint_only() {
        let permits = DecodingPermits::default();
        let of = |name: &str| {
            let address = Address::Unix(format!("/{name}"));
            permits.of(&Endpoint { handler: name.to_owned(), address })
        };
        let [a, b, c] = ["a", "b", "c"].map(of);
        let held = [permits.acquire(&a, LARGE + 1).await, permits.acquire(&b, LARGE + 1).await];
        assert!(permits.acquire(&c, LARGE).now_or_never().is_some());
        assert!(permits.acquire(&c, LARGE + 1).now_or_never().is_none());
        let again = of("a");
        assert!(permits.acquire(&again, 1).now_or_never().is_none(), "another stream of the endpoint");
        drop(held);
        assert!(permits.acquire(&again, LARGE + 1).now_or_never().is_some());
    }
}
