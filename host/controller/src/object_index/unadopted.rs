//! Instances that upstream Akri made and no agent has adopted (rule 65): their devices are gone, or have other ids here.

use std::collections::BTreeMap;
use std::time::Duration;

use akri_brokers::JobState;
use tokio::time::Instant;

use super::{ObjectIndex, State};
use crate::reconcile::Again;
use crate::views::{ConfigurationView, InstanceView};
use crate::work::Work;

/// The time after which an Instance of upstream Akri that no agent has adopted is deleted: all agents have looked for its device.
const UNADOPTED: Duration = Duration::from_mins(5);

impl ObjectIndex {
    /// Returns whether upstream Akri had an Instance for a device, which has other properties since or more of them: of the same
    /// Configuration, with another name, as the id of the device is made otherwise here.
    pub(crate) fn had_instance(&self, instance: &InstanceView, properties: &BTreeMap<String, String>) -> bool {
        let is_its = |of: &BTreeMap<String, String>| {
            !of.is_empty() && of.iter().all(|(name, value)| properties.get(name) == Some(value))
        };
        let others = self.state().instances.of(&Work::Configuration(instance.configuration_key()));
        let mut others =
            others.iter().filter(|other| other.key != instance.key && other.owner_uid == instance.owner_uid);
        others.any(|other| other.unadopted.as_ref().is_some_and(is_its))
    }

    /// Returns the time until an Instance of upstream Akri that no agent adopts is deleted. It begins once agents run on all of its
    /// nodes, none has a problem with the Configuration, and nobody but its own brokers uses it.
    pub(crate) fn unadopted_for(&self, instance: &InstanceView, owner: &ConfigurationView, now: Instant) -> Again {
        let is_answered = self.look(&owner.key, &owner.generation).unknown.is_none();
        let mut state = self.state();
        let has_agent = |node: &String| state.agents.good_on(node, now).is_some();
        let is_looked_for = is_answered && owner.problems.is_empty() && instance.nodes.iter().all(has_agent);
        if instance.unadopted.is_none() || !is_looked_for || state.is_used_by_others(instance) {
            state.unadopted.remove(&instance.key);
            return instance.unadopted.as_ref().map(|_| UNADOPTED);
        }
        let since = *state.unadopted.entry(instance.key.clone()).or_insert(now);
        Some(UNADOPTED.saturating_sub(now.duration_since(since)))
    }
}

impl State {
    /// Returns whether more slots of an Instance are in use than its broker Pods and Jobs that have ended may have left so. A Job that
    /// runs would not run again.
    fn is_used_by_others(&self, instance: &InstanceView) -> bool {
        let itself = Work::Instance(instance.key.clone());
        let pods = self.pods.of(&itself).iter().filter(|pod| pod.owner_uid.as_ref() == Some(&instance.uid)).count();
        let jobs = self.jobs.of(&itself).iter().filter(|job| job.state != Some(JobState::Active)).count();
        !instance.unreadable.is_empty() || instance.used_by.values().sum::<usize>() > pods + jobs
    }
}

#[cfg(test)]
mod tests {
    use akri_kube::watch::Change;
    use akri_model::agent_lease;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::views::{JobView, PodView};

    fn instance(name: &str, annotations: Value, properties: Value) -> InstanceView {
        used_instance(name, annotations, properties, json!({}))
    }

