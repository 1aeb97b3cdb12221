//! The readiness of the agent: what is missing, and what users should know besides, for `/readyz`, for metrics, and in
//! local mode for `akri get`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use akri_cluster::Manifests;
use akri_cluster::local::write_problems;
use akri_discovery::handler_activity::{HandlerUses, quarantined};
use akri_discovery::registry::Handlers;
use akri_kubelet::{Kubelet, RegistrationCounts};
use akri_model::names::Key;
use akri_model::readiness::AgentProgress;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::debug;

use crate::metrics::Metrics;

/// Changes within this time are written once.
const GATHER: Duration = Duration::from_millis(200);

/// The progress of the agent; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    own: watch::Sender<OwnState>,
    sources: OnceLock<Sources>,
}

#[derive(Debug, Clone, Default)]
struct OwnState {
    listed: bool,
    starting: BTreeSet<Key>,
}

/// The sources of the progress.
#[derive(Debug, Clone)]
pub struct Sources {
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
    /// Reads the progress from these from now on.
    pub fn observe(&self, sources: Sources) {
        let _ = self.0.sources.set(sources); // there is one agent
    }

    /// All Configurations and DiscoveryHandlers have been read once.
    pub fn listed(&self) {
        self.0.own.send_if_modified(|own| !std::mem::replace(&mut own.listed, true));
    }

    /// A Configuration is served from now on.
    pub fn starts(&self, configuration: &Key) {
        self.0.own.send_if_modified(|own| own.starting.insert(configuration.clone()));
    }

    /// The first round of a Configuration has ended, or the Configuration is gone.
    pub fn has_started(&self, configuration: &Key) {
        self.0.own.send_if_modified(|own| own.starting.remove(configuration));
    }

    /// Returns what is missing before the agent is ready.
    pub fn missing(&self) -> Vec<String> {
        self.progress().missing()
    }

    /// Sets the metrics that are read from other parts of the agent.
    pub fn measure(&self, metrics: &Metrics) {
        let AgentProgress { loading, wanted, registered, .. } = self.progress();
        metrics.unregistered(wanted.saturating_sub(registered));
        let Some(sources) = self.0.sources.get() else { return };
        let (refused, quarantined) = (sources.handlers.borrow().refused.len(), quarantined(&sources.activity.borrow()));
        metrics.handlers(loading.map_or(0, |loading| loading.len()), refused, quarantined);
    }

    fn progress(&self) -> AgentProgress {
        let OwnState { listed, starting } = self.0.own.borrow().clone();
        let Some(sources) = self.0.sources.get() else {
            return AgentProgress { listed, starting, ..AgentProgress::default() };
        };
        let resources = *sources.resources.borrow();
        // Without a kubelet nothing is registered, which a local agent need not be.
        let is_registering = !sources.is_kubelet_optional || resources.kubelet != Kubelet::Absent;
        AgentProgress {
            listed,
            starting,
            loading: sources.handlers.borrow().pending.clone(),
            wanted: if is_registering { resources.wanted } else { resources.registered },
            registered: resources.registered,
            kubelet: resources.kubelet.problem(&sources.kubelet),
            journal: sources.journal.borrow().clone(),
            manifests: sources.manifests.borrow().problems.clone(),
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
    pub async fn keep_problems(self, state: PathBuf) {
        let mut written = None;
        let mut own = self.0.own.subscribe();
        let Some(mut sources) = self.0.sources.get().cloned() else { return };
        loop {
            let problems = self.problems();
            if written.as_ref() != Some(&problems) {
                match write_problems(&state, &problems) {
                    Ok(()) => written = Some(problems),
                    Err(error) => debug!("{error}"),
                }
            }
            let changed = tokio::select! {
                changed = own.changed() => changed,
                changed = sources.manifests.changed() => changed,
                changed = sources.handlers.changed() => changed,
                changed = sources.resources.changed() => changed,
                changed = sources.journal.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
            sleep(GATHER).await;
        }
    }
}
