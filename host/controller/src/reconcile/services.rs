//! The Service in front of brokers (rule 56).

use std::sync::Arc;

use akri_brokers::{Counts, Manifest, Owner, is_service_wanted, service, service_name};
use akri_kube::requests::{RequestError, RequestResult, Requests};
use akri_model::names::Key;
use k8s_openapi::api::core::v1::Service;
use tracing::info;

use crate::views::ServiceView;

/// Creates, changes or deletes the Service of an owner with these brokers, if it wants one. `known` are its Services.
pub(super) async fn reconcile_service(
    requests: &Requests,
    namespace: &str,
    owner: Owner<'_>,
    spec: Option<&Manifest>,
    brokers: Counts,
    known: &[Arc<ServiceView>],
) -> RequestResult<()> {
    let key = Key::new(namespace, service_name(owner.name));
    let ours = known.iter().find(|service| service.key == key && service.owner_uid.as_deref() == Some(owner.uid));
    let spec = spec.filter(|_| is_service_wanted(ours.is_some(), brokers.running, brokers.desired));
    match (spec, ours) {
        (Some(spec), ours) => {
            let (manifest, hash) = service(namespace, owner, spec);
            if ours.is_some_and(|ours| ours.hash == hash || ours.is_deleting) {
                return Ok(());
            }
            if ours.is_none() && !is_free(requests, &key, owner.uid).await? {
                let message = "a Service of that name belongs to another owner; it is waited for".to_owned();
                return Err(RequestError::Refused { key, message });
            }
            requests.apply::<Service>(&key, &manifest).await?;
            info!(service = %key, "applied the Service of brokers");
            Ok(())
        }
        (None, Some(ours)) if !ours.is_deleting => requests.delete::<Service>(&key, &ours.uid, None).await.map(drop),
        (None, _) => Ok(()),
    }
}

/// Returns whether there is no Service of that name, or one of this owner. An apply would take over one of another
/// owner.
async fn is_free(requests: &Requests, key: &Key, owner_uid: &str) -> RequestResult<bool> {
    let Some(found) = requests.get::<Service>(key).await? else { return Ok(true) };
    Ok(found.metadata.owner_references.iter().flatten().any(|owner| owner.uid == owner_uid))
}
