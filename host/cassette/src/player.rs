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
use crate::clock::{Busy, Clock, NEVER, Nanos, nanos};
use crate::display::{arguments, name, pretty, request_lines};
use crate::payload::Payload;
use crate::round::Line;
use crate::series::{Lane, Received, State};

/// The address in the line of a name that is not recorded.
const EXAMPLE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A round that is played.
#[derive(Debug)]
pub struct Player {
    seed: u64,
    /// Milliseconds since 1970.
    time: u64,
    learns: bool,
    /// The clock of the round.
    pub clock: Arc<Clock>,
    state: Mutex<State>,
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
pub struct Differs;

impl Player {
    /// Plays these calls in a round of that length. With `learns`, what is sent may differ, and takes the place of what was
    /// recorded.
    pub fn new(calls: &[Line<Recorded>], seed: u64, time: u64, round: Duration, learns: bool) -> Self {
        let end = u64::try_from(round.as_nanos()).unwrap_or(NEVER - 1);
        let (clock, state) = (Arc::new(Clock::new(end)), State::new(calls).into());
        Self { seed, time, learns, clock, state, failed: Notify::new() }
    }

    /// Returns the seed of random numbers.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Time left in the round.
    pub fn left(&self) -> Duration {
        Duration::from_nanos(self.clock.left())
    }

    /// Nanoseconds on the guest's monotonic clock.
    pub fn monotonic(&self) -> u64 {
        self.clock.read()
    }

    /// The time of day.
    pub fn wall(&self) -> Duration {
        Duration::from_millis(self.time) + Duration::from_nanos(self.clock.read())
    }

    /// Notes that the guest computes, or calls the host.
    pub fn set_computing(&self, is_computing: bool) {
        self.clock.set_computing(is_computing);
    }

