//! A [`RetryQueue`] that tasks share and wait for.

use std::time::Duration;

use akri_model::retry::{RetryPolicy, jitter};
use akri_model::retry_queue::RetryQueue;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The queue.
#[derive(Debug)]
pub struct WorkQueue<K> {
    keys: Mutex<RetryQueue<K>>,
    changed: Notify,
}

impl<K: Ord + Clone> WorkQueue<K> {
    /// Returns an empty queue whose keys are retried by a policy.
    pub fn new(policy: RetryPolicy) -> Self {
        Self { keys: Mutex::new(RetryQueue::new(policy)), changed: Notify::new() }
    }

    /// Adds a key that is due after a pause. A waiting key is due at the earlier of both times.
    pub fn push_after(&self, key: K, after: Duration) {
        self.keys.lock().push(key, (Instant::now() + after).into_std());
        self.changed.notify_one();
    }

    /// Adds a key that is due now.
    pub fn push(&self, key: K) {
        self.push_after(key, Duration::ZERO);
    }

    /// Waits for a key that is due. The caller gives it back with [`WorkQueue::done`] or [`WorkQueue::failed`]. No key is lost if
    /// this is dropped.
    pub async fn next(&self) -> K {
        loop {
            let changed = self.changed.notified();
            let found = self.keys.lock().pop(Instant::now().into_std());
            match found {
                Ok(key) => {
                    self.changed.notify_one(); // another worker may take the next one
                    return key;
                }
                Err(None) => changed.await,
                Err(Some(at)) => timeout_at(Instant::from_std(at), changed).await.unwrap_or_default(),
            }
        }
    }

    /// Gives a key back after a success; it is due again after a pause, if one is given.
    pub fn done(&self, key: K, again: Option<Duration>) {
        self.keys.lock().done(key, again.map(|after| (Instant::now() + after).into_std()));
        self.changed.notify_one();
    }

    /// Gives a key back after a failure; it is due again after its backoff, which is returned.
    pub fn failed(&self, key: K) -> Duration {
        let pause = self.keys.lock().failed(key, jitter(), Instant::now().into_std());
        self.changed.notify_one();
        pause
    }

    /// Returns the number of keys that wait.
    pub fn waiting(&self) -> usize {
        self.keys.lock().waiting()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn waiting_worker_gets_what_is_pushed() {
        let queue = Arc::new(WorkQueue::new(RetryPolicy::RECONCILE));
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { [queue.next().await, queue.next().await] }
        });
        queue.push("a");
        queue.push_after("b", Duration::from_millis(5));
        assert_eq!(waiting.await.unwrap(), ["a", "b"]);
    }
}
