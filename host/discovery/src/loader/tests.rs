use akri_api::DiscoveryHandler;
use akri_cluster::InvalidHandler;
use akri_model::handler_names::NameService;
use akri_model::names::Key;
use akri_model::property::Secret;
use akri_model::resolve::{ReferenceKind, Stored, Values};
use akri_node::saved::Saved;
use akri_sandbox::{HostConfig, SandboxProgram};
use serde_json::{Value, json};

use super::*;
use crate::images::ImageSettings;

fn loader(directory: PathBuf, values: watch::Receiver<Arc<Values>>) -> Loader {
    let nowhere = PathBuf::from("/nonexistent");
    let (sysfs, udev_data) = (nowhere.clone(), nowhere);
    let program = SandboxProgram { path: "/nonexistent".into(), arguments: Vec::new(), memory_bytes: 0 };
    let config = HostConfig { program, cache_dir: None, precompiled: None, sysfs, udev_data };
    let images = Images::new(ImageSettings::default(), "akri", values);
    let (activity, names) = (HandlerActivity::default(), Saved::open(None, ""));
    Loader::new(Host::new(config).unwrap(), vec![directory], images, activity, names, Saved::open(None, ""))
}

/// Manifests with one object, whose component is at that place.
fn manifests(component: Value) -> Manifests {
    let object = json!({
        "apiVersion": "akri.sh/v0", "kind": "DiscoveryHandler", "metadata": {"name": "a"},
        "spec": {"component": component},
    });
    let object: DiscoveryHandler = serde_json::from_value(object).unwrap();
    let handlers = [("a".to_owned(), Arc::new(HandlerObject::from(&object)))].into();
    Manifests { handlers, complete: true, ..Manifests::default() }
}

async fn end_one(loader: &mut Loader, manifests: &Manifests) {
    let (id, (object, component)) = loader.tasks.join_next_with_id().await.unwrap().unwrap();
    loader.loaded(manifests, id, &object, component);
}

#[tokio::test] // rule 74
async fn load_that_ended_before_an_edit_counts_for_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut loader = loader(directory.path().to_owned(), watch::channel(Arc::default()).1);
    let [first, second] = ["first.wasm", "second.wasm"].map(|file| manifests(json!({"file": file})));
    loader.check_components(&first);
    let task = loader.loading["a"].task.clone();
    while !task.is_finished() {
        tokio::task::yield_now().await;
    }
    loader.check_components(&second);
    end_one(&mut loader, &second).await;
    assert!(loader.refused.is_empty() && loader.loading.contains_key("a"), "{:?}", loader.refused);
    end_one(&mut loader, &second).await;
    assert!(loader.refused["a"].message.contains("second.wasm"), "{:?}", loader.refused);
    assert!(loader.loading.is_empty());
}

#[tokio::test] // rule 131
async fn generation_is_looked_at_once_it_is_loaded_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut loader = loader(directory.path().to_owned(), watch::channel(Arc::default()).1);
    let sender = watch::Sender::new(Arc::default());
    let generation = |number| {
        let mut manifests = manifests(json!({"file": "a.wasm"}));
        manifests.handlers.values_mut().for_each(|object| Arc::make_mut(object).generation = ("u".to_owned(), number));
        manifests
    };
    let looked_at = |loader: &mut Loader, manifests: &Manifests| {
        loader.publish(manifests, &sender);
        sender.borrow().looked_at.get("a").map(|(_, number)| *number)
    };
    let [first, second] = [1, 2].map(generation);
    loader.check_components(&first);
    assert_eq!(looked_at(&mut loader, &first), None, "it is being loaded");
    end_one(&mut loader, &first).await;
    assert_eq!(looked_at(&mut loader, &first), Some(1));
    loader.check_components(&second);
    assert_eq!(looked_at(&mut loader, &second), Some(1), "so is this one");
    end_one(&mut loader, &second).await;
    assert_eq!(looked_at(&mut loader, &second), Some(2));
    let deleted = Manifests { complete: true, ..Manifests::default() };
    loader.check_components(&deleted);
    assert_eq!(looked_at(&mut loader, &deleted), None);
}

