//! Shared devices while the API does not answer, or has other ideas.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use akri_agent::broker_info::BrokerInfo;
use akri_agent::journal::Journal;
use akri_agent::metrics::Metrics;
use akri_agent::owner::{Context, Owner};
use akri_agent::pod_resources_poller::ClaimTracker;
use akri_agent::publisher::Publisher;
use akri_agent::resource_names::ResourceNames;
use akri_cluster::Cluster;
use akri_cluster::local::Local;
use akri_discovery::images::{ImageSettings, Images};
use akri_discovery::registry::{Handlers, Registry};
use akri_discovery::round_metrics::RoundMetrics;
use akri_discovery::sources::Providers;
use akri_grpc::deviceplugin::{AllocateRequest, ContainerAllocateRequest};
use akri_kubelet::Plugins;
use akri_model::claim::Entry;
use akri_model::names::{HashInput, Key, Usage};
use akri_model::reclaim::{ContainerName, UsageSnapshot};
use akri_model::slots::SlotPatch;
use akri_node::uevent::Uevents;
use akri_remote::Remote;
use akri_sandbox::{Host, HostConfig, SandboxProgram};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tonic::Code;

use crate::support::faulty_cluster::FaultyCluster;
use crate::support::fleet::nothing_in_use;
use crate::support::kubelet::{AdmissionError, Kubelet, View};
use crate::support::node::{Node, akri, compiled_for_agents, resource_of, wait_for};

/// The time for which the agent of [`OwnerFixture`] runs already.
const LONG_AGO: Duration = Duration::from_secs(700);

/// A node with one camera of two slots, shared if nothing else is said, and the API behind a line.
struct OwnerFixture {
    node: Node,
    kubelet: Kubelet,
    cluster: Arc<FaultyCluster>,
    owner: Option<Owner>,
    context: Option<Arc<Context>>,
    /// Rounds go on for as long as it is there.
    handlers: Option<watch::Sender<Arc<Handlers>>>,
    snapshots: watch::Sender<Option<UsageSnapshot>>,
    resource: String,
    instance: Key,
}

impl OwnerFixture {
    async fn new() -> Self {
        Self::on(Node::new()).await
    }

    async fn on(node: Node) -> Self {
        let kubelet = Kubelet::start(&node.path("kubelet"));
        node.write_echo("cam", 2, &["one"]);
        let local =
            Local::open(vec![node.path("components"), node.path("manifests")], &node.path("state")).await.unwrap();
        let cluster = FaultyCluster::to(local);
        let mut fixture = Self {
            node,
            kubelet,
            cluster: Arc::new(cluster),
            owner: None,
            context: None,
            handlers: None,
            snapshots: watch::Sender::default(),
            resource: String::new(),
            instance: Key::new("default", ""),
        };
        fixture.start(&[]).await;
        let instances = fixture.node.wait_for_instances("the camera", |list| list.len() == 1).await;
        fixture.instance.name = instances[0].metadata.name.clone().unwrap();
        fixture.resource = format!("akri.sh/{}", fixture.instance.name);
        fixture.wait_for_slots(&[true, true]).await;
        fixture
    }

