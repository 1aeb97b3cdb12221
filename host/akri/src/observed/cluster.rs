//! The objects of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use akri_api::DiscoveryHandler;
use akri_brokers::INSTANCE_LABEL;
use akri_kube::agent_lease::running_on;
use akri_model::names::RESOURCE_PREFIX;
use anyhow::Context as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{self as core, Node};
use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::{Handler, Observed, Pod};

const GOOD_FOR: Duration = Duration::from_secs(10);

pub(super) async fn observe(client: Client) -> anyhow::Result<Observed> {
    let mut reader = Reader { client, hidden: Vec::new() };
    let nodes: Vec<Node> = reader.list("Nodes").await?;
    let leases = reader.leases().await?;
    let handlers: Vec<DiscoveryHandler> = reader.list("DiscoveryHandlers").await?;
    let handler = |object: DiscoveryHandler| {
        let (name, claimed) = (object.name_any(), object.handler_name());
        let status = object.status.unwrap_or_default();
        let status = akri_api::DiscoveryHandlerStatus { handler: status.handler.clone().or(Some(claimed)), ..status };
        Handler { object: Some(name), status }
    };
    let pods = reader.list::<core::Pod>("Pods").await?;
    Ok(Observed {
        configurations: reader.list("Configurations").await?,
        instances: reader.list("Instances").await?,
        handlers: handlers.into_iter().map(handler).collect(),
        pods: pods.iter().filter_map(pod).collect(),
        nodes: nodes.iter().map(ResourceExt::name_any).collect(),
        kubelets: nodes.iter().filter_map(not_ready).collect(),
        agents: leases.map(|leases| missing_agents(&nodes, &leases)).unwrap_or_default(),
        hidden: reader.hidden,
        good_for: GOOD_FOR,
        ..Observed::default()
    })
}

/// Lists objects. Kinds that this user may not list are noted, and left out.
struct Reader {
    client: Client,
    hidden: Vec<String>,
}

impl Reader {
    async fn list<K>(&mut self, what: &str) -> anyhow::Result<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        Ok(self.list_of(Api::all(self.client.clone()), what).await?.unwrap_or_default())
    }

    /// Returns the Leases of all namespaces, or else of the client's own, if agents are in it; `None` if neither may be listed.
    async fn leases(&mut self) -> anyhow::Result<Option<Vec<Lease>>> {
        if let Some(leases) = self.list_of(Api::all(self.client.clone()), "Leases").await? {
            return Ok(Some(leases));
        }
        let own = self.list_of(Api::default_namespaced(self.client.clone()), "Leases").await?;
        let has_agents = |leases: &Vec<Lease>| leases.iter().any(is_of_agent);
        if own.as_ref().is_none_or(has_agents) {
            self.hidden.pop(); // the first attempt, or the second, which is the same
        }
        Ok(own.filter(has_agents))
    }

    async fn list_of<K>(&mut self, api: Api<K>, what: &str) -> anyhow::Result<Option<Vec<K>>>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        match api.list(&ListParams::default()).await {
            Ok(listed) => Ok(Some(listed.items)),
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                self.hidden.push(what.to_owned());
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| format!("cannot list {what}")),
        }
    }
}

fn is_of_agent(lease: &Lease) -> bool {
    lease.name_any().starts_with("akri-agent-")
}

/// Returns the nodes whose agents do not renew their Leases.
fn missing_agents(nodes: &[Node], leases: &[Lease]) -> BTreeMap<String, String> {
    let running: BTreeSet<&str> = leases.iter().filter(|lease| is_of_agent(lease)).filter_map(running_on).collect();
    let names = nodes.iter().map(ResourceExt::name_any).filter(|node| !running.contains(&**node));
    names.map(|node| (node.clone(), format!("no agent runs on node '{node}'"))).collect()
}

fn not_ready(node: &Node) -> Option<(String, String)> {
    let conditions = node.status.as_ref()?.conditions.clone().unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready" && condition.status != "True")?;
    let name = node.name_any();
    let why = format!("node '{name}' is not ready: {}", ready.message.unwrap_or_default());
    Some((name, why))
}

/// Returns a pod that requests devices.
fn pod(pod: &core::Pod) -> Option<Pod> {
    let spec = pod.spec.clone()?;
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    let names = limits.flat_map(|limits| limits.keys());
    let requests: BTreeSet<String> =
        names.filter_map(|name| name.strip_prefix(RESOURCE_PREFIX)).map(str::to_owned).collect();
    let selected = spec.node_selector.as_ref().and_then(|wanted| wanted.get("kubernetes.io/hostname"));
    let node = spec.node_name.or_else(|| selected.cloned());
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let status = pod.status.clone().unwrap_or_default();
    let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let since = status.start_time.filter(|_| !has_ended).map(|time| time.0);
    let is_broker = pod.labels().contains_key(INSTANCE_LABEL);
    (!requests.is_empty()).then_some(Pod { name, node, requests, waits: waits(pod), since, is_broker })
}

/// Returns why a pod does not run.
fn waits(pod: &core::Pod) -> Option<String> {
    let status = pod.status.clone()?;
    let phase = status.phase.unwrap_or_default();
    let condition = || {
        let conditions = status.conditions.iter().flatten();
        conditions.filter(|condition| condition.status != "True").find_map(|condition| condition.message.clone())
    };
    let why = status.message.clone().or_else(condition).or(status.reason.clone()).unwrap_or_default();
    (phase != "Running" && phase != "Succeeded").then(|| format!("it is {phase}: {why}"))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use axum::http::{Request, Response};
    use serde_json::json;
    use tower::service_fn;

    use super::*;

    /// Returns a client of an API server that lets nothing be listed but what `allowed` ends with.
    fn client(namespace: &str, allowed: &'static [&'static str]) -> Client {
        let answer = async move |request: Request<kube::client::Body>| {
            let path = request.uri().path();
            let agents = json!([{"metadata": {"name": "akri-agent-a"}}]);
            let items = if path.ends_with("/akri-system/leases") { agents } else { json!([]) };
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
            let forbidden = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": path,
                "reason": "Forbidden", "code": 403});
            let is_allowed = allowed.iter().any(|allowed| path.ends_with(allowed));
            let (code, body) = if is_allowed { (200, list) } else { (403, forbidden) };
            Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(body.to_string())).unwrap())
        };
        Client::new(service_fn(answer), namespace)
    }

    async fn hidden(namespace: &str, allowed: &'static [&'static str]) -> Vec<String> {
        observe(client(namespace, allowed)).await.unwrap().hidden
    }

    #[tokio::test] // rule 139
    async fn objects_that_may_not_be_listed_are_hidden() {
        let agent = &["/configurations", "/instances", "/discoveryhandlers", "/nodes"];
        assert_eq!(hidden("akri-system", agent).await, ["Leases", "Pods"]);
        let controller = &["/configurations", "/instances", "/discoveryhandlers", "/nodes", "/pods", "m/leases"];
        let user = &["/configurations", "/instances", "/discoveryhandlers", "/nodes", "/pods", "/default/leases"];
        assert!(hidden("akri-system", controller).await.is_empty());
        assert_eq!(hidden("default", user).await, ["Leases"], "no agent is there");
        assert_eq!(hidden("akri-system", &[]).await.len(), agent.len() + 2);
    }
}
