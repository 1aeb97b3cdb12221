//! The claims of two nodes while pods come and go and the API server is slow, or Configurations are made again.

use std::collections::BTreeMap;
use std::time::Duration;

use akri_api::Instance;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::support::cluster::{Brownout, Overload, kubernetes_version};
use crate::support::cluster_fixture::{ClusterFixture, Member};
use crate::support::kubelet::Admitted;
use crate::support::node::{is_online, resource_of};

/// The duration of the brownout, with each kind of weather at least once, and of replacements.
const FAULTS: Duration = Duration::from_secs(25);

/// Pods at once on one node.
const PODS: usize = 3;

/// The slots of each pod, by node.
type Slots = BTreeMap<String, &'static str>;

/// Pods that come and go on one node, like those of a ReplicaSet whose containers fail.
struct Churn<'m> {
    member: &'m Member,
    resources: Vec<String>,
    pods: Vec<String>,
    started: usize,
    refused: usize,
}

impl<'m> Churn<'m> {
    fn new(member: &'m Member, resources: &[String]) -> Self {
        Self { member, resources: resources.to_vec(), pods: Vec::new(), started: 0, refused: 0 }
    }

    async fn run(&mut self, until: Instant) {
        while Instant::now() < until {
            self.step().await;
            sleep(Duration::from_millis(150)).await;
        }
    }

    /// If there are enough pods, the oldest one ends. Another one starts.
    async fn step(&mut self) {
        if self.pods.len() >= PODS {
            self.member.kubelet.remove_pod(&self.pods.remove(0));
        }
        let number = self.started + self.refused;
        let (pod, resource) = (format!("pod-{number}"), &self.resources[number % self.resources.len()]);
        match self.member.kubelet.admit(&pod, "container", resource, 1).await {
            Ok(_) => {
                self.started += 1;
                self.pods.push(pod);
            }
            Err(_) => self.refused += 1,
        }
    }
}

/// Returns the slots that pods have, by what their containers were told.
///
/// # Panics
/// If two pods have one slot.
fn held(members: [&Member; 2]) -> Slots {
    let mut slots = Slots::new();
    for member in members {
        let admitted: Vec<Admitted> = member.kubelet.view(|view| view.pods.values().cloned().collect());
        for value in admitted.iter().flat_map(|admitted| admitted.response.annotations.values()) {
            let slot = value.rsplit(':').next().unwrap().to_owned();
            let other = slots.insert(slot.clone(), member.name);
            assert_eq!(other, None, "{slot} is given to two pods");
        }
    }
    slots
}

/// Returns the slots in use, as the API server has them.
fn published(instances: &[Instance]) -> BTreeMap<String, String> {
    let all = instances.iter().flat_map(|instance| &instance.spec.device_usage);
    let used = all.filter(|(_, usage)| !usage.is_empty());
    used.map(|(slot, usage)| (slot.clone(), usage.rsplit(':').next().unwrap().to_owned())).collect()
}

