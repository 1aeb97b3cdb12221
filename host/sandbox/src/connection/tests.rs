//! Connections to programs that are no sandbox processes.

use std::path::Path;

use akri_engine::{Call, ComponentBytes};
use akri_model::device::Device;
use akri_model::discovery::Description;
use akri_model::grant::Isolation;

use super::super::component::{Component, LoadedBytes};
use super::super::protocol::{LENGTH, LoadedComponent, encode_devices};
use super::super::sandbox_process::{ProcessContext, SandboxProcess};
use super::super::testing::write_script;
use super::*;

/// A program in place of `akri`, and what it may read.
fn program(directory: &Path, script: &str) -> (SandboxProgram, ReadablePaths) {
    let path = directory.join("program");
    write_script(&path, script);
    let program = SandboxProgram { path, arguments: Vec::new(), memory_bytes: 1 };
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

fn context() -> CallContext {
    CallContext { crashes: Arc::default(), log: None, _permits: Vec::new() }
}

async fn call(connection: &Arc<Connection>, frame: Vec<u8>, limit: Duration) -> RoundError {
    let mut pending = match connection.call(connection.next_call(), frame, context(), limit) {
        Ok(pending) => pending,
        Err(error) => return error,
    };
    timeout(LONG, pending.next()).await.unwrap().err().unwrap()
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test] // threat 19
async fn connection_ends_with_its_process_even_if_another_holds_it() {
    let directory = tempfile::tempdir().unwrap();
    // The child keeps the stream for longer than the test waits.
    let connection = connection(directory.path(), "sleep 600 <&0 & exit 3");
    let error = call(&connection, frame(), LONG).await;
    assert!(error.to_string().contains("ended with exit code 3"), "{error}");
    assert!(connection.is_closed());
    let group = rustix::process::Pid::from_raw(connection.process.pid.cast_signed()).unwrap();
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL); // the child
}

#[tokio::test] // threat 19
async fn connection_is_closed_as_soon_as_there_is_no_answer() {
    let directory = tempfile::tempdir().unwrap();
    let connection = connection(directory.path(), "exec sleep 60");
    let error = call(&connection, frame(), Duration::from_millis(200)).await;
    assert!(connection.is_closed() && matches!(error, RoundError::ProcessEnded(_)), "{error}");
    assert!(error.to_string().contains("did not answer"), "{error}");
    assert!(matches!(call(&connection, frame(), LONG).await, RoundError::Unavailable(_)), "none is begun");
}

