//! Answers the calls of a round from a cassette.
//!
//! Calls are matched in the order of what they belong to (a socket, a conversation, a URL), and not in one order for all:
//! whether the first of two peers answers before the second is up to the network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use akri_node::sysfs::Snapshot;
use parking_lot::Mutex;
use serde_json::Value;

use crate::call::{ReceivedDatagram, Recorded, RecordedCall, Refused, Request, Response};
use crate::call_queue::{CallQueues, QueueKey};
use crate::clock::{Clock, NEVER, Nanos};
use crate::display::{arguments, name, request_lines};
use crate::payload::Payload;
use crate::round::{Arguments, RecordedRound};

/// The address in the line of a name that is not recorded.
const EXAMPLE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A round that is played.
#[derive(Debug)]
pub struct Player {
    /// The seed of random numbers.
    pub(crate) seed: u64,
    /// Milliseconds since 1970.
    time: u64,
    update_requests: bool,
    /// The clock of the round.
    pub(crate) clock: Arc<Clock>,
    state: Mutex<CallQueues>,
}

/// A call that is not as it was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// The call and what is wrong with it, without its content.
    pub statement: String,
    /// The recorded arguments, on lines.
    pub expected: String,
    /// The arguments of the call, on lines.
    pub actual: String,
    /// Set if a recorded call was not made, or not to its end.
    pub is_unmade: bool,
    /// The first recorded calls of the kind of one that is not recorded, with their arguments.
    pub next: Vec<(String, String)>,
    /// The line of a call that is not recorded, with a result to be changed.
    pub line: Option<String>,
}

/// The end of a round that does not go on as it was recorded.
#[derive(Debug, thiserror::Error)]
#[error("a call differs from the cassette")]
pub(crate) struct ReplayMismatch;

impl Player {
    /// Plays a round. With `update_requests`, what is sent may differ from the recording, and takes its place
    /// ([`RecordedRound::update_requests`]).
    pub fn new(round: &RecordedRound, update_requests: bool) -> Self {
        let RecordedRound { seed, arguments: Arguments { time, limit, .. }, calls, .. } = round;
        let end = limit.saturating_mul(1_000_000).min(NEVER - 1);
        let (clock, state) = (Arc::new(Clock::new(end)), CallQueues::new(calls).into());
        Self { seed: *seed, time: *time, update_requests, clock, state }
    }

    /// The time of day.
    pub(crate) fn wall(&self) -> Duration {
        Duration::from_millis(self.time) + Duration::from_nanos(self.clock.read())
    }

    /// Returns the first call that differed, or else those that were not made.
    pub fn differences(&self) -> Vec<Mismatch> {
        let state = self.state.lock();
        state.mismatch.clone().map_or_else(|| state.unused(), |mismatch| vec![mismatch])
    }

    /// The calls as they were made, in place of those recorded.
    pub(crate) fn made_calls(&self) -> Vec<RecordedCall> {
        self.state.lock().calls().cloned().collect()
    }

    /// Answers a query of devices, once the answer is due.
    pub(crate) async fn run_query(&self, query: Value) -> Result<Result<Snapshot, Refused>, ReplayMismatch> {
        let made = Recorded::UdevRun { query: Some(query), snapshot: Some(Snapshot::default()), error: None };
        let (due, answer) = self.answer(&made)?;
        let Recorded::UdevRun { snapshot, error, .. } = answer else { return Err(ReplayMismatch) };
        self.clock.until(due).await;
        Ok(error.map_or_else(|| Ok(snapshot.unwrap_or_default()), Err))
    }

    /// The recorded refusal of a secret.
    pub(crate) fn refused_secret(&self, name: &str) -> Option<Refused> {
        match self.state.lock().take(&QueueKey::Secret(name.to_owned()))? {
            Recorded::SecretRefused { error, .. } => Some(error),
            _ => None,
        }
    }

    /// The recorded refusal of a socket beside so many open ones.
    pub(crate) fn refused_socket(&self, is_tcp: bool, now_open: usize) -> Option<String> {
        let key = if is_tcp { QueueKey::TcpRefusals } else { QueueKey::UdpRefusals };
        let mut state = self.state.lock();
        match state.call(state.front(&key)?)?.clone() {
            Recorded::TcpSocketRefused { open, error } | Recorded::UdpSocketRefused { open, error }
                if open == now_open =>
            {
                state.take(&key);
                Some(error)
            }
            _ => None,
        }
    }

