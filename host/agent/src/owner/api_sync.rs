//! Agreeing with the API server: what it shows is taken over at once, and what this node wants is sent until it shows
//! (rule 28, rule 41, rule 46). The owner waits for none of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_cluster::{Cluster, ClusterError, ClusterResult, CreateOutcome};
use akri_model::claim::Entry;
use akri_model::claim_machine::ManagedInstance;
use akri_model::configuration::Configuration;
use akri_model::device::Device;
use akri_model::instance::Instance;
use akri_model::names::{HashInput, HashLength, Identity, Key, has_usual_name, instance_name, slot_name};
use akri_model::retry::jitter;
use akri_model::slots::{ApiView, PublishedSlots, SlotState, SyncStep, read_usage};
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use super::OwnerState;
use super::naming::standing;
use super::totals::next_look;

/// Longest wait for the API server at the start; Instances are served without it afterwards.
const START: Duration = Duration::from_secs(2);

/// The time from a change of an Instance, of perhaps a thousand, to a look at all: more may change, and the answer to an Allocate, which
/// is such a change, comes first.
const LOOK: Duration = Duration::from_millis(20);

/// The time until the next look while the cluster shows nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The time after which the cluster no longer shows an Instance because of an event that is late.
const LEAVING: Duration = Duration::from_secs(60);

/// A step that has ended, with the number of lists when it began and the Instance as it is then.
pub(super) type StepResult = (Identity, u64, ClusterResult<Option<Instance>>);

