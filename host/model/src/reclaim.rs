//! Decides when a claim ends. The kubelet never says that a device is free again, so the agent observes what pods use: by
//! the kubelet's PodResources API, by its checkpoint, which also knows init containers, and by the cgroups of pods, which
//! outlive both while a container runs out its grace period (rule 19, rule 20, rule 21, rule 45, rule 47, rule 101,
//! rule 102, rule 104).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The time that a claim is kept if nothing can tell whether it is used: one that was never observed in use while the
/// kubelet's checkpoint cannot be read, and one that only an outdated checkpoint has which nothing can renew.
pub const UNSEEN: Duration = Duration::from_secs(300);

/// Consecutive snapshots that must lack a claim before it ends.
const ABSENT: u8 = 2;

/// Containers and pods that are remembered of one claim.
const MAX_USERS: usize = 8;

/// A container, as PodResources names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerName {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
}

impl fmt::Display for ContainerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {} of pod {}/{}", self.container, self.namespace, self.pod)
    }
}

/// A slot, and the container that uses it, if that is known.
pub type SlotUse = (u32, Option<ContainerName>);

/// The users of device plugin IDs, by resource and ID.
pub type Users<T> = BTreeMap<String, BTreeMap<String, BTreeSet<T>>>;

/// The use of devices by the containers of a node at one time.
#[derive(Debug, Clone)]
pub struct UsageSnapshot {
    /// The time and circumstances.
    pub info: SnapshotInfo,
    /// The content of PodResources.
    pub listed: Arc<Users<ContainerName>>,
    /// The containers that PodResources lists without any device, of whichever plugin.
    pub without_devices: Arc<BTreeSet<ContainerName>>,
    /// The content of the kubelet's checkpoint by UID of the pod, if it can be read.
    pub checkpoint: Option<Arc<Users<String>>>,
    /// UIDs of the pods with containers in the host's tree of cgroups, if it can be read.
    pub running: Option<Arc<BTreeSet<String>>>,
}

/// The time and circumstances of a snapshot. Times count from any fixed moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The last generation that was given to a claim before the snapshot began; later claims are not judged by it.
    pub generation: u64,
    /// Grows when the kubelet or the agent restarts.
    pub epoch: u64,
    /// The time of the snapshot.
    pub at: Duration,
    /// False shortly after a restart, when the kubelet knows few of its pods: absence is ignored.
    pub settled: bool,
    /// True if the kubelet can be made to write its checkpoint: a device plugin of this agent is open (rule 104).
    pub refreshable: bool,
    /// True if the kubelet has written its checkpoint since the snapshot before.
    pub is_renewed: bool,
    /// The time for which a slot of a shared device stays taken after the last sight of its container if its cgroup can't be
    /// observed (rule 101).
    pub release_delay: Duration,
}

/// The observations of one claim in the snapshots so far.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimObservation {
    /// The kubelet epoch that `since` and `absent` are about.
    epoch: u64,
    /// The time at which the claim was made, last listed or last in a checkpoint that is renewed, or this epoch began.
    since: Duration,
    absent: u8,
    /// The containers that were listed with it in this epoch.
    listed: BTreeSet<ContainerName>,
    /// A container of which nothing can tell whether it runs, and the time since which (rule 102).
    uncertain: Option<(Duration, ContainerName)>,
    users: ObservedUsers,
}

/// The users of a claim as far as they were observed. The journal keeps them (rule 47, rule 102).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedUsers {
    /// Set if a container was observed to use it.
    #[serde(default)]
    pub seen: bool,
    /// Containers that were last listed with it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub containers: BTreeSet<ContainerName>,
    /// UIDs of the pods that the checkpoint had it for.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub pods: BTreeSet<String>,
    /// UIDs of the pods of earlier claims on the slot, whose containers may still run.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub earlier: BTreeSet<String>,
}

/// The part of a snapshot that is about one claim.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The containers that PodResources lists with its ID.
    listed: Option<&'a BTreeSet<ContainerName>>,
    /// The pods that the checkpoint has its ID for: an init container's among them. `None` if there is no checkpoint.
    checkpoint: Option<Option<&'a BTreeSet<String>>>,
    snapshot: &'a UsageSnapshot,
}

