//! Resources that components and calls share: the host, its threads, its turns, its cache.

use tokio::task::JoinSet;

use super::*;
use crate::LoadError;
use crate::deadline::Deadline;
use crate::round::Round;

/// Handlers of one host.
async fn handlers(count: usize) -> Vec<LocalComponent> {
    let host = host(None);
    let mut handlers = Vec::new();
    for _ in 0..count {
        handlers.push(host.load(bytes()).await.unwrap());
    }
    handlers
}

/// Starts calls of a handler that don't end by themselves, more than may run, and waits until its two turns are taken.
async fn occupy(guest: &LocalComponent, details: &str) -> JoinSet<Result<DeviceSet, RoundError>> {
    let mut running = JoinSet::new();
    let before = guest.permits().available_permits();
    for _ in 0..10 {
        let guest = guest.clone();
        let call = long(details);
        running.spawn(async move { guest.discover(call).await });
    }
    while guest.permits().available_permits() != before - 2 {
        tokio::task::yield_now().await;
    }
    running
}

/// Returns whether a round has to wait for a turn; it is cancelled.
async fn round_waits(guest: &LocalComponent) -> bool {
    tokio::time::timeout(Duration::from_millis(50), guest.discover(call("devices:1"))).await.is_err()
}

#[tokio::test] // threat 53
async fn while_guests_loop_others_go_on() {
    let [bad, other] = &handlers(2).await[..] else { unreachable!() };
    let mut looping = occupy(bad, "loop").await;
    for _ in 0..20 {
        assert_eq!(other.discover(call("devices:10")).await.unwrap().devices.len(), 10);
    }
    assert!(looping.try_join_next().is_none(), "the looping ones go on all the while");
}

#[tokio::test] // rule 92, threat 53
async fn handler_takes_half_of_the_permits_at_most() {
    let [bad, other] = &handlers(2).await[..] else { unreachable!() };
    let _sleeping = occupy(bad, "sleep").await;
    assert!(round_waits(bad).await, "of ten of its rounds two run, and this is the eleventh");
    assert_eq!(other.permits().available_permits(), 2);
    assert_eq!(other.discover(call("devices:10")).await.unwrap().devices.len(), 10);
}

#[tokio::test] // rule 92, threat 53
async fn four_rounds_run_at_once_and_the_fifth_waits() {
    let [first, second, third] = &handlers(3).await[..] else { unreachable!() };
    let (mut sleeping, _other) = (occupy(first, "sleep").await, occupy(second, "sleep").await);
    let mut fifth = std::pin::pin!(third.discover(call("devices:1")));
    let tried = tokio::time::timeout(Duration::from_millis(50), &mut fifth).await;
    assert!(tried.is_err(), "there is no turn for a fifth");
    sleeping.abort_all();
    // Waiting did not count: it has all of its time now.
    assert_eq!(fifth.await.unwrap().devices.len(), 1);
    while sleeping.join_next().await.is_some() {}
}

#[tokio::test]
async fn dropped_call_ends_its_guest() {
    let [guest, other] = &handlers(2).await[..] else { unreachable!() };
    drop((occupy(guest, "loop").await, occupy(other, "loop").await));
    let all = guest.permits().acquire_many(4).await;
    assert!(all.is_ok(), "every turn comes back");
    drop(all);
    assert_eq!(guest.discover(call("devices:1")).await.unwrap().devices.len(), 1, "its own, too");
}

