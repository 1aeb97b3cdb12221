//! Polls what containers use, while there are claims: the kubelet's PodResources API and its checkpoint
//! (rule 19, rule 20, rule 21, rule 45).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use akri_kubelet::FileId;
use akri_kubelet::checkpoint;
use akri_kubelet::pod_resources::{self, PodUse};
use akri_model::names::{Key, RESOURCE_PREFIX};
use akri_model::reclaim::{ClaimObservation, SnapshotInfo};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

/// The default pause between polls.
pub const INTERVAL: Duration = Duration::from_secs(2);

/// The pause after a poll that an Allocate interrupted: a pod that lives for a second is to be observed, too.
const SOON: Duration = Duration::from_millis(200);

/// The device plugin ids that containers of this node use, by resource name.
pub type InUse = BTreeMap<String, BTreeSet<String>>;

/// IDs that containers of two pods have at once, by resource and ID, and which pods those are.
pub type DuplicateAllocations = BTreeMap<(String, String), String>;

/// A snapshot of the devices that containers use.
#[derive(Debug, Clone, Default)]
pub struct UsageSnapshot {
    /// The time and circumstances; `None` before the first snapshot.
    pub info: Option<SnapshotInfo>,
    /// The content of PodResources.
    pub in_use: Arc<InUse>,
    /// The content of the kubelet's checkpoint, if it can be read.
    pub checkpoint: Option<Arc<InUse>>,
    /// Devices in use by more containers than there should be.
    pub duplicates: Arc<DuplicateAllocations>,
}

/// Orders claims and snapshots: all counters only grow.
#[derive(Debug)]
pub struct ClaimTracker {
    start: Instant,
    generation: AtomicU64,
    started: AtomicU64,
    finished: AtomicU64,
    epoch: AtomicU64,
    /// Claims of this node by anyone.
    held: watch::Sender<usize>,
}

impl ClaimTracker {
    /// Generations go on after the journal's.
    pub fn new(last_generation: u64) -> Self {
        Self {
            start: Instant::now(),
            generation: AtomicU64::new(last_generation),
            started: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            held: watch::Sender::new(0),
        }
    }

    /// The generation of a new claim.
    pub fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The observation of a claim made now.
    pub fn observation(&self) -> ClaimObservation {
        ClaimObservation::new(self.epoch(), self.now())
    }

    /// Time since the agent started, as [`SnapshotInfo::at`] counts it.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The kubelet's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// To be held while an Allocate is answered: a snapshot taken meanwhile says nothing about it.
    pub fn answering(self: &Arc<Self>) -> Answering {
        self.started.fetch_add(1, Ordering::SeqCst);
        Answering(Arc::clone(self))
    }

    /// An owner has this many more claims than it said before.
    pub fn count(&self, before: usize, now: usize) {
        if before != now {
            self.held.send_modify(|held| *held = (*held + now).saturating_sub(before));
        }
    }

    fn quiet(&self) -> Option<u64> {
        let started = self.started.load(Ordering::SeqCst);
        (started == self.finished.load(Ordering::SeqCst)).then_some(started)
    }
}

/// An Allocate that is being answered.
#[derive(Debug)]
pub struct Answering(Arc<ClaimTracker>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.finished.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls for as long as it lives.
pub struct PodResourcesPoller {
    snapshots: watch::Receiver<UsageSnapshot>,
    task: JoinHandle<()>,
}

impl PodResourcesPoller {
    /// Starts to poll below the kubelet's root directory.
    pub fn start(kubelet_dir: &Path, claims: Arc<ClaimTracker>, polling: Polling) -> Self {
        let (sender, snapshots) = watch::channel(UsageSnapshot::default());
        let poller = Poller::new(kubelet_dir, claims, polling);
        Self { snapshots, task: tokio::spawn(poller.run(sender)) }
    }

    /// The latest snapshot.
    pub fn snapshots(&self) -> watch::Receiver<UsageSnapshot> {
        self.snapshots.clone()
    }
}

impl Drop for PodResourcesPoller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The settings of the poller.
#[derive(Debug, Clone)]
pub struct Polling {
    /// Pause between polls.
    pub interval: Duration,
    /// The time after a restart, of the kubelet or of this agent, in which absence is ignored (rule 19).
    pub reclaim_delay: Duration,
    /// The pod that this agent runs in, if it does: lists without it are not complete.
    pub own_pod: Option<Key>,
}

struct Poller {
    kubelet_dir: PathBuf,
    claims: Arc<ClaimTracker>,
    polling: Polling,
    /// The last list lacked it.
    incomplete: bool,
    /// The kubelet's socket: another one is another kubelet.
    kubelet: Option<FileId>,
    /// The last poll failed.
    lost: bool,
    restarted: Option<Instant>,
}

/// The reason why a poll does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missed {
    /// An Allocate was answered meanwhile.
    Busy,
    /// The kubelet did not answer, or not with all its pods.
    Kubelet,
}

