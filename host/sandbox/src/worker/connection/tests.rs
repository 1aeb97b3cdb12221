//! Connections to programs that are no sandbox processes.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use akri_engine::Call;
use akri_model::device::Device;
use akri_model::discovery::Description;
use akri_model::grant::Isolation;

use super::super::component::WorkerComponent;
use super::super::protocol::{Bounded, DeviceSetHead, LENGTH, LoadedComponent, encode_devices, join};
use super::super::workers::{Worker, WorkerContext};
use super::*;

/// A program in place of `akri`, and what it may read.
fn program(directory: &Path, script: &str) -> (WorkerProgram, ReadablePaths) {
    let path = directory.join("program");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = WorkerProgram { path, arguments: Vec::new(), memory_bytes: 1 };
    let any = directory.to_owned();
    (program, ReadablePaths { compiled: any.clone(), sysfs: any.clone(), udev_data: any })
}

/// A connection to a program instead of a sandbox process.
fn connection(directory: &Path, script: &str) -> Arc<Connection> {
    let (program, paths) = program(directory, script);
    Connection::open("test", &program, &paths, Rates::default()).unwrap()
}

fn frame() -> Vec<u8> {
    encode(&Request::Unload { component: 1 }, &[]).unwrap()
}

fn state_of(component: u64) -> CallState {
    CallState { component, blame: Arc::default(), deadly: None, log: None }
}

async fn call(connection: &Connection, component: u64, limit: Duration) -> RoundError {
    let call = connection.next_call();
    timeout(2 * END, connection.call(call, frame(), state_of(component), limit)).await.unwrap().unwrap_err()
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test] // threat 19
async fn connection_ends_with_its_process_even_if_another_holds_it() {
    let directory = tempfile::tempdir().unwrap();
    // The child keeps the stream, and ends by itself.
    let connection = connection(directory.path(), "sleep 5 <&0 & exit 3");
    let error = call(&connection, 1, LONG).await;
    assert!(error.to_string().contains("ended with exit code 3"), "{error}");
    assert!(connection.is_closed());
}

#[tokio::test] // threat 19
async fn connection_is_closed_as_soon_as_there_is_no_answer() {
    let directory = tempfile::tempdir().unwrap();
    let connection = connection(directory.path(), "exec sleep 60");
    let error = call(&connection, 1, Duration::from_millis(200)).await;
    assert!(connection.is_closed() && matches!(error, RoundError::Trapped(_)), "{error}");
    assert!(error.to_string().contains("did not answer"), "{error}");
    assert!(matches!(call(&connection, 1, LONG).await, RoundError::Unavailable(_)), "none is begun");
}

#[tokio::test]
async fn process_that_reads_nothing_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let connection = connection(directory.path(), "exec sleep 60");
    let large = || vec![0; 4 << 20];
    let calls = (0..QUEUE + 9).map(|_| {
        let (connection, call) = (Arc::clone(&connection), connection.next_call());
        async move {
            let limit = Duration::from_millis(500);
            connection.call(call, if call == 1 { large() } else { frame() }, state_of(1), limit).await
        }
    });
    let calls: Vec<_> = calls.map(tokio::spawn).collect();
    for call in calls {
        assert!(timeout(4 * END, call).await.unwrap().unwrap().is_err());
    }
}

#[tokio::test]
async fn devices_that_came_before_the_answer_are_in_it() {
    let device = |id: usize| Device { id: id.to_string(), ..Device::default() };
    let all: Vec<Device> = (0..9).map(device).collect();
    let body = |reply: &Reply, devices: &[Device]| encode_devices(reply, devices).unwrap().split_off(LENGTH);
    let (shared, call) = (Shared::default(), 1);
    let (answer, answered) = oneshot::channel();
    shared.calls().insert(call, state_of(1).waiting(answer));
    let earlier = Reply::Devices { call };
    shared.dispatch(body(&Reply::Devices { call: 2 }, &all)).unwrap(); // nobody waits for these
    shared.dispatch(body(&earlier, &all[..3])).unwrap();
    shared.dispatch(body(&earlier, &all[3..7])).unwrap();
    let found = DeviceSetHead { devices: 9, ..DeviceSetHead::default() };
    let last = Reply::Discovered { call, result: Ok(Box::new(found.clone())), cache: None, ticks: 0 };
    shared.dispatch(body(&last, &all[7..])).unwrap();
    let (_, payload) = answered.await.unwrap().unwrap();
    assert_eq!(join(found, payload.devices().await.unwrap()).unwrap().devices, all);
}