/// The effect of a snapshot on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotEffect {
    /// It stays.
    Keep,
    /// Other users of it were observed: worth a line in the journal.
    Seen,
    /// It stays, but the checkpoint must be refreshed before it can be judged: the kubelet writes it when it receives a
    /// list.
    Refresh,
    /// The kubelet has no container that uses it any more, and offers its ID again.
    Ended {
        /// Set if its container may still run: other nodes must not have the slot yet (rule 101).
        lingers: bool,
    },
}

impl UsageSnapshot {
    /// Returns the part about an ID of a resource.
    pub fn evidence(&self, resource: &str, id: &str) -> Evidence<'_> {
        Evidence {
            listed: self.listed.get(resource).and_then(|ids| ids.get(id)),
            checkpoint: self.checkpoint.as_ref().map(|users| users.get(resource).and_then(|ids| ids.get(id))),
            snapshot: self,
        }
    }

    /// Returns the IDs of a resource that containers of two pods have at once, with two of those: the kubelet's doing, and
    /// no reason to release anything (rule 21).
    pub fn duplicates(&self, resource: &str) -> Vec<(&str, &ContainerName, &ContainerName)> {
        let ids = self.listed.get(resource).into_iter().flatten();
        ids.filter_map(|(id, users)| {
            let first = users.first()?;
            let other = users.iter().find(|user| (&user.namespace, &user.pod) != (&first.namespace, &first.pod))?;
            Some((id.as_str(), first, other))
        })
        .collect()
    }
}

impl Evidence<'_> {
    /// Returns a container that is listed with the ID and was not before.
    pub fn newcomer(&self, users: &ObservedUsers) -> Option<ContainerName> {
        self.listed?.difference(&users.containers).next().cloned()
    }

    /// Returns the containers that had the ID and are listed without any: the kubelet has lost its checkpoint, and they run on, or
    /// they have ended (rule 102). A checkpoint is lost when the kubelet starts, and then all of it: a container that was listed
    /// with the ID since, or with another one, has ended.
    fn forgotten<'a>(&'a self, claim: &'a ClaimObservation) -> impl Iterator<Item = &'a ContainerName> {
        let known = claim.users.containers.difference(&claim.listed);
        known.filter(|container| self.snapshot.without_devices.contains(container))
    }

    /// Returns whether pods run that had the ID, by their cgroups. `None` if those can't be read or the UIDs are not known.
    fn runs(&self, users: &ObservedUsers) -> Option<bool> {
        let running = self.snapshot.running.as_ref()?;
        let earlier_run = !running.is_disjoint(&users.earlier);
        (earlier_run || !users.pods.is_empty()).then(|| earlier_run || !running.is_disjoint(&users.pods))
    }

    /// Returns whether a container may still run that the kubelet no longer lists.
    fn lingers(&self, users: &ObservedUsers, since: Duration) -> bool {
        let info = &self.snapshot.info;
        self.runs(users).unwrap_or_else(|| info.at.saturating_sub(since) < info.release_delay)
    }
}

impl ClaimObservation {
    /// Returns the observation of a claim that was just made; a claim that is made again starts anew (rule 20).
    pub fn new(epoch: u64, now: Duration) -> Self {
        Self::restored(ObservedUsers::default(), epoch, now)
    }

    /// Returns this observation with the users of an earlier claim on the same slot: their containers may still run.
    #[must_use]
    pub fn beside(mut self, earlier: &Self) -> Self {
        self.users.containers.extend(earlier.users.containers.iter().cloned());
        if self.epoch == earlier.epoch {
            self.listed.extend(earlier.listed.iter().cloned());
        }
        let pods = earlier.users.pods.iter().chain(&earlier.users.earlier);
        self.users.earlier.extend(pods.take(MAX_USERS).cloned());
        self
    }

    /// Returns the observation of a claim from the journal. The users outlive restarts (rule 47).
    pub fn restored(users: ObservedUsers, epoch: u64, now: Duration) -> Self {
        Self { epoch, since: now, absent: 0, listed: BTreeSet::new(), uncertain: None, users }
    }

    /// Returns the users that were observed.
    pub fn users(&self) -> &ObservedUsers {
        &self.users
    }

