//! Shared devices while the API does not answer, or has other ideas.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use akri_agent::broker_info::BrokerInfo;
use akri_agent::journal::Journal;
use akri_agent::metrics::Metrics;
use akri_agent::owner::{Context, Owner};
use akri_agent::pod_resources_poller::{ClaimTracker, UsageSnapshot};
use akri_agent::publisher::Publisher;
use akri_agent::resource_names::ResourceNames;
use akri_cluster::local::Local;
use akri_cluster::{Cluster, Copies};
use akri_discovery::images::{ImageSettings, Images};
use akri_discovery::properties::Properties;
use akri_discovery::registry::{Handlers, Registry};
use akri_discovery::round_metrics::RoundMetrics;
use akri_discovery::sources::Providers;
use akri_grpc::deviceplugin::{AllocateRequest, ContainerAllocateRequest};
use akri_kubelet::Plugins;
use akri_model::claim::Entry;
use akri_model::names::{HashInput, Key, Usage};
use akri_model::reclaim::SnapshotInfo;
use akri_model::slots::SlotPatch;
use akri_node::uevent::Uevents;
use akri_remote::Remote;
use akri_sandbox::{Host, HostConfig};
use tokio::sync::{Semaphore, watch};
use tonic::Code;

use crate::support::kubelet::{AdmissionError, Kubelet, View};
use crate::support::line::Line;
use crate::support::node::{Node, compiled_for_agents, resource_of, wait_for};

/// A node with one camera of two slots, shared if nothing else is said, and the API behind a line.
struct Site {
    node: Node,
    kubelet: Kubelet,
    line: Arc<Line>,
    owner: Option<Owner>,
    context: Option<Arc<Context>>,
    /// Rounds go on for as long as it is there.
    handlers: Option<watch::Sender<Arc<Handlers>>>,
    snapshots: watch::Sender<UsageSnapshot>,
    resource: String,
    instance: Key,
}

impl Site {
    async fn new() -> Self {
        Self::on(Node::new()).await
    }

    async fn on(node: Node) -> Self {
        let kubelet = Kubelet::start(&node.path("kubelet"));
        node.write_echo("cam", 2, &["one"]);
        let local =
            Local::open(vec![node.path("components"), node.path("manifests")], &node.path("state")).await.unwrap();
        let line = Line::to(local);
        let mut site = Self {
            node,
            kubelet,
            line: Arc::new(line),
            owner: None,
            context: None,
            handlers: None,
            snapshots: watch::Sender::default(),
            resource: String::new(),
            instance: Key::new("default", ""),
        };
        site.start(&[]).await;
        let instances = site.node.wait_for_instances("the camera", |list| list.len() == 1).await;
        site.instance.name = instances[0].metadata.name.clone().unwrap();
        site.resource = format!("akri.sh/{}", site.instance.name);
        site.wait_for_slots(&[true, true]).await;
        site
    }

