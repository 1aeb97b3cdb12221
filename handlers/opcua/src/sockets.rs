//! The network by the SDK: name resolution, connections and timeouts. The host checks each address and name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use akri_handler::net::{self, TcpStream};
use wstd::future::FutureExt as _;
use wstd::time::Timer;

use crate::conversation::{Conversation, Step};
use crate::message::Question;
use crate::network::{Error, Network};
use crate::url::{Host, Url};

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
                Err(error) => failure = failure.into_iter().chain([error]).reduce(Error::or),
            }
        }
        Err(failure.unwrap_or_else(|| Error::NameNotResolved(url.host.to_string())))
    }

    fn remaining(&self) -> Duration {
        Duration::from_nanos((self.remaining)())
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let timer = Timer::after(limit.into());
    work.timeout(timer.wait()).await.unwrap_or(Err(Error::TimedOut(limit)))
}

/// Resolves a name.
async fn resolve(name: &str) -> Result<Vec<IpAddr>, Error> {
    net::resolve(name).await.map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => Error::NotGranted(format!("resolving '{name}' (grants.names)")),
        ErrorKind::ResourceBusy => Error::NotReached, // the name servers fail, or the host's bound on lookups
        _ => Error::NameNotResolved(name.to_owned()),
    })
}

/// Runs a conversation with the server at an address.
async fn converse(address: SocketAddr, url: &Url, question: Question) -> Result<Vec<u8>, Error> {
    let connection = TcpStream::open(address).await.map_err(|error| unreachable(address, &error))?;
    let (mut conversation, hello) = Conversation::begin(question, url.to_string(), SystemTime::now());
    connection.write_all(&hello).await.map_err(|_| Error::BrokenOff)?;
    let mut buffer = vec![0; READ];
    loop {
        let length = connection.read(&mut buffer).await.map_err(|_| Error::BrokenOff)?;
        if length == 0 {
            return Err(Error::BrokenOff);
        }
        match conversation.receive(buffer.get(..length).unwrap_or_default())? {
            Step::Read => {}
            Step::Send(bytes) => connection.write_all(&bytes).await.map_err(|_| Error::BrokenOff)?,
            Step::Done { response, farewell } => {
                // The message fits into the peer's buffer: it is smaller than the smallest one permitted.
                let _ = connection.write_all(&farewell).await;
                return Ok(response);
            }
        }
    }
}

fn unreachable(address: SocketAddr, error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::PermissionDenied => Error::NotGranted(format!("TCP to {address} (grants.tcp)")),
        ErrorKind::ConnectionRefused => Error::Unreachable("connection refused".to_owned()),
        ErrorKind::HostUnreachable => Error::Unreachable("no route to the machine".to_owned()),
        ErrorKind::TimedOut => Error::Unreachable("no answer to the connection request".to_owned()),
        ErrorKind::QuotaExceeded => Error::NotReached, // the host's bound on connections
        _ => Error::Unreachable(format!("no connection: {error}")),
    }
}
