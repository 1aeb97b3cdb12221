//! The controller: one for a cluster. It says in the status of Configurations and Instances what the troubles of single nodes
//! come to (rule 34), and removes what nodes that are gone have left (rule 36).

mod gone;
mod status;

use std::sync::Arc;
use std::time::Duration;

use akri_api::{Configuration, Instance};
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt as _, StreamExt as _};
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use kube::runtime::controller::{self, Action};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{Controller, WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use tracing::warn;

use gone::{GoneError, Nodes, clean};
use status::{StatusError, write_configuration, write_instance};

/// How long after a failure to try again.
const RETRY: Duration = Duration::from_secs(5);

/// How long after a success to look again: a watch that was cut may miss that an Instance went.
const AGAIN: Duration = Duration::from_mins(5);

/// What a reconciliation needs.
struct Context {
    client: Client,
    /// All Instances of the cluster.
    instances: Store<DynamicObject>,
    /// That they have been listed; false if they never will be. Only one may wait for the store itself: it wakes only one.
    listed: Shared<BoxFuture<'static, bool>>,
    nodes: Nodes,
}

/// Why an object is not as it should be.
#[derive(Debug, thiserror::Error)]
enum ReconcileError {
    /// See there.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// See there.
    #[error(transparent)]
    Gone(#[from] GoneError),
}

/// Runs until `stop` ends.
pub async fn run(client: Client, stop: impl Future<Output = ()> + Send + Sync + 'static) {
    let (configurations, instances) = (ApiResource::erase::<Configuration>(&()), ApiResource::erase::<Instance>(&()));
    let api = |resource: &ApiResource| Api::<DynamicObject>::all_with(client.clone(), resource);
    let writer = reflector::store::Writer::new(instances.clone());
    let known = writer.as_reader();
    let listed = async move { known.wait_until_ready().await.is_ok() }.boxed().shared();
    let (nodes, node_went) = Nodes::watch(&client);
    let context = Arc::new(Context { client: client.clone(), instances: writer.as_reader(), listed, nodes });
    // One watch for both: with one of its own, a reconciliation could come before what it is about is known.
    let changed = watcher(api(&instances), watcher::Config::default())
        .default_backoff()
        .modify(|object| object.metadata.managed_fields = None)
        .reflect(writer)
        .touched_objects();
    Controller::new_with(api(&configurations), watcher::Config::default(), configurations)
        .owns_stream_with(changed, instances)
        .reconcile_all_on(node_went)
        .graceful_shutdown_on(stop)
        .run(reconcile, |_, error, _| retry(error), context)
        .for_each(async |done| tell_lost_watch(done))
        .await;
}

/// A reconciliation that failed has told so itself.
fn tell_lost_watch<T>(done: Result<T, controller::Error<ReconcileError, watcher::Error>>) {
    if let Err(controller::Error::QueueError(error)) = done {
        warn!("cannot watch Configurations or Instances: {error}");
    }
}

/// Brings the status of a Configuration and of its Instances up to date.
async fn reconcile(object: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    if !context.listed.clone().await {
        return Ok(Action::await_change()); // the controller ends
    }
    let uid = object.metadata.uid.clone().unwrap_or_default();
    let owned = |instance: &DynamicObject| instance.owner_references().iter().any(|owner| owner.uid == uid);
    let instances = context.instances.state_filter(owned);
    for instance in &instances {
        clean(&context.client, &context.nodes, instance, &ApiResource::erase::<Instance>(&())).await?;
        write_instance(&context.client, instance).await?;
    }
    clean(&context.client, &context.nodes, &object, &ApiResource::erase::<Configuration>(&())).await?;
    write_configuration(&context.client, &object, instances.len()).await?;
    Ok(Action::requeue(AGAIN))
}

fn retry(error: &ReconcileError) -> Action {
    warn!("{error}");
    Action::requeue(RETRY)
}
