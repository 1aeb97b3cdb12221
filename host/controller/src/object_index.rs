//! The controller's state: views of objects that watches keep up to date, and its own actions until the watches show
//! them. Every change adds the affected keys to the queue.

mod choices;
mod looks;
mod unadopted;

pub(crate) use looks::Look;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use akri_brokers::{Counts, JobReport, Observed, Rollout};
use akri_kube::watch::{Change, key_of};
use akri_model::agent_lease;
use akri_model::instance::Online;
use akri_model::names::Key;
use akri_model::node_absence::{NodeAbsence, NodeDecision, NodeObject};
use akri_model::node_report::{StaleReports, stale};
use akri_model::retry::RetryPolicy;
use akri_model::summary::{self, ConditionState, DeviceCounts, NodeProblem};
use k8s_openapi::jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::agents::Agents;
use crate::rests::Rests;
use crate::store::{Changed, Store};
use crate::views::{
    ConfigurationFields, ConfigurationView, HandlerFields, HandlerView, InstanceFields, InstanceView, JobView,
    NodeView, PodView, ServiceFields, ServiceView,
};
use crate::work::{Queue, Work};
use looks::{follow, saw_deleted};

/// The time that further changes are gathered before the status of a Configuration is written.
const GATHER: Duration = Duration::from_millis(300);

/// The time after which the observations of a node that no object mentions are forgotten.
const FORGOTTEN: Duration = Duration::from_mins(10);

/// The time for which a decision about a node counts for all objects that mention it.
const DECISION: Duration = Duration::from_secs(5);

/// All objects.
pub(crate) struct ObjectIndex {
    pub(crate) queue: Queue,
    /// Objects from which reports of nodes were removed.
    pub(crate) removed_reports: Rests<(Key, String)>,
    /// Objects from which the rest of deleted nodes was removed.
    pub(crate) cleaned: Rests<Work>,
    /// Configurations whose status was written.
    pub(crate) written: Rests<Key>,
    /// Instances to which nodes were joined.
    pub(crate) joined: Rests<Key>,
    /// UIDs of objects from which finalizers of upstream Akri were removed.
    pub(crate) removed_finalizers: Rests<String>,
    /// The time to which observations of nodes refer.
    start: Instant,
    state: Mutex<State>,
}

impl Default for ObjectIndex {
    fn default() -> Self {
        Self {
            queue: Queue::new(RetryPolicy::RECONCILE),
            removed_reports: Rests::default(),
            cleaned: Rests::default(),
            written: Rests::default(),
            joined: Rests::default(),
            removed_finalizers: Rests::default(),
            start: Instant::now(),
            state: Mutex::default(),
        }
    }
}

#[derive(Default)]
struct State {
    configurations: Store<ConfigurationFields>,
    instances: Store<InstanceFields>,
    handlers: Store<HandlerFields>,
    pods: Store<Observed>,
    jobs: Store<JobReport>,
    services: Store<ServiceFields>,
    /// All Nodes.
    nodes: BTreeMap<String, NodeView>,
    /// Nodes that objects mention and that do not exist or are out of service.
    absences: BTreeMap<String, ObservedAbsence>,
    agents: Agents,
    fleets: BTreeMap<Key, BrokerFleet>,
    pending_actions: BTreeMap<Key, PendingActions>,
    /// Instances of upstream Akri that no agent has adopted although all look for their devices, since when.
    unadopted: BTreeMap<Key, Instant>,
}

/// The observations of a node, and the last decision.
struct ObservedAbsence {
    absence: NodeAbsence,
    decision: NodeDecision,
    at: Instant,
}

/// The brokers of a Configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct BrokerFleet {
    pub(crate) rollout: Rollout,
    /// The reasons why brokers of Instances are not ready.
    pub(crate) problems: BTreeMap<String, ConditionState>,
    /// The generation of the Configuration with which each Instance was reconciled last.
    generations: BTreeMap<String, i64>,
}

/// The controller's actions for an Instance that the watches may not show yet.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PendingActions {
    /// UIDs of Pods that it deleted.
    pub(crate) deleted: BTreeSet<String>,
    /// The number of Pods in a row that have ended, by their name.
    pub(crate) failures: BTreeMap<String, u32>,
}

/// The brokers of each Configuration that has Instances.
pub(crate) type BrokerCounts = BTreeMap<Key, Counts>;

/// Slots that may have no user, and that nobody may claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlotCounts {
    /// Slots whose usage names no node.
    pub(crate) unreadable: usize,
    /// Slots of nodes that do not exist, whose agents do not run, or that have not joined the Instance.
    pub(crate) of_absent_nodes: usize,
}

