//! The objects of a cluster that an upgrade is about.

use akri_api::{Configuration, Instance};
use anyhow::Context as _;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Client, Resource};
use serde_json::Value;

use crate::api_server::client;

/// All of them. A kind that does not exist has none.
pub(super) async fn objects() -> anyhow::Result<Vec<Value>> {
    let client = client().await?;
    let mut all = Vec::new();
    all.extend(list::<Configuration>(&client).await?);
    all.extend(list::<Instance>(&client).await?);
    all.extend(list::<DaemonSet>(&client).await?);
    all.extend(list::<Deployment>(&client).await?);
    all.extend(list::<ValidatingWebhookConfiguration>(&client).await?);
    Ok(all)
}

async fn list<K: Resource<DynamicType = ()>>(client: &Client) -> anyhow::Result<Vec<Value>> {
    let kind = K::kind(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let listed = match api.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
        listed => listed.with_context(|| format!("cannot list {kind}s"))?,
    };
    let typed = |object: &DynamicObject| {
        let mut value = serde_json::to_value(object).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            fields.insert("apiVersion".to_owned(), K::api_version(&()).into());
            fields.insert("kind".to_owned(), kind.to_string().into());
        }
        value
    };
    Ok(listed.iter().map(typed).collect())
}
