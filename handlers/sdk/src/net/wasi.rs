//! The network of the host, by `wasi:sockets`.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use wasip2::sockets::instance_network::instance_network;
use wasip2::sockets::ip_name_lookup::resolve_addresses;
use wasip2::sockets::network::{ErrorCode, IpAddress, IpAddressFamily, IpSocketAddress};
use wasip2::sockets::network::{Ipv4SocketAddress, Ipv6SocketAddress};
use wasip2::sockets::tcp::TcpSocket;
use wasip2::sockets::tcp_create_socket::create_tcp_socket;
use wasip2::sockets::udp::{IncomingDatagramStream, OutgoingDatagram, OutgoingDatagramStream};
use wasip2::sockets::udp_create_socket::create_udp_socket;
use wstd::future::FutureExt as _;
use wstd::io::{AsyncInputStream, AsyncOutputStream};
use wstd::runtime::AsyncPollable;
use wstd::time::Timer;

pub use wstd::runtime::block_on;

/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;

/// Awaits something for so long.
///
/// # Errors
/// [`ErrorKind::TimedOut`], or its own.
pub async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let timer = Timer::after(limit.into());
    let late = || Err(io::Error::new(ErrorKind::TimedOut, format!("nothing came within {limit:?}")));
    work.timeout(timer.wait()).await.unwrap_or_else(|_| late())
}

/// Returns the first addresses of a name, in the resolver's order.
pub(super) async fn lookup(host: &str) -> io::Result<Vec<IpAddr>> {
    let failed = |code: ErrorCode| super::lookup_error(host, code.name());
    let lookup = resolve_addresses(&instance_network(), host).map_err(failed)?;
    let ready = AsyncPollable::new(lookup.subscribe());
    let mut addresses = Vec::new();
    while addresses.len() < MAX_ADDRESSES {
        match lookup.resolve_next_address() {
            Ok(Some(IpAddress::Ipv4((a, b, c, d)))) => addresses.push(IpAddr::from([a, b, c, d])),
            Ok(Some(IpAddress::Ipv6(parts))) => addresses.push(IpAddr::from(<[u16; 8]>::from(parts))),
            Ok(None) => break,
            Err(ErrorCode::WouldBlock) => ready.wait_for().await,
            Err(code) => return Err(failed(code)),
        }
    }
    Ok(addresses)
}

/// A TCP connection. Streams are dropped before their socket.
#[derive(Debug)]
pub struct TcpStream {
    input: AsyncInputStream,
    output: AsyncOutputStream,
    _socket: TcpSocket,
}

impl TcpStream {
    /// Connects to an address, however long that takes ([`within`]).
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionRefused`], [`ErrorKind::HostUnreachable`], [`ErrorKind::PermissionDenied`] without `grants.tcp`, or
    /// [`ErrorKind::QuotaExceeded`] beyond `limits.connections`.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = create_tcp_socket(family(address)).map_err(error)?;
        socket.start_connect(&instance_network(), to_wasi(address)).map_err(error)?;
        let ready = AsyncPollable::new(socket.subscribe());
        loop {
            match socket.finish_connect() {
                Ok((input, output)) => {
                    let (input, output) = (AsyncInputStream::new(input), AsyncOutputStream::new(output));
                    return Ok(Self { input, output, _socket: socket });
                }
                Err(ErrorCode::WouldBlock) => ready.wait_for().await,
                Err(code) => return Err(error(code)),
            }
        }
    }

    /// Reads some bytes; none at the end.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read(buffer).await
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes).await
    }
}

/// A socket for datagrams. There is no broadcast; groups are reached by [`host::multicast`](crate::host::multicast).
#[derive(Debug)]
pub struct UdpSocket {
    incoming: IncomingDatagramStream,
    outgoing: OutgoingDatagramStream,
    _socket: wasip2::sockets::udp::UdpSocket,
}

impl UdpSocket {
    /// Opens a socket for peers whose addresses are of the family of this one.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] without `grants.udp`, or [`ErrorKind::QuotaExceeded`] beyond `limits.connections`.
    pub fn open(peer: SocketAddr) -> io::Result<Self> {
        let socket = create_udp_socket(family(peer)).map_err(error)?;
        let any: IpAddr = if peer.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        socket.start_bind(&instance_network(), to_wasi(SocketAddr::new(any, 0))).map_err(error)?;
        socket.finish_bind().map_err(error)?;
        let (incoming, outgoing) = socket.stream(None).map_err(error)?;
        Ok(Self { incoming, outgoing, _socket: socket })
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] if `grants.udp` does not cover the address.
    pub async fn send_to(&self, bytes: &[u8], peer: SocketAddr) -> io::Result<()> {
        while self.outgoing.check_send().map_err(error)? == 0 {
            AsyncPollable::new(self.outgoing.subscribe()).wait_for().await;
        }
        let datagram = OutgoingDatagram { data: bytes.to_vec(), remote_address: Some(to_wasi(peer)) };
        self.outgoing.send(&[datagram]).map(drop).map_err(error)
    }

    /// Returns the next datagram and its sender, however long that takes ([`within`]).
    ///
    /// # Errors
    /// If the socket fails.
    pub async fn receive(&self) -> io::Result<(Vec<u8>, SocketAddr)> {
        loop {
            if let Some(datagram) = self.incoming.receive(1).map_err(error)?.pop() {
                return Ok((datagram.data, from_wasi(datagram.remote_address)));
            }
            AsyncPollable::new(self.incoming.subscribe()).wait_for().await;
        }
    }
}

fn error(code: ErrorCode) -> io::Error {
    super::error(code.name())
}

fn family(address: SocketAddr) -> IpAddressFamily {
    if address.is_ipv4() { IpAddressFamily::Ipv4 } else { IpAddressFamily::Ipv6 }
}

fn to_wasi(address: SocketAddr) -> IpSocketAddress {
    let port = address.port();
    match address.ip() {
        IpAddr::V4(ip) => IpSocketAddress::Ipv4(Ipv4SocketAddress { port, address: ip.octets().into() }),
        IpAddr::V6(ip) => {
            let address = ip.segments().into();
            IpSocketAddress::Ipv6(Ipv6SocketAddress { port, flow_info: 0, address, scope_id: 0 })
        }
    }
}

fn from_wasi(address: IpSocketAddress) -> SocketAddr {
    match address {
        IpSocketAddress::Ipv4(Ipv4SocketAddress { port, address: (a, b, c, d) }) => ([a, b, c, d], port).into(),
        IpSocketAddress::Ipv6(from) => (<[u16; 8]>::from(from.address), from.port).into(),
    }
}
