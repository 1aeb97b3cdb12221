//! The admission policies for agents on a real API server, with tokens of pods on other nodes. API servers before 1.30 have no such
//! policies; `policy.rs` evaluates the expressions for all.

use akri_model::agent_lease;
use http::Request;
use k8s_openapi::api::authentication::v1::TokenRequest;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config, ResourceExt as _};
use serde_json::{Value, json};

use crate::policy;
use crate::support::cluster::{Story, kubernetes_version, wait_for};
use crate::support::cluster_fixture::established;
use crate::support::skip::leave_out;

/// The account of agents; it may do everything that no policy forbids.
const AGENT: &str = "akri-agent";

const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// Clients of agents, in the order of NODES, and of one whose token names no node.
struct Agents {
    namespace: String,
    of_nodes: Vec<Client>,
    of_none: Client,
}

impl Agents {
    fn on(&self, node: &str) -> Client {
        let index = NODES.iter().position(|name| *name == node).unwrap();
        self.of_nodes[index].clone()
    }

    fn api(&self, client: Client, kind: &str) -> Api<DynamicObject> {
        let kind = match kind {
            "Lease" => GroupVersionKind::gvk("coordination.k8s.io", "v1", kind),
            kind => GroupVersionKind::gvk("akri.sh", "v0", kind),
        };
        let resource = ApiResource::from_gvk(&kind);
        match &*kind.kind {
            "DiscoveryHandler" => Api::all_with(client, &resource),
            _ => Api::namespaced_with(client, &self.namespace, &resource),
        }
    }
}

/// Returns a client of an account, whose token is bound to a pod of it, if there is one.
async fn client_of(story: &Story, account: &str, pod: Option<&DynamicObject>) -> Client {
    let bound = pod.map(|pod| json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()}));
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", story.namespace());
    let spec = json!({"spec": {"audiences": [], "boundObjectRef": bound}});
    let request = Request::post(path).header("content-type", "application/json").body(spec.to_string().into_bytes());
    let answer: TokenRequest = story.client().request(request.unwrap()).await.unwrap();
    let file = Kubeconfig::read_from(story.kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    let token = answer.status.unwrap().token.map(Into::into);
    config.auth_info = AuthInfo { token, ..AuthInfo::default() };
    Client::try_from(config).unwrap()
}

async fn add_account(story: &Story, account: &str) {
    story
        .apply_one(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}))
        .await
        .unwrap();
    let subject = json!({"kind": "ServiceAccount", "name": account, "namespace": story.namespace()});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": format!("{}-{account}", story.namespace())}, "subjects": [subject], "roleRef": role,
    });
    story.apply_one(binding).await.unwrap();
}

/// Returns a pod of the agents' account on a node. Its container never runs.
async fn pod_on(story: &Story, node: &str) -> DynamicObject {
    let container = json!({"name": "none", "image": "none.invalid/none", "imagePullPolicy": "Never"});
    let spec = json!({
        "nodeName": node, "serviceAccountName": AGENT, "containers": [container], "tolerations": [{"operator": "Exists"}],
    });
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("agent-{node}")}, "spec": spec});
    story.apply_one(pod).await.unwrap()
}

/// Asserts that a policy refuses a request, in these words.
#[track_caller]
fn assert_refused<T>(answer: kube::Result<T>, what: &str, message: &str) {
    match answer.err() {
        Some(kube::Error::Api(status)) if status.code == 403 && status.message.contains(message) => {}
        other => panic!("{what}: expected a refusal with '{message}', not {other:?}"),
    }
}

/// Returns the JSON Patch for changes in the form of `policy.rs`.
fn json_patch(changes: &Value) -> Patch<()> {
    let operation = |change: &Value| match change.get("value") {
        Some(value) => json!({"op": "add", "path": change["path"], "value": value}),
        None => json!({"op": "remove", "path": change["path"]}),
    };
    let operations: Value = changes.as_array().unwrap().iter().map(operation).collect();
    Patch::Json(serde_json::from_value(operations).unwrap())
}

/// Parameters of requests that pass admission and are not stored, so that all find the same object.
fn dry_run() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