    /// Starts an owner with what the journal remembers, but for claims on the `forgotten` slots.
    async fn start(&mut self, forgotten: &[u32]) {
        let (journal, mut entries) = Journal::open(&self.node.path("state")).unwrap();
        entries.values_mut().for_each(|entry: &mut Entry| entry.claims.retain(|slot, _| !forgotten.contains(slot)));
        let cluster = Arc::clone(&self.line) as Arc<dyn Cluster>;
        let snapshots = self.snapshots.subscribe();
        let context = Arc::new(Context {
            node: "node-a".into(),
            publisher: Publisher::start(Arc::clone(&cluster)),
            cluster,
            journal,
            plugins: Arc::new(Plugins::start(&self.node.path("kubelet"), Default::default())),
            claims: Arc::new(ClaimTracker::new(100)),
            snapshots,
            resource_names: ResourceNames::default(),
            checkpointed: BTreeMap::new(),
            reservations: akri_agent::owner::reservations::Reservations::default(),
            api_writes: Semaphore::new(8),
            cdi: None,
            broker_info: BrokerInfo::open(&self.node.path("state"), &self.node.path("state")).unwrap(),
            metrics: Metrics::default(),
            readiness: Default::default(),
            naming: Semaphore::new(8),
        });
        let config = HostConfig {
            cache_dir: Some(compiled_for_agents()),
            compiler: None,
            precompiled: None,
            sysfs: "/sys".into(),
            udev_data: self.node.path("no-udev"),
        };
        let manifests = self.line.manifests();
        let registry = Registry::start(
            Host::new(config).unwrap(),
            vec![self.node.path("components")],
            Images::new(ImageSettings::default(), self.line.namespace(), self.line.values()),
            manifests.clone(),
            Uevents::default(),
        );
        let configuration = manifests.borrow().configurations[&Key::new("default", "cam")].clone();
        let mut handlers = registry.handlers();
        handlers.wait_for(|handlers| handlers.settled).await.unwrap();
        let (sender, handlers) = watch::channel(handlers.borrow().clone());
        self.handlers = Some(sender);
        let remote = akri_remote::Settings {
            directory: self.node.path("handlers"),
            users: Vec::new(),
            networks: Vec::new(),
            trust_paths: false,
            offline_timeout: Duration::from_secs(300),
        };
        let (remote, _) = Remote::start(remote, &self.node.path("state"), Arc::new(|_: &str| None));
        let properties = Properties::new(self.line.values());
        let providers = Providers { handlers, properties, remote, metrics: RoundMetrics::default() };
        self.owner =
            Some(Owner::start(Arc::clone(&context), configuration, entries.into_values().collect(), providers));
        self.context = Some(context);
    }

    /// Edits the Configuration to these devices, while the owner runs.
    async fn edit(&self, devices: &[&str]) {
        let key = Key::new("default", "cam");
        let before = self.line.manifests().borrow().configurations[&key].clone();
        self.node.write_echo("cam", 2, devices);
        let mut manifests = self.line.manifests();
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
            let info = SnapshotInfo { generation: u64::MAX, epoch: 0, at, settled: true };
            let checkpoint = Some(Arc::default());
            self.snapshots.send_replace(UsageSnapshot { info: Some(info), checkpoint, ..UsageSnapshot::default() });
            tokio::time::sleep(Duration::from_millis(200)).await; // a later snapshot replaces one that was not taken
        }
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
    async fn meddle(&self, slot: u32, from: &str, to: &str) {
        change_slot(&self.line.to, &self.instance, slot, from, to).await;
    }
}

/// Changes a slot as another node would.
async fn change_slot(cluster: &Local, instance: &Key, slot: u32, from: &str, to: &str) {
    let uid = cluster.get(instance).await.unwrap().unwrap().uid;
    let changes = [(slot, (Some(Usage::read(from)), Usage::read(to)))].into();
    let patched = cluster.patch_slots(instance, &SlotPatch { uid, version: None, changes }).await.unwrap().unwrap();
    assert_eq!(patched.device_usage[&format!("{}-{slot}", instance.name)], to);
}

#[tokio::test] // rule 41
async fn release_is_retried_until_it_gets_through() {
    let site = Site::new().await;
    site.allocate(0).await.unwrap();
    wait_for("the claim", || site.usage(0), |usage| usage == "node-a").await;
    site.line.cut.store(true, Ordering::SeqCst);
    site.observe_nothing_in_use().await;
    site.wait_for_slots(&[false, true]).await;
    assert_eq!(site.usage(0), "node-a", "the API server does not know yet");
    assert_eq!(site.allocate(0).await, Err(Code::Unavailable), "it may take effect any time");
    site.line.cut.store(false, Ordering::SeqCst);
    wait_for("the release", || site.usage(0), String::is_empty).await;
    site.wait_for_slots(&[true, true]).await;
}

#[tokio::test] // rule 42
async fn unconfirmed_slot_is_refused_again() {
    let site = Site::new().await;
    site.line.deaf.store(true, Ordering::SeqCst);
    for attempt in ["first", "second"] {
        assert_eq!(site.allocate(0).await, Err(Code::Unavailable), "{attempt}");
    }
    site.line.deaf.store(false, Ordering::SeqCst);
    wait_for("a free slot", || site.usage(0), String::is_empty).await;
    site.wait_for_slots(&[true, true]).await;
    site.allocate(0).await.unwrap();
}