#[tokio::test]
async fn devices_before_the_answer_are_bounded_and_checked() {
    let payload = |bytes: usize| Payload { frame: vec![0xff; bytes], start: 0, earlier: None };
    let mut devices = EarlierDevices::start();
    for _ in 0..7 {
        devices.add(payload(LARGEST_REPLY / 8)).unwrap();
    }
    assert!(devices.add(payload(LARGEST_REPLY / 8)).is_err());
    assert!(devices.decoded().await.unwrap_err().to_string().contains("malformed"));
    let mut devices = EarlierDevices::start();
    devices.add(payload(LARGEST_REPLY / 2)).unwrap();
    assert!(devices.count(LARGEST_REPLY / 2).is_err(), "the answer counts, too");
    let empty = LARGEST_REPLY / size_of::<Payload>() + 1;
    let mut devices = EarlierDevices::start();
    assert!((0..empty).any(|_| devices.add(payload(0)).is_err()), "each takes memory, even without a device");
}

#[tokio::test] // threat 18
async fn component_is_alone_only_where_no_other_was_ever_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let connection = connection(directory.path(), "exec sleep 60");
    // The call of another has ended before.
    let gone = connection.call(connection.next_call(), frame(), state_of(2), LONG);
    assert!(timeout(Duration::from_millis(50), gone).await.is_err());
    assert!(connection.shared.calls().is_empty(), "one that nobody waits for is off the list");
    let error = call(&connection, 1, Duration::from_millis(200)).await;
    assert!(matches!(error, RoundError::Unavailable(_)), "{error}");
}

#[tokio::test] // rule 92
async fn component_whose_devices_can_not_be_read_is_blamed() {
    let directory = tempfile::tempdir().unwrap();
    let description = Description { name: "udev".to_owned(), version: "1".to_owned(), shared: false, interval: None };
    let about = LoadedComponent { description, exported: "e".to_owned(), imports: Bounded::default() };
    let found = Ok(Box::new(DeviceSetHead { devices: 1, ..DeviceSetHead::default() }));
    let answer = Reply::Discovered { call: 2, result: found, cache: None, ticks: 0 };
    for (payload, why) in [(&b"\xff\xff"[..], "malformed"), (b"", "other devices than announced")] {
        let load = encode(&Request::Load { call: 1, component: 7 }, b"component").unwrap();
        let replies = [encode(&Reply::Loaded { call: 1, result: Ok(about.clone()) }, &[]), encode(&answer, payload)];
        let [loaded, answered] = ["loaded", "answered"].map(|name| directory.path().join(name));
        std::fs::write(&loaded, replies[0].as_ref().unwrap()).unwrap();
        std::fs::write(&answered, replies[1].as_ref().unwrap()).unwrap();
        let (loaded, answered) = (loaded.display(), answered.display());
        let script = format!(
            "head -c {} >/dev/null; cat {loaded} >&0; head -c 1 >/dev/null; cat {answered} >&0; exec sleep 60",
            load.len()
        );
        let (program, paths) = program(directory.path(), &script);
        let worker = Arc::new(Worker::new("test".to_owned(), Arc::new(WorkerContext::new(program, paths))));
        let component = WorkerComponent::load(7, worker, "d".to_owned(), b"component", Isolation::Shared, false);
        let component = component.await.unwrap_or_else(|error| panic!("{error}"));
        let round = || async { timeout(LONG, component.discover(Call::default())).await.unwrap().unwrap_err() };
        let error = round().await;
        assert!(matches!(error, RoundError::Trapped(_)) && error.to_string().contains(why), "{error}");
        let error = round().await;
        assert!(matches!(error, RoundError::Quarantined { faults: 2, .. }), "{error}");
    }
}