    /// Returns when a call has differed, or when the guest waits for what never comes.
    pub async fn ended(&self) {
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
    pub fn learned(&self) -> Vec<Recorded> {
        self.state().calls().cloned().collect()
    }

    /// Time stands until this is dropped.
    pub fn busy(&self) -> Busy {
        self.clock.busy()
    }

    /// Answers a query of devices.
    pub fn run_query(&self, query: &Value) -> Result<Result<Snapshot, Refused>, Differs> {
        let mut state = self.state();
        let Some(index) = state.take(&Lane::Udev) else {
            let snapshot = Some(Snapshot::default());
            let call = Recorded::UdevRun { at: 0, query: Some(query.clone()), snapshot, error: None };
            return Err(self.fail_unrecorded(&mut state, &call, None));
        };
        let Some(Recorded::UdevRun { query: recorded, snapshot, error, .. }) = state.call_mut(index) else {
            return Err(Differs);
        };
        if recorded.as_ref().is_some_and(|recorded| recorded != query) {
            if !self.learns {
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
    pub fn refused_secret(&self, name: &str) -> Option<Refused> {
        let mut state = self.state();
        let index = state.take(&Lane::Secret(name.to_owned()))?;
        match state.call(index) {
            Some(Recorded::SecretRefused { error, .. }) => Some(error.clone()),
            _ => None,
        }
    }

    /// The recorded refusal of a socket beside so many open ones.
    pub fn refused_socket(&self, is_tcp: bool, open: usize) -> Option<String> {
        let lane = if is_tcp { Lane::TcpRefusals } else { Lane::UdpRefusals };
        let mut state = self.state();
        let index = state.front(&lane)?;
        let error = match state.call(index) {
            Some(
                Recorded::TcpSocketRefused { open: then, error, .. }
                | Recorded::UdpSocketRefused { open: then, error, .. },
            ) if *then == open => error.clone(),
            _ => return None,
        };
        state.take(&lane);
        Some(error)
    }

    /// Returns the recorded addresses of a name.
    pub fn resolve_name(&self, wanted: &str) -> Result<Result<Vec<IpAddr>, String>, Differs> {
        let mut state = self.state();
        let Some(index) = state.take(&Lane::Name(wanted.to_owned())) else {
            let (name, addresses) = (wanted.to_owned(), vec![EXAMPLE]);
            let call = Recorded::NamesResolve { at: 0, name, addresses, error: None };
            return Err(self.fail_unrecorded(&mut state, &call, None));
        };
        match state.call(index) {
            Some(Recorded::NamesResolve { error: Some(error), .. }) => Ok(Err(error.clone())),
            Some(Recorded::NamesResolve { addresses, .. }) => Ok(Ok(addresses.clone())),
            _ => Err(Differs),
        }
    }

    /// Opens the next conversation with a group, in the order in which they were recorded.
    pub fn open_multicast(&self, wanted: &str, at: u16) -> Result<Result<u32, Refused>, Differs> {
        let mut state = self.state();
        let is_it = |call: &Recorded| matches!(call, Recorded::MulticastOpen { group, port, .. } if group == wanted && *port == at);
        let Some(lane) = state.claim(is_it) else {
            let (conversation, group) = (state.next_number(), wanted.to_owned());
            let call = Recorded::MulticastOpen { at: 0, conversation, group, port: at, error: None };
            return Err(self.fail_unrecorded(&mut state, &call, None));
        };
        let Some(index) = state.take(&lane) else { return Err(Differs) };
        match (state.call(index), lane) {
            (Some(Recorded::MulticastOpen { error: Some(error), .. }), _) => Ok(Err(error.clone())),
            (_, Lane::Multicast(number)) => Ok(Ok(number)),
            _ => Err(Differs),
        }
    }

    /// Sends to a group.
    pub fn send_multicast(&self, conversation: u32, sent: &[u8]) -> Result<Option<Refused>, Differs> {
        let lane = Lane::Multicast(conversation);
        let mut state = self.state();
        let is_send = |call: &Recorded| matches!(call, Recorded::MulticastSend { .. });
        let Some(index) = state.take_first(&lane, is_send) else {
            let call = Recorded::MulticastSend { at: 0, conversation, payload: Payload::from(sent), error: None };
            return Err(self.fail_unrecorded(&mut state, &call, Some(&lane)));
        };
        let Some(Recorded::MulticastSend { payload, error, .. }) = state.call_mut(index) else { return Err(Differs) };
        let refused = error.clone();
        if payload.0 != sent {
            if !self.learns {
                return Err(self.fail(&mut state, index, &Payload::from(sent).lines()));
            }
            *payload = Payload::from(sent);
        }
        Ok(refused)
    }

    /// Receives datagrams of a conversation, once they are due; none after `wait`.
    pub async fn receive_multicast(&self, conversation: u32, max: usize, wait: Duration) -> Vec<ReceivedDatagram> {
        let lane = Lane::Multicast(conversation);
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(NEVER);
        let until = self.clock.now().saturating_add(wait);
        let due = self.due(&lane);
        self.clock.until(due.min(until)).await;
        if self.clock.now() < due { Vec::new() } else { self.state().take_datagrams(&lane, max) }
    }

    fn due(&self, lane: &Lane) -> Nanos {
        self.state().due(lane)
    }

    /// Begins the next connection to an address.
    pub fn start_connect(&self, address: SocketAddr) -> Result<u32, Differs> {
        let mut state = self.state();
        let is_it = |call: &Recorded| matches!(call, Recorded::TcpConnect { to, .. } if *to == address);
        let Some(lane) = state.claim(is_it) else {
            let socket = state.next_number();
            let call = Recorded::TcpConnect { at: 0, socket, to: address, error: None, silent: false };
            return Err(self.fail_unrecorded(&mut state, &call, None));
        };
        state.begin_connect(&lane);
        if let Lane::Tcp(socket) = lane { Ok(socket) } else { Err(Differs) }
    }

    /// Returns when a connection is made or refused: at once, if it is by now.
    pub fn connect_due(&self, socket: u32) -> Nanos {
        let (state, lane) = (self.state(), Lane::Tcp(socket));
        match state.front(&lane).and_then(|index| state.call(index)) {
            Some(Recorded::TcpConnect { .. }) => state.due(&lane),
            _ => 0,
        }
    }

    /// Returns the result of a connection, once that is due.
    pub fn finish_connect(&self, socket: u32) -> Option<Result<(), String>> {
        let lane = Lane::Tcp(socket);
        if self.due(&lane) > self.clock.now() {
            return None;
        }
        let mut state = self.state();
        let index = state.take(&lane)?;
        match state.call(index) {
            Some(Recorded::TcpConnect { error: Some(error), .. }) => Some(Err(error.clone())),
            _ => Some(Ok(())),
        }
    }

    /// Returns when the next receive of a connection is due.
    pub fn tcp_due(&self, socket: u32) -> Nanos {
        self.due(&Lane::Tcp(socket))
    }

    /// Returns when the next datagram to a socket is due.
    pub fn udp_due(&self, socket: u32) -> Nanos {
        self.due(&Lane::Udp(socket))
    }

    /// Sends by TCP: where pieces end means nothing.
    pub fn send_tcp(&self, socket: u32, mut bytes: &[u8]) -> Result<(), Differs> {
        let lane = Lane::Tcp(socket);
        let mut state = self.state();
        while !bytes.is_empty() {
            let is_send = |call: &Recorded| matches!(call, Recorded::TcpSend { .. });
            let Some(index) = state.first(&lane, is_send) else {
                let call = Recorded::TcpSend { at: 0, socket, bytes: Payload::from(bytes) };
                return Err(self.fail_unrecorded(&mut state, &call, Some(&lane)));
            };
            let done = state.sent(&lane);
            let Some(Recorded::TcpSend { bytes: recorded, .. }) = state.call_mut(index) else { return Err(Differs) };
            let whole = recorded.0.len();
            let Some(expected) = recorded.0.get_mut(done..) else { return Err(Differs) };
            let (now, later) = bytes.split_at(expected.len().min(bytes.len()));
            let Some(expected) = expected.get_mut(..now.len()) else { return Err(Differs) };
            if expected != now {
                if !self.learns {
                    let actual = [recorded.0.get(..done).unwrap_or_default(), bytes].concat();
                    return Err(self.fail(&mut state, index, &Payload(actual).lines()));
                }
                expected.copy_from_slice(now);
            }
            state.set_sent(&lane, index, done + now.len(), whole);
            bytes = later;
        }
        Ok(())
    }

    /// Receives at most so many bytes.
    pub fn receive_tcp(&self, socket: u32, max: usize) -> Received {
        let lane = Lane::Tcp(socket);
        if self.tcp_due(socket) > self.clock.now() { Received::Nothing } else { self.state().take_bytes(&lane, max) }
    }

    /// Takes the next socket for datagrams.
    pub fn open_udp(&self) -> Option<u32> {
        self.state().claim_udp()
    }

    /// Sends a datagram. Returns the recorded error.
    pub fn send_udp(&self, socket: u32, to: Option<SocketAddr>, sent: &[u8]) -> Result<Option<String>, Differs> {
        let mut state = self.state();
        let shown =
            || format!("to {}\n{}", to.map_or_else(String::new, |to| to.to_string()), Payload::from(sent).lines());
        let is_send = |call: &Recorded| matches!(call, Recorded::UdpSend { .. });
        let lane = Lane::Udp(socket);
        let Some(index) = state.take_first(&lane, is_send) else {
            let socket = if state.has(&lane) { socket } else { state.next_number() };
            let call = Recorded::UdpSend { at: 0, socket, to, bytes: Payload::from(sent), error: None };
            return Err(self.fail_unrecorded(&mut state, &call, Some(&lane)));
        };
        let Some(Recorded::UdpSend { to: then, bytes, error, .. }) = state.call_mut(index) else { return Err(Differs) };
        let failed = error.clone();
        if (*then, bytes.0.as_slice()) != (to, sent) {
            if !self.learns {
                return Err(self.fail(&mut state, index, &shown()));
            }
            (*then, *bytes) = (to, Payload::from(sent));
        }
        Ok(failed)
    }

    /// Receives the next datagram, if one is due.
    pub fn receive_udp(&self, socket: u32) -> Option<(SocketAddr, Vec<u8>)> {
        let lane = Lane::Udp(socket);
        if self.udp_due(socket) > self.clock.now() {
            return None;
        }
        let mut state = self.state();
        let index = state.take(&lane)?;
        match state.call(index) {
            Some(Recorded::UdpReceive { from, bytes, .. }) => Some((*from, bytes.0.clone())),
            _ => None,
        }
    }

    /// Begins a request. Its headers and body are compared when they are there ([`respond`](Self::respond)).
    pub fn begin_request(&self, method: &str, uri: &str) -> Result<usize, Differs> {
        let mut state = self.state();
        if let Some(index) = state.front(&Lane::Http(method.to_owned(), uri.to_owned())) {
            return state.begin_request(index).ok_or(Differs);
        }
        let server = server(uri);
        let of_server = state.open_request(|request| self::server(&request.uri) == server);
        if let Some(index) = of_server.filter(|_| self.learns) {
            return state.begin_request(index).ok_or(Differs); // a secret may be in the path
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
    pub fn respond(&self, index: usize, made: Request) -> Result<(Nanos, Result<Response, String>), Differs> {
        let mut state = self.state();
        let Some(Recorded::HttpRequest { at, request, response, error, silent }) = state.call_mut(index) else {
            return Err(Differs);
        };
        let answer = match response {
            Some(response) => Ok(response.clone()),
            None => Err(error.clone().unwrap_or_default()),
        };
        let due = if *silent { NEVER } else { nanos(*at) };
        let is_same = request.headers.as_ref().is_none_or(|headers| Some(headers) == made.headers.as_ref())
            && request.body.as_ref().is_none_or(|body| Some(body) == made.body.as_ref());
        if self.learns {
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
    fn fail(&self, state: &mut State, index: usize, actual: &str) -> Differs {
        if let (Some(recorded), Some(call)) = (state.place(index), state.call(index)) {
            let (call, expected) = (name(call), arguments(call));
            self.end(state, Mismatch::Differs { call, recorded, expected, actual: actual.to_owned() });
        }
        Differs
    }

    /// Notes a call that is not recorded, and ends the round. It may belong to a socket or a conversation.
    fn fail_unrecorded(&self, state: &mut State, call: &Recorded, of: Option<&Lane>) -> Differs {
        let (name, line) = (call.import().0, serde_json::to_string(call).unwrap_or_default());
        let (next, actual) = (state.next_of(name, of), arguments(call));
        self.end(state, Mismatch::NotRecorded { call: name.to_owned(), actual, next, line });
        Differs
    }

    fn end(&self, state: &mut State, mismatch: Mismatch) {
        state.mismatch.get_or_insert(mismatch);
        self.failed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Scheme, host and port of a URL.
fn server(uri: &str) -> &str {
    let start = uri.find("://").map_or(0, |at| at + 3);
    let end = uri.get(start..).and_then(|rest| rest.find(['/', '?'])).map_or(uri.len(), |at| start + at);
    uri.get(..end).unwrap_or(uri)
}
