//! Observation for all readers of the page, while there are any.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::debug;

use super::view::Snapshot;
use crate::get::args::SourceArgs;
use crate::observed::Observed;

/// The time after which a failed observation is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// The time between observations is as many times that of the last one, so that an API server with many pods is not busy with them.
const SHARE: u32 = 10;

/// Observes when somebody asks, and then not again for a while, for all who do.
#[derive(Debug)]
pub(super) struct Observer {
    source: SourceArgs,
    node: Option<String>,
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    snapshot: Arc<Snapshot>,
    /// The time from which on it is too old.
    next: Instant,
}

impl Observer {
    pub(super) fn new(source: SourceArgs, node: Option<String>) -> Self {
        let last = Last { snapshot: Arc::default(), next: Instant::now() };
        Self { source, node, last: Mutex::new(last) }
    }

    /// Returns the last observation, or a new one if that is too old, and the time of the next one.
    pub(super) async fn snapshot(&self) -> (Arc<Snapshot>, Instant) {
        let mut last = self.last.lock().await;
        let start = Instant::now();
        if last.next <= start {
            let observed = self.observe(Arc::clone(&last.snapshot)).await;
            let (snapshot, good_for) = observed.unwrap_or_else(|error| {
                debug!("observing for the page failed: {error:#}");
                (Snapshot::failed(&format!("{error:#}")), RETRY)
            });
            last.snapshot = Arc::new(snapshot);
            last.next = start + good_for.max(start.elapsed() * SHARE);
        }
        (Arc::clone(&last.snapshot), last.next)
    }

    async fn observe(&self, before: Arc<Snapshot>) -> anyhow::Result<(Snapshot, Duration)> {
        let mut observed = Observed::read(&self.source).await?;
        if let Some(node) = &self.node {
            observed.instances.retain(|instance| instance.spec.nodes.contains(node));
        }
        let good_for = observed.good_for;
        Ok((spawn_blocking(move || Snapshot::of(&observed, &before)).await?, good_for))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test] // rule 139
    async fn readers_share_observations() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("configurations")).unwrap();
        let source = SourceArgs { state_dir: directory.path().to_owned(), ..SourceArgs::default() };
        let observer = Observer::new(source, None);
        let (first, _) = observer.snapshot().await;
        observer.last.lock().await.next += Duration::from_secs(3600);
        assert!(Arc::ptr_eq(&first, &observer.snapshot().await.0));
        observer.last.lock().await.next = Instant::now();
        assert!(!Arc::ptr_eq(&first, &observer.snapshot().await.0));
    }
}
