//! Finalizers that upstream Akri left: each of its agents put its node's name on every object, and an object with one hangs when
//! it is deleted. Ours sets none (rule 26).

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::feed::Change;

/// Removes the finalizers of one node from objects of one kind.
#[derive(Clone)]
pub(super) struct Finalizers {
    client: Client,
    node: String,
    resource: ApiResource,
}

impl Finalizers {
    pub(super) fn new(client: &Client, node: &str, resource: ApiResource) -> Self {
        Self { client: client.clone(), node: node.to_owned(), resource }
    }

    /// Looks at what the API server tells, and removes in the background what is there of this node.
    pub(super) fn look(&self, change: &Change) {
        match change {
            Change::All(objects) => objects.iter().for_each(|object| self.remove(object)),
            Change::Put(object) => self.remove(object),
            Change::Gone(_) => {}
        }
    }

    fn remove(&self, object: &DynamicObject) {
        let Some(operations) = removal(object.finalizers(), &self.node) else { return };
        let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &namespace, &self.resource);
        tokio::spawn(async move {
            let Ok(patch) = serde_json::from_value(operations) else { return };
            match api.patch(&name, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
                Ok(_) => info!(object = name, namespace, "removed the finalizer that upstream Akri left"),
                Err(error) => warn!(object = name, namespace, "a finalizer of upstream Akri stays: {error}"),
            }
        });
    }
}

/// The patch, if there is such a finalizer: others may come and go meanwhile, so it says which one it means.
fn removal(finalizers: &[String], node: &str) -> Option<Value> {
    let path = format!("/metadata/finalizers/{}", finalizers.iter().position(|finalizer| finalizer == node)?);
    Some(json!([{"op": "test", "path": path, "value": node}, {"op": "remove", "path": path}]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_finalizer_of_the_node_goes() {
        let finalizers = ["example.com/other".to_owned(), "node-a".to_owned()];
        assert_eq!(removal(&finalizers, "node-b"), None);
        let patch = removal(&finalizers, "node-a").unwrap();
        assert_eq!(patch[1], json!({"op": "remove", "path": "/metadata/finalizers/1"}));
    }
}
