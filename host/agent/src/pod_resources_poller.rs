//! Polls what containers use, while there are claims: the kubelet's PodResources API and its checkpoint
//! (rule 19, rule 20, rule 21, rule 45).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use akri_kubelet::FileId;
use akri_kubelet::checkpoint;
use akri_kubelet::pod_resources;
use akri_model::claim_machine::Moment;
use akri_model::names::{Key, RESOURCE_PREFIX};
use akri_model::reclaim::{ContainerName, SnapshotInfo, UsageSnapshot, Users};
use akri_node::cgroups;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use crate::checkpoint_refresher::CheckpointRefresher;

/// The default pause between polls.
pub const INTERVAL: Duration = Duration::from_secs(2);

/// The pause after a poll that an Allocate interrupted: a pod that lives for a second is to be observed, too.
const SOON: Duration = Duration::from_millis(200);

/// The time for which the kubelet has to be away to count as restarted, if its socket is the same (rule 105).
const AWAY: Duration = Duration::from_secs(60);

/// Orders claims and snapshots: all counters only grow.
#[derive(Debug)]
pub struct ClaimTracker {
    start: Instant,
    generation: AtomicU64,
    started: AtomicU64,
    finished: AtomicU64,
    epoch: AtomicU64,
    /// The claims of this node, by the Configuration that has an owner for them.
    held: watch::Sender<BTreeMap<Option<Key>, usize>>,
}

impl ClaimTracker {
    /// Times count from `start`, and generations go on after the journal's.
    pub fn new(start: Instant, last_generation: u64) -> Self {
        Self {
            start,
            generation: AtomicU64::new(last_generation),
            started: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            held: watch::Sender::default(),
        }
    }

    /// The time of an input that may make claims.
    pub fn moment(&self) -> Moment {
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        Moment { now: self.now(), epoch: self.epoch(), generation }
    }

    /// Time since its start, as [`SnapshotInfo::at`] counts it.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The kubelet's epoch.
    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// To be held while an Allocate is answered: a snapshot taken meanwhile says nothing about it.
    pub fn answering(self: &Arc<Self>) -> Answering {
        self.started.fetch_add(1, Ordering::SeqCst);
        Answering(Arc::clone(self))
    }

