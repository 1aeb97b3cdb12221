//! Two agents with a real API server: their requests at rest and for each claim, and the duration of a claim on a
//! shared device compared with a plain request of the same size. The API server counts the requests.

use std::time::{Duration, Instant};

use akri_api::Instance;
use akri_grpc::deviceplugin::{AllocateRequest, ContainerAllocateRequest};
use akri_tests::cluster::kubernetes_version;
use akri_tests::cluster_fixture::{ClusterFixture, Member};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::measure::{Samples, Table};

const CLAIMS: usize = 200;

/// The pause before each measured request: agents and the controller handle the events of the one before.
const PAUSE: Duration = Duration::from_millis(100);

/// The time in which the API server has published the schemas of new CRDs.
pub(crate) const PUBLISHED: Duration = Duration::from_secs(10);

/// The pause between polls of what containers use: no pod holds the claims, which agents would give back while others are measured.
const NEVER: &str = "3600000";

/// The time that agents are observed at rest, with the default intervals of rounds.
const REST: Duration = Duration::from_secs(60);

pub(crate) async fn measure() -> Table {
    let devices = std::env::var("DEVICES").ok().and_then(|text| text.parse().ok()).unwrap_or(1000);
    let version = kubernetes_version();
    let mut table = Table::new(format!("{devices} devices that two agents share, on Kubernetes {version}"));
    let Some(cluster) = ClusterFixture::begin("bench").await else {
        table.value("skipped: there is no cluster", "", "");
        return table;
    };
    cluster
        .handle("debug-echo", json!({"name": "debugEcho", "component": {"file": "debug_echo.wasm"}, "interval": "10s"}))
        .await;
    let names: Vec<String> = (0..devices).map(|number| format!("device-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    sleep(PUBLISHED).await;
    let before = Counts::of(cluster.story.client()).await;
    let start = Instant::now();
    cluster.echo(cluster.name(), 1, &names, json!({})).await;
    let add = |name| cluster.add_with(name, cluster.story.kubeconfig(), &["--poll-milliseconds", NEVER]);
    let (a, b) = (add("node-a"), add("node-b"));
    for member in [&a, &b] {
        let all = |offered: usize| offered == devices;
        member
            .kubelet
            .wait_for("all resources", |view| all(view.resources.values().filter(|r| r.allocatable() == 1).count()))
            .await;
    }
    let offered = crate::measure::readable(start.elapsed());
    eprintln!("offered by both kubelets after {offered}");
    table.value("offered by both kubelets after", offered, "");
    sleep(Duration::from_secs(40)).await; // the last nodes and statuses are written
    let made = Counts::of(cluster.story.client()).await;
    made.rows(&mut table, &before, "until all are offered", devices, "a device");

    sleep(REST).await;
    let rested = Counts::of(cluster.story.client()).await;
    rested.rows(&mut table, &made, &format!("in {} s at rest", REST.as_secs()), 1, "in all");

    let resources = resources(&cluster, &a).await;
    let claimed = claims(&cluster, &a, &resources).await;
    let after = Counts::of(cluster.story.client()).await;
    let times = |bare: &Samples| claimed.claims.median().as_secs_f64() / bare.median().as_secs_f64();
    let beside = format!("{:.1} × a bare patch of an Instance", times(&claimed.of_instance));
    table.row("Allocate", &claimed.claims, beside);
    table.row("a bare JSON Patch of an Instance", &claimed.of_instance, "");
    table.row("a bare JSON Patch of a ConfigMap", &claimed.of_map, "");
    after.rows(&mut table, &rested, "for claims", CLAIMS, "a claim and a bare patch of an Instance");
    table
}

async fn resources(cluster: &ClusterFixture, member: &Member) -> Vec<String> {
    let instances: Api<Instance> = cluster.story.api();
    let listed = instances.list(&ListParams::default()).await.unwrap();
    let names = listed.iter().map(|instance| format!("akri.sh/{}", instance.name_any()));
    names.filter(|name| member.kubelet.view(|view| view.resource(name).allocatable() == 1)).take(CLAIMS).collect()
}

/// Claims, and patches that nobody needs, in turn.
struct Claimed {
    claims: Samples,
    of_instance: Samples,
    of_map: Samples,
}

/// Measures claims, each after bare patches: of an object that the API server knows, and of the very Instance.
async fn claims(cluster: &ClusterFixture, member: &Member, resources: &[String]) -> Claimed {
    let (maps, instances): (Api<ConfigMap>, Api<Instance>) = (cluster.story.api(), cluster.story.api());
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bare"}, "data": {"slot": ""}});
    cluster.story.apply_one(map).await.unwrap();
    let (mut claims, mut of_instance, mut of_map) = (Vec::new(), Vec::new(), Vec::new());
    for resource in resources {
        let [from, to] = if claims.len() % 2 == 0 { ["", "node-a"] } else { ["node-a", ""] };
        let map = json!([
            {"op": "test", "path": "/data/slot", "value": from},
            {"op": "replace", "path": "/data/slot", "value": to},
        ]);
        let instance = json!([{"op": "add", "path": "/metadata/annotations/bare", "value": to}]);
        of_map.push(patched(&maps, "bare", map).await);
        let name = resource.trim_start_matches("akri.sh/");
        of_instance.push(patched(&instances, name, instance).await);
        let devices_ids = vec![format!("{name}-0")];
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] };
        let mut plugin = member.kubelet.plugin(resource);
        sleep(PAUSE).await;
        let start = Instant::now();
        plugin.allocate(request).await.unwrap();
        claims.push(start.elapsed());
    }
    Claimed { claims: Samples::new(claims), of_instance: Samples::new(of_instance), of_map: Samples::new(of_map) }
}

/// Returns how long a JSON Patch takes.
async fn patched<K>(objects: &Api<K>, name: &str, operations: Value) -> Duration
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let patch: Patch<Value> = Patch::Json(serde_json::from_value(operations).unwrap());
    sleep(PAUSE).await;
    let start = Instant::now();
    objects.patch(name, &PatchParams::default(), &patch).await.unwrap();
    start.elapsed()
}

/// Counts of requests for objects of `akri.sh`, from the API server's metrics.
struct Counts {
    reads: f64,
    writes: f64,
    events: f64,
}

impl Counts {
    async fn of(client: Client) -> Self {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = client.request_text(request).await.unwrap();
        let sum = |metric: &str, wanted: &dyn Fn(&str) -> bool| -> f64 {
            let lines = text.lines().filter(|line| line.starts_with(metric) && line.contains(r#"group="akri.sh""#));
            lines.filter(|line| wanted(line)).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        let is_write = |line: &str| ["POST", "PUT", "PATCH", "APPLY", "DELETE"].iter().any(|verb| line.contains(verb));
        Self {
            reads: sum("apiserver_request_total{", &|line| !is_write(line)),
            writes: sum("apiserver_request_total{", &is_write),
            events: sum("apiserver_watch_events_total{", &|_| true),
        }
    }

    fn rows(&self, table: &mut Table, before: &Self, what: &str, parts: usize, of: &str) {
        let part = |now: f64, before: f64| format!("{:.2}", (now - before) / parts as f64);
        table.value(format!("requests that write, {what}"), part(self.writes, before.writes), of);
        table.value(format!("requests that read, {what}"), part(self.reads, before.reads), of);
        table.value(format!("watch events, {what}"), part(self.events, before.events), of);
    }
}
