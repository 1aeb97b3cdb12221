//! The state directory of a local agent.

use std::collections::BTreeMap;
use std::env;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use akri_agent::{journal, lock};
use akri_cli::output::with_causes;
use akri_cluster::local::{manifest_files, read_configurations, read_handlers, read_instances};
use akri_model::names::slot_name;
use akri_model::readiness::{NOT_OFFERED, PROBLEMS};
use akri_node::saved::Saved;
use akri_remote::read_remote_handlers;
use anyhow::Context as _;
use kube::ResourceExt as _;

use super::{Handler, Observed};

const GOOD_FOR: Duration = Duration::from_secs(2);

/// Returns whether a directory is the state of a local agent.
pub(super) fn is_state(state: &Path) -> anyhow::Result<bool> {
    let is_state = state.join("configurations").try_exists();
    // Without one there is no state either; without the right to look nobody knows.
    match is_state {
        // On a node of a cluster it is closed, too: who names the cluster means that.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && env::var_os("KUBECONFIG").is_none() => {
            let remedy = "run this as root, or name a cluster with --kubeconfig or KUBECONFIG";
            let alone = || format!("cannot look into '{}', which is the agent's alone; {remedy}", state.display());
            Err(error).with_context(alone)
        }
        is_state => Ok(is_state.unwrap_or_default()),
    }
}

/// Reads Instances, and the problem of the kubelet: whether it counts their users.
pub(crate) fn instances(state: &Path) -> anyhow::Result<Observed> {
    let instances = read_instances(state).map_err(with_causes)?;
    let problems: Saved<Vec<String>> = Saved::open(Some(state), PROBLEMS);
    let (kubelets, manifests): (Vec<String>, Vec<String>) =
        problems.iter().cloned().partition(|problem| problem.contains(NOT_OFFERED));
    Ok(Observed {
        nodes: instances.iter().flat_map(|instance| instance.spec.nodes.clone()).collect(),
        instances,
        manifests,
        kubelets: kubelets.into_iter().map(|problem| (String::new(), problem)).collect(),
        good_for: GOOD_FOR,
        ..Observed::default()
    })
}

pub(super) fn observe(state: &Path) -> anyhow::Result<Observed> {
    let components = read_handlers(state).map_err(with_causes)?.into_iter();
    let components =
        components.map(|object| Handler { object: Some(object.name_any()), status: object.status.unwrap_or_default() });
    let remote = read_remote_handlers(state).map_err(with_causes)?.into_iter();
    let is_stopped = lock::is_free(state);
    let stopped = || (String::new(), format!("no agent runs on {}; this is how it was left", state.display()));
    Ok(Observed {
        configurations: read_configurations(state).map_err(with_causes)?,
        handlers: components.chain(remote.map(|status| Handler { object: None, status })).collect(),
        users: users(state),
        files: manifest_files(state),
        agents: is_stopped.then(stopped).into_iter().collect(),
        ..instances(state)?
    })
}

/// Returns the pods that use slots, by the journal's observations.
fn users(state: &Path) -> BTreeMap<String, String> {
    let claims = journal::claims(state)
        .into_iter()
        .flat_map(|(key, claims)| claims.into_iter().map(move |(slot, claim)| (slot_name(&key.name, slot), claim)));
    let pod = |(slot, claim): (String, akri_model::claim::JournaledClaim)| {
        let container = claim.users.containers.first()?;
        Some((slot, format!("{}/{} (container {})", container.namespace, container.pod, container.container)))
    };
    claims.filter_map(pod).collect()
}
