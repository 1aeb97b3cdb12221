//! The registration socket.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use akri_grpc::unix::{FileId, OwnSocket, is_refused};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{REFUSAL_LOG_INTERVAL, RemoteSettings, SOCKET};

/// Maximum number of connections; for further ones the oldest is closed.
pub(super) const CONNECTIONS: usize = 64;

/// Creates the socket in the handler directory, which is created if needed. A stale socket is replaced; the new one has
/// its mode before it is visible. The error says what to do.
pub(super) fn bind(directory: &Path, mode: u32) -> Result<(OwnSocket, UnixListener), String> {
    let path = directory.join(SOCKET);
    let failed = |error| cannot_create(&path, &error);
    DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
    if FileId::of(&path).is_some() {
        check_stale(&path)?;
    }
    let beside = directory.join(format!(".{SOCKET}.{}", std::process::id()));
    let _ = fs::remove_file(&beside); // of a process of the same id that was killed
    let listener = UnixListener::bind(&beside).map_err(failed)?;
    let socket = OwnSocket::new(beside.clone())
        .and_then(|socket| fs::set_permissions(&beside, Permissions::from_mode(mode)).map(|()| socket))
        .and_then(|socket| socket.rename(path.clone()))
        .map_err(failed)?;
    Ok((socket, listener))
}

fn cannot_create(path: &Path, error: &io::Error) -> String {
    format!("cannot create '{}': {error}; set another directory with --handlers-dir", path.display())
}

fn check_stale(path: &Path) -> Result<(), String> {
    let shown = path.display();
    if FileId::of_socket(path).is_none() {
        return Err(format!("'{shown}' exists and is not a socket; remove it"));
    }
    let served =
        || format!("'{shown}' is served by another agent; stop it, or set another directory with --handlers-dir");
    if is_refused(path) { Ok(()) } else { Err(served()) }
}

/// Returns whether the peer's user may register. Refusals of one user are logged once, and others at a limited rate: a
/// process that may open the socket can connect as many users.
pub(super) fn may_register(
    stream: &UnixStream,
    settings: &RemoteSettings,
    refused: &mut Option<(u32, Instant)>,
) -> bool {
    let Ok(credentials) = stream.peer_cred() else { return false };
    let user = credentials.uid();
    let Err(error) = settings.check_user(user) else { return true };
    if refused.is_some_and(|(last, when)| last == user || when.elapsed() < REFUSAL_LOG_INTERVAL) {
        debug!(pid = credentials.pid(), "connection refused: {}", error.message());
    } else {
        *refused = Some((user, Instant::now()));
        warn!(pid = credentials.pid(), "connection refused: {}", error.message());
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn socket_is_created_with_its_directory_and_removed_on_drop() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("lib/akri");
        let (socket, _listener) = bind(&directory, 0o660).unwrap();
        assert_eq!(mode(&directory.join(SOCKET)), 0o660);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left beside it");
        drop(socket);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn stale_socket_is_replaced_and_a_live_one_is_not() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(SOCKET);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (first, _listener) = bind(root.path(), 0o660).unwrap();
        assert!(bind(root.path(), 0o660).unwrap_err().contains("another agent"));
        assert!(!first.is_lost());
        UnixStream::connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn other_files_are_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(SOCKET), "precious").unwrap();
        assert!(bind(root.path(), 0o660).unwrap_err().contains("is not a socket"));
        assert_eq!(fs::read_to_string(root.path().join(SOCKET)).unwrap(), "precious");
    }

    #[tokio::test]
    async fn replaced_socket_is_not_removed() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(SOCKET);
        let (socket, _listener) = bind(root.path(), 0o660).unwrap();
        // Kept under another name, so that the file system can't reuse its inode for the new socket.
        fs::rename(&path, root.path().join("other")).unwrap();
        assert!(socket.is_lost());
        let _other = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn uncreatable_directory_is_named_with_the_remedy() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let error = bind(&root.path().join("file/akri"), 0o660).unwrap_err().to_string();
        assert!(error.contains("file/akri/agent-registration.sock") && error.contains("--handlers-dir"), "{error}");
    }
}