    /// The owner of a Configuration has so many claims; without one, they are those of Configurations that are gone.
    pub fn count(&self, of: Option<&Key>, claims: usize) {
        self.held.send_if_modified(|held| {
            let before = if claims > 0 { held.insert(of.cloned(), claims) } else { held.remove(&of.cloned()) };
            before.unwrap_or_default() != claims
        });
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

/// The settings of the poller.
#[derive(Debug, Clone)]
pub struct Polling {
    /// Pause between polls.
    pub interval: Duration,
    /// The time after a restart, of the kubelet or of this agent, in which absence is ignored (rule 19).
    pub reclaim_delay: Duration,
    /// The pod that this agent runs in, if it does: lists without it are not complete.
    pub own_pod: Option<Key>,
    /// The host's tree of cgroups.
    pub cgroups: PathBuf,
    /// The time for which a slot of a shared device stays taken after the last sight of its container, if that tree can't be read
    /// (rule 101).
    pub release_delay: Duration,
}

/// Polls the kubelet.
pub struct Poller {
    kubelet_dir: PathBuf,
    claims: Arc<ClaimTracker>,
    refresher: Arc<CheckpointRefresher>,
    polling: Polling,
    /// The last list lacked it.
    incomplete: bool,
    /// The tree of cgroups could be read the last time.
    sees_cgroups: bool,
    /// The kubelet's sockets: another one is another kubelet.
    kubelet: [Option<FileId>; 2],
    /// The checkpoint of the last snapshot.
    checkpoint: Option<FileId>,
    /// The time since which polls fail; none when the agent starts.
    away: Option<Instant>,
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
    /// Returns a poller of what is below the kubelet's root directory.
    pub fn new(
        kubelet_dir: &Path,
        claims: Arc<ClaimTracker>,
        refresher: Arc<CheckpointRefresher>,
        polling: Polling,
    ) -> Self {
        Self {
            kubelet_dir: kubelet_dir.to_owned(),
            claims,
            refresher,
            polling,
            incomplete: false,
            sees_cgroups: true,
            kubelet: [None, None],
            checkpoint: None,
            away: None,
            restarted: None,
        }
    }

    /// Starts to poll until the task is dropped. Also returns the latest snapshot.
    pub fn start(self) -> (watch::Receiver<Option<UsageSnapshot>>, JoinSet<()>) {
        let (sender, snapshots) = watch::channel(None);
        (snapshots, JoinSet::from_iter([self.run(sender)]))
    }

    async fn run(mut self, sender: watch::Sender<Option<UsageSnapshot>>) {
        let mut held = self.claims.held.subscribe();
        loop {
            if held.wait_for(|held| !held.is_empty()).await.is_err() {
                return;
            }
            let polled = self.poll().await;
            let interval = self.polling.interval;
            let pause = if matches!(polled, Err(Missed::Busy)) { SOON.min(interval) } else { interval };
            if let Ok(snapshot) = polled {
                sender.send_replace(Some(snapshot));
            }
            sleep(pause).await;
        }
    }

    async fn poll(&mut self) -> Result<UsageSnapshot, Missed> {
        let before = self.claims.quiet().ok_or(Missed::Busy)?;
        let generation = self.claims.generation.load(Ordering::SeqCst);
        let kubelet = self.sockets();
        let listed = pod_resources::list(&self.kubelet_dir, RESOURCE_PREFIX).await.map_err(|error| {
            debug!("polling PodResources failed: {error}");
            self.away.get_or_insert_with(Instant::now);
            Missed::Kubelet
        })?;
        self.notice_restart();
        // What a kubelet listed that has gone meanwhile says nothing about the next one.
        if kubelet != self.kubelet || !self.is_complete(&listed.containers) {
            return Err(Missed::Kubelet);
        }
        let written = FileId::of(&checkpoint::path(&self.kubelet_dir));
        let checkpoint = self.checkpoint().await;
        let running = self.running_pods().await;
        if self.claims.quiet() != Some(before) {
            return Err(Missed::Busy);
        }
        let settled = self.restarted.is_some_and(|restarted| restarted.elapsed() >= self.polling.reclaim_delay);
        let info = SnapshotInfo {
            generation,
            epoch: self.claims.epoch(),
            at: self.claims.now(),
            settled,
            refreshable: self.refresher.can_refresh(),
            is_renewed: std::mem::replace(&mut self.checkpoint, written) != written,
            release_delay: self.polling.release_delay,
        };
        let (listed, without_devices) = (Arc::new(listed.users), Arc::new(listed.without_devices));
        Ok(UsageSnapshot { info, listed, without_devices, checkpoint, running })
    }

    /// A checkpoint that cannot be read is no information.
    async fn checkpoint(&self) -> Option<Arc<Users<String>>> {
        let kubelet_dir = self.kubelet_dir.clone();
        let read = tokio::task::spawn_blocking(move || checkpoint::read(&kubelet_dir, RESOURCE_PREFIX)).await;
        let allocated = read.ok()?.inspect_err(|error| debug!("{error}")).ok()?;
        let mut users = Users::new();
        for of in allocated {
            let ids = users.entry(of.resource).or_default();
            for id in of.ids {
                ids.entry(id).or_default().insert(of.pod_uid.clone());
            }
        }
        Some(Arc::new(users))
    }

    /// A tree of cgroups that cannot be read is no information.
    async fn running_pods(&mut self) -> Option<Arc<BTreeSet<String>>> {
        let root = self.polling.cgroups.clone();
        let read = tokio::task::spawn_blocking(move || cgroups::running_pods(&root)).await.ok()?;
        if std::mem::replace(&mut self.sees_cgroups, read.is_ok())
            && let Err(error) = &read
        {
            let delay = self.polling.release_delay;
            info!("containers that the kubelet no longer lists are not seen ({error}): slots are kept for {delay:?}");
        }
        read.ok().map(Arc::new)
    }

    /// A kubelet that was restarted while the API server is away knows of no pod at all, not even of this agent's.
    fn is_complete(&mut self, containers: &BTreeSet<ContainerName>) -> bool {
        let is_of = |own: &Key, one: &ContainerName| (&one.namespace, &one.pod) == (&own.namespace, &own.name);
        let is_missing = |own: &&Key| !containers.iter().any(|container| is_of(own, container));
        let missing = self.polling.own_pod.as_ref().filter(is_missing);
        if let Some(own) = missing.filter(|_| !self.incomplete) {
            warn!("the kubelet lists pods without this agent's own, {own}: no slot is given back until it is there");
        }
        self.incomplete = missing.is_some();
        !self.incomplete
    }

    /// Returns the sockets for device plugins and of PodResources. A kubelet that starts answers PodResources at once, and has read its
    /// checkpoint only when it serves plugins, which may take long: it waits for the container runtime.
    fn sockets(&self) -> [Option<FileId>; 2] {
        ["device-plugins", "pod-resources"].map(|name| FileId::of(&self.kubelet_dir.join(name).join("kubelet.sock")))
    }

    fn notice_restart(&mut self) {
        let now = self.sockets();
        let was_away = self.away.take().is_some_and(|since| since.elapsed() >= AWAY);
        if self.restarted.is_none() || was_away || now != self.kubelet {
            self.claims.epoch.fetch_add(1, Ordering::SeqCst);
            self.restarted = Some(Instant::now());
        }
        self.kubelet = now;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn claims() -> Arc<ClaimTracker> {
        Arc::new(ClaimTracker::new(Instant::now(), 0))
    }

    fn poller(kubelet_dir: &Path, claims: Arc<ClaimTracker>, own_pod: Option<Key>) -> Poller {
        let (reclaim_delay, release_delay, cgroups) = (Duration::ZERO, Duration::ZERO, PathBuf::new());
        let polling = Polling { interval: INTERVAL, reclaim_delay, own_pod, cgroups, release_delay };
        Poller::new(kubelet_dir, claims, Arc::default(), polling)
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
        assert_eq!(polled.poll().await.unwrap_err(), Missed::Kubelet);
        assert!(polled.away.is_some());
    }

    #[test] // rule 19
    fn list_without_own_pod_is_incomplete() {
        let (own, other) = (Key::new("akri-system", "akri-agent-x"), Key::new("default", "broker"));
        let mut polled = poller(Path::new("/"), claims(), Some(own.clone()));
        assert!(!polled.is_complete(&BTreeSet::new()));
        let container = |pod: &Key| {
            let (namespace, pod) = (pod.namespace.clone(), pod.name.clone());
            ContainerName { namespace, pod, container: "c".to_owned() }
        };
        assert!(!polled.is_complete(&[container(&other)].into()));
        assert!(polled.is_complete(&[container(&own), container(&other)].into()));
        polled.polling.own_pod = None;
        assert!(polled.is_complete(&BTreeSet::new()), "an agent that runs in no pod can't tell");
    }

    #[test] // rule 19
    fn restarted_kubelet_begins_an_epoch() {
        let dir = tempfile::tempdir().unwrap();
        let sockets = ["device-plugins", "pod-resources"].map(|name| dir.path().join(name).join("kubelet.sock"));
        for socket in &sockets {
            fs::create_dir(socket.parent().unwrap()).unwrap();
            fs::write(socket, "").unwrap();
        }
        let claims = claims();
        let mut polled = poller(dir.path(), Arc::clone(&claims), None);
        let mut noticed = || {
            polled.notice_restart();
            claims.epoch()
        };
        assert_eq!([noticed(), noticed()], [1, 1], "the first look after the agent's start, then the same kubelet");
        // A kubelet answers PodResources, without any device, for as long as no container runtime runs; then it serves plugins.
        for (socket, epoch) in sockets.iter().rev().zip(2..) {
            fs::rename(socket, socket.with_extension("old")).unwrap(); // so that its inode is not given to the next one
            fs::write(socket, "").unwrap();
            assert_eq!([noticed(), noticed()], [epoch, epoch], "{}", socket.display());
        }
    }

    #[test] // rule 105
    fn kubelet_that_was_away_for_a_minute_begins_an_epoch() {
        let claims = claims();
        let mut polled = poller(Path::new("/"), Arc::clone(&claims), None);
        polled.notice_restart();
        for (away, epoch) in [(1, 1), (59, 1), (60, 2)] {
            polled.away = Instant::now().checked_sub(Duration::from_secs(away));
            polled.notice_restart();
            assert_eq!((claims.epoch(), polled.away), (epoch, None), "{away} s");
        }
    }
}