/// Waits until pods, API server and, after a restart from it, the journals agree about who has what.
async fn all_agree(cluster: &ClusterFixture, mut a: Member, mut b: Member, free: usize) {
    let agree = |members: [&Member; 2], found: &[Instance]| {
        let held: BTreeMap<String, String> =
            held(members).into_iter().map(|(slot, node)| (slot, node.into())).collect();
        held == published(found)
    };
    let found =
        cluster.wait_for_instances("slots in use by the pods and by nobody else", |all| agree([&a, &b], all)).await;
    let used = published(&found);
    for member in [&mut a, &mut b] {
        member.kill();
        member.start();
    }
    let has_all_slots = |member: &Member| {
        let mine = used.values().filter(|node| *node == member.name).count();
        member.kubelet.view(|view| {
            let of_instances = found.iter().map(|instance| view.resource(&resource_of(instance)));
            let healthy: usize = of_instances.map(|resource| resource.allocatable()).sum();
            // A slot that a virtual device has is not Healthy as the Instance's own.
            healthy >= free && healthy <= free + mine
        })
    };
    for member in [&a, &b] {
        let enough = async {
            while !has_all_slots(member) {
                sleep(Duration::from_millis(200)).await;
            }
        };
        timeout(Duration::from_secs(100), enough).await.expect("every free slot is offered again");
    }
    sleep(Duration::from_secs(1)).await; // several polls of what the pods use
    cluster.wait_for_instances("the same after restarts", |all| published(all) == used && agree([&a, &b], all)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_agree_after_a_brownout_of_the_api_server() {
    let Some(cluster) = ClusterFixture::begin("brownout").await else { return };
    let (slots, devices) = (4, ["one", "two", "three"]);
    cluster.echo(cluster.name(), slots, &devices, json!({})).await;
    let directory = tempfile::tempdir().unwrap();
    let proxy = Brownout::before(&cluster.story.kubeconfig()).await;
    let kubeconfig = proxy.kubeconfig(&cluster.story.kubeconfig(), directory.path().join("kubeconfig"));
    let (a, b) = (cluster.add_with("node-a", kubeconfig.clone(), &[]), cluster.add_with("node-b", kubeconfig, &[]));
    let ready = |all: &[Instance]| all.len() == 3 && all.iter().all(|i| is_online(i) && i.spec.nodes.len() == 2);
    let instances = cluster.wait_for_instances("three devices of both nodes", ready).await;
    let mut resources: Vec<String> = instances.iter().map(resource_of).collect();
    for resource in &resources {
        a.offers(resource, 4).await;
        b.offers(resource, 4).await;
    }
    resources.push(format!("akri.sh/{}", cluster.name()));

    let (mut churn_a, mut churn_b) = (Churn::new(&a, &resources), Churn::new(&b, &resources));
    let end = Instant::now() + FAULTS;
    let watch = async {
        while Instant::now() < end {
            held([&a, &b]);
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::join!(proxy.last(FAULTS), churn_a.run(end), churn_b.run(end), watch);
    for churn in [&churn_a, &churn_b] {
        println!("{}: {} pods started, {} refused", churn.member.name, churn.started, churn.refused);
        assert!(churn.started > 10 && churn.refused > 0, "some must start, and some meet the trouble");
    }
    let used = held([&a, &b]).len();
    all_agree(&cluster, a, b, 12 - used).await;
}

/// Replaces Configurations as `kubectl replace --force` does, by deletion and creation, while pods come and go.
#[tokio::test(flavor = "multi_thread")] // rule 43
async fn claims_outlive_configurations_that_are_replaced() {
    let Some(cluster) = ClusterFixture::begin("replaced").await else { return };
    cluster.echo(cluster.name(), 16, &["one"], json!({})).await;
    let (a, b) = (cluster.add("node-a"), cluster.add("node-b"));
    let instance = cluster.wait_for_the_instance("both nodes", |i| is_online(i) && i.spec.nodes.len() == 2).await;
    let resources = vec![resource_of(&instance)];
    a.offers(&resources[0], 16).await;
    b.offers(&resources[0], 16).await;
    // Pods that stay, whatever happens.
    let stays = a.kubelet.admit("stays", "container", &resources[0], 1).await.unwrap();

    let (mut churn_a, mut churn_b) = (Churn::new(&a, &resources), Churn::new(&b, &resources));
    let end = Instant::now() + FAULTS / 2;
    let replacing = async {
        while Instant::now() < end {
            sleep(Duration::from_secs(3)).await;
            cluster.configurations().delete(cluster.name(), &Default::default()).await.unwrap();
            cluster.echo(cluster.name(), 16, &["one"], json!({})).await;
        }
    };
    let watch = async {
        while Instant::now() < end {
            held([&a, &b]);
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::join!(replacing, churn_a.run(end), churn_b.run(end), watch);
    assert!(churn_a.started > 10 && churn_b.started > 10, "{} and {}", churn_a.started, churn_b.started);
    let slots = held([&a, &b]);
    assert!(stays.ids.iter().all(|slot| slots.contains_key(slot)), "{slots:?}");
    all_agree(&cluster, a, b, 16 - slots.len()).await;
}

/// Priority and fairness of a busy API server answers clients, and says when to come back.
#[tokio::test] // rule 77
async fn overloaded_api_server_is_left_alone_and_streams_no_lists() {
    let Some(cluster) = ClusterFixture::begin("overload").await else { return };
    cluster.echo(cluster.name(), 1, &["one"], json!({})).await;
    let directory = tempfile::tempdir().unwrap();
    let server = Overload::before(cluster.story.client()).await;
    let member = cluster.add_with("node-a", server.kubeconfig(directory.path().join("kubeconfig")), &[]);
    let online = |count: usize| move |all: &[Instance]| all.len() == count && all.iter().all(is_online);
    let one = cluster.wait_for_instances("the first device", online(1)).await;
    member.offers(&resource_of(&one[0]), 1).await;
    lists_can_be_streamed(&cluster).await;

    server.refuse_for(3);
    cluster.echo(cluster.name(), 1, &["one", "two"], json!({})).await; // open watches show it
    sleep(Duration::from_secs(9)).await; // three times what it asks for
    server.refuse_for(0);
    cluster.wait_for_instances("both devices", online(2)).await;

    let received = server.received();
    let mut waits = 0;
    for (number, refused) in received.iter().enumerate() {
        let Some(pause) = refused.retry_after else { continue };
        // What was sent before the answer came may come after it.
        let later = |at: Instant| at > refused.at + Duration::from_secs(1);
        let mut of_class = received[number..].iter().filter(|request| request.is_read() == refused.is_read());
        if let Some(next) = of_class.find(|request| later(request.at)) {
            assert!(next.at >= refused.at + pause, "{next:?} came too early after {refused:?}");
            waits += 1;
        }
    }
    assert!(waits >= 2, "{received:?}");
    assert!(received.iter().any(|request| request.what.contains("watch=true")), "{received:?}");
    assert!(!received.iter().any(|request| request.what.contains("sendInitialEvents")), "{received:?}");
}

#[tokio::test] // rule 77
async fn agent_works_while_half_of_its_requests_are_refused() {
    let Some(cluster) = ClusterFixture::begin("half").await else { return };
    cluster.echo(cluster.name(), 1, &["one", "two"], json!({})).await;
    let directory = tempfile::tempdir().unwrap();
    let server = Overload::before(cluster.story.client()).await;
    server.refuse_one_of(2, 1);
    let member = cluster.add_with("node-a", server.kubeconfig(directory.path().join("kubeconfig")), &[]);
    let both = cluster.wait_for_instances("both devices", |all| all.len() == 2 && all.iter().all(is_online)).await;
    let resource = resource_of(&both[0]);
    member.offers(&resource, 1).await;
    let mut tries = 0..20;
    while member.kubelet.admit(&format!("pod-{}", tries.next().unwrap()), "c", &resource, 1).await.is_err() {
        sleep(Duration::from_millis(500)).await; // a claim has no more than two seconds
    }
    cluster.wait_for_instances("the claim", |all| published(all).len() == 1).await;
    let refused = server.received().iter().filter(|request| request.retry_after.is_some()).count();
    assert!(refused >= 5, "{refused} requests were refused");
}

/// API servers of today stream lists to clients that ask for it.
async fn lists_can_be_streamed(cluster: &ClusterFixture) {
    let stream = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let path = format!("/apis/akri.sh/v0/namespaces/{}/instances?{stream}&timeoutSeconds=12", cluster.name());
    let streamed = cluster.story.client().request_text(http::Request::get(path).body(Vec::new()).unwrap()).await;
    if kubernetes_version().minor >= 34 {
        let streamed = streamed.unwrap();
        // An API server whose etcd is older than 3.4.25 says that it can't.
        let answers = ["k8s.io/initial-events-end", "RequestWatchProgress"];
        assert!(answers.iter().any(|answer| streamed.contains(answer)), "{streamed}");
    }
}
