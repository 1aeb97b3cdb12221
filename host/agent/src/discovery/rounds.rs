//! Runs the rounds of one Configuration with a component handler: one at a time, when something happened to devices it
//! looks for, and at the handler's interval as a safety net; with backoff after a failure.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use akri_api::document::Document;
use akri_model::configuration::Configuration;
use akri_model::discovery::{RoundError, Trigger};
use akri_model::property::Resolved;
use akri_sandbox::{Cache, Call};
use tokio::sync::watch::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};

use super::Outcome;
use super::admission::admit;
use super::pace::Pace;
use super::properties::{Answer, Properties};
use super::registry::{Handler, Handlers};
use crate::uevent::{Mark, Uevents};

/// First pause after a failed round; it doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// Longest pause after failed rounds.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Shortest pause between rounds, whatever a handler or its details say.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The rounds of one Configuration; they stop when this is dropped.
#[derive(Debug)]
pub struct Rounds {
    task: JoinHandle<()>,
}

impl Rounds {
    /// Starts them. Changes of the Configuration and of the handlers take effect with the next round, at once.
    pub fn start(
        configuration: watch::Receiver<Arc<Configuration>>,
        handlers: watch::Receiver<Arc<Handlers>>,
        properties: Properties,
        outcomes: mpsc::Sender<Outcome>,
    ) -> Self {
        let pace = Pace::new(Instant::now());
        let runner = Runner { configuration, handlers, properties, outcomes, failures: 0, pace };
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
    /// Failed rounds in a row.
    failures: u32,
    pace: Pace,
}

/// What one turn came to.
enum Turn {
    /// Only a change can help.
    Wait,
    /// Again after a while.
    After(Duration),
    /// Again after the interval, or when something happens in one of the subsystems.
    Rest { interval: Duration, wake: BTreeSet<String> },
}

impl Runner {
    async fn run(mut self) {
        loop {
            let configuration = self.configuration.borrow_and_update().clone();
            let handlers = self.handlers.borrow_and_update().clone();
            let mark = handlers.uevents.mark();
            let answer = self.properties.of(&configuration);
            let (outcome, turn) = self.turn(&configuration, &handlers, &answer).await;
            if let Some(outcome) = outcome
                && self.outcomes.send(outcome).await.is_err()
            {
                return;
            }
            self.pace.round_ended(Instant::now());
            let used = handlers.ready.get(&configuration.handler).cloned();
            let uevents = handlers.uevents.clone();
            if self.pause(turn, (uevents, mark), (&configuration, &answer), used).await.is_err() {
                return;
            }
        }
    }

    async fn turn(
        &mut self,
        configuration: &Configuration,
        handlers: &Handlers,
        answer: &Answer,
    ) -> (Option<Outcome>, Turn) {
        let Some(handler) = handlers.ready.get(&configuration.handler) else {
            let missing = handlers.settled.then(|| Outcome::NoHandler(describe_missing(configuration, handlers)));
            return (missing, Turn::Wait);
        };
        let properties = match answer {
            Ok(properties) => properties,
            Err(unresolved) => {
                let error = RoundError::PropertiesUnresolved(unresolved.clone());
                return (Some(Outcome::Failed(Arc::new(error))), Turn::Wait);
            }
        };
        match round(configuration, handler, properties).await {
            Ok((outcome, triggers)) => {
                self.failures = 0;
                let (interval, wake) = (interval(handler, &triggers), wake(handler, triggers));
                (Some(outcome), Turn::Rest { interval, wake })
            }
            Err(error) => {
                warn!(configuration = %configuration.key, handler = configuration.handler, "round failed: {error}");
                let turn = self.after_failure(&error);
                (Some(Outcome::Failed(Arc::new(error))), turn)
            }
        }
    }

    fn after_failure(&mut self, error: &RoundError) -> Turn {
        if matches!(error, RoundError::InvalidDetails(_)) {
            return Turn::Wait;
        }
        let backoff = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(10)).min(MAX_BACKOFF);
        self.failures = self.failures.saturating_add(1);
        Turn::After(backoff)
    }

