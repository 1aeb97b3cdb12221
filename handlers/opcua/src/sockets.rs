//! The network over `wasi:sockets`: name resolution, connections and timeouts, concurrently on the single thread of a
//! component. The host checks each address and name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use wasip2::sockets::instance_network::instance_network;
use wasip2::sockets::ip_name_lookup::resolve_addresses;
use wasip2::sockets::network::{ErrorCode, IpAddress, IpAddressFamily, IpSocketAddress};
use wasip2::sockets::network::{Ipv4SocketAddress, Ipv6SocketAddress};
use wasip2::sockets::tcp::TcpSocket;
use wasip2::sockets::tcp_create_socket::create_tcp_socket;
use wstd::future::FutureExt as _;
use wstd::io::{AsyncInputStream, AsyncOutputStream};
use wstd::runtime::AsyncPollable;
use wstd::time::Timer;

use crate::conversation::{Conversation, Step};
use crate::message::Question;
use crate::network::{Error, Network};
use crate::url::{Host, Url};

/// Maximum number of addresses tried per name.
const MAX_ADDRESSES: usize = 4;

/// Size of a read.
const READ: usize = 16 * 1024;

/// The sockets provided by the host.
#[derive(Debug)]
pub(crate) struct Sockets {
    remaining: fn() -> u64,
    /// Resolved names of the round: many servers share a host, and the host limits resolutions.
    known: RefCell<HashMap<String, Result<Vec<IpAddr>, Error>>>,
}

impl Sockets {
    /// Creates the network; `remaining` returns the remaining time of the round in nanoseconds.
    pub(crate) fn new(remaining: fn() -> u64) -> Self {
        Self { remaining, known: RefCell::default() }
    }

    async fn addresses(&self, host: &Host) -> Result<Vec<IpAddr>, Error> {
        let name = match host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        if let Some(known) = self.known.borrow().get(name) {
            return known.clone();
        }
        let addresses = resolve(name).await;
        self.known.borrow_mut().insert(name.clone(), addresses.clone());
        addresses
    }
}

impl Network for Sockets {
    async fn ask(&self, url: &Url, question: Question, limit: Duration) -> Result<Vec<u8>, Error> {
        let start = Instant::now();
        // Without an answer of the name servers, nothing is known about the server.
        let unresolved = |error| if matches!(error, Error::TimedOut(_)) { Error::NotReached } else { error };
        let addresses = within(limit, self.addresses(&url.host)).await.map_err(unresolved)?;
        let mut failure = None;
        for (left, address) in (1..=addresses.len() as u32).rev().zip(addresses) {
            let share = limit.saturating_sub(start.elapsed()) / left;
            match within(share, converse(SocketAddr::new(address, url.port), url, question)).await {
                Ok(response) => return Ok(response),
                Err(error) => failure = Some(worse(failure, error)),
            }
        }
        Err(failure.unwrap_or_else(|| Error::NameNotResolved(url.host.to_string())))
    }

    fn remaining(&self) -> Duration {
        Duration::from_nanos((self.remaining)())
    }
}

