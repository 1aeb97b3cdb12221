//! The file `remote-handlers.json` in the state directory: it shows the state of remote handlers to users, and restores
//! their registrations after a restart. Some handlers do not register again by themselves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use akri_api::condition::time;
use akri_api::{DiscoveryHandlerStatus, HandlerKind, HandlerState};
use akri_grpc::unix::FileId;
use akri_model::remote::{Address, Endpoint, EndpointRecord, EndpointState, Endpoints, MAX_ENDPOINTS};
use akri_node::replace::replace;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::endpoints::EndpointRegistry;
use crate::trust::{Trust, TrustError};

const FILE: &str = "remote-handlers.json";

/// Limit on the file: 64 endpoints with the longest names and errors take a tenth of that.
const MAX_FILE: u64 = 4 << 20;

/// The reason why the file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum EndpointFileError {
    /// The file could not be read or written.
    #[error("'{}': {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not a list of remote handlers.
    #[error("'{}' is not a list of remote handlers: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
}

/// One endpoint in the file.
#[derive(Debug, Serialize, Deserialize)]
struct EndpointEntry {
    #[serde(flatten)]
    status: DiscoveryHandlerStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<bool>,
}

/// Returns the status of the remote handlers of a state directory; empty if there is no such file.
pub fn read_remote_handlers(state: &Path) -> Result<Vec<DiscoveryHandlerStatus>, EndpointFileError> {
    Ok(read(state)?.into_iter().map(|entry| entry.status).collect())
}