    /// Waits for the next turn; a change of the Configuration or of its handler starts it at once. What happened since
    /// the mark, while the last round ran, is not in it for sure.
    async fn pause(
        &mut self,
        turn: Turn,
        (mut uevents, mark): (Uevents, Mark),
        (configuration, answer): (&Configuration, &Answer),
        used: Option<Arc<Handler>>,
    ) -> Result<(), RecvError> {
        let pace = &mut self.pace;
        let due = async {
            match turn {
                Turn::Wait => std::future::pending().await,
                Turn::After(pause) => sleep(pause).await,
                Turn::Rest { interval, wake } => tokio::select! {
                    () = sleep(interval) => {}
                    () = woken(&mut uevents, mark, &wake, pace) => {}
                },
            }
        };
        let handlers = &mut self.handlers;
        let other_handler = async {
            loop {
                handlers.changed().await?;
                if used.is_none() || handlers.borrow().ready.get(&configuration.handler) != used.as_ref() {
                    return Ok(());
                }
            }
        };
        tokio::select! {
            () = due => Ok(()),
            changed = self.configuration.changed() => changed.inspect(|()| self.failures = 0),
            changed = other_handler => changed.inspect(|()| self.failures = 0),
            changed = self.properties.other_than(answer, configuration) => changed.map(|_| self.failures = 0),
        }
    }
}

/// Waits until an event is to start a round.
async fn woken(uevents: &mut Uevents, mark: Mark, wake: &BTreeSet<String>, pace: &mut Pace) {
    uevents.after(mark, wake).await;
    sleep_until(pace.start(Instant::now())).await;
}

/// Checks the details and runs one round; also says what should start the next.
async fn round(
    configuration: &Configuration,
    handler: &Handler,
    properties: &Resolved,
) -> Result<(Outcome, Vec<Trigger>), RoundError> {
    let call = call(configuration, handler, properties.clone());
    let triggers = handler.component.validate(call.clone()).await?;
    let set = handler.component.discover(call).await?;
    debug!(configuration = %configuration.key, devices = set.devices.len(), "round done");
    let (grants, limits) = (handler.rules.grants.clone(), handler.rules.limits.clone());
    let admitted = tokio::task::spawn_blocking(move || admit(set, &grants, &limits)).await;
    let set = admitted.map_err(|error| RoundError::Unavailable(error.to_string()))?;
    Ok((Outcome::Found { set, shared: handler.shared }, triggers))
}

/// What a component is called with for a Configuration.
pub fn call(configuration: &Configuration, handler: &Handler, properties: Resolved) -> Call {
    Call {
        subject: configuration.key.to_string(),
        details: configuration.details.clone(),
        details_json: as_json(&configuration.details),
        properties,
        grants: handler.rules.grants.clone(),
        limits: handler.rules.limits.clone(),
        cache: Cache::default(),
        log: None,
    }
}

/// Details as JSON, so that handlers need no YAML parser. Empty details are an empty object.
fn as_json(details: &str) -> Option<String> {
    let documents = Document::parse_all(details).ok()?;
    match documents.as_slice() {
        [] => Some("{}".to_owned()),
        [document] => Some(document.value.to_string()),
        _ => None,
    }
}

/// The object's interval wins over the details', and these over the component's own.
fn interval(handler: &Handler, triggers: &[Trigger]) -> Duration {
    let from_details = triggers.iter().find_map(|trigger| match trigger {
        Trigger::Interval(interval) => Some(*interval),
        _ => None,
    });
    handler.rules.interval.or(from_details).unwrap_or(handler.interval).max(MIN_INTERVAL)
}

/// The subsystems whose events start a round. Who may not see devices at all is not told that something happens to them.
fn wake(handler: &Handler, triggers: Vec<Trigger>) -> BTreeSet<String> {
    let may_look = !handler.rules.grants.udev_subsystems.is_empty();
    let subsystem = |trigger| if let Trigger::Uevent(subsystem) = trigger { Some(subsystem) } else { None };
    triggers.into_iter().filter_map(subsystem).filter(|_| may_look).collect()
}

fn describe_missing(configuration: &Configuration, handlers: &Handlers) -> String {
    let ready: Vec<&str> = handlers.ready.keys().map(String::as_str).collect();
    let there_are = if ready.is_empty() { "none is ready".to_owned() } else { format!("ready: {}", ready.join(", ")) };
    let refused: Vec<String> = handlers.refused.iter().map(|(object, why)| format!("; {object}: {why}")).collect();
    format!("no discovery handler '{}' ({there_are}{})", configuration.handler, refused.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_reach_the_handler_as_json() {
        for (details, json) in [
            ("descriptions:\n- a\n", Some(r#"{"descriptions":["a"]}"#)),
            (r#"{"a": 1}"#, Some(r#"{"a":1}"#)),
            ("", Some("{}")),
            ("a: [", None),
            ("a: 1\n---\nb: 2\n", None),
        ] {
            assert_eq!(as_json(details).as_deref(), json, "{details}");
        }
    }
}
