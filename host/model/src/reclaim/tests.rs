use proptest::prelude::*;

use super::*;

const RESOURCE: &str = "akri.sh/cam";
const ID: &str = "cam-0";
const INFO: SnapshotInfo = SnapshotInfo {
    generation: 1,
    epoch: 1,
    at: Duration::ZERO,
    settled: true,
    refreshable: true,
    is_renewed: true,
    release_delay: Duration::from_secs(30),
};

fn container(pod: &str) -> ContainerName {
    ContainerName { namespace: "n".into(), pod: pod.into(), container: "c".into() }
}

fn users<T: Ord>(user: T) -> Arc<Users<T>> {
    Arc::new([(RESOURCE.into(), [(ID.into(), [user].into())].into())].into())
}

/// A snapshot without a checkpoint or a tree of cgroups.
fn unlisted(info: SnapshotInfo) -> UsageSnapshot {
    let (listed, without_devices) = (Arc::default(), Arc::default());
    UsageSnapshot { info, listed, without_devices, checkpoint: None, running: None }
}

/// A snapshot with an empty checkpoint.
fn absent(info: SnapshotInfo) -> UsageSnapshot {
    UsageSnapshot { checkpoint: Some(Arc::default()), ..unlisted(info) }
}

fn listed(info: SnapshotInfo) -> UsageSnapshot {
    UsageSnapshot { listed: users(container("p")), ..absent(info) }
}

fn checkpoint(info: SnapshotInfo) -> UsageSnapshot {
    UsageSnapshot { checkpoint: Some(users("uid".to_owned())), ..unlisted(info) }
}

fn at(seconds: u64) -> SnapshotInfo {
    SnapshotInfo { at: Duration::from_secs(seconds), ..INFO }
}

fn claim() -> ClaimObservation {
    ClaimObservation::new(1, Duration::ZERO)
}

fn observe(claim: &mut ClaimObservation, snapshot: &UsageSnapshot) -> SnapshotEffect {
    claim.observe(snapshot.evidence(RESOURCE, ID))
}

fn has_ended(effect: SnapshotEffect) -> bool {
    matches!(effect, SnapshotEffect::Ended { .. })
}

const SNAPSHOTS: [fn(SnapshotInfo) -> UsageSnapshot; 4] = [listed, checkpoint, absent, unlisted];

#[test] // rule 45
fn claim_that_was_never_listed_ends_by_a_renewed_checkpoint() {
    let old = |seconds| absent(SnapshotInfo { is_renewed: false, ..at(seconds) });
    for renewed in [absent(at(9)), absent(SnapshotInfo { refreshable: false, ..at(9) }), old(UNSEEN.as_secs())] {
        let mut claim = claim();
        assert!((1..9).all(|seconds| observe(&mut claim, &old(seconds)) == SnapshotEffect::Refresh));
        assert!(has_ended(observe(&mut claim, &renewed)));
    }
    let mut seen = claim();
    observe(&mut seen, &listed(at(1)));
    assert!(
        !has_ended(observe(&mut seen, &old(2))) && has_ended(observe(&mut seen, &old(3))),
        "it is no init container"
    );
}

#[test] // rule 21, rule 45
fn claim_ends_when_two_snapshots_in_a_row_lack_it() {
    for (sequence, end) in [
        ("LALAA", Some(4)),
        ("LULUU", Some(4)),
        ("AA", Some(1)),
        ("UUUU", None),
        ("CCC", None),
        ("LCCA", Some(3)),
        ("ACLAA", Some(4)),
    ] {
        let mut claim = claim();
        let effects: Vec<SnapshotEffect> = (0..)
            .zip(sequence.chars())
            .map(|(second, kind)| {
                let snapshot = SNAPSHOTS["LCAU".find(kind).unwrap()](at(second));
                observe(&mut claim, &snapshot)
            })
            .collect();
        assert_eq!(effects.iter().position(|effect| has_ended(*effect)), end, "{sequence}");
    }
}

#[test] // rule 21
fn unseen_claim_without_checkpoint_ends_after_5_minutes() {
    let mut claim = claim();
    observe(&mut claim, &unlisted(at(298)));
    assert_eq!(observe(&mut claim, &unlisted(at(299))), SnapshotEffect::Keep);
    assert_eq!(observe(&mut claim, &unlisted(at(300))), SnapshotEffect::Ended { lingers: false });
}

#[test] // rule 47
fn seen_claim_stays_seen_over_a_restart() {
    let mut claim = claim();
    assert_eq!(observe(&mut claim, &listed(at(0))), SnapshotEffect::Seen);
    assert_eq!(observe(&mut claim, &listed(at(1))), SnapshotEffect::Keep);
    let later = |seconds, settled| SnapshotInfo { epoch: 2, settled, ..at(seconds) };
    let unsettled = observe(&mut claim, &unlisted(later(10, false)));
    assert_eq!(unsettled, SnapshotEffect::Keep, "the kubelet has just started");
    assert_eq!(observe(&mut claim, &unlisted(later(70, true))), SnapshotEffect::Refresh);
    assert!(has_ended(observe(&mut claim, &unlisted(later(72, true)))));
}

