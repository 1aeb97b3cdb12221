//! The controller alone on a real API server: a story makes the Configurations, Instances and Nodes, and says how the Pods
//! are, as a kubelet would. Each story has a controller of its own for its own namespace, so that many run at a time.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use akri_api::condition::{self, Condition};
use akri_api::{Configuration, Instance};
use akri_model::agent_lease::{Progress, Versions};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::sleep;

use crate::cluster::{Story, wait_for};
use crate::cluster_fixture::established;
use crate::node::{Agent, akri};

static KINDS: OnceCell<()> = OnceCell::const_new();

/// A namespace with a controller.
pub struct Brokers {
    pub story: Story,
    pub controller: Option<Agent>,
    nodes: Vec<String>,
}

impl Brokers {
    /// With a controller that leads. None, with the reason, if there is no cluster.
    pub async fn begin(name: &str) -> Option<Self> {
        let mut brokers = Self::begin_without_controller(name).await?;
        brokers.controller = Some(brokers.start_controller());
        Some(brokers)
    }

    /// A namespace whose controller is not started yet. None, with the reason, if there is no cluster.
    pub async fn begin_without_controller(name: &str) -> Option<Self> {
        let story = Story::begin_on_control(name).await?;
        KINDS.get_or_init(async || define(&story).await).await;
        Some(Self { story, controller: None, nodes: Vec::new() })
    }

    /// Another controller of the namespace.
    pub fn start_controller(&self) -> Agent {
        start_controller(&self.story.kubeconfig(), &["--namespace", self.namespace()], self.namespace())
    }

    /// `kill -9` of the controller.
    pub fn kill_controller(&mut self) {
        self.controller.take().unwrap().kill();
    }

    pub fn namespace(&self) -> &str {
        self.story.namespace()
    }

