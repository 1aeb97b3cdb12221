//! The file `remote-handlers.json` in the state directory: how remote handlers are doing, for people, and which there are,
//! for the next start of the agent. Not all handlers register again by themselves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use akri_api::{DiscoveryHandlerStatus, HandlerKind, HandlerState};
use akri_model::remote::{Address, Endpoint, Endpoints, MAX_ENDPOINTS, Record, State};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::endpoints::Shared;
use super::trust::{Trust, Untrusted};
use crate::plugin::socket::FileId;
use crate::replace::replace;

const FILE: &str = "remote-handlers.json";

/// Largest file that is read: 64 endpoints with the longest names and errors take a tenth of that.
const MAX_FILE: u64 = 4 << 20;

/// What went wrong with the file.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// It could not be read or written.
    #[error("'{}': {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It holds something else.
    #[error("'{}' is not a list of remote handlers: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
}

/// One endpoint in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    #[serde(flatten)]
    status: DiscoveryHandlerStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<bool>,
}

/// How the remote handlers of a state directory are doing, for a look from outside; none if there is no such file.
pub fn read_remote_handlers(state: &Path) -> Result<Vec<DiscoveryHandlerStatus>, MemoryError> {
    Ok(read(state)?.into_iter().map(|remembered| remembered.status).collect())
}

