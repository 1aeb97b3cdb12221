//! The rounds of one Configuration with a component handler. Rounds run one at a time, when devices of interest change
//! and at the handler's interval. Failed rounds are retried with backoff, and a handler that keeps failing is
//! quarantined.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use akri_model::configuration::Configuration;
use akri_model::device::{DeviceSet, Note};
use akri_model::discovery::{RoundError, Trigger};
use akri_model::grant::Grants;
use akri_model::property::Resolved;
use akri_model::resolve::DiscoveryInput;
use akri_model::retry::{Retry, jitter};
use akri_model::sources::{DiscoverySource, SourceEvent, SourceUpdate};
use akri_node::uevent::{Mark, Uevents};
use akri_sandbox::{Cache, Call, Rates};
use tokio::sync::watch::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};

use crate::handler_activity::HandlerUse;
use crate::missing_handler;
use crate::multicast_triggers::MulticastTriggers;
use crate::registry::{Handler, Handlers};
use crate::round::{RoundTriggers, call, details_json, round, ungranted, validate_details};
use crate::round_metrics::RoundMetrics;
use crate::round_rate_limit::RoundRateLimit;

/// The pause after a round, as a multiple of the processor time it took: the rounds of one Configuration take at most a
/// quarter of a processor.
const REST: u32 = 3;
/// The longest such pause.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Starts the task that runs the rounds of one Configuration; dropping what this returns ends it. Changes of the input and the
/// handlers start a round at once.
pub fn start(
    input: watch::Receiver<Arc<DiscoveryInput>>,
    handlers: watch::Receiver<Arc<Handlers>>,
    uevents: Uevents,
    events: mpsc::Sender<Box<SourceEvent>>,
    metrics: RoundMetrics,
) -> JoinSet<()> {
    let now = Instant::now();
    let runner = RoundTask {
        input,
        handlers,
        uevents,
        events,
        metrics,
        retry: Retry::default(),
        rate_limit: RoundRateLimit::new(now),
        multicast: MulticastTriggers::new(now),
        cache: HandlerCache::default(),
        valid: None,
        rates: Rates::default(),
        handler_use: None,
        last_failure: None,
        event_at: None,
    };
    JoinSet::from_iter([runner.run()])
}

struct RoundTask {
    input: watch::Receiver<Arc<DiscoveryInput>>,
    handlers: watch::Receiver<Arc<Handlers>>,
    /// The kernel events that start rounds before the interval ends.
    uevents: Uevents,
    events: mpsc::Sender<Box<SourceEvent>>,
    metrics: RoundMetrics,
    retry: Retry,
    rate_limit: RoundRateLimit,
    multicast: MulticastTriggers,
    cache: HandlerCache,
    /// The input of the last successful round.
    valid: Option<ValidInput>,
    rates: Rates,
    /// Reports the results of the handler.
    handler_use: Option<HandlerUse>,
    /// The error of the last round, if it failed.
    last_failure: Option<String>,
    /// The time of the kernel event that started the round.
    event_at: Option<std::time::Instant>,
}

/// The input of one round. A change of it starts the next round.
struct RoundInput {
    request: Arc<DiscoveryInput>,
    /// The handler named by the Configuration, if there is one.
    handler: Option<Arc<Handler>>,
    /// The position in the sequence of uevents at the start of the round.
    mark: Mark,
}

/// An input that the handler has found valid: it need not say so in each round.
struct ValidInput {
    request: Arc<DiscoveryInput>,
    handler: Arc<Handler>,
    /// The details as JSON, if they are YAML or JSON.
    details_json: Option<String>,
    /// The refusals of devices that the handler waits for.
    hidden: Vec<String>,
    triggers: RoundTriggers,
}

/// The trigger of the next round.
enum NextRound {
    /// A change of the input.
    Wait,
    /// A pause.
    After(Duration),
    /// The interval, or an event.
    Rest(RoundTriggers),
}

impl RoundTask {
    async fn run(mut self) {
        loop {
            let handlers = self.handlers.borrow_and_update().clone();
            let input = self.input(&handlers);
            let round = Box::pin(self.run_round(&input, &handlers)); // a task that rests is small
            let (update, next) = round.await;
            if self.is_superseded(&input) {
                self.retry.reset();
                continue;
            }
            let (source, generation) = (DiscoverySource::Component, input.request.configuration.generation);
            let event_at = self.event_at.take();
            if let Some(update) = update
                && self.events.send(Box::new(SourceEvent { source, generation, event_at, update })).await.is_err()
            {
                return;
            }
            let ended = Instant::now();
            self.rate_limit.round_ended(ended);
            let rested = ended + rest(self.rates.take_processor_time());
            if self.wait_for_trigger(next, input).await.is_err() {
                return;
            }
            sleep_until(rested).await;
        }
    }

