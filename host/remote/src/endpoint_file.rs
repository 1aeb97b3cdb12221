//! The file `remote-handlers.json` in the state directory. It restores registrations after a restart, since some handlers do
//! not register again by themselves, and shows the state of remote handlers to users.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use akri_api::condition::time;
use akri_api::{DiscoveryHandlerStatus, HandlerKind, HandlerState};
use akri_model::remote::{Endpoint, EndpointRecord, EndpointState, Endpoints};
use akri_node::json_file;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::RemoteSettings;
use crate::endpoints::EndpointRegistry;

/// One endpoint in the file.
#[derive(Debug, Serialize, Deserialize)]
struct EndpointEntry {
    #[serde(flatten)]
    status: DiscoveryHandlerStatus,
    #[serde(default)]
    shared: bool,
}

fn path(state: &Path) -> PathBuf {
    state.join("remote-handlers.json")
}

/// Returns the status of the remote handlers of a state directory; empty if there is no such file.
pub fn read_remote_handlers(state: &Path) -> io::Result<Vec<DiscoveryHandlerStatus>> {
    Ok(read(state)?.into_iter().map(|entry| entry.status).collect())
}

fn read(state: &Path) -> io::Result<Vec<EndpointEntry>> {
    Ok(json_file::read(&path(state))?.unwrap_or_default())
}

/// Writes the file. Times of endpoints count from `started`.
pub(super) fn write(state: &Path, endpoints: &Endpoints, started: SystemTime) -> io::Result<()> {
    let all: Vec<EndpointEntry> = endpoints.iter().map(|(endpoint, record)| entry(endpoint, record, started)).collect();
    json_file::write(&path(state), &all, false)
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
        last_result: record.last_result.clone().map(|result| result.err().unwrap_or_else(|| "Discovered".to_owned())),
        devices: i64::try_from(record.devices()).unwrap_or(i64::MAX),
        ..DiscoveryHandlerStatus::default()
    };
    EndpointEntry { status, shared: record.shared }
}

/// Restores the endpoints of the file that are still trusted.
pub(super) fn restore(state: &Path, settings: &RemoteSettings, endpoints: &EndpointRegistry) {
    match read(state) {
        Ok(entries) => endpoints.change(|all, now| {
            let trusted = entries.iter().filter_map(|entry| endpoint(entry, settings));
            trusted.for_each(|(endpoint, shared)| all.restore(endpoint, shared, now));
        }),
        Err(error) => warn!("cannot restore remote handlers: {error}"),
    }
}

fn endpoint(entry: &EndpointEntry, settings: &RemoteSettings) -> Option<(Endpoint, bool)> {
    let handler = entry.status.handler.clone()?;
    let text = entry.status.endpoint.as_deref()?;
    let address = text.strip_prefix("unix:").map_or_else(|| settings.network(text), |path| settings.unix(path));
    match address {
        Ok(address) => Some((Endpoint { handler, address }, entry.shared)),
        Err(error) => {
            warn!(handler, endpoint = text, "registration not restored: {}", error.message());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use akri_model::names::Key;
    use akri_model::remote::Address;

    use super::*;
    use crate::dial::is_dead;

    fn unix(directory: &Path, name: &str) -> Address {
        Address::Unix(directory.join(name).display().to_string())
    }

    fn endpoint(handler: &str, address: &Address) -> Endpoint {
        Endpoint { handler: handler.to_owned(), address: address.clone() }
    }

    fn settings(directory: &Path) -> RemoteSettings {
        RemoteSettings {
            directory: directory.to_owned(),
            users: Vec::new(),
            networks: vec!["10.0.0.0/8".parse().unwrap()],
            paths: Vec::new(),
            trust_paths: false,
            offline_timeout: Duration::ZERO,
        }
    }

    fn names(endpoints: &EndpointRegistry) -> Vec<(String, String, bool)> {
        let all = endpoints.watch().borrow().clone();
        let name = |endpoint: &Endpoint| endpoint.address.to_string().rsplit('/').next().unwrap().to_owned();
        all.iter().map(|(endpoint, record)| (endpoint.handler.clone(), name(endpoint), record.shared)).collect()
    }

    #[test] // rule 31
    fn trusted_registrations_survive_a_restart() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().canonicalize().unwrap();
        let settings = settings(&directory);
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

        let after = EndpointRegistry::new(&directory);
        restore(&directory, &settings, &after);

        let expected = [("cam", "one.sock", true), ("cam", "10.0.0.1:80", true)];
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
        fs::write(path(state.path()), "{").unwrap();
        let error = read_remote_handlers(state.path()).unwrap_err().to_string();
        assert!(error.contains("remote-handlers.json': invalid type: map, expected a sequence"), "{error}");
        let endpoints = EndpointRegistry::new(state.path());
        restore(state.path(), &settings(state.path()), &endpoints);
        assert_eq!(names(&endpoints), []);
    }
}