#[test] // rule 19
fn unseen_claim_waits_anew_after_a_restart() {
    let mut claim = claim();
    let later = |seconds| SnapshotInfo { epoch: 2, ..at(seconds) };
    observe(&mut claim, &unlisted(at(250)));
    observe(&mut claim, &unlisted(later(260)));
    assert_eq!(observe(&mut claim, &unlisted(later(559))), SnapshotEffect::Keep);
    assert!(has_ended(observe(&mut claim, &unlisted(later(560)))));
}

/// A snapshot in which containers are listed without any device.
fn bare(info: SnapshotInfo, pods: &[&str]) -> UsageSnapshot {
    UsageSnapshot { without_devices: Arc::new(pods.iter().map(|pod| container(pod)).collect()), ..absent(info) }
}

fn running(uids: &[&str]) -> Option<Arc<BTreeSet<String>>> {
    Some(Arc::new(uids.iter().map(|uid| (*uid).to_owned()).collect()))
}

/// In the kubelet's second epoch.
fn later(seconds: u64) -> SnapshotInfo {
    SnapshotInfo { epoch: 2, ..at(seconds) }
}

#[test] // rule 102
fn forgotten_container_keeps_its_claim_over_a_restart() {
    let mut claim = claim();
    observe(&mut claim, &listed(at(0)));
    for seconds in [500, 502, 504] {
        assert_eq!(observe(&mut claim, &bare(later(seconds), &["p"])), SnapshotEffect::Keep, "the checkpoint is lost");
    }
    observe(&mut claim, &absent(later(505)));
    assert!(has_ended(observe(&mut claim, &absent(later(506)))), "of a pod of its name that has another ID, too");
}

#[test] // rule 102
fn container_that_has_ended_is_not_forgotten() {
    let mut claim = claim();
    observe(&mut claim, &listed(at(0)));
    observe(&mut claim, &bare(at(500), &["p"]));
    let ended = observe(&mut claim, &bare(at(502), &["p"]));
    assert_eq!(ended, SnapshotEffect::Ended { lingers: false }, "no kubelet loses its checkpoint while it runs");
    let mut again = self::claim();
    observe(&mut again, &listed(at(0)));
    observe(&mut again, &listed(later(500)));
    observe(&mut again, &bare(later(502), &["p"]));
    assert!(has_ended(observe(&mut again, &bare(later(504), &["p"]))), "the next kubelet knew it");
    let mut third = ClaimObservation::new(2, Duration::ZERO).beside(&again);
    observe(&mut third, &bare(later(506), &["p"]));
    assert!(has_ended(observe(&mut third, &bare(later(508), &["p"]))), "the next claim knows that, too");
}

#[test] // rule 102
fn cgroups_separate_forgotten_containers_from_ended() {
    let both = UsageSnapshot { checkpoint: checkpoint(at(0)).checkpoint, ..listed(at(0)) };
    for (cgroups, is_kept) in [(&["uid", "other"][..], true), (&["other"], false), (&[], false)] {
        let mut claim = claim();
        observe(&mut claim, &both);
        let snapshot = UsageSnapshot { running: running(cgroups), ..bare(later(500), &["p"]) };
        observe(&mut claim, &snapshot);
        assert_eq!(has_ended(observe(&mut claim, &snapshot)), !is_kept, "{cgroups:?}");
        assert_eq!((claim.unseen_for(snapshot.info.at).as_secs(), claim.uncertain_user()), (0, None), "{cgroups:?}");
    }
}

#[test] // rule 102
fn claim_without_any_witness_is_uncertain() {
    for cgroups in [None, running(&["other"])] {
        let mut claim = claim();
        observe(&mut claim, &listed(at(0))); // the checkpoint could not be read: its UID is not known
        for seconds in [500, 502, 900] {
            let snapshot = UsageSnapshot { running: cgroups.clone(), ..bare(later(seconds), &["p"]) };
            assert_eq!(observe(&mut claim, &snapshot), SnapshotEffect::Keep);
        }
        let user = claim.uncertain_user();
        assert_eq!((claim.unseen_for(at(1100).at).as_secs(), user), (600, Some(&container("p"))));
        observe(&mut claim, &absent(later(901)));
        assert_eq!(claim.uncertain_user(), None);
        let lingers = observe(&mut claim, &absent(later(902)));
        assert_eq!(lingers, SnapshotEffect::Ended { lingers: true }, "it was listed a moment ago");
    }
}

