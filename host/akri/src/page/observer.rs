//! Observation for all readers of the page, while there are any.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tracing::debug;

use super::view::Snapshot;
use crate::get::args::SourceArgs;
use crate::observed::Observed;

/// The shortest time between observations, and the time after which a failed one is tried again.
pub(super) const PERIOD: Duration = Duration::from_secs(2);

/// Observes when somebody asks, for all who do while the observation is good enough.
#[derive(Debug)]
pub(super) struct Observer {
    source: SourceArgs,
    node: Option<String>,
    last: Mutex<Option<(Instant, Duration, Arc<Snapshot>)>>,
}

impl Observer {
    pub(super) fn new(source: SourceArgs, node: Option<String>) -> Self {
        Self { source, node, last: Mutex::new(None) }
    }

    /// Returns the last observation, or a new one if that is too old.
    pub(super) async fn snapshot(&self) -> Arc<Snapshot> {
        let mut last = self.last.lock().await;
        if let Some((.., snapshot)) = last.as_ref().filter(|(time, good_for, _)| time.elapsed() < *good_for) {
            return Arc::clone(snapshot);
        }
        let (good_for, snapshot) = observe(&self.source, self.node.as_deref()).await;
        let snapshot = Arc::new(snapshot);
        *last = Some((Instant::now(), good_for, Arc::clone(&snapshot)));
        snapshot
    }
}

async fn observe(source: &SourceArgs, node: Option<&str>) -> (Duration, Snapshot) {
    match Observed::read(source).await {
        Ok(mut observed) => {
            if let Some(node) = node {
                observed.instances.retain(|instance| instance.spec.nodes.iter().any(|other| other == node));
            }
            (observed.good_for, Snapshot::of(&observed))
        }
        Err(error) => {
            debug!("observing for the page failed: {error:#}");
            (PERIOD, Snapshot::failed(&format!("{error:#}")))
        }
    }
}