impl Poller {
    fn new(kubelet_dir: &Path, claims: Arc<ClaimTracker>, polling: Polling) -> Self {
        let kubelet_dir = kubelet_dir.to_owned();
        Self { kubelet_dir, claims, polling, incomplete: false, kubelet: None, lost: true, restarted: None }
    }

    async fn run(mut self, sender: watch::Sender<UsageSnapshot>) {
        let mut held = self.claims.held.subscribe();
        loop {
            if held.wait_for(|held| *held > 0).await.is_err() {
                return;
            }
            let polled = self.poll().await;
            let interval = self.polling.interval;
            let pause = if matches!(polled, Err(Missed::Busy)) { SOON.min(interval) } else { interval };
            if let Ok(snapshot) = polled {
                sender.send_replace(snapshot);
            }
            sleep(pause).await;
        }
    }

    async fn poll(&mut self) -> Result<UsageSnapshot, Missed> {
        let before = self.claims.quiet().ok_or(Missed::Busy)?;
        let generation = self.claims.generation.load(Ordering::SeqCst);
        let listed = pod_resources::list(&self.kubelet_dir, RESOURCE_PREFIX).await.map_err(|error| {
            debug!("polling PodResources failed: {error}");
            self.lost = true;
            Missed::Kubelet
        })?;
        self.notice_restart();
        if !self.is_complete(&listed.pods.into_iter().map(|pod| Key::new(pod.namespace, pod.name)).collect()) {
            return Err(Missed::Kubelet);
        }
        let checkpoint = self.checkpoint().await;
        if self.claims.quiet() != Some(before) {
            return Err(Missed::Busy);
        }
        let settled = self.restarted.is_some_and(|restarted| restarted.elapsed() >= self.polling.reclaim_delay);
        let info = SnapshotInfo { generation, epoch: self.claims.epoch(), at: self.claims.now(), settled };
        let (in_use, duplicates) = in_use(&listed.uses);
        let (in_use, duplicates) = (Arc::new(in_use), Arc::new(duplicates));
        Ok(UsageSnapshot { info: Some(info), in_use, checkpoint, duplicates })
    }

    /// A checkpoint that cannot be read is no information.
    async fn checkpoint(&self) -> Option<Arc<InUse>> {
        let kubelet_dir = self.kubelet_dir.clone();
        let read = tokio::task::spawn_blocking(move || checkpoint::read(&kubelet_dir, RESOURCE_PREFIX)).await;
        let allocated = read.ok()?.inspect_err(|error| debug!("{error}")).ok()?;
        let mut in_use = InUse::new();
        for container in allocated {
            in_use.entry(container.resource).or_default().extend(container.ids);
        }
        Some(Arc::new(in_use))
    }

    /// A kubelet that was restarted while the API server is away knows of no pod at all, not even of this agent's.
    fn is_complete(&mut self, pods: &BTreeSet<Key>) -> bool {
        let missing = self.polling.own_pod.as_ref().filter(|own| !pods.contains(own));
        if let Some(own) = missing.filter(|_| !self.incomplete) {
            warn!("the kubelet lists pods without this agent's own, {own}: no slot is given back until it is there");
        }
        self.incomplete = missing.is_some();
        !self.incomplete
    }

    fn notice_restart(&mut self) {
        let now = FileId::of(&self.kubelet_dir.join("device-plugins/kubelet.sock"));
        if self.lost || now != self.kubelet {
            self.claims.epoch.fetch_add(1, Ordering::SeqCst);
            self.restarted = Some(Instant::now());
        }
        self.lost = false;
        self.kubelet = now;
    }
}

