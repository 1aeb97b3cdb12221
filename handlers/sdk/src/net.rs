//! The network by `wasi:sockets`, with IPv4 and IPv6: names, connections, datagrams, time limits, and many of them at once on the
//! one thread of a component. Grants of the DiscoveryHandler allow it; what they deny is [`ErrorKind::PermissionDenied`].
//! Scope ids of IPv6 addresses are dropped, so that link-local ones are of use only where one interface has them.
//!
//! ```ignore
//! use akri_handler::net;
//!
//! const LIMIT: std::time::Duration = std::time::Duration::from_secs(2);
//! let servers = ["192.0.2.7", "plc.example"];
//! let ask = async |server: &str| {
//!     let connection = net::connect(server, 502, LIMIT).await?;
//!     net::within(LIMIT, connection.write_all(b"hello\n")).await
//! };
//! let results = net::block_on(net::join_all(servers.iter().map(|server| ask(server))));
//! ```

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::host::time_left;

#[cfg(target_family = "wasm")]
mod wasi;
#[cfg(target_family = "wasm")]
use self::wasi as host;
#[cfg(not(target_family = "wasm"))]
use crate::testing::network as host;

pub use self::host::{TcpStream, UdpSocket, block_on, within};
pub use futures::future::join_all;

/// Returns the first addresses of a name, in the resolver's order; of an address, itself.
///
/// # Errors
/// [`ErrorKind::NotFound`], [`ErrorKind::PermissionDenied`] without `grants.names`, or [`ErrorKind::ResourceBusy`] if no name server
/// answers.
pub async fn resolve(host: &str) -> io::Result<Vec<IpAddr>> {
    match host.parse() {
        Ok(address) => Ok(vec![address]),
        Err(_) => host::lookup(host).await,
    }
}

/// Connects to a host within a limit, to the first of its addresses that answers.
///
/// # Errors
/// Of the last address.
pub async fn connect(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
    let left_at_first = time_left(Duration::ZERO);
    let addresses = within(limit, resolve(host)).await?;
    let mut failure = io::Error::new(ErrorKind::NotFound, format!("'{host}' has no address"));
    for (left, address) in (1..=addresses.len() as u32).rev().zip(addresses) {
        let elapsed = left_at_first.saturating_sub(time_left(Duration::ZERO));
        let share = limit.saturating_sub(elapsed) / left;
        match within(share, TcpStream::open(SocketAddr::new(address, port))).await {
            Ok(connection) => return Ok(connection),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Returns the error of this name of WASI.
pub(crate) fn error(name: &str) -> io::Error {
    io::Error::from(match name {
        "access-denied" => ErrorKind::PermissionDenied,
        "connection-refused" => ErrorKind::ConnectionRefused,
        "remote-unreachable" => ErrorKind::HostUnreachable,
        "timeout" => ErrorKind::TimedOut,
        "new-socket-limit" => ErrorKind::QuotaExceeded,
        "temporary-resolver-failure" => ErrorKind::ResourceBusy,
        other => return io::Error::other(other.to_owned()),
    })
}

/// Returns the error of this name of WASI that a name of a host led to.
pub(crate) fn lookup_error(host: &str, name: &str) -> io::Error {
    match name {
        "name-unresolvable" | "permanent-resolver-failure" | "invalid-argument" => {
            io::Error::new(ErrorKind::NotFound, format!("the name '{host}' does not resolve"))
        }
        other => error(other),
    }
}

impl TcpStream {
    /// Fills the buffer.
    ///
    /// # Errors
    /// If the connection breaks or ends before.
    pub async fn read_exact(&self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            let length = self.read(buffer).await?;
            if length == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            buffer = buffer.get_mut(length..).unwrap_or_default();
        }
        Ok(())
    }
}
