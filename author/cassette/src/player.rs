//! Answers the calls of a round from a cassette.
//!
//! Calls are matched in the order of what they belong to (a socket, a conversation, a URL), and not in one order for all:
//! whether the first of two peers answers before the second is up to the network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use akri_node::sysfs::Snapshot;
use serde_json::Value;
use tokio::sync::Notify;

use crate::call::{ReceivedDatagram, Recorded, Refused, Request, Response};
use crate::call_queue::{CallQueues, QueueKey, Received};
use crate::clock::{Clock, NEVER, Nanos, nanos};
use crate::display::{arguments, name, pretty, request_lines};
use crate::payload::Payload;
use crate::round::Line;

/// The address in the line of a name that is not recorded.
const EXAMPLE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A round that is played.
#[derive(Debug)]
pub struct Player {
    seed: u64,
    /// Milliseconds since 1970.
    time: u64,
    update_requests: bool,
    /// The clock of the round.
    pub(crate) clock: Arc<Clock>,
    state: Mutex<CallQueues>,
    failed: Notify,
}

/// A call that is not as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// A call whose arguments are others.
    Differs {
        /// The import, such as `udev.run (akri:discovery/udev)`.
        call: String,
        /// The recorded call.
        recorded: Place,
        /// The recorded arguments, on lines.
        expected: String,
        /// The arguments of the call.
        actual: String,
    },
    /// A call that the recording does not have, or not once more.
    NotRecorded {
        /// The call.
        call: String,
        /// Its arguments.
        actual: String,
        /// The first recorded calls of its kind that were not made yet, with their arguments.
        next: Vec<(Place, String)>,
        /// The line of the call, with a result to be changed.
        line: String,
    },
    /// A recorded call that was not made, or not to its end.
    NotMade {
        /// The import.
        call: String,
        /// The recorded call.
        recorded: Place,
        /// The recorded arguments.
        expected: String,
        /// Set if a part of it was sent, or if its answer was not waited for.
        is_begun: bool,
    },
}

/// The place of a recorded call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its number in the round, from 1.
    pub number: usize,
    /// Its line in the file.
    pub line: usize,
}

/// The end of a round that does not go on as it was recorded.
#[derive(Debug, thiserror::Error)]
#[error("a call differs from the cassette")]
pub(crate) struct ReplayMismatch;

impl Player {
    /// Plays these calls in a round of that length. With `update_requests`, what is sent may differ, and takes the place of what was
    /// recorded.
    pub(crate) fn new(calls: &[Line<Recorded>], seed: u64, time: u64, round: Duration, update_requests: bool) -> Self {
        let end = u64::try_from(round.as_nanos()).unwrap_or(NEVER - 1);
        let (clock, state) = (Arc::new(Clock::new(end)), CallQueues::new(calls).into());
        Self { seed, time, update_requests, clock, state, failed: Notify::new() }
    }

    /// Returns the seed of random numbers.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Nanoseconds on the guest's monotonic clock.
    pub(crate) fn monotonic(&self) -> u64 {
        self.clock.read()
    }

    /// The time of day.
    pub(crate) fn wall(&self) -> Duration {
        Duration::from_millis(self.time) + Duration::from_nanos(self.clock.read())
    }

    /// Returns when a call has differed, or when the guest waits for what never comes.
    pub(crate) async fn ended(&self) {
        tokio::select! {
            () = self.failed.notified() => {}
            () = self.clock.stuck() => {}
        }
    }

    /// The first call that differed.
    pub fn mismatch(&self) -> Option<Mismatch> {
        self.state().mismatch.clone()
    }

    /// The calls that were not made.
    pub fn unused(&self) -> Vec<Mismatch> {
        self.state().unused()
    }

    /// The calls as they were made, in place of those recorded.
    pub(crate) fn made_calls(&self) -> Vec<Recorded> {
        self.state().calls().cloned().collect()
    }

    /// Answers a query of devices.
    pub(crate) fn run_query(&self, query: &Value) -> Result<Result<Snapshot, Refused>, ReplayMismatch> {
        let mut state = self.state();
        let Some(index) = state.take(&QueueKey::Udev) else {
            let snapshot = Some(Snapshot::default());
            let call = Recorded::UdevRun { at: 0, query: Some(query.clone()), snapshot, error: None };
            return Err(self.fail_unrecorded(&mut state, &call, None));
        };
        let Some(Recorded::UdevRun { query: recorded, snapshot, error, .. }) = state.call_mut(index) else {
            return Err(ReplayMismatch);
        };
        if recorded.as_ref().is_some_and(|recorded| recorded != query) {
            if !self.update_requests {
                return Err(self.fail(&mut state, index, &pretty(query)));
            }
            *recorded = Some(query.clone());
        }
        Ok(match error {
            Some(error) => Err(error.clone()),
            None => Ok(snapshot.clone().unwrap_or_default()),
        })
    }

