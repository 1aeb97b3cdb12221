//! The agents' looks at generations of Configurations and DiscoveryHandlers, as their Leases tell them (rule 131).

use std::time::Duration;

use akri_kube::watch::{Change, key_of, version_of};
use akri_model::names::Key;
use akri_model::summary::Unknown;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{GATHER, ObjectIndex, State};
use crate::agents::Agents;
use crate::views::Generation;
use crate::work::Work;

/// The time that further nodes are gathered that tell something of an Instance.
pub(super) const GATHER_NODES: Duration = Duration::from_secs(2);

/// The agents' look at a generation of a Configuration or a DiscoveryHandler; by default, one that has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// The reason why nothing is known.
    pub(crate) unknown: Option<Unknown>,
    /// Nodes whose agents are to tell at once that they have looked.
    pub(crate) awaiting: Vec<String>,
    /// The time after which another look may be needed.
    pub(crate) left: Option<Duration>,
}

impl ObjectIndex {
    /// The first agent that runs again, or the last one that gives its Lease up, concerns all Configurations and DiscoveryHandlers; that
    /// one was killed is noticed with time.
    pub(crate) fn take_leases(&self, change: Change<Lease>) {
        let (mut state, now) = (self.state(), Instant::now());
        let before = state.agents.good_for(now).is_some();
        let name = match &change {
            Change::All(_) => None,
            Change::Put(lease) => Some(lease.name_any()),
            Change::Deleted(metadata) => Some(key_of(metadata).name),
        };
        let is_good = |state: &State| name.as_ref().is_some_and(|name| state.agents.is_good(name, now));
        let ran = is_good(&state);
        let changed = match change {
            Change::All(leases) => state.agents.replace(&leases, now),
            Change::Put(lease) => state.agents.put(&lease, now),
            Change::Deleted(metadata) => state.agents.remove(&key_of(&metadata).name),
        };
        if name.is_none() || ran != is_good(&state) {
            self.reconcile_choices(&state);
        }
        self.reconcile_unused_leases(&state, name.as_deref());
        for instance in changed {
            if let Some(owner) = state.instances.get(&instance).and_then(|view| view.owner.clone()) {
                self.queue.push_after(owner, GATHER);
            }
            self.queue.push_after(Work::Instance(instance), GATHER_NODES);
        }
        if state.agents.good_for(now).is_some() != before {
            state.generations().for_each(|(work, _)| self.queue.push(work));
        } else {
            self.reconcile_looks(&state, true, now);
        }
    }

    /// Reconciles Leases of nodes that do not exist: all, or this one.
    pub(super) fn reconcile_unused_leases(&self, state: &State, lease: Option<&str>) {
        let leases: Vec<&str> = lease.map_or_else(|| state.agents.leases().collect(), |lease| vec![lease]);
        let unused = leases.into_iter().filter(|lease| state.unused(lease, Instant::now()).is_some());
        unused.for_each(|lease| self.queue.push(Work::Lease(Key::new("", lease))));
    }

    /// Returns the node of an agent's Lease if that node does not exist, and the time for which nobody was seen to renew it.
    pub(crate) fn unused_lease(&self, lease: &str) -> Option<(String, Duration)> {
        self.state().unused(lease, Instant::now()).map(|(node, unrenewed)| (node.to_owned(), unrenewed))
    }

    /// Reconciles the objects whose conditions differ from what agents have looked at, if needed.
    pub(super) fn reconcile_looks(&self, state: &State, is_needed: bool, now: Instant) {
        let is_other = |work: &Work, of: &Generation| of.is_known != state.has_looked(work.key(), of, now);
        let concerned = state.generations().filter(|(work, generation)| is_needed && is_other(work, generation));
        concerned.for_each(|(work, _)| self.queue.push(work));
    }

    /// Returns whether an agent has looked at this generation of an object (rule 131), or which agents are to tell that at once.
    pub(crate) fn look(&self, key: &Key, generation: &Generation) -> Look {
        let (state, now) = (self.state(), Instant::now());
        let running = state.agents.good_for(now);
        if running.is_none() {
            return Look { unknown: Some(Unknown::NoAgent), ..Look::default() };
        }
        match state.looked_for(key, generation, now) {
            Some(left) => Look { left: Some(left), ..Look::default() },
            None => Look {
                unknown: Some(Unknown::Pending),
                awaiting: state.agents.to_await(key, generation, now),
                left: running,
            },
        }
    }
}

/// Takes the generation of an object that its watch shows. Returns whether a report of an agent is seen only now.
pub(super) fn follow(
    agents: &mut Agents,
    key: &Key,
    generation: &mut Generation,
    before: Option<&Generation>,
    now: Instant,
) -> bool {
    let is_report_seen = agents.saw(key, generation.since, now);
    generation.follow(before, |node| agents.good_on(node, now).is_some(), now);
    is_report_seen
}

/// Takes the version of a deletion. Returns whether a report of an agent is seen only now.
pub(super) fn saw_deleted<V>(agents: &mut Agents, change: &Change<V>, now: Instant) -> bool {
    match change {
        Change::Deleted(metadata) => agents.saw(&key_of(metadata), version_of(metadata), now),
        Change::All(_) | Change::Put(_) => false,
    }
}

