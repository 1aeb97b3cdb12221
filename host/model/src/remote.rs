//! Remote handlers: processes that serve `proto/discovery.proto` themselves. Which endpoints there are, and how each is
//! doing (rule 31).

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::names::Key;

/// Most endpoints of all handlers together.
pub const MAX_ENDPOINTS: usize = 64;

/// Most endpoints of one handler.
pub const MAX_OF_ONE_HANDLER: usize = 8;

/// Most bytes of a handler's name.
pub const MAX_NAME: usize = 253;

/// Whether a handler may be called this: a word without control characters.
pub fn is_handler_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

/// Where a handler serves.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// A Unix socket, by its absolute path.
    Unix(String),
    /// A TCP port.
    Network(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{path}"),
            Self::Network(address) => write!(f, "http://{address}"),
        }
    }
}

/// A handler at an address. In order of names, then of addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// The name Configurations use.
    pub handler: String,
    /// Where it serves.
    pub address: Address,
}

/// How an endpoint is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It has registered, and no Configuration has reached it yet or wants it.
    Waiting,
    /// A Configuration is connected to it.
    Active,
    /// It could not be reached, or the connection was lost.
    Offline,
}

/// What is known of an endpoint. Times are from any fixed moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Whether many nodes see its devices; `None` if it was found by its socket and has not said so.
    pub shared: Option<bool>,
    /// Grows with each registration: whoever failed to reach it may try again at once.
    pub registrations: u64,
    /// How it is doing.
    pub state: State,
    /// Since when.
    pub since: Duration,
    /// What came of its last message or failure; an error is for people.
    pub last_result: Option<Result<(), String>>,
    users: BTreeMap<Key, User>,
}

/// A Configuration that asks an endpoint for devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct User {
    connected: Option<bool>,
    devices: usize,
}

impl Record {
    fn new(shared: Option<bool>, now: Duration) -> Self {
        let (state, users) = (State::Waiting, BTreeMap::new());
        Self { shared, registrations: 0, state, since: now, last_result: None, users }
    }

    /// Devices in its last messages, of all Configurations together.
    pub fn devices(&self) -> usize {
        self.users.values().map(|user| user.devices).sum()
    }

    /// Whether a Configuration asks it.
    pub fn has_user(&self, user: &Key) -> bool {
        self.users.contains_key(user)
    }

    fn settle(&mut self, now: Duration) {
        let any = |connected| self.users.values().any(|user| user.connected == Some(connected));
        let state = match () {
            () if any(true) => State::Active,
            () if any(false) => State::Offline,
            () => State::Waiting,
        };
        if std::mem::replace(&mut self.state, state) != state {
            self.since = now;
        }
    }
}

/// Why an endpoint was not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The name is none.
    #[error("the name is not a word of at most {MAX_NAME} bytes without control characters")]
    Name,
    /// The handler has enough endpoints.
    #[error("handler '{0}' has {MAX_OF_ONE_HANDLER} endpoints already")]
    TooManyOfOneHandler(String),
    /// There are enough endpoints.
    #[error("there are {MAX_ENDPOINTS} endpoints already")]
    TooMany,
    /// Instances are named after whether a device is shared, so that all who serve a handler have to agree.
    #[error("'{handler}' is registered as shared={shared}, but {other} serves it as shared={}", !shared)]
    SharedDiffers {
        /// The handler.
        handler: String,
        /// What was registered.
        shared: bool,
        /// Who says otherwise.
        other: String,
    },
}

/// All endpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoints(BTreeMap<Endpoint, Record>);

