//! The registry of component handlers: DiscoveryHandler objects and the component files they name, loaded and checked
//! (rule 91).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use akri_api::{ComponentSource, HandlerRules};
use akri_cluster::{HandlerObject, Manifests};
use akri_model::handler_names::{LastComponent, NameService};
use akri_node::saved::Saved;
use akri_sandbox::{Component, Host};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::handler_activity::HandlerActivity;
use crate::images::Images;
use crate::load_progress::LoadStep;
use crate::loader::Loader;

/// Pause between rounds of a handler that names none.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);

/// A handler that is ready to run.
#[derive(Clone)]
pub struct Handler {
    /// Name of its DiscoveryHandler object.
    pub object: String,
    /// UID of that object when its component was loaded.
    pub(crate) uid: String,
    /// The component.
    pub component: Component,
    /// The place it was loaded from.
    pub source: ComponentSource,
    /// Grants and limits of its DiscoveryHandler object.
    pub rules: HandlerRules,
    /// True if several nodes see its devices.
    pub shared: bool,
    /// Pause between rounds.
    pub interval: Duration,
    /// The Configurations that use it.
    pub activity: HandlerActivity,
    /// The turn of its rounds to have their devices checked.
    pub(crate) admission: Arc<Semaphore>,
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").field("digest", &self.component.digest()).finish_non_exhaustive()
    }
}

impl PartialEq for Handler {
    fn eq(&self, other: &Self) -> bool {
        self.component.digest() == other.component.digest()
            && self.component.isolation() == other.component.isolation()
            && (&self.object, &self.uid, &self.source, &self.rules, self.shared, self.interval)
                == (&other.object, &other.uid, &other.source, &other.rules, other.shared, other.interval)
    }
}

impl Handlers {
    /// Returns whether an object claims that name.
    pub(crate) fn is_claimed_by(&self, name: &str, object: &str) -> bool {
        self.claims.get(object).is_some_and(|claimed| claimed == name)
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
    /// The handlers that can run.
    pub ready: BTreeMap<String, Arc<Handler>>,
    /// The service of each name that objects claim.
    pub names: BTreeMap<String, NameService>,
    /// The name that each object claims.
    pub claims: BTreeMap<String, String>,
    /// DiscoveryHandler objects that can't be as they are, and why. An earlier version of one may be ready all the same.
    pub refused: BTreeMap<String, Refused>,
    /// DiscoveryHandler objects whose components are being pulled or compiled, for longer than a moment.
    pub loading: BTreeMap<String, LoadStep>,
    /// DiscoveryHandler objects that are neither loaded nor refused; none before the objects were looked at.
    pub pending: Option<BTreeSet<String>>,
    /// The UID and the generation of each DiscoveryHandler object that was loaded or refused last.
    pub looked_at: BTreeMap<String, (String, i64)>,
    /// All objects of the manifests have been loaded or refused; before that an absent handler may only be slow to load.
    pub settled: bool,
}

/// The reason for refusing a DiscoveryHandler object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// A CamelCase word for programs.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
    /// Set if the reason may pass by itself, so that loading is tried again.
    pub is_temporary: bool,
}

impl Refused {
    /// Returns a reason that lasts until something is changed.
    pub(crate) fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message, is_temporary: false }
    }

    /// Returns a reason that may pass by itself.
    pub(crate) fn temporary(reason: &'static str, message: String) -> Self {
        Self { reason, message, is_temporary: true }
    }
}

/// Loads handlers and keeps them current.
pub struct Registry {
    /// The handlers now, and every change.
    pub handlers: watch::Receiver<Arc<Handlers>>,
    /// The activity of all handlers.
    pub activity: HandlerActivity,
    _task: JoinSet<()>,
}

impl Registry {
    /// Starts loading what the manifests name from the component directories; of two files of one name the one in the
    /// earlier directory counts. The state directory keeps which object serves which name, and with which `shared`.
    pub fn start(
        host: Host,
        directories: Vec<PathBuf>,
        images: Images,
        manifests: watch::Receiver<Arc<Manifests>>,
        state: Option<&Path>,
    ) -> Self {
        let (sender, handlers) = watch::channel(Arc::default());
        let activity = HandlerActivity::default();
        let (names, last) = (Saved::open(state, "handler-names.json"), Saved::open(state, "handler-components.json"));
        let loader = Loader::new(host, directories, images, activity.clone(), names, last);
        Self { handlers, activity, _task: JoinSet::from_iter([loader.run(manifests, sender)]) }
    }
}

impl Handler {
    /// A component under the rules of its object.
    pub(crate) fn new(object: &str, wanted: &HandlerObject, component: Component, activity: &HandlerActivity) -> Self {
        let description = component.description();
        Self {
            object: object.to_owned(),
            uid: wanted.generation.0.clone(),
            shared: wanted.rules.shared.unwrap_or(description.shared),
            interval: wanted.rules.interval.or(description.interval).unwrap_or(DEFAULT_INTERVAL),
            rules: wanted.rules.clone(),
            source: wanted.source.clone(),
            component,
            activity: activity.clone(),
            admission: Arc::new(Semaphore::new(1)),
        }
    }

    /// Returns the running component with the rules of the object as it is now; `None` if the object pins another digest or is for
    /// another handler. So an object whose new component is refused leaves no handler with grants that it revoked.
    pub(crate) fn kept(&self, object: &HandlerObject) -> Option<Self> {
        let allowed = object.digest.as_ref().is_none_or(|wanted| wanted == self.component.digest())
            && object.name.as_ref().is_none_or(|wanted| wanted == self.name());
        let interval = object.rules.interval.or(self.component.description().interval).unwrap_or(DEFAULT_INTERVAL);
        allowed.then(|| Self { rules: object.rules.clone(), interval, ..self.clone() })
    }

    /// Checks that the handler is the one its object names, and that it leaves `shared` as it was before: names of Instances
    /// depend on it.
    pub(crate) fn replace(self, before: Option<&LastComponent>, object: &HandlerObject) -> Result<Self, Refused> {
        if let Some(wanted) = object.name.as_ref().filter(|wanted| *wanted != self.name()) {
            let message = format!(
                "the component is the handler '{name}', the DiscoveryHandler is for '{wanted}'; set spec.name to '{name}', or name \
                 a component of '{wanted}'",
                name = self.name()
            );
            return Err(Refused::new("NameMismatch", message));
        }
        let is_other = |before: &LastComponent| before.name == self.name() && before.shared != self.shared;
        if before.is_some_and(|before| before.uid == self.uid && is_other(before)) {
            let message = format!(
                "the new component says shared {}, the one before {}; if that is meant, delete the DiscoveryHandler and make \
                 it anew",
                self.shared, !self.shared
            );
            return Err(Refused::new("OtherHandler", message));
        }
        Ok(self)
    }

    /// Returns what its successors are compared with.
    pub(crate) fn last(&self) -> LastComponent {
        LastComponent { uid: self.uid.clone(), name: self.name().to_owned(), shared: self.shared }
    }
}