#[tokio::test]
async fn host_ends_though_a_guest_loops() {
    let guest = alone().await;
    let engine = guest.parts().2.engine.weak();
    let looping = guest.clone();
    let mut round = Box::pin(async move { looping.discover(long("loop")).await });
    while guest.permits().available_permits() == 4 {
        let tried = tokio::time::timeout(Duration::from_millis(5), &mut round).await;
        assert!(tried.is_err(), "it loops");
    }
    drop(guest);
    drop(round);
    // Its threads and its ticker had a hold on the engine. On a busy machine a thread may end later than the host waits for it.
    let over = std::time::Instant::now() + Duration::from_secs(60);
    while engine.upgrade().is_some() {
        assert!(std::time::Instant::now() < over, "somebody holds the engine");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn guest_nobody_ends_is_interrupted() {
    let guest = alone().await;
    let (pre, context, shared) = guest.parts();
    let limit = Duration::from_secs(5);
    let looping = Call { limits: Limits { round: limit, ..Limits::default() }, ..call("loop") };
    let (deadline, activity) = (Deadline::of(&looping.limits), context.activity.clone());
    let round = Round::new(looping, "guest", deadline, context);
    let run = async move {
        let mut store = round.into_store(pre.engine());
        let handler = pre.instantiate_async(&mut store).await.unwrap();
        let error = handler.akri_discovery_handler().call_discover(&mut store, "loop").await.unwrap_err();
        store.data().failure(&error)
    };
    let ended = shared.runtime.handle().unwrap().spawn(async move { activity.run(run).await }).await.unwrap().unwrap();
    assert!(matches!(ended, RoundError::StillComputing { limit: of, .. } if of == limit), "{ended}");
}

#[tokio::test] // threat 55
async fn other_components_are_refused() {
    let host = host(None);
    let load = |bytes: Vec<u8>| host.load(bytes);
    let preamble = |layer: [u8; 4]| [b"\0asm".as_slice(), &layer].concat();
    let component = preamble([0x0d, 0, 1, 0]);
    // A component that imports a function `f`: a function type, and its import.
    let imported = [component.as_slice(), b"\x07\x05\x01\x40\x00\x01\x00", b"\x0a\x06\x01\x00\x01f\x01\x00"].concat();
    // A handler by its names alone: an empty instance, and its export.
    let named = |component: &[u8]| {
        let export = b"\x0b\x22\x01\x00\x1cakri:discovery/handler@0.1.0\x05\x00\x00";
        [component, b"\x05\x03\x01\x01\x00", export].concat()
    };
    let function = named(&imported);
    let error = |loaded: Result<LocalComponent, LoadError>| match loaded.err() {
        Some(LoadError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    for (bytes, expected) in [
        (b"not wasm".to_vec(), "no WebAssembly file: "),
        (Vec::new(), "no WebAssembly file: "),
        (preamble([1, 0, 0, 0]), "not a WebAssembly component: "),
        (bytes()[..1000].to_vec(), "not a WebAssembly component: "),
        (vec![0; (64 << 20) + 1], "the component has 67108865 bytes, more than "),
    ] {
        let why = error(load(bytes).await);
        assert!(why.starts_with(expected), "{why}");
    }
    // One with a core module whose memory is shared: a thread that waits on it could not be ended.
    let module = [preamble([1, 0, 0, 0]).as_slice(), b"\x05\x04\x01\x03\x01\x01"].concat();
    let shared = named(&[component.as_slice(), b"\x01\x0e", &module].concat());
    let why = error(load(shared).await);
    assert!(why.starts_with("not a WebAssembly component: "), "{why}");
    assert!(why.contains("threads") || why.contains("shared"), "{why}");
    let why = error(load(component).await);
    assert!(why.contains("akri:discovery/handler"), "{why}");
    let why = error(load(function).await);
    assert!(why.contains("`f`"), "{why}");
}

#[tokio::test]
async fn second_load_comes_from_the_cache() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let first = host(Some(cache.clone())).load(bytes()).await.unwrap();
    let files = || {
        let mut files = Vec::new();
        let mut directories = vec![cache.clone()];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { directories.push(path) } else { files.push(path) }
            }
        }
        files.retain(|path| path.extension().is_none());
        files
    };
    let compiled = files();
    assert!(!compiled.is_empty());
    let second = host(Some(cache.clone())).load(bytes()).await.unwrap();
    assert_eq!(files(), compiled);
    assert_eq!(first.digest(), second.digest());
    assert_eq!(second.discover(call("devices:2")).await.unwrap().devices.len(), 2);
}

#[tokio::test]
async fn handlers_of_the_same_bytes_share_their_code() {
    let host = host(None);
    let (first, second) = (host.load(bytes()).await.unwrap(), host.load(bytes()).await.unwrap());
    assert!(first.shares_code_with(&second));
    drop(first);
    assert_eq!(second.discover(call("devices:2")).await.unwrap().devices.len(), 2);
    let other = host.load([bytes().as_slice(), b"\0\x05\x04test"].concat()).await.unwrap();
    assert!(!second.shares_code_with(&other), "another custom section is another component");
}
