//! Reports of brokers about their devices (rule 39). Stories write into the directory on the node as the container
//! would.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use akri_api::Instance;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::json;

use crate::support::cluster::wait_for as wait_for_cluster;
use crate::support::cluster_fixture::ClusterFixture;
use crate::support::kubelet::{Admitted, Kubelet};
use crate::support::node::{Agent, Node, resource_of, used, wait_for};

const CAMERAS: &str = "akri.sh/cam";
const VARIABLE: &str = "AKRI_BROKER_INFO_DIR";

/// A node with one camera of so many slots, whose containers get a directory.
async fn camera(capacity: u32) -> (Node, Kubelet, Agent) {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    let spec = format!("  capacity: {capacity}\n  offlineGracePeriod: 0s\n  brokerInfo: true\n");
    node.write_configuration("cam", "debugEcho", "      descriptions:\n      - one\n", &spec);
    let agent = node.start();
    kubelet.wait_for("the camera", |view| view.resource(CAMERAS).allocatable() > 0).await;
    (node, kubelet, agent)
}

/// The directory of a container on the node.
fn directory(admitted: &Admitted) -> PathBuf {
    let path = &admitted.response.envs[VARIABLE];
    let mount = admitted.response.mounts.iter().find(|mount| mount.container_path == *path).expect("its mount");
    assert!(!mount.read_only);
    PathBuf::from(&mount.host_path)
}

/// Writes a file as brokers should: under another name first.
fn report(directory: &Path, name: &str, text: &str) {
    let part = directory.join(format!(".{name}"));
    fs::write(&part, text).unwrap();
    fs::rename(part, directory.join(name)).unwrap();
}

fn infos(instance: &Instance) -> BTreeMap<String, BTreeMap<String, String>> {
    instance.status.as_ref().map(|status| status.broker_info.clone()).unwrap_or_default()
}

/// The files of the only slot that has some.
fn files(instance: &Instance) -> Vec<(String, String)> {
    infos(instance).into_values().flatten().collect()
}

fn pair(name: &str, text: &str) -> (String, String) {
    (name.to_owned(), text.to_owned())
}

