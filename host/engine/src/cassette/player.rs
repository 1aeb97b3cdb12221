//! Answers the calls of a round from a cassette.
//!
//! Calls are matched in the order of what they belong to (a socket, a conversation, a URL), and not in one order for all:
//! whether the first of two peers answers before the second is up to the network.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use akri_sysfs::Snapshot;
use serde_json::Value;
use tokio::sync::Notify;

use super::call::{ReceivedDatagram, Recorded, Refused, Request, Response};
use super::clock::{Busy, Clock, NEVER, Nanos, nanos};
use super::payload::Payload;
use super::round::Line;

/// Unused calls that are named.
const UNUSED: usize = 8;

/// A round that is played.
#[derive(Debug)]
pub struct Player {
    seed: u64,
    /// Milliseconds since 1970.
    time: u64,
    learns: bool,
    pub(super) clock: Arc<Clock>,
    state: Mutex<State>,
    failed: Notify,
}

/// A call that is not the recorded one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The call's number in its round, from 1, and its line in the file; none if the recording has no such call left.
    pub recorded: Option<(usize, usize)>,
    /// The import, such as `udev.run (akri:discovery/udev)`.
    pub call: String,
    /// The recorded arguments, on lines.
    pub expected: String,
    /// The arguments of the call.
    pub actual: String,
}

/// The end of a round that does not go on as it was recorded.
#[derive(Debug, thiserror::Error)]
#[error("a call differs from the cassette")]
pub(crate) struct Differs;

/// The resource that a series of calls belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Lane {
    Udev,
    Secret(String),
    Name(String),
    TcpRefusals,
    UdpRefusals,
    Http(String, String),
    Tcp(u32),
    Udp(u32),
    Multicast(u32),
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    lanes: HashMap<Lane, Series>,
    /// Sockets and conversations that nobody has taken yet, in their order.
    free: VecDeque<Lane>,
    mismatch: Option<Mismatch>,
}

#[derive(Debug)]
struct Entry {
    line: usize,
    call: Recorded,
    is_used: bool,
}

/// Calls that are still to come.
#[derive(Debug, Default)]
struct Series {
    left: VecDeque<usize>,
    /// Bytes of the first send, or of the first receive, that are done.
    sent: usize,
    received: usize,
}

/// The result of a receive.
pub(super) enum Received {
    Nothing,
    Bytes(Vec<u8>),
    End,
    Error(String),
}

fn lane(call: &Recorded) -> Lane {
    match call {
        Recorded::UdevRun { .. } => Lane::Udev,
        Recorded::SecretRefused { name, .. } => Lane::Secret(name.clone()),
        Recorded::NamesResolve { name, .. } => Lane::Name(name.clone()),
        Recorded::TcpSocketRefused { .. } => Lane::TcpRefusals,
        Recorded::UdpSocketRefused { .. } => Lane::UdpRefusals,
        Recorded::HttpRequest { request, .. } => Lane::Http(request.method.clone(), request.uri.clone()),
        Recorded::TcpConnect { socket, .. }
        | Recorded::TcpSend { socket, .. }
        | Recorded::TcpReceive { socket, .. } => Lane::Tcp(*socket),
        Recorded::UdpSend { socket, .. } | Recorded::UdpReceive { socket, .. } => Lane::Udp(*socket),
        Recorded::MulticastOpen { conversation, .. }
        | Recorded::MulticastSend { conversation, .. }
        | Recorded::MulticastReceive { conversation, .. } => Lane::Multicast(*conversation),
    }
}

impl Player {
    /// Plays these calls in a round of that length. With `learns`, what is sent may differ, and takes the place of what was
    /// recorded.
    pub(super) fn new(calls: &[Line<Recorded>], seed: u64, time: u64, round: Duration, learns: bool) -> Self {
        let entries =
            calls.iter().map(|Line { line, value }| Entry { line: *line, call: value.clone(), is_used: false });
        let mut state = State { entries: entries.collect(), ..State::default() };
        for (index, entry) in state.entries.iter().enumerate() {
            let lane = lane(&entry.call);
            if matches!(lane, Lane::Tcp(_) | Lane::Udp(_) | Lane::Multicast(_)) && !state.lanes.contains_key(&lane) {
                state.free.push_back(lane.clone());
            }
            state.lanes.entry(lane).or_default().left.push_back(index);
        }
        let end = u64::try_from(round.as_nanos()).unwrap_or(NEVER - 1);
        Self { seed, time, learns, clock: Arc::new(Clock::new(end)), state: state.into(), failed: Notify::new() }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Time left in the round.
    pub(crate) fn left(&self) -> Duration {
        Duration::from_nanos(self.clock.left())
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
        let state = self.state();
        let unused = state.entries.iter().enumerate().filter(|(_, entry)| !entry.is_used).take(UNUSED);
        let unused = unused.map(|(index, entry)| Mismatch {
            recorded: Some((index + 1, entry.line)),
            call: name(&entry.call),
            expected: shown(&entry.call),
            actual: String::new(),
        });
        unused.collect()
    }

    /// The calls as they were made, in place of those recorded.
    pub(super) fn learned(&self) -> Vec<Recorded> {
        self.state().entries.iter().map(|entry| entry.call.clone()).collect()
    }

    /// Time stands until this is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.clock.busy()
    }

