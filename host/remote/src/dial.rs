//! Connections to handlers.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use akri_grpc::unix::{FileId, cause, is_refused};
use akri_model::remote::Address;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::transport::{self, Channel, Endpoint, Uri};
use tower::service_fn;

use crate::RemoteSettings;
use crate::trust::link_of;

/// Connect timeout.
const CONNECT: Duration = Duration::from_secs(5);

/// HTTP/2 flow control window, in bytes: larger than most messages.
const WINDOW: u32 = 256 << 10;

/// TCP keepalive: a host that disappears is noticed after a minute. HTTP/2 pings don't serve: common gRPC servers close
/// connections that are pinged more often than every five minutes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// Connects to a handler, or returns why it can't be reached or is not trusted. The `:authority` on a Unix socket is `localhost`, which every gRPC stack accepts.
pub(super) async fn dial(address: &Address, settings: &Arc<RemoteSettings>) -> Result<Channel, String> {
    let connected = match address {
        Address::Unix(path) => {
            settings.socket(path).map_err(|error| error.message().to_owned())?;
            let (path, settings) = (path.clone(), Arc::clone(settings));
            let connect = service_fn(move |_: Uri| {
                let (path, settings) = (path.clone(), Arc::clone(&settings));
                async move { unix(&path, &settings).await.map(TokioIo::new) }
            });
            configured(Endpoint::from_static("http://localhost")).connect_with_connector(connect).await
        }
        Address::Network(address) => {
            settings.may_dial(*address).map_err(|error| error.message().to_owned())?;
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

/// Connects to the socket that was checked, and checks the user of the peer.
async fn unix(path: &str, settings: &RemoteSettings) -> io::Result<UnixStream> {
    let denied = |error: Status| io::Error::new(io::ErrorKind::PermissionDenied, error.message());
    let socket = settings.socket(path).map_err(denied)?;
    let stream = UnixStream::connect(link_of(&socket)).await?;
    let user = stream.peer_cred()?.uid();
    settings.check_user(user).map_err(denied)?;
    Ok(stream)
}

fn failed(error: transport::Error) -> String {
    cause(&error)
}

/// Returns whether nothing can be listening at the address of an endpoint that was not dialled yet. A killed handler
/// leaves its socket behind.
pub(super) fn is_dead(address: &Address) -> bool {
    match address {
        Address::Unix(path) => FileId::of_socket(Path::new(path)).is_none() || is_refused(Path::new(path)),
        Address::Network(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn refused_connection_fails_without_waiting() {
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