#[tokio::test] // rule 46
async fn held_id_is_allocated_while_the_api_server_hangs() {
    let site = Site::new().await;
    site.allocate(0).await.unwrap();
    let slow = site.line.slow.write().await;
    let (held, new) = tokio::join!(site.allocate(0), site.allocate(1));
    assert_eq!((held, new), (Ok(()), Err(Code::Unavailable)));
    drop(slow);
    wait_for("the claim that came too late to be given back", || site.usage(1), String::is_empty).await;
    assert_eq!(site.usage(0), "node-a");
}

#[tokio::test] // rule 11
async fn unanswered_claim_is_refused_and_reconciled_later() {
    let site = Site::new().await;
    site.line.deaf.store(true, Ordering::SeqCst);
    let refused = site.kubelet.admit("pod", "container", &site.resource, 1).await;
    assert!(matches!(refused, Err(AdmissionError::Refused(..))), "{refused:?}");
    site.wait_for_slots(&[false, true]).await;

    site.line.deaf.store(false, Ordering::SeqCst);
    site.wait_for_slots(&[true, true]).await;
    wait_for("a free slot", || site.usage(0), String::is_empty).await;
    site.kubelet.admit("next", "container", &site.resource, 2).await.unwrap();
}

#[tokio::test] // rule 6
async fn held_slots_are_served_and_free_ones_wait_for_the_api() {
    let mut site = Site::new().await;
    let held = site.kubelet.admit("pod", "container", &site.resource, 1).await.unwrap();
    assert_eq!(held.ids, [format!("{}-0", site.instance.name)]);
    site.stop().await;
    site.line.cut.store(true, Ordering::SeqCst);
    site.start(&[]).await;
    site.wait_for_slots(&[true, false]).await;
    site.line.cut.store(false, Ordering::SeqCst);
    site.wait_for_slots(&[true, true]).await;
}

#[tokio::test] // rule 28
async fn claims_lost_by_the_api_are_claimed_again() {
    let mut site = Site::new().await;
    site.kubelet.admit("pod", "container", &site.resource, 1).await.unwrap();
    site.stop().await;
    site.meddle(0, "node-a", "").await;
    site.start(&[]).await;
    wait_for("the claim", || site.usage(0), |usage| usage == "node-a").await;
}

#[tokio::test] // rule 10, rule 28
async fn slot_taken_by_another_node_stays_healthy_for_its_user() {
    let mut site = Site::new().await;
    site.kubelet.admit("pod", "container", &site.resource, 1).await.unwrap();
    site.stop().await;
    site.meddle(0, "node-a", "node-b").await;
    site.start(&[]).await;
    site.wait_for_slots(&[true, true]).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(site.usage(0), "node-b", "nobody is robbed");
}

#[tokio::test] // rule 28
async fn own_claims_are_recovered_without_the_journal() {
    let mut site = Site::new().await;
    site.kubelet.admit("pod", "container", &site.resource, 1).await.unwrap();
    site.stop().await;
    site.meddle(1, "", "node-b").await;
    site.start(&[0]).await;
    site.wait_for_slots(&[true, false]).await;
    assert_eq!((site.usage(0).as_str(), site.usage(1).as_str()), ("node-a", "node-b"));
}

#[tokio::test] // rule 10
async fn slot_taken_meanwhile_by_another_node_is_refused() {
    let site = Site::new().await;
    site.meddle(0, "", "node-b").await;
    let refused = site.kubelet.admit("pod", "container", &site.resource, 2).await;
    let expected_text = "slot 0 is in use by 'node-b'".to_owned();
    assert_eq!(refused, Err(AdmissionError::Refused(Code::Unavailable, expected_text)));
    assert_eq!((site.usage(0).as_str(), site.usage(1).as_str()), ("node-b", ""), "nobody is robbed, nothing is kept");
}