fn read(state: &Path) -> Result<Vec<Remembered>, MemoryError> {
    let path = state.join(FILE);
    match bounded(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|source| MemoryError::Malformed { path, source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(MemoryError::Io { path, source }),
    }
}

fn bounded(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MAX_FILE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    fs::read(path)
}

/// Writes the file. `started` is the moment that times of endpoints are from.
pub(super) fn write(state: &Path, endpoints: &Endpoints, started: SystemTime) -> Result<(), MemoryError> {
    let path = state.join(FILE);
    let all: Vec<Remembered> =
        endpoints.iter().map(|(endpoint, record)| remembered(endpoint, record, started)).collect();
    let bytes =
        serde_json::to_vec_pretty(&all).map_err(|source| MemoryError::Malformed { path: path.clone(), source })?;
    replace(&path, &bytes, false).map_err(|source| MemoryError::Io { path, source })
}

fn remembered(endpoint: &Endpoint, record: &Record, started: SystemTime) -> Remembered {
    let since = Timestamp::try_from(started + record.since).ok();
    let since = since.and_then(|since| Timestamp::from_second(since.as_second()).ok());
    let status = DiscoveryHandlerStatus {
        handler: Some(endpoint.handler.clone()),
        kind: HandlerKind::Remote,
        endpoint: Some(endpoint.address.to_string()),
        state: match record.state {
            State::Waiting => HandlerState::Waiting,
            State::Active => HandlerState::Active,
            State::Offline => HandlerState::Offline,
        },
        since: since.map(Time),
        last_result: record.last_result.as_ref().map(|result| match result {
            Ok(()) => "Discovered".to_owned(),
            Err(error) => error.clone(),
        }),
        devices: i64::try_from(record.devices()).unwrap_or(i64::MAX),
        ..DiscoveryHandlerStatus::default()
    };
    Remembered { status, shared: record.shared }
}

/// Takes in the endpoints of the file, as far as they are still trusted, and the sockets in the handler directory. A socket
/// does not say whose it is: upstream Akri's handlers call theirs `<handler>.sock`, and so it is taken for that handler's.
/// Whether its devices are shared is not known then.
pub(super) fn recall(state: &Path, trust: &Trust, endpoints: &Shared) {
    match read(state) {
        Ok(all) => {
            all.iter().filter_map(|one| endpoint(one, trust)).for_each(|(one, shared)| endpoints.recall(one, shared))
        }
        Err(error) => warn!("remote handlers of before are not known: {error}"),
    }
    for found in sockets(trust) {
        let is_known = endpoints.watch().borrow().iter().any(|(known, _)| known.address == found.address);
        if !is_known {
            endpoints.recall(found, None);
        }
    }
}

fn endpoint(remembered: &Remembered, trust: &Trust) -> Option<(Endpoint, Option<bool>)> {
    let handler = remembered.status.handler.clone()?;
    let text = remembered.status.endpoint.as_deref()?;
    match address(text, trust) {
        Ok(address) => Some((Endpoint { handler, address }, remembered.shared)),
        Err(error) => {
            warn!(handler, endpoint = text, "no longer used: {error}");
            None
        }
    }
}

/// What [`Address`] prints.
fn address(text: &str, trust: &Trust) -> Result<Address, Untrusted> {
    match text.strip_prefix("unix:") {
        Some(path) => trust.unix(path),
        None => trust.network(text),
    }
}

/// The sockets in the handler directory, in order, each with the handler it is called after.
fn sockets(trust: &Trust) -> Vec<Endpoint> {
    let entries = fs::read_dir(&trust.directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_socket =
        |path: &PathBuf| path.extension().is_some_and(|end| end == "sock") && FileId::of_socket(path).is_some();
    let endpoint = |path: PathBuf| {
        let address = trust.unix(path.to_str()?).ok()?;
        Some(Endpoint { handler: path.file_stem()?.to_str()?.to_owned(), address })
    };
    let mut sockets: Vec<Endpoint> = entries.filter(is_socket).filter_map(endpoint).take(MAX_ENDPOINTS).collect();
    sockets.sort();
    sockets
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use akri_model::names::Key;

    use super::super::SOCKET;
    use super::super::dial::is_dead;
    use super::*;

    fn unix(directory: &Path, name: &str) -> Address {
        Address::Unix(directory.join(name).display().to_string())
    }

    fn endpoint(handler: &str, address: &Address) -> Endpoint {
        Endpoint { handler: handler.to_owned(), address: address.clone() }
    }

    fn names(endpoints: &Shared) -> Vec<(String, String, Option<bool>)> {
        let all = endpoints.watch().borrow().clone();
        let name = |endpoint: &Endpoint| endpoint.address.to_string().rsplit('/').next().unwrap().to_owned();
        all.iter().map(|(endpoint, record)| (endpoint.handler.clone(), name(endpoint), record.shared)).collect()
    }

    #[test]
    fn what_registered_is_known_at_the_next_start_and_so_are_sockets() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().canonicalize().unwrap();
        let trust =
            Trust { directory: directory.clone(), users: [0].into(), networks: vec!["10.0.0.0/8".parse().unwrap()] };
        let network = |address: &str| Address::Network(address.parse().unwrap());
        let mut before = Endpoints::default();
        for (handler, address, shared) in [
            ("cam", unix(&directory, "one.sock"), true),
            ("cam", network("10.0.0.1:80"), true),
            ("cam", network("192.168.0.1:80"), true),
            ("other", unix(Path::new("/etc"), "other.sock"), false),
        ] {
            before.register(endpoint(handler, &address), shared, Duration::ZERO, is_dead).unwrap();
        }
        write(&directory, &before, SystemTime::now()).unwrap();
        let _sockets = ["one.sock", "two.sock", "three.socket", SOCKET]
            .map(|name| UnixListener::bind(directory.join(name)).unwrap());
        fs::write(directory.join("four.sock"), "").unwrap();

        let after = Shared::new(&directory);
        recall(&directory, &trust, &after);

        let expected = [("cam", "one.sock", Some(true)), ("cam", "10.0.0.1:80", Some(true)), ("two", "two.sock", None)];
        assert_eq!(
            names(&after),
            expected.map(|(handler, name, shared)| (handler.to_owned(), name.to_owned(), shared))
        );
    }

    #[test]
    fn people_see_how_they_are_doing() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(read_remote_handlers(state.path()).unwrap(), []);
        let cam = endpoint("cam", &unix(Path::new("/run"), "cam.sock"));
        let mut endpoints = Endpoints::default();
        endpoints.register(cam.clone(), false, Duration::ZERO, is_dead).unwrap();
        let user = Key::new("default", "c");
        endpoints.used(&cam, &user);
        endpoints.connected(&cam, &user, Some(true), Duration::from_secs(60));
        endpoints.told(&cam, &user, Ok(3));
        write(state.path(), &endpoints, SystemTime::UNIX_EPOCH).unwrap();
        let [status] = read_remote_handlers(state.path()).unwrap().try_into().unwrap();
        assert_eq!((status.handler.as_deref(), status.kind), (Some("cam"), HandlerKind::Remote));
        assert_eq!(status.endpoint.as_deref(), Some("unix:/run/cam.sock"));
        assert_eq!((status.state, status.devices), (HandlerState::Active, 3));
        assert_eq!(status.since, Some(Time(Timestamp::from_second(60).unwrap())));
        assert_eq!(status.last_result.as_deref(), Some("Discovered"));
    }

    #[test]
    fn a_file_that_is_damaged_is_named_and_does_not_stop_the_start() {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join(FILE), "{").unwrap();
        let error = read_remote_handlers(state.path()).unwrap_err().to_string();
        assert!(error.contains("remote-handlers.json' is not a list of remote handlers"), "{error}");
        let trust = Trust { directory: state.path().to_owned(), users: [0].into(), networks: Vec::new() };
        let endpoints = Shared::new(state.path());
        recall(state.path(), &trust, &endpoints);
        assert_eq!(names(&endpoints), []);
    }
}
