//! Remote handlers, processes that serve `proto/discovery.proto`: the known endpoints and their states (rule 31).

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::names::Key;

/// Maximum number of endpoints of all handlers together.
pub const MAX_ENDPOINTS: usize = 64;

/// Maximum number of endpoints of one handler.
pub const MAX_OF_ONE_HANDLER: usize = 8;

/// Maximum length of a handler's name, in bytes.
pub const MAX_NAME: usize = 253;

/// Returns whether a handler name is valid: a word without control characters.
pub fn is_handler_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

/// The address of a handler.
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

/// A handler at an address, ordered by name, then by address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// The handler name that Configurations use.
    pub handler: String,
    /// The address.
    pub address: Address,
}

/// The connection state of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointState {
    /// Registered, and no Configuration has tried to connect.
    Waiting,
    /// A Configuration is connected to it.
    Active,
    /// It could not be reached, or the connection was lost.
    Offline,
}

/// The state of an endpoint. Times count from a fixed origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointRecord {
    /// The registered value of `shared`.
    pub shared: bool,
    /// Number of registrations; an increase causes an immediate retry.
    pub registrations: u64,
    /// The connection state.
    pub state: EndpointState,
    /// The time of the last state change.
    pub since: Duration,
    /// The last result, with the text of an error.
    pub last_result: Option<Result<(), String>>,
    users: BTreeMap<Key, EndpointUser>,
}

/// A Configuration that uses an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct EndpointUser {
    connected: Option<bool>,
    devices: usize,
}

impl EndpointRecord {
    fn new(shared: bool, now: Duration) -> Self {
        let (state, users) = (EndpointState::Waiting, BTreeMap::new());
        Self { shared, registrations: 0, state, since: now, last_result: None, users }
    }

    /// Returns the number of devices in its last messages, for all Configurations.
    pub fn devices(&self) -> usize {
        self.users.values().map(|user| user.devices).sum()
    }

    /// Returns whether a Configuration uses it.
    pub fn has_user(&self, user: &Key) -> bool {
        self.users.contains_key(user)
    }

    /// Returns whether it waits and a newer one may take its place. Nobody has tried an address on the network that no
    /// Configuration uses: it may be that of a pod that has gone.
    fn is_useless_at(&self, address: &Address, is_dead: impl Fn(&Address) -> bool) -> bool {
        let is_unused = matches!(address, Address::Network(_)) && self.users.is_empty();
        self.state == EndpointState::Waiting && (is_unused || is_dead(address))
    }

    fn update_state(&mut self, now: Duration) {
        let any = |connected| self.users.values().any(|user| user.connected == Some(connected));
        let state = match () {
            () if any(true) => EndpointState::Active,
            () if any(false) => EndpointState::Offline,
            () => EndpointState::Waiting,
        };
        if std::mem::replace(&mut self.state, state) != state {
            self.since = now;
        }
    }
}

/// The reason for a refused registration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationRefusal {
    /// The name is invalid.
    #[error("the name is not a word of at most {MAX_NAME} bytes without control characters")]
    Name,
    /// The handler has the maximum number of endpoints.
    #[error("handler '{0}' has {MAX_OF_ONE_HANDLER} endpoints already")]
    TooManyOfOneHandler(String),
    /// The maximum number of endpoints is reached.
    #[error("there are {MAX_ENDPOINTS} endpoints already")]
    TooMany,
    /// Another source of the handler differs in `shared`, on which the names of Instances depend.
    #[error("'{handler}' is registered as shared={shared}, but {other} serves it as shared={}", !shared)]
    SharedDiffers {
        /// The handler.
        handler: String,
        /// The registered value.
        shared: bool,
        /// The other source.
        other: String,
    },
}

/// All endpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoints {
    records: BTreeMap<Endpoint, EndpointRecord>,
    /// The reasons for which registrations of handlers were refused that have not registered since.
    refusals: BTreeMap<String, String>,
}

