//! One device that all nodes share, with a real API server: what its nodes' joins, claims and troubles cost. `SHARED=1 NODES=200` says
//! up to how many; a quarter, a third, a half and all of them are measured, and a curve through these says what 1,000 nodes cost.

use std::time::Duration;

use akri_api::Instance;
use akri_model::instance_labels::{MAX_NODE_LABELS, is_node_label};
use akri_tests::api_metrics::ApiMetrics;
use akri_tests::cluster_fixture::ClusterFixture;
use akri_tests::fleet::{Fleet, FleetNode};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::measure::Table;

/// The fleet that the numbers are computed for.
const FLEET: f64 = 1000.0;

/// Claims, each on another node.
const CLAIMS: usize = 4;

/// A time without a request after which a phase has ended: longer than a report or a batch of joins waits.
const QUIET: Duration = Duration::from_secs(8);

/// The time after which each agent has renewed its Lease, which says that it misses the device.
const RENEWED: Duration = Duration::from_secs(65);

/// Longest duration of a phase.
const LONGEST: Duration = Duration::from_secs(240);

/// The ConfigMap by which devices go offline.
const AVAILABILITY: &str = "availability";

/// The phases, in order.
const PHASES: [&str; 10] = [
    "everybody joins",
    "a claim",
    "a release",
    "the device goes offline for all",
    "the device is back",
    "a Configuration's trouble on all nodes",
    "that trouble ends",
    "the agents restart",
    "a node is removed",
    "the object's bytes",
];

/// Writes, writes of Leases, reads, events of watches, and their bytes.
type Cost = [f64; 5];

const WORDS: [&str; 5] = ["writes", "Leases", "reads", "events", "MB in events"];

struct Measured {
    fleet: Fleet,
    cluster: ClusterFixture,
    nodes: Vec<FleetNode>,
}

pub(crate) async fn measure(most: usize) -> Table {
    let sizes = [4, 3, 2, 1].map(|part| most.div_ceil(part));
    let mut table = Table::new(format!("one device shared by {sizes:?} nodes"));
    let mut costs: Vec<Vec<Cost>> = Vec::new();
    for size in sizes {
        let Some(cluster) = ClusterFixture::begin("shared").await else {
            table.value("skipped: there is no cluster", "", "");
            return table;
        };
        let fleet = Fleet::new(&cluster.story.kubeconfig()).await;
        let mut measured = Measured { fleet, cluster, nodes: Vec::new() };
        let of_size = measured.run(size).await;
        eprintln!("{size} nodes: {:?}", PHASES.iter().zip(&of_size).collect::<Vec<_>>());
        costs.push(of_size);
        measured.end(size).await;
    }
    for (number, phase) in PHASES.into_iter().enumerate() {
        let of_phase: Vec<Cost> = costs.iter().map(|of_size| of_size[number]).collect();
        let [last, fitted, residual] = fitted(&sizes.map(|size| size as f64), &of_phase);
        table.value(
            phase,
            readable(&last),
            format!("1,000 nodes: {}; residuals {}", readable(&fitted), percents(&residual)),
        );
    }
    table
}

impl Measured {
    async fn run(&mut self, size: usize) -> Vec<Cost> {
        let mut costs = Vec::new();
        self.show("ONLINE").await;
        self.configure().await;
        let mark = self.mark().await;
        self.start(size).await;
        costs.push(self.since(mark, 1).await);
        self.claims(&mut costs).await;
        for value in ["OFFLINE", "ONLINE"] {
            let mark = self.mark().await;
            self.show(value).await;
            sleep(RENEWED).await;
            costs.push(self.since(mark, 1).await);
        }
        let mark = self.mark().await;
        let maps: Api<ConfigMap> = self.cluster.story.api();
        maps.delete(AVAILABILITY, &DeleteParams::default()).await.unwrap();
        costs.push(self.since(mark, 1).await);
        let mark = self.mark().await;
        self.show("ONLINE").await;
        costs.push(self.since(mark, 1).await);
        self.restart(&mut costs).await;
        self.remove_one(&mut costs).await;
        let object = self.cluster.list().await.remove(0);
        costs.push([0.0, 0.0, 0.0, 0.0, serde_json::to_string(&object).unwrap().len() as f64 / 1e6]);
        costs
    }

