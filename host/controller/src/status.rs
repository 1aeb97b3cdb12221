//! Writes the controller's part of the status of Configurations, Instances and DiscoveryHandlers: conditions and counts (rule 34), and only if
//! they say something new.

use std::collections::BTreeMap;
use std::time::Duration;

use akri_api::condition::{self, Condition, Truth};
use akri_api::configuration::BrokerSpec;
use akri_api::{BrokerCounts, Configuration, ConfigurationStatus, DiscoveryHandler, Instance, InstanceStatus};
use akri_brokers::{Counts, Reason, summarize_all};
use akri_kube::requests::{RequestResult, Requests};
use akri_model::instance::Online;
use akri_model::summary::{self, ConditionState, DeviceCounts};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;

use crate::object_index::{BrokerFleet, Look};
use crate::reconcile::{Again, Context, Unhurried};
use crate::views::{ConfigurationView, HandlerView, InstanceView};

/// The pause after a write of the status of a Configuration, which goes to the agents of all nodes, before another condition (rule 115).
const CONDITION: Duration = Duration::from_secs(5);

/// The pause before other counts, and nothing else.
const COUNTS: Duration = Duration::from_secs(30);

/// Writes the status of a Configuration. While its brokers are not known as this generation wants them, what is said of them stays, with
/// the generation of before. Returns the time until it may be written, if it has to wait (rule 115).
pub(crate) async fn write_configuration(
    context: &Context,
    view: &ConfigurationView,
    devices: DeviceCounts,
    (fleet, are_brokers_known, refused): (&BrokerFleet, bool, Option<Reason>),
    look: Look,
    discover_on: Vec<String>,
) -> RequestResult<Again> {
    let invalid = view.wanted.as_ref().err().map(String::as_str);
    let Look { unknown, awaiting, .. } = if invalid.is_some() { Look::default() } else { look };
    let mut states = summary::configuration(invalid, &view.problems, devices, unknown);
    let runs = |brokers: &BrokerSpec| brokers.broker_pod_spec.is_some() || brokers.broker_job_spec.is_some();
    let has_brokers = view.valid().is_some_and(|wanted| runs(&wanted.brokers));
    let brokers = has_brokers.then(|| counts(fleet.rollout.total()));
    let kept = (has_brokers && !are_brokers_known).then_some("BrokersReady");
    if has_brokers && are_brokers_known {
        states.push(summarize_all(&fleet.rollout, &fleet.problems, refused.as_ref()));
    }
    let (before, generation) = (view.status.conditions.clone(), Some(view.generation.number));
    let status = ConfigurationStatus {
        observed_generation: generation,
        instances: i64::try_from(devices.instances).unwrap_or(i64::MAX),
        conditions: condition::replaced(before, &states, kept, generation, Timestamp::now()),
        awaiting,
        discover_on,
        brokers,
        nodes: BTreeMap::new(), // those are the agents'
    };
    if view.status == status {
        return Ok(None);
    }
    let rest = context.objects.written.left(&view.key, Instant::now());
    if let Some(left) = left_of(rest, pause_before(&view.status, &status)) {
        return Ok(Some(left));
    }
    context.requests.apply_status::<Configuration>(&view.key, &view.uid, json!(status)).await?;
    context.objects.written.begin([view.key.clone()], COUNTS, Instant::now());
    Ok(None)
}

/// Returns what is left of a pause after a write, by what is left of the longest one.
fn left_of(rest: Option<Duration>, pause: Duration) -> Option<Duration> {
    rest?.checked_sub(COUNTS - pause).filter(|left| !left.is_zero())
}

/// Returns the pause after a write before this status: none before the first question or answer of a generation, or one after nothing was
/// known. What `Ready` and `BrokersReady` say while they hold is counts.
fn pause_before(before: &ConfigurationStatus, now: &ConfigurationStatus) -> Duration {
    let is_open = |ready: &Condition| ready.status == Truth::Unknown.as_str();
    if (before.observed_generation, &before.discover_on) != (now.observed_generation, &now.discover_on)
        || condition::find(&before.conditions, "Ready").is_none_or(is_open)
    {
        return Duration::ZERO;
    }
    let essence = |status: &ConfigurationStatus| {
        let of = |condition: &Condition| {
            let message = Some(&condition.message).filter(|_| condition.status != Truth::True.as_str());
            (condition.type_.clone(), condition.status.clone(), condition.reason.clone(), message.cloned())
        };
        (status.awaiting.clone(), status.conditions.iter().map(of).collect::<Vec<_>>())
    };
    if essence(before) == essence(now) { COUNTS } else { CONDITION }
}

