//! Many agents and the controller with a real API server: what starts, claims, restarts, edits and the death of a node cost, and
//! what that comes to for 1,000 nodes and 10,000 Instances. `NODES=200` says how many agents; each has the real owners, publisher,
//! journal and cluster side of its own.

use std::env;
use std::time::{Duration, Instant};

use akri_tests::api_metrics::ApiMetrics;
use akri_tests::cluster_fixture::ClusterFixture;
use akri_tests::fleet::{Fleet, FleetNode};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams};
use serde_json::json;
use tokio::time::sleep;

use crate::measure::{Table, readable};

/// Agents if `NODES` does not say.
const NODES: usize = 30;

/// Nodes that share devices.
const GROUP: usize = 10;

/// Devices that the nodes of a group share, and those that each node has for itself: 10 Instances a node, as in the fleet below.
const SHARED: usize = 10;
const LOCAL: usize = 9;

/// The fleet that the numbers are computed for.
const FLEET: f64 = 1000.0;

/// The time in which nothing happens.
const REST: Duration = Duration::from_secs(60);

/// Time for the last writes: copies are published after 5 s, problems within 3 s.
const AFTERWARDS: Duration = Duration::from_secs(8);

struct Measured {
    fleet: Fleet,
    cluster: ClusterFixture,
    nodes: Vec<FleetNode>,
    groups: usize,
}

/// Returns how many agents there are to be.
pub(crate) fn nodes() -> usize {
    env::var("NODES").ok().and_then(|text| text.parse().ok()).unwrap_or(NODES)
}

pub(crate) async fn measure() -> Table {
    let count = nodes().next_multiple_of(GROUP);
    let title = format!("{count} agents, {} Instances, Kubernetes 1.20", count * (LOCAL + SHARED / GROUP));
    let mut table = Table::new(title);
    let Some(cluster) = ClusterFixture::begin("fleet").await else {
        table.value("skipped: there is no cluster", "", "");
        return table;
    };
    let fleet = Fleet::new(&cluster.story.kubeconfig()).await;
    let mut measured = Measured { fleet, cluster, nodes: Vec::new(), groups: count / GROUP };
    measured.configure().await;
    measured.run(&mut table).await;
    measured.end().await;
    table
}

impl Measured {
    fn name(&self, group: usize, scope: &str) -> String {
        format!("{}-g{group}x-{scope}", self.cluster.name())
    }

    async fn configure(&self) {
        for group in 0..self.groups {
            for (scope, devices) in [("shared", SHARED), ("local", LOCAL)] {
                let names: Vec<String> = (0..devices).map(|number| format!("{scope}-{number}")).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                self.cluster.echo(&self.name(group, scope), 2, &names, json!({})).await;
            }
        }
    }

    async fn run(&mut self, table: &mut Table) {
        self.start(table).await;
        self.rest(table).await;
        for (scope, what) in [("local", "a claim on a local device"), ("shared", "a claim on a shared device")] {
            self.claim(table, scope, what).await;
        }
        self.release(table).await;
        self.restart(table).await;
        self.edit(table).await;
        self.refuse(table).await;
        self.lose_a_node(table).await;
    }

    async fn start(&mut self, table: &mut Table) {
        let nodes = self.groups * GROUP;
        let (phase, began) = (Phase::begin(self).await, Instant::now());
        for number in 0..nodes {
            let name = format!("{}-{number}", self.cluster.name());
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
            self.cluster.story.apply_one(node).await.unwrap();
            self.nodes.push(self.fleet.node(&name, &format!("-g{}x-", number / GROUP)).await);
        }
        self.all_offer().await;
        let took = readable(began.elapsed());
        table.value("all agents started, all devices offered after", took, "one process for all agents");
        sleep(AFTERWARDS).await;
        let formula = |each| format!("10,000 Instances × {each:.1} = {:.0} writes once", 10_000.0 * each);
        phase.end(self, table, "first start", self.groups * SHARED + nodes * LOCAL, "an Instance", formula).await;
    }

    async fn all_offer(&self) {
        for node in &self.nodes {
            node.offers(LOCAL + SHARED).await;
        }
    }

    async fn rest(&self, table: &mut Table) {
        let phase = Phase::begin(self).await;
        sleep(REST).await;
        let formula = |each| {
            let writes = FLEET * each / 60.0;
            format!("1,000 nodes × {each:.2} / 60 s = {writes:.1} writes a second; a Lease each a minute beside it")
        };
        phase.end(self, table, "60 s at rest", self.nodes.len(), "a node", formula).await;
    }

    async fn claim(&self, table: &mut Table, scope: &str, what: &str) {
        let phase = Phase::begin(self).await;
        for (number, node) in self.nodes.iter().enumerate() {
            let resources = node.resources(&self.name(number / GROUP, scope));
            node.claim(&resources[number % resources.len()], 0).await;
        }
        sleep(AFTERWARDS).await;
        let formula =
            |each| format!("10,000 Instances, one claim each an hour: {:.1} writes a second", 10_000.0 * each / 3600.0);
        phase.end(self, table, what, self.nodes.len(), "a claim", formula).await;
    }

    async fn release(&self, table: &mut Table) {
        let phase = Phase::begin(self).await;
        for node in &self.nodes {
            node.release_all().await;
        }
        sleep(AFTERWARDS).await;
        let what = "releases: a local and a shared slot each";
        let formula = |each| format!("as many as claims: {:.1} writes a second", 10_000.0 * each / 3600.0);
        phase.end(self, table, what, self.nodes.len() * 2, "a release", formula).await;
    }

