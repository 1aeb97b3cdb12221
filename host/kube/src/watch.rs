//! A watch of the objects of one kind that survives disconnects.

use std::fmt::Debug;

use akri_model::instance::Version;
use akri_model::names::Key;
use akri_model::retry::{Backoff, RetryPolicy, jitter};
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt as _, StreamExt as _};
use kube::api::{Api, DynamicObject, ListParams, ObjectMeta};
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Error, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

/// Pauses after a watch that is not allowed are so much longer: a person has to allow it, and may never do so.
const UNTIL_ALLOWED: u32 = 6;

/// A change of the watched objects, in the form in which [`WatchSource::read`] keeps them.
#[derive(Debug)]
pub enum Change<V> {
    /// The complete list.
    All(Vec<V>),
    /// An object was created or changed.
    Put(V),
    /// An object was deleted, or can't be read any more.
    Deleted(Box<ObjectMeta>),
}

/// The source of the first list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstList {
    /// The API server's cache, which may be behind: for objects whose absence has no consequences.
    Cached,
    /// The current state: for objects whose absence has consequences.
    Consistent,
}

/// The objects to watch.
pub struct WatchSource<K, V> {
    /// The API of their kind.
    pub api: Api<K>,
    /// Selectors.
    pub config: Config,
    /// A description for the log.
    pub what: String,
    /// The source of the first list.
    pub first: FirstList,
    /// Reads an object; returns `None` if it is of no use.
    pub read: fn(K) -> Option<V>,
    /// The restores of etcd that this watch and others detect.
    pub restores: Restores,
    /// Counts its lists that are the truth, whatever the versions in them: all but a first one from a cache.
    pub lists: watch::Sender<u64>,
}

/// The restores of etcd from backups: versions are lower than before (rule 106). A watch that goes on from a version of before shows
/// nothing until that version is reached again. If the store's own version was raised, the watch ends, and only the next list has lower
/// versions. Kinds that change often show a restore, and others do not: all watches of a process share this. What is sent makes them
/// list everything anew.
pub type Restores = watch::Sender<()>;

impl<K, V> WatchSource<K, V> {
    /// Returns a watch. With `Some` to read them, objects stay as they are, whether they fit their type or not.
    pub fn new(api: Api<K>, config: Config, what: &str, first: FirstList, read: fn(K) -> Option<V>) -> Self {
        let (restores, lists) = Default::default();
        Self { api, config, what: what.to_owned(), first, read, restores, lists }
    }
}

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

fn start<K>(api: &Api<K>, config: Config) -> Events<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api.clone(), config).boxed()
}

/// Returns the configuration of a watch whose list comes from the API server's cache. kube asks for that in one page only.
fn cached(config: Config) -> Config {
    Config { page_size: None, ..config.any_semantic() }
}

/// Returns the version of the store once the API server answers. It is that of a consistent list, never of a cache.
async fn current_version<K>(api: Api<K>, config: Config) -> Version
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let Config { label_selector, field_selector, .. } = config;
    let params = ListParams { label_selector, field_selector, limit: Some(1), ..ListParams::default() };
    let mut backoff = Backoff::new(RetryPolicy::WATCH);
    loop {
        match api.list_metadata(&params).await {
            Ok(list) => return Version(list.metadata.resource_version.unwrap_or_default()),
            Err(_) => sleep(backoff.failed(jitter())).await, // the watch itself reports that
        }
    }
}

