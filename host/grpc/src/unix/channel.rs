//! gRPC clients over Unix sockets.

use std::error::Error;
use std::io;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// Connect timeout. A Unix socket answers at once unless its backlog is full.
const CONNECT: Duration = Duration::from_secs(5);

/// Connects to a socket. The `:authority` is `localhost`, which every gRPC stack accepts.
///
/// # Errors
/// If nothing listens on the socket, or the connection takes longer than 5 s.
pub async fn connect(socket: &Path) -> io::Result<Channel> {
    let socket = socket.to_owned();
    let dial = service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(CONNECT);
    endpoint.connect_with_connector(dial).await.map_err(|error| io::Error::other(cause(&error)))
}

/// Returns the text of the innermost error: the outer ones only say "transport error".
pub fn cause(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unreachable_socket_error_states_the_cause() {
        let dir = tempfile::tempdir().unwrap();
        let error = connect(&dir.path().join("none")).await.unwrap_err();
        assert_eq!(error.to_string(), "No such file or directory (os error 2)");
    }
}