#[test] // rule 102
fn forgotten_container_keeps_a_claim_that_is_made_again() {
    let mut first = claim();
    observe(&mut first, &listed(at(0)));
    let mut again = ClaimObservation::new(2, Duration::ZERO).beside(&first);
    assert!(!again.users().seen, "the new container is not observed yet");
    let second = UsageSnapshot { listed: users(container("q")), ..bare(later(10), &["p"]) };
    observe(&mut again, &second);
    for _ in 0..5 {
        let kept = observe(&mut again, &bare(later(500), &["p", "q"]));
        assert_eq!(kept, SnapshotEffect::Keep, "the first one runs on, the second one has ended");
    }
    observe(&mut again, &bare(later(600), &["q"]));
    assert!(has_ended(observe(&mut again, &bare(later(602), &["q"]))));
}

#[test] // rule 101
fn running_pod_stays_known_beside_many_ended() {
    let mut claim = claim();
    let of = |uid: &str| {
        let checkpoint = Some(users(uid.to_owned()));
        UsageSnapshot { running: running(&["the first"]), checkpoint, ..unlisted(at(0)) }
    };
    observe(&mut claim, &of("the first"));
    for number in 0..20 {
        claim = self::claim().beside(&claim);
        observe(&mut claim, &of(&format!("pod {number}")));
    }
    assert_eq!(claim.users().earlier, ["the first".to_owned()].into());
}

#[test] // rule 101
fn claim_lingers_while_the_cgroup_of_its_pod_has_containers() {
    let mut claim = claim();
    let both = UsageSnapshot { checkpoint: checkpoint(at(0)).checkpoint, ..listed(at(0)) };
    assert_eq!(observe(&mut claim, &both), SnapshotEffect::Seen);
    let with = |running| UsageSnapshot { running, ..absent(at(600)) };
    observe(&mut claim, &with(running(&["uid"])));
    for (cgroups, lingers) in [(&["uid", "other"][..], true), (&["other"], false), (&[], false)] {
        assert_eq!(observe(&mut claim, &with(running(cgroups))), SnapshotEffect::Ended { lingers }, "{cgroups:?}");
    }
}

#[test] // rule 101
fn claim_that_is_made_again_lingers_for_both_pods() {
    let mut first = claim();
    observe(&mut first, &checkpoint(at(0)));
    for (knows_second, cgroups, lingers) in
        [(true, "uid", true), (true, "second", true), (true, "", false), (false, "uid", true), (false, "", true)]
    {
        let mut again = ClaimObservation::new(1, Duration::from_secs(600)).beside(&first);
        if knows_second {
            let second = UsageSnapshot { checkpoint: Some(users("second".to_owned())), ..unlisted(at(600)) };
            observe(&mut again, &second);
        }
        let running = Some(Arc::new([cgroups.to_owned()].into()));
        let gone = UsageSnapshot { running, ..absent(at(602)) };
        observe(&mut again, &gone);
        let expected = SnapshotEffect::Ended { lingers };
        assert_eq!(observe(&mut again, &gone), expected, "second known: {knows_second}, running: {cgroups}");
    }
}

#[test] // rule 101
fn claim_lingers_for_a_delay_if_cgroups_cannot_be_read() {
    let mut claim = claim();
    observe(&mut claim, &listed(at(100)));
    observe(&mut claim, &absent(at(102)));
    assert_eq!(observe(&mut claim, &absent(at(129))), SnapshotEffect::Ended { lingers: true });
    assert_eq!(observe(&mut claim, &absent(at(130))), SnapshotEffect::Ended { lingers: false });
}

#[test] // rule 101
fn init_container_lingers_after_the_checkpoint_had_it() {
    let mut claim = claim();
    observe(&mut claim, &checkpoint(at(900)));
    observe(&mut claim, &absent(at(902)));
    assert_eq!(observe(&mut claim, &absent(at(904))), SnapshotEffect::Ended { lingers: true });
    assert_eq!(observe(&mut claim, &absent(at(930))), SnapshotEffect::Ended { lingers: false });
}

#[test] // rule 104
fn outdated_checkpoint_ends_a_claim_after_5_minutes() {
    let mut claim = claim();
    let closed = |seconds| checkpoint(SnapshotInfo { refreshable: false, ..at(seconds) });
    assert_eq!(observe(&mut claim, &closed(299)), SnapshotEffect::Seen, "the pod is new");
    assert_eq!(observe(&mut claim, &closed(299)), SnapshotEffect::Refresh);
    assert_eq!(observe(&mut claim, &closed(300)), SnapshotEffect::Ended { lingers: false });
    let mut claim = self::claim();
    observe(&mut claim, &checkpoint(at(0)));
    assert_eq!(observe(&mut claim, &checkpoint(at(900))), SnapshotEffect::Refresh, "a plugin of ours is open");
}

proptest! {
    #[test] // rule 19
    fn unsettled_snapshot_never_ends_a_claim(snapshots in prop::collection::vec((0..4usize, 0u64..10_000, 0u64..3), 0..20)) {
        let mut claim = claim();
        for (kind, seconds, epoch) in snapshots {
            let info = SnapshotInfo { settled: false, epoch, ..at(seconds) };
            prop_assert!(!has_ended(observe(&mut claim, &SNAPSHOTS[kind](info))));
        }
    }
}
