//! Job brokers: once for each Instance and spec, whatever happens in between.

use akri_api::Instance;
use akri_brokers::{Target, spec_hash};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::support::brokers::{Brokers, is_going, job_broker, names_of, pod_broker};
use crate::support::cluster::wait_for;

const RECORD: &str = "akri.sh/broker-job";

async fn record(site: &Brokers, instance: &str) -> String {
    let instance = site.get::<Instance>(instance).await.unwrap();
    instance.annotations().get(RECORD).cloned().unwrap_or_default()
}

async fn wait_for_record(site: &Brokers, instance: &str) -> String {
    wait_for("a Job that is recorded", async || record(site, instance).await, |record| record.starts_with("created "))
        .await
}

/// Waits until the controller has looked at everything that was there before.
async fn wait_for_another(site: &Brokers, hash: &str) {
    let cam = site.get("cam").await.unwrap();
    site.instance(&cam, hash, &[]).await;
    wait_for_record(site, &format!("cam-{hash}")).await;
}

#[tokio::test] // rule 37, rule 55
async fn job_runs_once_over_slot_changes_restarts_and_deletion() {
    let Some(mut site) = Brokers::begin("job-once").await else { return };
    let node = site.node("a").await;
    let cam = site.configure("cam", job_broker("update:1")).await;
    let instance = site.instance(&cam, "000001", &[&node]).await;
    let job = site.wait_for_names::<Job>(&["cam-000001-1-job"]).await.remove(0);
    assert_eq!(job.owner_references()[0].uid, instance.uid().unwrap());
    let limits = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0].resources.clone();
    assert!(limits.unwrap().limits.unwrap().contains_key("akri.sh/cam-000001"));
    wait_for_record(&site, "cam-000001").await;
    for number in 0..20 {
        let user = if number % 2 == 0 { node.as_str() } else { "" };
        site.change_instance("cam-000001", json!({"deviceUsage": {"cam-000001-0": user}})).await;
    }
    site.kill_controller();
    site.instance(&cam, "000002", &[]).await; // while no controller runs
    site.controller = Some(site.start_controller());
    wait_for_record(&site, "cam-000002").await;
    let jobs = site.list::<Job>().await;
    assert_eq!(names_of(&jobs), ["cam-000001-1-job", "cam-000002-1-job"]);
    assert!(jobs.iter().any(|again| again.uid() == job.uid()));

    // A person deletes a Job, or the TTL controller of Kubernetes 1.21 and newer deletes it after it has finished.
    let pods = async || site.list::<Pod>().await;
    for pod in wait_for("the Jobs' Pods", pods, |pods| pods.len() == 2).await {
        if pod.name_any().starts_with("cam-000002") {
            site.set_status(&pod.name_any(), json!({"phase": "Succeeded"})).await;
        }
    }
    let finished = async || site.get::<Job>("cam-000002-1-job").await.unwrap().status.unwrap_or_default();
    wait_for("a Job that has succeeded", finished, |status| status.succeeded == Some(1)).await;
    for instance in ["cam-000001", "cam-000002"] {
        site.delete::<Job>(&format!("{instance}-1-job")).await;
        site.wait_for_instance_condition(instance, "True", "JobDeleted").await;
    }
    site.kill_controller();
    site.controller = Some(site.start_controller());
    wait_for_another(&site, "000003").await;
    assert_eq!(names_of(&site.list::<Job>().await), ["cam-000003-1-job"]);
}

#[tokio::test] // rule 37
async fn job_runs_again_for_a_returned_instance_and_an_edit() {
    let Some(mut site) = Brokers::begin("job-again").await else { return };
    let node = site.node("a").await;
    let cam = site.configure("cam", job_broker("update:1")).await;
    site.instance(&cam, "000001", &[&node]).await;
    let first = site.wait_for_names::<Job>(&["cam-000001-1-job"]).await.remove(0);
    wait_for_record(&site, "cam-000001").await;
    site.delete::<Instance>("cam-000001").await;
    wait_for("no Instance", async || site.get::<Instance>("cam-000001").await, Option::is_none).await;
    site.instance(&cam, "000001", &[&node]).await;
    let jobs = async || site.list::<Job>().await;
    wait_for("another Job", jobs, |jobs| jobs.len() == 1 && jobs[0].uid() != first.uid()).await;
    wait_for_record(&site, "cam-000001").await;
    // An edit of something else is not for the Job.
    let mut spec = job_broker("update:1");
    spec["brokerProperties"] = json!({"COLOUR": "red"});
    site.configure("cam", spec.clone()).await;
    wait_for_another(&site, "000002").await;
    assert_eq!(names_of(&site.list::<Job>().await), ["cam-000001-1-job", "cam-000002-2-job"]);
    spec["brokerSpec"] = job_broker("update:2")["brokerSpec"].clone();
    site.configure("cam", spec).await;
    let names = ["cam-000001-1-job", "cam-000001-3-job", "cam-000002-2-job", "cam-000002-3-job"];
    site.wait_for_names::<Job>(&names).await;
}

