//! The destination of an HTTP request, its granted addresses, and connections to them.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use akri_model::grant::{HttpDestinations, Tls};
use http::Uri;
use http::uri::Scheme;
use tokio::net::TcpStream;
use tokio::time::timeout;
use wasmtime_wasi_http::Error;

use crate::capabilities::names::address;

/// The server of a request, as its URI says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) secure: bool,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    /// An address, an IPv4 one mapped into IPv6 as that.
    Address(IpAddr),
    /// A name that has to be resolved.
    Name(String),
}

impl Destination {
    /// Reads the URI of a request.
    ///
    /// # Errors
    /// If it has no host, or names a user: credentials belong into a header.
    pub(crate) fn of(uri: &Uri) -> Result<Self, Error> {
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let host = authority.map(|authority| authority.host()).filter(|host| !host.is_empty());
        let host = host.ok_or(Error::HttpRequestUriInvalid)?;
        let secure = uri.scheme() == Some(&Scheme::HTTPS);
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let host = match address(host) {
            Some(address) => Host::Address(address.to_canonical()),
            None => Host::Name(host.to_owned()),
        };
        Ok(Self { host, port, secure })
    }

    /// The name, if it is one.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.host {
            Host::Address(_) => None,
            Host::Name(name) => Some(name),
        }
    }
}

/// Returns the granted addresses, each with the trust in its server: of several grants that cover one, the first
/// decides.
pub(crate) fn granted<'g>(
    addresses: &[IpAddr],
    port: u16,
    grants: &'g [HttpDestinations],
) -> Vec<(SocketAddr, &'g Tls)> {
    let sockets = addresses.iter().map(|address| SocketAddr::new(*address, port));
    let grant = |to: SocketAddr| grants.iter().find(|grant| grant.to.contain(to)).map(|grant| (to, &grant.tls));
    sockets.filter_map(grant).collect()
}

/// Connects to an address that was checked.
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
    use akri_model::grant::Destinations;
    use tokio::net::TcpListener;

    use super::*;

    fn destination(uri: &str) -> Option<Destination> {
        Destination::of(&uri.parse::<Uri>().ok()?).ok()
    }

    #[test]
    fn hosts_and_ports_are_read() {
        let address = |text: &str| Host::Address(text.parse().unwrap());
        for (uri, host, port, secure) in [
            ("http://10.0.0.1/x", address("10.0.0.1"), 80, false),
            ("https://10.0.0.1/x", address("10.0.0.1"), 443, true),
            ("http://[::1]:8080/", address("::1"), 8080, false),
            ("http://[::ffff:10.0.0.1]/", address("10.0.0.1"), 80, false),
            ("http://camera.example:81/", Host::Name("camera.example".to_owned()), 81, false),
            ("http://127.1/", Host::Name("127.1".to_owned()), 80, false),
            ("http://0x7f000001/", Host::Name("0x7f000001".to_owned()), 80, false),
        ] {
            assert_eq!(destination(uri), Some(Destination { host, port, secure }), "{uri}");
        }
        for uri in ["/path", "http://user@10.0.0.1/", "http://10.0.0.1@camera.example/"] {
            assert_eq!(destination(uri), None, "{uri}");
        }
    }

    #[test]
    fn first_grant_decides_for_each_address() {
        let grant = |network: &str, ports, tls| {
            let to = Destinations { networks: vec![network.parse().unwrap()], ports: vec![ports] };
            HttpDestinations { to, tls }
        };
        let grants = [grant("10.0.0.0/24", 80..=80, Tls::Insecure), grant("10.0.0.0/8", 80..=90, Tls::System)];
        let addresses: Vec<IpAddr> =
            ["127.0.0.1", "10.0.0.1", "::1", "10.1.0.1"].iter().map(|address| address.parse().unwrap()).collect();
        let names = |port| {
            let granted = granted(&addresses, port, &grants).into_iter();
            granted.map(|(to, tls)| (to.to_string(), tls.clone())).collect::<Vec<_>>()
        };
        assert_eq!(names(80), [("10.0.0.1:80".to_owned(), Tls::Insecure), ("10.1.0.1:80".to_owned(), Tls::System)]);
        assert_eq!(names(90), [("10.0.0.1:90".to_owned(), Tls::System), ("10.1.0.1:90".to_owned(), Tls::System)]);
        assert_eq!(names(91), []);
    }

    #[tokio::test]
    async fn dial_reports_refused_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let bound = tokio::net::TcpSocket::new_v4().unwrap(); // it does not listen, and nobody else has its port
        bound.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let closed = bound.local_addr().unwrap();
        let second = Duration::from_secs(60);
        assert_eq!(dial(open, second).await.unwrap().peer_addr().unwrap(), open);
        assert!(matches!(dial(closed, second).await, Err(Error::ConnectionRefused)));
    }
}