    /// Returns the recorded addresses of a name, and when they are due.
    pub(crate) fn resolve_name(&self, name: &str) -> Result<(Nanos, Result<Vec<IpAddr>, String>), ReplayMismatch> {
        let made =
            Recorded::NamesResolve { name: name.to_owned(), addresses: vec![EXAMPLE], error: None, silent: false };
        let (due, answer) = self.answer(&made)?;
        let Recorded::NamesResolve { addresses, error, .. } = answer else { return Err(ReplayMismatch) };
        Ok((due, error.map_or(Ok(addresses), Err)))
    }

    /// Opens the next conversation with a group, in the order in which they were recorded.
    pub(crate) fn open_multicast(&self, group: &str, port: u16) -> Result<Result<u32, Refused>, ReplayMismatch> {
        let mut state = self.state.lock();
        let (conversation, group) = (state.next_number(), group.to_owned());
        let key = self.claim(&mut state, &Recorded::MulticastOpen { conversation, group, port, error: None })?;
        match (state.take(&key), key) {
            (Some(Recorded::MulticastOpen { error: Some(error), .. }), _) => Ok(Err(error)),
            (_, QueueKey::Multicast(number)) => Ok(Ok(number)),
            _ => Err(ReplayMismatch),
        }
    }

    /// Sends to a group. Returns the recorded error.
    pub(crate) fn send_multicast(&self, conversation: u32, sent: &[u8]) -> Result<Option<Refused>, ReplayMismatch> {
        let made = Recorded::MulticastSend { conversation, payload: Payload::from(sent), error: None };
        let (_, answer) = self.answer(&made)?;
        if let Recorded::MulticastSend { error, .. } = answer { Ok(error) } else { Err(ReplayMismatch) }
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
        self.clock.until(self.due(&key).min(until)).await;
        match self.receive(&key, max) {
            Some(Recorded::MulticastReceive { datagrams, .. }) => datagrams,
            _ => Vec::new(),
        }
    }

    /// Receives at most so many bytes or datagrams of a socket or conversation, if they are due.
    pub(crate) fn receive(&self, key: &QueueKey, max: usize) -> Option<Recorded> {
        let mut state = self.state.lock();
        if state.due(key) > self.clock.now() { None } else { state.receive(key, max) }
    }

    /// Returns when the next receive of a socket or conversation is due.
    pub(crate) fn due(&self, key: &QueueKey) -> Nanos {
        self.state.lock().due(key)
    }

    /// Begins the next connection to an address.
    pub(crate) fn start_connect(&self, to: SocketAddr) -> Result<u32, ReplayMismatch> {
        let mut state = self.state.lock();
        let made = Recorded::TcpConnect { socket: state.next_number(), to, error: None, silent: false };
        let key = self.claim(&mut state, &made)?;
        state.begin_connect(&key);
        if let QueueKey::Tcp(socket) = key { Ok(socket) } else { Err(ReplayMismatch) }
    }

    /// Returns when a connection is made or refused: at once, if it is by now.
    pub(crate) fn connect_due(&self, socket: u32) -> Nanos {
        let (state, key) = (self.state.lock(), QueueKey::Tcp(socket));
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
        match self.state.lock().take(&key)? {
            Recorded::TcpConnect { error: Some(error), .. } => Some(Err(error)),
            _ => Some(Ok(())),
        }
    }

