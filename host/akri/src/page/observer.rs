//! Observation for all readers of the page, while there are any.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tracing::debug;

use super::view::Snapshot;
use crate::get::args::SourceArgs;
use crate::observed::Observed;

/// Time between observations.
pub(super) const PERIOD: Duration = Duration::from_secs(2);

/// Observes when somebody asks, and at most once in a [`PERIOD`] for all who do.
#[derive(Debug)]
pub(super) struct Observer {
    source: SourceArgs,
    node: Option<String>,
    last: Mutex<Option<(Instant, Arc<Snapshot>)>>,
}

impl Observer {
    pub(super) fn new(source: SourceArgs, node: Option<String>) -> Self {
        Self { source, node, last: Mutex::new(None) }
    }

    /// Returns the last observation, or a new one if that is too old.
    pub(super) async fn snapshot(&self) -> Arc<Snapshot> {
        let mut last = self.last.lock().await;
        if let Some((_, snapshot)) = last.as_ref().filter(|(time, _)| time.elapsed() < PERIOD) {
            return Arc::clone(snapshot);
        }
        let snapshot = Arc::new(observe(&self.source, self.node.as_deref()).await);
        *last = Some((Instant::now(), Arc::clone(&snapshot)));
        snapshot
    }
}

async fn observe(source: &SourceArgs, node: Option<&str>) -> Snapshot {
    match Observed::read(source).await {
        Ok(mut observed) => {
            if let Some(node) = node {
                observed.instances.retain(|instance| instance.spec.nodes.iter().any(|other| other == node));
            }
            Snapshot::of(&observed)
        }
        Err(error) => {
            debug!("observing for the page failed: {error:#}");
            Snapshot::failed(&format!("{error:#}"))
        }
    }
}
