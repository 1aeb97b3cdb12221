//! Loads the components of DiscoveryHandler objects, each by itself: what a component takes to compile holds up no other, and
//! what an object says today holds before anything is compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use akri_cluster::{HandlerObject, Manifests};
use akri_node::uevent::Uevents;
use akri_node::watch_dir::{WatchDir, any_changed};
use akri_sandbox::{Component, Host};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::component_file::ComponentFile;
use super::handler_activity::HandlerActivity;
use super::moment;
use super::registry::{Handler, Handlers, Refusal, Refused, succeed};

/// A component that is compiled for longer than this is told of.
const MOMENT: Duration = Duration::from_secs(2);

/// Keeps the handlers as the objects say.
pub(super) struct Loader {
    host: Host,
    directories: Vec<PathBuf>,
    uevents: Uevents,
    activity: HandlerActivity,
    /// The running handler of each object.
    loaded: BTreeMap<String, Arc<Handler>>,
    /// Handlers that are no longer allowed. Their successors must have the same name and `shared`.
    former: BTreeMap<String, Arc<Handler>>,
    /// The load in progress of each object.
    loading: BTreeMap<String, Loading>,
    tasks: JoinSet<(String, Result<Component, Refusal>)>,
    /// The error of the last load of each object.
    refused: BTreeMap<String, Refused>,
    /// Which object serves each name. It keeps it for as long as it is loaded, whoever else comes.
    serving: BTreeMap<String, String>,
    /// True once no load has been in progress.
    was_settled: bool,
    /// Those of which the log knows that they are ready.
    ready: BTreeMap<String, Arc<Handler>>,
    /// Refusals already logged.
    told: BTreeMap<String, Refused>,
    /// Compilations already logged.
    announced: BTreeSet<String>,
}

/// A load that is under way.
struct Loading {
    wanted: HandlerObject,
    since: Instant,
    task: AbortHandle,
    /// Something changed meanwhile: it is done once more.
    again: bool,
}

impl Loader {
    pub(super) fn new(host: Host, directories: Vec<PathBuf>, uevents: Uevents, activity: HandlerActivity) -> Self {
        Self {
            host,
            directories,
            uevents,
            activity,
            loaded: BTreeMap::new(),
            former: BTreeMap::new(),
            loading: BTreeMap::new(),
            tasks: JoinSet::new(),
            refused: BTreeMap::new(),
            serving: BTreeMap::new(),
            was_settled: false,
            ready: BTreeMap::new(),
            told: BTreeMap::new(),
            announced: BTreeSet::new(),
        }
    }

