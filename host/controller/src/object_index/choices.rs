//! The nodes that run discovery for others, and those that serve what these find (rule 126).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_model::discover_on::{DiscoverOn, choose, prompt_for};
use akri_model::instance::Online;
use tokio::time::Instant;

use super::looks::GATHER_NODES;
use super::{GATHER, ObjectIndex, State};
use crate::reconcile::Again;
use crate::views::{ConfigurationView, InstanceView};
use crate::work::Work;

/// The pause after which another node is looked for while the Lease of a chosen one is late.
const LATE: Duration = Duration::from_secs(10);

/// The nodes that are to run discovery for a Configuration.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// Their names; none if every node runs it.
    pub(crate) nodes: Vec<String>,
    /// There is no node that could.
    pub(crate) is_nobody: bool,
    /// The time after which another one may have to be chosen.
    pub(crate) left: Again,
}

impl ObjectIndex {
    /// Chooses the nodes that run discovery for a Configuration. While it is invalid, those of before go on.
    pub(crate) fn choose(&self, view: &ConfigurationView) -> Choice {
        let (state, now) = (self.state(), Instant::now());
        let Some(wanted) = view.valid() else {
            return Choice { nodes: view.status.discover_on.clone(), ..Choice::default() };
        };
        let Some(on) = &wanted.discover_on else { return Choice::default() };
        let running = state.running(on, now);
        let nodes = choose(&view.uid, on.count, &on.nodes, &running, |node| state.is_selected(on, node));
        let good_for = nodes.iter().filter_map(|node| running.get(&**node));
        let left = good_for.map(|good_for| prompt_for(*good_for).unwrap_or(LATE)).min();
        Choice { is_nobody: running.is_empty(), left, nodes: nodes.into_iter().collect() }
    }

    /// An agent has started or ended, or a Node has changed: other nodes may be chosen, and join Instances.
    pub(super) fn reconcile_choices(&self, state: &State) {
        let limited = |view: &ConfigurationView| view.valid().is_some_and(|wanted| wanted.discover_on.is_some());
        for view in state.configurations.all().filter(|view| limited(view)) {
            let work = Work::Configuration(view.key.clone());
            let instances = state.instances.of(&work);
            instances.iter().for_each(|of| self.queue.push_after(Work::Instance(of.key.clone()), GATHER_NODES));
            self.queue.push_after(work, GATHER);
        }
    }
}

impl State {
    /// Returns the nodes that have an agent and serve the devices of a Configuration, and for how long their Leases are good.
    fn running(&self, on: &DiscoverOn, now: Instant) -> BTreeMap<&str, Duration> {
        let nodes = self.nodes.keys().filter(|node| self.is_selected(on, node));
        nodes.filter_map(|node| Some((node.as_str(), self.agents.good_on(node, now)?))).collect()
    }

    fn is_selected(&self, on: &DiscoverOn, node: &str) -> bool {
        self.serves(node) && self.nodes.get(node).is_some_and(|node| on.selects(&node.labels))
    }

    /// Returns the nodes of an Instance that say whether its device answers.
    pub(super) fn discovering(&self, instance: &InstanceView) -> Vec<String> {
        let owner = self.configurations.get(&instance.configuration_key());
        let discovers = |node: &&String| owner.as_ref().is_none_or(|owner| owner.discovers(node));
        instance.nodes.iter().filter(discovers).cloned().collect()
    }

    /// Returns the nodes to join to an Instance that others found: those that follow, while its device is online, and those that run
    /// discovery if none of them has joined.
    pub(super) fn to_join(&self, instance: &InstanceView, now: Instant) -> BTreeSet<String> {
        let owner = self.configurations.get(&instance.configuration_key());
        let on = owner.as_ref().and_then(|owner| owner.valid()).and_then(|wanted| wanted.discover_on.as_ref());
        let is_found = instance.unadopted.is_none() && self.online(instance) == Online::True;
        let Some(on) = on.filter(|_| is_found) else { return BTreeSet::new() };
        let is_watched = !self.discovering(instance).is_empty();
        let running = self.running(on, now).into_keys().map(str::to_owned);
        running.filter(|node| !(is_watched && on.nodes.contains(node))).collect()
    }
}

#[cfg(test)]
mod tests {
    use akri_kube::watch::Change;
    use akri_model::names::Key;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::views::NodeView;

