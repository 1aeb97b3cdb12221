//! Reconciles an Instance: its brokers, their Service, its status, and what nodes that are gone have left of it.

use akri_api::{Instance, condition};
use akri_brokers::{INSTANCE_LABEL, Owner, instance_service_name};
use akri_model::names::Key;

use super::brokers::{self, Outcome};
use super::services::{Front, reconcile_service};
use super::{Again, Context, earlier};
use crate::node_cleanup;
use crate::queue::Work;
use crate::requests::RequestError;
use crate::status::{BrokerStatus, write_instance};
use crate::views::{InstanceView, Wanted};
use crate::world::Owned;

pub(super) async fn reconcile(context: &Context, key: &Key) -> Result<Again, RequestError> {
    let Some(view) = context.world.instance(key) else { return Ok(None) };
    if node_cleanup::clean_up::<Instance>(context, key, &view.mentions()).await? {
        return Ok(None); // the watch shows what is left
    }
    let left = context.world.known_nodes(&view.finalizers);
    context.upstream.remove::<Instance>(&context.requests, key, &view.uid, left).await?;
    let abandoned = node_cleanup::abandoned_for(&view);
    if abandoned.is_some_and(|left| left.is_zero()) {
        node_cleanup::delete_abandoned(&context.requests, key).await?;
        return Ok(None);
    }
    if view.is_deleting {
        return Ok(None);
    }
    let again = serve(context, &view).await?;
    Ok(earlier(again, abandoned))
}

/// Runs what its Configuration wants for it. The status says how that went, before a failure is retried.
async fn serve(context: &Context, view: &InstanceView) -> Result<Again, RequestError> {
    let owner = context.world.owner(view);
    let Some(wanted) = owner.as_ref().and_then(|owner| owner.valid()) else {
        write_instance(&context.requests, view, BrokerStatus::Unchanged).await?;
        return Ok(None);
    };
    let generation = owner.as_ref().map(|owner| owner.generation).unwrap_or_default();
    let owned = context.world.owned(&Work::Instance(view.key.clone()));
    let mut outcome = brokers::reconcile(context, view, wanted, generation, &owned).await;
    if let Err(error) = reconcile_front(context, view, wanted, &outcome, &owned).await {
        outcome.fail(error);
    }
    let (counts, verdict, problem) = outcome.summary();
    context.world.count_brokers(view, counts, problem);
    let before = condition::find(&view.conditions, "BrokersReady").map(|condition| condition.reason.as_str());
    context.events.record(&view.key, &view.uid, before, verdict.as_ref());
    write_instance(&context.requests, view, BrokerStatus::Known(counts, verdict)).await?;
    outcome.error.map_or(Ok(outcome.again), Err)
}

async fn reconcile_front(
    context: &Context,
    view: &InstanceView,
    wanted: &Wanted,
    outcome: &Outcome,
    owned: &Owned,
) -> Result<(), RequestError> {
    let (counts, ..) = outcome.summary();
    let front = Front {
        namespace: &view.key.namespace,
        name: instance_service_name(&view.key.name),
        owner: Owner { kind: "Instance", name: &view.key.name, uid: &view.uid },
        label: (INSTANCE_LABEL, &view.key.name),
        spec: wanted.instance_service.as_ref(),
        running: counts.running,
        desired: counts.desired,
    };
    reconcile_service(&context.requests, &front, &owned.services).await
}
