//! Loads the components of DiscoveryHandler objects, each by itself: what a component takes to compile holds up no other, and
//! what an object says today holds before anything is compiled.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use akri_api::ComponentSource;
use akri_cluster::{HandlerObject, Manifests};
use akri_model::handler_names::{LastComponent, LoadState, NameClaim, NameOwners};
use akri_model::image::PinnedImage;
use akri_node::saved::Saved;
use akri_node::sleep_until_some;
use akri_node::watch_dir::{WatchDir, any_changed};
use akri_sandbox::{Component, Host};
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::fetch::fetch;
use crate::handler_activity::HandlerActivity;
use crate::images::{Images, PullSecrets};
use crate::load_progress::{LoadProgress, LoadStep};
use crate::load_retries::LoadRetries;
use crate::registry::{Handler, Handlers, Refused};

/// A component that is loaded for longer than this is in the log and the status.
const SLOW_LOAD: Duration = Duration::from_secs(2);

/// Pause between reports of how a pull goes on.
const PROGRESS: Duration = Duration::from_secs(5);

/// Keeps the handlers as the objects say.
pub(crate) struct Loader {
    host: Host,
    directories: Vec<PathBuf>,
    images: Images,
    activity: HandlerActivity,
    /// The running handler of each object.
    loaded: BTreeMap<String, Arc<Handler>>,
    /// The component that each object had last, also before a restart. Its successors of the same name must have the same `shared`.
    last: Saved<BTreeMap<String, LastComponent>>,
    /// The load in progress of each object.
    loading: BTreeMap<String, Loading>,
    tasks: JoinSet<(String, Result<Component, Refused>)>,
    /// Loads that failed for reasons that may pass.
    retries: LoadRetries,
    /// The error of the last load of each object.
    refused: BTreeMap<String, Refused>,
    /// The UID and the generation of each object that was loaded or refused last.
    looked_at: BTreeMap<String, (String, i64)>,
    names: Saved<NameOwners>,
}

/// A load that is under way.
struct Loading {
    wanted: HandlerObject,
    since: Instant,
    progress: Arc<LoadProgress>,
    task: AbortHandle,
    /// The pull secrets when it began.
    secrets: PullSecrets,
    /// Set if something changed meanwhile, so that it has to run again.
    again: bool,
}

impl Loader {
    pub(crate) fn new(
        host: Host,
        directories: Vec<PathBuf>,
        images: Images,
        activity: HandlerActivity,
        names: Saved<NameOwners>,
        last: Saved<BTreeMap<String, LastComponent>>,
    ) -> Self {
        Self {
            host,
            directories,
            images,
            activity,
            loaded: BTreeMap::new(),
            last,
            loading: BTreeMap::new(),
            tasks: JoinSet::new(),
            retries: LoadRetries::default(),
            refused: BTreeMap::new(),
            looked_at: BTreeMap::new(),
            names,
        }
    }