#[tokio::test] // rule 7
async fn slow_allocate_is_refused_and_undone() {
    let site = Site::new().await;
    let line = Arc::clone(&site.line);
    let slow = line.slow.write().await;
    let refused = site.kubelet.admit("pod", "container", &site.resource, 1).await;
    let expected_text = "the API server did not confirm the claim within 2s".to_owned();
    assert_eq!(refused, Err(AdmissionError::Refused(Code::Unavailable, expected_text)));
    let lists = || site.kubelet.view(|view| view.resource(&site.resource).lists.len());
    let before = lists();
    drop(slow);
    wait_for("the list again", lists, |now| *now > before).await;
    wait_for("no claim: nobody waited for it any more", || site.usage(0), String::is_empty).await;
    site.kubelet.wait_for("both slots", |view| view.resource(&site.resource).allocatable() == 2).await;
    site.kubelet.admit("next", "container", &site.resource, 2).await.unwrap();
}

#[tokio::test] // rule 6
async fn local_device_is_served_without_the_api() {
    let node = Node::new();
    node.make_echo_local();
    let mut site = Site::on(node).await;
    site.line.cut.store(true, Ordering::SeqCst);
    site.kubelet.admit("pod", "container", &site.resource, 1).await.unwrap();
    assert_eq!(site.usage(0), "", "it is published when somebody listens");
    site.stop().await;
    site.start(&[]).await;
    site.kubelet.wait_for("both slots again", |view| view.resource(&site.resource).allocatable() == 2).await;
    site.kubelet.readmit("pod").unwrap();
    let next = site.kubelet.admit("next", "container", &site.resource, 1).await.unwrap();
    assert_eq!(next.ids, [format!("{}-1", site.instance.name)], "the first slot is in use");
    site.line.cut.store(false, Ordering::SeqCst);
    wait_for("both claims", || [site.usage(0), site.usage(1)], |usage| *usage == ["node-a", "node-a"]).await;
}

#[tokio::test] // rule 17
async fn container_gets_properties_seen_by_this_node() {
    let site = Site::new().await;
    let identity = HashInput::new("one", true, "").identity();
    let mut instance = site.line.to.find(&Key::new("default", "cam"), &identity).await.unwrap().unwrap();
    instance.properties.insert("DEBUG_ECHO_DESCRIPTION".to_owned(), "as another node sees it".to_owned());
    site.line.to.publish(&instance, Copies::Now).await.unwrap();
    let admitted = site.kubelet.admit("pod", "container", &site.resource, 1).await.unwrap();
    assert_eq!(admitted.response.envs["DEBUG_ECHO_DESCRIPTION"], "one");
}

#[tokio::test] // rule 27
async fn instance_deleted_by_a_user_is_recreated_with_claims() {
    let node = Node::new();
    node.make_echo_local();
    let site = Site::on(node).await;
    site.kubelet.admit("first", "container", &site.resource, 1).await.unwrap();
    wait_for("the claim", || site.usage(0), |usage| usage == "node-a").await;
    let uid = site.node.instances()[0].metadata.uid.clone().unwrap();
    site.line.to.delete(&site.instance, &uid, true).await.unwrap();
    assert!(site.node.instances().is_empty());
    site.kubelet.admit("second", "container", &site.resource, 1).await.unwrap();
    site.node.wait_for_instances("the Instance again", |list| list.len() == 1).await;
    wait_for("both claims", || [site.usage(0), site.usage(1)], |usage| *usage == ["node-a", "node-a"]).await;
}

#[tokio::test]
async fn failed_swap_of_slots_is_undone() {
    let mut site = Site::new().await;
    let whole = "akri.sh/cam";
    for count in [1, 2] {
        site.kubelet.wait_for("an id to give", |view| view.resource(whole).allocatable() == count).await;
        site.kubelet.admit(&format!("pod-{count}"), "container", whole, 1).await.unwrap();
    }
    site.stop().await;
    site.node.write_echo("cam", 2, &["one", "two"]);
    let details = || site.line.manifests().borrow().configurations[&Key::new("default", "cam")].details.clone();
    wait_for("the edit", details, |details| details.contains("two")).await;
    site.start(&[]).await;
    site.kubelet.wait_for("an id for the other camera", |view| view.resource(whole).allocatable() == 3).await;
    let other = HashInput::new("two", true, "").identity();
    let other = site.line.to.find(&Key::new("default", "cam"), &other).await.unwrap().unwrap();
    for slot in [0, 1] {
        change_slot(&site.line.to, &other.key, slot, "", "node-b").await;
    }
    // Both ids are on one camera: for one container, one of them has to move to the other camera, where there is no room.
    let container_requests = vec![ContainerAllocateRequest { devices_ids: vec!["0".to_owned(), "1".to_owned()] }];
    let refused = site.kubelet.plugin(whole).allocate(AllocateRequest { container_requests }).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
    let first = HashInput::new("one", true, "").identity();
    let first = site.line.to.find(&Key::new("default", "cam"), &first).await;
    let usage: Vec<String> = first.unwrap().unwrap().device_usage.into_values().collect();
    assert_eq!(usage, ["C:0:node-a", "C:1:node-a"], "both pods have what they had");
}