    /// Sends by TCP: where pieces end means nothing.
    pub(crate) fn send_tcp(&self, socket: u32, mut bytes: &[u8]) -> Result<(), ReplayMismatch> {
        let mut state = self.state.lock();
        while !bytes.is_empty() {
            let made = Recorded::TcpSend { socket, bytes: Payload::from(bytes) };
            let Some(index) = state.first_like(&made) else {
                return Err(self.fail_unrecorded(&mut state, &made));
            };
            let done = state.done(index);
            let Some(Recorded::TcpSend { bytes: Payload(recorded), .. }) = state.call_mut(index) else {
                return Err(ReplayMismatch);
            };
            let all = recorded.len();
            let (now, later) = bytes.split_at(all.saturating_sub(done).min(bytes.len()));
            let Some(expected) = recorded.get_mut(done..done + now.len()) else { return Err(ReplayMismatch) };
            if expected != now {
                if !self.update_requests {
                    let actual = [recorded.get(..done).unwrap_or_default(), bytes].concat();
                    return Err(self.fail(&mut state, index, &Payload(actual).lines()));
                }
                expected.copy_from_slice(now);
            }
            state.advance(index, done + now.len(), all);
            bytes = later;
        }
        Ok(())
    }

    /// Returns the number of a new socket for datagrams.
    pub(crate) fn open_udp(&self) -> u32 {
        self.state.lock().open_udp()
    }

    /// Sends a datagram. Returns the recorded error.
    pub(crate) fn send_udp(
        &self,
        socket: u32,
        to: Option<SocketAddr>,
        sent: &[u8],
    ) -> Result<Option<String>, ReplayMismatch> {
        let socket = self.state.lock().udp_sender(socket, to, sent);
        let made = Recorded::UdpSend { socket, to, bytes: Payload::from(sent), error: None };
        let (_, answer) = self.answer(&made)?;
        if let Recorded::UdpSend { error, .. } = answer { Ok(error) } else { Err(ReplayMismatch) }
    }

    /// Begins a request. Its headers and body are compared when they are there ([`respond`](Self::respond)).
    pub(crate) fn begin_request(&self, method: &str, uri: &str) -> Result<usize, ReplayMismatch> {
        let mut state = self.state.lock();
        if let Some(index) = state.front(&QueueKey::Http(method.to_owned(), uri.to_owned())) {
            return Ok(state.begin_request(index));
        }
        let server = server(uri);
        let of_server = state.open_request(|request| self::server(&request.uri) == server);
        if let Some(index) = of_server.filter(|_| self.update_requests) {
            return Ok(state.begin_request(index)); // a secret may be in the path
        }
        Err(match of_server.or_else(|| state.open_request(|_| true)) {
            Some(index) => self.fail(&mut state, index, &format!("{method} {uri}")),
            None => {
                let request = Request { method: method.to_owned(), uri: uri.to_owned(), headers: None, body: None };
                let response = Some(Response { status: 200, headers: Vec::new(), body: Payload::default() });
                let call = Recorded::HttpRequest { request, response, error: None, silent: false };
                self.fail_unrecorded(&mut state, &call)
            }
        })
    }

    /// Compares a request with the one recorded, and returns that one's answer. The request counts as made then.
    pub(crate) fn respond(
        &self,
        index: usize,
        made: Request,
    ) -> Result<(Nanos, Result<Response, String>), ReplayMismatch> {
        let mut state = self.state.lock();
        let due = state.at(index);
        let Some(Recorded::HttpRequest { request, response, error, .. }) = state.call_mut(index) else {
            return Err(ReplayMismatch);
        };
        let answer = match response {
            Some(response) => Ok(response.clone()),
            None => Err(error.clone().unwrap_or_default()),
        };
        // What is left out may be any.
        let headers = made.headers.filter(|_| request.headers.is_some());
        let made = Request { headers, body: made.body.filter(|_| request.body.is_some()), ..made };
        if self.update_requests {
            *request = made;
        } else if made != *request {
            return Err(self.fail(&mut state, index, &request_lines(&made)));
        }
        state.finish(index);
        Ok((due, answer))
    }

    /// Takes the next recorded call like this one, and compares the arguments. Returns the recorded result, and when it is due.
    fn answer(&self, made: &Recorded) -> Result<(Nanos, Recorded), ReplayMismatch> {
        let mut state = self.state.lock();
        let Some(index) = state.first_like(made) else { return Err(self.fail_unrecorded(&mut state, made)) };
        let recorded = state.call_mut(index).ok_or(ReplayMismatch)?;
        let answer = recorded.with_arguments_of(made);
        if answer != *recorded {
            if !self.update_requests {
                return Err(self.fail(&mut state, index, &arguments(made)));
            }
            recorded.clone_from(&answer);
        }
        state.advance(index, 0, 0);
        Ok((state.at(index), answer))
    }