    /// A Node without a kubelet. Names of Nodes are the cluster's, so that this one begins with the namespace.
    pub async fn node(&mut self, name: &str) -> String {
        let name = format!("{}-{name}", self.namespace());
        let node =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"unschedulable": true}});
        self.story.apply_one(node).await.unwrap();
        self.nodes.push(name.clone());
        name
    }

    /// Several of them.
    pub async fn nodes<const N: usize>(&mut self, names: [&str; N]) -> [String; N] {
        let mut made = Vec::new();
        for name in names {
            made.push(self.node(name).await);
        }
        made.try_into().unwrap()
    }

    /// A Configuration with a broker; `more` goes into its spec.
    pub async fn configure(&self, name: &str, more: Value) -> Configuration {
        let mut spec = json!({"discoveryHandler": {"name": "debugEcho"}, "capacity": 5});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": name}, "spec": spec,
        });
        self.story.apply_one(object).await.unwrap();
        self.get::<Configuration>(name).await.unwrap()
    }

    /// An Instance of a Configuration that these nodes see.
    pub async fn instance(&self, configuration: &Configuration, hash: &str, nodes: &[&str]) -> Instance {
        self.instance_with(configuration, hash, nodes, json!({})).await
    }

    /// An Instance of a Configuration that these nodes see; `more` goes into its spec.
    pub async fn instance_with(&self, of: &Configuration, hash: &str, nodes: &[&str], more: Value) -> Instance {
        let name = format!("{}-{hash}", of.name_any());
        let capacity = usize::try_from(of.spec.capacity).unwrap();
        let usage: BTreeMap<String, &str> = (0..capacity).map(|slot| (format!("{name}-{slot}"), "")).collect();
        let mut spec = json!({
            "configurationName": of.name_any(), "cdiName": format!("akri.sh/{}={hash}", of.name_any()),
            "capacity": of.spec.capacity, "shared": true, "nodes": nodes, "deviceUsage": usage,
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let owner = json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "name": of.name_any(), "uid": of.uid(),
            "controller": true, "blockOwnerDeletion": false,
        });
        let object: Instance = serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec,
        }))
        .unwrap();
        self.story.api().create(&PostParams::default(), &object).await.unwrap()
    }

    /// Merges something into the spec of an Instance.
    pub async fn change_instance(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.story.api::<Instance>().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Says that a node has missed the device for that many seconds.
    pub async fn miss(&self, instance: &str, node: &str, seconds: i64) {
        let problem = json!({"reason": "NotFound", "message": "not seen", "since": ago(seconds)});
        let patch = Patch::Merge(json!({"status": {"nodes": {node: problem}}}));
        self.story.api::<Instance>().patch_status(instance, &PatchParams::default(), &patch).await.unwrap();
    }

    /// The object of that name.
    pub async fn get<K>(&self, name: &str) -> Option<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        self.story.api::<K>().get_opt(name).await.unwrap()
    }

    /// All objects of a kind.
    pub async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        self.story.api::<K>().list(&ListParams::default()).await.unwrap().items
    }

    /// Waits until the objects of a kind have these names, in any order.
    pub async fn wait_for_names<K>(&self, names: &[&str]) -> Vec<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let mut wanted: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        wanted.sort_unstable();
        let are = |found: &Vec<K>| names_of(found) == wanted;
        wait_for(&format!("{wanted:?}"), async || self.list::<K>().await, are).await
    }

    /// Waits until there are so many Pods that are not being deleted.
    pub async fn wait_for_pods(&self, count: usize) -> Vec<Pod> {
        let is_so = |found: &Vec<Pod>| found.len() == count && found.iter().all(|pod| !is_going(pod));
        wait_for(&format!("{count} Pods"), async || self.list::<Pod>().await, is_so).await
    }

    /// Waits for a condition of an Instance.
    pub async fn wait_for_instance_condition(&self, name: &str, status: &str, reason: &str) -> Condition {
        let found = async || Some(self.get::<Instance>(name).await?.status?.conditions);
        self.wait_for_brokers_ready(name, found, status, reason).await
    }

    /// Returns a condition of an Instance.
    pub async fn instance_condition(&self, name: &str, kind: &str) -> Option<Condition> {
        condition::find(&self.get::<Instance>(name).await?.status?.conditions, kind).cloned()
    }

    /// Waits for a condition of a Configuration.
    pub async fn wait_for_configuration_condition(&self, name: &str, status: &str, reason: &str) -> Condition {
        let found = async || Some(self.get::<Configuration>(name).await?.status?.conditions);
        self.wait_for_brokers_ready(name, found, status, reason).await
    }

    async fn wait_for_brokers_ready(
        &self,
        name: &str,
        found: impl AsyncFn() -> Option<Vec<Condition>>,
        status: &str,
        reason: &str,
    ) -> Condition {
        let one = |all: &Option<Vec<Condition>>| condition::find(all.as_deref()?, "BrokersReady").cloned();
        let is_so = |all: &Option<Vec<Condition>>| one(all).is_some_and(|c| c.status == status && c.reason == reason);
        let what = format!("BrokersReady={status} ({reason}) of {name}");
        one(&wait_for(&what, found, is_so).await).unwrap()
    }

    /// Says of a Pod, as a kubelet whose clock is wrong does, that it runs and is ready.
    pub async fn run(&self, pod: &str) {
        let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": ago(-3600)}]);
        self.set_status(pod, json!({"phase": "Running", "startTime": ago(-3600), "conditions": ready})).await;
    }

    /// Says that a Pod was refused or has failed, an hour ago by the node's clock.
    pub async fn fail(&self, pod: &str, reason: &str) {
        let status =
            json!({"phase": "Failed", "reason": reason, "message": "as the story says", "startTime": ago(3600)});
        self.set_status(pod, status).await;
    }

    /// Says how a Pod is.
    pub async fn set_status(&self, pod: &str, status: Value) {
        let patch = Patch::Strategic(json!({"status": status}));
        self.story.api::<Pod>().patch_status(pod, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Deletes an object.
    pub async fn delete<K>(&self, name: &str)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        self.story.api::<K>().delete(name, &DeleteParams::background().grace_period(0)).await.unwrap();
    }

    /// Says as an administrator that nothing runs on a node any more.
    pub async fn take_out_of_service(&self, name: &str) {
        take_out_of_service(&self.story, name).await;
    }

    /// Renews the Lease of a node's agent that has looked at everything, and returns its name.
    pub async fn renew_lease(&self, node: &str) -> String {
        self.renew_lease_until(node, u64::MAX).await
    }

    /// Renews the Lease of a node's agent that has looked at what was made or edited up to that version, and returns its name.
    pub async fn renew_lease_until(&self, node: &str, watched: u64) -> String {
        let name = akri_model::agent_lease::name(node);
        let watched = Versions { configurations: watched, handlers: watched };
        let progress = Progress::new(watched, BTreeMap::new(), BTreeMap::new()).to_annotations();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "labels": {"akri.sh/lease": "agent"}, "annotations": progress},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": 180, "renewTime": format!("{:.6}", Timestamp::now())},
        });
        self.story.apply_one(lease).await.unwrap();
        name
    }

    /// Deletes a Node.
    pub async fn delete_node(&self, name: &str) {
        Api::<Node>::all(self.story.client()).delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Returns the controller's last write of each kind: it changes if the controller writes something new.
    pub async fn writes(&self) -> Vec<String> {
        let mut writes = Vec::new();
        let mut add =
            |kind: &str,
             name: String,
             fields: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry]| {
                let ours = fields.iter().filter(|entry| entry.manager.as_deref() == Some("akri-controller"));
                writes.extend(ours.map(|entry| format!("{kind} {name} {:?} {:?}", entry.time, entry.fields_v1)));
            };
        for object in self.list::<Instance>().await {
            add("Instance", object.name_any(), object.managed_fields());
        }
        for object in self.list::<Configuration>().await {
            add("Configuration", object.name_any(), object.managed_fields());
        }
        for object in self.list::<Pod>().await {
            add("Pod", format!("{} {:?}", object.name_any(), object.uid()), object.managed_fields());
        }
        for object in self.list::<Job>().await {
            add("Job", format!("{} {:?}", object.name_any(), object.uid()), object.managed_fields());
        }
        for object in self.list::<Service>().await {
            add("Service", format!("{} {:?}", object.name_any(), object.resource_version()), object.managed_fields());
        }
        writes
    }
}

