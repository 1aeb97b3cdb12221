//! gRPC clients over Unix sockets.

use std::error::Error;
use std::io;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// How long connecting may take. A Unix socket answers at once unless its listener has no room.
const CONNECT: Duration = Duration::from_secs(5);

/// Connects to a socket now. The `:authority` is `localhost`, which every gRPC stack accepts.
///
/// # Errors
/// If nobody listens there, or not within 5 s.
pub(crate) async fn connect(socket: &Path) -> io::Result<Channel> {
    let socket = socket.to_owned();
    let dial = service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(CONNECT);
    endpoint.connect_with_connector(dial).await.map_err(|error| io::Error::other(cause(&error)))
}

/// The innermost error's text: the outer ones only say "transport error".
pub(crate) fn cause(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_can_not_be_reached_is_an_error_that_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let error = connect(&dir.path().join("none")).await.unwrap_err();
        assert_eq!(error.to_string(), "No such file or directory (os error 2)");
    }
}
