//! When a claim ends: the kubelet never says that a device is free again, so the agent looks at what pods use
//! (rules 19-21).

use std::time::Duration;

/// A claim that no look ever saw in use is kept this long: the kubelet's list leaves out ordinary init containers, and a
/// pod takes its time between admission and start.
pub const UNSEEN: Duration = Duration::from_secs(300);

/// So many looks in a row have to find a claim gone that was seen before.
const LOOKS: u8 = 2;

/// What the looks so far say of one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sightings {
    /// The claim's generation.
    generation: u64,
    /// The kubelet's epoch the rest is about.
    epoch: u64,
    /// When the claim was made, or this epoch began.
    since: Duration,
    seen: bool,
    missed: u8,
}

/// One look. Times are from any fixed moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The last generation given to a claim before the look began; later claims are not judged by it.
    pub generation: u64,
    /// Grows when the kubelet or the agent starts anew: what was seen before then no longer counts.
    pub epoch: u64,
    /// When the look was made.
    pub at: Duration,
    /// Whether absence means anything yet: right after a restart the kubelet knows few of its pods.
    pub settled: bool,
}

impl Sightings {
    /// Of a claim just made; a claim made again starts anew.
    pub fn new(generation: u64, epoch: u64, now: Duration) -> Self {
        Self { generation, epoch, since: now, seen: false, missed: 0 }
    }

    /// Whether a container was seen to use it, since the kubelet or the agent last started anew.
    pub fn is_seen(&self) -> bool {
        self.seen
    }

    /// Takes a look into account; says whether the claim has ended.
    pub fn judge(&mut self, in_use: bool, look: &Look) -> bool {
        if self.generation > look.generation {
            return false;
        }
        if self.epoch != look.epoch {
            *self = Self::new(self.generation, look.epoch, look.at);
        }
        if in_use {
            self.seen = true;
            self.missed = 0;
            return false;
        }
        if !look.settled {
            return false;
        }
        self.missed = self.missed.saturating_add(1);
        if self.seen { self.missed >= LOOKS } else { look.at.saturating_sub(self.since) >= UNSEEN }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Look {
        Look { generation: 1, epoch: 1, at: Duration::from_secs(seconds), settled: true }
    }

    fn claim() -> Sightings {
        Sightings::new(1, 1, Duration::ZERO)
    }

    #[test]
    fn seen_and_then_gone_in_two_looks_is_released() {
        let mut claim = claim();
        let ended: Vec<bool> =
            [true, false, true, false, false].iter().zip(0..).map(|(used, t)| claim.judge(*used, &at(t))).collect();
        assert_eq!(ended, [false, false, false, false, true]);
    }

    #[test]
    fn a_claim_never_seen_is_kept_for_five_minutes() {
        let mut claim = claim();
        assert!(!claim.judge(false, &at(299)));
        assert!(claim.judge(false, &at(300)));
    }

    #[test]
    fn a_look_does_not_judge_what_was_claimed_after_it_began() {
        let mut claim = Sightings::new(2, 1, Duration::ZERO);
        assert!(!claim.judge(false, &at(1000)));
    }

    #[test]
    fn after_a_restart_a_claim_has_to_be_seen_again() {
        let mut claim = claim();
        claim.judge(true, &at(0));
        let later = |seconds| Look { epoch: 2, ..at(seconds) };
        assert!(!claim.judge(false, &later(10)));
        assert!(!claim.judge(false, &later(12)));
        assert!(!claim.judge(false, &later(309)), "its five minutes began with the epoch");
        assert!(claim.judge(false, &later(310)));
    }

    proptest! {
        #[test]
        fn an_unsettled_look_never_ends_a_claim(looks in prop::collection::vec((any::<bool>(), 0u64..10_000, 0u64..3), 0..20)) {
            let mut claim = claim();
            for (used, seconds, epoch) in looks {
                let look = Look { settled: false, epoch, ..at(seconds) };
                prop_assert!(!claim.judge(used, &look));
            }
        }
    }
}
