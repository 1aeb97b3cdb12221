//! The status of one object: read as far as it makes sense, written only if it says something new.

use std::collections::BTreeMap;

use akri_api::condition::{self, Condition, Truth};
use akri_api::validate;
use akri_api::{Configuration, ConfigurationStatus, Instance, InstanceStatus};
use akri_model::instance::Online;
use akri_model::summary::{self, Trouble, Verdict};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::warn;

/// The field manager of conditions and counts.
const MANAGER: &str = "akri-controller";

/// A status could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the status of {name}: {source}")]
pub(crate) struct StatusError {
    name: String,
    source: kube::Error,
}

/// Says how a Configuration is.
pub(crate) async fn write_configuration(
    client: &Client,
    object: &DynamicObject,
    instances: usize,
) -> Result<(), StatusError> {
    let before: ConfigurationStatus = status_of(object);
    let invalid = fault(object);
    let verdicts = summary::configuration(invalid.as_deref(), &troubles(&before.nodes), instances);
    let now = ConfigurationStatus {
        observed_generation: object.metadata.generation,
        instances: i64::try_from(instances).unwrap_or(i64::MAX),
        conditions: conditions(&before.conditions, &verdicts),
        nodes: before.nodes.clone(),
    };
    if now == before {
        return Ok(());
    }
    let status = json!({
        "observedGeneration": now.observed_generation,
        "instances": now.instances,
        "conditions": now.conditions,
    });
    apply::<Configuration>(client, object, status).await
}

/// Says whether the device of an Instance is online.
pub(crate) async fn write_instance(client: &Client, object: &DynamicObject) -> Result<(), StatusError> {
    let Some(instance) = typed::<Instance>(object).ok().filter(|_| object.metadata.deletion_timestamp.is_none()) else {
        return Ok(());
    };
    let before = instance.status.clone().unwrap_or_default();
    let online = summary::online(&instance.spec.nodes, &troubles(&before.nodes));
    let mut now: InstanceStatus = before.clone();
    let (truth, reason, message) = said(online);
    condition::set(&mut now.conditions, "Online", truth, reason, message, Timestamp::now());
    if now == before {
        return Ok(());
    }
    apply::<Instance>(client, object, json!({"conditions": now.conditions})).await
}

fn said(online: Online) -> (Truth, &'static str, &'static str) {
    match online {
        Online::True => (Truth::True, "Discovered", ""),
        Online::False => (Truth::False, "NotFound", "no node sees the device"),
        Online::Unknown => (Truth::Unknown, "HandlerGone", "no handler can tell whether the device is there"),
    }
}

/// What is wrong with an object that the API server took all the same.
fn fault(object: &DynamicObject) -> Option<String> {
    let configuration = match typed::<Configuration>(object) {
        Ok(configuration) => configuration,
        Err(error) => return Some(error.to_string()),
    };
    let errors = validate::configuration(&configuration);
    let lines: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

fn conditions(before: &[Condition], verdicts: &[Verdict]) -> Vec<Condition> {
    let mut conditions = before.to_vec();
    conditions.retain(|condition| verdicts.iter().any(|verdict| verdict.kind == condition.type_));
    for verdict in verdicts {
        let truth = if verdict.holds { Truth::True } else { Truth::False };
        condition::set(&mut conditions, verdict.kind, truth, &verdict.reason, &verdict.message, Timestamp::now());
    }
    conditions
}

fn troubles(nodes: &BTreeMap<String, condition::Trouble>) -> BTreeMap<String, Trouble> {
    let trouble =
        |trouble: &condition::Trouble| Trouble { reason: trouble.reason.clone(), message: trouble.message.clone() };
    nodes.iter().map(|(node, told)| (node.clone(), trouble(told))).collect()
}

/// A status that nobody can read is as good as none.
fn status_of<T: DeserializeOwned + Default>(object: &DynamicObject) -> T {
    let status = object.data.get("status").cloned().unwrap_or(Value::Null);
    serde_json::from_value(status).unwrap_or_default()
}

fn typed<T: DeserializeOwned>(object: &DynamicObject) -> Result<T, serde_json::Error> {
    serde_json::from_value(serde_json::to_value(object)?)
}

/// Applies the status of the very object that was looked at.
async fn apply<K>(client: &Client, object: &DynamicObject, status: Value) -> Result<(), StatusError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let name = object.name_any();
    let patch = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"name": name, "uid": object.metadata.uid},
        "status": status,
    });
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    match api.patch_status(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            warn!(object = name, "it went while its status was written");
            Ok(())
        }
        Err(source) => Err(StatusError { name, source }),
    }
}
