//! The calls of a played round that are still to come, in a queue for each socket, conversation, name and URL.

use std::collections::{HashMap, VecDeque};

use crate::call::{ReceivedDatagram, Recorded, Request};
use crate::clock::{NEVER, Nanos, nanos};
use crate::display::{arguments, name};
use crate::player::{Mismatch, Place};
use crate::round::Line;

/// Unused calls that are named.
const UNUSED: usize = 8;
/// Recorded calls that are named beside one that is not recorded.
const NEXT: usize = 4;

/// The resource that a queue of calls belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum QueueKey {
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

/// The calls of a round, and which of them are to come.
#[derive(Debug, Default)]
pub(crate) struct CallQueues {
    entries: Vec<Entry>,
    queues: HashMap<QueueKey, CallQueue>,
    /// Sockets and conversations that nobody has taken yet, in their order.
    free: VecDeque<QueueKey>,
    /// The first call that is not as it was recorded.
    pub(crate) mismatch: Option<Mismatch>,
}

#[derive(Debug)]
struct Entry {
    line: usize,
    call: Recorded,
    progress: Progress,
}

/// The progress of a recorded call in the replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Not called yet.
    Open,
    /// Sent in part, or called without its result taken.
    Begun,
    Done,
}

/// Calls that are still to come.
#[derive(Debug, Default)]
struct CallQueue {
    left: VecDeque<usize>,
    /// Bytes of the first send, or bytes or datagrams of the first receive, that are done.
    sent: usize,
    received: usize,
}

/// The result of a receive.
pub(crate) enum Received {
    /// Nothing yet.
    Nothing,
    /// Bytes.
    Bytes(Vec<u8>),
    /// The end of the stream.
    End,
    /// An error, by its name.
    Error(String),
}

/// Returns the queue that a call belongs to.
fn queue_key(call: &Recorded) -> QueueKey {
    match call {
        Recorded::UdevRun { .. } => QueueKey::Udev,
        Recorded::SecretRefused { name, .. } => QueueKey::Secret(name.clone()),
        Recorded::NamesResolve { name, .. } => QueueKey::Name(name.clone()),
        Recorded::TcpSocketRefused { .. } => QueueKey::TcpRefusals,
        Recorded::UdpSocketRefused { .. } => QueueKey::UdpRefusals,
        Recorded::HttpRequest { request, .. } => QueueKey::Http(request.method.clone(), request.uri.clone()),
        Recorded::TcpConnect { socket, .. }
        | Recorded::TcpSend { socket, .. }
        | Recorded::TcpReceive { socket, .. } => QueueKey::Tcp(*socket),
        Recorded::UdpSend { socket, .. } | Recorded::UdpReceive { socket, .. } => QueueKey::Udp(*socket),
        Recorded::MulticastOpen { conversation, .. }
        | Recorded::MulticastSend { conversation, .. }
        | Recorded::MulticastReceive { conversation, .. } => QueueKey::Multicast(*conversation),
    }
}

impl CallQueues {
    pub(crate) fn new(calls: &[Line<Recorded>]) -> Self {
        let entry =
            |call: &Line<Recorded>| Entry { line: call.line, call: call.value.clone(), progress: Progress::Open };
        let mut state = Self { entries: calls.iter().map(entry).collect(), ..Self::default() };
        for (index, entry) in state.entries.iter().enumerate() {
            let key = queue_key(&entry.call);
            if matches!(key, QueueKey::Tcp(_) | QueueKey::Udp(_) | QueueKey::Multicast(_))
                && !state.queues.contains_key(&key)
            {
                state.free.push_back(key.clone());
            }
            state.queues.entry(key).or_default().left.push_back(index);
        }
        state
    }

    pub(crate) fn call(&self, index: usize) -> Option<&Recorded> {
        self.entries.get(index).map(|entry| &entry.call)
    }

    pub(crate) fn call_mut(&mut self, index: usize) -> Option<&mut Recorded> {
        self.entries.get_mut(index).map(|entry| &mut entry.call)
    }

