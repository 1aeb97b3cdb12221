//! Reconciles an Instance: its brokers, their Service, its status, and what deleted nodes left in it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_api::document::pointer_token;
use akri_api::instance::command_to_free;
use akri_api::{Instance, condition};
use akri_brokers::Owner;
use akri_kube::events::ObjectEvent;
use akri_kube::json_patch::{add, test};
use akri_kube::requests::{RequestError, RequestResult};
use akri_model::agent_lease::GOOD_FOR;
use akri_model::events::DeviceEvent;
use akri_model::instance_labels::node_labels;
use akri_model::names::Key;
use akri_model::summary::{ConditionState, Truth};
use akri_model::text::clean;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::Instant;
use tracing::info;

use super::services::reconcile_service;
use super::{Again, Context, Unhurried, brokers, earlier, job};
use crate::node_cleanup::{self, AbsentNodes};
use crate::status::write_instance;
use crate::upstream::remove_finalizers;
use crate::views::InstanceView;
use crate::work::Work;

/// Reasons of `BrokersReady` and `UsageKnown` that a person has to do something about.
const NOTABLE: [&str; 7] =
    ["Backoff", "Crashing", "NameTaken", "NodeMissing", "Refused", "RolloutStopped", "UnreadableUsage"];

/// Most nodes of an Instance that they join without it being read.
const FEW: usize = 8;

/// The pause after nodes were joined to an Instance, in which more of them gather.
const JOIN_PAUSE: Duration = Duration::from_secs(4);

pub(super) async fn reconcile(context: &Context, work: &Work, key: &Key) -> RequestResult<Again> {
    let Some(view) = context.objects.instance(key) else { return Ok(None) };
    let mut absent = node_cleanup::absent_nodes(context, &view.mentions()).await?;
    if node_cleanup::clean_up::<Instance>(context, work, &mut absent).await? {
        return Ok(absent.again); // the watch shows what is left
    }
    let taken_over = take_over(context, &view).await?;
    // What fails there is tried again, and keeps nobody's broker waiting.
    let unjoined = write_nodes(context, &view).await;
    let again = serve_or_delete(context, &view, &absent).await?;
    Ok([absent.again, taken_over, again, unjoined?].into_iter().flatten().min())
}

/// Deletes an Instance that nobody has any more, or runs its brokers.
async fn serve_or_delete(context: &Context, view: &InstanceView, absent: &AbsentNodes) -> RequestResult<Again> {
    let abandoned = node_cleanup::abandoned_for(view);
    if abandoned.is_some_and(|left| left.is_zero()) {
        let why = "deleting an Instance that no node sees and nobody uses";
        node_cleanup::delete_if(&context.requests, &view.key, why, |live| live.is_abandoned()).await?;
        return Ok(None);
    }
    if view.is_deleting {
        return Ok(None);
    }
    let unadopted = context
        .objects
        .owner(view)
        .and_then(|owner| owner.valid().and_then(|_| context.objects.unadopted_for(view, &owner, Instant::now())));
    if unadopted.is_some_and(|left| left.is_zero()) {
        let why = "deleting an Instance of upstream Akri whose device no agent finds, or finds by another id";
        let essence =
            |of: &InstanceView| (of.uid.clone(), of.unadopted.is_some(), of.used_by.clone(), of.unreadable.clone());
        node_cleanup::delete_if(&context.requests, &view.key, why, |live| essence(live) == essence(view)).await?;
        return Ok(None);
    }
    let usage = usage_problem(view, &absent.missing);
    record_event(context, view, usage.as_ref());
    let again = serve(context, view, usage).await?;
    Ok([again, abandoned, unadopted].into_iter().flatten().min())
}

/// Takes an Instance over from upstream Akri, whose finalizers go once its Job is recorded: so they wait for a valid Configuration.
async fn take_over(context: &Context, view: &InstanceView) -> RequestResult<Again> {
    let left = context.objects.known_nodes(&view.finalizers);
    let owner = context.objects.owner(view).filter(|_| !left.is_empty() && !view.is_deleting);
    if owner.as_ref().is_some_and(|owner| owner.wanted.is_err()) {
        return Ok(None);
    }
    let ran = job::run_by_upstream(context, view, owner.as_deref());
    remove_finalizers::<Instance>(context, &view.key, &view.uid, left, ran).await
}

