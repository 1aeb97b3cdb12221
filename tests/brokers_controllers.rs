//! Several controllers, and ones that are killed (rule 60): names are deterministic, so that nothing is made twice or lost.

use std::collections::BTreeSet;

use akri_api::{Configuration, Instance};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::support::brokers::{Brokers, is_going, names_of, pod_broker};
use crate::support::cluster::wait_for;

fn image(pod: &Pod) -> &str {
    pod.spec.as_ref().unwrap().containers[0].image.as_deref().unwrap()
}

#[tokio::test] // rule 60
async fn leader_killed_in_mid_roll_is_replaced() {
    let Some(mut site) = Brokers::begin("leaders").await else { return };
    site.controller.as_ref().unwrap().wait_for_log("this controller leads").await;
    let second = site.start_controller();
    let node = site.node("a").await;
    let cam = site.configure("cam", pod_broker(json!({"image": "broker:1"}))).await;
    for hash in ["000001", "000002", "000003"] {
        site.instance(&cam, hash, &[&node]).await;
    }
    for pod in names_of(&site.wait_for_pods(3).await) {
        site.run(&pod).await;
    }
    site.wait_for_configuration_condition("cam", "True", "Running").await;
    site.configure("cam", pod_broker(json!({"image": "broker:2"}))).await;
    let pods = async || site.list::<Pod>().await;
    let begun = |pods: &Vec<Pod>| pods.iter().any(|pod| image(pod) == "broker:2");
    wait_for("the first new broker", pods, begun).await;
    assert!(!second.log().contains("this controller leads"));
    site.kill_controller();
    second.wait_for_log("this controller leads").await;
    let mut done = BTreeSet::new();
    while done.len() < 3 {
        let fresh = |pod: &&Pod| image(pod) == "broker:2" && !done.contains(&pod.name_any()) && !is_going(*pod);
        let pods = wait_for("the next", async || site.list::<Pod>().await, |pods| pods.iter().any(|p| fresh(&p))).await;
        assert!(pods.len() <= 3);
        let name = pods.iter().find(fresh).unwrap().name_any();
        site.run(&name).await;
        done.insert(name);
    }
    site.wait_for_configuration_condition("cam", "True", "Running").await;
    assert_eq!(site.list::<Pod>().await.len(), 3);
}

#[tokio::test] // rule 60
async fn two_controllers_that_both_work_make_no_duplicate() {
    let Some(mut site) = Brokers::begin("both").await else { return };
    // Another namespace for its Lease makes it lead as well.
    let other = format!("{}-leases", site.namespace());
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}});
    site.story.apply_one(namespace).await.unwrap();
    let flags = ["--namespace", site.namespace()];
    let second = crate::support::brokers::start_controller(&site.story.kubeconfig(), &flags, &other);
    second.wait_for_log("this controller leads").await;
    let node = site.node("a").await;
    let cam = site.configure("cam", pod_broker(json!({}))).await;
    let jobs = site.configure("job", crate::support::brokers::job_broker("update:1")).await;
    for number in 0..10 {
        site.instance(&cam, &format!("{number:06}"), &[&node]).await;
        site.instance(&jobs, &format!("{number:06}"), &[&node]).await;
    }
    let created = async || {
        let instances = site.list::<Instance>().await;
        let jobs = instances.iter().filter(|instance| instance.spec.configuration_name == "job");
        jobs.filter(|i| i.annotations().get("akri.sh/broker-job").is_some_and(|r| r.starts_with("created "))).count()
    };
    wait_for("all Jobs", created, |count| *count == 10).await;
    assert_eq!(site.list::<k8s_openapi::api::batch::v1::Job>().await.len(), 10);
    let of_cam = |pods: &Vec<Pod>| pods.iter().filter(|pod| pod.labels()["akri.sh/configuration"] == "cam").count();
    let pods = wait_for("all Pods", async || site.list::<Pod>().await, |pods| of_cam(pods) == 10).await;
    for pod in pods.iter().filter(|pod| pod.labels()["akri.sh/configuration"] == "cam") {
        site.run(&pod.name_any()).await;
    }
    site.wait_for_configuration_condition("cam", "True", "Running").await;
    for log in [site.controller.as_ref().unwrap().log(), second.log()] {
        assert!(!log.contains("panicked"), "{log}");
    }
    site.story.delete_namespace(&other);
}