/// The objects of an Instance or a Configuration.
pub(crate) struct Owned {
    pub(crate) pods: Vec<Arc<PodView>>,
    pub(crate) jobs: Vec<Arc<JobView>>,
    pub(crate) services: Vec<Arc<ServiceView>>,
}

/// Events of watches.
impl ObjectIndex {
    pub(crate) fn take_pods(&self, change: Change<PodView>) {
        let now = Timestamp::now().as_second();
        let set_times =
            |pod: &mut PodView, before: Option<&PodView>| pod.set_times(before.map(|before| &**before), now);
        self.reconcile_owners(self.state().pods.take_completed(change, set_times));
    }

    pub(crate) fn take_jobs(&self, change: Change<JobView>) {
        self.reconcile_owners(self.state().jobs.take(change));
    }

    pub(crate) fn take_services(&self, change: Change<ServiceView>) {
        self.reconcile_owners(self.state().services.take(change));
    }

    fn reconcile_owners<F>(&self, changes: Vec<Changed<F>>) {
        changes.iter().flat_map(Changed::owners).for_each(|owner| self.queue.push(owner));
    }

    pub(crate) fn take_instances(&self, change: Change<InstanceView>) {
        let (mut state, now) = (self.state(), Timestamp::now().as_second());
        for changed in state.instances.take_completed(change, |view, before| view.set_times(before, now)) {
            for configuration in changed.owners() {
                self.queue.push_after(configuration, GATHER);
            }
            let is_there = |view: &&Arc<InstanceView>| !view.is_deleting;
            if let Some(gone) = changed.before.as_ref().filter(|_| changed.after.as_ref().filter(is_there).is_none()) {
                state.forget(gone); // also one that a finalizer of others keeps
            }
            changed.after.iter().for_each(|after| self.queue.push(Work::Instance(after.key.clone())));
        }
    }

    pub(crate) fn take_configurations(&self, change: Change<ConfigurationView>) {
        let (mut state, now) = (self.state(), Instant::now());
        let State { configurations, agents, .. } = &mut *state;
        let mut is_report_seen = saw_deleted(agents, &change, now);
        let changes = configurations.take_completed(change, |view, before| {
            let (key, before) = (view.key.clone(), before.map(|before| &before.generation));
            is_report_seen |= follow(agents, &key, &mut view.generation, before, now);
        });
        for changed in changes {
            let essence = |view: &Option<Arc<ConfigurationView>>| {
                view.as_ref().map(|v| (v.uid.clone(), v.generation.number, v.status.discover_on.clone()))
            };
            if changed.after.is_none() {
                state.fleets.remove(&changed.key);
            }
            let work = Work::Configuration(changed.key);
            if essence(&changed.before) != essence(&changed.after) {
                let instances = state.instances.of(&work);
                instances.iter().for_each(|instance| self.queue.push(Work::Instance(instance.key.clone())));
            }
            self.queue.push_after(work, GATHER);
        }
        self.reconcile_looks(&state, is_report_seen, now);
    }

    pub(crate) fn take_handlers(&self, change: Change<HandlerView>) {
        let (mut state, now) = (self.state(), Instant::now());
        let State { handlers, agents, .. } = &mut *state;
        let mut is_report_seen = saw_deleted(agents, &change, now);
        let changes = handlers.take_completed(change, |view, before| {
            let (key, before) = (view.key.clone(), before.map(|before| &before.generation));
            is_report_seen |= follow(agents, &key, &mut view.generation, before, now);
        });
        for changed in changes {
            if changed.after.is_some() {
                self.queue.push_after(Work::Handler(changed.key), GATHER);
            }
        }
        self.reconcile_looks(&state, is_report_seen, now);
    }

    /// Nodes that come, go or are out of service concern all objects that mention them.
    pub(crate) fn take_nodes(&self, change: Change<NodeView>) {
        let mut state = self.state();
        let State { nodes, absences, .. } = &mut *state;
        let changed = match change {
            Change::All(listed) => {
                *nodes = listed.into_iter().map(|node| (node.name.clone(), node)).collect();
                absences.retain(|node, _| !nodes.contains_key(node));
                None
            }
            Change::Put(node) => {
                let was_absent = absences.remove(&node.name).is_some();
                let name = node.name.clone();
                if nodes.get(&name) == Some(&node) && !was_absent {
                    return;
                }
                nodes.insert(name.clone(), node);
                Some(name)
            }
            Change::Deleted(metadata) => {
                nodes.remove(&key_of(&metadata).name);
                Some(key_of(&metadata).name)
            }
        };
        let is_concerned = |mentioned: &BTreeSet<String>| match &changed {
            Some(node) => mentioned.contains(node),
            None => mentioned.iter().any(|node| !state.serves(node)),
        };
        self.reconcile_choices(&state);
        self.reconcile_unused_leases(&state, changed.as_ref().map(|node| agent_lease::name(node)).as_deref());
        let instances = state.instances.all().map(|view| (Work::Instance(view.key.clone()), view.mentions()));
        let concerned = instances.chain(state.reported()).filter(|(_, mentions)| is_concerned(mentions));
        concerned.for_each(|(work, _)| self.queue.push(work));
    }
}

