//! Decides when a claim ends. The kubelet never says that a device is free again, so the agent observes what pods use:
//! by the kubelet's PodResources API, and by the kubelet's checkpoint, which also knows init containers (rule 19,
//! rule 20, rule 21, rule 45, rule 47).

use std::time::Duration;

/// The time that a claim is kept which was never observed in use, if the kubelet's checkpoint cannot be read:
/// PodResources leaves out ordinary init containers.
pub const UNSEEN: Duration = Duration::from_secs(300);

/// Consecutive snapshots that must lack a claim before it ends.
const ABSENT: u8 = 2;

/// The observations of one claim in the snapshots so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimObservation {
    /// The kubelet epoch that `since` and `absent` are about.
    epoch: u64,
    /// The time at which the claim was made, or this epoch began.
    since: Duration,
    seen: bool,
    absent: u8,
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
}

/// The part of a snapshot that shows the device plugin ID of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// PodResources lists it: an app container uses it.
    Listed,
    /// PodResources does not list it and the checkpoint holds it, as for an init container.
    Checkpoint,
    /// Neither has it.
    Absent,
    /// PodResources does not list it, and there is no checkpoint that can be read.
    Unlisted,
}

impl Evidence {
    /// Combines the two witnesses; `checkpoint` is `None` if it cannot be read.
    pub fn new(listed: bool, checkpoint: Option<bool>) -> Self {
        match (listed, checkpoint) {
            (true, _) => Self::Listed,
            (false, Some(true)) => Self::Checkpoint,
            (false, Some(false)) => Self::Absent,
            (false, None) => Self::Unlisted,
        }
    }
}

/// The effect of a snapshot on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotEffect {
    /// It stays.
    Keep,
    /// It was observed in use for the first time since the kubelet or the agent started: worth a line in the journal.
    Seen,
    /// It stays, but the checkpoint must be refreshed before it can be judged: the kubelet writes it when it receives a
    /// list.
    Refresh,
    /// No container uses it any more.
    Ended,
}

impl ClaimObservation {
    /// Returns the observation of a claim that was just made; a claim that is made again starts anew (rule 20).
    pub fn new(epoch: u64, now: Duration) -> Self {
        Self { epoch, since: now, seen: false, absent: 0 }
    }

    /// Returns the observation of a claim from the journal. `seen` outlives restarts (rule 47).
    pub fn restored(seen: bool, epoch: u64, now: Duration) -> Self {
        Self { seen, ..Self::new(epoch, now) }
    }

    /// Returns whether a container was observed to use it.
    pub fn is_seen(&self) -> bool {
        self.seen
    }

    /// Takes a snapshot into account. The caller has checked that the claim is older than the snapshot.
    pub fn observe(&mut self, evidence: Evidence, snapshot: &SnapshotInfo) -> SnapshotEffect {
        let is_new_epoch = self.epoch != snapshot.epoch;
        if is_new_epoch {
            *self = Self::restored(self.seen, snapshot.epoch, snapshot.at);
        }
        match evidence {
            Evidence::Listed => {
                self.absent = 0;
                let is_first = !std::mem::replace(&mut self.seen, true) || is_new_epoch;
                if is_first { SnapshotEffect::Seen } else { SnapshotEffect::Keep }
            }
            _ if !snapshot.settled => SnapshotEffect::Keep,
            Evidence::Checkpoint => {
                self.absent = 1; // the refreshed checkpoint decides next time
                SnapshotEffect::Refresh
            }
            Evidence::Absent | Evidence::Unlisted => self.is_absent(evidence, snapshot),
        }
    }