impl OwnerState {
    /// Waits for the first listing of Instances, at the start, and takes it over.
    pub(super) async fn wait_for_listing(&mut self) {
        let mut changes = self.context.cluster.watches().usage.subscribe();
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

    /// The API server shows something new.
    pub(super) fn expect_remote_usage(&mut self) {
        let look = self.earliest_look.max(Instant::now() + LOOK);
        self.look_at = Some(self.look_at.map_or(look, |at| at.min(look)));
    }

    /// Takes over what the API server shows of all Instances.
    pub(super) async fn apply_remote_usage(&mut self) {
        self.look_at = None;
        let began = Instant::now();
        let history = *self.context.cluster.watches().true_lists.borrow(); // a list that comes now counts the next time
        let Ok(shown) = self.context.cluster.list(&self.configuration.key).await else {
            self.look_at = Some(began + LOOK_AGAIN);
            return;
        };
        if !std::mem::replace(&mut self.is_listed, true) {
            self.unsynced.extend(self.machine.instances().keys().cloned());
        }
        self.serve_findings(&shown, history);
        let adopted = self.adopt_unknown(&shown);
        self.follow_findings(&shown);
        let shown: BTreeMap<&str, &Instance> = shown.iter().map(|shown| (shown.key.name.as_str(), &**shown)).collect();
        let outdated = self.machine.instances().iter().filter_map(|(identity, instance)| {
            let shown = shown.get(instance.entry().key.name.as_str()).copied();
            let shown = shown.filter(|shown| is_of(shown, instance));
            let is_known = shown.is_some_and(|shown| instance.slots().has_observed(&shown.uid, &shown.version));
            (!is_known).then(|| (identity.clone(), shown))
        });
        for (identity, shown) in outdated.collect::<Vec<_>>() {
            self.observe(&identity, shown, history);
        }
        self.earliest_look = next_look(began);
        if adopted {
            self.find_again().await;
        }
    }

    /// Takes Instances of this node that the journal does not know into service, for the containers that use them, also if this node
    /// does not see their devices (rule 103). Their devices are not handed out before a round has found them, and go if it does not
    /// (rule 28). An Instance whose creation was not confirmed is among them once its device has gone; until then the next attempt
    /// finds it. Returns whether there were any.
    fn adopt_unknown(&mut self, shown: &[Arc<Instance>]) -> bool {
        self.leaving.retain(|uid, (_, since)| since.elapsed() < LEAVING || shown.iter().any(|shown| shown.uid == *uid));
        let is_unknown = |instance: &&Arc<Instance>| {
            let is_known = |identity| self.machine.get(identity).is_some() || self.pending.contains_key(identity);
            instance.identity.as_ref().is_some_and(|identity| !is_known(identity))
                && instance.mentions(&self.context.node)
                && instance.configuration_uid == self.configuration.uid
                && !self.leaving.contains_key(&instance.uid)
        };
        let mut unknown: Vec<&Arc<Instance>> = shown.iter().filter(is_unknown).collect();
        if !unknown.is_empty() {
            let found = self.found_identities();
            unknown.retain(|instance| instance.identity.as_ref().is_some_and(|identity| !found.contains(identity)));
        }
        // Of several Instances with one identity at most one is not forged: that of which the journal has claims comes first.
        unknown.sort_by_key(|instance| {
            !instance.identity.as_ref().is_some_and(|of| self.machine.orphans().has(of, &instance.key))
        });
        for instance in &unknown {
            self.adopt(instance);
        }
        !unknown.is_empty()
    }

    fn adopt(&mut self, instance: &Instance) {
        let Some(identity) = instance.identity.clone().filter(|of| self.machine.get(of).is_none()) else { return };
        warn!(instance = %instance.key, "not in the journal: its claims are those that are published");
        let (claims, others) = self.machine.orphans().of(&identity);
        let entry = Entry { claims, others, ..entry_without_claims(&self.configuration, instance, &identity) };
        self.take_instance(ManagedInstance::new(entry, &self.context.node, true, self.moment()));
        self.machine.change(&identity);
    }

    /// Takes over what the API server shows of one Instance; none if it does not exist. Returns whether that is new.
    pub(super) fn observe(&mut self, identity: &Identity, shown: Option<&Instance>, history: u64) -> bool {
        let Some(instance) = self.machine.get(identity) else { return false };
        let before = matches!(instance.slots().api(), ApiView::Present(_));
        let changed = self.machine.observe(identity, view(shown, history), self.moment());
        if let Some(served) = self.served.get_mut(identity).filter(|_| before && shown.is_none()) {
            served.pacing.failed(Instant::now().into_std(), jitter());
        }
        changed
    }

    /// Starts the next step of each Instance that needs one, unless one is on its way or has to wait.
    pub(super) fn start_steps(&mut self) {
        let now = Instant::now().into_std();
        for identity in std::mem::take(&mut self.unsynced) {
            let Some(served) = self.served.get(&identity) else { continue };
            if served.pacing.retry_at(now).is_some() {
                self.unsynced.insert(identity);
                continue;
            }
            if self.is_superseded(&identity) || !self.is_listed {
                continue; // one list shows more than a read of each
            }
            let Some(step) = self.machine.start_step(&identity) else {
                if self.machine.get(&identity).is_some_and(|instance| !instance.is_in_step())
                    && let Some(served) = self.served.get_mut(&identity)
                {
                    served.pacing.agreed(now);
                }
                continue;
            };
            let Some(instance) = self.machine.get(&identity) else { continue };
            let mut wanted = instance.instance(&self.configuration, &self.context.node);
            let device_id = instance.entry().device.id.clone();
            if step == SyncStep::Create {
                // They are claimed once this is known to be the only Instance of the device.
                wanted.device_usage.extend(pending_slots(instance));
            }
            let context = Arc::clone(&self.context);
            self.steps.spawn(async move {
                let _permit = context.api_writes.acquire().await;
                let history = *context.cluster.watches().true_lists.borrow();
                let result = match step {
                    SyncStep::Patch(patch) => context.cluster.patch_slots(&wanted.key, &patch).await,
                    SyncStep::Read => context.cluster.get(&wanted.key).await,
                    SyncStep::Create => create(&*context.cluster, &wanted, &device_id).await.map(Some),
                };
                (identity, history, result)
            });
        }
    }

    /// A step has ended.
    pub(super) fn step_ended(&mut self, ended: Option<StepResult>) {
        let Some((identity, history, result)) = ended else { return };
        let Some(instance) = self.machine.get(&identity) else { return };
        let shown = match result {
            Ok(shown) => Some(view(shown.filter(|shown| is_of(shown, instance)).as_ref(), history)),
            Err(error) => {
                warn!(instance = %instance.entry().key, %error, "agreeing with the API server failed; retrying");
                self.context.metrics.sync_failures.inc();
                if matches!(error, ClusterError::Refused(_)) {
                    self.supersede(&identity);
                }
                None
            }
        };
        let progress = self.machine.step_ended(&identity, shown, self.moment());
        let Some(served) = self.served.get_mut(&identity) else { return };
        match progress {
            true => served.pacing.try_at_once(),
            false => served.pacing.failed(Instant::now().into_std(), jitter()),
        }
    }

    /// Returns the time of the next delayed step.
    pub(super) fn next_step_at(&self) -> Option<Instant> {
        let now = Instant::now().into_std();
        let delayed = self.unsynced.iter().filter_map(|identity| self.served.get(identity));
        delayed.map(|served| served.pacing.retry_at(now).unwrap_or(now).into()).min()
    }
}

/// Returns whether an Instance is of this device: another device may have got its name.
fn is_of(shown: &Instance, instance: &ManagedInstance) -> bool {
    shown.identity.as_ref().is_none_or(|identity| *identity == instance.entry().identity)
}

/// Returns the view of an Instance that was read after that many lists.
fn view(shown: Option<&Instance>, history: u64) -> ApiView {
    let Some(shown) = shown else { return ApiView::Absent };
    let (slots, unknown) = read_usage(&shown.key.name, &shown.device_usage);
    if !unknown.is_empty() {
        debug!(instance = %shown.key, "deviceUsage has keys that are no slots: {}", unknown.join(", "));
    }
    ApiView::Present(PublishedSlots { uid: shown.uid.clone(), version: shown.version.clone(), history, slots })
}

/// Returns the slots of claims that the API server does not have yet, as free.
fn pending_slots(instance: &ManagedInstance) -> impl Iterator<Item = (String, String)> {
    let is_pending = |state: &SlotState| instance.entry().shared && matches!(state, SlotState::Claiming(_));
    let pending = instance.slots().taken().filter(move |(_, state)| is_pending(state));
    pending.map(|(slot, _)| (slot_name(&instance.entry().key.name, slot), String::new()))
}

/// Creates an Instance with the slots as this node knows them (rule 43), unless its device has one under another name (rule 125).
async fn create(cluster: &dyn Cluster, wanted: &Instance, device_id: &str) -> ClusterResult<Instance> {
    refuse_two(cluster, wanted, device_id).await?;
    match cluster.create(wanted).await? {
        CreateOutcome::New(instance) => {
            if let Err(error) = refuse_two(cluster, wanted, device_id).await {
                cluster.delete(&instance.key, &instance.uid, false).await?;
                return Err(error);
            }
            info!(instance = %instance.key, "created again");
            Ok(instance)
        }
        CreateOutcome::Taken(other) if other.identity == wanted.identity => {
            refuse_two(cluster, wanted, device_id).await?; // whoever made it may not have looked yet
            Ok(other)
        }
        CreateOutcome::Taken(other) => Err(ClusterError::Refused(format!("another device has the name {}", other.key))),
    }
}

async fn refuse_two(cluster: &dyn Cluster, wanted: &Instance, device_id: &str) -> ClusterResult<()> {
    let (true, Some(identity)) = (wanted.shared, &wanted.identity) else { return Ok(()) };
    let is_usual = has_usual_name(&wanted.configuration, &wanted.key.name);
    let usual = (!is_usual && !device_id.is_empty())
        .then(|| HashInput::new(device_id, true, "").hash(HashLength::Short))
        .and_then(|hash| instance_name(&wanted.configuration, &hash));
    let configuration = Key::new(&*wanted.key.namespace, &*wanted.configuration);
    let standing = standing(cluster, &configuration, identity, usual, Duration::ZERO).await?;
    match standing.into_iter().find(|other| other.key != wanted.key) {
        Some(other) => Err(ClusterError::Refused(format!("its device has the Instance {}", other.key))),
        None => Ok(()),
    }
}

/// Returns the entry of a published Instance that this node has no claims of.
pub(super) fn entry_without_claims(configuration: &Configuration, instance: &Instance, identity: &Identity) -> Entry {
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
        others: Default::default(),
    }
}
