//! Akri as `deploy/` installs it: the image, the rights, an agent on every node and the controller.

use std::path::Path;
use std::time::{Duration, Instant};

use akri_api::{Configuration, Instance, condition};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, DeploymentStatus};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, LogParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::support::cluster::{BUSYBOX, Story, wait_for};
use crate::support::node::resource_of;

const NAMESPACE: &str = "akri-system";

/// Akri on a cluster. It goes with this, since the Configurations of other stories are none of its business.
struct Installed<'a> {
    story: &'a Story,
}

impl<'a> Installed<'a> {
    /// Applies `deploy/`, with the image that was just built, and waits until everything runs.
    async fn new(story: &'a Story) -> Self {
        story.cluster().load_akri().unwrap();
        gone(story).await; // what a story that failed has left may be about to go
        let installed = Self { story };
        for file in ["crds.yaml", "akri.yaml", "handlers.yaml"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
            story.apply(&std::fs::read_to_string(path).unwrap()).await;
        }
        let agents: Api<DaemonSet> = Api::namespaced(story.client(), NAMESPACE);
        let ready = async || agents.get("akri-agent").await.unwrap().status.map(|status| status.number_ready);
        wait_for("two agents", ready, |ready| *ready == Some(2)).await;
        let controllers: Api<Deployment> = Api::namespaced(story.client(), NAMESPACE);
        let status = async || controllers.get("akri-controller").await.unwrap().status;
        let is_ready = |status: &Option<DeploymentStatus>| status.as_ref().is_some_and(|s| s.ready_replicas == Some(1));
        wait_for("a controller", status, is_ready).await;
        installed
    }

    /// Waits until it is gone.
    async fn end(self) {
        let story = self.story;
        drop(self);
        gone(story).await;
    }
}

/// How long pods have to end by themselves.
const GRACE: Duration = Duration::from_secs(5);

/// Pods that have ended can stay listed for a minute, and what deletes their namespace looks ever more seldom.
async fn gone(story: &Story) {
    let namespaces: Api<Namespace> = Api::all(story.client());
    let pods: Api<Pod> = Api::namespaced(story.client(), NAMESPACE);
    let start = Instant::now();
    let found = async || {
        let found = namespaces.get_opt(NAMESPACE).await.unwrap();
        if found.is_some() && start.elapsed() > GRACE {
            let now = DeleteParams::default().grace_period(0);
            let _ = pods.delete_collection(&now, &ListParams::default()).await; // they may be gone by now
        }
        found
    };
    wait_for("no agents", found, Option::is_none).await;
}

/// What the agents and the controller have to say.
async fn logs(client: Client) -> kube::Result<String> {
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let mut logs = String::new();
    for pod in pods.list(&ListParams::default()).await? {
        let name = pod.name_any();
        logs += &format!("{name}:\n{}\n", pods.logs(&name, &LogParams::default()).await?);
    }
    Ok(logs)
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.story.ask("no logs", async |client| {
                eprintln!("{}", logs(client).await?);
                Ok(())
            });
        }
        self.story.delete_namespace(NAMESPACE);
    }
}

#[test]
fn the_deployed_handlers_are_the_built_in_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let handlers = ["debug-echo", "onvif", "opcua", "udev"];
    let expected = handlers.map(|name| {
        let manifest = std::fs::read_to_string(root.join("handlers").join(name).join("handler.yaml")).unwrap();
        format!("---\n{manifest}")
    });
    let deployed = std::fs::read_to_string(root.join("deploy/handlers.yaml")).unwrap();
    assert!(deployed == expected.concat(), "run 'make manifests'");
}

#[tokio::test]
async fn a_device_that_two_nodes_see_is_there_for_pods_of_both() {
    let Some(story) = Story::begin_alone("deployed").await else { return };
    let installed = Installed::new(&story).await;
    let spec = json!({
        "discoveryHandler": {"name": "debugEcho", "discoveryDetails": "descriptions: [lamp]"}, "capacity": 2,
    });
    let configuration = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "lamp"}, "spec": spec,
    });
    story.apply_one(configuration).await.unwrap();
    let list = async || story.api::<Instance>().list(&ListParams::default()).await.unwrap().items;
    let found = wait_for("an Instance of two nodes", list, |all| all.len() == 1 && all[0].spec.nodes.len() == 2).await;
    for node in ["node-a", "node-b"] {
        story.wait_for_allocatable(node, &resource_of(&found[0]), 2).await;
        story.wait_for_allocatable(node, "akri.sh/lamp", 1).await;
    }
    for node in ["node-a", "node-b"] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": node},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": BUSYBOX, "command": ["sh", "-c", "env; sleep 100000"],
                    "resources": {"limits": {"akri.sh/lamp": "1"}},
                }],
            },
        });
        story.apply_one(pod).await.unwrap();
        story.wait_for_running(node).await;
        story.wait_for_log(node, "DEBUG_ECHO_DESCRIPTION=lamp").await;
    }
    let used = |all: &Vec<Instance>| {
        let mut used: Vec<&str> = all[0].spec.device_usage.values().map(String::as_str).collect();
        used.sort_unstable();
        used == ["C:0:node-a", "C:0:node-b"]
    };
    wait_for("a slot for each node", list, used).await;
    let logs = logs(story.client()).await.unwrap();
    assert!(!logs.contains("orbidden"), "a right is missing: {logs}");
    installed.end().await;
}

#[tokio::test]
async fn a_secret_is_read_where_an_administrator_lets_the_agent_and_nowhere_else() {
    let Some(story) = Story::begin_alone("secret").await else { return };
    let installed = Installed::new(&story).await;
    let object = |api: &str, kind: &str, name: &str, more: Value| {
        let mut object = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    };
    let rbac = "rbac.authorization.k8s.io";
    story.apply_one(object("v1", "Secret", "login", json!({"stringData": {"user": "admin"}}))).await.unwrap();
    let reference = json!({"secretKeyRef": {"name": "login", "namespace": story.namespace(), "key": "user"}});
    let handler = json!({
        "name": "debugEcho",
        "discoveryDetails": "descriptions: [lamp]",
        "discoveryProperties": [{"name": "user", "valueFrom": reference}],
    });
    let configuration = json!({"spec": {"discoveryHandler": handler}});
    story.apply_one(object("akri.sh/v0", "Configuration", "locked", configuration)).await.unwrap();
    let unresolved = |configuration: &Configuration| {
        let conditions = configuration.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        condition::find(conditions, "PropertiesResolved").is_some_and(|condition| condition.status == "False")
    };
    story.wait_for_object("locked", "properties that are not resolved", unresolved).await;
    assert!(story.api::<Instance>().list(&ListParams::default()).await.unwrap().items.is_empty());

    let rule = json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["login"], "verbs": ["get", "list", "watch"]});
    story.apply_one(object(&format!("{rbac}/v1"), "Role", "login", json!({"rules": [rule]}))).await.unwrap();
    let binding = json!({
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "login"},
        "subjects": [{"kind": "ServiceAccount", "name": "akri-agent", "namespace": NAMESPACE}],
    });
    story.apply_one(object(&format!("{rbac}/v1"), "RoleBinding", "login", binding)).await.unwrap();
    let list = async || story.api::<Instance>().list(&ListParams::default()).await.unwrap().items;
    wait_for("the device", list, |all| all.len() == 1).await;
    installed.end().await;
}