impl State {
    /// Returns whether a node exists and serves, as far as the watch shows.
    fn serves(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| !node.is_out_of_service)
    }

    /// Returns all Configurations and DiscoveryHandlers, with the nodes that they mention.
    fn reported(&self) -> impl Iterator<Item = (Work, BTreeSet<String>)> {
        let configurations = self.configurations.all();
        let configurations = configurations.map(|view| (Work::Configuration(view.key.clone()), view.mentions()));
        configurations.chain(self.handlers.all().map(|view| (Work::Handler(view.key.clone()), view.mentions())))
    }

    /// Removes what is known of a deleted Instance.
    fn forget(&mut self, instance: &InstanceView) {
        self.pending_actions.remove(&instance.key);
        self.unadopted.remove(&instance.key);
        if let Some(fleet) = self.fleets.get_mut(&instance.configuration_key()) {
            fleet.rollout.forget(&instance.key.name);
            fleet.problems.remove(&instance.key.name);
            fleet.generations.remove(&instance.key.name);
        }
    }

    /// Returns the Instances that the UID of a Configuration owns.
    fn instances_of(&self, configuration: &Key) -> Vec<Arc<InstanceView>> {
        let uid = self.configurations.get(configuration).map(|view| view.uid.clone());
        let mut instances = self.instances.of(&Work::Configuration(configuration.clone()));
        instances.retain(|instance| instance.owner_uid == uid && !instance.is_deleting);
        instances
    }

    /// Returns whether the device of an Instance answers.
    fn online(&self, instance: &InstanceView) -> Online {
        let discovering = self.discovering(instance);
        if discovering.is_empty() && !instance.nodes.is_empty() {
            return instance.last_online(); // nobody can tell yet (rule 126)
        }
        summary::online(&discovering, &instance.problems, self.agents.shared.missing(&instance.key))
    }

    /// Counts them.
    fn count_devices(&self, configuration: &Key) -> DeviceCounts {
        let instances = self.instances_of(configuration);
        let is_online = |view: &&Arc<InstanceView>| self.online(view) == Online::True;
        DeviceCounts { instances: instances.len(), online: instances.iter().filter(is_online).count() }
    }
}

/// Queries of reconciles.
impl ObjectIndex {
    pub(crate) fn configuration(&self, key: &Key) -> Option<Arc<ConfigurationView>> {
        self.state().configurations.get(key)
    }

    pub(crate) fn handler(&self, key: &Key) -> Option<Arc<HandlerView>> {
        self.state().handlers.get(key)
    }

    pub(crate) fn instance(&self, key: &Key) -> Option<Arc<InstanceView>> {
        self.state().instances.get(key)
    }

    /// The Configuration of an Instance. Its owner reference is believed only if it has the UID of the live one (rule 62).
    pub(crate) fn owner(&self, instance: &InstanceView) -> Option<Arc<ConfigurationView>> {
        let configuration = self.configuration(&instance.configuration_key())?;
        (instance.owner_uid.as_ref() == Some(&configuration.uid) && !configuration.is_deleting).then_some(configuration)
    }

    pub(crate) fn online(&self, instance: &InstanceView) -> Online {
        self.state().online(instance)
    }

    /// Returns the nodes whose agents' Leases say that they miss the device of an Instance, and since when (rule 114).
    pub(crate) fn missed_by(&self, instance: &Key) -> BTreeMap<String, i64> {
        let state = self.state();
        let missing = state.agents.shared.missing(instance).into_iter().flatten();
        let missing = missing.filter(|(_, missed)| missed.online == Online::False);
        missing.map(|(node, missed)| (node.clone(), missed.since)).collect()
    }

    /// Returns the nodes that want to join an Instance, and have not.
    pub(crate) fn joining(&self, instance: &InstanceView) -> Vec<String> {
        let state = self.state();
        let mut joining = state.agents.shared.joining(&instance.key, &instance.uid);
        joining.extend(state.to_join(instance, Instant::now()));
        joining.retain(|node| state.serves(node));
        joining.retain(|node| !instance.nodes.contains(node));
        joining.into_iter().collect()
    }