    fn used_instance(name: &str, annotations: Value, properties: Value, usage: Value) -> InstanceView {
        let owner =
            json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "name": "cam", "uid": "c", "controller": true});
        let metadata = json!({"namespace": "n", "name": name, "uid": name, "annotations": annotations, "ownerReferences": [owner]});
        let spec = json!({"configurationName": "cam", "cdiName": "akri.sh/cam=1", "capacity": 1, "nodes": ["node-a"],
            "shared": true, "brokerProperties": properties, "deviceUsage": usage});
        InstanceView::read(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()).unwrap()
    }

    #[test] // rule 118
    fn device_with_another_id_is_known_by_its_properties() {
        let objects = ObjectIndex::default();
        let identity = json!({"akri.sh/identity": "0"});
        let new = instance("cam-new", identity.clone(), json!({"URL": "u", "UUID": "1", "MODEL": "m"}));
        let properties = [("URL", "u"), ("UUID", "1"), ("MODEL", "m")];
        let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        for (annotations, of_other, expected) in [
            (Value::Null, json!({"URL": "u", "UUID": "1"}), true),
            (Value::Null, json!({"URL": "u", "UUID": "2"}), false),
            (Value::Null, json!({}), false),
            (identity, json!({"URL": "u", "UUID": "1"}), false),
        ] {
            let left = instance("cam-left", annotations, of_other.clone());
            objects.take_instances(Change::All(vec![left, new.clone()]));
            assert_eq!(objects.had_instance(&new, &properties), expected, "{of_other}");
        }
    }

    fn configuration(version: u64, status: Value) -> ConfigurationView {
        let metadata = json!({"namespace": "n", "name": "cam", "uid": "c", "generation": 1,
            "resourceVersion": version.to_string()});
        let spec = json!({"discoveryHandler": {"name": "onvif"}});
        let object = json!({"metadata": metadata, "spec": spec, "status": status});
        ConfigurationView::read(serde_json::from_value(object).unwrap())
    }

    /// The agent of the node looks at everything up to version 10.
    fn run_agent(objects: &ObjectIndex) {
        let annotations = json!({"akri.sh/watched": "10,0"});
        let lease = json!({"metadata": {"name": agent_lease::name("node-a"), "annotations": annotations},
            "spec": {"renewTime": format!("{:.6}", Timestamp::now()), "holderIdentity": "node-a"}});
        objects.take_leases(Change::Put(serde_json::from_value(lease).unwrap()));
    }

    #[test] // rule 65
    fn unadopted_instance_goes_once_agents_have_looked_for_long() {
        let (objects, start) = (ObjectIndex::default(), Instant::now());
        let left = instance("cam-left", Value::Null, json!({"URL": "u"}));
        let (answered, pending) = (configuration(1, Value::Null), configuration(20, Value::Null));
        let problem = json!({"node-a": {"reason": "NoHandler", "message": ""}});
        let troubled = configuration(1, json!({"nodes": problem}));
        let left_at = |owner: &ConfigurationView, seconds| {
            objects.unadopted_for(&left, owner, start + Duration::from_secs(seconds)).map(|left| left.as_secs())
        };
        assert_eq!(left_at(&answered, 0), Some(300), "no agent runs");
        assert_eq!(left_at(&answered, 1_000), Some(300));
        run_agent(&objects);
        assert_eq!([left_at(&answered, 0), left_at(&answered, 100)], [Some(300), Some(200)]);
        for owner in [&troubled, &pending] {
            assert_eq!([left_at(owner, 110), left_at(&answered, 120)], [Some(300), Some(300)], "it begins anew");
        }
        let adopted = instance("cam-left", json!({"akri.sh/identity": "0"}), json!({}));
        assert_eq!(objects.unadopted_for(&adopted, &answered, start), None);
    }

    /// Shows a broker of the Instance.
    fn show_broker(objects: &ObjectIndex, kind: &str) {
        let owner = if kind == "Pod of another" { "another" } else { "cam-left" };
        let owner = json!({"apiVersion": "akri.sh/v0", "kind": "Instance", "name": "cam-left", "uid": owner, "controller": true});
        let metadata = json!({"namespace": "n", "name": "broker", "uid": "b", "ownerReferences": [owner]});
        let ended = json!({"conditions": [{"type": "Complete", "status": "True"}]});
        let object = json!({"metadata": metadata, "status": if kind == "ended Job" { ended } else { json!({}) }});
        match kind {
            "" => {}
            "Job" | "ended Job" => {
                objects.take_jobs(Change::Put(JobView::of(serde_json::from_value(object).unwrap())));
            }
            _ => objects.take_pods(Change::Put(PodView::of(&serde_json::from_value(object).unwrap()))),
        }
    }

    #[test] // rule 25, rule 65, rule 107
    fn unadopted_instance_stays_while_others_use_its_slots() {
        let owner = configuration(1, Value::Null);
        for (usage, broker, stays) in [
            (json!({"cam-left-0": ""}), "", false),
            (json!({"cam-left-0": "node-a"}), "", true),
            (json!({"cam-left-0": "C:0"}), "Pod", true),
            (json!({"cam-left-0": "node-a"}), "Pod", false),
            (json!({"cam-left-0": "node-a"}), "Pod of another", true),
            (json!({"cam-left-0": "node-a", "cam-left-1": "C:0:node-b"}), "Pod", true),
            (json!({"cam-left-0": "node-a"}), "Job", true),
            (json!({"cam-left-0": "node-a"}), "ended Job", false),
        ] {
            let (objects, start) = (ObjectIndex::default(), Instant::now());
            run_agent(&objects);
            show_broker(&objects, broker);
            let left = used_instance("cam-left", Value::Null, json!({"URL": "u"}), usage.clone());
            objects.unadopted_for(&left, &owner, start);
            let later = objects.unadopted_for(&left, &owner, start + Duration::from_secs(100)).unwrap();
            assert_eq!(later.as_secs(), if stays { 300 } else { 200 }, "{usage} {broker}");
        }
    }
}
