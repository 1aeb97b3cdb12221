//! Connections to an address that was checked.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use wasmtime_wasi_http::Error;

/// Connects to an address.
pub(crate) async fn dial(address: SocketAddr, within: Duration) -> Result<TcpStream, Error> {
    match timeout(within, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => {
            // A request is one or two small writes; it must not wait for the first to be acknowledged.
            let _ = stream.set_nodelay(true);
            Ok(stream)
        }
        Ok(Err(error)) => Err(why(&error)),
        Err(_) => Err(Error::ConnectionTimeout),
    }
}

/// Converts the error of a failed connection for the guest.
fn why(error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::ConnectionRefused => Error::ConnectionRefused,
        ErrorKind::TimedOut => Error::ConnectionTimeout,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Error::DestinationIpUnroutable,
        _ => Error::DestinationUnavailable,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn dial_reports_refused_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let closed = {
            let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
            gone.local_addr().unwrap()
        };
        let second = Duration::from_secs(60);
        assert_eq!(dial(open, second).await.unwrap().peer_addr().unwrap(), open);
        assert!(matches!(dial(closed, second).await, Err(Error::ConnectionRefused)));
        assert!(matches!(dial(open, Duration::ZERO).await, Ok(_) | Err(Error::ConnectionTimeout)));
    }
}