/// Passes every change to `on_change`, without end. Errors are retried with backoff and delete nothing. `managedFields`, usually
/// half of an object, are dropped. If a watch can't be resumed, the next list is a consistent one, as in client-go: what the cache
/// of a server that is behind lacks must not count as deleted (rule 77). A restore of etcd makes it list anew.
pub async fn watch_objects<K, V>(source: WatchSource<K, V>, mut on_change: impl FnMut(Change<V>) + Send)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Send,
{
    let WatchSource { api, config, what, first, read, restores, lists } = source;
    let mut is_cached = first == FirstList::Cached;
    let mut events = start(&api, if is_cached { cached(config.clone()) } else { config.clone() });
    let (mut listing, mut is_failing, mut is_listed) = (Vec::new(), false, false);
    let mut backoff = Backoff::new(RetryPolicy::WATCH);
    let mut newest = Version::default();
    let mut checks = FuturesUnordered::<BoxFuture<'static, Version>>::new();
    let mut detected = restores.subscribe();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            Some(version) = checks.next() => {
                if version.is_older_than(&newest) {
                    warn!("etcd was restored from a backup, as the version of {what} shows; listing everything anew");
                    restores.send_replace(());
                } else {
                    newest.raise(&version); // a watch goes on from there, also without a change
                }
                continue;
            }
            Ok(()) = detected.changed() => {
                (is_cached, newest) = (false, Version::default());
                events = start(&api, config.clone());
                continue;
            }
        };
        let event = match event {
            None => return,
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                let is_forbidden = is_forbidden(&error);
                if checks.is_empty() && !is_forbidden {
                    checks.push(current_version(api.clone(), config.clone()).boxed());
                }
                if !std::mem::replace(&mut is_failing, true) {
                    warn!("cannot watch {what}; keeping the known ones and retrying: {error}");
                }
                let pause = backoff.failed(jitter());
                sleep(if is_forbidden { pause * UNTIL_ALLOWED } else { pause }).await;
                continue;
            }
        };
        // A list begins whether the API server answers or not.
        if !matches!(event, Event::Init) {
            backoff.reset();
            if std::mem::take(&mut is_failing) {
                info!("watching {what} again");
            }
        }
        let event = event.modify(|object| {
            newest.raise(&Version(object.meta().resource_version.clone().unwrap_or_default()));
            object.meta_mut().managed_fields = None;
        });
        match event {
            Event::Init if is_listed && std::mem::take(&mut is_cached) => events = start(&api, config.clone()),
            Event::Init => listing.clear(),
            Event::InitApply(object) => listing.extend(read(object)),
            Event::InitDone => {
                is_listed = true;
                on_change(Change::All(std::mem::take(&mut listing)));
                lists.send_modify(|count| *count += u64::from(!is_cached));
            }
            Event::Apply(object) => {
                let metadata = Box::new(object.meta().clone());
                on_change(read(object).map_or(Change::Deleted(metadata), Change::Put));
            }
            Event::Delete(object) => on_change(Change::Deleted(Box::new(object.meta().clone()))),
        }
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    matches!(error, InitialListFailed(Error::Api(status)) | WatchStartFailed(Error::Api(status)) if status.is_forbidden())
}