#[tokio::test]
async fn process_that_reads_nothing_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let connection = connection(directory.path(), "exec sleep 60");
    let calls = (0..99).map(|number| {
        let (connection, frame) = (Arc::clone(&connection), if number == 0 { vec![0; 4 << 20] } else { frame() });
        tokio::spawn(async move { call(&connection, frame, Duration::from_millis(500)).await })
    });
    for call in calls.collect::<Vec<_>>() {
        timeout(LONG, call).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn large_frames_are_written_in_order_as_the_process_reads() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let connection = connection(directory.path(), &format!("sleep 0.2; cat >{}", copy.display()));
    let frames: Vec<Vec<u8>> = (1..4).map(|number| vec![number; 1 << 20]).collect();
    frames.iter().for_each(|frame| connection.shared.write(frame.clone()));
    let expected = frames.concat();
    let all = async {
        while std::fs::read(&copy).unwrap_or_default() != expected {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, all).await.unwrap();
}

#[tokio::test] // rule 92
async fn cancelled_call_counts_until_the_process_has_ended_it() {
    let directory = tempfile::tempdir().unwrap();
    let answer = encode(&Reply::Validated { call: 1, result: Ok(Vec::new()), ticks: 0 }, &[]).unwrap();
    std::fs::write(directory.path().join("answer"), answer).unwrap();
    let cancel = encode(&Request::Cancel { call: 1 }, &[]).unwrap();
    // The request, and the cancellation, which it answers.
    let length = frame().len() + cancel.len();
    let script = format!("head -c {length} >/dev/null; cat {}/answer >&0; exec sleep 60", directory.path().display());
    let connection = connection(directory.path(), &script);
    let permits = Arc::new(tokio::sync::Semaphore::new(1));
    let permit = Arc::clone(&permits).acquire_owned().await.unwrap();
    let call = connection.next_call();
    let pending = connection.call(call, frame(), CallContext { _permits: vec![permit], ..context() }, LONG);
    assert_eq!(permits.available_permits(), 0);
    drop(pending.unwrap());
    let _permit = timeout(LONG, permits.acquire()).await.unwrap().unwrap();
    assert!(connection.shared.calls.lock().is_empty() && !connection.is_closed());
}

#[tokio::test] // threat 22
async fn replies_of_a_call_are_bounded_together() {
    let device = |id: usize| Device { id: id.to_string(), ..Device::default() };
    let body = |reply: &Reply, devices: &[Device]| encode_devices(reply, devices).unwrap().split_off(LENGTH);
    let (shared, call) = (Shared::new(mpsc::unbounded_channel().0), 1);
    let (replies, mut received) = mpsc::unbounded_channel();
    shared.calls.lock().insert(call, WaitingCall { replies, bytes: 0, context: context() });
    let part = Reply::Devices { call };
    shared.dispatch(body(&Reply::Devices { call: 2 }, &[device(1)])).unwrap(); // nobody waits for these
    shared.dispatch(body(&part, &[device(1)])).unwrap();
    assert!(received.try_recv().unwrap().is_ok_and(|received| received.is_part()) && received.try_recv().is_err());
    // Each takes memory, even without a device.
    let empty = LARGEST_REPLY / size_of::<ReceivedReply>() + 1;
    assert!((0..empty).any(|_| shared.dispatch(body(&part, &[])).is_err()));
    assert!(shared.calls.lock().contains_key(&call), "it is running when its process is ended for this");
    shared.close(Some("for this"), false);
    let last = std::iter::from_fn(|| received.try_recv().ok()).last();
    assert!(matches!(last, Some(Err(RoundError::ProcessEnded(_)))));
}

#[tokio::test] // rule 92
async fn component_with_unreadable_devices_leaves_the_shared_process() {
    let directory = tempfile::tempdir().unwrap();
    let description = Description { name: "udev".to_owned(), version: "1".to_owned(), shared: false, interval: None };
    let about = LoadedComponent { description, exported: "e".to_owned(), imports: Vec::new() };
    let answer = Reply::Discovered { call: 2, devices: 1, result: Ok(Box::default()), cache: None, ticks: 0 };
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
        let context = Arc::new(ProcessContext { program, paths, rates: Rates::default(), _temporary: None });
        let shared = Arc::new(SandboxProcess::new("shared".to_owned(), context));
        let bytes = ComponentBytes { bytes: Arc::new(b"component".to_vec()), digest: "d".to_owned() };
        let bytes = LoadedBytes::new(bytes, false, directory.path()).await.unwrap();
        let crashes = Arc::<CrashRecord>::default();
        let loaded = Component::load(7, bytes, (Arc::clone(&shared), Isolation::Shared), Arc::clone(&crashes)).await;
        let component = loaded.unwrap_or_else(|error| panic!("{error}"));
        let listener = component.listen("239.0.0.1:1".parse().unwrap(), &[], Vec::new());
        assert!(component.owns_listener(&listener));
        for _ in 0..2 {
            let error = timeout(LONG, component.discover(Call::default())).await.unwrap().unwrap_err();
            assert!(matches!(error, RoundError::ProcessEnded(_)) && error.to_string().contains(why), "{error}");
            assert!(crashes.is_isolated() && !component.owns_listener(&listener), "it has a process of its own");
        }
    }
}
