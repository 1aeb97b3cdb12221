//! The calls of a played round that are still to come, in a queue for each socket, conversation, name and URL.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use crate::call::{Recorded, RecordedCall, Request};
use crate::clock::{NEVER, Nanos, nanos};
use crate::display::{arguments, name};
use crate::payload::Payload;
use crate::player::Mismatch;

/// Unused calls that are named.
const UNUSED: usize = 8;
/// Recorded calls that are named beside one that is not recorded.
const NEXT: usize = 4;

/// The resource that a queue of calls belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// The calls that are still to come, by their places.
    queues: HashMap<QueueKey, VecDeque<usize>>,
    /// Sockets and conversations that the guest has not opened yet, in their order.
    free: VecDeque<QueueKey>,
    /// The sockets for datagrams that the guest opened, with those of the recording that they are.
    udp: HashMap<u32, Option<u32>>,
    /// The first call that is not as it was recorded.
    pub(crate) mismatch: Option<Mismatch>,
}

#[derive(Debug)]
struct Entry {
    recorded: RecordedCall,
    progress: Progress,
    /// The bytes or datagrams of it that are done.
    done: usize,
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

impl QueueKey {
    /// Returns the number of a socket or conversation.
    fn number(&self) -> Option<u32> {
        match self {
            Self::Tcp(number) | Self::Udp(number) | Self::Multicast(number) => Some(*number),
            _ => None,
        }
    }
}

/// Returns the queue that a call belongs to.
pub(crate) fn queue_key(call: &Recorded) -> QueueKey {
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
    pub(crate) fn new(calls: &[RecordedCall]) -> Self {
        let mut state = Self::default();
        for (index, recorded) in calls.iter().enumerate() {
            let key = queue_key(&recorded.call);
            if key.number().is_some() && !state.queues.contains_key(&key) {
                state.free.push_back(key.clone());
            }
            state.queues.entry(key).or_default().push_back(index);
            state.entries.push(Entry { recorded: recorded.clone(), progress: Progress::Open, done: 0 });
        }
        state
    }

    pub(crate) fn call(&self, index: usize) -> Option<&Recorded> {
        self.entries.get(index).map(|entry| &entry.recorded.call)
    }

    pub(crate) fn call_mut(&mut self, index: usize) -> Option<&mut Recorded> {
        self.entries.get_mut(index).map(|entry| &mut entry.recorded.call)
    }

    /// Returns the time of a call's result: never, if there was none.
    pub(crate) fn at(&self, index: usize) -> Nanos {
        let at = |recorded: &RecordedCall| if recorded.call.is_silent() { NEVER } else { nanos(recorded.at) };
        self.entries.get(index).map_or(0, |entry| at(&entry.recorded))
    }

    /// Returns the bytes or datagrams of a call that are done.
    pub(crate) fn done(&self, index: usize) -> usize {
        self.entries.get(index).map_or(0, |entry| entry.done)
    }

    /// Returns all calls.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &RecordedCall> {
        self.entries.iter().map(|entry| &entry.recorded)
    }

    /// Names the place of a call: its number in the round, and its line if it is in a file.
    pub(crate) fn place(&self, index: usize) -> String {
        match self.entries.get(index).map_or(0, |entry| entry.recorded.line) {
            0 => format!("call {}", index + 1),
            line => format!("call {} (line {line})", index + 1),
        }
    }

    /// Returns the first calls that were not made to their end.
    pub(crate) fn unused(&self) -> Vec<Mismatch> {
        let unused = self.entries.iter().enumerate().filter(|(_, entry)| entry.progress != Progress::Done);
        let mismatch = |(index, Entry { recorded, progress, .. }): (usize, &Entry)| {
            let end = if *progress == Progress::Begun { "is begun and not made to its end" } else { "is not made" };
            let statement = format!("{}, {}, {end}", self.place(index), name(&recorded.call));
            Mismatch { statement, expected: arguments(&recorded.call), is_unmade: true, ..Mismatch::default() }
        };
        unused.take(UNUSED).map(mismatch).collect()
    }

    /// Returns the next calls like this one: those of its socket or conversation, if that was recorded.
    pub(crate) fn next_like(&self, made: &Recorded) -> Vec<(String, String)> {
        let key = queue_key(made);
        let of = key.number().filter(|_| self.queues.contains_key(&key)).map(|_| key);
        let is_it =
            |call: &Recorded| call.import() == made.import() && of.as_ref().is_none_or(|of| queue_key(call) == *of);
        let open = self.entries.iter().enumerate().filter(|(_, entry)| entry.progress == Progress::Open);
        let next = open.filter(|(_, entry)| is_it(&entry.recorded.call)).take(NEXT);
        next.map(|(index, entry)| (self.place(index), arguments(&entry.recorded.call))).collect()
    }

    /// Returns a number that no socket and no conversation has.
    pub(crate) fn next_number(&self) -> u32 {
        self.queues.keys().filter_map(QueueKey::number).max().unwrap_or(0).saturating_add(1)
    }

    /// Returns the next call of a queue.
    pub(crate) fn front(&self, key: &QueueKey) -> Option<usize> {
        let recorded = match key {
            QueueKey::Udp(opened) => self.udp.get(opened).copied().flatten().map(QueueKey::Udp),
            _ => None,
        };
        self.queues.get(recorded.as_ref().unwrap_or(key))?.front().copied()
    }