    async fn configure(&self) {
        let reference = json!({"name": AVAILABILITY, "namespace": self.cluster.story.namespace(), "key": "state"});
        let property = json!({"name": AVAILABILITY, "valueFrom": {"configMapKeyRef": reference}});
        let handler = json!({
            "name": "debugEcho", "discoveryDetails": r#"{"descriptions": ["one"]}"#, "discoveryProperties": [property],
        });
        let spec = json!({"discoveryHandler": handler, "capacity": 5, "offlineGracePeriod": "1h"});
        self.cluster.configure(self.cluster.name(), spec).await;
    }

    /// Makes the handler find the device, or not find it, on all nodes.
    async fn show(&self, value: &str) {
        let metadata = json!({"name": AVAILABILITY, "namespace": self.cluster.story.namespace()});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"state": value}});
        self.cluster.story.apply_one(map).await.unwrap();
    }

    /// Starts the agents, and waits until the Instance names all of them.
    async fn start(&mut self, size: usize) {
        for number in 0..size {
            let name = node_name(number);
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
            self.cluster.story.apply_one(node).await.unwrap();
            self.nodes.push(self.fleet.node(&name, self.cluster.name()).await);
        }
        for node in &self.nodes {
            node.offers(1).await;
        }
        self.settled().await;
        while size > MAX_NODE_LABELS && self.cluster.list().await.iter().any(has_node_labels) {
            sleep(QUIET).await;
        }
        let joined = self.cluster.list().await.iter().map(|instance| instance.spec.nodes.len()).sum::<usize>();
        assert_eq!(joined, size, "nodes of the Instance");
    }

    async fn claims(&self, costs: &mut Vec<Cost>) {
        let resource = self.nodes[0].resources(self.cluster.name()).remove(0);
        let mark = self.mark().await;
        for slot in 0..CLAIMS {
            self.nodes[slot % self.nodes.len()].claim(&resource, u32::try_from(slot).unwrap()).await;
        }
        costs.push(self.since(mark, CLAIMS).await);
        let mark = self.mark().await;
        for slot in 0..CLAIMS {
            self.nodes[slot % self.nodes.len()].release_all().await;
        }
        costs.push(self.since(mark, CLAIMS).await);
    }

    async fn restart(&mut self, costs: &mut Vec<Cost>) {
        let mark = self.mark().await;
        for node in &mut self.nodes {
            node.stop().await;
            self.fleet.start(node).await;
        }
        for node in &self.nodes {
            node.offers(1).await;
        }
        costs.push(self.since(mark, 1).await);
    }

    /// Removes a node as an administrator does that knows that nothing runs there.
    async fn remove_one(&mut self, costs: &mut Vec<Cost>) {
        let mark = self.mark().await;
        let mut last = self.nodes.pop().unwrap();
        last.kill().await;
        let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": last.name}, "spec": {"taints": [taint]},
        });
        self.cluster.story.apply_one(node).await.unwrap();
        costs.push(self.since(mark, 1).await);
    }

    async fn end(mut self, size: usize) {
        for node in &mut self.nodes {
            node.stop().await;
        }
        self.cluster.configurations().delete(self.cluster.name(), &DeleteParams::default()).await.unwrap();
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        self.cluster.instances().delete_collection(&delete, &all).await.unwrap();
        let nodes = Api::<Node>::all(self.cluster.story.client());
        for number in 0..size {
            let _ = nodes.delete(&node_name(number), &DeleteParams::default()).await; // what stays is in the way of nobody
        }
    }

    async fn mark(&self) -> (ApiMetrics, usize) {
        (ApiMetrics::read(&self.cluster.story.client()).await, self.fleet.recorder.count())
    }

    /// Waits until nothing happens any more, and returns what has, divided by `parts`.
    async fn since(&self, (before, mark): (ApiMetrics, usize), parts: usize) -> Cost {
        self.settled().await;
        let now = ApiMetrics::read(&self.cluster.story.client()).await;
        let leases = self.fleet.recorder.since(mark);
        let leases = leases.iter().filter(|request| request.writes() && request.resource == "leases").count();
        let of = |value: fn(&ApiMetrics) -> f64| value(&now) - value(&before);
        let cost = [
            of(|at| at.writes(&[])),
            leases as f64,
            of(ApiMetrics::reads),
            of(ApiMetrics::events),
            of(ApiMetrics::bytes) / 1e6,
        ];
        cost.map(|value| value / parts as f64)
    }

    /// Waits until no agent has sent a request but renewals, and no watch an event, for a while.
    async fn settled(&self) {
        let (start, mut last, mut since) = (Instant::now(), None, Instant::now());
        while since.elapsed() < QUIET && start.elapsed() < LONGEST {
            sleep(Duration::from_secs(1)).await;
            let now = ApiMetrics::read(&self.cluster.story.client()).await.events();
            if last.replace(now) != Some(now) {
                since = Instant::now();
            }
        }
    }
}