/// Selects the more informative of two failures: not that one of several addresses is not granted.
fn worse(before: Option<Error>, now: Error) -> Error {
    match (before, now) {
        (Some(before), Error::NotGranted(_)) => before,
        (_, now) => now,
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let timer = Timer::after(limit.into());
    work.timeout(timer.wait()).await.unwrap_or(Err(Error::TimedOut(limit)))
}

/// Resolves a name, in the resolver's order.
async fn resolve(name: &str) -> Result<Vec<IpAddr>, Error> {
    let failed = |code| match code {
        ErrorCode::AccessDenied => Error::NotGranted(format!("resolving '{name}' (grants.names)")),
        ErrorCode::TemporaryResolverFailure => Error::NotReached, // the name servers fail, or the host's bound on lookups
        _ => Error::NameNotResolved(name.to_owned()),
    };
    let lookup = resolve_addresses(&instance_network(), name).map_err(failed)?;
    let ready = AsyncPollable::new(lookup.subscribe());
    let mut addresses = Vec::new();
    while addresses.len() < MAX_ADDRESSES {
        match lookup.resolve_next_address() {
            Ok(Some(address)) => addresses.push(ip_address(address)),
            Ok(None) => break,
            Err(ErrorCode::WouldBlock) => ready.wait_for().await,
            Err(code) => return Err(failed(code)),
        }
    }
    Ok(addresses)
}

/// Runs a conversation with the server at an address.
async fn converse(address: SocketAddr, url: &Url, question: Question) -> Result<Vec<u8>, Error> {
    let connection = Connection::open(address).await?;
    let (mut conversation, hello) = Conversation::begin(question, url.to_string(), SystemTime::now());
    connection.output.write_all(&hello).await.map_err(|_| broken())?;
    let mut buffer = vec![0; READ];
    loop {
        let length = connection.input.read(&mut buffer).await.map_err(|_| broken())?;
        if length == 0 {
            return Err(broken());
        }
        match conversation.receive(buffer.get(..length).unwrap_or_default())? {
            Step::Read => {}
            Step::Send(bytes) => connection.output.write_all(&bytes).await.map_err(|_| broken())?,
            Step::Done { response, farewell } => {
                // The message fits into the peer's buffer: it is smaller than the smallest one permitted.
                let _ = connection.output.write(&farewell).await;
                return Ok(response);
            }
        }
    }
}

/// Returns the error for a broken connection; whether it was closed or reset depends on timing.
fn broken() -> Error {
    Error::Unreachable("the connection broke off".to_owned())
}

/// A TCP connection. Streams are dropped before their socket.
struct Connection {
    input: AsyncInputStream,
    output: AsyncOutputStream,
    _socket: TcpSocket,
}

impl Connection {
    /// Connects. `wstd::net::TcpStream` does not support IPv6 yet.
    async fn open(address: SocketAddr) -> Result<Self, Error> {
        let failed = |code| unreachable(address, code);
        let family = if address.is_ipv4() { IpAddressFamily::Ipv4 } else { IpAddressFamily::Ipv6 };
        let socket = create_tcp_socket(family).map_err(failed)?;
        socket.start_connect(&instance_network(), socket_address(address)).map_err(failed)?;
        let ready = AsyncPollable::new(socket.subscribe());
        loop {
            match socket.finish_connect() {
                Ok((input, output)) => {
                    let (input, output) = (AsyncInputStream::new(input), AsyncOutputStream::new(output));
                    return Ok(Self { input, output, _socket: socket });
                }
                Err(ErrorCode::WouldBlock) => ready.wait_for().await,
                Err(code) => return Err(failed(code)),
            }
        }
    }
}

fn unreachable(address: SocketAddr, code: ErrorCode) -> Error {
    match code {
        ErrorCode::AccessDenied => Error::NotGranted(format!("TCP to {address} (grants.tcp)")),
        ErrorCode::ConnectionRefused => Error::Unreachable("connection refused".to_owned()),
        ErrorCode::RemoteUnreachable => Error::Unreachable("no route to the machine".to_owned()),
        ErrorCode::Timeout => Error::Unreachable("no answer to the connection request".to_owned()),
        ErrorCode::NewSocketLimit => Error::NotReached, // the host's bound on connections
        other => Error::Unreachable(format!("no connection: {}", other.name())),
    }
}

fn ip_address(address: IpAddress) -> IpAddr {
    match address {
        IpAddress::Ipv4((a, b, c, d)) => [a, b, c, d].into(),
        IpAddress::Ipv6((a, b, c, d, e, f, g, h)) => [a, b, c, d, e, f, g, h].into(),
    }
}

fn socket_address(address: SocketAddr) -> IpSocketAddress {
    let port = address.port();
    match address.ip() {
        IpAddr::V4(ip) => IpSocketAddress::Ipv4(Ipv4SocketAddress { port, address: ip.octets().into() }),
        IpAddr::V6(ip) => {
            let address = ip.segments().into();
            IpSocketAddress::Ipv6(Ipv6SocketAddress { port, flow_info: 0, address, scope_id: 0 })
        }
    }
}
