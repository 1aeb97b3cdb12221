//! Which component handlers there are: DiscoveryHandler objects and the component files they name, loaded and checked
//! (rule 41).

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use akri_api::HandlerRules;
use akri_sandbox::{Component, Host};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

use super::component_file::{ComponentFile, MAX_COMPONENT};
use super::standing::Standings;
use crate::cluster::{HandlerObject, Manifests};
use crate::uevent::Uevents;
use crate::watch_dir::{WatchDir, any_changed};

/// Pause between rounds of a handler that names none.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);

/// A handler that is ready to run.
#[derive(Clone)]
pub struct Handler {
    /// Name of its DiscoveryHandler object.
    pub object: String,
    /// The component.
    pub component: Component,
    /// What its DiscoveryHandler object says.
    pub rules: HandlerRules,
    /// Whether many nodes see its devices.
    pub shared: bool,
    /// Pause between rounds.
    pub interval: Duration,
    /// What runs it.
    pub host: Host,
    /// Who uses it.
    pub standings: Standings,
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").field("digest", &self.component.digest()).finish_non_exhaustive()
    }
}

impl PartialEq for Handler {
    fn eq(&self, other: &Self) -> bool {
        self.component.digest() == other.component.digest()
            && (&self.object, &self.rules, self.shared, self.interval)
                == (&other.object, &other.rules, other.shared, other.interval)
    }
}

impl Handler {
    /// The name Configurations use.
    pub fn name(&self) -> &str {
        &self.component.description().name
    }
}

/// The handlers at one moment, by the name Configurations use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Handlers {
    /// Those that can run.
    pub ready: BTreeMap<String, Arc<Handler>>,
    /// DiscoveryHandler objects that can't be as they are, and why. An earlier version of one may be ready all the same.
    pub refused: BTreeMap<String, Refused>,
    /// All objects of the manifests have been looked at; before that an absent handler may only be slow to load.
    pub settled: bool,
    /// What starts rounds before their time.
    pub uevents: Uevents,
}

/// Why a DiscoveryHandler object can't be as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// A CamelCase word for programs.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Why a component is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("cannot read component '{}': {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("component '{}' is larger than {MAX_COMPONENT} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("component '{}' has digest sha256:{actual}, the object wants sha256:{wanted}", path.display())]
    Digest { path: PathBuf, actual: String, wanted: String },
    #[error("component '{}': {reason}", path.display())]
    Load { path: PathBuf, reason: String },
    #[error(
        "handler '{name}' is served by DiscoveryHandler '{holder}': delete one of them, or give this one the name \
         '{holder}' to replace it"
    )]
    NameTaken { name: String, holder: String },
    #[error(
        "the new component says name '{now}' and shared {shared_now}, the running one '{before}' and {shared_before}; \
         if that is meant, delete the DiscoveryHandler and make it anew"
    )]
    OtherHandler { before: String, shared_before: bool, now: String, shared_now: bool },
}

impl Refusal {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Read { .. } => "Unreadable",
            Self::TooLarge { .. } => "TooLarge",
            Self::Digest { .. } => "DigestMismatch",
            Self::Load { .. } => "Invalid",
            Self::NameTaken { .. } => "NameTaken",
            Self::OtherHandler { .. } => "OtherHandler",
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { reason: refusal.reason(), message: refusal.to_string() }
    }
}

/// Loads handlers and keeps them current.
pub struct Registry {
    handlers: watch::Receiver<Arc<Handlers>>,
    standings: Standings,
    task: JoinHandle<()>,
}

impl Registry {
    /// Starts loading what the manifests name from the component directories; of two files of one name the one in the
    /// earlier directory counts.
    pub fn start(
        host: Host,
        directories: Vec<PathBuf>,
        manifests: watch::Receiver<Arc<Manifests>>,
        uevents: Uevents,
    ) -> Self {
        let (sender, handlers) = watch::channel(Arc::default());
        let standings = Standings::default();
        let loader = Loader {
            host,
            directories,
            uevents,
            standings: standings.clone(),
            loaded: BTreeMap::new(),
            serving: BTreeMap::new(),
            ready: BTreeMap::new(),
            told: BTreeMap::new(),
        };
        Self { handlers, standings, task: tokio::spawn(loader.run(manifests, sender)) }
    }

    /// The handlers now, and every change.
    pub fn handlers(&self) -> watch::Receiver<Arc<Handlers>> {
        self.handlers.clone()
    }

