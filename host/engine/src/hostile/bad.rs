//! Behaviours of a bad handler: each ends in an error value.

use super::*;

async fn over_limit(details: &str) -> String {
    match error(call(details)).await {
        RoundError::LimitExceeded(what) => what,
        error => panic!("{details}: {error}"),
    }
}

#[tokio::test] // threat 30
pub(super) async fn guest_that_does_not_end_is_ended() {
    ended("sleep", |error, round| *error == RoundError::DeadlineExceeded(round)).await;
    for details in ["loop", "import-loop"] {
        ended(details, |error, round| match error {
            RoundError::StillComputing { limit, place } => *limit == round && place.starts_with(" in akri_guest::"),
            _ => false,
        })
        .await;
    }
}

/// Runs rounds that take longer and longer until one ends as it should: on a busy machine the guest may not have begun when a third of a
/// second is over.
async fn ended(details: &str, is_expected: fn(&RoundError, Duration) -> bool) {
    for round in [300, 3_000, 30_000].map(Duration::from_millis) {
        let limits = Limits { round, ..Limits::default() };
        if is_expected(&error(Call { limits, ..call(details) }).await, round) {
            return;
        }
    }
    panic!("{details}: no round ended as it should");
}

#[tokio::test] // threat 32
pub(super) async fn panic_is_reported_in_the_words_of_the_guest() {
    let RoundError::Trapped(why) = error(call("panic")).await else { panic!("a trap") };
    assert!(why.contains("unreachable") && why.contains("the guest panics on purpose"), "{why}");
    assert!(!why.contains('\n') && !why.contains("wasm backtrace") && !why.contains("RUST_BACKTRACE"), "{why}");
    assert!(!why.contains("_R") && why.contains("akri_guest::"), "{why}");
}

#[tokio::test] // threat 32
pub(super) async fn exit_is_a_trap() {
    let RoundError::Trapped(why) = error(call("exit")).await else { panic!("a trap") };
    assert!(why.contains("it exited, with a failure in ") && why.contains("akri_guest::"), "{why}");
}

#[tokio::test] // threat 32
pub(super) async fn endless_recursion_is_a_trap() {
    let RoundError::Trapped(why) = error(call("stack")).await else { panic!("a trap") };
    assert!(why.contains("stack") && why.contains("akri_guest::"), "{why}");
}

#[tokio::test] // threat 33, threat 34
pub(super) async fn too_much_is_refused_by_name() {
    for (details, what) in [
        ("memory", "memory: more than 64Mi; limits.memory of its DiscoveryHandler allows more"),
        ("devices:4097", "devices: 4097"),
        ("many-properties:65", "properties: 65"),
        ("long-value:4097", "a property's value: 4097"),
        ("keep-flood:4097", "kept origins"),
        ("resources:2000", "resources"),
        ("huge-string:20000000", "bytes handed to the host"),
        ("aliased-strings:1000000", "bytes handed to the host"),
        ("big-argument:2000000", "bytes handed to the host"),
    ] {
        let error = over_limit(details).await;
        assert!(error.contains(what), "{details}: {error}");
    }
}

#[tokio::test]
pub(super) async fn devices_without_an_id_of_their_own_are_no_limit() {
    for (details, what) in [("duplicate-ids", "two devices have the id"), ("empty-id", "a device has an empty id")] {
        let RoundError::InvalidResult(why) = error(call(details)).await else { panic!("{details}") };
        assert!(why.contains(what), "{why}");
    }
}

#[tokio::test]
pub(super) async fn result_may_be_larger_than_an_argument() {
    let limits = Limits { devices: 10_000, string_bytes: 4 << 20, ..Limits::default() };
    let guest = guest().await;
    for details in ["devices:10000", "long-value:4000000"] {
        let ended = guest.discover(Call { limits: limits.clone(), ..call(details) }).await;
        assert!(ended.is_ok(), "{details}: {:?}", ended.err());
    }
}

#[tokio::test] // threat 33
pub(super) async fn memory_is_limited() {
    let small = Limits { memory_bytes: 1 << 20, ..Limits::default() };
    let RoundError::LimitExceeded(what) = error(Call { limits: small, ..call("devices:1") }).await else {
        panic!("a guest of more than a megabyte")
    };
    assert!(what.contains("more than 1Mi"), "{what}");
}

#[tokio::test] // threat 36
pub(super) async fn query_that_is_too_wide_is_answered_with_its_limit() {
    let wide = granted("wide-query:33", "*");
    assert!(properties(wide).await["RUN"].contains("at most 32 sysnames"));
    assert_eq!(properties(granted("wide-query:32", "*")).await["RUN"], "Ok(())");
}

#[tokio::test] // threat 35
pub(super) async fn notes_beyond_the_bound_are_counted() {
    let set = discover("note-flood:1000").await.unwrap();
    assert_eq!((set.notes.len(), set.notes_dropped), (10, 990));
    assert_eq!(set.notes[9].message, "note 9");
}

#[tokio::test] // threat 35
pub(super) async fn log_lines_beyond_the_bound_are_counted() {
    logged("");
    for details in ["log-flood:1000", "stdout-flood:1000"] {
        discover(details).await.unwrap();
        let lines = logged(&format!("test/{details}"));
        assert_eq!(lines.len(), 65, "{details}");
        assert!(lines[63].contains("line 63") && lines[64].contains("936 more lines"), "{:?}", &lines[63..]);
    }
}

#[tokio::test] // threat 35
pub(super) async fn flood_without_line_ends_is_one_line() {
    logged("");
    discover("stderr-flood:10000").await.unwrap();
    let lines = logged("test/stderr-flood:10000");
    assert_eq!(lines.len(), 1);
    assert!(lines[0].len() < 5000, "{}", lines[0].len());
}

#[tokio::test] // threat 57
pub(super) async fn guest_works_after_every_kind_of_failure() {
    for details in ["panic", "exit", "stack", "memory", "aliased-strings:1000000"] {
        error(call(details)).await;
        assert_eq!(discover("devices:3").await.unwrap().devices.len(), 3, "after {details}");
    }
}

/// Shows that paths of devices are passed on unchecked and opened by nothing: the agent judges them, which knows the
/// node.
#[tokio::test]
pub(super) async fn paths_reach_the_agent_unchanged() {
    let set = discover("escaping-paths").await.unwrap();
    assert_eq!(set.devices[0].device_specs[0].host_path, "/dev/../etc/passwd");
    assert_eq!(set.devices[0].mounts[0].host_path, "/");
}