    pub(crate) async fn run(
        mut self,
        mut manifests: watch::Receiver<Arc<Manifests>>,
        sender: watch::Sender<Arc<Handlers>>,
    ) {
        let mut watched: Vec<WatchDir> = self.directories.iter().map(|directory| WatchDir::new(directory)).collect();
        let mut values = self.images.values();
        let mut objects = manifests.borrow_and_update().clone();
        self.check_components(&objects);
        loop {
            self.publish(&objects, &sender);
            let (next_announcement, next_retry) = (self.next_announcement(), self.next_retry());
            tokio::select! {
                changed = manifests.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let before = std::mem::replace(&mut objects, manifests.borrow_and_update().clone());
                    let about = |of: &Manifests| (of.handlers.clone(), of.invalid_handlers.clone(), of.complete);
                    if about(&before) != about(&objects) {
                        self.check_components(&objects);
                    }
                }
                () = any_changed(&mut watched) => self.check_components(&objects),
                Some(ended) = self.tasks.join_next_with_id() => {
                    if let Ok((id, (object, component))) = ended {
                        self.loaded(&objects, id, &object, component);
                    }
                }
                () = sleep_until_some(next_announcement) => {}
                () = sleep_until_some(next_retry) => self.retry(&objects),
                Ok(()) = values.changed() => self.retry_with_other_secrets(),
            }
        }
    }

    /// Applies what the objects say to what runs, and begins to load what they name.
    fn check_components(&mut self, manifests: &Manifests) {
        if manifests.complete {
            let is_there = |object: &String| manifests.handlers.contains_key(object);
            self.loaded.retain(|object, _| is_there(object));
            self.last.retain(|object, _| is_there(object));
            self.refused.retain(|object, _| is_there(object));
            self.retries.0.retain(|object, _| is_there(object));
            self.looked_at.retain(|object, _| is_there(object));
            for (_, removed) in self.loading.extract_if(.., |object, _| !is_there(object)) {
                removed.task.abort();
            }
        }
        for (name, object) in &manifests.handlers {
            self.restrict(name, object);
            self.load(name, object);
        }
        self.remove_unused_images(manifests);
    }

    /// Removes kept images that no object names and no handler runs: one that ran may be wanted again until its successor
    /// runs.
    fn remove_unused_images(&self, manifests: &Manifests) {
        let named = manifests.handlers.values().map(|object| &object.source);
        let running = self.loaded.values().map(|handler| &handler.source);
        let used: BTreeSet<&PinnedImage> = named.chain(running).filter_map(|of| Some(&of.image()?.image)).collect();
        if manifests.complete {
            self.images.retain(&used);
        }
    }

    /// Applies the object to its running handler: current grants and limits, or removal if the object pins another
    /// digest or doesn't trust who signed it.
    fn restrict(&mut self, name: &str, object: &HandlerObject) {
        let Some(running) = self.loaded.get(name) else { return };
        match running.kept(object).filter(|kept| self.is_trusted(&kept.source, &object.source)) {
            Some(kept) if kept == **running => {}
            Some(kept) => drop(self.loaded.insert(name.to_owned(), Arc::new(kept))),
            None => {
                warn!(object = name, "the handler that ran is not allowed any more");
                self.loaded.remove(name);
            }
        }
    }

    /// Returns whether the running image is signed by a key of today. Its registry isn't asked, which could withhold the answer.
    fn is_trusted(&self, running: &ComponentSource, wanted: &ComponentSource) -> bool {
        let Some((running, wanted)) = running.image().zip(wanted.image()) else { return true };
        running.is_covered_by(&wanted.keys) || self.images.is_signed(&running.image, &wanted.keys)
    }

    /// Begins to load what an object names, unless that is under way.
    fn load(&mut self, name: &str, object: &HandlerObject) {
        if let Some(loading) = self.loading.get_mut(name) {
            let is_same = |was: &HandlerObject| {
                (&was.source, &was.digest) == (&object.source, &object.digest)
                    && was.rules.limits.compile == object.rules.limits.compile
                    && was.rules.isolation == object.rules.isolation
            };
            if is_same(&loading.wanted) {
                loading.again = true;
                return;
            }
            loading.task.abort();
        }
        if self.retries.is_early(name, &object.source) {
            self.loading.remove(name);
            return;
        }
        let running = self.loaded.get(name).cloned();
        let progress = Arc::<LoadProgress>::default();
        let places = (self.directories.clone(), self.images.clone());
        let fetched = fetch(self.host.clone(), places, object.clone(), running, Arc::clone(&progress));
        let object_name = name.to_owned();
        let task = self.tasks.spawn(async move { (object_name, fetched.await) });
        let (wanted, since, secrets) = (object.clone(), Instant::now(), self.images.pull_secrets(&object.source));
        self.loading.insert(name.to_owned(), Loading { wanted, since, progress, task, secrets, again: false });
    }

    /// Takes the result of a load.
    fn loaded(&mut self, manifests: &Manifests, id: Id, name: &str, component: Result<Component, Refused>) {
        // A load that another one replaced was aborted, but it may have ended before.
        let Entry::Occupied(loading) = self.loading.entry(name.to_owned()) else { return };
        if loading.get().task.id() != id {
            return;
        }
        let Loading { again, secrets, .. } = loading.remove();
        let Some(object) = manifests.handlers.get(name) else { return };
        let handler =
            |component| Handler::new(name, object, component, &self.activity).replace(self.last.get(name), object);
        match component.and_then(handler) {
            Ok(next) => {
                self.refused.remove(name);
                self.retries.0.remove(name);
                self.last.insert(name.to_owned(), next.last());
                if self.loaded.get(name).map(|running| &**running) != Some(&next) {
                    self.loaded.insert(name.to_owned(), Arc::new(next));
                    self.remove_unused_images(manifests);
                }
            }
            Err(refused) => self.refuse(name, &object.source, secrets, refused),
        }
        if again {
            self.load(name, object);
        }
    }

    /// Records an error. What may pass is tried again later.
    fn refuse(&mut self, name: &str, source: &ComponentSource, secrets: PullSecrets, refused: Refused) {
        if refused.is_temporary {
            self.retries.failed(name, source, secrets);
            self.retry_with_other_secrets();
        } else {
            self.retries.0.remove(name);
        }
        self.refused.insert(name.to_owned(), refused);
    }

    /// Tries images at once whose pull secrets have changed: they may be right now.
    fn retry_with_other_secrets(&mut self) {
        self.retries.secrets_changed(|source| self.images.pull_secrets(source));
    }

    fn next_retry(&self) -> Option<Instant> {
        self.retries.next(|object| !self.loading.contains_key(object))
    }

    fn retry(&mut self, manifests: &Manifests) {
        for name in self.retries.due() {
            match manifests.handlers.get(&name) {
                Some(object) if !self.loading.contains_key(&name) => self.load(&name, object),
                Some(_) => {}
                None => drop(self.retries.0.remove(&name)),
            }
        }
    }

    fn publish(&mut self, manifests: &Manifests, sender: &watch::Sender<Arc<Handlers>>) {
        let settled = manifests.were_read() && self.loading.is_empty();
        let mut refused = self.refused.clone();
        let claims = self.claims(manifests);
        let names = self.names.assign(&claims, manifests.complete);
        self.names.save();
        self.last.save();
        let claims = claims.into_iter().map(|(object, claim)| (object, claim.name)).collect();
        let mut ready = BTreeMap::new();
        for (object, handler) in &self.loaded {
            let name = handler.name();
            match self.names.0.get(name) {
                Some(owner) if owner == object => drop(ready.insert(name.to_owned(), Arc::clone(handler))),
                Some(owner) => {
                    refused.entry(object.clone()).or_insert_with(|| name_taken(name, owner));
                }
                None => {}
            }
        }
        let slow = self.loading.iter().filter(|(_, loading)| loading.since.elapsed() >= SLOW_LOAD);
        let loading = slow.map(|(object, loading)| (object.clone(), loading.progress.step())).collect();
        let ended = manifests.handlers.iter().filter(|(object, _)| !self.loading.contains_key(*object));
        self.looked_at.extend(ended.map(|(object, wanted)| (object.clone(), wanted.generation.clone())));
        let (pending, mut looked_at) = (manifests.were_read().then(|| self.pending()), self.looked_at.clone());
        for (object, invalid) in &manifests.invalid_handlers {
            let stays = if self.loaded.contains_key(object) { "; its last valid version stays in force" } else { "" };
            refused.insert(object.clone(), Refused::new("Invalid", format!("{}{stays}", invalid.why)));
            looked_at.insert(object.clone(), invalid.generation.clone());
        }
        let handlers = Handlers { ready, names, claims, refused, loading, pending, looked_at, settled };
        sender.send_if_modified(|current| {
            handlers.log_changes(current);
            let changed = **current != handlers;
            *current = Arc::new(handlers);
            changed
        });
    }

    /// Returns the claims of all objects to names.
    fn claims(&self, manifests: &Manifests) -> BTreeMap<String, NameClaim> {
        let running = self.loaded.iter().map(|(object, handler)| (object, Some(handler.name())));
        let wanted = manifests.handlers.iter().map(|(object, wanted)| (object, wanted.name.as_deref()));
        let invalid = manifests.invalid_handlers.iter().filter(|(object, _)| !manifests.handlers.contains_key(*object));
        let invalid = invalid.map(|(object, invalid)| (object, Some(invalid.name.as_str())));
        let claim = |(object, name): (&String, Option<&str>)| {
            let state = if self.loaded.contains_key(object) {
                LoadState::Loaded
            } else if self.refused.contains_key(object) || !manifests.handlers.contains_key(object) {
                LoadState::Refused
            } else {
                LoadState::Pending
            };
            Some((object.clone(), NameClaim { name: name?.to_owned(), state }))
        };
        wanted.chain(invalid).chain(running).filter_map(claim).collect()
    }

    /// Returns the objects that are being loaded and were neither loaded nor refused before.
    fn pending(&self) -> BTreeSet<String> {
        let is_new = |object: &&String| !self.loaded.contains_key(*object) && !self.refused.contains_key(*object);
        self.loading.keys().filter(is_new).cloned().collect()
    }

    /// Returns the time of the next log line about a component that is not ready yet.
    fn next_announcement(&self) -> Option<Instant> {
        let now = Instant::now();
        let next = |loading: &Loading| match loading.progress.step() {
            LoadStep::Pulling(_) if loading.since + SLOW_LOAD <= now => Some(now + PROGRESS),
            _ => Some(loading.since + SLOW_LOAD).filter(|at| *at > now),
        };
        self.loading.values().filter_map(next).min()
    }
}

fn name_taken(name: &str, owner: &str) -> Refused {
    let message = format!(
        "handler '{name}' belongs to DiscoveryHandler '{owner}', which served it first: delete one of them, or give one \
         another component and spec.name"
    );
    Refused::new("NameTaken", message)
}

impl Handlers {
    /// Logs what was different before.
    fn log_changes(&self, before: &Self) {
        for (name, handler) in self.ready.iter().filter(|(name, handler)| before.ready.get(*name) != Some(*handler)) {
            info!(handler = name, object = handler.object, digest = handler.component.digest(), "handler ready");
        }
        for (object, why) in self.refused.iter().filter(|(object, why)| before.refused.get(*object) != Some(*why)) {
            error!(object, "DiscoveryHandler refused: {}", why.message);
        }
        let is_new = |(object, step): &(&String, &LoadStep)| before.loading.get(*object) != Some(*step);
        let compiling = self.loading.iter().filter(|(_, step)| **step == LoadStep::Compiling);
        for (object, _) in compiling.filter(is_new) {
            info!(object, "the component is being compiled, which is done once and takes some seconds");
        }
    }
}

#[cfg(test)]
mod tests;
