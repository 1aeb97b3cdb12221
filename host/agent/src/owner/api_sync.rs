//! Agreeing with the API server: what it shows is taken over at once, and what this node wants is sent until it shows
//! (rule 28, rule 41, rule 46). The owner waits for none of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_cluster::{Cluster, ClusterError, CreateOutcome};
use akri_model::claim::Entry;
use akri_model::configuration::Configuration;
use akri_model::device::Device;
use akri_model::instance::Instance;
use akri_model::names::{Identity, Key};
use akri_model::retry::{Backoff, RetryPolicy, jitter};
use akri_model::slots::{ApiView, SyncStep};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::OwnerState;
use super::published::PublishedInstance;

/// Longest wait for the API server at the start; Instances are served without it afterwards.
const START: Duration = Duration::from_secs(2);

/// The time after which the cluster no longer shows an Instance because of an event that is late.
const LEAVING: Duration = Duration::from_secs(60);

/// The progress of synchronising one Instance with the API server.
#[derive(Debug)]
pub(super) struct SyncState {
    /// A step is on its way.
    in_flight: bool,
    backoff: Backoff,
    /// The earliest time of the next attempt.
    retry_at: Option<Instant>,
}

impl Default for SyncState {
    fn default() -> Self {
        Self { in_flight: false, backoff: Backoff::new(RetryPolicy::SLOTS), retry_at: None }
    }
}

impl SyncState {
    /// An Allocate waits for the next step: it is not held up by failures before it.
    pub(super) fn try_at_once(&mut self) {
        self.retry_at = None;
    }
}

/// A step towards agreement.
#[derive(Debug)]
pub(super) enum Step {
    /// Change or read the slots of a shared Instance.
    Slots(SyncStep),
    /// Create the Instance again: it was deleted, and its device is there (rule 27).
    Create(Box<Instance>),
}

/// A step that has ended, with the Instance as it is then.
pub(super) type StepResult = (Identity, Result<Option<Instance>, ClusterError>);

