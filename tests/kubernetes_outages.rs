//! The API server or etcd goes away and comes back: what needs neither goes on, and what happened meanwhile is published.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use akri_api::Instance;
use kube::ResourceExt as _;
use serde_json::json;

use crate::support::cluster::wait_for;
use crate::support::cluster_fixture::{ClusterFixture, Member};
use crate::support::kubelet::Admitted;
use crate::support::node::{is_online, name_of, resource_of, usage};
use crate::support::remote::Handler;

/// The duration of the outage, and of each presence and absence of a device during it.
const OUTAGE: Duration = Duration::from_secs(25);
const CHURN: Duration = Duration::from_millis(500);

/// A Configuration for a handler that registers at a node's agent; its devices are that node's own.
async fn configure(cluster: &ClusterFixture, name: &str, capacity: u32) {
    let handler = json!({"name": "cam", "discoveryDetails": ""});
    cluster
        .configure(name, json!({"discoveryHandler": handler, "capacity": capacity, "offlineGracePeriod": "0s"}))
        .await;
}

fn of<'a>(instances: &'a [Instance], device: &str) -> Option<&'a Instance> {
    instances.iter().find(|instance| instance.spec.broker_properties.get("NAME").is_some_and(|name| name == device))
}

/// Two nodes that offer both slots of one device.
async fn on_two_nodes(cluster: &ClusterFixture) -> (Member, Member, Instance) {
    cluster.echo(cluster.name(), 2, &["one"], json!({})).await;
    let (a, b) = (cluster.add("node-a"), cluster.add("node-b"));
    let made = cluster.wait_for_the_instance("both nodes", |i| i.spec.nodes.len() == 2 && is_online(i)).await;
    for member in [&a, &b] {
        member.offers(&resource_of(&made), 2).await;
    }
    (a, b, made)
}

async fn refusal(member: &Member, pod: &str, resource: &str) -> String {
    member.kubelet.admit(pod, "container", resource, 1).await.unwrap_err().to_string()
}

/// Admits a pod, and after a failure, which is final for a pod, the next one, as a ReplicaSet does.
async fn admitted(member: &Member, name: &str, resource: &str) -> (String, Admitted) {
    let pods = AtomicUsize::new(0);
    let admit = async || {
        let pod = format!("{name}-{}", pods.fetch_add(1, Ordering::SeqCst));
        let admitted = member.kubelet.admit(&pod, "container", resource, 1).await;
        admitted.map(|admitted| (pod, admitted))
    };
    wait_for("a claim that the API server confirms", admit, Result::is_ok).await.unwrap()
}

#[tokio::test]
async fn devices_change_while_the_api_server_is_down() {
    let Some(cluster) = ClusterFixture::begin_on_real_nodes("outage").await else { return };
    let lamps = format!("{}-lamps", cluster.name());
    cluster.echo(&lamps, 2, &["lamp"], json!({})).await;
    configure(&cluster, cluster.name(), 2).await;
    let mut a = cluster.add("node-a");
    let cam = Handler::start(&a.node, "cam", "cam", &["one", "two"]);
    cam.register(&a.node).await.unwrap();
    let ready = |all: &[Instance]| all.len() == 3 && all.iter().all(is_online);
    let before = cluster.wait_for_instances("all devices", ready).await;
    let (one, two) = (of(&before, "one").unwrap(), of(&before, "two").unwrap());
    let lamp = before.iter().find(|instance| instance.spec.shared).unwrap();
    let (first, second) = (resource_of(one), resource_of(two));
    for resource in [&first, &second, &resource_of(lamp)] {
        a.offers(resource, 2).await;
    }

    let api_server = &cluster.story.cluster().control.api_server;
    api_server.stop();
    let held = a.kubelet.admit("pod", "container", &first, 1).await.unwrap();
    assert_eq!(held.response.envs["NAME"], "one", "a local device needs no API server");
    let refused = refusal(&a, "guest", &resource_of(lamp)).await;
    assert!(refused.contains("did not confirm the claim"), "of a shared one nobody can tell: {refused}");
    for _ in 0..OUTAGE.as_millis() / CHURN.as_millis() / 2 {
        cam.sees(&["one"]).await;
        tokio::time::sleep(CHURN).await;
        cam.sees(&["one", "two"]).await;
        tokio::time::sleep(CHURN).await;
    }
    a.kubelet.restart();
    a.offers(&second, 2).await;
    a.offers(&first, 2).await;
    cam.sees(&["one", "three"]).await;
    a.offers(&second, 0).await;

    api_server.start().unwrap();
    let now = |all: &[Instance]| all.len() == 3 && of(all, "three").is_some() && of(all, "two").is_none();
    let after = cluster.wait_for_instances("what there is now", now).await;
    let same = of(&after, "one").unwrap();
    assert_eq!(same.uid(), one.uid());
    let claimed = |i: &Instance| usage(i).contains(&(&*held.ids[0], "node-a"));
    cluster.wait_for_instances("the claim", |all| of(all, "one").is_some_and(claimed)).await;
    a.offers(&resource_of(of(&after, "three").unwrap()), 2).await;
    a.kubelet.admit("guest", "container", &resource_of(lamp), 1).await.unwrap();
    a.kill();
    a.start();
    a.offers(&first, 2).await;
    let again = cluster.list().await;
    assert_eq!(of(&again, "one").map(name_of), Some(name_of(one)));
}

/// Copies a directory.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

#[tokio::test] // rule 106
async fn agents_follow_an_etcd_that_was_restored() {
    let Some(cluster) = ClusterFixture::begin_on_real_nodes("restored").await else { return };
    let (a, b, made) = on_two_nodes(&cluster).await;
    let resource = resource_of(&made);

    let kubernetes = cluster.story.cluster();
    let etcd = &kubernetes.control.etcd;
    etcd.kill();
    refusal(&b, "too-early", &resource).await;
    etcd.start().unwrap();
    b.offers(&resource, 2).await;
    let backups = tempfile::tempdir().unwrap();
    let backup = backups.path().join("etcd");
    kubernetes.with_data(|data| copy(data, &backup)).unwrap();

    // What the backup lacks: a claim, and versions that are higher than all that follow the restore.
    let (pod, held) = admitted(&a, "early", &resource).await;
    b.offers(&resource, 1).await;
    for capacity in [3, 2, 3, 2] {
        cluster.echo(cluster.name(), capacity, &["one"], json!({})).await;
        cluster.wait_for_the_instance("the edit", |i| i.spec.capacity == i64::from(capacity)).await;
    }
    let restore = |data: &Path| {
        fs::remove_dir_all(data).unwrap();
        copy(&backup, data);
    };
    kubernetes.with_data(restore).unwrap();

    let used = |users: &'static [&'static str]| {
        let uid = made.uid();
        move |i: &Instance| {
            let mut found: Vec<&str> =
                usage(i).into_iter().map(|(_, user)| user).filter(|user| !user.is_empty()).collect();
            found.sort_unstable();
            i.uid() == uid && found == users
        }
    };
    cluster.wait_for_the_instance("the claim of a running container, written anew", used(&["node-a"])).await;
    b.offers(&resource, 1).await;
    admitted(&b, "late", &resource).await;
    cluster.wait_for_the_instance("both claims", used(&["node-a", "node-b"])).await;
    a.offers(&resource, 1).await;
    a.kubelet.remove_pod(&pod);
    cluster.wait_for_the_instance("a release that names a version of now", used(&["node-b"])).await;
    drop(held);
    cluster.echo(cluster.name(), 3, &["one"], json!({})).await;
    b.offers(&resource, 3).await; // watches go on, too
}
