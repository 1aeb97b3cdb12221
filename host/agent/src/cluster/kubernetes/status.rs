//! What this node says in the status of objects: only what is wrong (rule 34). What that comes to is for the controller to say.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use akri_api::Configuration;
use akri_model::instance::{Instance, Online};
use akri_model::names::Key;
use kube::Resource as _;
use kube::api::{Api, Patch, PatchParams};

use super::{Kubernetes, bounded, cut, patch};
use crate::cluster::{ClusterError, Report};

/// Longest message of a node's trouble, in bytes.
const MAX_MESSAGE: usize = 256;

/// Nodes that may speak in the status of one Configuration.
const MAX_NODES: usize = 20;

/// Why nobody can tell whether a device is there.
pub(super) const HANDLER_GONE: &str = "HandlerGone";

/// Reason and message.
type Trouble = (String, String);

/// What the status of a Configuration of this UID was last made to say.
pub(super) type Told = (String, Option<Trouble>);

/// What is wrong with a Configuration on this node.
pub(super) fn trouble(report: &Report) -> Option<Trouble> {
    let ready = report.conditions.iter().find(|condition| condition.kind == "Ready")?;
    (ready.holds == Some(false)).then(|| (ready.reason.clone(), cut(&ready.message, MAX_MESSAGE).to_owned()))
}

impl Kubernetes {
    pub(super) fn troubles(&self) -> MutexGuard<'_, BTreeMap<Key, Told>> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says in the status of a Configuration what is wrong on this node, unless enough nodes have spoken.
    pub(super) async fn tell_trouble(&self, key: &Key, (uid, trouble): &Told) -> Result<(), ClusterError> {
        let api: Api<Configuration> = Api::namespaced(self.client.clone(), &key.namespace);
        if trouble.is_some() {
            let status = bounded(key, api.get(&key.name)).await?.status.unwrap_or_default();
            if status.nodes.len() >= MAX_NODES && !status.nodes.contains_key(&self.node) {
                return Ok(());
            }
        }
        let trouble = trouble.as_ref().map(|(reason, message)| (reason.as_str(), message.as_str()));
        let value = patch::trouble(&Configuration::kind(&()), &key.name, uid, &self.node, trouble);
        let params = PatchParams::apply(&patch::status_manager(&self.node));
        bounded(key, api.patch_status(&key.name, &params, &Patch::Apply(value))).await.map(drop)
    }

    /// Says in the status of an Instance that this node misses its device, or does not any more.
    pub(super) async fn tell_online(&self, instance: &Instance) -> Result<(), ClusterError> {
        let trouble = match instance.online {
            Online::True => None,
            Online::False => Some(("NotFound", "the last round of discovery did not see the device")),
            Online::Unknown => Some((HANDLER_GONE, "no handler can tell whether the device is there")),
        };
        let Key { name, .. } = &instance.key;
        let value = patch::trouble("Instance", name, &instance.uid, &self.node, trouble);
        let params = PatchParams::apply(&patch::status_manager(&self.node));
        let told =
            bounded(&instance.key, self.api(&instance.key).patch_status(name, &params, &Patch::Apply(value))).await?;
        self.instances.learn(&told);
        Ok(())
    }
}
