//! Which component handlers there are: DiscoveryHandler objects and the component files they name, loaded and checked.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use akri_api::HandlerRules;
use akri_sandbox::{Component, Host};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{error, info};

use crate::cluster::{HandlerObject, Manifests};
use crate::uevent::Uevents;
use crate::watch_dir::{WatchDir, any_changed};

/// Largest component file.
const MAX_COMPONENT: u64 = 64 << 20;

/// Pause between rounds of a handler that names none.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);

/// A handler that is ready to run.
#[derive(Clone)]
pub struct Handler {
    /// The component.
    pub component: Component,
    /// What its DiscoveryHandler object says.
    pub rules: HandlerRules,
    /// Whether many nodes see its devices.
    pub shared: bool,
    /// Pause between rounds.
    pub interval: Duration,
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").field("digest", &self.component.digest()).finish_non_exhaustive()
    }
}

impl PartialEq for Handler {
    fn eq(&self, other: &Self) -> bool {
        self.component.digest() == other.component.digest()
            && (&self.rules, self.shared, self.interval) == (&other.rules, other.shared, other.interval)
    }
}

/// The handlers at one moment, by the name Configurations use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Handlers {
    /// Those that can run.
    pub ready: BTreeMap<String, Arc<Handler>>,
    /// DiscoveryHandler objects that can't, and why.
    pub refused: BTreeMap<String, String>,
    /// All objects of the manifests have been looked at; before that an absent handler may only be slow to load.
    pub settled: bool,
    /// What starts rounds before their time.
    pub uevents: Uevents,
}

/// Why a component is not used.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("cannot read component '{}': {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("component '{}' is larger than {MAX_COMPONENT} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("component '{}' has digest sha256:{actual}, the object wants sha256:{wanted}", path.display())]
    Digest { path: PathBuf, actual: String, wanted: String },
    #[error("component '{}': {reason}", path.display())]
    Load { path: PathBuf, reason: String },
    #[error("handler '{name}' is already served by DiscoveryHandler '{holder}'")]
    NameTaken { name: String, holder: String },
    #[error(
        "the new component says name '{now}' and shared {shared_now}, the running one '{before}' and {shared_before}"
    )]
    OtherHandler { before: String, shared_before: bool, now: String, shared_now: bool },
}

/// Loads handlers and keeps them current.
pub struct Registry {
    handlers: watch::Receiver<Arc<Handlers>>,
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
        let loader = Loader { host, directories, uevents, loaded: BTreeMap::new(), told: BTreeMap::new() };
        Self { handlers, task: tokio::spawn(loader.run(manifests, sender)) }
    }

    /// The handlers now, and every change.
    pub fn handlers(&self) -> watch::Receiver<Arc<Handlers>> {
        self.handlers.clone()
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
    /// What runs for each object.
    loaded: BTreeMap<String, Arc<Handler>>,
    /// Refusals already logged.
    told: BTreeMap<String, String>,
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
        let mut handlers = Handlers { settled: true, uevents: self.uevents.clone(), ..Handlers::default() };
        let mut holders: BTreeMap<String, String> = BTreeMap::new();
        for (name, object) in &manifests.handlers {
            if let Err(refusal) = self.load(name, object).await {
                handlers.refused.insert(name.clone(), refusal.to_string());
            }
            let Some(handler) = self.loaded.get(name) else { continue };
            let served = handler.component.description().name.clone();
            if let Some(holder) = holders.get(&served) {
                let refusal = Refusal::NameTaken { name: served, holder: holder.clone() };
                handlers.refused.insert(name.clone(), refusal.to_string());
                continue;
            }
            holders.insert(served.clone(), name.clone());
            handlers.ready.insert(served, Arc::clone(handler));
        }
        handlers
    }

    /// Brings the handler of one object up to date. When that fails, the one that runs goes on running.
    async fn load(&mut self, name: &str, object: &HandlerObject) -> Result<(), Refusal> {
        let running = self.loaded.get(name).cloned();
        let path = self.locate(&object.file);
        let bytes = read(&path).await?;
        let digest = hex(&Sha256::digest(&bytes));
        if let Some(wanted) = object.digest.as_ref().filter(|wanted| **wanted != digest) {
            return Err(Refusal::Digest { path, actual: digest, wanted: wanted.clone() });
        }
        let component = match &running {
            Some(running) if running.component.digest() == digest => running.component.clone(),
            _ => self.compile(path, bytes).await?,
        };
        let handler = ready(component, &object.rules);
        if let Some(running) = &running {
            same_handler(running, &handler)?;
        }
        if running.as_deref() != Some(&handler) {
            info!(handler = handler.component.description().name, object = name, %digest, "handler ready");
            self.loaded.insert(name.to_owned(), Arc::new(handler));
        }
        Ok(())
    }

    async fn compile(&self, path: PathBuf, bytes: Vec<u8>) -> Result<Component, Refusal> {
        self.host.load(bytes).await.map_err(|error| Refusal::Load { path, reason: error.to_string() })
    }

    fn locate(&self, file: &str) -> PathBuf {
        let paths = self.directories.iter().map(|directory| directory.join(file));
        let first = self.directories.first().map(|directory| directory.join(file));
        paths.into_iter().find(|path| path.exists()).or(first).unwrap_or_else(|| PathBuf::from(file))
    }

    fn tell(&mut self, refused: &BTreeMap<String, String>) {
        for (object, reason) in refused.iter().filter(|(object, reason)| self.told.get(*object) != Some(*reason)) {
            error!(object, "DiscoveryHandler refused: {reason}");
        }
        self.told = refused.clone();
    }
}

/// What a DiscoveryHandler object makes of a component.
pub fn ready(component: Component, rules: &HandlerRules) -> Handler {
    let description = component.description();
    Handler {
        shared: rules.shared.unwrap_or(description.shared),
        interval: rules.interval.or(description.interval).unwrap_or(DEFAULT_INTERVAL),
        rules: rules.clone(),
        component,
    }
}

/// A reload must not turn a handler into another one: names of Instances depend on it.
fn same_handler(before: &Handler, now: &Handler) -> Result<(), Refusal> {
    let name = |handler: &Handler| handler.component.description().name.clone();
    if name(before) == name(now) && before.shared == now.shared {
        return Ok(());
    }
    Err(Refusal::OtherHandler {
        before: name(before),
        shared_before: before.shared,
        now: name(now),
        shared_now: now.shared,
    })
}

async fn read(path: &Path) -> Result<Vec<u8>, Refusal> {
    let failed = |source| Refusal::Read { path: path.to_owned(), source };
    let size = tokio::fs::metadata(path).await.map_err(failed)?.len();
    if size > MAX_COMPONENT {
        return Err(Refusal::TooLarge { path: path.to_owned() });
    }
    tokio::fs::read(path).await.map_err(failed)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String can't fail
        text
    })
}
