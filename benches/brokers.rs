//! The controller with a real API server: how long an Instance waits for its broker, how many brokers it creates a second, what
//! that costs the API server, and the memory for many Instances. No kubelet runs the brokers.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use akri_api::Configuration;
use akri_tests::brokers::{Brokers, pod_broker};
use akri_tests::node::rss_kib;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;

use crate::measure::{Samples, Table};

const ONE_BY_ONE: usize = 100;
const AT_ONCE: usize = 200;
const MANY: usize = 10_000;

/// Longest wait for brokers.
const DEADLINE: Duration = Duration::from_secs(300);

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("The controller, on Kubernetes 1.20");
    let Some(mut cluster) = Brokers::begin("bench-brokers").await else {
        table.value("skipped: there is no cluster", "", "");
        return table;
    };
    let node = cluster.node("a").await;
    let cam = cluster.configure("cam", pod_broker(json!({}))).await;
    cluster.controller.as_ref().unwrap().wait_for_log("this controller leads").await;
    let samples = one_by_one(&cluster, &cam, &node).await;
    table.row("from the Instance to its broker, one by one", &samples, "");

    cluster.kill_controller();
    let many = cluster.configure("many", pod_broker(json!({}))).await;
    create(&cluster, &many, AT_ONCE, &node).await;
    let before = Writes::of(cluster.story.client()).await;
    cluster.controller = Some(cluster.start_controller());
    let took = brokers_of(&cluster, "many", AT_ONCE).await;
    let rate = AT_ONCE as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE);
    table.value(
        format!("brokers a second, {AT_ONCE} Instances at once"),
        format!("{rate:.0}"),
        "from the first one to the last",
    );
    sleep(Duration::from_secs(5)).await; // the last statuses are written
    let after = Writes::of(cluster.story.client()).await;
    let each = |now: f64, before: f64| format!("{:.2}", (now - before) / AT_ONCE as f64);
    table.value("requests that write Pods, for an Instance", each(after.pods, before.pods), "");
    table.value("requests that write objects of akri.sh, for an Instance", each(after.akri, before.akri), "its status");

    let idle = cluster.configure("idle", json!({})).await;
    create(&cluster, &idle, MANY, &node).await;
    sleep(Duration::from_secs(10)).await;
    let mebibytes = rss_kib(cluster.controller.as_ref().unwrap().pid()) as f64 / 1024.0;
    table.value(
        format!("memory of the controller, {MANY} Instances"),
        format!("{mebibytes:.1} MiB"),
        "target: ≤ 64 MiB",
    );
    table
}

async fn create(cluster: &Brokers, configuration: &Configuration, count: usize, node: &str) {
    for number in 0..count {
        cluster.instance(configuration, &format!("{number:06x}"), &[node]).await;
    }
}

/// Creates Instances and waits for the broker of each.
async fn one_by_one(cluster: &Brokers, configuration: &Configuration, node: &str) -> Samples {
    let mut samples = Vec::with_capacity(ONE_BY_ONE);
    let pods = cluster.story.api::<Pod>();
    let mut events = pin!(pods.watch(&WatchParams::default().timeout(280), "0").await.unwrap());
    for number in 0..ONE_BY_ONE {
        let start = Instant::now();
        let instance = cluster.instance(configuration, &format!("{number:06x}"), &[node]).await;
        let name = format!("{node}-{}-pod", instance.name_any());
        while let Ok(Some(event)) = timeout(DEADLINE, events.next()).await {
            if matches!(event.unwrap(), WatchEvent::Added(pod) if pod.name_any() == name) {
                break;
            }
        }
        samples.push(start.elapsed());
    }
    Samples::new(samples)
}

/// Waits for the brokers of a Configuration; returns the time from the first one to the last.
async fn brokers_of(cluster: &Brokers, configuration: &str, count: usize) -> Duration {
    let pods = cluster.story.api::<Pod>();
    let params = WatchParams::default().timeout(280).labels(&format!("akri.sh/configuration={configuration}"));
    let mut events = pin!(pods.watch(&params, "0").await.unwrap());
    let (mut seen, mut first) = (BTreeSet::new(), Instant::now());
    while seen.len() < count {
        let event = timeout(DEADLINE, events.next()).await.expect("brokers in time").expect("a watch that goes on");
        if let WatchEvent::Added(pod) = event.unwrap() {
            if seen.is_empty() {
                first = Instant::now();
            }
            seen.insert(pod.name_any());
        }
    }
    first.elapsed()
}

/// Counts of requests that write, from the API server's metrics.
struct Writes {
    pods: f64,
    akri: f64,
}

impl Writes {
    async fn of(client: Client) -> Self {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = client.request_text(request).await.unwrap();
        let is_write = |line: &str| ["POST", "PUT", "PATCH", "APPLY", "DELETE"].iter().any(|verb| line.contains(verb));
        let sum = |wanted: &str| -> f64 {
            let lines =
                text.lines().filter(|line| line.starts_with("apiserver_request_total{") && line.contains(wanted));
            lines.filter(|line| is_write(line)).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        Self { pods: sum(r#"resource="pods""#), akri: sum(r#"group="akri.sh""#) }
    }
}