    pub(crate) fn udev(&self, query: &Value) -> Result<Result<Snapshot, Refused>, Differs> {
        let mut state = self.state();
        let Some(index) = state.take(&Lane::Udev) else {
            return Err(self.fail(&mut state, None, "udev.run", &pretty(query)));
        };
        let Some(Recorded::UdevRun { query: recorded, snapshot, error, .. }) = state.call_mut(index) else {
            return Err(Differs);
        };
        if recorded.as_ref().is_some_and(|recorded| recorded != query) {
            if !self.learns {
                let actual = pretty(query);
                return Err(self.fail(&mut state, Some(index), "udev.run", &actual));
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
        let index = state.take(&Lane::Secret(name.to_owned()))?;
        match state.call(index) {
            Some(Recorded::SecretRefused { error, .. }) => Some(error.clone()),
            _ => None,
        }
    }

    /// The recorded refusal of a socket beside so many open ones.
    pub(crate) fn refused_socket(&self, is_tcp: bool, open: usize) -> Option<String> {
        let lane = if is_tcp { Lane::TcpRefusals } else { Lane::UdpRefusals };
        let mut state = self.state();
        let index = *state.lanes.get(&lane)?.left.front()?;
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

    pub(crate) fn addresses(&self, wanted: &str) -> Result<Result<Vec<IpAddr>, String>, Differs> {
        let mut state = self.state();
        let Some(index) = state.take(&Lane::Name(wanted.to_owned())) else {
            return Err(self.fail(&mut state, None, "names.resolve", wanted));
        };
        match state.call(index) {
            Some(Recorded::NamesResolve { error: Some(error), .. }) => Ok(Err(error.clone())),
            Some(Recorded::NamesResolve { addresses, .. }) => Ok(Ok(addresses.clone())),
            _ => Err(Differs),
        }
    }

    /// Begins the next conversation with a group, in the order in which they were recorded.
    pub(crate) fn converse(&self, wanted: &str, at: u16) -> Result<Result<u32, Refused>, Differs> {
        let mut state = self.state();
        let is_it = |call: &Recorded| matches!(call, Recorded::MulticastOpen { group, port, .. } if group == wanted && *port == at);
        let Some((lane, index)) = state.claim(is_it) else {
            return Err(self.fail(&mut state, None, "multicast.open", &format!("{wanted} port {at}")));
        };
        match (state.call(index), lane) {
            (Some(Recorded::MulticastOpen { error: Some(error), .. }), _) => Ok(Err(error.clone())),
            (_, Lane::Multicast(number)) => Ok(Ok(number)),
            _ => Err(Differs),
        }
    }

    pub(crate) fn say(&self, conversation: u32, sent: &[u8]) -> Result<Option<Refused>, Differs> {
        let lane = Lane::Multicast(conversation);
        let mut state = self.state();
        let is_send = |call: &Recorded| matches!(call, Recorded::MulticastSend { .. });
        let Some(index) = state.take_first(&lane, is_send) else {
            return Err(self.fail(&mut state, None, "multicast.send", &Payload::from(sent).lines()));
        };
        let Some(Recorded::MulticastSend { payload, error, .. }) = state.call_mut(index) else { return Err(Differs) };
        let refused = error.clone();
        if payload.0 != sent {
            if !self.learns {
                return Err(self.fail(&mut state, Some(index), "multicast.send", &Payload::from(sent).lines()));
            }
            *payload = Payload::from(sent);
        }
        Ok(refused)
    }

    /// Datagrams of a conversation, once they are due; none after `wait`.
    pub(crate) async fn hear(&self, conversation: u32, max: usize, wait: Duration) -> Vec<ReceivedDatagram> {
        let lane = Lane::Multicast(conversation);
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(NEVER);
        let until = self.clock.now().saturating_add(wait);
        let due = self.due(&lane);
        self.clock.until(due.min(until)).await;
        if self.clock.now() < due { Vec::new() } else { self.state().heard(&lane, max) }
    }

    /// Returns when the next receive of a series is due: never, if something has to be sent first.
    fn due(&self, lane: &Lane) -> Nanos {
        let state = self.state();
        let next = state.front(lane);
        match next.and_then(|index| state.call(index)) {
            Some(
                call @ (Recorded::MulticastReceive { .. }
                | Recorded::TcpReceive { .. }
                | Recorded::UdpReceive { .. }
                | Recorded::TcpConnect { .. }),
            ) => nanos(call.at()),
            _ => NEVER,
        }
    }

    /// Begins the next connection to an address.
    pub(super) fn connect(&self, address: SocketAddr) -> Result<u32, Differs> {
        let mut state = self.state();
        let is_it = |call: &Recorded| matches!(call, Recorded::TcpConnect { to, .. } if *to == address);
        match state.claim_unused(is_it) {
            Some(Lane::Tcp(socket)) => Ok(socket),
            _ => Err(self.fail(&mut state, None, "tcp.connect", &address.to_string())),
        }
    }

    /// The result of it, once that is due.
    pub(super) fn connected(&self, socket: u32) -> Option<Result<(), String>> {
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

    pub(super) fn tcp_due(&self, socket: u32) -> Nanos {
        self.due(&Lane::Tcp(socket))
    }

    pub(super) fn udp_due(&self, socket: u32) -> Nanos {
        self.due(&Lane::Udp(socket))
    }

    /// Sends by TCP: where pieces end means nothing.
    pub(super) fn tcp_send(&self, socket: u32, mut bytes: &[u8]) -> Result<(), Differs> {
        let lane = Lane::Tcp(socket);
        let mut state = self.state();
        while !bytes.is_empty() {
            let is_send = |call: &Recorded| matches!(call, Recorded::TcpSend { .. });
            let Some(index) = state.first(&lane, is_send) else {
                return Err(self.fail(&mut state, None, "tcp.send", &Payload::from(bytes).lines()));
            };
            let done = state.lanes.get(&lane).map_or(0, |series| series.sent);
            let Some(Recorded::TcpSend { bytes: recorded, .. }) = state.call_mut(index) else { return Err(Differs) };
            let whole = recorded.0.len();
            let Some(expected) = recorded.0.get_mut(done..) else { return Err(Differs) };
            let (now, later) = bytes.split_at(expected.len().min(bytes.len()));
            let Some(expected) = expected.get_mut(..now.len()) else { return Err(Differs) };
            if expected != now {
                if !self.learns {
                    let actual = [recorded.0.get(..done).unwrap_or_default(), bytes].concat();
                    let actual = Payload(actual).lines();
                    return Err(self.fail(&mut state, Some(index), "tcp.send", &actual));
                }
                expected.copy_from_slice(now);
            }
            state.sent(&lane, index, done + now.len(), whole);
            bytes = later;
        }
        Ok(())
    }

    /// Receives at most so many bytes.
    pub(super) fn tcp_receive(&self, socket: u32, max: usize) -> Received {
        let lane = Lane::Tcp(socket);
        if self.tcp_due(socket) > self.clock.now() { Received::Nothing } else { self.state().received(&lane, max) }
    }

    /// The next socket for datagrams.
    pub(super) fn udp(&self) -> Option<u32> {
        let mut state = self.state();
        let place = state.free.iter().position(|lane| matches!(lane, Lane::Udp(_)))?;
        match state.free.remove(place) {
            Some(Lane::Udp(socket)) => Some(socket),
            _ => None,
        }
    }

    pub(super) fn udp_send(&self, socket: u32, to: Option<SocketAddr>, sent: &[u8]) -> Result<Option<String>, Differs> {
        let mut state = self.state();
        let shown =
            || format!("to {}\n{}", to.map_or_else(String::new, |to| to.to_string()), Payload::from(sent).lines());
        let is_send = |call: &Recorded| matches!(call, Recorded::UdpSend { .. });
        let Some(index) = state.take_first(&Lane::Udp(socket), is_send) else {
            return Err(self.fail(&mut state, None, "udp.send", &shown()));
        };
        let Some(Recorded::UdpSend { to: then, bytes, error, .. }) = state.call_mut(index) else { return Err(Differs) };
        let failed = error.clone();
        if (*then, bytes.0.as_slice()) != (to, sent) {
            if !self.learns {
                return Err(self.fail(&mut state, Some(index), "udp.send", &shown()));
            }
            (*then, *bytes) = (to, Payload::from(sent));
        }
        Ok(failed)
    }

    /// The next datagram, if one is due.
    pub(super) fn udp_receive(&self, socket: u32) -> Option<(SocketAddr, Vec<u8>)> {
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

    /// Takes the place of a request. Its body is compared when it is there.
    pub(super) fn request(&self, method: &str, uri: &str) -> Result<usize, Differs> {
        let mut state = self.state();
        if let Some(index) = state.take(&Lane::Http(method.to_owned(), uri.to_owned())) {
            return Ok(index);
        }
        let server = server(uri);
        let of_server = state.unused_request(|request| self::server(&request.uri) == server);
        match of_server {
            // A secret may be in the path.
            Some(index) if self.learns => {
                let lane = state.call(index).map(lane);
                lane.and_then(|lane| state.take(&lane)).ok_or(Differs)
            }
            of_server => {
                let index = of_server.or_else(|| state.unused_request(|_| true));
                Err(self.fail(&mut state, index, "http.request", &format!("{method} {uri}")))
            }
        }
    }

    /// Compares a request with the one recorded; returns that one's answer.
    pub(super) fn respond(&self, index: usize, made: Request) -> Result<(Nanos, Result<Response, String>), Differs> {
        let mut state = self.state();
        let Some(Recorded::HttpRequest { at, request, response, error }) = state.call_mut(index) else {
            return Err(Differs);
        };
        let answer = match response {
            Some(response) => Ok(response.clone()),
            None => Err(error.clone().unwrap_or_default()),
        };
        let due = nanos(*at);
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
            return Err(self.fail(&mut state, Some(index), "http.request", &actual));
        }
        Ok((due, answer))
    }

    /// Notes the difference, and has the round ended.
    fn fail(&self, state: &mut State, index: Option<usize>, call: &str, actual: &str) -> Differs {
        let entry = index.and_then(|index| Some((index, state.entries.get(index)?)));
        let mismatch = Mismatch {
            recorded: entry.map(|(index, entry)| (index + 1, entry.line)),
            call: entry.map_or_else(|| call.to_owned(), |(_, entry)| name(&entry.call)),
            expected: entry.map(|(_, entry)| shown(&entry.call)).unwrap_or_default(),
            actual: actual.to_owned(),
        };
        state.mismatch.get_or_insert(mismatch);
        self.failed.notify_one();
        Differs
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn call(&self, index: usize) -> Option<&Recorded> {
        self.entries.get(index).map(|entry| &entry.call)
    }

    fn call_mut(&mut self, index: usize) -> Option<&mut Recorded> {
        self.entries.get_mut(index).map(|entry| &mut entry.call)
    }

    /// The next call of a series.
    fn front(&self, lane: &Lane) -> Option<usize> {
        self.lanes.get(lane)?.left.front().copied()
    }

    /// The next one of a kind.
    fn first(&self, lane: &Lane, is_it: impl Fn(&Recorded) -> bool) -> Option<usize> {
        let mut left = self.lanes.get(lane)?.left.iter().copied();
        left.find(|index| self.call(*index).is_some_and(&is_it))
    }

    fn take(&mut self, lane: &Lane) -> Option<usize> {
        self.take_first(lane, |_| true)
    }

    fn take_first(&mut self, lane: &Lane, is_it: impl Fn(&Recorded) -> bool) -> Option<usize> {
        let index = self.first(lane, is_it)?;
        self.done(lane, index);
        Some(index)
    }

    fn done(&mut self, lane: &Lane, index: usize) {
        if let Some(series) = self.lanes.get_mut(lane) {
            series.left.retain(|left| *left != index);
        }
        if let Some(entry) = self.entries.get_mut(index) {
            entry.is_used = true;
        }
    }

    /// Takes the first free series that begins with such a call; the call remains in it.
    fn claim_unused(&mut self, is_it: impl Fn(&Recorded) -> bool) -> Option<Lane> {
        let begins = |lane: &Lane| self.front(lane).and_then(|index| self.call(index)).is_some_and(&is_it);
        let place = self.free.iter().position(begins)?;
        self.free.remove(place)
    }

    fn claim(&mut self, is_it: impl Fn(&Recorded) -> bool) -> Option<(Lane, usize)> {
        let lane = self.claim_unused(is_it)?;
        let index = self.take(&lane)?;
        Some((lane, index))
    }

    fn unused_request(&self, is_it: impl Fn(&Request) -> bool) -> Option<usize> {
        let unused = self.entries.iter().enumerate().filter(|(_, entry)| !entry.is_used);
        let mut requests = unused.filter_map(|(index, entry)| match &entry.call {
            Recorded::HttpRequest { request, .. } => Some((index, request)),
            _ => None,
        });
        requests.find(|(_, request)| is_it(request)).map(|(index, _)| index)
    }

    fn sent(&mut self, lane: &Lane, index: usize, done: usize, whole: usize) {
        if let Some(series) = self.lanes.get_mut(lane) {
            series.sent = if done < whole { done } else { 0 };
        }
        if done >= whole {
            self.done(lane, index);
        }
    }

    fn received(&mut self, lane: &Lane, max: usize) -> Received {
        let Some(index) = self.front(lane) else { return Received::Nothing };
        let before = self.lanes.get(lane).map_or(0, |series| series.received);
        let (received, is_whole) = match self.call(index) {
            Some(Recorded::TcpReceive { error: Some(error), .. }) => (Received::Error(error.clone()), true),
            Some(Recorded::TcpReceive { end: true, .. }) => (Received::End, true),
            Some(Recorded::TcpReceive { bytes, .. }) => {
                let left = bytes.0.get(before..).unwrap_or_default();
                let now = left.get(..max.min(left.len())).unwrap_or_default();
                (Received::Bytes(now.to_vec()), now.len() == left.len())
            }
            _ => return Received::Nothing,
        };
        let now = if let Received::Bytes(bytes) = &received { bytes.len() } else { 0 };
        if let Some(series) = self.lanes.get_mut(lane) {
            series.received = if is_whole { 0 } else { before + now };
        }
        if is_whole {
            self.done(lane, index);
        }
        received
    }

    fn heard(&mut self, lane: &Lane, max: usize) -> Vec<ReceivedDatagram> {
        let Some(index) = self.front(lane) else { return Vec::new() };
        let before = self.lanes.get(lane).map_or(0, |series| series.received);
        let Some(Recorded::MulticastReceive { datagrams, .. }) = self.call(index) else { return Vec::new() };
        let left = datagrams.get(before..).unwrap_or_default();
        let now: Vec<ReceivedDatagram> = left.iter().take(max).cloned().collect();
        let is_whole = now.len() == left.len();
        if let Some(series) = self.lanes.get_mut(lane) {
            series.received = if is_whole { 0 } else { before + now.len() };
        }
        if is_whole {
            self.done(lane, index);
        }
        now
    }
}

/// Scheme, host and port of a URL.
fn server(uri: &str) -> &str {
    let start = uri.find("://").map_or(0, |at| at + 3);
    let end = uri.get(start..).and_then(|rest| rest.find(['/', '?'])).map_or(uri.len(), |at| start + at);
    uri.get(..end).unwrap_or(uri)
}

fn name(call: &Recorded) -> String {
    let (name, import) = call.import();
    format!("{name} ({import})")
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn request_lines(request: &Request) -> String {
    let Request { method, uri, headers, body } = request;
    let mut lines = format!("{method} {uri}\n");
    for (name, value) in headers.iter().flatten() {
        lines += &format!("{name}: {}\n", value.lines());
    }
    body.iter().for_each(|body| lines += &format!("\n{}", body.lines()));
    lines
}

/// The arguments of a recorded call, on lines.
fn shown(call: &Recorded) -> String {
    match call {
        Recorded::UdevRun { query, .. } => query.as_ref().map(pretty).unwrap_or_default(),
        Recorded::SecretRefused { name, .. } | Recorded::NamesResolve { name, .. } => name.clone(),
        Recorded::MulticastOpen { group, port, .. } => format!("{group} port {port}"),
        Recorded::MulticastSend { payload, .. } => payload.lines(),
        Recorded::MulticastReceive { datagrams, .. } => {
            datagrams.iter().map(|heard| format!("from {}\n{}", heard.from, heard.payload.lines())).collect()
        }
        Recorded::TcpSocketRefused { open, error, .. } | Recorded::UdpSocketRefused { open, error, .. } => {
            format!("{error} with {open} open sockets")
        }
        Recorded::TcpConnect { to, .. } => to.to_string(),
        Recorded::TcpSend { bytes, .. } | Recorded::TcpReceive { bytes, .. } => bytes.lines(),
        Recorded::UdpSend { to, bytes, .. } => {
            format!("to {}\n{}", to.map_or_else(String::new, |to| to.to_string()), bytes.lines())
        }
        Recorded::UdpReceive { from, bytes, .. } => format!("from {from}\n{}", bytes.lines()),
        Recorded::HttpRequest { request, .. } => request_lines(request),
    }
}
