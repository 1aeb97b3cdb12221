//! Connections to addresses that were checked.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use wasmtime_wasi_http::Error;

/// Connects to the first of the addresses that answers, and says which; each has its share of the time.
pub(crate) async fn dial(addresses: &[SocketAddr], within: Duration) -> Result<(SocketAddr, TcpStream), Error> {
    let share = within / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut last = Error::DestinationNotFound;
    for address in addresses {
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // A request is one or two small writes; it must not wait for the first to be acknowledged.
                let _ = stream.set_nodelay(true);
                return Ok((*address, stream));
            }
            Ok(Err(error)) => last = why(&error),
            Err(_) => last = Error::ConnectionTimeout,
        }
    }
    Err(last)
}

/// What a failed connection means to a guest.
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
    async fn the_first_address_that_answers_is_used() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let closed = {
            let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
            gone.local_addr().unwrap()
        };
        let second = Duration::from_secs(60);
        assert_eq!(dial(&[closed, open], second).await.unwrap().0, open);
        assert!(matches!(dial(&[closed], second).await, Err(Error::ConnectionRefused)));
        assert!(matches!(dial(&[], second).await, Err(Error::DestinationNotFound)));
    }
}