    /// The recorded refusal of a secret.
    pub(crate) fn refused_secret(&self, name: &str) -> Option<Refused> {
        let mut state = self.state();
        let index = state.take(&QueueKey::Secret(name.to_owned()))?;
        match state.call(index) {
            Some(Recorded::SecretRefused { error, .. }) => Some(error.clone()),
            _ => None,
        }
    }

    /// The recorded refusal of a socket beside so many open ones.
    pub(crate) fn refused_socket(&self, is_tcp: bool, open: usize) -> Option<String> {
        let key = if is_tcp { QueueKey::TcpRefusals } else { QueueKey::UdpRefusals };
        let mut state = self.state();
        let index = state.front(&key)?;
        let error = match state.call(index) {
            Some(
                Recorded::TcpSocketRefused { open: then, error, .. }
                | Recorded::UdpSocketRefused { open: then, error, .. },
            ) if *then == open => error.clone(),
            _ => return None,
        };
        state.take(&key);
        Some(error)
    }

    /// Returns the recorded addresses of a name.
    pub(crate) fn resolve_name(&self, wanted: &str) -> Result<Result<Vec<IpAddr>, String>, ReplayMismatch> {
        let mut state = self.state();
        let Some(index) = state.take(&QueueKey::Name(wanted.to_owned())) else {
            let (name, addresses) = (wanted.to_owned(), vec![EXAMPLE]);
            let call = Recorded::NamesResolve { at: 0, name, addresses, error: None };
            return Err(self.fail_unrecorded(&mut state, &call, None));
        };
        match state.call(index) {
            Some(Recorded::NamesResolve { error: Some(error), .. }) => Ok(Err(error.clone())),
            Some(Recorded::NamesResolve { addresses, .. }) => Ok(Ok(addresses.clone())),
            _ => Err(ReplayMismatch),
        }
    }

    /// Opens the next conversation with a group, in the order in which they were recorded.
    pub(crate) fn open_multicast(&self, wanted: &str, at: u16) -> Result<Result<u32, Refused>, ReplayMismatch> {
        let mut state = self.state();
        let is_it = |call: &Recorded| matches!(call, Recorded::MulticastOpen { group, port, .. } if group == wanted && *port == at);
        let Some(key) = state.claim(is_it) else {
            let (conversation, group) = (state.next_number(), wanted.to_owned());
            let call = Recorded::MulticastOpen { at: 0, conversation, group, port: at, error: None };
            return Err(self.fail_unrecorded(&mut state, &call, None));
        };
        let Some(index) = state.take(&key) else { return Err(ReplayMismatch) };
        match (state.call(index), key) {
            (Some(Recorded::MulticastOpen { error: Some(error), .. }), _) => Ok(Err(error.clone())),
            (_, QueueKey::Multicast(number)) => Ok(Ok(number)),
            _ => Err(ReplayMismatch),
        }
    }

    /// Sends to a group.
    pub(crate) fn send_multicast(&self, conversation: u32, sent: &[u8]) -> Result<Option<Refused>, ReplayMismatch> {
        let key = QueueKey::Multicast(conversation);
        let mut state = self.state();
        let is_send = |call: &Recorded| matches!(call, Recorded::MulticastSend { .. });
        let Some(index) = state.take_first(&key, is_send) else {
            let call = Recorded::MulticastSend { at: 0, conversation, payload: Payload::from(sent), error: None };
            return Err(self.fail_unrecorded(&mut state, &call, Some(&key)));
        };
        let Some(Recorded::MulticastSend { payload, error, .. }) = state.call_mut(index) else {
            return Err(ReplayMismatch);
        };
        let refused = error.clone();
        if payload.0 != sent {
            if !self.update_requests {
                return Err(self.fail(&mut state, index, &Payload::from(sent).lines()));
            }
            *payload = Payload::from(sent);
        }
        Ok(refused)
    }

    /// Receives datagrams of a conversation, once they are due; none after `wait`.
    pub(crate) async fn receive_multicast(
        &self,
        conversation: u32,
        max: usize,
        wait: Duration,
    ) -> Vec<ReceivedDatagram> {
        let key = QueueKey::Multicast(conversation);
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(NEVER);
        let until = self.clock.now().saturating_add(wait);
        let due = self.due(&key);
        self.clock.until(due.min(until)).await;
        if self.clock.now() < due { Vec::new() } else { self.state().take_datagrams(&key, max) }
    }

    fn due(&self, key: &QueueKey) -> Nanos {
        self.state().due(key)
    }