#[tokio::test]
async fn failure_of_the_sandbox_process_is_retried() {
    let directory = tempfile::tempdir().unwrap();
    let mut loader = loader(directory.path().to_owned(), watch::channel(Arc::default()).1);
    let manifests = manifests(json!({"file": "a.wasm"}));
    let source = manifests.handlers["a"].source.clone();
    let failed = || Refused::temporary("SandboxFailed", "it has ended".to_owned());
    let mut pauses = Vec::new();
    for _ in 0..3 {
        loader.refuse("a", &source, PullSecrets::default(), failed());
        pauses.push(loader.next_retry().unwrap() - Instant::now());
    }
    assert!(pauses[0] < pauses[1] && pauses[1] < pauses[2], "{pauses:?}");
    assert_eq!(loader.refused["a"].reason, "SandboxFailed");
    loader.retries.postpone(Instant::now());
    loader.retry(&manifests);
    assert!(loader.loading.contains_key("a"));
    end_one(&mut loader, &manifests).await;
    assert_eq!((loader.refused["a"].reason, loader.retries.due()), ("Unreadable", vec![]), "there is no such file");
}

/// A change of an unrelated ConfigMap must not make the agent try all images again.
#[tokio::test] // rule 74
async fn only_an_images_own_pull_secrets_end_its_pause() {
    let values = watch::Sender::new(Arc::<Values>::default());
    let mut loader = loader(PathBuf::new(), values.subscribe());
    let image = format!("127.0.0.1:1/a@sha256:{}", "a".repeat(64));
    let manifests = manifests(json!({"image": image, "pullSecrets": ["login"]}));
    let source = manifests.handlers["a"].source.clone();
    let at = Instant::now() + Duration::from_secs(300);
    let secrets = loader.images.pull_secrets(&source);
    loader.retries.failed("a", &source, secrets);
    let login = |name: &str, word: &str| {
        let data = [(".dockerconfigjson".to_owned(), Secret::new(word.into()))].into();
        ((ReferenceKind::Secret, Key::new("akri", name)), Stored::Data(data))
    };
    let (_, stored) = login("map", "x");
    let mut current = Values::from([((ReferenceKind::ConfigMap, Key::new("akri", "login")), stored)]);
    for (changed, ends) in
        [(None, false), (Some(login("other", "x")), false), (Some(login("login", "x")), true), (None, false)]
    {
        current.extend(changed);
        values.send_replace(Arc::new(current.clone()));
        loader.retries.postpone(at);
        loader.retry_with_other_secrets();
        assert_eq!(loader.next_retry().unwrap() < at, ends, "{:?}", current.keys());
    }
}

#[tokio::test] // rule 44, rule 132
async fn invalid_object_is_refused_and_claims_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let mut loader = loader(directory.path().to_owned(), watch::channel(Arc::default()).1);
    let sender = watch::Sender::new(Arc::default());
    loader.publish(&Manifests::default(), &sender);
    let unread = sender.borrow().clone();
    assert!(!unread.settled && unread.pending.is_none(), "before objects were read, nothing is known of names");
    let (why, generation) = ("/spec/interval: is no duration".to_owned(), ("u".to_owned(), 2));
    let invalid = InvalidHandler { name: "udev".to_owned(), why, generation: generation.clone() };
    let invalid_handlers = [("node-devices".to_owned(), invalid)].into();
    let manifests = Manifests { invalid_handlers, complete: true, ..Manifests::default() };
    loader.check_components(&manifests);
    loader.publish(&manifests, &sender);
    let handlers = sender.borrow().clone();
    assert_eq!(handlers.names.get("udev"), Some(&NameService::Refused));
    assert_eq!(handlers.refused["node-devices"].reason, "Invalid");
    assert_eq!(handlers.looked_at["node-devices"], generation);
    assert!(handlers.settled && handlers.pending.is_some());
}