    fn is_absent(&mut self, evidence: Evidence, snapshot: &SnapshotInfo) -> SnapshotEffect {
        self.absent = self.absent.saturating_add(1);
        let waited = snapshot.at.saturating_sub(self.since) >= UNSEEN;
        match () {
            () if self.absent < ABSENT => SnapshotEffect::Refresh,
            () if self.seen || evidence == Evidence::Absent || waited => SnapshotEffect::Ended,
            () => SnapshotEffect::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Evidence::{Absent, Checkpoint, Listed, Unlisted};

    fn at(seconds: u64) -> SnapshotInfo {
        SnapshotInfo { generation: 1, epoch: 1, at: Duration::from_secs(seconds), settled: true }
    }

    fn claim() -> ClaimObservation {
        ClaimObservation::new(1, Duration::ZERO)
    }

    /// Returns the index of the snapshot, one a second, that ends the claim.
    fn ends_at(evidence: &[Evidence]) -> Option<usize> {
        let mut claim = claim();
        let effects: Vec<SnapshotEffect> = evidence.iter().zip(0..).map(|(e, t)| claim.observe(*e, &at(t))).collect();
        effects.iter().position(|effect| *effect == SnapshotEffect::Ended)
    }

    #[test] // rule 21, rule 45
    fn claim_ends_when_two_snapshots_in_a_row_lack_it() {
        for (evidence, end) in [
            (&[Listed, Absent, Listed, Absent, Absent][..], Some(4)),
            (&[Listed, Unlisted, Listed, Unlisted, Unlisted], Some(4)),
            (&[Absent, Absent], Some(1)),
            (&[Unlisted, Unlisted, Unlisted, Unlisted], None),
            (&[Checkpoint, Checkpoint, Checkpoint], None),
            (&[Listed, Checkpoint, Checkpoint, Absent], Some(3)),
            (&[Absent, Checkpoint, Listed, Absent, Absent], Some(4)),
        ] {
            assert_eq!(ends_at(evidence), end, "{evidence:?}");
        }
    }

    #[test] // rule 21
    fn unseen_claim_without_checkpoint_ends_after_5_minutes() {
        let mut claim = claim();
        claim.observe(Unlisted, &at(298));
        assert_eq!(claim.observe(Unlisted, &at(299)), SnapshotEffect::Keep);
        assert_eq!(claim.observe(Unlisted, &at(300)), SnapshotEffect::Ended);
    }

    #[test] // rule 47
    fn seen_claim_stays_seen_over_a_restart() {
        let mut claim = claim();
        assert_eq!(claim.observe(Listed, &at(0)), SnapshotEffect::Seen);
        let later = |seconds, settled| SnapshotInfo { epoch: 2, settled, ..at(seconds) };
        assert_eq!(claim.observe(Unlisted, &later(10, false)), SnapshotEffect::Keep, "the kubelet has just started");
        assert_eq!(claim.observe(Unlisted, &later(70, true)), SnapshotEffect::Refresh);
        assert_eq!(claim.observe(Unlisted, &later(72, true)), SnapshotEffect::Ended);
    }

    #[test] // rule 19
    fn unseen_claim_waits_anew_after_a_restart() {
        let mut claim = claim();
        let later = |seconds| SnapshotInfo { epoch: 2, ..at(seconds) };
        claim.observe(Unlisted, &at(250));
        claim.observe(Unlisted, &later(260));
        assert_eq!(claim.observe(Unlisted, &later(559)), SnapshotEffect::Keep);
        assert_eq!(claim.observe(Unlisted, &later(560)), SnapshotEffect::Ended);
    }

    proptest! {
        #[test] // rule 19
        fn unsettled_snapshot_never_ends_a_claim(snapshots in prop::collection::vec((0..4usize, 0u64..10_000, 0u64..3), 0..20)) {
            let mut claim = claim();
            for (evidence, seconds, epoch) in snapshots {
                let evidence = [Listed, Checkpoint, Absent, Unlisted][evidence];
                let snapshot = SnapshotInfo { settled: false, epoch, ..at(seconds) };
                prop_assert_ne!(claim.observe(evidence, &snapshot), SnapshotEffect::Ended);
            }
        }
    }
}