    /// Returns the time since it was made or last listed.
    pub fn unlisted_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    /// Returns the time since something last told that it is used.
    pub fn unseen_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.uncertain.as_ref().map_or(self.since, |(since, _)| *since))
    }

    /// Returns a container that keeps it though nothing can tell whether that runs (rule 102).
    pub fn uncertain_user(&self) -> Option<&ContainerName> {
        self.uncertain.as_ref().map(|(_, container)| container)
    }

    /// Takes a snapshot into account. The caller has checked that the claim is older than the snapshot.
    pub fn observe(&mut self, evidence: Evidence<'_>) -> SnapshotEffect {
        let info = evidence.snapshot.info;
        let is_new_epoch = self.epoch != info.epoch;
        if is_new_epoch {
            *self = Self::restored(std::mem::take(&mut self.users), info.epoch, info.at);
        }
        if let Some(running) = &evidence.snapshot.running {
            self.users.earlier.retain(|pod| running.contains(pod)); // so that there is always room for those that run
        }
        let has_new_pods = self.take_pods(evidence.checkpoint.flatten());
        let keep = if has_new_pods { SnapshotEffect::Seen } else { SnapshotEffect::Keep };
        if let Some(listed) = evidence.listed {
            (self.absent, self.since, self.uncertain) = (0, info.at, None);
            // The kubelet offers the ID of a container that it has forgotten again: both are users then.
            let users = evidence.forgotten(self).chain(listed).take(MAX_USERS).cloned().collect();
            let is_known = self.users.seen && !is_new_epoch && users == self.users.containers;
            self.listed = listed.intersection(&users).cloned().collect();
            (self.users.seen, self.users.containers) = (true, users);
            return if is_known { keep } else { SnapshotEffect::Seen };
        }
        if !info.settled {
            return keep;
        }
        if self.is_forgotten(evidence) {
            (self.absent, self.since) = (0, info.at);
            return keep;
        }
        match self.decide_absence(evidence) {
            SnapshotEffect::Refresh if has_new_pods => SnapshotEffect::Seen,
            effect => effect,
        }
    }

    /// Returns whether a container uses it that the kubelet has forgotten, or may do so as far as anything can tell (rule 102).
    fn is_forgotten(&mut self, evidence: Evidence<'_>) -> bool {
        let runs = evidence.runs(&self.users);
        let forgotten = evidence.forgotten(self).next().filter(|_| runs != Some(false)).cloned();
        let since = self.uncertain.take().map_or(evidence.snapshot.info.at, |(since, _)| since);
        self.uncertain = forgotten.clone().filter(|_| runs.is_none()).map(|container| (since, container));
        forgotten.is_some()
    }

    /// Remembers the pods that the checkpoint has the ID for. Returns whether there are new ones.
    fn take_pods(&mut self, pods: Option<&BTreeSet<String>>) -> bool {
        let before = self.users.pods.len();
        let new = pods.into_iter().flatten().cloned();
        self.users.pods.extend(new);
        while self.users.pods.len() > MAX_USERS {
            self.users.pods.pop_first();
        }
        self.users.pods.len() != before
    }

    fn decide_absence(&mut self, evidence: Evidence<'_>) -> SnapshotEffect {
        let info = evidence.snapshot.info;
        let waited = self.unlisted_for(info.at) >= UNSEEN;
        // A container that was listed is no init container: without the list nothing but an old checkpoint has it.
        let is_decided = waited || self.users.seen;
        if evidence.checkpoint.flatten().is_some() && (info.refreshable || !is_decided) {
            self.absent = 1; // the refreshed checkpoint decides next time
            if info.refreshable {
                self.since = info.at; // until then it is as good as listed: an init container never is
            }
            return SnapshotEffect::Refresh;
        }
        // Only a checkpoint has an init container. Of two that a kubelet writes at once the older one may be the last.
        let may_be_old = info.refreshable && !info.is_renewed && evidence.checkpoint.is_some();
        if self.absent == 0 || self.users.seen || waited || !may_be_old {
            self.absent = ABSENT.min(self.absent + 1);
        }
        let lingers = evidence.lingers(&self.users, self.since);
        match () {
            () if self.absent < ABSENT => SnapshotEffect::Refresh,
            () if self.users.seen || evidence.checkpoint.is_some() || waited => SnapshotEffect::Ended { lingers },
            () => SnapshotEffect::Keep,
        }
    }
}

#[cfg(test)]
mod tests;