    /// Nodes `a`, `b`, `c` of the plant with agents, and `d` of the office; a Configuration for one of those of the plant.
    fn objects(chosen: &[&str]) -> ObjectIndex {
        let objects = ObjectIndex::default();
        for (node, site) in [("a", "plant"), ("b", "plant"), ("c", "plant"), ("d", "office")] {
            let object = json!({"metadata": {"name": node, "labels": {"site": site}}});
            objects.take_nodes(Change::Put(NodeView::of(&serde_json::from_value(object).unwrap())));
            lease(&objects, node, node);
        }
        show(&objects, chosen);
        objects
    }

    fn lease(objects: &ObjectIndex, node: &str, holder: &str) {
        let spec = json!({"renewTime": format!("{:.6}", Timestamp::now()), "holderIdentity": holder});
        let lease = json!({"metadata": {"name": format!("akri-agent-{node}")}, "spec": spec});
        objects.take_leases(Change::Put(serde_json::from_value(lease).unwrap()));
    }

    fn show(objects: &ObjectIndex, chosen: &[&str]) {
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration",
            "metadata": {"namespace": "default", "name": "cam", "uid": "c", "generation": 1, "resourceVersion": "7"},
            "spec": {
                "discoveryHandler": {"name": "onvif"}, "discoverOn": {"count": 1, "nodeSelector": {"site": "plant"}},
            },
            "status": {"discoverOn": chosen},
        });
        objects.take_configurations(Change::Put(ConfigurationView::read(serde_json::from_value(object).unwrap())));
    }

    fn choice(objects: &ObjectIndex) -> Vec<String> {
        objects.choose(&objects.configuration(&Key::new("default", "cam")).unwrap()).nodes
    }

    /// Shows an Instance of these nodes, of which one may miss its device, and whose `Online` was like that.
    fn instance(objects: &ObjectIndex, nodes: &[&str], misses: Option<&str>, online: &str) -> InstanceView {
        let condition = json!({"type": "Online", "status": online, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let entry = misses.map(|node| (node, json!({"reason": "NotFound", "message": "m"})));
        let owner =
            json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "name": "cam", "uid": "c", "controller": true});
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {
                "namespace": "default", "name": "cam-1", "uid": "i", "ownerReferences": [owner],
                "annotations": {"akri.sh/identity": "x"},
            },
            "spec": {"configurationName": "cam", "cdiName": "akri.sh/cam=1", "capacity": 1, "shared": true, "nodes": nodes},
            "status": {"conditions": [condition], "nodes": entry.into_iter().collect::<BTreeMap<_, _>>()},
        });
        let view = InstanceView::read(serde_json::from_value(object).unwrap()).unwrap();
        objects.take_instances(Change::Put(view.clone()));
        view
    }

    #[test] // rule 126
    fn selected_nodes_with_agents_are_chosen_and_stay() {
        let objects = objects(&[]);
        let first = choice(&objects).remove(0);
        assert_ne!(first, "d");
        show(&objects, &["b"]);
        assert_eq!(choice(&objects), ["b"]);
        lease(&objects, "b", "");
        assert!(choice(&objects).iter().all(|node| node == "a" || node == "c"), "it has given its Lease up");
        ["a", "c"].iter().for_each(|node| lease(&objects, node, ""));
        let nobody = objects.choose(&objects.configuration(&Key::new("default", "cam")).unwrap());
        assert!(nobody.is_nobody && nobody.nodes == ["b"], "{nobody:?}");
    }

    #[test] // rule 126
    fn online_depends_on_nodes_that_discover() {
        let objects = objects(&["a"]);
        for (nodes, misses, before, online) in [
            (vec!["a", "b"], None, "False", Online::True),
            (vec!["a", "b"], Some("a"), "True", Online::False),
            (vec!["a", "b"], Some("b"), "True", Online::True),
            (vec!["b"], None, "True", Online::True),
            (vec!["b"], None, "False", Online::False),
            (vec![], None, "True", Online::False),
        ] {
            let view = instance(&objects, &nodes, misses, before);
            assert_eq!(objects.online(&view), online, "{nodes:?} {misses:?} {before}");
        }
    }

    #[test] // rule 126
    fn selected_nodes_join_what_is_online() {
        let objects = objects(&["a"]);
        let joining = |nodes: &[&str], misses| objects.joining(&instance(&objects, nodes, misses, "True"));
        assert_eq!(joining(&["a"], None), ["b", "c"]);
        assert_eq!(joining(&["a", "b"], Some("a")), [""; 0], "it is gone");
        assert_eq!(joining(&["b", "c"], None), ["a"], "who looks has to say whether it is there");
        show(&objects, &["a", "b"]);
        assert_eq!(joining(&["a"], None), ["c"], "one who looks joins what it finds");
    }
}
