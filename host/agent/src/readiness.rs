//! The readiness of the agent: what is missing, and what users should know besides, for `/readyz`, for metrics, and in
//! local mode for `akri get`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use akri_cluster::Manifests;
use akri_discovery::handler_activity::{HandlerUses, quarantined};
use akri_discovery::registry::Handlers;
use akri_kubelet::{Kubelet, RegistrationCounts};
use akri_model::names::Key;
use akri_model::readiness::{AgentProgress, PROBLEMS};
use akri_node::saved::Saved;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::metrics::{Metrics, number};

/// Changes within this time are written once.
const GATHER: Duration = Duration::from_millis(200);

/// The progress of owners and their supervisor; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Startup(Arc<watch::Sender<StartupState>>);

#[derive(Debug, Clone, Default)]
struct StartupState {
    listed: bool,
    starting: BTreeSet<Key>,
}

impl Startup {
    /// All Configurations and DiscoveryHandlers have been read once.
    pub fn listed(&self) {
        self.0.send_if_modified(|state| !std::mem::replace(&mut state.listed, true));
    }

    /// A Configuration is served from now on.
    pub fn starts(&self, configuration: &Key) {
        self.0.send_if_modified(|state| state.starting.insert(configuration.clone()));
    }

    /// The first round of a Configuration has ended, or the Configuration is gone.
    pub fn has_started(&self, configuration: &Key) {
        self.0.send_if_modified(|state| state.starting.remove(configuration));
    }
}

/// The sources of the progress of the agent.
#[derive(Debug, Clone)]
pub struct Readiness {
    /// The Configurations that are served.
    pub startup: Startup,
    /// The manifests.
    pub manifests: watch::Receiver<Arc<Manifests>>,
    /// The component handlers.
    pub handlers: watch::Receiver<Arc<Handlers>>,
    /// The Configurations that use them.
    pub activity: watch::Receiver<BTreeMap<String, HandlerUses>>,
    /// The resources.
    pub resources: watch::Receiver<RegistrationCounts>,
    /// The error of the last write to the journal.
    pub journal: watch::Receiver<Option<String>>,
    /// The kubelet's socket.
    pub kubelet: PathBuf,
    /// Set if the agent works without a kubelet, too.
    pub is_kubelet_optional: bool,
}

impl Readiness {
    /// Returns what is missing before the agent is ready.
    pub fn missing(&self) -> Vec<String> {
        self.progress().missing()
    }

    /// Sets the metrics that are read from other parts of the agent.
    pub fn measure(&self, metrics: &Metrics) {
        let AgentProgress { loading, wanted, registered, .. } = self.progress();
        metrics.unregistered.set(number(wanted.saturating_sub(registered)));
        metrics.handlers_loading.set(number(loading.map_or(0, |loading| loading.len())));
        metrics.handlers_refused.set(number(self.handlers.borrow().refused.len()));
        metrics.handlers_quarantined.set(number(quarantined(&self.activity.borrow())));
    }

    fn progress(&self) -> AgentProgress {
        let StartupState { listed, starting } = self.startup.0.borrow().clone();
        let resources = *self.resources.borrow();
        // Without a kubelet nothing is registered, which a local agent need not be.
        let is_registering = !self.is_kubelet_optional || resources.kubelet != Kubelet::Absent;
        AgentProgress {
            listed,
            starting,
            loading: self.handlers.borrow().pending.clone(),
            wanted: if is_registering { resources.wanted } else { resources.registered },
            registered: resources.registered,
            kubelet: resources.kubelet.problem(&self.kubelet),
            journal: self.journal.borrow().clone(),
            manifests: self.manifests.borrow().problems.clone(),
        }
    }

    /// Returns warnings for users.
    fn problems(&self) -> Vec<String> {
        let progress = self.progress();
        let mut problems = progress.missing();
        if progress.listed {
            problems.extend(progress.manifests);
        }
        // Where resources lack it, it is named with them.
        problems.extend(progress.kubelet.filter(|_| progress.wanted <= progress.registered));
        problems
    }

    /// Keeps the problems in a state directory, where `akri get` reads them.
    pub async fn keep_problems(mut self, state: PathBuf) {
        let (mut kept, mut startup) = (Saved::open(Some(&state), PROBLEMS), self.startup.0.subscribe());
        loop {
            *kept = self.problems();
            kept.save();
            let changed = tokio::select! {
                changed = startup.changed() => changed,
                changed = self.manifests.changed() => changed,
                changed = self.handlers.changed() => changed,
                changed = self.resources.changed() => changed,
                changed = self.journal.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
            sleep(GATHER).await;
        }
    }
}