    /// Starts an owner with what the journal remembers, but for claims on the `forgotten` slots.
    async fn start(&mut self, forgotten: &[u32]) {
        let (journal, mut entries) = Journal::open(&self.node.path("state")).unwrap();
        entries.values_mut().for_each(|entry: &mut Entry| entry.claims.retain(|slot, _| !forgotten.contains(slot)));
        let cluster = Arc::clone(&self.cluster) as Arc<dyn Cluster>;
        let snapshots = self.snapshots.subscribe();
        let context = Arc::new(Context {
            node: "node-a".into(),
            publisher: Publisher::start(Arc::clone(&cluster)),
            cluster,
            journal,
            plugins: Arc::new(Plugins::start(&self.node.path("kubelet"), Default::default())),
            claims: Arc::new(ClaimTracker::new(Instant::now() - LONG_AGO, 100)),
            snapshots,
            resource_names: ResourceNames::default(),
            checkpointed: Default::default(),
            refresher: Arc::default(),
            api_writes: Semaphore::new(8),
            cdi: None,
            broker_info: BrokerInfo::open(&self.node.path("state"), &self.node.path("state")).unwrap(),
            metrics: Metrics::default(),
            startup: Default::default(),
            naming: Semaphore::new(8),
        });
        let config = HostConfig {
            program: SandboxProgram { path: akri(), arguments: Vec::new(), memory_bytes: 384 << 20 },
            cache_dir: Some(compiled_for_agents()),
            precompiled: None,
            sysfs: "/sys".into(),
            udev_data: self.node.path("no-udev"),
        };
        let manifests = self.cluster.watches().manifests.subscribe();
        let registry = Registry::start(
            Host::new(config).unwrap(),
            vec![self.node.path("components")],
            Images::new(ImageSettings::default(), self.cluster.namespace(), self.cluster.watches().values.subscribe()),
            manifests.clone(),
            None,
        );
        let configuration = manifests.borrow().configurations[&Key::new("default", "cam")].clone();
        let mut handlers = registry.handlers.clone();
        handlers.wait_for(|handlers| handlers.settled).await.unwrap();
        let (sender, handlers) = watch::channel(handlers.borrow().clone());
        self.handlers = Some(sender);
        let remote = akri_remote::RemoteSettings {
            directory: self.node.path("handlers"),
            users: Vec::new(),
            networks: Vec::new(),
            paths: Vec::new(),
            trust_paths: false,
            offline_timeout: Duration::from_secs(300),
        };
        let (remote, _) = Remote::start(remote, &self.node.path("state"), Arc::new(|_: &str| None));
        let values = self.cluster.watches().values.subscribe();
        let providers =
            Providers { handlers, uevents: Uevents::default(), values, remote, metrics: RoundMetrics::default() };
        self.owner =
            Some(Owner::start(Arc::clone(&context), configuration, entries.into_values().collect(), providers));
        self.context = Some(context);
    }

    /// Edits the Configuration to these devices, while the owner runs.
    async fn edit(&self, devices: &[&str]) {
        let key = Key::new("default", "cam");
        let before = self.cluster.watches().manifests.borrow().configurations[&key].clone();
        self.node.write_echo("cam", 2, devices);
        let mut manifests = self.cluster.watches().manifests.subscribe();
        let edited = manifests.wait_for(|manifests| manifests.configurations[&key] != before).await.unwrap();
        self.owner.as_ref().unwrap().update(Arc::clone(&edited.configurations[&key]));
    }

    async fn stop(&mut self) {
        self.owner.take().unwrap().stop().await;
        let context = self.context.take().unwrap();
        context.publisher.flush().await;
        context.plugins.shutdown().await;
    }

    async fn wait_for_slots(&self, healthy: &[bool]) {
        let expected: Vec<(String, bool)> =
            healthy.iter().enumerate().map(|(n, healthy)| (format!("{}-{n}", self.instance.name), *healthy)).collect();
        let resource = &self.resource;
        self.kubelet
            .wait_for("the slots", |view| {
                view.resource(resource).connected && view.resource(resource).lists.last() == Some(&expected)
            })
            .await;
    }

    /// Lets the agent observe twice that no container uses anything.
    async fn observe_nothing_in_use(&self) {
        for seconds in [1, 2] {
            let at = Duration::from_secs(seconds);
            self.snapshots.send_replace(Some(nothing_in_use(at)));
            tokio::time::sleep(Duration::from_millis(200)).await; // a later snapshot replaces one that was not taken
        }
    }

    /// Waits until unconfirmed creations were tried again.
    async fn wait_for_failed_lookups(&self) {
        let failed = || self.cluster.failed_lookups.load(Ordering::SeqCst);
        wait_for("failed lookups", failed, |count| *count > 1).await;
    }

    /// Requests a slot as the kubelet does for a container.
    async fn allocate(&self, slot: u32) -> Result<(), Code> {
        let devices_ids = vec![format!("{}-{slot}", self.instance.name)];
        let container_requests = vec![ContainerAllocateRequest { devices_ids }];
        let answer = self.kubelet.plugin(&self.resource).allocate(AllocateRequest { container_requests }).await;
        answer.map(drop).map_err(|status| status.code())
    }

    fn usage(&self, slot: u32) -> String {
        let instances = self.node.instances();
        instances[0].spec.device_usage[&format!("{}-{slot}", self.instance.name)].clone()
    }

    /// Changes a slot behind the agent's back.
    async fn change_slot_elsewhere(&self, slot: u32, from: &str, to: &str) {
        change_slot(&self.cluster.local, &self.instance, slot, from, to).await;
    }
}