#[tokio::test] // rule 55
async fn crash_between_record_and_job_makes_one_job() {
    let Some(mut site) = Brokers::begin("job-crash").await else { return };
    let node = site.node("a").await;
    let cam = site.configure("cam", job_broker("update:1")).await;
    site.instance(&cam, "000001", &[&node]).await;
    let first = site.wait_for_names::<Job>(&["cam-000001-1-job"]).await.remove(0);
    let created = wait_for_record(&site, "cam-000001").await;
    site.kill_controller();
    // As a controller leaves it that is killed after its record, with the Job created or not.
    let creating = created.replacen("created ", "creating ", 1);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {RECORD: creating}}}));
    let set = async || {
        site.story.api::<Instance>().patch("cam-000001", &PatchParams::default(), &patch).await.unwrap();
    };
    set().await;
    site.controller = Some(site.start_controller());
    assert_eq!(wait_for_record(&site, "cam-000001").await, created);
    assert_eq!(site.wait_for_names::<Job>(&["cam-000001-1-job"]).await[0].uid(), first.uid(), "it was there");

    site.kill_controller();
    site.delete::<Job>("cam-000001-1-job").await;
    site.wait_for_names::<Job>(&[]).await;
    let set_again = Patch::Merge(json!({"metadata": {"annotations": {RECORD: creating}}}));
    site.story.api::<Instance>().patch("cam-000001", &PatchParams::default(), &set_again).await.unwrap();
    site.controller = Some(site.start_controller());
    site.wait_for_names::<Job>(&["cam-000001-1-job"]).await;
    assert_eq!(wait_for_record(&site, "cam-000001").await, created);
}

/// Its TTL may have deleted the Job, and a device's firmware must not be written twice.
#[tokio::test] // rule 118
async fn job_of_upstream_or_version_0_1_is_not_run_again() {
    let Some(mut site) = Brokers::begin("job-former").await else { return };
    let node = site.node("a").await;
    let cam = site.configure("cam", job_broker("update:1")).await;
    site.instance(&cam, "000001", &[&node]).await;
    let created = wait_for_record(&site, "cam-000001").await;
    site.kill_controller();
    let target =
        Target { namespace: site.namespace(), name: "cam-000001", uid: "", configuration: "cam", shared: true };
    let spec = cam.spec.broker_spec.clone().unwrap().broker_job_spec.unwrap();
    let of_version_0_1 = spec_hash(&akri_brokers::job(&target, &spec, "cam-000001-1-job").0["spec"]);
    let former = json!({RECORD: format!("created cam-000001-1-job {of_version_0_1}")});
    let former = Patch::Merge(json!({"metadata": {"annotations": former}}));
    let instances = site.story.api::<Instance>();
    instances.patch("cam-000001", &PatchParams::default(), &former).await.unwrap();
    site.delete::<Job>("cam-000001-1-job").await;
    // That of upstream has its finalizer and no record.
    site.instance(&cam, "000002", &[&node]).await;
    let finalizers = Patch::Merge(json!({"metadata": {"finalizers": [node]}}));
    instances.patch("cam-000002", &PatchParams::default(), &finalizers).await.unwrap();
    site.controller = Some(site.start_controller());
    wait_for("the record of today", async || record(&site, "cam-000001").await, |record| *record == created).await;
    let taken_over = async || site.get::<Instance>("cam-000002").await.unwrap().finalizers().is_empty();
    wait_for("no finalizer of upstream", taken_over, |is_so| *is_so).await;
    assert!(record(&site, "cam-000002").await.starts_with("created cam-000002-1-job "));
    wait_for_another(&site, "000003").await;
    assert_eq!(names_of(&site.list::<Job>().await), ["cam-000003-1-job"]);
    site.configure("cam", job_broker("update:2")).await;
    let names = ["cam-000001-2-job", "cam-000002-2-job", "cam-000003-1-job", "cam-000003-2-job"];
    site.wait_for_names::<Job>(&names).await;
}

#[tokio::test] // rule 57, rule 119
async fn jobs_and_brokers_go_when_the_configuration_runs_none() {
    let Some(mut site) = Brokers::begin("job-removed").await else { return };
    let node = site.node("a").await;
    let cam = site.configure("cam", job_broker("update:1")).await;
    for hash in ["000001", "000002"] {
        site.instance(&cam, hash, &[&node]).await;
        wait_for_record(&site, &format!("cam-{hash}")).await;
    }
    let pods = async || site.list::<Pod>().await;
    wait_for("the Jobs' Pods", pods, |pods| pods.len() == 2).await;
    site.configure("cam", pod_broker(json!({}))).await;
    site.wait_for_names::<Job>(&[]).await;
    let is_broker = |pod: &Pod| pod.name_any().ends_with("-pod") && !is_going(pod);
    wait_for("Pods of no Job", pods, |pods| pods.len() == 2 && pods.iter().all(is_broker)).await;
    site.configure("cam", json!({})).await;
    site.wait_for_names::<Pod>(&[]).await;
    let status = async || site.get::<Instance>("cam-000001").await.unwrap().status.unwrap();
    let is_empty_status = |status: &akri_api::InstanceStatus| {
        status.brokers.is_none() && !status.conditions.iter().any(|condition| condition.type_ == "BrokersReady")
    };
    wait_for("a status without brokers", status, is_empty_status).await;
}