    pub(super) async fn run(
        mut self,
        mut manifests: watch::Receiver<Arc<Manifests>>,
        sender: watch::Sender<Arc<Handlers>>,
    ) {
        let mut watched: Vec<WatchDir> = self.directories.iter().map(|directory| WatchDir::new(directory)).collect();
        let mut objects = manifests.borrow_and_update().clone();
        self.check_components(&objects);
        loop {
            self.publish(&sender);
            let next_telling = self.next_telling();
            tokio::select! {
                changed = manifests.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    objects = manifests.borrow_and_update().clone();
                    self.check_components(&objects);
                }
                () = any_changed(&mut watched) => self.check_components(&objects),
                Some(ended) = self.tasks.join_next() => {
                    // One that was replaced by another load has been aborted.
                    if let Ok((object, component)) = ended {
                        self.loaded(&objects, &object, component);
                    }
                }
                () = moment(next_telling) => {}
            }
        }
    }

    /// Applies what the objects say to what runs, and begins to load what they name.
    fn check_components(&mut self, manifests: &Manifests) {
        if manifests.complete {
            let is_there = |object: &String| manifests.handlers.contains_key(object);
            self.loaded.retain(|object, _| is_there(object));
            self.former.retain(|object, _| is_there(object));
            self.refused.retain(|object, _| is_there(object));
            for (_, gone) in self.loading.extract_if(.., |object, _| !is_there(object)) {
                gone.task.abort();
            }
        }
        for (name, object) in &manifests.handlers {
            self.restrict(name, object);
            self.load(name, object);
        }
    }

    /// Applies the object to its running handler: current grants and limits, or removal if the object pins another
    /// digest.
    fn restrict(&mut self, name: &str, object: &HandlerObject) {
        let Some(running) = self.loaded.get(name) else { return };
        match running.kept(object) {
            Some(kept) if kept == **running => {}
            Some(kept) => drop(self.loaded.insert(name.to_owned(), Arc::new(kept))),
            None => {
                warn!(object = name, "the handler that ran is not allowed any more");
                self.former.extend(self.loaded.remove_entry(name));
            }
        }
    }

    /// Begins to load what an object names, unless that is under way.
    fn load(&mut self, name: &str, object: &HandlerObject) {
        if let Some(loading) = self.loading.get_mut(name) {
            let is_same = |was: &HandlerObject| {
                (&was.file, &was.digest) == (&object.file, &object.digest)
                    && was.rules.limits.compile == object.rules.limits.compile
                    && was.rules.isolation == object.rules.isolation
            };
            if is_same(&loading.wanted) {
                loading.again = true;
                return;
            }
            loading.task.abort();
        }
        let running = self.loaded.get(name).map(|running| running.component.clone());
        let fetched = fetch(self.host.clone(), self.directories.clone(), object.clone(), running);
        let object_name = name.to_owned();
        let task = self.tasks.spawn(async move { (object_name, fetched.await) });
        let (wanted, since) = (object.clone(), Instant::now());
        self.loading.insert(name.to_owned(), Loading { wanted, since, task, again: false });
    }

    /// A component is there, or not.
    fn loaded(&mut self, manifests: &Manifests, name: &str, component: Result<Component, Refusal>) {
        let again = self.loading.remove(name).is_some_and(|loading| loading.again);
        let Some(object) = manifests.handlers.get(name) else { return };
        let running = self.loaded.get(name).cloned();
        let handler = |component| Handler::new(name, object, component, &self.activity);
        let before = running.as_deref().or(self.former.get(name).map(|former| &**former));
        match component.map(handler).and_then(|next| succeed(before, next)) {
            Ok(next) => {
                self.refused.remove(name);
                self.former.remove(name);
                if running.as_deref() != Some(&next) {
                    self.loaded.insert(name.to_owned(), Arc::new(next));
                }
            }
            Err(refusal) => drop(self.refused.insert(name.to_owned(), refusal.into())),
        }
        if again {
            self.load(name, object);
        }
    }

    fn publish(&mut self, sender: &watch::Sender<Arc<Handlers>>) {
        let settled = self.loading.is_empty();
        let mut refused = self.refused.clone();
        let ready = self.serve(&mut refused);
        self.was_settled |= settled;
        for (name, handler) in ready.iter().filter(|(name, handler)| self.ready.get(*name) != Some(*handler)) {
            info!(handler = name, object = handler.object, digest = handler.component.digest(), "handler ready");
        }
        self.ready.clone_from(&ready);
        self.publish_refusals(&refused);
        let loading = self.slow().map(|(object, _)| object.clone()).collect::<BTreeSet<_>>();
        for object in loading.difference(&self.announced) {
            info!(object, "the component is being compiled, which is done once and takes some seconds");
        }
        self.announced.clone_from(&loading);
        let pending = Some(self.pending());
        let handlers = Handlers { ready, refused, loading, pending, settled, uevents: self.uevents.clone() };
        sender.send_if_modified(|current| {
            let changed = **current != handlers;
            *current = Arc::new(handlers);
            changed
        });
    }

    /// Returns the objects that are being loaded and were neither loaded nor refused before.
    fn pending(&self) -> BTreeSet<String> {
        let is_new = |object: &&String| !self.loaded.contains_key(*object) && !self.refused.contains_key(*object);
        self.loading.keys().filter(is_new).cloned().collect()
    }

    fn slow(&self) -> impl Iterator<Item = (&String, &Loading)> {
        self.loading.iter().filter(|(_, loading)| loading.since.elapsed() >= MOMENT)
    }

    /// When there is something to say of a component that is not ready yet.
    fn next_telling(&self) -> Option<Instant> {
        self.loading.values().map(|loading| loading.since + MOMENT).filter(|at| *at > Instant::now()).min()
    }

    /// Which of those loaded serve: two of one name would be one too many. Who serves goes on serving; of several that
    /// come at once, as at a start, it is the one that is named like its handler, or else the first by name.
    fn serve(&mut self, refused: &mut BTreeMap<String, Refused>) -> BTreeMap<String, Arc<Handler>> {
        let loaded = &self.loaded;
        if !self.was_settled {
            // Components are ready in any order: who serves is decided among all of them.
            self.serving.clear();
        }
        self.serving.retain(|name, object| loaded.get(object).is_some_and(|handler| handler.name() == name));
        let mut ready = BTreeMap::new();
        for (object, handler) in loaded {
            let name = handler.name().to_owned();
            let namesake = loaded.get(&name).is_some_and(|namesake| namesake.name() == name);
            let first = || if namesake { name.clone() } else { object.clone() };
            let holder = self.serving.entry(name.clone()).or_insert_with(first);
            if holder == object {
                ready.insert(name, Arc::clone(handler));
            } else {
                let refusal = Refusal::NameTaken { name, holder: holder.clone() };
                refused.entry(object.clone()).or_insert_with(|| refusal.into());
            }
        }
        ready
    }

    fn publish_refusals(&mut self, refused: &BTreeMap<String, Refused>) {
        for (object, reason) in refused.iter().filter(|(object, reason)| self.told.get(*object) != Some(*reason)) {
            error!(object, "DiscoveryHandler refused: {reason}");
        }
        self.told = refused.clone();
    }
}

/// The component that an object asks for: the one that runs, if it is that.
async fn fetch(
    host: Host,
    directories: Vec<PathBuf>,
    object: HandlerObject,
    running: Option<Component>,
) -> Result<Component, Refusal> {
    let file = ComponentFile::read(&directories, &object.file).await?;
    if let Some(wanted) = object.digest.filter(|wanted| *wanted != file.digest) {
        return Err(Refusal::Digest { path: file.path, actual: file.digest, wanted });
    }
    let isolation = object.rules.isolation;
    match running.filter(|running| running.digest() == file.digest && host.isolates(running, isolation)) {
        Some(running) => Ok(running),
        None => file.load(&host, &object.rules.limits.compile, isolation).await,
    }
}
