//! Reconciles a DiscoveryHandler: its status, and what deleted nodes left in it.

use std::time::Duration;

use akri_api::DiscoveryHandler;
use akri_kube::requests::RequestResult;
use akri_model::names::Key;

use super::{Again, Context, earlier};
use crate::node_cleanup;
use crate::status::write_handler;
use crate::work::Work;

pub(super) async fn reconcile(context: &Context, work: &Work, key: &Key) -> RequestResult<Again> {
    let Some(view) = context.objects.handler(key).filter(|view| !view.is_deleting) else { return Ok(None) };
    let mut absent = node_cleanup::absent_nodes(context, &view.mentions()).await?;
    node_cleanup::clean_up::<DiscoveryHandler>(context, work, &mut absent).await?;
    let stale = context.objects.stale_reports(key, &view.problems);
    if node_cleanup::remove_stale_reports::<DiscoveryHandler>(context, key, &stale).await? {
        return Ok(None); // the watch shows what is left
    }
    let look = context.objects.look(key, &view.generation);
    let left = look.left;
    write_handler(&context.requests, &view, look).await?;
    Ok(earlier(absent.again, earlier(left, stale.next).map(|left| left + Duration::from_secs(1))))
}