/// Writes the status of a DiscoveryHandler.
pub(crate) async fn write_handler(requests: &Requests, view: &HandlerView, look: Look) -> RequestResult<()> {
    let Look { unknown, awaiting, .. } = look;
    let states = summary::handler(&view.problems, unknown);
    let generation = Some(view.generation.number);
    let conditions = condition::replaced(view.conditions.clone(), &states, None, generation, Timestamp::now());
    if (&view.conditions, &view.awaiting) == (&conditions, &awaiting) {
        return Ok(());
    }
    let status = json!({"conditions": conditions, "awaiting": awaiting});
    requests.apply_status::<DiscoveryHandler>(&view.key, &view.uid, status).await
}

/// Writes the status of an Instance. Without counts and condition of its brokers, as its Configuration is invalid or not known, those of
/// before stay. Returns the time until it may be written: where many are new (rule 116), one that says only that the device is there waits
/// for the others.
pub(crate) async fn write_instance(
    context: &Context,
    view: &InstanceView,
    online: Online,
    usage: Option<ConditionState>,
    of_brokers: Option<(Counts, Option<ConditionState>)>,
) -> RequestResult<Again> {
    let kept = of_brokers.is_none().then_some("BrokersReady");
    let (brokers, state) = match of_brokers {
        Some((total, state)) => (state.is_some().then(|| counts(total)), state),
        None => (view.status.brokers, None),
    };
    let state_of_device = summary::online_condition(online, "no node sees the device");
    let states: Vec<ConditionState> = [Some(state_of_device), usage, state].into_iter().flatten().collect();
    // Each claim makes another generation, of which the conditions say nothing new.
    let conditions = condition::replaced(view.status.conditions.clone(), &states, kept, None, Timestamp::now());
    let status = InstanceStatus { brokers, conditions, ..InstanceStatus::default() };
    if view.status == status {
        return Ok(None);
    }
    let is_plain = online == Online::True && status.brokers.is_none() && status.conditions.len() == 1;
    if view.status.conditions.is_empty()
        && is_plain
        && let Some(left) =
            context.unhurried.lock().wait(&Unhurried::FirstStatus(view.key.clone()), Instant::now().into_std())
    {
        return Ok(Some(left));
    }
    context.requests.apply_status::<Instance>(&view.key, &view.uid, json!(status)).await.map(|()| None)
}

fn counts(counts: Counts) -> BrokerCounts {
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    BrokerCounts { desired: number(counts.desired), running: number(counts.running) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(generation: i64, instances: i64, ready: (Truth, &str)) -> ConfigurationStatus {
        let states = [ConditionState::new("Ready", ready.0, ready.1, &format!("{instances} devices"))];
        ConfigurationStatus {
            observed_generation: Some(generation),
            instances,
            conditions: condition::replaced(Vec::new(), &states, None, Some(generation), Timestamp::now()),
            ..ConfigurationStatus::default()
        }
    }

    #[test] // rule 115
    fn counts_wait_longer_than_conditions_and_answers() {
        let (pending, good, bad) =
            ((Truth::Unknown, "Pending"), (Truth::True, "Discovered"), (Truth::False, "NoHandler"));
        for (before, now, expected) in [
            (ConfigurationStatus::default(), status(1, 0, pending), Duration::ZERO),
            (status(1, 0, pending), status(1, 2, good), Duration::ZERO),
            (status(1, 2, good), status(2, 2, good), Duration::ZERO),
            (status(1, 2, good), status(1, 3, good), COUNTS),
            (status(1, 2, good), status(1, 2, bad), CONDITION),
            (status(1, 2, bad), status(1, 3, bad), CONDITION),
        ] {
            assert_eq!(pause_before(&before, &now), expected, "{before:?} {now:?}");
        }
    }

    #[test] // rule 115
    fn conditions_wait_5_s_and_counts_30_s() {
        for (pause, since_write, expected) in [
            (Duration::ZERO, Some(0), None),
            (CONDITION, None, None),
            (CONDITION, Some(0), Some(5)),
            (CONDITION, Some(4), Some(1)),
            (CONDITION, Some(5), None),
            (COUNTS, None, None),
            (COUNTS, Some(4), Some(26)),
            (COUNTS, Some(29), Some(1)),
            (COUNTS, Some(30), None),
        ] {
            let rest = since_write.map(|since| Duration::from_secs(30 - since));
            assert_eq!(left_of(rest, pause), expected.map(Duration::from_secs), "{pause:?} after {since_write:?} s");
        }
    }
}