fn has_node_labels(instance: &Instance) -> bool {
    instance.labels().keys().any(|label| is_node_label(label))
}

/// A name of 20 characters.
fn node_name(number: usize) -> String {
    format!("worker-in-rack-{number:05}")
}

/// Returns the last measurement, the value for the fleet and the largest residual, as a part of the measurement. Counts are fitted by
/// `a + b n + c n^2`; bytes likewise, or as events by the size of an event, which grows with the nodes it names, whichever fits better.
fn fitted(sizes: &[f64], costs: &[Cost]) -> [Cost; 3] {
    let last = costs.last().copied().unwrap_or_default();
    let (mut fitted, mut residual) = (Cost::default(), Cost::default());
    for index in 0..5 {
        let values: Vec<f64> = costs.iter().map(|cost| cost[index]).collect();
        (fitted[index], residual[index]) = fit::<3>(sizes, &values);
        if fitted[index] < last[index] {
            (fitted[index], residual[index]) = fit::<2>(sizes, &values); // noise bends the curve down
        }
    }
    let size_of_event = |cost: &Cost| if cost[3] > 0.0 { cost[4] / cost[3] } else { cost[4] };
    let values: Vec<f64> = costs.iter().map(size_of_event).collect();
    let (event, of_event) = fit::<2>(sizes, &values);
    if of_event < residual[4] {
        fitted[4] = if last[3] > 0.0 { event * fitted[3] } else { event };
        residual[4] = of_event;
    }
    [last, fitted, residual]
}

/// Fits a polynomial with `N` coefficients by least squares; returns its value for the fleet and the largest relative residual.
fn fit<const N: usize>(sizes: &[f64], values: &[f64]) -> (f64, f64) {
    // The normal equations, in units of the fleet, solved by Gaussian elimination.
    let powers =
        |size: f64| std::array::from_fn::<f64, N, _>(|power| (size / FLEET).powi(i32::try_from(power).unwrap()));
    let mut rows = [[0.0; N]; N];
    let mut right = [0.0; N];
    for (size, value) in sizes.iter().zip(values) {
        let powers = powers(*size);
        for row in 0..N {
            (0..N).for_each(|column| rows[row][column] += powers[row] * powers[column]);
            right[row] += powers[row] * value;
        }
    }
    for pivot in 0..N {
        for row in (0..N).filter(|row| *row != pivot) {
            let factor = rows[row][pivot] / rows[pivot][pivot];
            (0..N).for_each(|column| rows[row][column] -= factor * rows[pivot][column]);
            right[row] -= factor * right[pivot];
        }
    }
    let coefficients: [f64; N] = std::array::from_fn(|row| right[row] / rows[row][row]);
    let at = |size| powers(size).iter().zip(coefficients).map(|(power, of)| power * of).sum::<f64>();
    let residual = |(size, value): (&f64, &f64)| if *value == 0.0 { 0.0 } else { ((at(*size) - value) / value).abs() };
    (at(FLEET).max(0.0), sizes.iter().zip(values).map(residual).fold(0.0, f64::max))
}

fn readable(cost: &Cost) -> String {
    let words = WORDS.iter().zip(cost).map(|(word, value)| match *value {
        value if value < 10.0 => format!("{value:.2} {word}"),
        value => format!("{value:.0} {word}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn percents(residual: &Cost) -> String {
    residual.map(|part| format!("{:.0} %", part * 100.0)).join(", ")
}