    /// Returns whether the handler was changed during the round: its result may rest on grants that are withdrawn.
    fn is_superseded(&self, input: &RoundInput) -> bool {
        let handlers = self.handlers.borrow();
        handlers.ready.get(&input.request.configuration.handler) != input.handler.as_ref()
    }

    fn input(&mut self, handlers: &Handlers) -> RoundInput {
        let request = self.input.borrow_and_update().clone();
        RoundInput {
            handler: handlers.ready.get(&request.configuration.handler).cloned(),
            request,
            mark: self.uevents.mark(),
        }
    }

    async fn run_round(&mut self, input: &RoundInput, handlers: &Handlers) -> (Option<SourceUpdate>, NextRound) {
        let Configuration { key, handler: name, .. } = &*input.request.configuration;
        let Some(handler) = &input.handler else {
            self.handler_use = None;
            self.multicast.close();
            if !handlers.settled {
                return (None, NextRound::Wait);
            }
            let missing = missing_handler::describe(name, handlers);
            let update = match handlers.names.contains_key(name) {
                true => SourceUpdate::Failed(RoundError::NoHandler(missing)),
                false => SourceUpdate::NoComponent(missing),
            };
            return (Some(update), NextRound::Wait);
        };
        if self.handler_use.as_ref().is_none_or(|handler_use| handler_use.handler != handler.object) {
            self.handler_use = Some(HandlerUse::begin(&handler.activity, &handler.object, key));
        }
        let began = Instant::now();
        let round = self.validated_round(&input.request, handler).await;
        self.metrics.round(key, name, round.as_ref().err(), began.elapsed());
        match round {
            Ok((set, wake)) => {
                self.retry.succeeded();
                self.last_failure = None;
                self.multicast.subscribe(&handler.component, &wake.groups);
                self.handler_use.iter().for_each(|handler_use| handler_use.found(set.devices.len()));
                (Some(SourceUpdate::Found { set, shared: Some(handler.shared) }), NextRound::Rest(wake))
            }
            Err(error) => {
                self.multicast.close();
                let (error, pause) = self.retry.failed(error, Instant::now().into_std(), jitter());
                self.log_failure(&input.request.configuration, &error);
                self.handler_use.iter().for_each(|handler_use| handler_use.failed(&error));
                (Some(SourceUpdate::Failed(error)), pause.map_or(NextRound::Wait, NextRound::After))
            }
        }
    }

    /// Runs a round; the details are validated before it unless the last round had the same input and succeeded.
    async fn validated_round(
        &mut self,
        request: &Arc<DiscoveryInput>,
        handler: &Arc<Handler>,
    ) -> Result<(DeviceSet, RoundTriggers), RoundError> {
        let mut call = self.call(request, handler)?;
        let is_same = |valid: &ValidInput| (&valid.request, &valid.handler) == (request, handler);
        let valid = match self.valid.take().filter(is_same) {
            Some(valid) => valid,
            None => {
                call.details_json = details_json(&call.details).await;
                let triggers = validate_details(&handler.component, call.clone()).await?;
                let hidden = hidden_devices(&request.configuration, handler, &triggers);
                ValidInput {
                    request: Arc::clone(request),
                    handler: Arc::clone(handler),
                    details_json: call.details_json.clone(),
                    hidden,
                    triggers: RoundTriggers::new(&handler.rules, handler.interval, triggers),
                }
            }
        };
        call.details_json.clone_from(&valid.details_json);
        let notes = call.limits.notes;
        let mut set = round(handler, &request.configuration, call).await?;
        for message in valid.hidden.iter().cloned() {
            set.add_note(Note { origin: String::new(), reason: "NotGranted".to_owned(), message }, notes);
        }
        let triggers = valid.triggers.clone();
        self.valid = Some(valid);
        Ok((set, triggers))
    }

