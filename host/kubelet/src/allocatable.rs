//! The devices that the kubelet can allocate by its own account: a list that it has kept need not be sent again (rule 49).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::pod_resources::{self, Allocatable};
use crate::resource::AdvertisedDevices;

/// For how long an answer serves other resources, too: those registered together are due together.
const MAX_AGE: Duration = Duration::from_secs(2);

/// Longest time that a kubelet takes to apply a list.
const NOTED: Duration = Duration::from_millis(500);

/// The part of a list that the kubelet has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// All healthy devices, and no others.
    All,
    /// Others, or it does not say, as a kubelet before 1.23.
    Unknown,
    /// No resource. A kubelet from 1.26 that notices the end of an old connection late also takes the new registration for
    /// ended, and refuses every Allocate until there is another one (fixed in late 2025).
    None,
}

/// Asks the kubelet for all resources together.
#[derive(Debug)]
pub(super) struct KeptDevices {
    kubelet_dir: PathBuf,
    /// All resources are checked at whole minutes from here.
    pub(super) started: Instant,
    last: Mutex<Option<Answer>>,
}

#[derive(Debug)]
struct Answer {
    asked: Instant,
    answered: Instant,
    /// None if the kubelet does not say.
    allocatable: Option<Allocatable>,
}

impl KeptDevices {
    pub(super) fn new(kubelet_dir: PathBuf) -> Self {
        Self { kubelet_dir, started: Instant::now(), last: Mutex::new(None) }
    }

    /// Returns what the kubelet has of a list that was sent at `sent`.
    pub(super) async fn of(&self, resource: &str, list: &AdvertisedDevices, sent: Instant) -> Kept {
        let mut last = self.last.lock().await;
        let is_good = |answer: &&Answer| answer.asked > sent && answer.answered.elapsed() < MAX_AGE;
        if last.as_ref().filter(is_good).is_none() {
            let asked = Instant::now();
            let allocatable = pod_resources::allocatable(&self.kubelet_dir).await;
            let allocatable = allocatable.inspect_err(|error| tracing::debug!(error, "lists are sent again")).ok();
            *last = Some(Answer { asked, answered: Instant::now(), allocatable });
        }
        let Some(answer) = last.as_ref() else { return Kept::Unknown };
        let Some(allocatable) = &answer.allocatable else { return Kept::Unknown };
        let kept: BTreeSet<&String> = allocatable.get(resource).into_iter().flatten().collect();
        let healthy = list.devices.iter().filter(|device| device.healthy).map(|device| &device.id).collect();
        match kept == healthy {
            true => Kept::All,
            false if kept.is_empty() && answer.asked > sent + NOTED => Kept::None,
            false => Kept::Unknown,
        }
    }
}