    /// Begins the next connection to an address.
    pub(crate) fn start_connect(&self, address: SocketAddr) -> Result<u32, ReplayMismatch> {
        let mut state = self.state();
        let is_it = |call: &Recorded| matches!(call, Recorded::TcpConnect { to, .. } if *to == address);
        let Some(key) = state.claim(is_it) else {
            let socket = state.next_number();
            let call = Recorded::TcpConnect { at: 0, socket, to: address, error: None, silent: false };
            return Err(self.fail_unrecorded(&mut state, &call, None));
        };
        state.begin_connect(&key);
        if let QueueKey::Tcp(socket) = key { Ok(socket) } else { Err(ReplayMismatch) }
    }

    /// Returns when a connection is made or refused: at once, if it is by now.
    pub(crate) fn connect_due(&self, socket: u32) -> Nanos {
        let (state, key) = (self.state(), QueueKey::Tcp(socket));
        match state.front(&key).and_then(|index| state.call(index)) {
            Some(Recorded::TcpConnect { .. }) => state.due(&key),
            _ => 0,
        }
    }

    /// Returns the result of a connection, once that is due.
    pub(crate) fn finish_connect(&self, socket: u32) -> Option<Result<(), String>> {
        let key = QueueKey::Tcp(socket);
        if self.due(&key) > self.clock.now() {
            return None;
        }
        let mut state = self.state();
        let index = state.take(&key)?;
        match state.call(index) {
            Some(Recorded::TcpConnect { error: Some(error), .. }) => Some(Err(error.clone())),
            _ => Some(Ok(())),
        }
    }

    /// Returns when the next receive of a connection is due.
    pub(crate) fn tcp_due(&self, socket: u32) -> Nanos {
        self.due(&QueueKey::Tcp(socket))
    }

    /// Returns when the next datagram to a socket is due.
    pub(crate) fn udp_due(&self, socket: u32) -> Nanos {
        self.due(&QueueKey::Udp(socket))
    }

    /// Sends by TCP: where pieces end means nothing.
    pub(crate) fn send_tcp(&self, socket: u32, mut bytes: &[u8]) -> Result<(), ReplayMismatch> {
        let key = QueueKey::Tcp(socket);
        let mut state = self.state();
        while !bytes.is_empty() {
            let is_send = |call: &Recorded| matches!(call, Recorded::TcpSend { .. });
            let Some(index) = state.first(&key, is_send) else {
                let call = Recorded::TcpSend { at: 0, socket, bytes: Payload::from(bytes) };
                return Err(self.fail_unrecorded(&mut state, &call, Some(&key)));
            };
            let done = state.sent(&key);
            let Some(Recorded::TcpSend { bytes: recorded, .. }) = state.call_mut(index) else {
                return Err(ReplayMismatch);
            };
            let whole = recorded.0.len();
            let Some(expected) = recorded.0.get_mut(done..) else { return Err(ReplayMismatch) };
            let (now, later) = bytes.split_at(expected.len().min(bytes.len()));
            let Some(expected) = expected.get_mut(..now.len()) else { return Err(ReplayMismatch) };
            if expected != now {
                if !self.update_requests {
                    let actual = [recorded.0.get(..done).unwrap_or_default(), bytes].concat();
                    return Err(self.fail(&mut state, index, &Payload(actual).lines()));
                }
                expected.copy_from_slice(now);
            }
            state.set_sent(&key, index, done + now.len(), whole);
            bytes = later;
        }
        Ok(())
    }

    /// Receives at most so many bytes.
    pub(crate) fn receive_tcp(&self, socket: u32, max: usize) -> Received {
        let key = QueueKey::Tcp(socket);
        if self.tcp_due(socket) > self.clock.now() { Received::Nothing } else { self.state().take_bytes(&key, max) }
    }

    /// Takes the next socket for datagrams.
    pub(crate) fn open_udp(&self) -> Option<u32> {
        self.state().claim_udp()
    }

    /// Sends a datagram. Returns the recorded error.
    pub(crate) fn send_udp(
        &self,
        socket: u32,
        to: Option<SocketAddr>,
        sent: &[u8],
    ) -> Result<Option<String>, ReplayMismatch> {
        let mut state = self.state();
        let shown =
            || format!("to {}\n{}", to.map_or_else(String::new, |to| to.to_string()), Payload::from(sent).lines());
        let is_send = |call: &Recorded| matches!(call, Recorded::UdpSend { .. });
        let key = QueueKey::Udp(socket);
        let Some(index) = state.take_first(&key, is_send) else {
            let socket = if state.has(&key) { socket } else { state.next_number() };
            let call = Recorded::UdpSend { at: 0, socket, to, bytes: Payload::from(sent), error: None };
            return Err(self.fail_unrecorded(&mut state, &call, Some(&key)));
        };
        let Some(Recorded::UdpSend { to: then, bytes, error, .. }) = state.call_mut(index) else {
            return Err(ReplayMismatch);
        };
        let failed = error.clone();
        if (*then, bytes.0.as_slice()) != (to, sent) {
            if !self.update_requests {
                return Err(self.fail(&mut state, index, &shown()));
            }
            (*then, *bytes) = (to, Payload::from(sent));
        }
        Ok(failed)
    }