/// Ids in use by resource. One id in two pods is the kubelet's business, and no reason to release anything (rule 21).
fn in_use(uses: &[PodUse]) -> (InUse, DuplicateAllocations) {
    let (mut in_use, mut duplicates) = (InUse::new(), DuplicateAllocations::new());
    let mut users: BTreeMap<(&str, &str), &PodUse> = BTreeMap::new();
    for pod in uses {
        for id in &pod.ids {
            if let Some(other) = users.insert((&pod.resource, id), pod)
                && (&other.namespace, &other.pod) != (&pod.namespace, &pod.pod)
            {
                let pods = format!("{}/{} and {}/{}", other.namespace, other.pod, pod.namespace, pod.pod);
                duplicates.insert((pod.resource.clone(), id.clone()), pods);
            }
            in_use.entry(pod.resource.clone()).or_default().insert(id.clone());
        }
    }
    (in_use, duplicates)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn claims() -> Arc<ClaimTracker> {
        Arc::new(ClaimTracker::new(0))
    }

    fn poller(kubelet_dir: &Path, claims: Arc<ClaimTracker>, own_pod: Option<Key>) -> Poller {
        Poller::new(kubelet_dir, claims, Polling { interval: INTERVAL, reclaim_delay: Duration::ZERO, own_pod })
    }

    #[test] // rule 20
    fn allocate_is_never_quiet() {
        let claims = claims();
        let before = claims.quiet();
        assert!(before.is_some());
        let (first, second) = (claims.answering(), claims.answering());
        assert_eq!(claims.quiet(), None);
        drop(first);
        assert_eq!(claims.quiet(), None, "the other one is still being answered");
        drop(second);
        assert!(claims.quiet().is_some() && claims.quiet() != before, "one that came and went meanwhile is noticed");
    }

    #[tokio::test] // rule 19
    async fn poll_fails_without_a_kubelet() {
        let dir = tempfile::tempdir().unwrap();
        let mut polled = poller(dir.path(), claims(), None);
        polled.lost = false;
        assert_eq!(polled.poll().await.unwrap_err(), Missed::Kubelet);
        assert!(polled.lost, "what was seen before it is back does not count");
    }

    #[test] // rule 19
    fn list_without_own_pod_is_incomplete() {
        let (own, other) = (Key::new("akri-system", "akri-agent-x"), Key::new("default", "broker"));
        let mut polled = poller(Path::new("/"), claims(), Some(own.clone()));
        assert!(!polled.is_complete(&BTreeSet::new()));
        assert!(!polled.is_complete(&[other.clone()].into()));
        assert!(polled.is_complete(&[own, other].into()));
        polled.polling.own_pod = None;
        assert!(polled.is_complete(&BTreeSet::new()), "an agent that runs in no pod can't tell");
    }

    #[test] // rule 19
    fn restarted_kubelet_begins_an_epoch() {
        let dir = tempfile::tempdir().unwrap();
        let (plugins, socket) = (dir.path().join("device-plugins"), dir.path().join("device-plugins/kubelet.sock"));
        fs::create_dir(plugins).unwrap();
        fs::write(&socket, "").unwrap();
        let claims = claims();
        let mut polled = poller(dir.path(), Arc::clone(&claims), None);
        let mut noticed = || {
            polled.notice_restart();
            claims.epoch()
        };
        assert_eq!([noticed(), noticed()], [1, 1], "the first look after the agent's start, then the same kubelet");
        fs::rename(&socket, dir.path().join("old")).unwrap(); // so that its inode is not given to the next one
        fs::write(&socket, "").unwrap();
        assert_eq!([noticed(), noticed()], [2, 2]);
        polled.lost = true;
        polled.notice_restart();
        assert_eq!(claims.epoch(), 3);
    }

    #[test] // rule 21
    fn id_of_two_pods_is_in_use() {
        let of = |pod: &str, ids: &[&str]| PodUse {
            namespace: "default".into(),
            pod: pod.into(),
            container: "c".into(),
            resource: "akri.sh/cam".into(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        let expected = BTreeSet::from(["0", "1", "2"].map(str::to_owned));
        let (in_use, duplicates) = in_use(&[of("a", &["0", "1"]), of("b", &["1", "2"]), of("b", &["2"])]);
        assert_eq!(in_use, [("akri.sh/cam".into(), expected)].into());
        let pods = "default/a and default/b".to_owned();
        assert_eq!(duplicates, [(("akri.sh/cam".into(), "1".into()), pods)].into(), "containers of one pod may share");
    }
}
