//! Publishing in the background: an object that cannot be published does not delay the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use akri_agent::publisher::Publisher;
use akri_cluster::local::Local;
use akri_cluster::{Cluster, ClusterError, CreateOutcome};
use akri_model::instance::{Instance, Online, Version};
use akri_model::names::Key;
use akri_model::slots::free_usage;

use crate::support::faulty_cluster::FaultyCluster;
use crate::support::node::{Node, wait_for};

const COUNT: usize = 20;

struct PublisherFixture {
    node: Node,
    cluster: Arc<FaultyCluster>,
    publisher: Publisher,
    instances: Vec<Instance>,
}

impl PublisherFixture {
    /// So many published Instances.
    async fn new() -> Self {
        let node = Node::new();
        let local = Local::open(vec![node.path("manifests")], &node.path("state")).await.unwrap();
        let cluster = Arc::new(FaultyCluster::to(local));
        let mut instances = Vec::new();
        for number in 10..10 + COUNT {
            match cluster.create(&instance(&format!("cam-{number}"))).await.unwrap() {
                CreateOutcome::New(instance) => instances.push(instance),
                taken => panic!("{taken:?}"),
            }
        }
        let publisher = Publisher::start(Arc::clone(&cluster) as Arc<dyn Cluster>);
        Self { node, cluster, publisher, instances }
    }

    /// All of them get another colour.
    fn paint(&self, colour: &str) {
        for instance in &self.instances {
            let properties = BTreeMap::from([("COLOUR".to_owned(), colour.to_owned())]);
            self.publisher.publish(Instance { properties, ..instance.clone() }, false);
        }
    }

    fn painted(&self, colour: &str) -> usize {
        let has = |i: &akri_api::Instance| i.spec.broker_properties.get("COLOUR").is_some_and(|has| has == colour);
        self.node.instances().into_iter().filter(has).count()
    }

    async fn wait_for(&self, colour: &str, count: usize) {
        wait_for(colour, || self.painted(colour), |painted| *painted == count).await;
    }

    fn lose(&self, error: Option<ClusterError>) {
        *self.cluster.publish_error.lock().unwrap() = error.map(|error| (self.instances[0].key.clone(), error));
    }
}

fn instance(name: &str) -> Instance {
    Instance {
        key: Key::new("default", name),
        uid: String::new(),
        version: Version::default(),
        identity: None,
        configuration: "cam".into(),
        configuration_uid: "c".into(),
        cdi_name: format!("akri.sh/cam={name}"),
        capacity: 1,
        properties: BTreeMap::new(),
        shared: false,
        nodes: vec!["node-a".into()],
        device_usage: free_usage(name, 1),
        online: Online::True,
    }
}

#[tokio::test]
async fn refused_or_unanswered_write_delays_no_other() {
    for error in [ClusterError::Refused("a webhook says no".into()), ClusterError::Unavailable("no answer".into())] {
        let fixture = PublisherFixture::new().await;
        fixture.lose(Some(error));
        fixture.paint("red");
        fixture.wait_for("red", COUNT - 1).await;
        fixture.paint("green");
        fixture.wait_for("green", COUNT - 1).await;
        fixture.lose(None);
        fixture.wait_for("green", COUNT).await;
    }
    // During an outage writes are tried one at a time.
    {
        let fixture = PublisherFixture::new().await;
        fixture.cluster.requests_lost.store(true, Ordering::SeqCst);
        fixture.paint("red");
        fixture.publisher.flush().await;
        assert!(
            fixture.cluster.publish_calls.load(Ordering::SeqCst) < COUNT / 2,
            "each try may take until its time is up"
        );
        fixture.cluster.requests_lost.store(false, Ordering::SeqCst);
        fixture.wait_for("red", COUNT).await;
    }
}

/// Returns the processor time of a process, in ticks.
fn processor_time(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = fields.split(' ').collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum() // utime and stime
}

/// Returns the processor time that an agent takes to publish so many devices.
async fn cost_of(devices: usize) -> u64 {
    let node = Node::new();
    node.add_guest("");
    node.write_handler("guest", "guest.wasm", "  interval: 60s\n");
    node.write_configuration("many", "guest", &format!("      devices:{devices}\n"), "");
    let agent = node.start();
    let directory = node.path("state/instances/default");
    let published = || std::fs::read_dir(&directory).map_or(0, Iterator::count);
    wait_for("all devices", published, |count| *count >= devices).await;
    processor_time(agent.pid())
}

/// Four times as many devices take about four times as long: if every device looked at all others, it would be sixteen.
#[tokio::test]
async fn publishing_cost_grows_with_the_devices() {
    let (few, many) = (cost_of(900).await, cost_of(3600).await);
    assert!(many < 8 * few, "900 devices took {few} ticks, 3,600 {many}");
}
