//! Secrets that stay secret, and what is remembered.

use akri_model::property::{Resolved, Secret};

use super::*;
use crate::Cache;

const PASSWORD: &str = "hunter2-and-more";

/// A call with the secret `password`, granted or not.
fn secret(details: &str, granted: &[&str]) -> Call {
    let secrets = [("password".to_owned(), Secret::new(PASSWORD.as_bytes().to_vec()))].into();
    let grants = Grants { secrets: granted.iter().map(ToString::to_string).collect(), ..Grants::default() };
    Call { properties: Resolved { secrets, ..Resolved::default() }, ..with(grants, details) }
}

#[tokio::test] // threat 49
pub(super) async fn secret_is_shown_by_grant_and_each_time_is_counted() {
    let guest = guest().await;
    let set = guest.discover(secret("reveal:password", &["pass*"])).await.unwrap();
    assert_eq!(set.devices[0].properties["SECRET"], "16 bytes");
    assert_eq!(set.secrets_revealed, 2);
    let none = guest.discover(secret("reveal:other", &["*"])).await.unwrap();
    assert_eq!((none.devices[0].properties["SECRET"].as_str(), none.secrets_revealed), ("none", 0));
    for name in ["password", "other"] {
        let seen = properties(secret(&format!("reveal:{name}"), &["user*"])).await;
        let error = &seen["SECRET"];
        assert!(error.contains("NotGranted") && error.contains(name) && error.contains("grants.secrets"), "{error}");
    }
}

#[tokio::test] // threat 49
pub(super) async fn secret_is_no_property() {
    let seen = properties(secret("properties", &["*"])).await;
    assert_eq!(seen, BTreeMap::from([("ABSENT".to_owned(), "none".to_owned())]));
}

#[tokio::test] // threat 50
pub(super) async fn device_with_a_secret_in_it_is_withheld() {
    let guest = guest().await;
    for place in ["property", "origin", "mount", "device-spec"] {
        let set = guest.discover(secret(&format!("leak:{place}"), &["*"])).await.unwrap();
        assert!(set.devices.is_empty() && set.withheld.contains("leak"), "{place}: {set:?}");
        assert_eq!((set.notes.len(), set.notes[0].reason.as_str()), (1, "SecretInProperty"));
        assert!(set.notes[0].message.contains("'password'"), "{:?}", set.notes);
        assert!(!format!("{set:?}").contains(PASSWORD), "{set:?}");
    }
    for place in ["id", "kept"] {
        let error = error(secret(&format!("leak:{place}"), &["*"])).await;
        assert!(matches!(error, RoundError::InvalidResult(_)) && !error.to_string().contains(PASSWORD), "{error}");
    }
}

/// Shows that a cached secret is withheld in rounds that do not reveal it.
#[tokio::test] // threat 50
pub(super) async fn cached_secret_is_withheld_later() {
    let cache = Cache::default();
    let round =
        || async { guest().await.discover(Call { cache: cache.clone(), ..secret("leak-later", &["*"]) }).await };
    let first = round().await.unwrap();
    assert_eq!((first.secrets_revealed, first.devices.len(), first.withheld.len()), (1, 0, 0));
    for _ in 0..2 {
        let later = round().await.unwrap();
        assert_eq!((later.secrets_revealed, later.devices.len()), (0, 0));
        assert_eq!((later.withheld.len(), later.notes[0].reason.as_str()), (1, "SecretInProperty"));
    }
}

#[tokio::test] // threat 50
pub(super) async fn secret_in_words_is_replaced() {
    log();
    let note = guest().await.discover(secret("leak:note", &["*"])).await.unwrap();
    assert_eq!((note.devices.len(), note.notes[0].origin.as_str()), (1, "origin"));
    assert!(note.notes[0].message.contains("withheld"), "{:?}", note.notes);
    for place in ["log", "stdout", "stderr"] {
        let details = format!("leak:{place}");
        guest().await.discover(secret(&details, &["*"])).await.unwrap();
        assert!(
            logged(&format!("test/{details}")).iter().any(|line| line.contains("withheld: it contains")),
            "{place}"
        );
    }
    let RoundError::Trapped(panic) = error(secret("leak:panic", &["*"])).await else { panic!("it panics") };
    let RoundError::Unavailable(error) = error(secret("leak:error", &["*"])).await else { panic!("it fails") };
    for text in [panic, error, log()] {
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

/// A round with this memory.
async fn round_with_cache(cache: &Cache, details: &str) -> Result<DeviceSet, RoundError> {
    let call = if details.ends_with(":loop") { brief(details) } else { call(details) };
    guest().await.discover(Call { cache: cache.clone(), ..call }).await
}

async fn cached_value(cache: &Cache) -> String {
    of(round_with_cache(cache, "read-cache:key").await)["VALUE"].clone()
}

#[tokio::test]
pub(super) async fn cached_value_is_there_in_the_next_round() {
    let cache = Cache::default();
    assert_eq!(cached_value(&cache).await, "none");
    let seen = of(round_with_cache(&cache, "write-cache:key=02:00").await);
    assert_eq!((seen["SET"].as_str(), seen["VALUE"].as_str()), ("OPEN", "02:00"), "it sees what it writes");
    assert_eq!(cached_value(&cache).await, "02:00");
    assert_eq!(cached_value(&Cache::default()).await, "none", "another Configuration has another");
    assert!(matches!(round_with_cache(&cache, "write-cache-and-fail:error").await, Err(RoundError::Unavailable(_))));
    assert_eq!(cached_value(&cache).await, "error", "it returned");
}

#[tokio::test] // threat 52
pub(super) async fn cache_of_a_failed_round_is_dropped() {
    let cache = Cache::default();
    // The agent checks results, and drops the cache that comes with one that it refuses.
    for how in ["panic", "loop"] {
        assert!(round_with_cache(&cache, &format!("write-cache-and-fail:{how}")).await.is_err());
        assert_eq!(cached_value(&cache).await, "none", "{how}");
    }
}

#[tokio::test] // threat 52
pub(super) async fn cache_is_bounded() {
    let cache = Cache::default();
    let seen = of(round_with_cache(&cache, "cache-flood:1024").await);
    assert_eq!(seen["KEPT"], "255", "of a kilobyte each, and their names");
    assert!(seen["NEXT"].contains("Limit"), "{seen:?}");
    let small = Limits { cache_bytes: 100, ..Limits::default() };
    assert_eq!(properties(Call { limits: small, ..call("cache-flood:1024") }).await["KEPT"], "0");
}
