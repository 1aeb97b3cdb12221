//! Asks the node for the addresses of names, and keeps its answers for when it gives none.
//!
//! A name service that fails says nothing about the machines behind the names: they are asked at the addresses they had
//! (serve-stale, RFC 8767), so that an outage takes no device away.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dns_lookup::LookupErrorKind;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// Addresses of a name; a client tries a few at most.
const ADDRESSES: usize = 16;
/// The age up to which an answer is used if there is no newer one (RFC 8767, 5: 1 to 3 days).
const OLDEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest wait for a new answer if there is an older one. RFC 8767, 5 has 1.8 s, but handlers ask many machines, and
/// have less time for each.
const PATIENCE: Duration = Duration::from_millis(200);
/// Names that are asked for or wait for a turn.
const WAITING: usize = 1024;
/// Names that are remembered.
const REMEMBERED: usize = 2048;

/// The addresses of a name, in order of preference. It blocks.
pub(crate) type Lookup = Arc<dyn Fn(&str) -> Answer + Send + Sync>;

/// The reason why there are no addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LookupError {
    /// There is no such name, or it has no address.
    #[error("{0}")]
    Unknown(String),
    /// The name servers could not be asked.
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

type Answer = Result<Vec<IpAddr>, LookupError>;

/// The resolver for all rounds of a component.
pub(crate) struct Resolver {
    lookup: Lookup,
    /// Turns to ask: a thread that hangs can't be ended.
    turns: Arc<Semaphore>,
    shared: Arc<Mutex<Shared>>,
}

impl Resolver {
    /// Asks `lookup` for so many names at once.
    pub(crate) fn new(lookup: Lookup, at_once: usize) -> Self {
        Self { lookup, turns: Arc::new(Semaphore::new(at_once)), shared: Arc::default() }
    }

    /// The addresses of a name, at least one, in order of preference. An IPv4 address mapped into IPv6 comes as that IPv4
    /// address.
    ///
    /// # Errors
    /// If nobody knows it, or nobody can be asked and none was known within the last day.
    pub(crate) async fn addresses(&self, name: &str) -> Answer {
        let remembered = lock(&self.shared).memory.addresses(name, Instant::now());
        let Some(remembered) = remembered else { return self.ask(name).await };
        match timeout(PATIENCE, self.ask(name)).await {
            Ok(Err(LookupError::Failed(_))) | Err(_) => {
                tracing::debug!(name, "the name service does not answer; its last answer is used");
                Ok(remembered)
            }
            Ok(answer) => answer,
        }
    }

    /// Asks for a name; concurrent calls for the same name share one answer.
    async fn ask(&self, name: &str) -> Answer {
        let mut answer = {
            let mut shared = lock(&self.shared);
            match shared.asked.get(name) {
                Some(answer) => answer.clone(),
                None if shared.asked.len() >= WAITING => {
                    return Err(LookupError::Failed(format!("{WAITING} other names wait to be resolved")));
                }
                None => {
                    let (sender, answer) = watch::channel(None);
                    shared.asked.insert(name.to_owned(), answer.clone());
                    tokio::spawn(find(
                        self.turns.clone(),
                        self.lookup.clone(),
                        self.shared.clone(),
                        name.to_owned(),
                        sender,
                    ));
                    answer
                }
            }
        };
        let resolved = answer.wait_for(Option::is_some).await.map(|resolved| resolved.clone());
        resolved.ok().flatten().unwrap_or_else(|| Err(LookupError::Failed("the lookup was given up".to_owned())))
    }
}

/// Asks for a name when it has a turn. A lookup that hangs can't be ended: it keeps its turn, and nobody asks for that name
/// meanwhile. Its late answer is remembered.
async fn find(
    turns: Arc<Semaphore>,
    lookup: Lookup,
    shared: Arc<Mutex<Shared>>,
    name: String,
    sender: watch::Sender<Option<Answer>>,
) {
    let failed = |error: &dyn std::fmt::Display| Err(LookupError::Failed(error.to_string()));
    let asked = name.clone();
    let answer = match turns.acquire_owned().await {
        Ok(turn) => {
            let answer = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                lookup(&asked).and_then(usable)
            });
            answer.await.unwrap_or_else(|error| failed(&error))
        }
        Err(error) => failed(&error),
    };
    let mut shared = lock(&shared);
    shared.memory.record(&name, &answer, Instant::now());
    shared.asked.remove(&name);
    sender.send_replace(Some(answer));
}