    /// How they are doing.
    pub fn standings(&self) -> Standings {
        self.standings.clone()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Loader {
    host: Host,
    directories: Vec<PathBuf>,
    uevents: Uevents,
    standings: Standings,
    /// What runs for each object.
    loaded: BTreeMap<String, Arc<Handler>>,
    /// Which object serves each name. It keeps it for as long as it is loaded, whoever else comes.
    serving: BTreeMap<String, String>,
    /// Those of which the log knows that they are ready.
    ready: BTreeMap<String, Arc<Handler>>,
    /// Refusals already logged.
    told: BTreeMap<String, Refused>,
}

impl Loader {
    async fn run(mut self, mut manifests: watch::Receiver<Arc<Manifests>>, sender: watch::Sender<Arc<Handlers>>) {
        let mut watched: Vec<WatchDir> = self.directories.iter().map(|directory| WatchDir::new(directory)).collect();
        loop {
            let objects = manifests.borrow_and_update().clone();
            let handlers = self.load_all(&objects).await;
            self.tell(&handlers.refused);
            sender.send_if_modified(|current| {
                let changed = **current != handlers;
                *current = Arc::new(handlers);
                changed
            });
            tokio::select! {
                changed = manifests.changed() => if changed.is_err() { return },
                () = any_changed(&mut watched) => {}
            }
        }
    }

    async fn load_all(&mut self, manifests: &Manifests) -> Handlers {
        if manifests.complete {
            self.loaded.retain(|object, _| manifests.handlers.contains_key(object));
        }
        let mut refused = BTreeMap::new();
        for (name, object) in &manifests.handlers {
            if let Err(refusal) = self.load(name, object).await {
                refused.insert(name.clone(), Refused::from(refusal));
            }
        }
        let ready = self.serve(&mut refused);
        for (name, handler) in ready.iter().filter(|(name, handler)| self.ready.get(*name) != Some(*handler)) {
            info!(handler = name, object = handler.object, digest = handler.component.digest(), "handler ready");
        }
        self.ready.clone_from(&ready);
        Handlers { ready, refused, settled: true, uevents: self.uevents.clone() }
    }

    /// Brings the handler of one object up to date. When that fails, the one that runs goes on running, but never with
    /// more than the object grants today, and not at all if the object wants another digest.
    async fn load(&mut self, name: &str, object: &HandlerObject) -> Result<(), Refusal> {
        let running = self.loaded.get(name).cloned();
        let fetched = self.fetch(name, object, running.as_deref()).await;
        let (next, refusal) = match fetched.and_then(|fetched| succeed(running.as_deref(), fetched)) {
            Ok(next) => (Some(next), None),
            Err(refusal) => (running.as_deref().and_then(|running| running.kept(object)), Some(refusal)),
        };
        match next {
            Some(next) if running.as_deref() != Some(&next) => {
                self.loaded.insert(name.to_owned(), Arc::new(next));
            }
            Some(_) => {}
            None if self.loaded.remove(name).is_some() => {
                warn!(object = name, "the handler that ran is not allowed any more")
            }
            None => {}
        }
        refusal.map_or(Ok(()), Err)
    }

    /// The handler that the object asks for.
    async fn fetch(&self, name: &str, object: &HandlerObject, running: Option<&Handler>) -> Result<Handler, Refusal> {
        let file = ComponentFile::read(&self.directories, &object.file).await?;
        if let Some(wanted) = object.digest.as_ref().filter(|wanted| **wanted != file.digest) {
            return Err(Refusal::Digest { path: file.path, actual: file.digest, wanted: wanted.clone() });
        }
        let component = match running.filter(|running| running.component.digest() == file.digest) {
            Some(running) => running.component.clone(),
            None => file.load(&self.host).await?,
        };
        let description = component.description();
        Ok(Handler {
            object: name.to_owned(),
            shared: object.rules.shared.unwrap_or(description.shared),
            interval: object.rules.interval.or(description.interval).unwrap_or(DEFAULT_INTERVAL),
            rules: object.rules.clone(),
            component,
            host: self.host.clone(),
            standings: self.standings.clone(),
        })
    }

    /// Which of those loaded serve: two of one name would be one too many. Who serves goes on serving; of several that
    /// come at once, as at a start, it is the one that is named like its handler, or else the first by name.
    fn serve(&mut self, refused: &mut BTreeMap<String, Refused>) -> BTreeMap<String, Arc<Handler>> {
        let loaded = &self.loaded;
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

    fn tell(&mut self, refused: &BTreeMap<String, Refused>) {
        for (object, reason) in refused.iter().filter(|(object, reason)| self.told.get(*object) != Some(*reason)) {
            error!(object, "DiscoveryHandler refused: {reason}");
        }
        self.told = refused.clone();
    }
}

impl Handler {
    /// The same component under the rules of today, if it is still allowed: an object that can't be had as it is must not
    /// leave a handler with what was taken from it.
    fn kept(&self, object: &HandlerObject) -> Option<Self> {
        let allowed = object.digest.as_ref().is_none_or(|wanted| wanted == self.component.digest());
        let interval = object.rules.interval.or(self.component.description().interval).unwrap_or(DEFAULT_INTERVAL);
        allowed.then(|| Self { rules: object.rules.clone(), interval, ..self.clone() })
    }
}

/// A reload must not turn a handler into another one: names of Instances depend on it.
fn succeed(before: Option<&Handler>, now: Handler) -> Result<Handler, Refusal> {
    match before {
        Some(before) if (before.name(), before.shared) != (now.name(), now.shared) => Err(Refusal::OtherHandler {
            before: before.name().to_owned(),
            shared_before: before.shared,
            now: now.name().to_owned(),
            shared_now: now.shared,
        }),
        _ => Ok(now),
    }
}
