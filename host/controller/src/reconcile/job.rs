//! Job brokers: once for each Instance and spec (rule 37, rule 55).

use std::sync::Arc;

use akri_api::Instance;
use akri_api::document::pointer_token;
use akri_brokers::{
    Brokers, JOB_RECORD, JobRecord, JobReport, JobState, Manifest, Reason, SpecMark, Target, job, job_name,
};
use akri_kube::json_patch::{add, test};
use akri_kube::requests::{RequestError, RequestResult};
use akri_kube::watch::typed;
use akri_model::names::Key;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tracing::info;

use super::Context;
use super::brokers::{Outcome, create_owned, target};
use crate::object_index::Owned;
use crate::views::{ConfigurationView, InstanceView, JobView};
use crate::work::Work;

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
    outcome: &mut Outcome,
) {
    let name = job_name(target.name, generation);
    match run(context, view, target, spec, &name).await {
        Ok(record) => outcome.brokers = report(view, &record, owned),
        Err(error) => {
            outcome.brokers = view.job.as_ref().map(|record| report(view, record, owned)).unwrap_or_default();
            outcome.fail(error);
        }
    }
}

/// Deletes the Jobs of an Instance whose Configuration wants none any more (rule 119).
pub(super) async fn remove_unwanted(context: &Context, view: &InstanceView, owned: &Owned, outcome: &mut Outcome) {
    for job in jobs_of(view, owned).filter(|job| !job.is_deleting) {
        match context.requests.delete::<Job>(&job.key, &job.uid, None).await {
            Ok(_) => info!(job = %job.key, "deleted a Job that is not wanted any more"),
            Err(error) => outcome.fail(error),
        }
    }
}

fn jobs_of<'a>(view: &'a InstanceView, owned: &'a Owned) -> impl Iterator<Item = &'a Arc<JobView>> {
    owned.jobs.iter().filter(|job| job.owner_uid.as_ref() == Some(&view.uid))
}

/// Returns the record of the Job that upstream Akri has run for an Instance of its own: that may have been deleted by its TTL
/// (rule 118).
pub(super) fn run_by_upstream(
    context: &Context,
    view: &InstanceView,
    owner: Option<&ConfigurationView>,
) -> Option<JobRecord> {
    let owner = owner?;
    let spec = owner.valid()?.brokers.broker_job_spec.as_ref()?;
    let owned = context.objects.owned(&Work::Instance(view.key.clone()));
    let found = jobs_of(view, &owned).next().map(|job| job.name.clone());
    let name = found.unwrap_or_else(|| job_name(&view.key.name, owner.generation.number));
    let (_, mark) = job(&target(view), spec, &name);
    Some(JobRecord { mark: mark.text, name, is_created: true })
}

fn report(view: &InstanceView, record: &JobRecord, owned: &Owned) -> Brokers {
    // A Job that was just created is not shown yet.
    let state = (view.job.as_ref().filter(|job| job.is_created) != Some(record)).then_some(JobState::Creating);
    let unseen = || JobReport { name: record.name.clone(), state, reason: Reason::default() };
    let found = jobs_of(view, owned).find(|job| job.name == record.name);
    Brokers::Job(found.map_or_else(unseen, |job| JobReport::clone(job)))
}

/// Takes the steps that are left, and returns the record of the Job.
async fn run(
    context: &Context,
    view: &InstanceView,
    target: &Target<'_>,
    spec: &Manifest,
    name: &str,
) -> RequestResult<JobRecord> {
    let (manifest, mark) = job(target, spec, name);
    let mut record = JobRecord::of_spec(&mark, name, view.job.as_ref());
    if view.job.as_ref() != Some(&record) {
        record = write_record(context, view, &mark, name).await?;
    }
    if record.is_created {
        return Ok(record);
    }
    let manifest = if record.name == name { manifest } else { job(target, spec, &record.name).0 };
    let key = Key::new(&*view.key.namespace, &*record.name);
    if !create_owned::<Job>(context, view, &key, &manifest).await? {
        let message = "a Job of that name belongs to another owner; it is waited for".to_owned();
        return Err(RequestError::Refused { key, message });
    }
    let created = JobRecord { is_created: true, ..record.clone() };
    let path = record_path();
    let operations =
        vec![test("/metadata/uid", &view.uid), test(&path, record.to_string()), add(&path, created.to_string())];
    context.requests.json_patch::<Instance>(&view.key, Value::Array(operations)).await?;
    Ok(created)
}

/// Records a Job before it is created. What the watch shows may be old: a record that was written since counts.
async fn write_record(context: &Context, view: &InstanceView, mark: &SpecMark, name: &str) -> RequestResult<JobRecord> {
    let changed = || RequestError::Conflict(view.key.clone());
    let live = context.requests.get::<Instance>(&view.key).await?.ok_or_else(changed)?;
    if live.uid().as_ref() != Some(&view.uid) {
        return Err(changed());
    }
    let before = live.annotations().get(JOB_RECORD).and_then(|record| JobRecord::parse(record));
    let mut record = JobRecord::of_spec(mark, name, before.as_ref());
    if before.is_none() {
        let properties = typed::<Instance>(&live).map(|live| live.spec.broker_properties).unwrap_or_default();
        record.is_created = context.objects.had_instance(view, &properties); // it ran for that one
    }
    if before.as_ref() == Some(&record) {
        return Ok(record);
    }
    let mut operations = vec![test("/metadata/resourceVersion", live.resource_version())];
    operations.extend(adding(&record, &live));
    context.requests.json_patch::<Instance>(&view.key, Value::Array(operations)).await?;
    Ok(record)
}

/// Returns the operations that write a record into an Instance.
pub(crate) fn adding(record: &JobRecord, live: &DynamicObject) -> Vec<Value> {
    let first = live.metadata.annotations.is_none().then(|| add("/metadata/annotations", json!({})));
    first.into_iter().chain([add(&record_path(), record.to_string())]).collect()
}
