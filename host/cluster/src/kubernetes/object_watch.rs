//! A watch of the objects of one kind that survives disconnects.

use std::time::Duration;

use backon::ExponentialBuilder;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher::{self, Event, ExponentialBackoff};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use tracing::{info, warn};

/// A change of the watched objects.
#[derive(Debug)]
pub(super) enum Change {
    /// The complete list.
    All(Vec<DynamicObject>),
    /// An object was created or changed.
    Put(Box<DynamicObject>),
    /// An object was deleted.
    Deleted(Box<DynamicObject>),
}

/// Longest backoff, kept short so that the end of an outage is noticed soon.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Returns kube's default backoff (0.8 s, doubling, with jitter), limited to [`MAX_BACKOFF`].
fn backoff() -> ExponentialBackoff {
    let builder = ExponentialBuilder::default().with_min_delay(Duration::from_millis(800)).with_max_delay(MAX_BACKOFF);
    builder.with_factor(2.0).with_jitter().without_max_times().into()
}

/// The source of the first list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstList {
    /// The API server's cache, which may be behind: for objects whose absence has no consequences.
    Cached,
    /// The current state: for objects whose absence has consequences.
    Consistent,
}

type Events = BoxStream<'static, watcher::Result<Event<DynamicObject>>>;

fn start(api: Api<DynamicObject>, config: watcher::Config) -> Events {
    watch(api, config).backoff(backoff()).boxed()
}

/// Returns the configuration of a watch whose list comes from the API server's cache. kube asks for that in one page only.
fn cached(config: watcher::Config) -> watcher::Config {
    watcher::Config { page_size: None, ..config.any_semantic() }
}

/// Passes every change to `on_change`, without end. Errors are retried with backoff and delete nothing.
/// `managedFields`, usually half of an object, are dropped. If a watch can't be resumed, the next list is a consistent one, as in
/// client-go: what the cache of a server that is behind lacks must not count as deleted (rule 77).
pub(super) async fn watch_objects(
    api: Api<DynamicObject>,
    config: watcher::Config,
    what: &str,
    first: FirstList,
    mut on_change: impl FnMut(Change) + Send,
) {
    let mut is_cached = first == FirstList::Cached;
    let mut events = start(api.clone(), if is_cached { cached(config.clone()) } else { config.clone() });
    let (mut listing, mut failing, mut is_listed) = (Vec::new(), false, false);
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!("cannot watch {what}; keeping the known ones and retrying: {error}");
                }
                continue;
            }
        };
        if std::mem::take(&mut failing) {
            info!("watching {what} again");
        }
        match event.modify(|object| object.metadata.managed_fields = None) {
            Event::Init if is_listed && std::mem::take(&mut is_cached) => events = start(api.clone(), config.clone()),
            Event::Init => listing.clear(),
            Event::InitApply(object) => listing.push(object),
            Event::InitDone => {
                is_listed = true;
                on_change(Change::All(std::mem::take(&mut listing)));
            }
            Event::Apply(object) => on_change(Change::Put(Box::new(object))),
            Event::Delete(object) => on_change(Change::Deleted(Box::new(object))),
        }
    }
}

/// Parses an object.
pub(super) fn typed<T: serde::de::DeserializeOwned>(object: &DynamicObject) -> Result<T, String> {
    let value = serde_json::to_value(object).map_err(|error| error.to_string())?;
    serde_json::from_value(value).map_err(|error| error.to_string())
}
