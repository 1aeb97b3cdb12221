//! Asking the node for the addresses of names, and remembering what it said for when it can't say.
//!
//! A name service that fails says nothing about the machines behind the names: they are asked at the addresses they had
//! (serve-stale, RFC 8767), so that an outage takes no device away.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dns_lookup::LookupErrorKind;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Addresses of a name; a client tries a few at most.
const ADDRESSES: usize = 16;
/// How long an answer is of use when there is no newer one (RFC 8767, 5: 1 to 3 days).
const OLDEST: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a new answer is waited for when there is an older one (RFC 8767, 5: 1.8 s; handlers wait for less than that).
const PATIENCE: Duration = Duration::from_secs(1);
/// Names that are remembered.
const REMEMBERED: usize = 2048;

/// The addresses of a name, in order of preference. It blocks.
pub(crate) type Lookup = Arc<dyn Fn(&str) -> Result<Vec<IpAddr>, LookupError> + Send + Sync>;

/// Why there are no addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LookupError {
    /// There is no such name, or it has no address.
    #[error("{0}")]
    Unknown(String),
    /// Those who know could not be asked.
    #[error("{0}")]
    Failed(String),
}

impl From<dns_lookup::LookupError> for LookupError {
    fn from(error: dns_lookup::LookupError) -> Self {
        match error.kind() {
            LookupErrorKind::NoName | LookupErrorKind::NoData => Self::Unknown(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Asks as the node does: `/etc/hosts`, DNS and whatever else it is set up to ask.
pub(crate) fn system() -> Lookup {
    Arc::new(|name| Ok(dns_lookup::lookup_host(name)?.collect()))
}

/// Who resolves names for all rounds of a component.
pub(crate) struct Resolver {
    lookup: Lookup,
    /// Turns to ask: a thread that hangs can't be ended.
    turns: Arc<Semaphore>,
    memory: Arc<Memory>,
}

impl Resolver {
    /// Asks `lookup` for so many names at once.
    pub(crate) fn new(lookup: Lookup, at_once: usize) -> Self {
        Self { lookup, turns: Arc::new(Semaphore::new(at_once)), memory: Arc::default() }
    }

    /// The addresses of a name, at least one, in order of preference. An IPv4 address mapped into IPv6 comes as that IPv4
    /// address.
    ///
    /// # Errors
    /// If nobody knows it, or nobody can be asked and none was known within the last day.
    pub(crate) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, LookupError> {
        let Some(remembered) = self.memory.addresses(name, Instant::now()) else { return self.ask(name).await };
        match timeout(PATIENCE, self.ask(name)).await {
            Ok(Err(LookupError::Failed(_))) | Err(_) => {
                tracing::debug!(name, "the name service does not answer; what it said last is used");
                Ok(remembered)
            }
            Ok(answer) => answer,
        }
    }

    async fn ask(&self, name: &str) -> Result<Vec<IpAddr>, LookupError> {
        let failed = |error: &dyn std::fmt::Display| LookupError::Failed(error.to_string());
        let turn = self.turns.clone().acquire_owned().await.map_err(|error| failed(&error))?;
        let (lookup, memory, name) = (self.lookup.clone(), self.memory.clone(), name.to_owned());
        // One that hangs can't be ended: it keeps its turn, not the round. What it says at last is remembered.
        let answer = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let answer = lookup(&name).and_then(usable);
            memory.hear(&name, &answer, Instant::now());
            answer
        });
        answer.await.map_err(|error| failed(&error))?
    }
}

/// A bounded number of different addresses.
fn usable(answer: Vec<IpAddr>) -> Result<Vec<IpAddr>, LookupError> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in answer.iter().map(IpAddr::to_canonical) {
        if addresses.len() < ADDRESSES && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(LookupError::Unknown("it has no address".to_owned())) } else { Ok(addresses) }
}

/// What was said last, by name.
#[derive(Default)]
struct Memory(Mutex<HashMap<String, (Instant, Vec<IpAddr>)>>);

impl Memory {
    fn known(&self) -> MutexGuard<'_, HashMap<String, (Instant, Vec<IpAddr>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn addresses(&self, name: &str, now: Instant) -> Option<Vec<IpAddr>> {
        let known = self.known();
        known
            .get(name)
            .filter(|(since, _)| now.duration_since(*since) <= OLDEST)
            .map(|(_, addresses)| addresses.clone())
    }

