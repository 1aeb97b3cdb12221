//! The order in which components are compiled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Compilers at once. Each takes up to `limits.compile.memory` of its component.
const AT_ONCE: usize = 2;

/// The key of a job: attempts before this one, bytes of the component, a number. The smallest goes first.
type Key = (usize, usize, u64);

/// Turns to compile: those with fewer attempts first, then smaller components.
#[derive(Debug, Default)]
pub(super) struct CompileQueue {
    state: Arc<watch::Sender<State>>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    waiting: BTreeSet<Key>,
}

impl State {
    fn is_next(&self, key: &Key) -> bool {
        self.running < AT_ONCE && self.waiting.first() == Some(key)
    }
}

/// A place in the queue, and then a turn, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct QueuePermit {
    state: Arc<watch::Sender<State>>,
    key: Key,
    runs: bool,
}

impl CompileQueue {
    /// Waits for a turn.
    pub(super) async fn permit(&self, attempts: usize, bytes: usize) -> QueuePermit {
        let key = (attempts, bytes, self.next.fetch_add(1, Ordering::Relaxed));
        self.state.send_modify(|state| {
            state.waiting.insert(key);
        });
        let mut permit = QueuePermit { state: Arc::clone(&self.state), key, runs: false };
        let mut changes = self.state.subscribe();
        while !permit.runs {
            // The queue itself keeps the sender.
            let _ = changes.wait_for(|state| state.is_next(&key)).await;
            permit.begin();
        }
        permit
    }
}

impl QueuePermit {
    /// Begins, unless another job came first meanwhile.
    fn begin(&mut self) {
        let Self { state, key, runs } = self;
        state.send_if_modified(|state| {
            *runs = state.is_next(key);
            if *runs {
                state.running += 1;
                state.waiting.remove(key);
            }
            *runs
        });
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.state.send_modify(|state| {
            state.running -= usize::from(self.runs);
            state.waiting.remove(&self.key);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Waits until so many jobs are in the queue.
    async fn wait_for_jobs(queue: &CompileQueue, count: usize) {
        queue.state.subscribe().wait_for(|state| state.waiting.len() == count).await.unwrap();
    }

    #[tokio::test] // rule 91
    async fn fewer_attempts_then_smaller_components_go_first() {
        let (queue, order) = (Arc::new(CompileQueue::default()), Arc::new(Mutex::new(Vec::new())));
        let running = (queue.permit(0, 9).await, queue.permit(0, 9).await);
        let jobs = [(1, 1), (0, 7), (0, 3), (2, 2), (0, 5)];
        let tasks = jobs.map(|(attempts, bytes)| {
            let (queue, order) = (Arc::clone(&queue), Arc::clone(&order));
            tokio::spawn(async move {
                let _permit = queue.permit(attempts, bytes).await;
                order.lock().unwrap().push((attempts, bytes));
            })
        });
        wait_for_jobs(&queue, jobs.len()).await;
        assert!(order.lock().unwrap().is_empty(), "two at a time");
        drop(running.0);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [(0, 3), (0, 5), (0, 7), (1, 1), (2, 2)]);
    }

    #[tokio::test]
    async fn jobs_that_are_given_up_leave_the_queue() {
        let queue = Arc::new(CompileQueue::default());
        let running = (queue.permit(0, 1).await, queue.permit(0, 1).await);
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { drop(queue.permit(0, 1).await) }
        });
        wait_for_jobs(&queue, 1).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        drop(running);
        let _permits = (queue.permit(0, 2).await, queue.permit(0, 2).await);
        assert_eq!((queue.state.borrow().running, queue.state.borrow().waiting.len()), (2, 0));
    }
}
