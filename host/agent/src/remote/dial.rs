//! Connections to handlers.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use akri_model::remote::Address;
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::net::UnixStream;
use tonic::transport::{self, Channel, Endpoint, Uri};
use tower::service_fn;

use super::trust::{Trust, Untrusted};
use crate::plugin::channel::cause;
use crate::plugin::socket::FileId;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// Bytes that a handler may send before anyone reads them: more than most messages have.
const WINDOW: u32 = 256 << 10;

/// A host that has vanished without a word is noticed by TCP itself, after a minute. Pings of HTTP/2 are no way to find out:
/// common gRPC servers hang up on clients that send one more often than every five minutes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// It may not be dialled, or somebody answers who may not.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// Nobody answers.
    #[error("{0}")]
    Connect(String),
}

/// Connects to a handler. The `:authority` on a Unix socket is `localhost`, which every gRPC stack accepts.
pub(super) async fn dial(address: &Address, trust: &Arc<Trust>) -> Result<Channel, DialError> {
    let connected = match address {
        Address::Unix(path) => {
            trust.socket(path)?;
            let (path, trust) = (path.clone(), Arc::clone(trust));
            let connect = service_fn(move |_: Uri| {
                let (path, trust) = (path.clone(), Arc::clone(&trust));
                async move { unix(&path, &trust).await.map(TokioIo::new) }
            });
            configured(Endpoint::from_static("http://localhost")).connect_with_connector(connect).await
        }
        Address::Network(address) => {
            trust.still(&Address::Network(*address))?;
            let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(failed)?;
            let (idle, interval, retries) = KEEPALIVE;
            let endpoint = endpoint
                .tcp_keepalive(Some(idle))
                .tcp_keepalive_interval(Some(interval))
                .tcp_keepalive_retries(Some(retries));
            configured(endpoint).connect().await
        }
    };
    connected.map_err(failed)
}

fn configured(endpoint: Endpoint) -> Endpoint {
    endpoint.connect_timeout(CONNECT).initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW)
}

/// Connects, and looks who listens there.
async fn unix(path: &str, trust: &Trust) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path).await?;
    let user = stream.peer_cred()?.uid();
    trust.user(user).map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
    Ok(stream)
}

fn failed(error: transport::Error) -> DialError {
    DialError::Connect(cause(&error))
}

/// Whether nobody can be there: for an endpoint that nobody has asked yet. Handlers that are killed leave their sockets.
pub(super) fn is_dead(address: &Address) -> bool {
    match address {
        Address::Unix(path) => FileId::of_socket(Path::new(path)).is_none() || is_refused(path),
        Address::Network(_) => false,
    }
}

/// Whether a connection is refused. Does not wait: a socket that is too busy to take one is not dead.
fn is_refused(path: &str) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let connected = socket.and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    connected == Err(Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn where_nobody_listens_is_told_without_waiting() {
        let root = tempfile::tempdir().unwrap();
        let dead = |name: &str| is_dead(&Address::Unix(root.path().join(name).display().to_string()));
        let listener = UnixListener::bind(root.path().join("live")).unwrap();
        let busy = UnixListener::bind(root.path().join("busy")).unwrap();
        rustix::net::listen(&busy, 0).unwrap();
        drop(UnixListener::bind(root.path().join("killed")).unwrap());
        fs::write(root.path().join("file"), "").unwrap();
        let found = ["live", "busy", "busy", "busy", "killed", "file", "none"].map(dead);
        assert_eq!(found, [false, false, false, false, true, true, true]);
        assert!(!is_dead(&Address::Network("192.0.2.1:1".parse().unwrap())), "that would take a while to find out");
        drop(listener);
        assert!(dead("live"));
    }
}
