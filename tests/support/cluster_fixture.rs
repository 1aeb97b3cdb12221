//! Nodes of a real cluster without machines: the real agent of each, with a test kubelet, on a real API server.
//! Configurations apply to all nodes of a cluster, so such stories run one after the other.

use std::path::PathBuf;
use std::process::Command;

use akri_api::condition::{self, Condition};
use akri_api::{Configuration, Instance};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::cluster::{Story, is_elsewhere, wait_for};
use crate::kubelet::Kubelet;
use crate::node::{Agent, Node, akri};

static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

/// A cluster with the controller, and nodes added by a story.
pub struct ClusterFixture {
    pub story: Story,
    kubeconfig: PathBuf,
    controller: Option<Agent>,
    _exclusive: MutexGuard<'static, ()>,
}

/// A node.
pub struct Member {
    pub name: &'static str,
    pub node: Node,
    pub kubelet: Kubelet,
    pub agent: Option<Agent>,
    kubeconfig: PathBuf,
    flags: &'static [&'static str],
}

impl ClusterFixture {
    /// Begins a story. `None`, with the reason printed, if there is no cluster.
    pub async fn begin(name: &str) -> Option<Self> {
        let exclusive = EXCLUSIVE.lock().await;
        let story = if is_elsewhere() { Story::begin(name).await? } else { Story::begin_alone(name).await? };
        // The controller treats unknown nodes as removed.
        for node in ["node-a", "node-b"].into_iter().filter(|_| is_elsewhere()) {
            let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
            story.apply_one(object).await.unwrap();
        }
        Some(Self::on(story, exclusive).await)
    }

    /// Begins a story on the cluster of the tests, whose components it stops and starts.
    pub async fn begin_on_real_nodes(name: &str) -> Option<Self> {
        let exclusive = EXCLUSIVE.lock().await;
        Some(Self::on(Story::begin_alone(name).await?, exclusive).await)
    }

    async fn on(story: Story, exclusive: MutexGuard<'static, ()>) -> Self {
        for definition in story.apply(include_str!("../../deploy/crds.yaml")).await {
            established(&story, &definition.name_any()).await;
        }
        if !is_elsewhere() {
            // Agents that other stories have killed would count as running for minutes.
            let leases: Api<Lease> = Api::default_namespaced(story.client());
            leases.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
        }
        let kubeconfig = story.kubeconfig();
        let mut cluster = Self { story, kubeconfig, controller: None, _exclusive: exclusive };
        cluster.start_controller();
        cluster
            .handle(
                "debug-echo",
                json!({"name": "debugEcho", "component": {"file": "debug_echo.wasm"}, "interval": "200ms"}),
            )
            .await;
        cluster
    }

    /// Starts the controller again.
    pub fn start_controller(&mut self) {
        let mut command = Command::new(akri());
        self.controller = Some(Agent::spawn(command.args(["controller", "-v"]).env("KUBECONFIG", &self.kubeconfig)));
    }

    /// Ends the controller, which gives up its Lease.
    pub fn stop_controller(&mut self) {
        if let Some(controller) = self.controller.take() {
            controller.stop();
        }
    }

    /// Adds a node with an agent and a kubelet.
    pub fn add(&self, name: &'static str) -> Member {
        self.add_with(name, self.kubeconfig.clone(), &[])
    }

