//! Looks at what pods use, every two seconds while there are claims, and tells the owners (rules 19-21).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use akri_model::names::Key;
use akri_model::reclaim::Look;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::plugin::pod_resources::{self, PodUse};

/// Pause between looks.
const INTERVAL: Duration = Duration::from_secs(2);

/// Pause after a look that an Allocate got in the way of: a pod that lives for a second shall be seen, too.
const SOON: Duration = Duration::from_millis(200);

/// Which device plugin ids containers of this node use, by resource name.
pub type InUse = BTreeMap<String, BTreeSet<String>>;

/// Ids that containers of two pods have at once, by resource and id, and which pods those are.
pub type Twice = BTreeMap<(String, String), String>;

/// A look and what it found.
#[derive(Debug, Clone, Default)]
pub struct Sighting {
    /// How to judge by it.
    pub look: Option<Look>,
    /// What is in use.
    pub in_use: Arc<InUse>,
    /// Of that, what should not be possible.
    pub twice: Arc<Twice>,
}

/// What claims and looks have to know of each other. All counters only grow.
#[derive(Debug)]
pub struct Claims {
    start: Instant,
    generation: AtomicU64,
    started: AtomicU64,
    finished: AtomicU64,
    epoch: AtomicU64,
    /// Claims of this node by anyone.
    held: watch::Sender<usize>,
}

impl Claims {
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

    /// Time since the agent started, as [`Look::at`] counts it.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The kubelet's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// To be held while an Allocate is answered: what is looked at meanwhile says nothing about it.
    pub fn answering(&self) -> Answering<'_> {
        self.started.fetch_add(1, Ordering::SeqCst);
        Answering { claims: self }
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
pub struct Answering<'a> {
    claims: &'a Claims,
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.claims.finished.fetch_add(1, Ordering::SeqCst);
    }
}

/// Looks for as long as it lives.
pub struct Reclaimer {
    sightings: watch::Receiver<Sighting>,
    task: JoinHandle<()>,
}

impl Reclaimer {
    /// Starts looking. `settle` is how long after a restart, of the kubelet or of this agent, absence means nothing. If this
    /// agent runs in a pod, lists without it are not complete.
    pub fn start(kubelet_dir: &Path, claims: Arc<Claims>, settle: Duration, own_pod: Option<Key>) -> Self {
        let (sender, sightings) = watch::channel(Sighting::default());
        let looker = Looker::new(kubelet_dir, claims, settle, own_pod);
        Self { sightings, task: tokio::spawn(looker.run(sender)) }
    }

    /// The latest look.
    pub fn sightings(&self) -> watch::Receiver<Sighting> {
        self.sightings.clone()
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Looker {
    kubelet_dir: PathBuf,
    claims: Arc<Claims>,
    settle: Duration,
    own_pod: Option<Key>,
    /// The last list lacked it.
    incomplete: bool,
    /// Inode and change time of the kubelet's socket: another one is another kubelet.
    kubelet: Option<(u64, i64, i64)>,
    /// The last look failed.
    lost: bool,
    restarted: Option<Instant>,
}

/// Why a look does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missed {
    /// An Allocate was answered meanwhile.
    Busy,
    /// The kubelet did not answer, or not with all its pods.
    Kubelet,
}

impl Looker {
    fn new(kubelet_dir: &Path, claims: Arc<Claims>, settle: Duration, own_pod: Option<Key>) -> Self {
        let kubelet_dir = kubelet_dir.to_owned();
        Self { kubelet_dir, claims, settle, own_pod, incomplete: false, kubelet: None, lost: true, restarted: None }
    }

    async fn run(mut self, sender: watch::Sender<Sighting>) {
        let mut held = self.claims.held.subscribe();
        loop {
            if held.wait_for(|held| *held > 0).await.is_err() {
                return;
            }
            let looked = self.look().await;
            let pause = if matches!(looked, Err(Missed::Busy)) { SOON } else { INTERVAL };
            if let Ok(sighting) = looked {
                sender.send_replace(sighting);
            }
            sleep(pause).await;
        }
    }

    async fn look(&mut self) -> Result<Sighting, Missed> {
        let before = self.claims.quiet().ok_or(Missed::Busy)?;
        let generation = self.claims.generation.load(Ordering::SeqCst);
        let listed = pod_resources::list(&self.kubelet_dir).await.map_err(|error| {
            debug!("no look at pods: {error}");
            self.lost = true;
            Missed::Kubelet
        })?;
        self.notice_restart();
        if !self.is_complete(&listed.pods) {
            return Err(Missed::Kubelet);
        }
        if self.claims.quiet() != Some(before) {
            return Err(Missed::Busy);
        }
        let settled = self.restarted.is_some_and(|restarted| restarted.elapsed() >= self.settle);
        let look = Look { generation, epoch: self.claims.epoch(), at: self.claims.now(), settled };
        let (in_use, twice) = in_use(&listed.uses);
        Ok(Sighting { look: Some(look), in_use: Arc::new(in_use), twice: Arc::new(twice) })
    }

