//! The network that a cassette describes. Time goes on only while the handler waits, to the next answer or time limit.

use std::future::poll_fn;
use std::io::{self, ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde_json::{Value, json};

use super::round::{Call, Nanos, Round, payload, with};
use crate::net::{error, lookup_error};

/// Runs the handler's work, and moves the clock on whenever all of it waits.
///
/// # Panics
/// If it waits for what never comes.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(result) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
        let waiting = with(|round| match round.next.take() {
            Some(next) => {
                round.advance(next);
                std::mem::take(&mut round.waiting)
            }
            None => panic!("the handler waits without a time limit for a peer that is silent"),
        });
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Awaits something for so long.
///
/// # Errors
/// [`ErrorKind::TimedOut`], or its own.
pub async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let end = with(|round| round.clock).saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    let mut work = pin!(work);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Pending if with(|round| round.is_due(end, context)) => {
            Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, format!("nothing came within {limit:?}"))))
        }
        polled => polled,
    })
    .await
}

/// Waits until `ready` has something.
async fn until<T>(mut ready: impl FnMut(&mut Round, &mut Context<'_>) -> Option<T>) -> T {
    poll_fn(|context| match with(|round| ready(round, context)) {
        Some(result) => Poll::Ready(result),
        None => Poll::Pending,
    })
    .await
}

impl Round {
    /// Returns whether it is so late; otherwise the task is woken then.
    fn is_due(&mut self, at: Nanos, context: &Context<'_>) -> bool {
        if self.clock >= at {
            return true;
        }
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
        self.waiting.push(context.waker().clone());
        false
    }

    /// Returns the next receive of a socket, once it is due: after all sends that stand before it.
    fn due_receive(&mut self, kind: &str, socket: &Value, context: &Context<'_>) -> Option<&mut Call> {
        let send = format!("{kind}.send");
        let of = |call: &Call| !call.is_made && call.fields.get("socket") == Some(socket);
        let first = self.calls.iter().position(of)?;
        let call = self.calls.get(first).filter(|call| call.name != send)?;
        let at = call.at;
        self.is_due(at, context).then(|| self.calls.get_mut(first)).flatten()
    }
}

fn recorded_error(call: &Call) -> io::Result<()> {
    call.text("error").map_or(Ok(()), |name| Err(error(name)))
}

pub(crate) async fn lookup(host: &str) -> io::Result<Vec<IpAddr>> {
    let name = json!(host);
    let call = with(|round| round.take("names.resolve", &[("name", &name)], &json!({ "name": host })));
    let is_silent = call.is_set("silent");
    until(|round, context| (!is_silent && round.is_due(call.at, context)).then_some(())).await;
    if let Some(name) = call.text("error") {
        return Err(lookup_error(host, name));
    }
    let addresses = call.fields.get("addresses").and_then(Value::as_array).into_iter().flatten();
    Ok(addresses.filter_map(|address| address.as_str()?.parse().ok()).take(4).collect())
}

/// A socket that is open.
#[derive(Debug)]
struct Socket {
    number: Value,
    _open: OpenSocket,
}

/// Counts for refusals of sockets.
#[derive(Debug)]
struct OpenSocket;

impl OpenSocket {
    fn new(kind: &str) -> io::Result<Self> {
        let refusal = format!("{kind}.socket");
        with(|round| {
            let open = round.open;
            let is_it = |call: &Call| call.fields.get("open").and_then(Value::as_u64).unwrap_or_default() == open;
            if let Some(call) = round.find(&refusal, &[]).filter(|call| is_it(call)) {
                call.is_made = true;
                recorded_error(call)?;
            }
            round.open += 1;
            Ok(Self)
        })
    }
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        super::round::try_with(|round| round.open = round.open.saturating_sub(1));
    }
}

/// A TCP connection.
#[derive(Debug)]
pub struct TcpStream(Socket);

impl TcpStream {
    /// Connects to an address, however long that takes ([`within`]).
    ///
    /// # Errors
    /// As recorded.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let is_open = OpenSocket::new("tcp")?;
        let to = json!(address.to_string());
        let call = with(|round| round.take("tcp.connect", &[("to", &to)], &json!({ "to": to })));
        let is_silent = call.is_set("silent");
        until(|round, context| (!is_silent && round.is_due(call.at, context)).then_some(())).await;
        recorded_error(&call)?;
        Ok(Self(Socket { number: call.fields.get("socket").cloned().unwrap_or_default(), _open: is_open }))
    }

    /// Reads some bytes; none at the end.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        until(|round, context| {
            let call = round.due_receive("tcp", &self.0.number, context)?;
            let bytes = call.bytes("bytes");
            let length = bytes.get(call.done..).unwrap_or_default().read(buffer).unwrap_or_default(); // can't fail
            call.done += length;
            // The end and errors stay.
            call.is_made = call.done >= bytes.len();
            Some(recorded_error(call).map(|()| length))
        })
        .await
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// None; it is for those of the host.
    pub async fn write_all(&self, mut sent: &[u8]) -> io::Result<()> {
        let socket = &self.0.number;
        while !sent.is_empty() {
            let length = with(|round| {
                let Some(call) = round.find("tcp.send", &[("socket", socket)]) else {
                    round.refuse("tcp.send", &json!({ "socket": socket, "bytes": payload(sent) }))
                };
                let all = call.bytes("bytes");
                let expected = all.get(call.done..).unwrap_or_default();
                let length = expected.len().min(sent.len());
                assert!(
                    expected.get(..length) == sent.get(..length),
                    "tcp.send differs\nexpected: {}\nactual:   {}",
                    payload(expected),
                    payload(sent)
                );
                call.done += length;
                call.is_made = call.done >= all.len();
                length
            });
            sent = sent.get(length..).unwrap_or_default();
        }
        Ok(())
    }
}

/// A socket for datagrams.
#[derive(Debug)]
pub struct UdpSocket(Socket);

impl UdpSocket {
    /// Opens a socket.
    ///
    /// # Errors
    /// As recorded.
    pub fn open(_peer: SocketAddr) -> io::Result<Self> {
        let is_open = OpenSocket::new("udp")?;
        let number = with(|round| round.claim_udp());
        Ok(Self(Socket { number: number.into(), _open: is_open }))
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// As recorded.
    pub async fn send_to(&self, bytes: &[u8], peer: SocketAddr) -> io::Result<()> {
        let made = json!({ "to": peer.to_string(), "bytes": payload(bytes) });
        recorded_error(&with(|round| round.take("udp.send", &[("socket", &self.0.number)], &made)))
    }

    /// Returns the next datagram and its sender, however long that takes ([`within`]).
    ///
    /// # Errors
    /// None; it is for those of the host.
    pub async fn receive(&self) -> io::Result<(Vec<u8>, SocketAddr)> {
        until(|round, context| {
            let call = round.due_receive("udp", &self.0.number, context)?;
            let from = call.text("from")?.parse().ok()?;
            call.is_made = true;
            Some(Ok((call.bytes("bytes"), from)))
        })
        .await
    }
}
