//! From the chart's first object applied to a device that pods can ask for, and to many that both nodes share.

use std::path::Path;
use std::time::{Duration, Instant};

use akri_kubelet::pod_resources;
use akri_tests::cluster::{Installation, Story, Worker, kubernetes_version};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::bare_plugins;
use crate::cluster::PUBLISHED;
use crate::measure::{Table, readable};

/// Devices that both nodes share.
const SHARED: usize = 200;

/// The pause between looks at what a kubelet has recorded.
const LOOK: Duration = Duration::from_millis(50);

/// The time after which they are not expected any more.
const LIMIT: Duration = Duration::from_secs(90);

const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

pub(crate) async fn measure() -> Table {
    let mut table = Table::new(format!(
        "`kubectl apply` of the chart on two nodes that have the image, on Kubernetes {}",
        kubernetes_version()
    ));
    let Some(story) = Story::begin_alone("install").await else {
        table.value("skipped: there is no cluster", "", "");
        return table;
    };
    let Some(installed) = Installation::new(&story, &[]).await else {
        table.value("skipped: helm is not there", "", "");
        return table;
    };
    let start = installed.since.elapsed();
    let spec = json!({"discoveryHandler": {"name": "debugEcho", "discoveryDetails": "descriptions: [lamp]"}});
    let name = story.namespace();
    let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": name}, "spec": spec});
    story.apply_one(object).await.unwrap();
    story.wait_for_allocatable("node-a", &format!("akri.sh/{name}"), 1).await;
    let first = installed.since.elapsed();
    table.value("agents, controllers and webhooks ready and registered", readable(start), "target: ≤ 60 s");
    table.value(
        "its first device allocatable on a node",
        readable(first),
        "of which the Configuration ".to_owned() + &readable(first - start),
    );
    sleep(PUBLISHED).await;
    let shared = offered_by_both(&story).await;
    table.value(format!("{SHARED} shared devices offered by both kubelets"), readable(shared), "target: ≤ 1 s");
    let bare = bare_plugins_of_both(&story).await;
    table.value(format!("{SHARED} plugins without an agent on each node"), readable(bare), "");
    installed.end().await;
    table
}

/// Measures the time from a Configuration until both kubelets offer its devices.
async fn offered_by_both(story: &Story) -> Duration {
    let cameras: Vec<String> = (0..SHARED).map(|number| format!("camera-{number}")).collect();
    let details = json!({"descriptions": cameras}).to_string();
    let spec = json!({"discoveryHandler": {"name": "debugEcho", "discoveryDetails": details}, "capacity": 1});
    let metadata = json!({"name": "cameras"});
    let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": metadata, "spec": spec});
    let start = Instant::now();
    story.apply_one(object).await.unwrap();
    wait_for_all(story, "akri.sh/cameras-", start).await
}

/// Measures the time from the start of a program on each node until both kubelets offer its devices.
async fn bare_plugins_of_both(story: &Story) -> Duration {
    let start = Instant::now();
    let mut started: Vec<_> = story.cluster().nodes.iter().map(|node| bare_plugins::start(node, SHARED)).collect();
    let all = wait_for_all(story, bare_plugins::PREFIX, start).await;
    for program in &mut started {
        program.kill().unwrap();
        program.wait().unwrap();
    }
    all
}

async fn wait_for_all(story: &Story, prefix: &str, start: Instant) -> Duration {
    for node in &story.cluster().nodes {
        while offered(node, prefix).await < SHARED {
            assert!(start.elapsed() < LIMIT, "a kubelet lacks devices");
            sleep(LOOK).await;
        }
    }
    start.elapsed()
}

/// Counts the resources with names of this beginning of which a kubelet offers devices. What it has on disk may be outdated: of two
/// checkpoints that it writes at once the older one may be the last.
async fn offered(node: &Worker, prefix: &str) -> usize {
    let Ok(offered) = pod_resources::allocatable(&node.kubelet_dir()).await else { return recorded(node, prefix) };
    offered.iter().filter(|(name, ids)| name.starts_with(prefix) && !ids.is_empty()).count()
}

/// Counts them for a kubelet before 1.23.
fn recorded(node: &Worker, prefix: &str) -> usize {
    let output = node.command(Path::new("cat")).arg(CHECKPOINT).output().unwrap();
    let checkpoint: Value = serde_json::from_slice(&output.stdout).unwrap_or_default(); // there is none before the first device
    let registered = checkpoint["Data"]["RegisteredDevices"].as_object();
    let has_some = |ids: &Value| ids.as_array().is_some_and(|ids| !ids.is_empty());
    registered.into_iter().flatten().filter(|(name, ids)| name.starts_with(prefix) && has_some(ids)).count()
}