    /// An answer takes the place of the one before; a failure is none.
    fn hear(&self, name: &str, answer: &Result<Vec<IpAddr>, LookupError>, now: Instant) {
        let mut known = self.known();
        match answer {
            Ok(addresses) => {
                known.insert(name.to_owned(), (now, addresses.clone()));
                if known.len() > REMEMBERED {
                    let oldest = known.iter().min_by_key(|(_, (since, _))| *since).map(|(name, _)| name.clone());
                    oldest.map(|name| known.remove(&name));
                }
            }
            Err(LookupError::Unknown(_)) => drop(known.remove(name)),
            Err(LookupError::Failed(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    type Answer = Result<Vec<IpAddr>, LookupError>;

    fn at(address: &str) -> Answer {
        Ok(vec![address.parse().unwrap()])
    }

    fn failed() -> Answer {
        Err(LookupError::Failed("try again".to_owned()))
    }

    fn unknown() -> Answer {
        Err(LookupError::Unknown("no such name".to_owned()))
    }

    /// One whose lookups answer one after the other what is sent, and hang when nothing is.
    fn resolver() -> (mpsc::Sender<Answer>, Resolver) {
        let (say, heard) = mpsc::channel();
        let heard = Mutex::new(heard);
        let lookup = Arc::new(move |_: &str| heard.lock().unwrap().recv().unwrap_or_else(|_| failed()));
        (say, Resolver::new(lookup, 1))
    }

    #[tokio::test]
    async fn what_was_said_last_counts_as_long_as_nobody_can_be_asked() {
        let (say, resolver) = resolver();
        for (answer, expected) in [
            (failed(), failed()),
            (at("10.0.0.1"), at("10.0.0.1")),
            (failed(), at("10.0.0.1")),
            (at("10.0.0.2"), at("10.0.0.2")),
            (failed(), at("10.0.0.2")),
            (unknown(), unknown()),
            (failed(), failed()),
        ] {
            say.send(answer.clone()).unwrap();
            assert_eq!(resolver.addresses("plc").await, expected, "{answer:?}");
        }
    }

    #[tokio::test]
    async fn each_name_has_its_own() {
        let (say, resolver) = resolver();
        say.send(at("10.0.0.1")).unwrap();
        resolver.addresses("plc").await.unwrap();
        say.send(failed()).unwrap();
        assert_eq!(resolver.addresses("pump").await, failed());
    }

    #[tokio::test]
    async fn a_lookup_that_hangs_is_not_waited_for_if_there_is_an_answer_already() {
        let (say, resolver) = resolver();
        say.send(at("10.0.0.1")).unwrap();
        resolver.addresses("plc").await.unwrap();
        let start = Instant::now();
        assert_eq!(resolver.addresses("plc").await, at("10.0.0.1"), "the lookup hangs");
        assert_eq!(resolver.addresses("plc").await, at("10.0.0.1"), "it has the only turn");
        assert!(start.elapsed() >= 2 * PATIENCE);
        say.send(at("10.0.0.2")).unwrap(); // to the one that hung
        say.send(at("10.0.0.3")).unwrap();
        assert_eq!(resolver.addresses("plc").await, at("10.0.0.3"));
    }

    #[test]
    fn after_a_day_it_counts_no_more() {
        let (memory, start) = (Memory::default(), Instant::now());
        memory.hear("plc", &at("10.0.0.1"), start);
        let known = |after: Duration| memory.addresses("plc", start + after).is_some();
        assert_eq!([OLDEST, OLDEST + Duration::from_secs(1)].map(known), [true, false]);
    }

    #[test]
    fn of_very_many_names_the_oldest_are_forgotten() {
        let (memory, start) = (Memory::default(), Instant::now());
        for number in 0..REMEMBERED + 2 {
            let now = start + Duration::from_millis(number as u64);
            memory.hear(&number.to_string(), &at("10.0.0.1"), now);
        }
        let known = |number: usize| memory.addresses(&number.to_string(), start).is_some();
        assert_eq!([0, 1, 2, REMEMBERED + 1].map(known), [false, false, true, true]);
    }

    #[test]
    fn a_name_that_nobody_knows_is_no_failure() {
        let of = |code| LookupError::from(dns_lookup::LookupError::new(code));
        assert!(matches!(of(nix::libc::EAI_NONAME), LookupError::Unknown(_)));
        assert!(matches!(of(nix::libc::EAI_NODATA), LookupError::Unknown(_)));
        assert!(matches!(of(nix::libc::EAI_AGAIN), LookupError::Failed(_)));
        assert!(matches!(of(nix::libc::EAI_FAIL), LookupError::Failed(_)));
        assert!(matches!(of(nix::libc::EAI_SYSTEM), LookupError::Failed(_)));
    }
}