impl OwnerState {
    /// Waits for the first listing of Instances, at the start, and takes it over.
    pub(super) async fn wait_for_listing(&mut self) {
        let mut changes = self.context.cluster.usage();
        let key = self.configuration.key.clone();
        let cluster = Arc::clone(&self.context.cluster);
        let listed = timeout(START, async {
            while cluster.list(&key).await.is_err() {
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        });
        if listed.await.is_err() {
            warn!(configuration = %key, "the API server does not answer: free slots of shared devices stay closed");
        }
        self.apply_remote_usage().await;
    }

    /// Takes over what the API server shows of all Instances.
    pub(super) async fn apply_remote_usage(&mut self) {
        let Ok(shown) = self.context.cluster.list(&self.configuration.key).await else { return };
        let adopted = self.adopt_unknown(&shown).await;
        let shown: BTreeMap<&str, &Instance> = shown.iter().map(|shown| (shown.key.name.as_str(), shown)).collect();
        // One Instance has changed, of perhaps a thousand, while an Allocate of the next may be waiting.
        let outdated = self.published.iter().filter_map(|(identity, published)| {
            let shown = shown.get(published.entry().key.name.as_str()).copied();
            let shown = shown.filter(|shown| is_of(shown, published));
            let is_known = shown.is_some_and(|shown| published.has_observed(shown));
            (!is_known).then(|| (identity.clone(), shown))
        });
        let mut changed = Vec::new();
        for (identity, shown) in outdated.collect::<Vec<_>>() {
            if self.take_view(&identity, shown) {
                changed.push(identity);
            }
        }
        self.changed(changed).await;
        if adopted {
            self.find_again().await;
        }
    }

    /// Takes Instances of this node that the journal does not know into service, for the containers that use them. Their
    /// devices are not handed out before a round has found them, and go if it does not (rule 28). An Instance whose
    /// creation was not confirmed is among them once its device has gone; until then the next attempt finds it. Returns whether
    /// there were any.
    async fn adopt_unknown(&mut self, shown: &[Instance]) -> bool {
        self.leaving.retain(|uid, (_, since)| since.elapsed() < LEAVING || shown.iter().any(|shown| shown.uid == *uid));
        let is_unknown = |instance: &&Instance| {
            let is_known = |identity| self.published.contains_key(identity) || self.pending.contains_key(identity);
            instance.identity.as_ref().is_some_and(|identity| !is_known(identity))
                && instance.nodes.contains(&self.context.node)
                && instance.configuration_uid == self.configuration.uid
                && !self.leaving.contains_key(&instance.uid)
        };
        let mut unknown: Vec<&Instance> = shown.iter().filter(is_unknown).collect();
        if !unknown.is_empty() {
            let found = self.found_identities();
            unknown.retain(|instance| instance.identity.as_ref().is_some_and(|identity| !found.contains(identity)));
        }
        // Of several Instances with one identity at most one is not forged: that of which the journal has claims comes first.
        unknown
            .sort_by_key(|instance| !instance.identity.as_ref().is_some_and(|of| self.orphans.has(of, &instance.key)));
        for instance in &unknown {
            self.adopt(instance).await;
        }
        !unknown.is_empty()
    }

    async fn adopt(&mut self, instance: &Instance) {
        let Some(identity) = instance.identity.clone().filter(|of| !self.published.contains_key(of)) else { return };
        warn!(instance = %instance.key, "not in the journal: its claims are those that are published");
        let entry =
            Entry { claims: self.orphans.claims_of(&identity), ..forgotten(&self.configuration, instance, &identity) };
        let old = self.orphans.take(&identity).filter(|old| *old != entry.key);
        let published = PublishedInstance::new(entry, &self.context.node, &self.context.claims, true);
        // The claims are in the journal all the time.
        self.save(&published).await;
        if let Some(old) = old {
            self.forget(old).await;
        }
        self.published.insert(identity, published);
    }

    /// Takes over what the API server shows of one Instance; none if it does not exist. Returns whether that is new.
    pub(super) async fn observe(&mut self, identity: &Identity, shown: Option<&Instance>) -> bool {
        let changed = self.take_view(identity, shown);
        if changed {
            self.changed(vec![identity.clone()]).await;
        }
        changed
    }

    fn take_view(&mut self, identity: &Identity, shown: Option<&Instance>) -> bool {
        let Some(published) = self.published.get_mut(identity) else { return false };
        let (adopted, object_events, changed) = published.observe(shown, &self.context.claims);
        for slot in adopted {
            warn!(instance = %published.entry().key, slot, "the API server has a claim of this node that the journal lacks");
            let usage = published.slots.claims().find(|(held, _)| *held == slot).map(|(_, claim)| claim.usage.clone());
            let edits = published.edits_for(&self.configuration, slot, &usage.unwrap_or_default());
            published.edits.insert(slot, edits);
        }
        object_events.into_iter().for_each(|object_event| self.context.cluster.record_event(object_event));
        self.unsynced.insert(identity.clone());
        changed
    }

    /// Starts the next step of each Instance that needs one, unless one is on its way or has to wait.
    pub(super) fn start_steps(&mut self) {
        let now = Instant::now();
        for identity in std::mem::take(&mut self.unsynced) {
            let Some(published) = self.published.get_mut(&identity) else { continue };
            if published.sync.in_flight {
                continue; // its end brings the Instance here again
            }
            let Some(step) = next_step(published, &self.configuration, &self.context.node) else {
                published.sync = SyncState::default();
                continue;
            };
            if published.sync.retry_at.is_some_and(|at| at > now) {
                self.delayed.insert(identity);
                continue;
            }
            published.sync.in_flight = true;
            let (context, key) = (Arc::clone(&self.context), published.entry().key.clone());
            self.steps.spawn(async move {
                let _permit = context.api_writes.acquire().await;
                let result = perform(&*context.cluster, &key, step).await;
                (identity, result)
            });
        }
    }

    /// A step has ended.
    pub(super) async fn step_ended(&mut self, ended: Option<StepResult>) {
        let Some((identity, result)) = ended else { return };
        let Some(published) = self.published.get_mut(&identity) else { return };
        published.sync.in_flight = false;
        self.unsynced.insert(identity.clone());
        let progress = match result {
            Ok(shown) => {
                let shown = shown.filter(|shown| is_of(shown, published));
                self.observe(&identity, shown.as_ref()).await
            }
            Err(error) => {
                warn!(instance = %published.entry().key, %error, "agreeing with the API server failed; retrying");
                self.context.metrics.sync_failed();
                false
            }
        };
        let Some(published) = self.published.get_mut(&identity) else { return };
        let sync = &mut published.sync;
        if progress {
            sync.backoff.reset();
            sync.retry_at = None;
        } else {
            sync.retry_at = Some(Instant::now() + sync.backoff.failed(jitter()));
        }
    }

    /// Returns the time of the next delayed step.
    pub(super) fn next_step_at(&self) -> Option<Instant> {
        let delayed = self.delayed.iter().filter_map(|identity| self.published.get(identity));
        delayed.filter_map(|published| published.sync.retry_at).min()
    }

    /// Lets delayed steps that are due start.
    pub(super) fn wake_delayed(&mut self) {
        self.unsynced.append(&mut self.delayed);
    }
}

/// Returns whether an Instance is of this device: another device may have got its name.
fn is_of(shown: &Instance, published: &PublishedInstance) -> bool {
    shown.identity.as_ref().is_none_or(|identity| *identity == published.entry().identity)
}

fn next_step(published: &PublishedInstance, configuration: &Configuration, node: &str) -> Option<Step> {
    match published.slots.api() {
        ApiView::Absent => Some(Step::Create(Box::new(published.instance(configuration, node)))),
        _ => published.slots.next_step().map(Step::Slots),
    }
}

async fn perform(cluster: &dyn Cluster, key: &Key, step: Step) -> Result<Option<Instance>, ClusterError> {
    match step {
        Step::Slots(SyncStep::Patch(patch)) => cluster.patch_slots(key, &patch).await,
        Step::Slots(SyncStep::Read) => cluster.get(key).await,
        Step::Create(wanted) => create(cluster, &wanted).await.map(Some),
    }
}

/// Creates an Instance with the slots as this node knows them (rule 43).
async fn create(cluster: &dyn Cluster, wanted: &Instance) -> Result<Instance, ClusterError> {
    match cluster.create(wanted).await? {
        CreateOutcome::New(instance) => {
            info!(instance = %instance.key, "created again");
            Ok(instance)
        }
        CreateOutcome::Taken(other) if other.identity == wanted.identity => Ok(other),
        CreateOutcome::Taken(other) => Err(ClusterError::Refused(format!("another device has the name {}", other.key))),
    }
}

fn forgotten(configuration: &Configuration, instance: &Instance, identity: &Identity) -> Entry {
    Entry {
        key: instance.key.clone(),
        uid: instance.uid.clone(),
        identity: identity.clone(),
        configuration: configuration.key.name.clone(),
        configuration_uid: configuration.uid.clone(),
        shared: instance.shared,
        capacity: configuration.capacity,
        device: Device { properties: instance.properties.clone(), ..Device::default() },
        online: instance.online,
        withheld: true,
        claims: Default::default(),
    }
}