    async fn restart(&mut self, table: &mut Table) {
        let (phase, mark) = (Phase::begin(self).await, self.fleet.recorder.count());
        for node in &mut self.nodes {
            node.stop().await;
        }
        for node in &mut self.nodes {
            self.fleet.start(node).await;
        }
        self.all_offer().await;
        sleep(AFTERWARDS).await;
        let requests = self.fleet.recorder.since(mark);
        let listed = requests.iter().filter(|r| r.verb == "list" && r.resource == "instances");
        let kib = listed.map(|request| request.received).sum::<u64>() as f64 / 1024.0 / self.nodes.len() as f64;
        let (own, all) = (LOCAL + SHARED, kib * FLEET / 1024.0);
        let formula = |_| format!("an agent lists its {own} Instances, {kib:.1} KiB: {all:.1} MiB for 1,000 nodes");
        phase.end(self, table, "a restart of every agent", self.nodes.len(), "a node", formula).await;
    }

    async fn edit(&self, table: &mut Table) {
        let phase = Phase::begin(self).await;
        let more = json!({"brokerProperties": {"EDITED": "yes"}});
        let names: Vec<String> = (0..SHARED).map(|number| format!("shared-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.cluster.echo(&self.name(0, "shared"), 2, &names, more).await;
        sleep(AFTERWARDS).await;
        let what = "an edit of brokerProperties, 10 shared Instances";
        let formula =
            |each| format!("one node of those that share writes each Instance: {each:.0} writes, in a fleet, too");
        phase.end(self, table, what, 1, "in all", formula).await;
    }

    async fn refuse(&self, table: &mut Table) {
        let phase = Phase::begin(self).await;
        let handler = json!({"name": "debugEcho", "discoveryDetails": "nonsense: ["});
        let refused = json!({"discoveryHandler": handler, "capacity": 2, "brokerProperties": {"EDITED": "yes"}});
        self.cluster.configure(&self.name(0, "shared"), refused).await;
        sleep(AFTERWARDS).await;
        let what = format!("an edit that the handler refuses on {GROUP} nodes");
        let formula =
            |_| "the edit; one node reports, however many there are; the controller before and after it".to_owned();
        phase.end(self, table, &what, 1, "in all", formula).await;
    }

    async fn lose_a_node(&mut self, table: &mut Table) {
        let phase = Phase::begin(self).await;
        let Some(mut last) = self.nodes.pop() else { return };
        last.kill().await;
        Api::<Node>::all(self.cluster.story.client()).delete(&last.name, &DeleteParams::default()).await.unwrap();
        sleep(AFTERWARDS).await;
        let own = LOCAL + SHARED;
        let formula = |each| format!("{each:.1} writes × its {own} Instances");
        phase.end(self, table, "a node's death", own, "an Instance it saw", formula).await;
    }

    async fn end(mut self) {
        for node in &mut self.nodes {
            node.stop().await;
        }
        let (configurations, nodes) = (self.cluster.configurations(), Api::<Node>::all(self.cluster.story.client()));
        for configuration in configurations.list(&Default::default()).await.unwrap() {
            let _ = configurations.delete(&configuration.name_any(), &DeleteParams::default()).await;
        }
        for node in &self.nodes {
            let _ = nodes.delete(&node.name, &DeleteParams::default()).await; // what stays is in the way of nobody
        }
    }
}

/// The API server and the agents' requests at the start of what is measured.
struct Phase {
    server: ApiMetrics,
    agents: usize,
    bytes: (u64, u64),
}

impl Phase {
    async fn begin(measured: &Measured) -> Self {
        Self {
            server: ApiMetrics::read(&measured.cluster.story.client()).await,
            agents: measured.fleet.recorder.count(),
            bytes: measured.fleet.recorder.bytes(),
        }
    }

    /// Adds rows for what has happened since, divided by `parts`.
    async fn end(
        self,
        measured: &Measured,
        table: &mut Table,
        what: &str,
        parts: usize,
        each: &str,
        formula: impl Fn(f64) -> String,
    ) {
        let now = ApiMetrics::read(&measured.cluster.story.client()).await;
        let requests = measured.fleet.recorder.since(self.agents);
        let of_agents = |wanted: &dyn Fn(&str) -> bool| {
            let of_akri = requests.iter().filter(|request| request.uri.contains("/akri.sh/"));
            of_akri.filter(|request| wanted(request.verb)).count() as f64
        };
        let written = of_agents(&|verb| matches!(verb, "create" | "patch" | "update" | "delete"));
        let read = of_agents(&|verb| matches!(verb, "get" | "list"));
        let bytes = measured.fleet.recorder.bytes();
        let kib = |now: u64, before: u64| (now - before) as f64 / 1024.0 / parts as f64;
        let parts = parts as f64;
        let all = (now.writes(&[]) - self.server.writes(&[])) / parts;
        let counts = format!(
            "{:.2} + {:.2}, {:.2} + {:.2}, {:.1}",
            written / parts,
            all - written / parts,
            read / parts,
            (now.reads() - self.server.reads() - read) / parts,
            (now.events() - self.server.events()) / parts,
        );
        table.value(format!("{what}: writes, reads, watch events, {each}"), counts, formula(all));
        let cost = format!("{:.1} ms", (now.processor() - self.server.processor()) * 1000.0 / parts);
        let (sent, received) = (kib(bytes.0, self.bytes.0), kib(bytes.1, self.bytes.1));
        table.value(
            format!("API server's processor, {each}"),
            cost,
            format!("agents sent {sent:.1} KiB, received {received:.1}"),
        );
    }
}