    pub(crate) fn owned(&self, work: &Work) -> Owned {
        let state = self.state();
        Owned { pods: state.pods.of(work), jobs: state.jobs.of(work), services: state.services.of(work) }
    }

    /// Returns those of these names that are no nodes that serve, as far as the watch shows, each with the decision that was just made
    /// about it. What was looked at longest ago comes first.
    pub(crate) fn unknown_nodes<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        now: Instant,
    ) -> Vec<(&'a str, Option<NodeDecision>)> {
        let mut state = self.state();
        state.absences.retain(|_, observed| now.duration_since(observed.at) < FORGOTTEN);
        let mut unknown: Vec<&str> = names.filter(|name| !state.serves(name)).collect();
        let looked_at = |name: &str| state.absences.get(name);
        unknown.sort_by_key(|name| looked_at(name).map(|observed| observed.at));
        let is_recent = |observed: &&ObservedAbsence| now.duration_since(observed.at) < DECISION;
        let with_decision = |name| (name, looked_at(name).filter(is_recent).map(|observed| observed.decision));
        unknown.into_iter().map(with_decision).collect()
    }

    /// Takes what the API server says of a Node, and returns the decision.
    pub(crate) fn observe_node(&self, node: &str, object: NodeObject, now: Instant) -> NodeDecision {
        let mut state = self.state();
        let renewed = state.agents.renewed(node, self.start);
        let mut absence = state.absences.remove(node).map(|observed| observed.absence).unwrap_or_default();
        let decision = absence.observe(now.duration_since(self.start), object, renewed);
        state.absences.insert(node.to_owned(), ObservedAbsence { absence, decision, at: now });
        decision
    }

    /// Counts slots whose users are not known: unreadable ones, and those of nodes that do not exist, whose agents do not run, or that
    /// have not joined the Instance.
    pub(crate) fn count_unclear_slots(&self) -> SlotCounts {
        let (state, now) = (self.state(), Instant::now());
        let is_absent = |node: &str| !state.serves(node) || state.agents.good_on(node, now).is_none();
        let mut counts = SlotCounts::default();
        for instance in state.instances.all() {
            counts.unreadable += instance.unreadable.len();
            let of_absent =
                instance.used_by.iter().filter(|(node, _)| is_absent(node) || !instance.nodes.contains(node));
            counts.of_absent_nodes += of_absent.map(|(_, slots)| slots).sum::<usize>();
        }
        counts
    }

    pub(crate) fn broker_counts(&self) -> BrokerCounts {
        self.state().fleets.iter().map(|(key, fleet)| (key.clone(), fleet.rollout.total())).collect()
    }

    /// Returns the names that are nodes.
    pub(crate) fn known_nodes<'a>(&self, names: &'a BTreeSet<String>) -> BTreeSet<&'a str> {
        let state = self.state();
        names.iter().map(String::as_str).filter(|name| state.nodes.contains_key(*name)).collect()
    }

    pub(crate) fn count_devices(&self, configuration: &Key) -> DeviceCounts {
        self.state().count_devices(configuration)
    }

    /// Returns the reports of nodes whose agents do not run. While no agent runs at all, none is stale: the Leases may be
    /// elsewhere, and the conditions are `Unknown` anyway. A node that was removed and has returned stays as long as a Lease is good:
    /// by the slow clock of its node it may seem old at once.
    pub(crate) fn stale_reports(&self, object: &Key, reports: &BTreeMap<String, NodeProblem>) -> StaleReports {
        let (state, now) = (self.state(), Instant::now());
        if state.agents.good_for(now).is_none() {
            return StaleReports::default();
        }
        let rest = |node: &str| self.removed_reports.left(&(object.clone(), node.to_owned()), now);
        let left = |node: &str| state.agents.good_on(node, now).or_else(|| rest(node));
        stale(reports, left, Timestamp::now().as_second())
    }

    pub(crate) fn fleet(&self, configuration: &Key) -> BrokerFleet {
        self.state().fleets.get(configuration).cloned().unwrap_or_default()
    }

    /// Returns whether the brokers of all Instances were reconciled with this generation of their Configuration (rule 117).
    pub(crate) fn are_brokers_of(&self, configuration: &Key, generation: i64) -> bool {
        let state = self.state();
        let generations = state.fleets.get(configuration).map(|fleet| &fleet.generations);
        let is_of = |name| generations.is_some_and(|of| of.get(name) == Some(&generation));
        state.instances_of(configuration).iter().all(|instance| is_of(&instance.key.name))
    }

    pub(crate) fn pending_actions(&self, instance: &Key) -> PendingActions {
        self.state().pending_actions.get(instance).cloned().unwrap_or_default()
    }

    pub(crate) fn set_pending_actions(&self, instance: &Key, actions: PendingActions) {
        let mut state = self.state();
        if actions == PendingActions::default() || state.instances.get(instance).is_none() {
            state.pending_actions.remove(instance);
        } else {
            state.pending_actions.insert(instance.clone(), actions);
        }
    }

    /// Takes a place for the replacement of a working broker of an Instance (rule 57).
    pub(crate) fn may_replace(&self, instance: &InstanceView) -> bool {
        let mut state = self.state();
        let configuration = instance.configuration_key();
        let instances = state.instances_of(&configuration).len();
        state.fleets.entry(configuration).or_default().rollout.replace(&instance.key.name, instances)
    }

    /// Takes what a reconcile with a generation of the Configuration found of the brokers of an Instance. Its Configuration's status follows, and so do Instances
    /// whose brokers wait to be replaced.
    pub(crate) fn count_brokers(
        &self,
        instance: &InstanceView,
        generation: i64,
        counts: Counts,
        problem: Option<ConditionState>,
    ) {
        let mut state = self.state();
        let configuration = instance.configuration_key();
        let is_going = state.instances.get(&instance.key).is_none_or(|now| now.is_deleting);
        if is_going || state.configurations.get(&configuration).is_none() {
            return; // one of them went meanwhile
        }
        let fleet = state.fleets.entry(configuration.clone()).or_default();
        let is_of_before = fleet.generations.insert(instance.key.name.clone(), generation) == Some(generation);
        let is_new = fleet.rollout.update(&instance.key.name, counts) || !is_of_before;
        let before = match problem.clone() {
            Some(problem) => fleet.problems.insert(instance.key.name.clone(), problem),
            None => fleet.problems.remove(&instance.key.name),
        };
        if !is_new && before == problem {
            return;
        }
        for name in fleet.rollout.waiting().filter(|name| *name != instance.key.name) {
            self.queue.push(Work::Instance(Key::new(&*configuration.namespace, name)));
        }
        self.queue.push_after(Work::Configuration(configuration), GATHER);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use akri_model::agent_lease::GOOD_FOR;
    use serde_json::json;

    use super::*;

    impl ObjectIndex {
        pub(crate) fn lease_renewed(&self, node: &str) -> Option<Duration> {
            self.state().agents.renewed(node, self.start)
        }
    }

    #[test] // rule 121
    fn end_of_a_pod_is_when_its_watch_shows_it() {
        let objects = ObjectIndex::default();
        let show = |phase: &str| {
            let metadata =
                json!({"namespace": "n", "name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"});
            let terminated =
                json!({"name": "c", "state": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:01Z"}}});
            let pod = json!({"metadata": metadata, "status": {"phase": phase, "containerStatuses": [terminated]}});
            objects.take_pods(Change::Put(PodView::of(&serde_json::from_value(pod).unwrap())));
            objects.state().pods.get(&Key::new("n", "p")).unwrap()
        };
        let before = Timestamp::now().as_second();
        show("Running");
        let ended = show("Failed").ended;
        assert!((before..=Timestamp::now().as_second()).contains(&ended), "{ended}");
        assert_eq!(show("Failed").ended, ended);
    }

    #[test] // rule 36
    fn report_that_returns_stays_as_long_as_a_lease_is_good() {
        let objects = ObjectIndex::default();
        let spec = json!({"renewTime": format!("{:.6}", Timestamp::now()), "holderIdentity": "other"});
        let lease = json!({"metadata": {"name": "akri-agent-other"}, "spec": spec});
        objects.state().agents.put(&serde_json::from_value(lease).unwrap(), Instant::now());
        let (key, other) = (Key::new("default", "cam"), Key::new("default", "lamp"));
        let reports = BTreeMap::from([("node-a".to_owned(), NodeProblem::new("NoHandler", "there is none"))]);
        let stale = objects.stale_reports(&key, &reports);
        assert_eq!(stale.nodes.len(), 1);
        objects.removed_reports.begin([(key.clone(), "node-a".to_owned())], GOOD_FOR, Instant::now());
        let returned = objects.stale_reports(&key, &reports);
        assert!(returned.nodes.is_empty() && returned.next.is_some_and(|next| next <= GOOD_FOR), "{returned:?}");
        assert_eq!(objects.stale_reports(&other, &reports).nodes.len(), 1);
    }
}
