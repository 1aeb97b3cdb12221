//! Follows the objects of one kind, through any disconnect and any new listing.

use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Api, DynamicObject};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use tracing::{info, warn};

/// What has happened to the objects.
#[derive(Debug)]
pub(super) enum Change {
    /// This is all of them.
    All(Vec<DynamicObject>),
    /// One came or changed.
    Put(Box<DynamicObject>),
    /// One has gone.
    Gone(Box<DynamicObject>),
}

/// Longest pause between tries: an outage that is over shall not be felt for long.
const LONGEST: Duration = Duration::from_secs(5);

/// kube's default (0.8 s, doubling, with jitter), but never longer than [`LONGEST`].
#[derive(Default)]
struct Pauses(DefaultBackoff);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(LONGEST))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// Tells every change, for ever. An error is retried with backoff and takes nothing away. Who last changed which field
/// (`managedFields`), usually half of an object, is dropped at once.
pub(super) async fn follow(
    api: Api<DynamicObject>,
    config: watcher::Config,
    what: &str,
    mut tell: impl FnMut(Change) + Send,
) {
    let mut events = watch(api, config).backoff(Pauses::default()).boxed();
    let mut listing = Vec::new();
    let mut troubled = false;
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                if !std::mem::replace(&mut troubled, true) {
                    warn!("cannot watch {what}, known ones stay as they are: {error}");
                }
                continue;
            }
        };
        if std::mem::take(&mut troubled) {
            info!("{what} can be watched again");
        }
        match event.modify(|object| object.metadata.managed_fields = None) {
            Event::Init => listing.clear(),
            Event::InitApply(object) => listing.push(object),
            Event::InitDone => tell(Change::All(std::mem::take(&mut listing))),
            Event::Apply(object) => tell(Change::Put(Box::new(object))),
            Event::Delete(object) => tell(Change::Gone(Box::new(object))),
        }
    }
}

/// An object as its type. One that does not fit is told and left out: it must not stop the others.
pub(super) fn typed<T: serde::de::DeserializeOwned>(object: &DynamicObject) -> Result<T, String> {
    let value = serde_json::to_value(object).map_err(|error| error.to_string())?;
    serde_json::from_value(value).map_err(|error| error.to_string())
}