/// Returns the change of a slot that another node would make.
async fn slot_change(cluster: &Local, instance: &Key, slot: u32, from: &str, to: &str) -> SlotPatch {
    let uid = cluster.get(instance).await.unwrap().unwrap().uid;
    let changes = [(slot, (Some(Usage::read(from)), Usage::read(to)))].into();
    SlotPatch { uid, version: None, changes }
}

/// Changes a slot as another node would.
async fn change_slot(cluster: &Local, instance: &Key, slot: u32, from: &str, to: &str) {
    let change = slot_change(cluster, instance, slot, from, to).await;
    let patched = cluster.patch_slots(instance, &change).await.unwrap().unwrap();
    assert_eq!(patched.device_usage[&format!("{}-{slot}", instance.name)], to);
}

#[tokio::test] // rule 11, rule 41, rule 42
async fn release_is_retried_and_unanswered_claim_reconciled_later() {
    let fixture = OwnerFixture::new().await;
    fixture.allocate(0).await.unwrap();
    wait_for("the claim", || fixture.usage(0), |usage| usage == "node-a").await;
    fixture.cluster.requests_lost.store(true, Ordering::SeqCst);
    fixture.observe_nothing_in_use().await;
    fixture.wait_for_slots(&[false, true]).await;
    assert_eq!(fixture.usage(0), "node-a", "the API server does not know yet");
    assert_eq!(fixture.allocate(0).await, Err(Code::Unavailable), "it may take effect any time");
    fixture.cluster.requests_lost.store(false, Ordering::SeqCst);
    wait_for("the release", || fixture.usage(0), String::is_empty).await;
    fixture.wait_for_slots(&[true, true]).await;

    fixture.cluster.responses_lost.store(true, Ordering::SeqCst);
    let refused = fixture.kubelet.admit("pod", "container", &fixture.resource, 1).await;
    assert!(matches!(refused, Err(AdmissionError::Refused(..))), "{refused:?}");
    fixture.wait_for_slots(&[false, true]).await;
    assert_eq!(fixture.allocate(0).await, Err(Code::Unavailable), "again");

    fixture.cluster.responses_lost.store(false, Ordering::SeqCst);
    fixture.wait_for_slots(&[true, true]).await;
    wait_for("a free slot", || fixture.usage(0), String::is_empty).await;
    fixture.kubelet.admit("next", "container", &fixture.resource, 2).await.unwrap();
}

#[tokio::test] // rule 6, rule 10, rule 28
async fn held_slots_are_served_without_the_api_and_claims_recovered() {
    let mut fixture = OwnerFixture::new().await;
    let held = fixture.kubelet.admit("pod", "container", &fixture.resource, 1).await.unwrap();
    assert_eq!(held.ids, [format!("{}-0", fixture.instance.name)]);
    fixture.stop().await;
    fixture.cluster.requests_lost.store(true, Ordering::SeqCst);
    fixture.start(&[]).await;
    fixture.wait_for_slots(&[true, false]).await; // free ones wait for the API
    fixture.cluster.requests_lost.store(false, Ordering::SeqCst);
    fixture.wait_for_slots(&[true, true]).await;

    // The API has lost the claim.
    fixture.stop().await;
    fixture.change_slot_elsewhere(0, "node-a", "").await;
    fixture.start(&[]).await;
    wait_for("the claim", || fixture.usage(0), |usage| usage == "node-a").await;

    // The journal has.
    fixture.stop().await;
    fixture.change_slot_elsewhere(1, "", "node-b").await;
    fixture.start(&[0]).await;
    fixture.wait_for_slots(&[true, false]).await;
    assert_eq!((fixture.usage(0).as_str(), fixture.usage(1).as_str()), ("node-a", "node-b"));

    // A slot that another node has taken stays healthy for the container that uses it here.
    fixture.stop().await;
    fixture.change_slot_elsewhere(0, "node-a", "node-b").await;
    fixture.change_slot_elsewhere(1, "node-b", "").await;
    fixture.start(&[]).await;
    fixture.wait_for_slots(&[true, true]).await;
    fixture.allocate(1).await.unwrap();
    wait_for("the claim on the other slot", || fixture.usage(1), |usage| usage == "node-a").await;
    assert_eq!(fixture.usage(0), "node-b", "the other node keeps its slot");
}