impl State {
    fn unused<'a>(&'a self, lease: &'a str, now: Instant) -> Option<(&'a str, Duration)> {
        self.agents.unrenewed(lease, now).filter(|(node, _)| !self.nodes.contains_key(*node))
    }

    /// Returns the time for which an agent runs that has looked at this generation of an object (rule 131); `None` if there is none.
    fn looked_for(&self, key: &Key, generation: &Generation, now: Instant) -> Option<Duration> {
        let kept = generation.kept_until.and_then(|until| until.checked_duration_since(now));
        self.agents.looked_for(key, generation, now).max(kept.filter(|left| !left.is_zero()))
    }

    fn has_looked(&self, key: &Key, generation: &Generation, now: Instant) -> bool {
        self.agents.has_looked(key, generation, now) || generation.kept_until.is_some_and(|until| until > now)
    }

    /// Returns all valid Configurations and all DiscoveryHandlers, with their generations.
    fn generations(&self) -> impl Iterator<Item = (Work, &Generation)> {
        let configurations = self.configurations.all().filter(|view| view.valid().is_some());
        let configurations = configurations.map(|view| (Work::Configuration(view.key.clone()), &view.generation));
        configurations.chain(self.handlers.all().map(|view| (Work::Handler(view.key.clone()), &view.generation)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use akri_model::agent_lease::GOOD_FOR;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::views::ConfigurationView;

    /// Shows a Configuration in this version, whose `Ready` is known for its generation or not, with entries of these nodes.
    fn show(objects: &ObjectIndex, version: u64, is_known: bool, nodes: &[&str]) -> Look {
        show_named(objects, "cam", version, is_known, nodes);
        look(objects)
    }

    fn show_named(objects: &ObjectIndex, name: &str, version: u64, is_known: bool, nodes: &[&str]) {
        let entry = |node: &&str| ((*node).to_owned(), json!({"reason": "InvalidDetails", "message": "m"}));
        let ready = json!({
            "type": "Ready", "status": if is_known { "False" } else { "Unknown" }, "reason": "R", "message": "m",
            "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration",
            "metadata": {
                "namespace": "default", "name": name, "uid": name, "generation": 1, "resourceVersion": version.to_string(),
            },
            "spec": {"discoveryHandler": {"name": "udev"}},
            "status": {"conditions": [ready], "nodes": nodes.iter().map(entry).collect::<BTreeMap<_, _>>()},
        });
        objects.take_configurations(Change::Put(ConfigurationView::read(serde_json::from_value(object).unwrap())));
    }

    fn look(objects: &ObjectIndex) -> Look {
        let key = Key::new("default", "cam");
        objects.look(&key, &objects.configuration(&key).unwrap().generation)
    }

    /// Shows the Lease of an agent that has looked at all up to that version but for `pending`, and reported in another one.
    fn renew(objects: &ObjectIndex, node: &str, watched: u64, pending: &str, reported: u64) -> Look {
        let annotations = json!({
            "akri.sh/watched": format!("{watched},0"), "akri.sh/pending": pending, "akri.sh/reported": format!("default={reported}"),
        });
        let metadata = json!({"name": format!("akri-agent-{node}"), "annotations": annotations});
        let spec = json!({"renewTime": format!("{:.6}", Timestamp::now()), "holderIdentity": node});
        objects.take_leases(Change::Put(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()));
        look(objects)
    }

    fn give_up(objects: &ObjectIndex, node: &str) -> Look {
        let metadata = json!({"name": format!("akri-agent-{node}")});
        objects.take_leases(Change::Put(serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()));
        look(objects)
    }

    #[test] // rule 131
    fn answer_ends_with_the_last_agent_that_looked() {
        let objects = ObjectIndex::default();
        assert_eq!(show(&objects, 10, false, &[]).unknown, Some(Unknown::NoAgent));
        assert_eq!(renew(&objects, "node-b", 10, "default/cam", 0).unknown, Some(Unknown::Pending), "it is compiling");
        assert_eq!(renew(&objects, "node-a", 10, "", 10).unknown, None);
        assert_eq!(show(&objects, 11, true, &["node-a"]).unknown, None);
        let gone = give_up(&objects, "node-a");
        assert_eq!((gone.unknown, gone.awaiting), (Some(Unknown::Pending), vec!["node-b".to_owned()]));
        assert_eq!(show(&objects, 12, true, &[]).unknown, Some(Unknown::Pending), "its entry was removed");
        assert_eq!(renew(&objects, "node-b", 11, "", 11).unknown, Some(Unknown::Pending), "it had seen that entry");
        assert_eq!(renew(&objects, "node-b", 12, "", 12).unknown, None);
    }

    #[tokio::test] // rule 117, rule 131
    async fn answer_counts_once_its_report_is_seen() {
        let objects = ObjectIndex::default();
        show(&objects, 10, false, &[]);
        let ahead = renew(&objects, "node-a", 10, "", 11);
        assert_eq!(ahead.unknown, Some(Unknown::Pending), "what it reports may be that it failed");
        let work = objects.queue.next().await;
        objects.queue.done(work, None);
        show_named(&objects, "other", 11, false, &["node-a"]);
        assert_eq!(look(&objects).unknown, None);
        assert_eq!(objects.queue.next().await.key().name, "cam", "it waits for no event of its own");
    }

    #[test] // rule 131
    fn answer_of_the_former_controller_is_kept_for_a_minute() {
        let objects = ObjectIndex::default();
        show(&objects, 50, true, &[]);
        let kept = renew(&objects, "node-a", 40, "", 0);
        assert!(kept.unknown.is_none() && kept.left.is_some_and(|left| left < GOOD_FOR), "{kept:?}");
        assert_eq!(renew(&objects, "node-b", 50, "", 0).unknown, None);
    }
}