/// Says as an administrator that nothing runs on a node any more.
pub async fn take_out_of_service(story: &Story, node: &str) {
    let (nodes, key) = (Api::<Node>::all(story.client()), "node.kubernetes.io/out-of-service");
    let taint = json!({"key": key, "value": "nodeshutdown", "effect": "NoExecute"});
    let patch = Patch::Strategic(json!({"spec": {"taints": [taint]}}));
    // Before 1.26 the node lifecycle controller may replace all taints by those that it read before (kubernetes #113136).
    let mut stays = 0;
    while stays < 10 {
        let taints = nodes.get(node).await.unwrap().spec.and_then(|spec| spec.taints).unwrap_or_default();
        if taints.iter().any(|taint| taint.key == key) {
            stays += 1;
        } else {
            nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
            stays = 0;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        let nodes = std::mem::take(&mut self.nodes);
        self.story.ask("Nodes stay", async |client| {
            for node in &nodes {
                let _ = Api::<Node>::all(client.clone()).delete(node, &DeleteParams::default()).await; // the story may have
            }
            Ok(())
        });
    }
}

/// Starts a controller that takes part in the leader election of a namespace.
pub fn start_controller(kubeconfig: &Path, flags: &[&str], leases: &str) -> Agent {
    let mut command = Command::new(akri());
    command.arg("controller").args(flags).args(["--lease-namespace", leases, "-v"]).env("KUBECONFIG", kubeconfig);
    Agent::spawn(&mut command)
}

/// A Pod broker with one container.
pub fn pod_broker(container: Value) -> Value {
    let mut main = json!({"name": "main", "image": "broker:1"});
    main.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    json!({"brokerSpec": {"brokerPodSpec": {"containers": [main], "terminationGracePeriodSeconds": 0}}})
}

/// A Job broker whose container runs that image.
pub fn job_broker(image: &str) -> Value {
    let template = json!({"spec": {"containers": [{"name": "main", "image": image}], "restartPolicy": "Never"}});
    json!({"brokerSpec": {"brokerJobSpec": {"template": template}}})
}

/// Names in order.
pub fn names_of<K: Resource>(objects: &[K]) -> Vec<String> {
    let mut names: Vec<String> = objects.iter().map(|object| object.name_any()).collect();
    names.sort_unstable();
    names
}

/// Returns whether an object is being deleted.
pub fn is_going<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

fn ago(seconds: i64) -> String {
    let at = Timestamp::now().checked_sub(SignedDuration::from_secs(seconds)).unwrap();
    format!("{at:.0}")
}

async fn define(story: &Story) {
    for definition in story.apply(include_str!("../../deploy/crds.yaml")).await {
        established(story, &definition.name_any()).await;
    }
}