async fn make_agents(story: &Story) -> Agents {
    add_account(story, AGENT).await;
    story.apply_one(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-c"}})).await.unwrap();
    let mut of_nodes = Vec::new();
    for node in NODES {
        let pod = pod_on(story, node).await;
        of_nodes.push(client_of(story, AGENT, Some(&pod)).await);
    }
    Agents { namespace: story.namespace().to_owned(), of_nodes, of_none: client_of(story, AGENT, None).await }
}

/// Makes the Instance of `policy.rs`, with a real owner and the status that this gives.
async fn make_instance(story: &Story, status: Value) -> Value {
    let configuration = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cam"},
        "spec": {"discoveryHandler": {"name": "none"}, "capacity": 3},
    });
    let owner = story.apply_one(configuration).await.unwrap();
    let mut instance = policy::instance();
    instance["apiVersion"] = json!("akri.sh/v0");
    instance["kind"] = json!("Instance");
    instance["metadata"]["ownerReferences"][0]["uid"] = json!(owner.uid());
    let made = story.apply_one(instance.clone()).await.unwrap();
    let api: Api<akri_api::Instance> = story.api();
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status(&made.name_any(), &PatchParams::default(), &patch).await.unwrap();
    instance
}

async fn assert_changes_of_instances(agents: &Agents) {
    let name = "cam-8120fe";
    for (changes, message) in policy::foreign_changes() {
        let api = agents.api(agents.on("node-c"), "Instance");
        let answer = api.patch(name, &dry_run(), &json_patch(&changes)).await;
        assert_refused(answer, &changes.to_string(), message);
    }
    for (node, changes) in policy::own_changes() {
        let api = agents.api(agents.on(node), "Instance");
        let answer = api.patch(name, &dry_run(), &json_patch(&changes)).await;
        answer.unwrap_or_else(|error| panic!("{node}: {changes}: {error}"));
    }
    let api = agents.api(agents.of_none.clone(), "Instance");
    let anything = json!([{"path": "/spec/deviceUsage/cam-8120fe-0", "value": "node-a"}]);
    let answer = api.patch(name, &dry_run(), &json_patch(&anything)).await;
    assert_refused(answer, "a token without a node", "the token of an agent has to say its node");
}

async fn assert_creation_and_deletion(agents: &Agents, instance: &Value) {
    let api = agents.api(agents.on("node-c"), "Instance");
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let new = |owner: &str| {
        let mut object = instance.clone();
        object["metadata"] = json!({
            "name": "cam-aaaaaa", "labels": {"node.akri.sh/cccccccc": "node-c"},
            "ownerReferences": instance["metadata"]["ownerReferences"],
        });
        object["metadata"]["ownerReferences"][0]["name"] = json!(owner);
        object["spec"]["nodes"] = json!(["node-c"]);
        object["spec"]["deviceUsage"] = json!({"cam-aaaaaa-0": ""});
        serde_json::from_value(object).unwrap()
    };
    api.create(&params, &new("cam")).await.unwrap();
    assert_refused(api.create(&params, &new("other")).await, "another owner", "metadata.ownerReferences");
    let params = DeleteParams { dry_run: true, ..DeleteParams::default() };
    let denied = "an agent deletes an Instance only when";
    assert_refused(api.delete("cam-8120fe", &params).await, "an Instance that others see", denied);
    let absent = Preconditions { uid: Some("another".to_owned()), ..Preconditions::default() };
    let params = DeleteParams { preconditions: Some(absent), ..params };
    assert!(api.delete("cam-8120fe", &params).await.is_err());
}

async fn assert_status(agents: &Agents, handler: &str) {
    let problem = json!({"reason": "NoHandler", "message": "m"});
    let info = |slot: &str| json!({"brokerInfo": {slot: {"state": "x"}}});
    let condition = json!([{
        "type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    let own = json!({"nodes": {"node-c": problem}});
    let mut writes = Vec::new();
    for (kind, name) in [("Configuration", "cam"), ("DiscoveryHandler", handler), ("Instance", "cam-8120fe")] {
        writes.push((kind, name, "node-c", own.clone(), None));
        writes.push((kind, name, "node-c", json!({"nodes": {"node-a": problem}}), Some("status.nodes")));
        writes.push((kind, name, "node-c", json!({"conditions": condition}), Some("status.conditions")));
    }
    for (kind, name) in [("Configuration", "cam"), ("DiscoveryHandler", handler)] {
        writes.push((kind, name, "node-c", json!({"awaiting": ["node-a"]}), Some("status.awaiting")));
        if kind == "Configuration" {
            let forged = json!({"discoverOn": ["node-c"]});
            writes.push((kind, name, "node-c", forged, Some("status.discoverOn")));
        }
    }
    let instance = ("Instance", "cam-8120fe");
    writes.push((instance.0, instance.1, "node-a", info("cam-8120fe-2"), None));
    writes.push((instance.0, instance.1, "node-c", info("cam-8120fe-2"), Some("status.brokerInfo")));
    writes.push((instance.0, instance.1, "node-c", json!({"brokerInfo": null}), Some("status.brokerInfo")));
    for (kind, name, node, status, refused) in writes {
        let api = agents.api(agents.on(node), kind);
        let answer = api.patch_status(name, &dry_run(), &Patch::Merge(json!({"status": status}))).await;
        let what = format!("{node}: {kind} {status}");
        match refused {
            Some(message) => assert_refused(answer, &what, message),
            None => drop(answer.unwrap_or_else(|error| panic!("{what}: {error}"))),
        }
    }
}

async fn assert_leases(agents: &Agents) {
    let lease = |node: &str, holder: &str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": agent_lease::name(node)},
            "spec": {"holderIdentity": holder},
        })
    };
    let api = agents.api(agents.on("node-c"), "Lease");
    let write = async |name: &str, lease: Value| {
        let mut lease = lease;
        lease["metadata"]["name"] = json!(name);
        api.patch(name, &PatchParams::apply("akri-agent").force(), &Patch::Apply(lease)).await
    };
    let of = |node: &str| agent_lease::name(node);
    write(&of("node-c"), lease("node-c", "node-c")).await.unwrap();
    for (name, content) in [
        (of("node-a"), lease("node-a", "node-a")),
        (of("node-b"), lease("node-b", "node-c")),
        (of("node-c"), lease("node-c", "node-a")),
        ("akri-controller".to_owned(), lease("node-c", "node-c")),
    ] {
        let what = format!("{name}: {content}");
        assert_refused(
            write(&name, content).await,
            &what,
            "an agent renews and gives up the Lease of its own node only",
        );
    }
}

