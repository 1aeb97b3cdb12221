//! The ConfigMaps and Secrets referenced by Configurations and DiscoveryHandlers, each watched by name. The agent reads no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use akri_kube::watch::{Change, FirstList, Restores, WatchSource, typed, watch_objects};
use akri_model::names::Key;
use akri_model::property::{PropertySource, Secret};
use akri_model::resolve::{ReferenceKind, Stored, Values};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1 as core;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use kube::runtime::watcher;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Manifests;

/// The reason why an object has no values before it was read, which may be for good.
const UNREAD: &str = "it has not been read yet; the agent needs the rights to get, list and watch it";

/// Watches the objects referenced by the manifests.
pub(super) async fn watch_referred(
    client: Client,
    mut manifests: watch::Receiver<Arc<Manifests>>,
    restores: Restores,
    values: watch::Sender<Arc<Values>>,
) {
    let mut watched: BTreeMap<(ReferenceKind, Key), JoinSet<()>> = BTreeMap::new(); // one that is dropped ends its watch
    loop {
        let wanted = referred(&manifests.borrow_and_update(), client.default_namespace());
        for object in watched.extract_if(.., |object, _| !wanted.contains(object)).map(|(object, _)| object) {
            change(&values, &object, None);
        }
        for object in wanted {
            watched.entry(object.clone()).or_insert_with(|| {
                change(&values, &object, Some(Stored::Unreadable(UNREAD.to_owned())));
                JoinSet::from_iter([watch_object(client.clone(), object, restores.clone(), values.clone())])
            });
        }
        if manifests.changed().await.is_err() {
            return;
        }
    }
}

/// Pull secrets are in the agent's namespace, the others where their references say.
fn referred(manifests: &Manifests, namespace: &str) -> BTreeSet<(ReferenceKind, Key)> {
    // Credentials are for nodes that run discovery (rule 126).
    let discovering = manifests.configurations.values().filter(|configuration| configuration.role.discovers());
    let sources = discovering.flat_map(|configuration| configuration.properties.values());
    let object = |source: &PropertySource| match source {
        PropertySource::Value(_) => None,
        PropertySource::ConfigMap(reference) => Some((ReferenceKind::ConfigMap, reference.object.clone())),
        PropertySource::Secret(reference) => Some((ReferenceKind::Secret, reference.object.clone())),
    };
    let images = manifests.handlers.values().filter_map(|handler| handler.source.image());
    let pull_secrets = images.flat_map(|source| &source.pull_secrets);
    let pull_secrets = pull_secrets.map(|name| (ReferenceKind::Secret, Key::new(namespace, name.as_str())));
    sources.filter_map(object).chain(pull_secrets).collect()
}

/// Watches one object.
async fn watch_object(
    client: Client,
    object: (ReferenceKind, Key),
    restores: Restores,
    values: watch::Sender<Arc<Values>>,
) {
    let (kind, key) = object.clone();
    let resource = match kind {
        ReferenceKind::ConfigMap => ApiResource::erase::<core::ConfigMap>(&()),
        ReferenceKind::Secret => ApiResource::erase::<core::Secret>(&()),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client, &key.namespace, &resource);
    let config = watcher::Config::default().fields(&format!("metadata.name={}", key.name));
    let on_change = move |changed: Change<DynamicObject>| match changed {
        Change::Put(found) => change(&values, &object, Some(stored(kind, &found))),
        Change::Deleted(_) => change(&values, &object, None),
        Change::All(found) => change(&values, &object, found.first().map(|found| stored(kind, found))),
    };
    let source = WatchSource::new(api, config, &format!("{} {key}", kind.as_str()), FirstList::Cached, Some);
    watch_objects(WatchSource { restores, ..source }, on_change).await;
}

/// Returns the content of an object.
fn stored(kind: ReferenceKind, object: &DynamicObject) -> Stored {
    let values = read(kind, object);
    let secret = |(key, value)| (key, Secret::new(value));
    values.map_or_else(Stored::Unreadable, |values| Stored::Data(values.into_iter().map(secret).collect()))
}

fn read(kind: ReferenceKind, object: &DynamicObject) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let plain = |values: Option<BTreeMap<String, ByteString>>| {
        values.unwrap_or_default().into_iter().map(|(key, ByteString(bytes))| (key, bytes))
    };
    match kind {
        ReferenceKind::ConfigMap => {
            let map: core::ConfigMap = typed(object)?;
            let text = map.data.unwrap_or_default().into_iter().map(|(key, text)| (key, text.into_bytes()));
            Ok(plain(map.binary_data).chain(text).collect())
        }
        // The serde error would quote the value.
        ReferenceKind::Secret => typed(object)
            .map(|secret: core::Secret| plain(secret.data).collect())
            .map_err(|_| "it is not a Secret".to_owned()),
    }
}

/// Stores the content of an object; removes it if the object does not exist.
fn change(values: &watch::Sender<Arc<Values>>, object: &(ReferenceKind, Key), stored: Option<Stored>) {
    values.send_if_modified(|current| {
        let before = Arc::clone(current);
        let now = Arc::make_mut(current);
        match stored {
            Some(stored) => drop(now.insert(object.clone(), stored)),
            None => drop(now.remove(object)),
        }
        before != *current
    });
}