    /// Returns all calls.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Recorded> {
        self.entries.iter().map(|entry| &entry.call)
    }

    /// Returns the place of a call.
    pub(crate) fn place(&self, index: usize) -> Option<Place> {
        self.entries.get(index).map(|entry| Place { number: index + 1, line: entry.line })
    }

    /// Returns the first calls that were not made as a whole.
    pub(crate) fn unused(&self) -> Vec<Mismatch> {
        let unused = self.entries.iter().enumerate().filter(|(_, entry)| entry.progress != Progress::Done);
        let mismatch = |(index, Entry { line, call, progress }): (usize, &Entry)| Mismatch::NotMade {
            call: name(call),
            recorded: Place { number: index + 1, line: *line },
            expected: arguments(call),
            is_begun: *progress == Progress::Begun,
        };
        unused.take(UNUSED).map(mismatch).collect()
    }

    /// Returns the next calls of that name: those of the socket or conversation, if it is about one.
    pub(crate) fn next_of(&self, name: &str, of: Option<&QueueKey>) -> Vec<(Place, String)> {
        let is_it = |entry: &Entry| {
            entry.progress == Progress::Open
                && entry.call.import().0 == name
                && of.is_none_or(|of| queue_key(&entry.call) == *of)
        };
        let next = self.entries.iter().enumerate().filter(|(_, entry)| is_it(entry)).take(NEXT);
        next.map(|(index, entry)| (Place { number: index + 1, line: entry.line }, arguments(&entry.call))).collect()
    }

    /// Returns whether a queue was recorded, also if nothing of it is left.
    pub(crate) fn has(&self, key: &QueueKey) -> bool {
        self.queues.contains_key(key)
    }

    /// Returns a number that no socket and no conversation has.
    pub(crate) fn next_number(&self) -> u32 {
        let number = |key: &QueueKey| match key {
            QueueKey::Tcp(number) | QueueKey::Udp(number) | QueueKey::Multicast(number) => *number,
            _ => 0,
        };
        self.queues.keys().map(number).max().unwrap_or(0).saturating_add(1)
    }

    /// Returns the next call of a queue.
    pub(crate) fn front(&self, key: &QueueKey) -> Option<usize> {
        self.queues.get(key)?.left.front().copied()
    }

    /// Returns the next one of a kind.
    pub(crate) fn first(&self, key: &QueueKey, is_it: impl Fn(&Recorded) -> bool) -> Option<usize> {
        let mut left = self.queues.get(key)?.left.iter().copied();
        left.find(|index| self.call(*index).is_some_and(&is_it))
    }

    /// Takes the next call of a queue.
    pub(crate) fn take(&mut self, key: &QueueKey) -> Option<usize> {
        self.take_first(key, |_| true)
    }

    /// Takes the next one of a kind.
    pub(crate) fn take_first(&mut self, key: &QueueKey, is_it: impl Fn(&Recorded) -> bool) -> Option<usize> {
        let index = self.first(key, is_it)?;
        self.remove(key, index, Progress::Done);
        Some(index)
    }

    /// Takes a request whose result is taken later ([`finish`](Self::finish)).
    pub(crate) fn begin_request(&mut self, index: usize) -> Option<usize> {
        let key = self.call(index).map(queue_key)?;
        self.remove(&key, index, Progress::Begun);
        Some(index)
    }

    /// Begins a connection; its call remains in its queue until its result is taken. A silent peer has none.
    pub(crate) fn begin_connect(&mut self, key: &QueueKey) {
        let Some(index) = self.front(key) else { return };
        let is_silent = matches!(self.call(index), Some(Recorded::TcpConnect { silent: true, .. }));
        self.set(index, if is_silent { Progress::Done } else { Progress::Begun });
    }

    /// Marks a call as made.
    pub(crate) fn finish(&mut self, index: usize) {
        self.set(index, Progress::Done);
    }

    fn set(&mut self, index: usize, progress: Progress) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.progress = progress;
        }
    }

    fn remove(&mut self, key: &QueueKey, index: usize, progress: Progress) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.left.retain(|left| *left != index);
        }
        self.set(index, progress);
    }

    /// Takes the first free queue that begins with such a call; the call remains in it.
    pub(crate) fn claim(&mut self, is_it: impl Fn(&Recorded) -> bool) -> Option<QueueKey> {
        let begins = |key: &QueueKey| self.front(key).and_then(|index| self.call(index)).is_some_and(&is_it);
        let place = self.free.iter().position(begins)?;
        self.free.remove(place)
    }

    /// Takes the first free socket for datagrams.
    pub(crate) fn claim_udp(&mut self) -> Option<u32> {
        let place = self.free.iter().position(|key| matches!(key, QueueKey::Udp(_)))?;
        match self.free.remove(place) {
            Some(QueueKey::Udp(socket)) => Some(socket),
            _ => None,
        }
    }

    /// Returns the first request that was not begun.
    pub(crate) fn open_request(&self, is_it: impl Fn(&Request) -> bool) -> Option<usize> {
        let open = self.entries.iter().enumerate().filter(|(_, entry)| entry.progress == Progress::Open);
        let mut requests = open.filter_map(|(index, entry)| match &entry.call {
            Recorded::HttpRequest { request, .. } => Some((index, request)),
            _ => None,
        });
        requests.find(|(_, request)| is_it(request)).map(|(index, _)| index)
    }

    /// Returns when the next receive of a queue is due: never, if something has to be sent first, or if the peer is silent.
    pub(crate) fn due(&self, key: &QueueKey) -> Nanos {
        match self.front(key).and_then(|index| self.call(index)) {
            Some(Recorded::TcpConnect { silent: true, .. }) => NEVER,
            Some(
                call @ (Recorded::MulticastReceive { .. }
                | Recorded::TcpReceive { .. }
                | Recorded::UdpReceive { .. }
                | Recorded::TcpConnect { .. }),
            ) => nanos(call.at()),
            _ => NEVER,
        }
    }

    /// Returns the bytes of the next send of a connection that are done.
    pub(crate) fn sent(&self, key: &QueueKey) -> usize {
        self.queues.get(key).map_or(0, |queue| queue.sent)
    }

    /// Notes how much of a send is done.
    pub(crate) fn set_sent(&mut self, key: &QueueKey, index: usize, done: usize, whole: usize) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.sent = if done < whole { done } else { 0 };
        }
        if done < whole {
            self.set(index, Progress::Begun);
        } else {
            self.remove(key, index, Progress::Done);
        }
    }

    /// Notes how much of the next receive is done.
    fn set_received(&mut self, key: &QueueKey, index: usize, done: usize, is_whole: bool) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.received = if is_whole { 0 } else { done };
        }
        if is_whole {
            self.remove(key, index, Progress::Done);
        } else {
            self.set(index, Progress::Begun);
        }
    }

    /// Takes at most so many bytes of the next receive of a connection.
    pub(crate) fn take_bytes(&mut self, key: &QueueKey, max: usize) -> Received {
        let Some(index) = self.front(key) else { return Received::Nothing };
        let before = self.queues.get(key).map_or(0, |queue| queue.received);
        let (received, done, is_whole) = match self.call(index) {
            Some(Recorded::TcpReceive { error: Some(error), .. }) => (Received::Error(error.clone()), 0, true),
            Some(Recorded::TcpReceive { end: true, .. }) => (Received::End, 0, true),
            Some(Recorded::TcpReceive { bytes, .. }) => {
                let left = bytes.0.get(before..).unwrap_or_default();
                let now = left.get(..max.min(left.len())).unwrap_or_default();
                (Received::Bytes(now.to_vec()), before + now.len(), now.len() == left.len())
            }
            _ => return Received::Nothing,
        };
        self.set_received(key, index, done, is_whole);
        received
    }

    /// Takes at most so many datagrams of the next receive of a conversation.
    pub(crate) fn take_datagrams(&mut self, key: &QueueKey, max: usize) -> Vec<ReceivedDatagram> {
        let Some(index) = self.front(key) else { return Vec::new() };
        let before = self.queues.get(key).map_or(0, |queue| queue.received);
        let Some(Recorded::MulticastReceive { datagrams, .. }) = self.call(index) else { return Vec::new() };
        let left = datagrams.get(before..).unwrap_or_default();
        let now: Vec<ReceivedDatagram> = left.iter().take(max).cloned().collect();
        let is_whole = now.len() == left.len();
        self.set_received(key, index, before + now.len(), is_whole);
        now
    }
}
