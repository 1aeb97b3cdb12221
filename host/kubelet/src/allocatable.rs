//! The devices that the kubelet says it can allocate: what it has kept need not be sent again (rule 49).

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::pod_resources::{self, Allocatable};
use crate::resource::AdvertisedDevices;

/// For how long an answer serves other resources, too: those registered together are due together.
const MAX_AGE: Duration = Duration::from_secs(2);

/// Asks the kubelet for all resources together.
#[derive(Debug)]
pub(super) struct KeptDevices {
    kubelet_dir: PathBuf,
    last: Mutex<Option<Answer>>,
}

#[derive(Debug)]
struct Answer {
    asked: Instant,
    /// None if the kubelet does not say.
    allocatable: Option<Allocatable>,
}

impl KeptDevices {
    pub(super) fn new(kubelet_dir: PathBuf) -> Self {
        Self { kubelet_dir, last: Mutex::new(None) }
    }

    /// Returns whether the kubelet has exactly the healthy devices of a list that was sent at `sent`. A kubelet that cannot
    /// tell, such as one before 1.23, counts as one that has lost them.
    pub(super) async fn include(&self, resource: &str, list: &AdvertisedDevices, sent: Instant) -> bool {
        let mut last = self.last.lock().await;
        let is_good = |answer: &&Answer| answer.asked > sent && answer.asked.elapsed() < MAX_AGE;
        if last.as_ref().filter(is_good).is_none() {
            let asked = Instant::now();
            let allocatable = pod_resources::allocatable(&self.kubelet_dir).await;
            let allocatable = allocatable.inspect_err(|error| tracing::debug!(%error, "lists are sent again")).ok();
            *last = Some(Answer { asked, allocatable });
        }
        let Some(allocatable) = last.as_ref().and_then(|answer| answer.allocatable.as_ref()) else { return false };
        let kept = allocatable.get(resource).into_iter().flatten();
        kept.eq(list.devices.iter().filter(|device| device.healthy).map(|device| &device.id))
    }
}