#[tokio::test] // rule 39
async fn broker_info_of_the_last_container_stays_until_the_next_claim() {
    let (node, kubelet, agent) = camera(1).await;
    let init = kubelet.admit_init("update", "init", CAMERAS, 1).await.unwrap();
    let admitted = kubelet.admit("update", "container", CAMERAS, 1).await.unwrap();
    assert_eq!(init.ids, admitted.ids, "one slot");
    let first = directory(&admitted);
    assert_eq!(fs::metadata(&first).unwrap().permissions().mode() & 0o7777, 0o1777);
    let name = node.instances()[0].name_any();
    let suffixed = format!("{VARIABLE}_{}", name.strip_prefix("cam-").unwrap().to_uppercase());
    assert_eq!(admitted.response.envs[&suffixed], format!("/run/akri/broker-info/{name}-0"));
    report(&first, "firmware", "2.1");
    let reports = |expected: Vec<(String, String)>| move |instance: &Instance| files(instance) == expected;
    let shown = node.wait_for_instance(&name, "the firmware", reports(vec![pair("firmware", "2.1")])).await;
    assert_eq!(infos(&shown).keys().collect::<Vec<_>>(), [&format!("{name}-0")]);
    assert!(directory(&init) != first && directory(&init).is_dir(), "the init container may not have started yet");
    let output = node.akri(&["get", "instances", "-o", "yaml", "--state-dir", node.path("state").to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("brokerInfo:") && text.contains("firmware:"), "{text}");

    agent.kill();
    let agent = node.start();
    kubelet.wait_for("the resource again", |view| view.resource(CAMERAS).connected).await;
    report(&first, "firmware", "2.2");
    node.wait_for_instance(&name, "the firmware after a restart", reports(vec![pair("firmware", "2.2")])).await;
    agent.wait_for_log("a container uses it").await;
    kubelet.remove_pod("update");
    node.wait_for_instance(&name, "a free slot", |instance| used(instance).is_empty()).await;
    wait_for("no directory", || first.exists(), |exists| !exists).await;
    assert_eq!(files(&node.instance(&name).unwrap()), [pair("firmware", "2.2")], "it is kept");

    kubelet.wait_for("the camera", |view| view.resource(CAMERAS).allocatable() > 0).await;
    let second = directory(&kubelet.admit("next", "container", CAMERAS, 1).await.unwrap());
    assert!(second != first && fs::read_dir(&second).unwrap().next().is_none());
    node.wait_for_instance(&name, "nothing of the claim before", reports(Vec::new())).await;
}

#[tokio::test] // rule 39, threat 16
async fn hostile_broker_info_is_refused_and_logged_once() {
    let (node, kubelet, agent) = camera(2).await;
    let admitted = kubelet.admit("bad", "container", CAMERAS, 1).await.unwrap();
    let directory = directory(&admitted);
    fs::write(node.path("secret"), "opensesame").unwrap();
    symlink(node.path("secret"), directory.join("link")).unwrap();
    mkfifoat(CWD, directory.join("fifo"), Mode::from_raw_mode(0o666)).unwrap();
    File::create(directory.join("huge")).unwrap().set_len(1 << 30).unwrap();
    fs::write(directory.join("binary"), [0xff, 0xfe, 0x00]).unwrap();
    fs::write(directory.join("two words"), "x").unwrap();
    fs::create_dir_all(directory.join("inner/inner")).unwrap();
    let name = node.instances()[0].name_any();
    report(&directory, "firmware", "2.1");
    let good = |instance: &Instance| files(instance) == [pair("firmware", "2.1")];
    node.wait_for_instance(&name, "what is fine", good).await;
    agent.wait_for_log("files of a broker are not published").await;
    (0..1000).for_each(|number| fs::write(directory.join(format!("z{number:04}")), "x").unwrap());
    node.wait_for_instance(&name, "so many and no more", |instance| files(instance).len() == 16).await;
    let log = agent.log();
    assert_eq!(log.matches("files of a broker are not published").count(), 1, "{log}");
    assert!(log.contains("'binary' is not UTF-8; 'fifo' is not a regular file; 'huge' is longer than 4 KiB"), "{log}");
    let published = fs::read_to_string(node.path(&format!("state/instances/default/{name}.json"))).unwrap();
    assert!(!published.contains("opensesame"));

    kubelet.admit("good", "container", CAMERAS, 1).await.unwrap();
    agent.wait_for_log("a container uses it").await;
    kubelet.remove_pod("bad");
    wait_for("no directory", || directory.exists(), |exists| !exists).await;
    assert!(node.path("secret").exists());
}

#[tokio::test] // rule 39
async fn jobs_of_two_nodes_report_in_one_instance() {
    let Some(cluster) = ClusterFixture::begin("reports").await else { return };
    cluster.echo(cluster.name(), 2, &["one"], json!({"brokerInfo": true})).await;
    let (a, b) = (cluster.add("node-a"), cluster.add("node-b"));
    let made = cluster.wait_for_the_instance("both nodes", |i| i.spec.nodes.len() == 2).await;
    let resource = resource_of(&made);
    a.offers(&resource, 2).await;
    b.offers(&resource, 2).await;
    let of_a = a.kubelet.admit("job-a", "container", &resource, 1).await.unwrap();
    b.offers(&resource, 1).await;
    let of_b = b.kubelet.admit("job-b", "container", &resource, 1).await.unwrap();
    report(&directory(&of_a), "firmware", "a");
    report(&directory(&of_b), "firmware", "b");
    let both = |instance: &Instance| {
        let reports = |slot: &str, text: &str| infos(instance).get(slot).is_some_and(|files| files["firmware"] == text);
        reports(&of_a.ids[0], "a") && reports(&of_b.ids[0], "b")
    };
    cluster.wait_for_the_instance("what both report", both).await;

    symlink("/etc/passwd", directory(&of_b).join("link")).unwrap();
    let events = async || cluster.story.api::<Event>().list(&Default::default()).await.unwrap().items;
    let refused = |event: &Event| {
        event.reason.as_deref() == Some("BrokerInfoRefused")
            && event.message.as_deref().is_some_and(|message| message.contains("'link' is not a regular file"))
    };
    wait_for_cluster("the event", events, |events| events.iter().any(refused)).await;

    b.agent.as_ref().unwrap().sees_in_use_in(cluster.story.namespace(), 0, &of_b.ids).await;
    b.kubelet.remove_pod("job-b");
    a.offers(&resource, 2).await;
    b.offers(&resource, 1).await;
    cluster.wait_for_the_instance("what the Job has reported", both).await;
    b.kubelet.admit("next", "container", &resource, 1).await.unwrap();
    let only_a = |instance: &Instance| files(instance) == [pair("firmware", "a")];
    cluster.wait_for_the_instance("nothing of the Job before", only_a).await;
}