    /// Receives the next datagram, if one is due.
    pub(crate) fn receive_udp(&self, socket: u32) -> Option<(SocketAddr, Vec<u8>)> {
        let key = QueueKey::Udp(socket);
        if self.udp_due(socket) > self.clock.now() {
            return None;
        }
        let mut state = self.state();
        let index = state.take(&key)?;
        match state.call(index) {
            Some(Recorded::UdpReceive { from, bytes, .. }) => Some((*from, bytes.0.clone())),
            _ => None,
        }
    }

    /// Begins a request. Its headers and body are compared when they are there ([`respond`](Self::respond)).
    pub(crate) fn begin_request(&self, method: &str, uri: &str) -> Result<usize, ReplayMismatch> {
        let mut state = self.state();
        if let Some(index) = state.front(&QueueKey::Http(method.to_owned(), uri.to_owned())) {
            return state.begin_request(index).ok_or(ReplayMismatch);
        }
        let server = server(uri);
        let of_server = state.open_request(|request| self::server(&request.uri) == server);
        if let Some(index) = of_server.filter(|_| self.update_requests) {
            return state.begin_request(index).ok_or(ReplayMismatch); // a secret may be in the path
        }
        Err(match of_server.or_else(|| state.open_request(|_| true)) {
            Some(index) => self.fail(&mut state, index, &format!("{method} {uri}")),
            None => {
                let request = Request { method: method.to_owned(), uri: uri.to_owned(), headers: None, body: None };
                let response = Some(Response { status: 200, headers: Vec::new(), body: Payload::default() });
                let call = Recorded::HttpRequest { at: 0, request, response, error: None, silent: false };
                self.fail_unrecorded(&mut state, &call, None)
            }
        })
    }

    /// Compares a request with the one recorded, and returns that one's answer. The request counts as made then.
    pub(crate) fn respond(
        &self,
        index: usize,
        made: Request,
    ) -> Result<(Nanos, Result<Response, String>), ReplayMismatch> {
        let mut state = self.state();
        let Some(Recorded::HttpRequest { at, request, response, error, silent }) = state.call_mut(index) else {
            return Err(ReplayMismatch);
        };
        let answer = match response {
            Some(response) => Ok(response.clone()),
            None => Err(error.clone().unwrap_or_default()),
        };
        let due = if *silent { NEVER } else { nanos(*at) };
        let is_same = request.headers.as_ref().is_none_or(|headers| Some(headers) == made.headers.as_ref())
            && request.body.as_ref().is_none_or(|body| Some(body) == made.body.as_ref());
        if self.update_requests {
            *request = made;
        } else if !is_same {
            let actual = request_lines(&Request {
                headers: made.headers.filter(|_| request.headers.is_some()),
                body: made.body.filter(|_| request.body.is_some()),
                ..made
            });
            return Err(self.fail(&mut state, index, &actual));
        }
        state.finish(index);
        Ok((due, answer))
    }

    /// Notes a call that differs from the recorded one, and ends the round.
    fn fail(&self, state: &mut CallQueues, index: usize, actual: &str) -> ReplayMismatch {
        if let (Some(recorded), Some(call)) = (state.place(index), state.call(index)) {
            let (call, expected) = (name(call), arguments(call));
            self.end(state, Mismatch::Differs { call, recorded, expected, actual: actual.to_owned() });
        }
        ReplayMismatch
    }

    /// Notes a call that is not recorded, and ends the round. It may belong to a socket or a conversation.
    fn fail_unrecorded(&self, state: &mut CallQueues, call: &Recorded, of: Option<&QueueKey>) -> ReplayMismatch {
        let (name, line) = (call.import().0, serde_json::to_string(call).unwrap_or_default());
        let (next, actual) = (state.next_of(name, of), arguments(call));
        self.end(state, Mismatch::NotRecorded { call: name.to_owned(), actual, next, line });
        ReplayMismatch
    }

    fn end(&self, state: &mut CallQueues, mismatch: Mismatch) {
        state.mismatch.get_or_insert(mismatch);
        self.failed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, CallQueues> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Scheme, host and port of a URL.
fn server(uri: &str) -> &str {
    let start = uri.find("://").map_or(0, |at| at + 3);
    let end = uri.get(start..).and_then(|rest| rest.find(['/', '?'])).map_or(uri.len(), |at| start + at);
    uri.get(..end).unwrap_or(uri)
}