#[tokio::test] // rule 4
async fn slot_claimed_by_another_node_is_unhealthy_until_released() {
    let site = Site::new().await;
    let whole = |healthy: usize| move |view: &View| view.resource("akri.sh/cam").allocatable() == healthy;
    site.kubelet.wait_for("an id", whole(1)).await;
    site.meddle(0, "", "node-b").await;
    site.wait_for_slots(&[false, true]).await;
    site.meddle(1, "", "C:0:node-b").await;
    site.wait_for_slots(&[false, false]).await;
    site.kubelet.wait_for("no id: the camera has no free slot", whole(0)).await;
    site.meddle(0, "node-b", "").await;
    site.wait_for_slots(&[true, false]).await;
    site.kubelet.wait_for("an id again", whole(1)).await;
    let admitted = site.kubelet.admit("pod", "container", "akri.sh/cam", 1).await.unwrap();
    assert_eq!(admitted.ids, ["0"]);
    assert_eq!((site.usage(0).as_str(), site.usage(1).as_str()), ("C:0:node-a", "C:0:node-b"));
}

#[tokio::test] // rule 28
async fn unconfirmed_instance_goes_with_its_device() {
    let site = Site::new().await;
    site.line.unconfirmed.store(true, Ordering::SeqCst);
    site.edit(&["one", "two"]).await;
    site.node.wait_for_instances("the creation that gets through", |list| list.len() == 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await; // its failure is known, and retried
    site.edit(&["one"]).await;
    let left = site.node.wait_for_instances("the first one alone", |list| list.len() == 1).await;
    assert_eq!(left[0].metadata.name.as_ref(), Some(&site.instance.name));
}

#[tokio::test] // rule 28
async fn instance_unconfirmed_after_its_device_has_gone_goes_too() {
    let site = Site::new().await;
    let slow = site.line.slow_creation.write().await;
    site.edit(&["one", "two"]).await;
    site.node.wait_for_instances("the creation that gets through", |list| list.len() == 2).await;
    site.edit(&["one"]).await;
    tokio::time::sleep(Duration::from_secs(1)).await; // rounds find one
    site.line.unconfirmed.store(true, Ordering::SeqCst);
    drop(slow);
    site.node.wait_for_instances("the first one alone", |list| list.len() == 1).await;
}

#[tokio::test] // rule 28
async fn unconfirmed_instance_is_served_once_it_is_found() {
    let site = Site::new().await;
    site.line.unconfirmed.store(true, Ordering::SeqCst);
    site.edit(&["one", "two"]).await;
    let both = site.node.wait_for_instances("the creation that gets through", |list| list.len() == 2).await;
    let uids = |list: &[akri_api::Instance]| -> Vec<_> { list.iter().map(|one| one.metadata.uid.clone()).collect() };
    tokio::time::sleep(Duration::from_millis(300)).await;
    site.line.unconfirmed.store(false, Ordering::SeqCst);
    let resources: Vec<String> = both.iter().map(resource_of).collect();
    let is_free = |view: &View, resource: &String| view.resource(resource).allocatable() == 2;
    site.kubelet.wait_for("both", |view| resources.iter().all(|resource| is_free(view, resource))).await;
    assert_eq!(uids(&site.node.instances()), uids(&both), "neither was made anew");
}