impl Endpoints {
    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Endpoint, &Record)> {
        self.0.iter()
    }

    /// Those of a handler, in order.
    pub fn of<'a>(&'a self, handler: &'a str) -> impl Iterator<Item = (&'a Endpoint, &'a Record)> {
        self.0.iter().filter(move |(endpoint, _)| endpoint.handler == handler)
    }

    /// One of them.
    pub fn get(&self, endpoint: &Endpoint) -> Option<&Record> {
        self.0.get(endpoint)
    }

    /// Takes an endpoint in, or takes note that it is there again: that replaces what was known of it. Where there is no
    /// room, those make it that are offline, or wait at an address that `is_dead`.
    pub fn register(
        &mut self,
        endpoint: Endpoint,
        shared: bool,
        now: Duration,
        is_dead: impl Fn(&Address) -> bool,
    ) -> Result<(), Refusal> {
        self.check(&endpoint, shared)?;
        if !self.0.contains_key(&endpoint) {
            self.make_room(&endpoint.handler, is_dead)?;
        }
        let record = self.0.entry(endpoint).or_insert_with(|| Record::new(None, now));
        record.shared = Some(shared);
        record.registrations += 1;
        for user in record.users.values_mut().filter(|user| user.connected == Some(false)) {
            user.connected = None;
        }
        record.settle(now);
        Ok(())
    }

    /// Takes in an endpoint that is remembered or was found. What has registered counts more, and so do the bounds.
    pub fn recall(&mut self, endpoint: Endpoint, shared: Option<bool>, now: Duration) {
        let agrees = shared.is_none_or(|shared| self.check(&endpoint, shared).is_ok());
        let room = self.of(&endpoint.handler).count() < MAX_OF_ONE_HANDLER && self.0.len() < MAX_ENDPOINTS;
        if agrees && room && is_handler_name(&endpoint.handler) {
            self.0.entry(endpoint).or_insert_with(|| Record::new(shared, now));
        }
    }

    fn check(&self, endpoint: &Endpoint, shared: bool) -> Result<(), Refusal> {
        let handler = &endpoint.handler;
        if !is_handler_name(handler) {
            return Err(Refusal::Name);
        }
        let differs = |(other, record): &(&Endpoint, &Record)| *other != endpoint && record.shared == Some(!shared);
        match self.of(handler).find(differs) {
            None => Ok(()),
            Some((Endpoint { address, .. }, _)) => {
                Err(Refusal::SharedDiffers { handler: handler.clone(), shared, other: address.to_string() })
            }
        }
    }

    fn make_room(&mut self, handler: &str, is_dead: impl Fn(&Address) -> bool) -> Result<(), Refusal> {
        if self.of(handler).count() >= MAX_OF_ONE_HANDLER && !self.evict(Some(handler), &is_dead) {
            return Err(Refusal::TooManyOfOneHandler(handler.to_owned()));
        }
        if self.0.len() >= MAX_ENDPOINTS && !self.evict(None, &is_dead) {
            return Err(Refusal::TooMany);
        }
        Ok(())
    }

    /// Forgets the endpoint that has been of no use for longest.
    fn evict(&mut self, handler: Option<&str>, is_dead: impl Fn(&Address) -> bool) -> bool {
        let useless = |endpoint: &Endpoint, record: &Record| match record.state {
            State::Active => false,
            State::Offline => true,
            State::Waiting => is_dead(&endpoint.address),
        };
        let of_handler = |endpoint: &Endpoint| handler.is_none_or(|handler| endpoint.handler == handler);
        let useless = self.0.iter().filter(|(endpoint, record)| of_handler(endpoint) && useless(endpoint, record));
        let longest = useless.min_by_key(|(_, record)| record.since).map(|(endpoint, _)| endpoint.clone());
        longest.is_some_and(|endpoint| self.0.remove(&endpoint).is_some())
    }

    /// A Configuration begins to ask the endpoint.
    pub fn used(&mut self, endpoint: &Endpoint, user: &Key) {
        if let Some(record) = self.0.get_mut(endpoint) {
            record.users.entry(user.clone()).or_default();
        }
    }

    /// A Configuration is connected to the endpoint, or could not reach it or lost the connection, or does not try. Who has
    /// released it has nothing more to say.
    pub fn connected(&mut self, endpoint: &Endpoint, user: &Key, connected: Option<bool>, now: Duration) {
        let Some(record) = self.0.get_mut(endpoint) else { return };
        let Some(user) = record.users.get_mut(user) else { return };
        user.connected = connected;
        if connected == Some(true) {
            record.last_result.take_if(|result| result.is_err());
        }
        record.settle(now);
    }

    /// What the endpoint last told a Configuration: so many devices, or what went wrong.
    pub fn told(&mut self, endpoint: &Endpoint, user: &Key, result: Result<usize, String>) {
        let Some(record) = self.0.get_mut(endpoint) else { return };
        let Some(user) = record.users.get_mut(user) else { return };
        if let Ok(devices) = result {
            user.devices = devices;
        }
        record.last_result = Some(result.map(drop));
    }

    /// A Configuration no longer asks the endpoint.
    pub fn released(&mut self, endpoint: &Endpoint, user: &Key, now: Duration) {
        let Some(record) = self.0.get_mut(endpoint) else { return };
        record.users.remove(user);
        record.settle(now);
    }

    /// Since when the endpoint that has been offline for longest is.
    pub fn offline_since(&self) -> Option<Duration> {
        self.0.values().filter(|record| record.state == State::Offline).map(|record| record.since).min()
    }

    /// Forgets the endpoints that have been offline since that moment or longer, and says which.
    pub fn forget(&mut self, since: Duration) -> Vec<Endpoint> {
        let expired = |record: &Record| record.state == State::Offline && record.since <= since;
        self.0.extract_if(.., |_, record| expired(record)).map(|(endpoint, _)| endpoint).collect()
    }
}

#[cfg(test)]
mod tests;