/// Writes what nodes need that share the Instance, in one write for all, since each goes to all of them (rule 113): entries of those that
/// want to join (rule 23), and labels, also of those that use it and don't see the device any more: usage was carried over from an earlier
/// Instance, and their agents give back what no container uses (rule 103). Returns the time until the next write. An Instance without
/// nodes is left to a node.
async fn write_nodes(context: &Context, view: &InstanceView) -> RequestResult<Again> {
    let is_served = view.shared && !view.is_deleting && context.objects.owner(view).is_some();
    let (joining, users) = lacking(context, view);
    let now = Timestamp::now().as_second();
    let relabel_in = view.relabel_at.map(|at| at.saturating_sub(now)).filter(|_| is_served);
    if !is_served || joining.is_empty() && users.is_empty() && relabel_in.is_none_or(|left| left > 0) {
        return Ok(relabel_in.map(|left| Duration::from_secs(left.unsigned_abs())));
    }
    if let Some(left) = wait_for_others(context, &view.key) {
        return Ok(Some(left));
    }
    context.objects.joined.begin([view.key.clone()], JOIN_PAUSE, Instant::now());
    let are_few = view.has_node_labels && view.nodes.len() + joining.len() <= FEW;
    if are_few && users.is_empty() && join_few(context, view, &joining).await? {
        info!(instance = %view.key, joined = joining.len(), "wrote the few nodes that share it");
        return Ok(None);
    }
    let Some(live) = context.requests.get::<Instance>(&view.key).await? else { return Ok(None) };
    let (version, before) = (live.resource_version(), live.labels().clone());
    // Nodes and labels are listed there once more, by whom they are set. What was applied has to stay.
    let mut managers = live.metadata.managed_fields.clone().unwrap_or_default();
    managers.retain(|entry| entry.operation.as_deref() == Some("Apply"));
    let managers = if managers.is_empty() { json!([{}]) } else { json!(managers) };
    let Some(live) = InstanceView::read(live).filter(|live| live.uid == view.uid) else { return Ok(None) };
    let (joining, users) = lacking(context, &live);
    let nodes: Vec<&String> = live.nodes.iter().chain(&joining).collect();
    let labels = node_labels(&before, nodes.len(), joining.iter().map(String::as_str).chain(users), now);
    if joining.is_empty() && labels == before {
        return Ok(None); // the watch is behind
    }
    let patch = json!([
        test("/metadata/resourceVersion", version),
        add("/metadata/managedFields", managers),
        add("/metadata/labels", labels),
        add("/spec/nodes", nodes),
    ]);
    context.requests.json_patch::<Instance>(&view.key, patch).await?;
    info!(instance = %view.key, joined = joining.len(), "wrote the nodes that share it");
    Ok(None)
}

/// Joins nodes to an Instance of few nodes without reading it: what `managedFields` says of few may stay. Returns whether the Instance was
/// as the watch has shown it.
async fn join_few(context: &Context, view: &InstanceView, joining: &[String]) -> RequestResult<bool> {
    let nodes = view.nodes.len() + joining.len();
    let now = 0; // only labels of many nodes have a time
    let labels = node_labels(&BTreeMap::new(), nodes, joining.iter().map(String::as_str), now);
    let mut patch = vec![test("/metadata/uid", &view.uid), test("/spec/nodes", &view.nodes)];
    patch.extend(joining.iter().map(|node| add("/spec/nodes/-", node)));
    patch.extend(labels.iter().map(|(label, value)| add(&format!("/metadata/labels/{}", pointer_token(label)), value)));
    match context.requests.json_patch::<Instance>(&view.key, json!(patch)).await {
        Err(RequestError::Conflict(_)) => Ok(false),
        result => result.map(|_| true),
    }
}

/// Returns the time until the nodes of an Instance may be written: more of them gather, and others come first.
fn wait_for_others(context: &Context, key: &Key) -> Again {
    let now = Instant::now();
    let joins = Unhurried::Join(key.clone());
    context.objects.joined.left(key, now).or_else(|| context.unhurried.lock().wait(&joins, now.into_std()))
}

/// Returns the nodes that want to join an Instance, and those that use it and don't watch it.
fn lacking<'a>(context: &Context, view: &'a InstanceView) -> (Vec<String>, BTreeSet<&'a str>) {
    let joining = if view.nodes.is_empty() { Vec::new() } else { context.objects.joining(view) };
    (joining, context.objects.known_nodes(&view.unlabelled))
}

