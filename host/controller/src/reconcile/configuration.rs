//! Reconciles a Configuration: its Service, its status, and what deleted nodes left in it.

use std::time::Duration;

use akri_api::Configuration;
use akri_brokers::Owner;
use akri_kube::requests::RequestResult;
use akri_model::names::Key;
use akri_model::summary::Unknown;

use super::brokers::refusal;
use super::services::reconcile_service;
use super::{Again, Context, earlier};
use crate::node_cleanup;
use crate::status::write_configuration;
use crate::upstream::remove_finalizers;
use crate::views::ConfigurationView;
use crate::work::Work;

pub(super) async fn reconcile(context: &Context, work: &Work, key: &Key) -> RequestResult<Again> {
    let Some(view) = context.objects.configuration(key) else { return Ok(None) };
    let mut absent = node_cleanup::absent_nodes(context, &view.mentions()).await?;
    node_cleanup::clean_up::<Configuration>(context, work, &mut absent).await?;
    let left = context.objects.known_nodes(&view.finalizers);
    let finalizers = remove_finalizers::<Configuration>(context, key, &view.uid, left, None).await?;
    let again = earlier(absent.again, finalizers);
    if view.is_deleting {
        return Ok(again);
    }
    let stale = context.objects.stale_reports(key, &view.problems);
    if node_cleanup::remove_stale_reports::<Configuration>(context, key, &stale).await? {
        return Ok(None); // the watch shows what is left
    }
    let served = reconcile_own_service(context, &view).await;
    let devices = context.objects.count_devices(key);
    let fleet = context.objects.fleet(key);
    let mut look = context.objects.look(key, &view.generation);
    let chosen = context.objects.choose(&view);
    if chosen.is_nobody && look.unknown == Some(Unknown::Pending) {
        look.unknown = Some(Unknown::NoMatchingNode);
    }
    let left = earlier(look.left, chosen.left);
    let are_brokers_known =
        look.unknown != Some(Unknown::Pending) && context.objects.are_brokers_of(key, view.generation.number);
    let brokers = (&fleet, are_brokers_known, served.as_ref().err().and_then(refusal));
    let paused = write_configuration(context, &view, devices, brokers, look, chosen.nodes).await?;
    served?;
    Ok(earlier(earlier(again, paused), earlier(left, stale.next).map(|left| left + Duration::from_secs(1))))
}

/// The Service for all brokers; what is invalid stays as it is.
async fn reconcile_own_service(context: &Context, view: &ConfigurationView) -> RequestResult<()> {
    let Some(wanted) = view.valid() else { return Ok(()) };
    let itself = Owner { kind: "Configuration", name: &view.key.name, uid: &view.uid };
    let instances = context.objects.count_devices(&view.key).instances;
    let total = context.objects.fleet(&view.key).rollout.total_of(instances);
    let owned = context.objects.owned(&Work::Configuration(view.key.clone()));
    let spec = wanted.configuration_service.as_ref();
    reconcile_service(&context.requests, &view.key.namespace, itself, spec, total, &owned.services).await
}