#[tokio::test] // rule 28
async fn owner_that_panicked_starts_again_with_its_claims() {
    let fixture = OwnerFixture::new().await;
    fixture.kubelet.admit("pod", "container", &fixture.resource, 1).await.unwrap();
    fixture.cluster.list_panics.store(true, Ordering::SeqCst);
    fixture.change_slot_elsewhere(1, "", "node-b").await;
    fixture.kubelet.wait_for("its end", |view| !view.resource(&fixture.resource).connected).await;
    fixture.wait_for_slots(&[true, false]).await;
    assert_eq!(fixture.usage(0), "node-a", "the container keeps its slot");
    fixture.observe_nothing_in_use().await;
    wait_for("the release", || fixture.usage(0), String::is_empty).await;
    fixture.edit(&["one", "two"]).await;
    fixture.node.wait_for_instances("another camera", |list| list.len() == 2).await;
}

#[tokio::test] // rule 7, rule 46
async fn slow_claim_is_refused_and_undone_and_held_id_given() {
    let fixture = OwnerFixture::new().await;
    let cluster = Arc::clone(&fixture.cluster);
    let slow = cluster.slow_claims.write().await;
    let refused = fixture.kubelet.admit("pod", "container", &fixture.resource, 1).await;
    let expected_text = "the API server did not confirm the claim within 2s".to_owned();
    assert_eq!(refused, Err(AdmissionError::Refused(Code::Unavailable, expected_text)));
    let lists = || fixture.kubelet.view(|view| view.resource(&fixture.resource).lists.len());
    let before = lists();
    drop(slow);
    wait_for("the list again", lists, |now| *now > before).await;
    wait_for("no claim: nobody waited for it any more", || fixture.usage(0), String::is_empty).await;
    fixture.kubelet.wait_for("both slots", |view| view.resource(&fixture.resource).allocatable() == 2).await;
    fixture.allocate(0).await.unwrap();
    let slow = cluster.slow_claims.write().await;
    let (held, new) = tokio::join!(fixture.allocate(0), fixture.allocate(1));
    assert_eq!((held, new), (Ok(()), Err(Code::Unavailable)));
    drop(slow);
    wait_for("the claim that came too late to be given back", || fixture.usage(1), String::is_empty).await;
    assert_eq!(fixture.usage(0), "node-a");
}

#[tokio::test] // rule 6
async fn local_device_is_served_without_the_api() {
    let node = Node::new();
    node.make_echo_local();
    let mut fixture = OwnerFixture::on(node).await;
    fixture.cluster.requests_lost.store(true, Ordering::SeqCst);
    fixture.kubelet.admit("pod", "container", &fixture.resource, 1).await.unwrap();
    assert_eq!(fixture.usage(0), "", "it is published when somebody listens");
    fixture.stop().await;
    fixture.start(&[]).await;
    fixture.kubelet.wait_for("both slots again", |view| view.resource(&fixture.resource).allocatable() == 2).await;
    fixture.kubelet.readmit("pod").unwrap();
    let next = fixture.kubelet.admit("next", "container", &fixture.resource, 1).await.unwrap();
    assert_eq!(next.ids, [format!("{}-1", fixture.instance.name)], "the first slot is in use");
    fixture.cluster.requests_lost.store(false, Ordering::SeqCst);
    wait_for("both claims", || [fixture.usage(0), fixture.usage(1)], |usage| *usage == ["node-a", "node-a"]).await;
}

#[tokio::test]
async fn failed_swap_of_slots_is_undone() {
    let mut fixture = OwnerFixture::new().await;
    let configuration_resource = "akri.sh/cam";
    for count in [1, 2] {
        fixture
            .kubelet
            .wait_for("an id to give", |view| view.resource(configuration_resource).allocatable() == count)
            .await;
        fixture.kubelet.admit(&format!("pod-{count}"), "container", configuration_resource, 1).await.unwrap();
    }
    fixture.stop().await;
    fixture.node.write_echo("cam", 2, &["one", "two"]);
    let details =
        || fixture.cluster.watches().manifests.borrow().configurations[&Key::new("default", "cam")].details.clone();
    wait_for("the edit", details, |details| details.contains("two")).await;
    fixture.start(&[]).await;
    fixture
        .kubelet
        .wait_for("an id for the other camera", |view| view.resource(configuration_resource).allocatable() == 3)
        .await;
    let other = HashInput::new("two", true, "").identity();
    let other = fixture.cluster.local.find(&Key::new("default", "cam"), &other).await.unwrap().unwrap();
    for slot in [0, 1] {
        change_slot(&fixture.cluster.local, &other.key, slot, "", "node-b").await;
    }
    // Both ids are on one camera: for one container, one of them has to move to the other camera, where there is no room.
    let container_requests = vec![ContainerAllocateRequest { devices_ids: vec!["0".to_owned(), "1".to_owned()] }];
    let refused = fixture.kubelet.plugin(configuration_resource).allocate(AllocateRequest { container_requests }).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
    let first = HashInput::new("one", true, "").identity();
    let first = fixture.cluster.local.find(&Key::new("default", "cam"), &first).await;
    let usage: Vec<String> = first.unwrap().unwrap().device_usage.into_values().collect();
    assert_eq!(usage, ["C:0:node-a", "C:1:node-a"], "both pods have what they had");
}