impl Endpoints {
    /// Returns all endpoints, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Endpoint, &EndpointRecord)> {
        self.records.iter()
    }

    /// Returns the endpoints of a handler, in order.
    pub fn of<'a>(&'a self, handler: &'a str) -> impl Iterator<Item = (&'a Endpoint, &'a EndpointRecord)> {
        self.records.iter().filter(move |(endpoint, _)| endpoint.handler == handler)
    }

    /// Returns one endpoint.
    pub fn get(&self, endpoint: &Endpoint) -> Option<&EndpointRecord> {
        self.records.get(endpoint)
    }

    /// Registers an endpoint, replacing an earlier registration. If the limit is reached, an endpoint is evicted that
    /// is offline, or that waits at an address for which `is_dead` holds. One of those that waits and differs in `shared` goes in any case.
    pub fn register(
        &mut self,
        endpoint: Endpoint,
        shared: bool,
        now: Duration,
        is_dead: impl Fn(&Address) -> bool,
    ) -> Result<(), RegistrationRefusal> {
        let is_gone = |of: &Endpoint, record: &EndpointRecord| {
            of.handler == endpoint.handler && record.is_useless_at(&of.address, &is_dead)
        };
        self.records.retain(|other, record| record.shared == shared || !is_gone(other, record));
        self.check(&endpoint, shared)?;
        if !self.records.contains_key(&endpoint) {
            self.make_room(&endpoint.handler, is_dead)?;
        }
        let handler = endpoint.handler.clone();
        let record = self.records.entry(endpoint).or_insert_with(|| EndpointRecord::new(shared, now));
        record.shared = shared;
        record.registrations += 1;
        for user in record.users.values_mut().filter(|user| user.connected == Some(false)) {
            user.connected = None;
        }
        record.update_state(now);
        self.refusals.remove(&handler);
        Ok(())
    }

    /// Keeps the reason for which a registration of a handler was refused.
    pub fn record_refusal(&mut self, handler: &str, reason: String) {
        let has_room = self.refusals.len() < MAX_ENDPOINTS || self.refusals.contains_key(handler);
        if has_room && is_handler_name(handler) {
            self.refusals.insert(handler.to_owned(), reason);
        }
    }

    /// Returns the reason for which the last registration of a handler was refused, if it has not registered since.
    pub fn refusal(&self, handler: &str) -> Option<&str> {
        self.refusals.get(handler).map(String::as_str)
    }

    /// Adds a known endpoint. Registered endpoints and the limits take precedence.
    pub fn restore(&mut self, endpoint: Endpoint, shared: bool, now: Duration) {
        let room = self.of(&endpoint.handler).count() < MAX_OF_ONE_HANDLER && self.records.len() < MAX_ENDPOINTS;
        if room && self.check(&endpoint, shared).is_ok() {
            self.records.entry(endpoint).or_insert_with(|| EndpointRecord::new(shared, now));
        }
    }

    /// Removes the endpoints that differ from the component of their handler in `shared`, and returns them.
    pub fn remove_differing(&mut self, handler: &str, shared: bool) -> Vec<Endpoint> {
        let differs =
            |endpoint: &Endpoint, record: &mut EndpointRecord| endpoint.handler == handler && record.shared != shared;
        self.records.extract_if(.., differs).map(|(endpoint, _)| endpoint).collect()
    }

    fn check(&self, endpoint: &Endpoint, shared: bool) -> Result<(), RegistrationRefusal> {
        let handler = &endpoint.handler;
        if !is_handler_name(handler) {
            return Err(RegistrationRefusal::Name);
        }
        let differs = |(other, record): &(&Endpoint, &EndpointRecord)| *other != endpoint && record.shared != shared;
        match self.of(handler).find(differs) {
            None => Ok(()),
            Some((Endpoint { address, .. }, _)) => {
                Err(RegistrationRefusal::SharedDiffers { handler: handler.clone(), shared, other: address.to_string() })
            }
        }
    }

    fn make_room(&mut self, handler: &str, is_dead: impl Fn(&Address) -> bool) -> Result<(), RegistrationRefusal> {
        if self.of(handler).count() >= MAX_OF_ONE_HANDLER && !self.evict(Some(handler), &is_dead) {
            return Err(RegistrationRefusal::TooManyOfOneHandler(handler.to_owned()));
        }
        if self.records.len() >= MAX_ENDPOINTS && !self.evict(None, &is_dead) {
            return Err(RegistrationRefusal::TooMany);
        }
        Ok(())
    }

    /// Removes the unusable endpoint that has been unused for longest.
    fn evict(&mut self, handler: Option<&str>, is_dead: impl Fn(&Address) -> bool) -> bool {
        let useless = |endpoint: &Endpoint, record: &EndpointRecord| {
            record.state == EndpointState::Offline || record.is_useless_at(&endpoint.address, &is_dead)
        };
        let of_handler = |endpoint: &Endpoint| handler.is_none_or(|handler| endpoint.handler == handler);
        let useless =
            self.records.iter().filter(|(endpoint, record)| of_handler(endpoint) && useless(endpoint, record));
        let longest = useless.min_by_key(|(_, record)| record.since).map(|(endpoint, _)| endpoint.clone());
        longest.is_some_and(|endpoint| self.records.remove(&endpoint).is_some())
    }

    /// Records that a Configuration uses the endpoint.
    pub fn add_user(&mut self, endpoint: &Endpoint, user: &Key) {
        if let Some(record) = self.records.get_mut(endpoint) {
            record.users.entry(user.clone()).or_default();
        }
    }

    /// Sets the connection state for a Configuration: connected, failed, or not tried. Ignored if the Configuration no
    /// longer uses the endpoint.
    pub fn set_connected(&mut self, endpoint: &Endpoint, user: &Key, connected: Option<bool>, now: Duration) {
        let Some(record) = self.records.get_mut(endpoint) else { return };
        let Some(user) = record.users.get_mut(user) else { return };
        user.connected = connected;
        if connected == Some(true) {
            record.last_result.take_if(|result| result.is_err());
        }
        record.update_state(now);
    }

    /// Records the last result for a Configuration: a number of devices, or an error.
    pub fn record_result(&mut self, endpoint: &Endpoint, user: &Key, result: Result<usize, String>) {
        let Some(record) = self.records.get_mut(endpoint) else { return };
        let Some(user) = record.users.get_mut(user) else { return };
        if let Ok(devices) = result {
            user.devices = devices;
        }
        record.last_result = Some(result.map(drop));
    }

    /// Records that a Configuration no longer uses the endpoint.
    pub fn remove_user(&mut self, endpoint: &Endpoint, user: &Key, now: Duration) {
        let Some(record) = self.records.get_mut(endpoint) else { return };
        record.users.remove(user);
        record.update_state(now);
    }

    /// Returns the time since which the longest offline endpoint is offline.
    pub fn offline_since(&self) -> Option<Duration> {
        self.records.values().filter(|record| record.state == EndpointState::Offline).map(|record| record.since).min()
    }

    /// Removes and returns the endpoints that have been offline since that time or longer.
    pub fn forget(&mut self, since: Duration) -> Vec<Endpoint> {
        let expired = |record: &EndpointRecord| record.state == EndpointState::Offline && record.since <= since;
        self.records.extract_if(.., |_, record| expired(record)).map(|(endpoint, _)| endpoint).collect()
    }
}

#[cfg(test)]
mod tests;
