//! Runs the rounds of one Configuration with a component handler: one at a time, when something happened to devices it
//! looks for, and at the handler's interval as a safety net. After a failure it waits, and leaves a handler that only fails
//! alone for longer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use akri_model::configuration::Configuration;
use akri_model::discovery::RoundError;
use akri_model::grant::Grants;
use akri_model::property::Resolved;
use akri_model::retry::{Next, Retry};
use akri_sandbox::{Cache, Call};
use tokio::sync::watch::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use super::ears::Ears;
use super::pace::Pace;
use super::properties::{Answer, Properties};
use super::registry::{Handler, Handlers};
use super::round::{Wake, call, round};
use super::standing::User;
use super::{Outcome, dice};
use crate::metrics::Metrics;
use crate::uevent::{Mark, Uevents};

/// The rounds of one Configuration; they stop when this is dropped.
#[derive(Debug)]
pub struct Rounds {
    task: JoinHandle<()>,
}

impl Rounds {
    /// Starts them. Changes of the Configuration, its properties and the handlers take effect with the next round, at once.
    pub fn start(
        configuration: watch::Receiver<Arc<Configuration>>,
        handlers: watch::Receiver<Arc<Handlers>>,
        properties: Properties,
        outcomes: mpsc::Sender<Outcome>,
        metrics: Metrics,
    ) -> Self {
        let now = Instant::now();
        let runner = Runner {
            configuration,
            handlers,
            properties,
            outcomes,
            metrics,
            retry: Retry::default(),
            pace: Pace::new(now),
            ears: Ears::new(now),
            memory: Memory::default(),
            user: None,
        };
        Self { task: tokio::spawn(runner.run()) }
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Runner {
    configuration: watch::Receiver<Arc<Configuration>>,
    handlers: watch::Receiver<Arc<Handlers>>,
    properties: Properties,
    outcomes: mpsc::Sender<Outcome>,
    metrics: Metrics,
    retry: Retry,
    pace: Pace,
    ears: Ears,
    memory: Memory,
    /// Tells how the handler is doing.
    user: Option<User>,
}

/// What one turn was about. Only if some of it changes is there another one before its time.
struct Subject {
    configuration: Arc<Configuration>,
    /// The handler of the name the Configuration gives, if there is one.
    handler: Option<Arc<Handler>>,
    properties: Answer,
    uevents: Uevents,
    /// When it began.
    mark: Mark,
}

/// What one turn came to.
enum Turn {
    /// Only a change can help.
    Wait,
    /// Again after a while.
    After(Duration),
    /// Again after the interval, or when something happens.
    Rest(Wake),
}

impl Runner {
    async fn run(mut self) {
        loop {
            let handlers = self.handlers.borrow_and_update().clone();
            let subject = self.subject(&handlers);
            let (outcome, turn) = self.turn(&subject, &handlers).await;
            if let Some(outcome) = outcome
                && self.outcomes.send(outcome).await.is_err()
            {
                return;
            }
            self.pace.round_ended(Instant::now());
            if self.pause(turn, subject).await.is_err() {
                return;
            }
        }
    }

    fn subject(&mut self, handlers: &Handlers) -> Subject {
        let configuration = self.configuration.borrow_and_update().clone();
        Subject {
            handler: handlers.ready.get(&configuration.handler).cloned(),
            properties: self.properties.of(&configuration),
            configuration,
            uevents: handlers.uevents.clone(),
            mark: handlers.uevents.mark(),
        }
    }

    async fn turn(&mut self, subject: &Subject, handlers: &Handlers) -> (Option<Outcome>, Turn) {
        let Some(handler) = &subject.handler else {
            self.user = None;
            self.ears.close();
            let missing = || Outcome::NoHandler(describe_missing(&subject.configuration, handlers));
            return (handlers.settled.then(missing), Turn::Wait);
        };
        if self.user.as_ref().is_none_or(|user| user.handler() != handler.object) {
            self.user = Some(handler.standings.begin(&handler.object, &subject.configuration.key));
        }
        let began = Instant::now();
        let round = match &subject.properties {
            Ok(properties) => round(handler, self.call(subject, handler, properties)).await,
            Err(unresolved) => Err(RoundError::PropertiesUnresolved(unresolved.clone())),
        };
        self.metrics.round(&subject.configuration.handler, round.as_ref().err(), began.elapsed());
        match round {
            Ok((set, wake)) => {
                self.retry.reset();
                self.ears.tune(&handler.host, &wake.groups);
                self.tell(|user| user.found(set.devices.len()));
                (Some(Outcome::Found { set, shared: handler.shared }), Turn::Rest(wake))
            }
            Err(error) => {
                self.ears.close();
                let (error, turn) = self.after_failure(error);
                let (key, name) = (&subject.configuration.key, &subject.configuration.handler);
                warn!(configuration = %key, handler = name, "round failed: {error}");
                self.tell(|user| user.failed(&error));
                (Some(Outcome::Failed(Arc::new(error))), turn)
            }
        }
    }

    fn call(&mut self, subject: &Subject, handler: &Handler, properties: &Resolved) -> Call {
        let cache = self.memory.of(&subject.configuration, handler);
        call(&subject.configuration, &handler.rules, properties.clone(), cache)
    }

    fn tell(&self, tell: impl FnOnce(&User)) {
        if let Some(user) = &self.user {
            tell(user);
        }
    }

    /// What is told of a failed round, and when the next one is.
    fn after_failure(&mut self, error: RoundError) -> (RoundError, Turn) {
        match self.retry.failed(&error, dice()) {
            Next::Wait => (error, Turn::Wait),
            Next::After(pause) => (error, Turn::After(pause)),
            Next::Quarantine { faults, pause } => {
                (RoundError::Quarantined { faults, last: Box::new(error), pause }, Turn::After(pause))
            }
        }
    }

    /// Waits for the next turn. A change starts it at once and makes up for all failures. What happened to devices while
    /// the last round ran is not in it for sure.
    async fn pause(&mut self, turn: Turn, subject: Subject) -> Result<(), RecvError> {
        let (configuration, name) = (&*subject.configuration, &subject.configuration.handler);
        let (pace, ears, handlers) = (&mut self.pace, &mut self.ears, &mut self.handlers);
        let (mut uevents, mark) = (subject.uevents, subject.mark);
        let due = async {
            match turn {
                Turn::Wait => std::future::pending().await,
                Turn::After(pause) => sleep(pause).await,
                Turn::Rest(wake) => tokio::select! {
                    () = sleep(wake.interval) => {}
                    () = woken(&mut uevents, mark, &wake.subsystems, pace) => {}
                    () = ears.heard() => {}
                },
            }
        };
        let other_handler = async {
            loop {
                handlers.changed().await?;
                if subject.handler.is_none() || handlers.borrow().ready.get(name) != subject.handler.as_ref() {
                    return Ok(());
                }
            }
        };
        let changed = tokio::select! {
            () = due => return Ok(()),
            changed = self.configuration.changed() => changed,
            changed = other_handler => changed,
            changed = self.properties.other_than(&subject.properties, configuration) => changed.map(drop),
        };
        self.retry.reset();
        changed
    }
}

/// Waits until an event is to start a round.
async fn woken(uevents: &mut Uevents, mark: Mark, wake: &BTreeSet<String>, pace: &mut Pace) {
    uevents.after(mark, wake).await;
    sleep_until(pace.start(Instant::now())).await;
}

/// What a handler remembers of a Configuration. Another object, handler or version of it begins with nothing; so does one
/// with other grants, which might remember a secret, or an address, that was taken from it.
#[derive(Default)]
struct Memory {
    of: (String, String, String, Grants),
    cache: Cache,
}

impl Memory {
    fn of(&mut self, configuration: &Configuration, handler: &Handler) -> Cache {
        let digest = handler.component.digest().to_owned();
        let of = (configuration.uid.clone(), configuration.handler.clone(), digest, handler.rules.grants.clone());
        if self.of != of {
            *self = Self { of, cache: Cache::default() };
        }
        self.cache.clone()
    }
}

fn describe_missing(configuration: &Configuration, handlers: &Handlers) -> String {
    let ready: Vec<&str> = handlers.ready.keys().map(String::as_str).collect();
    let there_are = if ready.is_empty() { "none is ready".to_owned() } else { format!("ready: {}", ready.join(", ")) };
    let refused: Vec<String> = handlers.refused.iter().map(|(object, why)| format!("; {object}: {why}")).collect();
    format!("no discovery handler '{}' ({there_are}{})", configuration.handler, refused.concat())
}