#[tokio::test] // rule 4, rule 10
async fn slot_of_another_node_is_refused_until_released() {
    let fixture = OwnerFixture::new().await;
    let configuration_resource =
        |healthy: usize| move |view: &View| view.resource("akri.sh/cam").allocatable() == healthy;
    fixture.kubelet.wait_for("an id", configuration_resource(1)).await;
    fixture.change_slot_elsewhere(0, "", "node-b").await;
    let refused = fixture.kubelet.admit("early", "container", &fixture.resource, 2).await;
    let expected_text = "slot 0 is in use by node 'node-b'".to_owned();
    assert_eq!(refused, Err(AdmissionError::Refused(Code::Unavailable, expected_text)));
    let usage = [fixture.usage(0), fixture.usage(1)];
    assert_eq!(usage, ["node-b", ""], "nobody is robbed, nothing is kept");
    fixture.wait_for_slots(&[false, true]).await;
    fixture.change_slot_elsewhere(1, "", "C:0:node-b").await;
    fixture.wait_for_slots(&[false, false]).await;
    fixture.kubelet.wait_for("no id: the camera has no free slot", configuration_resource(0)).await;
    fixture.change_slot_elsewhere(0, "node-b", "").await;
    fixture.wait_for_slots(&[true, false]).await;
    fixture.kubelet.wait_for("an id again", configuration_resource(1)).await;
    let admitted = fixture.kubelet.admit("pod", "container", "akri.sh/cam", 1).await.unwrap();
    assert_eq!(admitted.ids, ["0"]);
    assert_eq!((fixture.usage(0).as_str(), fixture.usage(1).as_str()), ("C:0:node-a", "C:0:node-b"));
}

#[tokio::test] // rule 10
async fn slot_claimed_while_the_owner_starts_is_not_offered() {
    let mut fixture = OwnerFixture::new().await;
    fixture.stop().await;
    let change = slot_change(&fixture.cluster.local, &fixture.instance, 0, "", "node-b").await;
    // After the list that it waits for it takes over what another one shows.
    *fixture.cluster.changed_after_lists.lock().unwrap() = Some((2, fixture.instance.clone(), change));
    fixture.start(&[]).await;
    fixture.wait_for_slots(&[false, true]).await;
}

#[tokio::test] // rule 28
async fn unconfirmed_instance_goes_with_its_device_or_is_served() {
    let fixture = OwnerFixture::new().await;
    let make = async || {
        fixture.cluster.lose_creations();
        fixture.edit(&["one", "two"]).await;
        let both = fixture.node.wait_for_instances("the creation that gets through", |list| list.len() == 2).await;
        fixture.wait_for_failed_lookups().await;
        both
    };
    make().await;
    fixture.edit(&["one"]).await;
    let left = fixture.node.wait_for_instances("the first one alone", |list| list.len() == 1).await;
    assert_eq!(left[0].metadata.name.as_ref(), Some(&fixture.instance.name));

    let both = make().await;
    let uids = |list: &[akri_api::Instance]| -> Vec<_> { list.iter().map(|one| one.metadata.uid.clone()).collect() };
    fixture.cluster.creations_unconfirmed.store(false, Ordering::SeqCst);
    let resources: Vec<String> = both.iter().map(resource_of).collect();
    let is_free = |view: &View, resource: &String| view.resource(resource).allocatable() == 2;
    fixture.kubelet.wait_for("both", |view| resources.iter().all(|resource| is_free(view, resource))).await;
    assert_eq!(uids(&fixture.node.instances()), uids(&both), "neither was made anew");
    // The device has gone before its Instance is unconfirmed.
    {
        let fixture = OwnerFixture::new().await;
        let slow = fixture.cluster.slow_creation.write().await;
        fixture.edit(&["one", "two"]).await;
        fixture.node.wait_for_instances("the creation that gets through", |list| list.len() == 2).await;
        fixture.edit(&["one", "three"]).await;
        fixture.node.wait_for_instances("the result of a round without the second", |list| list.len() == 3).await;
        fixture.cluster.creations_unconfirmed.store(true, Ordering::SeqCst);
        drop(slow);
        let is_second = |i: &akri_api::Instance| i.spec.broker_properties["DEBUG_ECHO_DESCRIPTION"] == "two";
        fixture
            .node
            .wait_for_instances("all but the second", |list| list.len() == 2 && !list.iter().any(is_second))
            .await;
    }
}

