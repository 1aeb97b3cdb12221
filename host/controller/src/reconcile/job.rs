//! Job brokers: once for each Instance and spec (rule 37, rule 55).

use std::sync::Arc;

use akri_api::Instance;
use akri_api::document::pointer_token;
use akri_brokers::{Brokers, JOB_RECORD, JobRecord, JobReport, Manifest, Reason, Target, job, job_name};
use akri_kube::json_patch::{add, test};
use akri_kube::requests::{Created, RequestError};
use akri_model::names::Key;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tracing::info;

use super::Context;
use super::brokers::Outcome;
use crate::object_index::Owned;
use crate::views::{InstanceView, JobView, is_controlled_by};

/// The annotation in a JSON pointer.
fn record_path() -> String {
    format!("/metadata/annotations/{}", pointer_token(JOB_RECORD))
}

/// Creates the Job of an Instance if it is due, and reports how it is.
pub(super) async fn reconcile(
    context: &Context,
    view: &InstanceView,
    target: &Target<'_>,
    spec: &Manifest,
    generation: i64,
    owned: &Owned,
    mut outcome: Outcome,
) -> Outcome {
    let name = job_name(target.name, generation);
    match run(context, view, target, spec, &name).await {
        Ok(record) => outcome.brokers = report(view, &record, owned),
        Err(error) => {
            outcome.brokers = view.job.as_ref().map(|record| report(view, record, owned)).unwrap_or_default();
            outcome.fail(error);
        }
    }
    outcome
}

fn report(view: &InstanceView, record: &JobRecord, owned: &Owned) -> Brokers {
    let is_its = |job: &&Arc<JobView>| job.name == record.name && job.owner_uid.as_ref() == Some(&view.uid);
    let deleted = || JobReport { name: record.name.clone(), state: None, reason: Reason::default() };
    Brokers::Job(owned.jobs.iter().find(is_its).map_or_else(deleted, |job| JobReport::clone(job)))
}

/// Takes the steps that are left, and returns the record of the Job.
async fn run(
    context: &Context,
    view: &InstanceView,
    target: &Target<'_>,
    spec: &Manifest,
    name: &str,
) -> Result<JobRecord, RequestError> {
    let (manifest, hash) = job(target, spec, name);
    let mut record = JobRecord::of_spec(&hash, name, view.job.as_ref());
    if view.job.as_ref() != Some(&record) {
        record = write_first_record(context, view, &hash, name).await?;
    }
    if record.is_created {
        return Ok(record);
    }
    let manifest = if record.name == name { manifest } else { job(target, spec, &record.name).0 };
    create(context, view, &record, &manifest).await?;
    let created = JobRecord { is_created: true, ..record.clone() };
    let path = record_path();
    let operations =
        vec![test("/metadata/uid", &view.uid), test(&path, record.to_string()), add(&path, created.to_string())];
    context.requests.json_patch::<Instance>(&view.key, Value::Array(operations)).await?;
    Ok(created)
}

/// Records a Job before it is created. What the watch shows may be old: a record that was written since counts.
async fn write_first_record(
    context: &Context,
    view: &InstanceView,
    hash: &str,
    name: &str,
) -> Result<JobRecord, RequestError> {
    let changed = || RequestError::Conflict(view.key.clone());
    let live = context.requests.get::<Instance>(&view.key).await?.ok_or_else(changed)?;
    if live.uid().as_ref() != Some(&view.uid) {
        return Err(changed());
    }
    let before = live.annotations().get(JOB_RECORD).and_then(|record| JobRecord::parse(record));
    let record = JobRecord::of_spec(hash, name, before.as_ref());
    if before.as_ref() == Some(&record) {
        return Ok(record);
    }
    let mut operations = vec![test("/metadata/resourceVersion", live.resource_version())];
    if live.metadata.annotations.is_none() {
        operations.push(add("/metadata/annotations", json!({})));
    }
    operations.push(add(&record_path(), record.to_string()));
    context.requests.json_patch::<Instance>(&view.key, Value::Array(operations)).await?;
    Ok(record)
}

async fn create(
    context: &Context,
    view: &InstanceView,
    record: &JobRecord,
    manifest: &Value,
) -> Result<(), RequestError> {
    let key = Key::new(&*view.key.namespace, &*record.name);
    match context.requests.create::<Job>(&key, manifest).await? {
        Created::New(_) => info!(job = %key, "created a Job"),
        Created::Exists(found) if is_controlled_by(&found, &view.uid) => {}
        Created::Exists(_) => {
            let message = "a Job of that name belongs to another owner; it is waited for".to_owned();
            return Err(RequestError::Refused { key, message });
        }
    }
    Ok(())
}