/// Returns the condition of an Instance with slots that may have no user and that nobody may claim (rule 100, rule 107).
fn usage_problem(view: &InstanceView, missing: &BTreeSet<String>) -> Option<ConditionState> {
    let state = |reason, message: String| Some(ConditionState::new("UsageKnown", Truth::False, reason, &message));
    if let Some((slot, text)) = view.unreadable.first_key_value() {
        let message = format!(
            "{} slots name no node as their user, the first of them is {slot}: '{}'; once no container uses it, free it: {}",
            view.unreadable.len(),
            clean(text, 64),
            command_to_free(&view.key, slot),
        );
        return state("UnreadableUsage", message);
    }
    let users: Vec<&str> = view.used_by.keys().map(String::as_str).filter(|node| missing.contains(*node)).collect();
    let message = format!(
        "there is no Node {}, whose slots stay its own until its agent's Lease has not been renewed for {} s",
        users.join(", "),
        GOOD_FOR.as_secs(),
    );
    if users.is_empty() { None } else { state("NodeMissing", message) }
}

/// Records a condition that a person has to do something about, once. The condition lasts as long as it holds.
fn record_event(context: &Context, view: &InstanceView, state: Option<&ConditionState>) {
    let Some(state) = state else { return };
    let before = condition::find(&view.status.conditions, state.kind).map(|condition| condition.reason.as_str());
    if let Some(reason) = new_notable_reason(before, state) {
        context.events.record(ObjectEvent::new("Instance", &view.key, &view.uid, reason, state.message.clone()));
    }
}

/// Runs what its Configuration wants for it. The status says how that went, before a failure is retried.
async fn serve(context: &Context, view: &InstanceView, usage: Option<ConditionState>) -> RequestResult<Again> {
    let (owner, online) = (context.objects.owner(view), context.objects.online(view));
    if let Some(event) = DeviceEvent::of_online(view.last_online(), online) {
        context.events.record(ObjectEvent::of_device(view.key.clone(), view.uid.clone(), event));
    }
    let Some(wanted) = owner.as_ref().and_then(|owner| owner.valid()) else {
        return write_instance(context, view, online, usage, None).await;
    };
    let generation = owner.as_ref().map(|owner| owner.generation.number).unwrap_or_default();
    let owned = context.objects.owned(&Work::Instance(view.key.clone()));
    let mut outcome = brokers::reconcile(context, view, wanted, generation, &owned).await;
    let (counts, ..) = outcome.summary();
    let itself = Owner { kind: "Instance", name: &view.key.name, uid: &view.uid };
    let (namespace, spec) = (&view.key.namespace, wanted.instance_service.as_ref());
    if let Err(error) = reconcile_service(&context.requests, namespace, itself, spec, counts, &owned.services).await {
        outcome.fail(error);
    }
    let (counts, state) = outcome.summary();
    let problem = state.clone().filter(|state| state.truth == Truth::False);
    context.objects.count_brokers(view, generation, counts, problem);
    record_event(context, view, state.as_ref());
    let unwritten = write_instance(context, view, online, usage, Some((counts, state))).await?;
    outcome.error.map_or(Ok(earlier(outcome.again, unwritten)), Err)
}

/// Returns the reason of a condition that is worth an Event.
fn new_notable_reason(before: Option<&str>, state: &ConditionState) -> Option<&'static str> {
    let is_new = state.truth == Truth::False && before != Some(&state.reason);
    NOTABLE.into_iter().find(|reason| is_new && *reason == state.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_reasons_to_act_are_events() {
        let state = |truth, reason: &str| ConditionState::new("BrokersReady", truth, reason, "m");
        let reason = |before, state: &ConditionState| new_notable_reason(before, state);
        assert_eq!(reason(None, &state(Truth::False, "Refused")), Some("Refused"));
        assert_eq!(reason(Some("Pending"), &state(Truth::False, "Backoff")), Some("Backoff"));
        assert_eq!(reason(Some("Backoff"), &state(Truth::False, "Backoff")), None, "it is known");
        assert_eq!(reason(None, &state(Truth::False, "Pending")), None, "it is a matter of time");
        assert_eq!(reason(Some("Backoff"), &state(Truth::True, "Running")), None);
    }
}