#[tokio::test] // rule 17, rule 103
async fn other_nodes_keep_their_usage_and_change_no_properties() {
    let mut fixture = OwnerFixture::new().await;
    fixture.change_slot_elsewhere(1, "", "node-b").await;
    fixture.wait_for_slots(&[true, false]).await;
    for is_running in [true, false] {
        if !is_running {
            fixture.stop().await;
        }
        let uid = fixture.node.instances()[0].metadata.uid.clone().unwrap();
        fixture.cluster.local.delete(&fixture.instance, &uid, false).await.unwrap();
        if !is_running {
            fixture.start(&[]).await;
        }
        fixture.node.wait_for_instances("the Instance again", |list| list.len() == 1).await;
        assert_eq!(fixture.usage(1), "node-b", "from its first moment, running: {is_running}");
        fixture.wait_for_slots(&[true, false]).await;
    }
    fixture.change_slot_elsewhere(1, "node-b", "").await;
    fixture.wait_for_slots(&[true, true]).await;

    let identity = HashInput::new("one", true, "").identity();
    let mut instance = fixture.cluster.local.find(&Key::new("default", "cam"), &identity).await.unwrap().unwrap();
    instance.properties.insert("DEBUG_ECHO_DESCRIPTION".to_owned(), "as another node sees it".to_owned());
    fixture.cluster.local.publish(&instance, true).await.unwrap();
    let admitted = fixture.kubelet.admit("pod", "container", &fixture.resource, 1).await.unwrap();
    assert_eq!(admitted.response.envs["DEBUG_ECHO_DESCRIPTION"], "one", "as this node sees it");
}

#[tokio::test] // rule 102
async fn claim_without_any_witness_is_counted_and_reported() {
    let fixture = OwnerFixture::new().await;
    fixture.allocate(0).await.unwrap();
    wait_for("the claim", || fixture.usage(0), |usage| usage == "node-a").await;
    let unseen = |count: usize| {
        let line = format!(r#"akri_claims_unseen{{namespace="default",configuration="cam"}} {count}"#);
        let metrics = fixture.context.as_ref().unwrap().metrics.clone();
        async move { wait_for(&line, || metrics.set.encode(), |text| text.contains(&line)).await }
    };
    unseen(0).await;
    let container = ContainerName { namespace: "default".into(), pod: "pod".into(), container: "main".into() };
    let id = format!("{}-0", fixture.instance.name);
    let mut snapshot = nothing_in_use(Duration::ZERO);
    snapshot.listed = Arc::new([(fixture.resource.clone(), [(id.clone(), [container.clone()].into())].into())].into());
    fixture.snapshots.send_replace(Some(snapshot));
    unseen(1).await; // it was seen long ago

    // The next kubelet lists it without its slot, and no cgroups can be read.
    let mut snapshot = nothing_in_use(Duration::from_secs(50));
    snapshot.info.epoch = 1;
    snapshot.without_devices = Arc::new([container].into());
    fixture.snapshots.send_replace(Some(snapshot));
    let uncertain = fixture.node.wait_for_condition("cam", "Ready", "False", "SlotUncertain").await;
    assert!(uncertain.message.contains(&format!("{id} stays taken")), "{}", uncertain.message);
    assert!(uncertain.message.contains("'main' of pod default/pod"), "{}", uncertain.message);
    unseen(1).await;
    let mut gone = nothing_in_use(Duration::from_secs(700));
    gone.info.epoch = 1;
    for _ in 0..2 {
        gone.info.at += Duration::from_secs(1);
        fixture.snapshots.send_replace(Some(gone.clone()));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    wait_for("a free slot", || fixture.usage(0), String::is_empty).await;
    fixture.node.wait_for_condition("cam", "Ready", "True", "Discovered").await;
}