async fn assert_webhook(story: &Story) {
    add_account(story, "akri-webhook").await;
    let api: Api<k8s_openapi::api::core::v1::Pod> =
        Api::namespaced(client_of(story, "akri-webhook", None).await, story.namespace());
    let pod =
        json!({"metadata": {"name": "dry"}, "spec": {"containers": [{"name": "c", "image": "none.invalid/none"}]}});
    let pod = serde_json::from_value(pod).unwrap();
    api.create(&PostParams { dry_run: true, ..PostParams::default() }, &pod).await.unwrap();
    let stored = api.create(&PostParams::default(), &pod).await;
    assert_refused(stored, "a pod", "the webhook of Akri creates nothing but dry runs");
}

#[tokio::test] // rule 64, rule 109
async fn api_server_keeps_each_agent_to_its_own_node() {
    if kubernetes_version().minor < 30 {
        leave_out("admission policies are of Kubernetes 1.30 and newer");
        return;
    }
    let Some(story) = Story::begin_alone("policies").await else { return };
    for definition in story.apply(include_str!("../deploy/crds.yaml")).await {
        established(&story, &definition.name_any()).await;
    }
    let policies = include_str!("../deploy/policy.yaml").replace(":akri-system:", &format!(":{}:", story.namespace()));
    let policies = story.apply(&policies).await;
    let agents = make_agents(&story).await;
    let handler = story.namespace();
    let object = json!({
        "apiVersion": "akri.sh/v0", "kind": "DiscoveryHandler", "metadata": {"name": handler},
        "spec": {"component": {"file": "none.wasm"}},
    });
    story.apply_one(object).await.unwrap();
    let instance = make_instance(&story, json!({"brokerInfo": {"cam-8120fe-1": {"state": "of node-b"}}})).await;
    // A policy is in force soon after it was made.
    let api = agents.api(agents.on("node-c"), "Instance");
    let foreign = json_patch(&json!([{"path": "/spec/nodes", "value": []}]));
    let refused = async || api.patch("cam-8120fe", &dry_run(), &foreign).await.is_err();
    wait_for("a policy in force", refused, |refused| *refused).await;
    assert_changes_of_instances(&agents).await;
    assert_creation_and_deletion(&agents, &instance).await;
    assert_status(&agents, handler).await;
    assert_leases(&agents).await;
    assert_webhook(&story).await;
    clean_up(&story, policies).await;
}

/// Removes what is not in the story's namespace, and what keeps that from going.
async fn clean_up(story: &Story, policies: Vec<DynamicObject>) {
    let api: Api<akri_api::Instance> = story.api();
    let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("cam-8120fe", &PatchParams::default(), &released).await.unwrap();
    let others = [
        ("akri.sh/v0", "DiscoveryHandler", story.namespace().to_owned()),
        ("v1", "Node", "node-c".to_owned()),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", format!("{}-{AGENT}", story.namespace())),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", format!("{}-akri-webhook", story.namespace())),
    ];
    let others = others.into_iter().map(|(version, kind, name)| (version.to_owned(), kind.to_owned(), name));
    let policies = policies.into_iter().map(|policy| {
        let types = policy.types.clone().unwrap();
        (types.api_version, types.kind, policy.name_any())
    });
    for (version, kind, name) in policies.chain(others) {
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        let api: Api<DynamicObject> = Api::all_with(story.client(), &resource);
        api.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}