fn read(state: &Path) -> Result<Vec<EndpointEntry>, EndpointFileError> {
    let path = state.join(FILE);
    match bounded(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|source| EndpointFileError::Malformed { path, source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(EndpointFileError::Io { path, source }),
    }
}

fn bounded(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MAX_FILE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    fs::read(path)
}

/// Writes the file. Times of endpoints count from `started`.
pub(super) fn write(state: &Path, endpoints: &Endpoints, started: SystemTime) -> Result<(), EndpointFileError> {
    let path = state.join(FILE);
    let all: Vec<EndpointEntry> = endpoints.iter().map(|(endpoint, record)| entry(endpoint, record, started)).collect();
    let bytes = serde_json::to_vec_pretty(&all)
        .map_err(|source| EndpointFileError::Malformed { path: path.clone(), source })?;
    replace(&path, &bytes, false).map_err(|source| EndpointFileError::Io { path, source })
}

fn entry(endpoint: &Endpoint, record: &EndpointRecord, started: SystemTime) -> EndpointEntry {
    let status = DiscoveryHandlerStatus {
        handler: Some(endpoint.handler.clone()),
        kind: HandlerKind::Remote,
        endpoint: Some(endpoint.address.to_string()),
        state: match record.state {
            EndpointState::Waiting => HandlerState::Waiting,
            EndpointState::Active => HandlerState::Active,
            EndpointState::Offline => HandlerState::Offline,
        },
        since: time(started + record.since),
        last_result: record.last_result.as_ref().map(|result| match result {
            Ok(()) => "Discovered".to_owned(),
            Err(error) => error.clone(),
        }),
        devices: i64::try_from(record.devices()).unwrap_or(i64::MAX),
        ..DiscoveryHandlerStatus::default()
    };
    EndpointEntry { status, shared: record.shared }
}

/// Restores the endpoints of the file that are still trusted, and adds sockets found in the handler directory. A socket
/// without a registration is attributed by its name, since upstream Akri's handlers use `<handler>.sock`; whether its
/// devices are shared is unknown.
pub(super) fn restore(state: &Path, trust: &Trust, endpoints: &EndpointRegistry) {
    match read(state) {
        Ok(all) => {
            all.iter().filter_map(|one| endpoint(one, trust)).for_each(|(one, shared)| endpoints.restore(one, shared))
        }
        Err(error) => warn!("cannot restore remote handlers: {error}"),
    }
    for found in sockets(trust) {
        let is_known = endpoints.watch().borrow().iter().any(|(known, _)| known.address == found.address);
        if !is_known {
            endpoints.restore(found, None);
        }
    }
}

fn endpoint(entry: &EndpointEntry, trust: &Trust) -> Option<(Endpoint, Option<bool>)> {
    let handler = entry.status.handler.clone()?;
    let text = entry.status.endpoint.as_deref()?;
    match address(text, trust) {
        Ok(address) => Some((Endpoint { handler, address }, entry.shared)),
        Err(error) => {
            warn!(handler, endpoint = text, "registration not restored: {error}");
            None
        }
    }
}

/// Parses the text form of an [`Address`].
fn address(text: &str, trust: &Trust) -> Result<Address, TrustError> {
    match text.strip_prefix("unix:") {
        Some(path) => trust.unix(path),
        None => trust.network(text),
    }
}

/// Returns the sockets in the handler directory, in order, each with the handler named by its file name.
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

    use super::*;
    use crate::SOCKET;
    use crate::dial::is_dead;

    fn unix(directory: &Path, name: &str) -> Address {
        Address::Unix(directory.join(name).display().to_string())
    }

    fn endpoint(handler: &str, address: &Address) -> Endpoint {
        Endpoint { handler: handler.to_owned(), address: address.clone() }
    }

    fn names(endpoints: &EndpointRegistry) -> Vec<(String, String, Option<bool>)> {
        let all = endpoints.watch().borrow().clone();
        let name = |endpoint: &Endpoint| endpoint.address.to_string().rsplit('/').next().unwrap().to_owned();
        all.iter().map(|(endpoint, record)| (endpoint.handler.clone(), name(endpoint), record.shared)).collect()
    }

    #[test] // rule 31
    fn registrations_and_sockets_survive_a_restart() {
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

        let after = EndpointRegistry::new(&directory);
        restore(&directory, &trust, &after);

        let expected = [("cam", "one.sock", Some(true)), ("cam", "10.0.0.1:80", Some(true)), ("two", "two.sock", None)];
        assert_eq!(
            names(&after),
            expected.map(|(handler, name, shared)| (handler.to_owned(), name.to_owned(), shared))
        );
    }

    #[test]
    fn file_shows_the_state_of_endpoints() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(read_remote_handlers(state.path()).unwrap(), []);
        let cam = endpoint("cam", &unix(Path::new("/run"), "cam.sock"));
        let mut endpoints = Endpoints::default();
        endpoints.register(cam.clone(), false, Duration::ZERO, is_dead).unwrap();
        let user = Key::new("default", "c");
        endpoints.add_user(&cam, &user);
        endpoints.set_connected(&cam, &user, Some(true), Duration::from_secs(60));
        endpoints.record_result(&cam, &user, Ok(3));
        write(state.path(), &endpoints, SystemTime::UNIX_EPOCH).unwrap();
        let [status] = read_remote_handlers(state.path()).unwrap().try_into().unwrap();
        assert_eq!((status.handler.as_deref(), status.kind), (Some("cam"), HandlerKind::Remote));
        assert_eq!(status.endpoint.as_deref(), Some("unix:/run/cam.sock"));
        assert_eq!((status.state, status.devices), (HandlerState::Active, 3));
        assert_eq!(status.since, time(SystemTime::UNIX_EPOCH + Duration::from_secs(60)));
        assert_eq!(status.last_result.as_deref(), Some("Discovered"));
    }

    #[test]
    fn damaged_file_is_named_and_does_not_stop_the_start() {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join(FILE), "{").unwrap();
        let error = read_remote_handlers(state.path()).unwrap_err().to_string();
        assert!(error.contains("remote-handlers.json' is not a list of remote handlers"), "{error}");
        let trust = Trust { directory: state.path().to_owned(), users: [0].into(), networks: Vec::new() };
        let endpoints = EndpointRegistry::new(state.path());
        restore(state.path(), &trust, &endpoints);
        assert_eq!(names(&endpoints), []);
    }
}