    fn call(&mut self, request: &DiscoveryInput, handler: &Handler) -> Result<Call, RoundError> {
        let properties = request.properties.clone().map_err(RoundError::PropertiesUnresolved)?;
        let cache = self.cache.of(&request.configuration, handler);
        let call = call(&request.configuration, None, &handler.rules, Resolved::clone(&properties), cache);
        Ok(Call { rates: self.rates.clone(), ..call })
    }

    /// Logs a failed round; a failure like the last one is not logged again.
    fn log_failure(&mut self, configuration: &Configuration, error: &RoundError) {
        let Configuration { key, handler, .. } = configuration;
        let failure = error.to_string();
        if self.last_failure.as_ref() == Some(&failure) {
            return debug!(configuration = %key, handler, "round failed: {failure}");
        }
        warn!(configuration = %key, handler, "round failed: {failure}");
        self.last_failure = Some(failure);
    }

    /// Waits for the next round. A change of the input starts it at once and resets the backoff. Events during the last
    /// round count, since that round may have missed them.
    async fn wait_for_trigger(&mut self, next: NextRound, input: RoundInput) -> Result<(), RecvError> {
        let name = &input.request.configuration.handler;
        let (rate_limit, multicast, handlers) = (&mut self.rate_limit, &mut self.multicast, &mut self.handlers);
        let (uevents, mark) = (&mut self.uevents, input.mark);
        let due = async {
            match next {
                NextRound::Wait => std::future::pending().await,
                NextRound::After(pause) => sleep(pause).await,
                NextRound::Rest(wake) => tokio::select! {
                    () = sleep(wake.interval) => {}
                    at = uevent_due(uevents, mark, &wake.subsystems, rate_limit) => return at,
                    () = multicast.triggered() => {}
                },
            }
            None
        };
        let other_handler = async {
            loop {
                handlers.changed().await?;
                if input.handler.is_none() || handlers.borrow().ready.get(name) != input.handler.as_ref() {
                    return Ok(());
                }
            }
        };
        let changed = tokio::select! {
            event_at = due => {
                self.event_at = event_at;
                return Ok(());
            }
            changed = self.input.changed() => changed,
            changed = other_handler => changed,
        };
        self.retry.reset();
        changed
    }
}

/// Returns the refusals of devices that a handler waits for: they are worth a warning of each round. Other triggers that are not granted
/// start no round, which is worth a line.
fn hidden_devices(configuration: &Configuration, handler: &Handler, triggers: &[Trigger]) -> Vec<String> {
    let mut hidden = Vec::new();
    for trigger in triggers {
        match (ungranted(&handler.rules.grants, trigger), trigger) {
            // Without any subsystem a query is refused, and says so itself.
            (Some(refusal), Trigger::Uevent(_)) if !handler.rules.grants.udev_subsystems.is_empty() => {
                hidden.push(refusal);
            }
            (Some(refusal), _) => {
                warn!(handler = configuration.handler, configuration = %configuration.key, "refused: {refusal}");
            }
            (None, _) => {}
        }
    }
    hidden
}

/// Returns the pause after a round that took so much processor time.
fn rest(processor_time: Duration) -> Duration {
    processor_time.saturating_mul(REST).min(LONGEST_REST)
}

/// Waits until a uevent starts a round, and returns when it came.
async fn uevent_due(
    uevents: &mut Uevents,
    mark: Mark,
    wake: &BTreeSet<String>,
    rate_limit: &mut RoundRateLimit,
) -> Option<std::time::Instant> {
    let at = uevents.after(mark, wake).await;
    sleep_until(rate_limit.start(Instant::now())).await;
    at
}

/// The handler's cache for a Configuration. It is emptied for another object, handler or component version, and for
/// other grants, since it may contain a secret or an address that was revoked.
#[derive(Default)]
struct HandlerCache {
    of: (String, String, String, Grants, usize),
    cache: Cache,
}

impl HandlerCache {
    fn of(&mut self, configuration: &Configuration, handler: &Handler) -> Cache {
        let digest = handler.component.digest().to_owned();
        let rules = &handler.rules;
        let bytes = rules.limits.cache_bytes; // what is over a lowered limit could not be shrunk
        let of = (configuration.uid.clone(), configuration.handler.clone(), digest, rules.grants.clone(), bytes);
        if self.of != of {
            *self = Self { of, cache: Cache::default() };
        }
        self.cache.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_are_bounded_whatever_processor_time_is_reported() {
        assert_eq!(rest(Duration::from_secs(2)), Duration::from_secs(6));
        assert_eq!(rest(Duration::MAX), LONGEST_REST);
    }
}