    /// Adds a node whose agent reaches the API server by this kubeconfig, and has these flags.
    pub fn add_with(&self, name: &'static str, kubeconfig: PathBuf, flags: &'static [&'static str]) -> Member {
        let node = Node::new();
        let kubelet = Kubelet::start(&node.path("kubelet"));
        let mut member = Member { name, node, kubelet, agent: None, kubeconfig, flags };
        member.start();
        member
    }

    /// Applies a DiscoveryHandler for all nodes.
    pub async fn handle(&self, name: &str, spec: Value) {
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "DiscoveryHandler", "metadata": {"name": name}, "spec": spec,
        });
        self.story.apply_one(object).await.unwrap();
    }

    /// Applies a Configuration for debugEcho with these devices; `more` goes into its spec.
    pub async fn echo(&self, name: &str, capacity: u32, devices: &[&str], more: Value) {
        let details = json!({"descriptions": devices}).to_string();
        let mut spec = json!({
            "discoveryHandler": {"name": "debugEcho", "discoveryDetails": details},
            "capacity": capacity,
            "offlineGracePeriod": "0s",
        });
        merge(&mut spec, more);
        self.configure(name, spec).await;
    }

    /// Applies a Configuration.
    pub async fn configure(&self, name: &str, spec: Value) {
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": name}, "spec": spec,
        });
        self.story.apply_one(object).await.unwrap();
    }

    /// Returns a unique name for a Configuration, since resource names have no namespaces.
    pub fn name(&self) -> &str {
        self.story.namespace()
    }

    pub fn configurations(&self) -> Api<Configuration> {
        self.story.api()
    }

    pub fn instances(&self) -> Api<Instance> {
        self.story.api()
    }

    pub async fn list(&self) -> Vec<Instance> {
        let listed = self.instances().list(&Default::default()).await;
        listed.map(|list| list.items).unwrap_or_default()
    }

    /// Waits until the Instances satisfy a condition.
    pub async fn wait_for_instances(&self, what: &str, wanted: impl Fn(&[Instance]) -> bool) -> Vec<Instance> {
        wait_for(what, async || self.list().await, |list| wanted(list)).await
    }

    /// Waits until the only Instance satisfies a condition.
    pub async fn wait_for_the_instance(&self, what: &str, wanted: impl Fn(&Instance) -> bool) -> Instance {
        self.wait_for_instances(what, |list| list.len() == 1 && wanted(&list[0])).await.remove(0)
    }

    /// Waits until a Configuration's condition satisfies a test.
    pub async fn wait_for_condition(&self, configuration: &str, kind: &str, status: &str, reason: &str) -> Condition {
        let what = format!("{kind}={status} ({reason}) of {configuration}");
        let found = async || self.condition(configuration, kind).await;
        let wanted =
            |found: &Option<Condition>| found.as_ref().is_some_and(|c| c.status == status && c.reason == reason);
        wait_for(&what, found, wanted).await.unwrap()
    }

    async fn condition(&self, configuration: &str, kind: &str) -> Option<Condition> {
        let status = self.configurations().get_opt(configuration).await.ok()??.status?;
        condition::find(&status.conditions, kind).cloned()
    }

    /// Returns the first answer of `Ready` for the newest generation of a Configuration.
    pub async fn first_answer(&self, configuration: &str) -> String {
        let ready = async || {
            let object = self.configurations().get(configuration).await.ok()?;
            let (generation, status) = (object.metadata.generation, object.status?);
            let ready = condition::find(&status.conditions, "Ready")?;
            (ready.observed_generation == generation && ready.status != "Unknown").then(|| ready.reason.clone())
        };
        wait_for("an answer", ready, Option::is_some).await.unwrap()
    }

    /// Makes the Lease of a node's agent look as if it had not been renewed for an hour.
    pub async fn end_lease(&self, node: &str) {
        let leases = Api::<Lease>::all(self.story.client()).list(&ListParams::default()).await.unwrap();
        let is_its = |lease: &Lease| lease.spec.as_ref().is_some_and(|s| s.holder_identity.as_deref() == Some(node));
        let long_ago = format!("{:.6}", Timestamp::now() - SignedDuration::from_hours(1));
        for lease in leases.items.into_iter().filter(is_its) {
            let api: Api<Lease> = Api::namespaced(self.story.client(), &lease.namespace().unwrap());
            let patch = Patch::Merge(json!({"spec": {"renewTime": long_ago}}));
            api.patch(&lease.name_any(), &PatchParams::default(), &patch).await.unwrap();
        }
    }

    /// Deletes a Configuration, and waits for the end of its Instances.
    pub async fn delete(&self, configuration: &str) {
        self.configurations().delete(configuration, &DeleteParams::default()).await.unwrap();
        let its = |instance: &Instance| instance.spec.configuration_name == configuration;
        self.wait_for_instances("no Instance of it", |list| !list.iter().any(its)).await;
    }
}

impl Drop for ClusterFixture {
    fn drop(&mut self) {
        // A killed controller keeps its Lease, and the next story would wait for the end of that.
        if !std::thread::panicking() {
            self.stop_controller();
        }
    }
}

impl Member {
    /// Starts the agent.
    pub fn start(&mut self) {
        self.agent = Some(self.node.start_in(&self.kubeconfig, self.name, self.flags));
    }

    /// Stops the agent with SIGTERM.
    pub fn stop(&mut self) {
        assert!(self.agent.take().unwrap().stop());
    }

    /// Kills the agent with SIGKILL.
    pub fn kill(&mut self) {
        self.agent.take().unwrap().kill();
    }

    pub fn log(&self) -> String {
        self.agent.as_ref().map(Agent::log).unwrap_or_default()
    }

    /// Waits until the kubelet can allocate that many IDs of a resource.
    pub async fn offers(&self, resource: &str, count: usize) {
        let what = format!("{count} of {resource} on {}", self.name);
        self.kubelet.wait_for(&what, |view| view.resource(resource).allocatable() == count).await;
    }
}

pub async fn established(story: &Story, name: &str) {
    let api: Api<CustomResourceDefinition> = Api::all(story.client());
    let established = |found: &Option<CustomResourceDefinition>| {
        let conditions = found.as_ref().and_then(|found| found.status.as_ref()?.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Established" && c.status == "True"))
    };
    wait_for("an established CRD", async || api.get_opt(name).await.unwrap(), established).await;
}

fn merge(into: &mut Value, more: Value) {
    if let (Some(into), Value::Object(more)) = (into.as_object_mut(), more) {
        into.extend(more);
    }
}