/// The state shared by all lookups.
#[derive(Default)]
struct Shared {
    memory: Memory,
    asked: HashMap<String, watch::Receiver<Option<Answer>>>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A bounded number of different addresses.
fn usable(answer: Vec<IpAddr>) -> Answer {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in answer.iter().map(IpAddr::to_canonical) {
        if addresses.len() < ADDRESSES && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(LookupError::Unknown("it has no address".to_owned())) } else { Ok(addresses) }
}

/// The last answers, by name.
#[derive(Default)]
struct Memory(HashMap<String, (Instant, Vec<IpAddr>)>);

impl Memory {
    fn addresses(&self, name: &str, now: Instant) -> Option<Vec<IpAddr>> {
        let fresh = |(since, _): &&(Instant, Vec<IpAddr>)| now.duration_since(*since) <= OLDEST;
        self.0.get(name).filter(fresh).map(|(_, addresses)| addresses.clone())
    }

    /// Records an answer in place of the one before; a failure is none.
    fn record(&mut self, name: &str, answer: &Answer, now: Instant) {
        match answer {
            Ok(addresses) => {
                self.0.insert(name.to_owned(), (now, addresses.clone()));
                if self.0.len() > REMEMBERED {
                    let oldest = self.0.iter().min_by_key(|(_, (since, _))| *since).map(|(name, _)| name.clone());
                    oldest.map(|name| self.0.remove(&name));
                }
            }
            Err(LookupError::Unknown(_)) => drop(self.0.remove(name)),
            Err(LookupError::Failed(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

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
        let (sender, answers) = mpsc::channel();
        let answers = Mutex::new(answers);
        let lookup = Arc::new(move |_: &str| answers.lock().unwrap().recv().unwrap_or_else(|_| failed()));
        (sender, Resolver::new(lookup, 1))
    }

    #[tokio::test]
    async fn what_was_said_last_counts_as_long_as_nobody_can_be_asked() {
        let (sender, resolver) = resolver();
        for (answer, expected) in [
            (failed(), failed()),
            (at("10.0.0.1"), at("10.0.0.1")),
            (failed(), at("10.0.0.1")),
            (at("10.0.0.2"), at("10.0.0.2")),
            (failed(), at("10.0.0.2")),
            (unknown(), unknown()),
            (failed(), failed()),
        ] {
            sender.send(answer.clone()).unwrap();
            assert_eq!(resolver.addresses("plc").await, expected, "{answer:?}");
        }
    }

    #[tokio::test]
    async fn each_name_has_its_own() {
        let (sender, resolver) = resolver();
        sender.send(at("10.0.0.1")).unwrap();
        resolver.addresses("plc").await.unwrap();
        sender.send(failed()).unwrap();
        assert_eq!(resolver.addresses("pump").await, failed());
    }

    #[tokio::test]
    async fn hanging_lookup_does_not_delay_a_known_answer() {
        let (sender, resolver) = resolver();
        sender.send(at("10.0.0.1")).unwrap();
        resolver.addresses("plc").await.unwrap();
        let start = Instant::now();
        assert_eq!(resolver.addresses("plc").await, at("10.0.0.1"), "the lookup hangs");
        assert_eq!(resolver.addresses("plc").await, at("10.0.0.1"), "it still does");
        assert!(start.elapsed() >= 2 * PATIENCE);
        sender.send(at("10.0.0.2")).unwrap();
        while resolver.addresses("plc").await != at("10.0.0.2") {} // the late answer counts
    }

    #[tokio::test]
    async fn a_name_is_asked_for_once_at_a_time() {
        let (sender, resolver) = resolver();
        let both = async { tokio::join!(resolver.addresses("plc"), resolver.addresses("plc")) };
        sender.send(at("10.0.0.1")).unwrap();
        assert_eq!(both.await, (at("10.0.0.1"), at("10.0.0.1")));
    }

    #[tokio::test]
    async fn so_many_names_wait_and_no_more() {
        let (sender, resolver) = resolver();
        let resolver = Arc::new(resolver);
        for number in 0..WAITING {
            let resolver = resolver.clone();
            tokio::spawn(async move { resolver.addresses(&number.to_string()).await });
        }
        while lock(&resolver.shared).asked.len() < WAITING {
            tokio::task::yield_now().await;
        }
        let refused = resolver.addresses("plc").await;
        assert_eq!(refused, Err(LookupError::Failed("1024 other names wait to be resolved".to_owned())));
        drop(sender);
    }

    #[test]
    fn after_a_day_it_counts_no_more() {
        let (mut memory, start) = (Memory::default(), Instant::now());
        memory.record("plc", &at("10.0.0.1"), start);
        let known = |after: Duration| memory.addresses("plc", start + after).is_some();
        assert_eq!([OLDEST, OLDEST + Duration::from_secs(1)].map(known), [true, false]);
    }

    #[test]
    fn of_very_many_names_the_oldest_are_forgotten() {
        let (mut memory, start) = (Memory::default(), Instant::now());
        for number in 0..REMEMBERED + 2 {
            let now = start + Duration::from_millis(number as u64);
            memory.record(&number.to_string(), &at("10.0.0.1"), now);
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
