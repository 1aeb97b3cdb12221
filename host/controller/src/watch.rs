//! Follows the objects of a kind through any disconnect and any new listing.

use std::fmt::Debug;
use std::time::Duration;

use akri_model::names::Key;
use backon::ExponentialBuilder;
use futures::{StreamExt as _, pin_mut};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, ExponentialBackoff};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::{info, warn};

/// A change of the objects of a kind.
pub(crate) enum Change<V> {
    /// These are all of them.
    All(Vec<V>),
    /// One was created or has changed.
    Put(V),
    /// One was deleted.
    Gone(Key),
}

/// Longest pause between tries: an outage that is over must not be felt for long.
const LONGEST: Duration = Duration::from_secs(5);

/// Returns kube's default backoff (0.8 s, doubling, with jitter), limited to [`LONGEST`].
fn backoff() -> ExponentialBackoff {
    let builder = ExponentialBuilder::default().with_min_delay(Duration::from_millis(800)).with_max_delay(LONGEST);
    builder.with_factor(2.0).with_jitter().without_max_times().into()
}

/// The objects to follow, and a function that reads one.
pub(crate) struct WatchSource<K, V> {
    pub(crate) api: Api<K>,
    /// The kind, for the log.
    pub(crate) what: &'static str,
    /// A label selector; empty for all.
    pub(crate) labels: &'static str,
    /// Reads an object; returns `None` if it is of no use.
    pub(crate) read: fn(K) -> Option<V>,
}

/// Passes every change on, for ever; `listed` is set with the first list. Lists are consistent, not from
/// the API server's cache: the controller deletes what belongs to objects that they lack (rule 77).
pub(crate) async fn follow<K, V>(
    source: WatchSource<K, V>,
    listed: watch::Sender<bool>,
    mut take: impl FnMut(Change<V>) + Send,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Send,
{
    let what = source.what;
    let config = watcher::Config::default().labels(source.labels);
    let events = watcher::watcher(source.api, config).backoff(backoff());
    pin_mut!(events);
    let mut listing = Vec::new();
    let mut is_failing = false;
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    warn!(what, %error, "watching failed; what is known stays as it is");
                }
                continue;
            }
        };
        if std::mem::take(&mut is_failing) {
            info!(what, "watching works again");
        }
        match event {
            Event::Init => listing.clear(),
            Event::InitApply(object) => listing.extend((source.read)(object)),
            Event::InitDone => {
                take(Change::All(std::mem::take(&mut listing)));
                listed.send_replace(true);
            }
            Event::Apply(object) => {
                let key = Key::new(object.namespace().unwrap_or_default(), object.name_any());
                take((source.read)(object).map_or(Change::Gone(key), Change::Put));
            }
            Event::Delete(object) => {
                take(Change::Gone(Key::new(object.namespace().unwrap_or_default(), object.name_any())));
            }
        }
    }
}
