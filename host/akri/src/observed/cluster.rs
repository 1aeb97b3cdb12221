//! The objects of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_api::{Configuration, DiscoveryHandler, Instance};
use akri_model::agent_lease::GOOD_FOR;
use akri_model::names::RESOURCE_PREFIX;
use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{self as core, Node};
use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::{Handler, Observed, Pod};
use crate::api_server::client;

pub(super) async fn observe() -> anyhow::Result<Observed> {
    let client = client().await?;
    let nodes = list_of::<Node>(Api::all(client.clone()), "Nodes").await?;
    let leases = list::<Lease>(&client, "Leases").await?;
    let handlers = list_of::<DiscoveryHandler>(Api::all(client.clone()), "DiscoveryHandlers").await?.into_iter();
    let handler = |object: DiscoveryHandler| {
        let (name, claimed) = (object.name_any(), object.handler_name());
        let status = object.status.unwrap_or_default();
        let status = akri_api::DiscoveryHandlerStatus { handler: status.handler.clone().or(Some(claimed)), ..status };
        Handler { object: Some(name), status }
    };
    let agents = missing_agents(&nodes, &leases);
    let pods = list::<core::Pod>(&client, "Pods").await?;
    Ok(Observed {
        configurations: list::<Configuration>(&client, "Configurations").await?,
        instances: list::<Instance>(&client, "Instances").await?,
        handlers: handlers.map(handler).collect(),
        pods: pods.iter().filter_map(|object| pod(object, &agents)).collect(),
        kubelets: nodes.iter().filter_map(not_ready).collect(),
        agents,
        ..Observed::default()
    })
}

async fn list<K>(client: &Client, what: &str) -> anyhow::Result<Vec<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    list_of(Api::all(client.clone()), what).await
}

async fn list_of<K: Clone + DeserializeOwned + std::fmt::Debug>(api: Api<K>, what: &str) -> anyhow::Result<Vec<K>> {
    let listed = api.list(&ListParams::default()).await;
    Ok(listed.with_context(|| format!("cannot list {what}"))?.items)
}

/// Returns the nodes whose agents do not renew their Leases.
fn missing_agents(nodes: &[Node], leases: &[Lease]) -> BTreeMap<String, String> {
    let is_good = |lease: &&Lease| {
        let spec = lease.spec.clone().unwrap_or_default();
        let age = spec.renew_time.map(|time| Timestamp::now().duration_since(time.0));
        age.is_some_and(|age| Duration::try_from(age).unwrap_or_default() < GOOD_FOR)
    };
    let agents = leases.iter().filter(|lease| lease.name_any().starts_with("akri-agent-")).filter(is_good);
    let running: BTreeSet<String> = agents.filter_map(|lease| lease.spec.clone()?.holder_identity).collect();
    let names = nodes.iter().map(ResourceExt::name_any).filter(|node| !running.contains(node));
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
fn pod(pod: &core::Pod, agents: &BTreeMap<String, String>) -> Option<Pod> {
    let spec = pod.spec.clone()?;
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    let names = limits.flat_map(|limits| limits.keys());
    let requests: BTreeSet<String> =
        names.filter_map(|name| name.strip_prefix(RESOURCE_PREFIX)).map(str::to_owned).collect();
    let selected = spec.node_selector.as_ref().and_then(|wanted| wanted.get("kubernetes.io/hostname"));
    let node = spec.node_name.as_ref().or(selected);
    let without_agent = node.and_then(|node| agents.get(node)).map(|why| format!("{why}, where it has to run"));
    let waits = without_agent.filter(|_| spec.node_name.is_none()).or_else(|| waits(pod));
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    (!requests.is_empty()).then_some(Pod { name, node: spec.node_name, requests, waits })
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