/// Returns the namespace, empty without one, and the name of an object.
pub fn key_of(metadata: &ObjectMeta) -> Key {
    Key::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// Returns the version of an object; versions of a kind grow.
pub fn version_of(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Parses an object.
///
/// # Errors
/// If it does not fit the type.
pub fn typed<T: DeserializeOwned>(object: &DynamicObject) -> Result<T, String> {
    let value = serde_json::to_value(object).map_err(|error| error.to_string())?;
    serde_json::from_value(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;

    /// Returns whether a request asks for the version of the store.
    fn is_check(path: &str) -> bool {
        path.split(['?', '&']).any(|parameter| parameter == "limit=1")
    }

    /// A client of a store that was restored after the first list, and whose own version was raised then.
    fn restored_store() -> Client {
        let lists = Arc::new(AtomicU64::new(0));
        Client::new(
            tower::service_fn(move |request: http::Request<Body>| {
                let (path, lists) = (request.uri().to_string(), Arc::clone(&lists));
                async move {
                    let (is_first, is_check) = (lists.load(Ordering::SeqCst) < 2, is_check(&path));
                    let item = |version: &str| json!({"metadata": {"name": "one", "resourceVersion": version}});
                    let list = |version: &str, items| json!({"metadata": {"resourceVersion": version}, "items": items});
                    let answer = match (path.contains("watch="), is_first) {
                        (true, true) => {
                            let gone = json!({"code": 410, "status": "Failure", "reason": "Expired", "message": "old"});
                            lists.store(2, Ordering::SeqCst);
                            json!({"type": "ERROR", "object": gone})
                        }
                        (true, false) => std::future::pending().await,
                        (false, _) if is_check => list("2000", json!([])),
                        (false, true) => list("100", json!([item("90")])),
                        (false, false) => list("2000", json!([item("50")])),
                    };
                    Ok::<_, Infallible>(http::Response::new(Body::from(format!("{answer}\n").into_bytes())))
                }
            }),
            "default",
        )
    }

    #[tokio::test] // rule 106
    async fn lists_after_the_first_one_count_as_the_truth() {
        let api = Api::<ConfigMap>::default_namespaced(restored_store());
        let source = WatchSource {
            api,
            config: Config::default(),
            what: "objects".to_owned(),
            first: FirstList::Cached,
            read: |map: ConfigMap| map.metadata.resource_version,
            restores: Restores::default(),
            lists: watch::Sender::new(0),
        };
        let ((sender, mut lists), mut counted) = (mpsc::unbounded_channel(), source.lists.subscribe());
        let watching = tokio::spawn(watch_objects(source, move |change| {
            if let Change::All(all) = change {
                sender.send(all).unwrap();
            }
        }));
        assert_eq!(lists.recv().await.unwrap(), ["90"]);
        assert_eq!(*counted.borrow(), 0, "it may be behind");
        assert_eq!(timeout(Duration::from_secs(20), lists.recv()).await.unwrap().unwrap(), ["50"]);
        timeout(Duration::from_secs(20), counted.wait_for(|count| *count == 1)).await.unwrap().unwrap();
        watching.abort();
    }

    /// The API server's own version was 2,000, and is that of a backup later.
    #[tokio::test] // rule 106
    async fn restore_shows_in_the_version_of_the_store() {
        let checks = Arc::new(AtomicU64::new(0));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let path = request.uri().to_string();
            let version = match is_check(&path) {
                true if checks.fetch_add(1, Ordering::SeqCst) > 0 => "1000",
                true => "2000",
                false => "100",
            };
            let list = json!({"metadata": {"resourceVersion": version}, "items": []});
            let (status, answer) = if path.contains("watch=") { (500, json!({})) } else { (200, list) };
            let answer = http::Response::builder().status(status).body(Body::from(answer.to_string().into_bytes()));
            async { Ok::<_, Infallible>(answer.unwrap()) }
        });
        let api = Api::<ConfigMap>::default_namespaced(Client::new(service, "default"));
        let source = WatchSource::new(api, Config::default(), "objects", FirstList::Consistent, Some);
        let mut detected = source.restores.subscribe();
        let watching = tokio::spawn(watch_objects(source, drop));
        timeout(Duration::from_secs(20), detected.changed()).await.unwrap().unwrap();
        watching.abort();
    }

    #[tokio::test] // rule 77
    async fn objects_that_may_not_be_listed_are_rarely_asked_for() {
        let asked = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&asked);
        let forbidden = move |_: http::Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            let status =
                json!({"kind": "Status", "code": 403, "status": "Failure", "reason": "Forbidden", "message": "no"});
            let answer = http::Response::builder().status(403).body(Body::from(status.to_string().into_bytes()));
            async { Ok::<_, Infallible>(answer.unwrap()) }
        };
        let api = Api::<ConfigMap>::default_namespaced(Client::new(tower::service_fn(forbidden), "default"));
        let source = WatchSource::new(api, Config::default(), "objects", FirstList::Consistent, Some);
        let watching = watch_objects(source, |change| panic!("{change:?}"));
        assert!(timeout(Duration::from_secs(2), watching).await.is_err());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }
}