#[tokio::test] // rule 36, rule 59, rule 117, rule 131
async fn readiness_follows_the_agents_that_run() {
    let Some(mut site) = Brokers::begin("agentless").await else { return };
    site.configure("cam", json!({})).await;
    let ready = async || {
        let status = site.get::<Configuration>("cam").await.unwrap().status.unwrap_or_default();
        status.conditions.iter().find(|c| c.type_ == "Ready").map(|c| (c.status.clone(), c.reason.clone()))
    };
    let is = |status: &str, reason: &str| {
        let wanted = Some((status.to_owned(), reason.to_owned()));
        move |found: &Option<(String, String)>| *found == wanted
    };
    wait_for("a Configuration that nobody serves", ready, is("Unknown", "NoAgent")).await;
    site.renew_lease_until("node-a", 1).await;
    wait_for("a Configuration that no agent has looked at", ready, is("Unknown", "Pending")).await;
    let cam = site.get::<Configuration>("cam").await.unwrap();
    assert_eq!(cam.status.unwrap().awaiting, ["node-a"]);
    let watched = cam.metadata.resource_version.unwrap().parse().unwrap();
    let lease = site.renew_lease_until("node-a", watched).await;
    wait_for("a Configuration that an agent serves", ready, is("True", "Discovered")).await;
    site.configure("cam", json!({"capacity": 3})).await;
    wait_for("a generation that no agent has looked at", ready, is("Unknown", "Pending")).await;
    site.renew_lease("node-a").await;
    wait_for("a generation that an agent serves", ready, is("True", "Discovered")).await;
    let cam = site.get::<Configuration>("cam").await.unwrap();
    let status = cam.status.unwrap();
    assert!(status.conditions.iter().all(|condition| condition.observed_generation == cam.metadata.generation));
    assert!(status.awaiting.is_empty(), "{status:?}");
    let compiling = site.renew_lease_until("node-b", 1).await;
    site.delete::<Lease>(&lease).await;
    wait_for("a Configuration whose only agent has not looked", ready, is("Unknown", "Pending")).await;
    site.delete::<Lease>(&compiling).await;
    wait_for("a Configuration that nobody serves any more", ready, is("Unknown", "NoAgent")).await;

    // Reports of agents that run no more, of which one may return, silence nobody.
    let [running, dead, returning] = site.nodes(["running", "dead", "returning"]).await;
    site.renew_lease(&running).await;
    let report = |since: &str| json!({"reason": "NoHandler", "message": "none", "since": since});
    let nodes = json!({
        &running: report("2026-01-01T00:00:00Z"),
        &dead: report("2026-01-01T00:00:00Z"),
        &returning: report(&format!("{:.0}", jiff::Timestamp::now())),
    });
    let patch = Patch::Merge(json!({"status": {"nodes": nodes}}));
    site.story.api::<Configuration>().patch_status("cam", &PatchParams::default(), &patch).await.unwrap();
    let message = async || {
        let status = site.get::<Configuration>("cam").await.unwrap().status.unwrap_or_default();
        let ready = status.conditions.into_iter().find(|c| c.type_ == "Ready").map(|c| c.message);
        (status.nodes.into_keys().collect::<Vec<_>>(), ready.unwrap_or_default())
    };
    let left = |(nodes, ready): &(Vec<String>, String)| {
        *nodes == [returning.clone(), running.clone()] && ready.contains(&running) && !ready.contains(&dead)
    };
    wait_for("the reports of the agents that run and return", message, left).await;
}