    /// A kubelet that was restarted while the API server is away knows of no pod at all, not even of this agent's.
    fn is_complete(&mut self, pods: &BTreeSet<Key>) -> bool {
        let missing = self.own_pod.as_ref().filter(|own| !pods.contains(own));
        if let Some(own) = missing.filter(|_| !self.incomplete) {
            warn!("the kubelet lists pods without this agent's own, {own}: no slot is given back until it is there");
        }
        self.incomplete = missing.is_some();
        !self.incomplete
    }

    fn notice_restart(&mut self) {
        let socket = self.kubelet_dir.join("device-plugins/kubelet.sock");
        let now = fs::metadata(socket).ok().map(|file| (file.ino(), file.ctime(), file.ctime_nsec()));
        if self.lost || now != self.kubelet {
            self.claims.epoch.fetch_add(1, Ordering::SeqCst);
            self.restarted = Some(Instant::now());
        }
        self.lost = false;
        self.kubelet = now;
    }
}

/// Ids in use by resource. One id in two pods is the kubelet's business, and no reason to release anything (rule 21).
pub fn in_use(uses: &[PodUse]) -> (InUse, Twice) {
    let (mut in_use, mut twice) = (InUse::new(), Twice::new());
    let mut users: BTreeMap<(&str, &str), &PodUse> = BTreeMap::new();
    for pod in uses {
        for id in &pod.ids {
            if let Some(other) = users.insert((&pod.resource, id), pod)
                && (&other.namespace, &other.pod) != (&pod.namespace, &pod.pod)
            {
                let pods = format!("{}/{} and {}/{}", other.namespace, other.pod, pod.namespace, pod.pod);
                twice.insert((pod.resource.clone(), id.clone()), pods);
            }
            in_use.entry(pod.resource.clone()).or_default().insert(id.clone());
        }
    }
    (in_use, twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Arc<Claims> {
        Arc::new(Claims::new(0))
    }

    fn looker(kubelet_dir: &Path, claims: Arc<Claims>) -> Looker {
        Looker::new(kubelet_dir, claims, Duration::ZERO, None)
    }

    #[test]
    fn no_moment_of_an_allocate_is_quiet() {
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

    #[tokio::test]
    async fn a_kubelet_that_does_not_answer_is_no_look() {
        let dir = tempfile::tempdir().unwrap();
        let mut looker = looker(dir.path(), claims());
        looker.lost = false;
        assert_eq!(looker.look().await.unwrap_err(), Missed::Kubelet);
        assert!(looker.lost, "what was seen before it is back does not count");
    }

    #[test]
    fn a_list_without_the_agents_own_pod_is_not_complete() {
        let (own, other) = (Key::new("akri-system", "akri-agent-x"), Key::new("default", "broker"));
        let mut looker = Looker::new(Path::new("/"), claims(), Duration::ZERO, Some(own.clone()));
        assert!(!looker.is_complete(&BTreeSet::new()));
        assert!(!looker.is_complete(&[other.clone()].into()));
        assert!(looker.is_complete(&[own, other].into()));
        looker.own_pod = None;
        assert!(looker.is_complete(&BTreeSet::new()), "an agent that runs in no pod can't tell");
    }

    #[test]
    fn another_kubelet_or_one_that_is_back_begins_an_epoch() {
        let dir = tempfile::tempdir().unwrap();
        let (plugins, socket) = (dir.path().join("device-plugins"), dir.path().join("device-plugins/kubelet.sock"));
        fs::create_dir(plugins).unwrap();
        fs::write(&socket, "").unwrap();
        let claims = claims();
        let mut looker = looker(dir.path(), Arc::clone(&claims));
        let mut noticed = || {
            looker.notice_restart();
            claims.epoch()
        };
        assert_eq!([noticed(), noticed()], [1, 1], "the first look after the agent's start, then the same kubelet");
        fs::rename(&socket, dir.path().join("old")).unwrap(); // so that its inode is not given to the next one
        fs::write(&socket, "").unwrap();
        assert_eq!([noticed(), noticed()], [2, 2]);
        looker.lost = true;
        looker.notice_restart();
        assert_eq!(claims.epoch(), 3);
    }

    #[test]
    fn an_id_that_two_pods_use_is_in_use() {
        let of = |pod: &str, ids: &[&str]| PodUse {
            namespace: "default".into(),
            pod: pod.into(),
            container: "c".into(),
            resource: "akri.sh/cam".into(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        let expected = BTreeSet::from(["0", "1", "2"].map(str::to_owned));
        let (in_use, twice) = in_use(&[of("a", &["0", "1"]), of("b", &["1", "2"]), of("b", &["2"])]);
        assert_eq!(in_use, [("akri.sh/cam".into(), expected)].into());
        let pods = "default/a and default/b".to_owned();
        assert_eq!(twice, [(("akri.sh/cam".into(), "1".into()), pods)].into(), "containers of one pod may share");
    }
}