    /// Returns the next call of its queue like this one.
    pub(crate) fn first_like(&self, made: &Recorded) -> Option<usize> {
        let mut left = self.queues.get(&queue_key(made))?.iter().copied();
        left.find(|index| self.call(*index).is_some_and(|call| call.import() == made.import()))
    }

    /// Takes the next call of a queue.
    pub(crate) fn take(&mut self, key: &QueueKey) -> Option<Recorded> {
        let index = self.front(key)?;
        self.remove(index, Progress::Done);
        self.call(index).cloned()
    }

    /// Takes a request whose result is taken later ([`finish`](Self::finish)).
    pub(crate) fn begin_request(&mut self, index: usize) -> usize {
        self.remove(index, Progress::Begun);
        index
    }

    /// Begins a connection; its call remains in its queue until its result is taken. A silent peer has none.
    pub(crate) fn begin_connect(&mut self, key: &QueueKey) {
        let Some(index) = self.front(key) else { return };
        let is_silent = self.call(index).is_some_and(Recorded::is_silent);
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

    fn remove(&mut self, index: usize, progress: Progress) {
        let key = self.call(index).map(queue_key);
        if let Some(queue) = key.and_then(|key| self.queues.get_mut(&key)) {
            queue.retain(|left| *left != index);
        }
        self.set(index, progress);
    }

    /// Takes the first free queue that begins with such a call; the call remains in it.
    pub(crate) fn claim(&mut self, is_it: impl Fn(&Recorded) -> bool) -> Option<QueueKey> {
        let begins = |key: &QueueKey| self.front(key).and_then(|index| self.call(index)).is_some_and(&is_it);
        let place = self.free.iter().position(begins)?;
        self.free.remove(place)
    }

    /// Opens a socket for datagrams. Its first one decides which of the recording it is, unless there is one that receives first.
    pub(crate) fn open_udp(&mut self) -> u32 {
        let number = self.next_number().saturating_add(u32::try_from(self.udp.len()).unwrap_or(u32::MAX));
        let claimed = self.claim(|call| matches!(call, Recorded::UdpReceive { .. }));
        self.udp.insert(number, claimed.and_then(|key| key.number()));
        number
    }

    /// Returns the recorded socket of one that sends. At first it is the free one that begins with this datagram, or else with one to
    /// its address, or else any.
    pub(crate) fn udp_sender(&mut self, opened: u32, to: Option<SocketAddr>, sent: &[u8]) -> u32 {
        if let Some(Some(socket)) = self.udp.get(&opened) {
            return *socket;
        }
        let claimed = [2, 1, 0].into_iter().find_map(|wanted| {
            self.claim(|call| match call {
                Recorded::UdpSend { to: other, .. } if *other != to => wanted == 0,
                Recorded::UdpSend { bytes, .. } => wanted < 2 || bytes.0 == sent,
                _ => false,
            })
        });
        let Some(socket) = claimed.and_then(|key| key.number()) else { return opened };
        self.udp.insert(opened, Some(socket));
        socket
    }

    /// Returns the first request that was not begun.
    pub(crate) fn open_request(&self, is_it: impl Fn(&Request) -> bool) -> Option<usize> {
        self.entries.iter().position(|entry| {
            matches!(&entry.recorded.call, Recorded::HttpRequest { request, .. }
                if entry.progress == Progress::Open && is_it(request))
        })
    }

    /// Returns when the next receive of a queue is due: never, if something has to be sent first, or if the peer is silent.
    pub(crate) fn due(&self, key: &QueueKey) -> Nanos {
        let Some(index) = self.front(key) else { return NEVER };
        match self.call(index) {
            Some(Recorded::TcpConnect { .. }) => self.at(index),
            Some(call) if call.is_sent() == Some(false) => self.at(index),
            _ => NEVER,
        }
    }

    /// Notes how much of a call is done; it is taken when all of it is.
    pub(crate) fn advance(&mut self, index: usize, done: usize, all: usize) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.done = done;
        }
        if done < all { self.set(index, Progress::Begun) } else { self.remove(index, Progress::Done) }
    }

    /// Takes at most so many bytes or datagrams of the next receive of a socket or conversation.
    pub(crate) fn receive(&mut self, key: &QueueKey, max: usize) -> Option<Recorded> {
        let index = self.front(key)?;
        let (done, mut call) = (self.done(index), self.call(index)?.clone());
        let (taken, all) = match &mut call {
            Recorded::TcpReceive { bytes: Payload(bytes), .. } => take_part(bytes, done, max),
            Recorded::MulticastReceive { datagrams, .. } => take_part(datagrams, done, max),
            Recorded::UdpReceive { .. } => (1, 1),
            _ => return None,
        };
        self.advance(index, done + taken, all);
        Some(call)
    }
}

/// Leaves at most so many items after those that are done. Returns their number and that of all.
fn take_part<T>(items: &mut Vec<T>, done: usize, max: usize) -> (usize, usize) {
    let all = items.len();
    *items = std::mem::take(items).into_iter().skip(done).take(max).collect();
    (items.len(), all)
}