    /// Takes the first free socket or conversation that begins with a call like this one, but for its number.
    fn claim(&self, state: &mut CallQueues, made: &Recorded) -> Result<QueueKey, ReplayMismatch> {
        let is_it = |call: &Recorded| call.import() == made.import() && arguments(call) == arguments(made);
        state.claim(is_it).ok_or_else(|| self.fail_unrecorded(state, made))
    }

    /// Notes a call that differs from the recorded one, and ends the round.
    fn fail(&self, state: &mut CallQueues, index: usize, actual: &str) -> ReplayMismatch {
        if let Some(call) = state.call(index) {
            let statement = format!("{}, {}, differs", state.place(index), name(call));
            let (expected, actual) = (arguments(call), actual.to_owned());
            self.end(state, Mismatch { statement, expected, actual, ..Mismatch::default() });
        }
        ReplayMismatch
    }

    /// Notes a call that is not recorded, and ends the round.
    fn fail_unrecorded(&self, state: &mut CallQueues, made: &Recorded) -> ReplayMismatch {
        let statement = format!("{} is called, and the cassette has no such call left", made.import().0);
        let (next, line) = (state.next_like(made), serde_json::to_string(made).ok());
        self.end(state, Mismatch { statement, actual: arguments(made), next, line, ..Mismatch::default() });
        ReplayMismatch
    }

    fn end(&self, state: &mut CallQueues, mismatch: Mismatch) {
        state.mismatch.get_or_insert(mismatch);
        self.clock.stuck.notify_one();
    }
}

/// Scheme, host and port of a URL.
fn server(uri: &str) -> &str {
    let start = uri.find("://").map_or(0, |at| at + 3);
    let end = uri.get(start..).and_then(|rest| rest.find(['/', '?'])).map_or(uri.len(), |at| start + at);
    uri.get(..end).unwrap_or(uri)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Cassette;

    const TWO_SOCKETS: &str = r#"{"akriCassette":1,"handler":"guest"}
{"round":{}}
{"call":"udp.send","socket":1,"to":"10.0.0.1:53","bytes":"a"}
{"call":"udp.send","socket":2,"to":"10.0.0.2:53","bytes":"b"}
{"call":"udp.receive","socket":1,"from":"10.0.0.1:53","bytes":"from a"}
{"call":"udp.receive","socket":2,"from":"10.0.0.2:53","bytes":"from b"}
{"call":"udp.receive","socket":3,"from":"10.0.0.3:53","bytes":"first"}"#;

    #[test] // rule 76
    fn datagrams_find_their_socket_in_any_order_of_opening() {
        let player = Player::new(&Cassette::read(TWO_SOCKETS).unwrap().rounds[0], false);
        let [receives_first, _unused, one, other] = [(); 4].map(|()| player.open_udp());
        let send = |socket, to: &str, sent: &str| player.send_udp(socket, to.parse().ok(), sent.as_bytes()).unwrap();
        let received = |socket| match player.receive(&QueueKey::Udp(socket), 1) {
            Some(Recorded::UdpReceive { bytes, .. }) => bytes.lines(),
            _ => "nothing".to_owned(),
        };
        assert_eq!((received(receives_first), received(one)), ("first".to_owned(), "nothing".to_owned()));
        assert_eq!((send(one, "10.0.0.2:53", "b"), send(other, "10.0.0.1:53", "a")), (None, None));
        assert_eq!((received(one), received(other)), ("from b".to_owned(), "from a".to_owned()));
        assert_eq!(player.differences(), []);
    }

    #[test] // rule 76
    fn changed_datagram_is_compared_with_that_to_its_peer() {
        let player = Player::new(&Cassette::read(TWO_SOCKETS).unwrap().rounds[0], false);
        let [_receives_first, socket] = [(); 2].map(|()| player.open_udp());
        assert!(player.send_udp(socket, "10.0.0.2:53".parse().ok(), b"changed").is_err());
        assert_eq!(player.differences()[0].expected, "to 10.0.0.2:53\nb");
    }
}
