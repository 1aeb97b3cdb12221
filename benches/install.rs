//! From the chart's first object applied to a device that pods can ask for, and to many that both nodes share.

use std::path::Path;
use std::time::{Duration, Instant};

use akri_tests::cluster::{Installation, Story, Worker, kubernetes_version};
use serde_json::{Value, json};
use tokio::time::sleep;

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
    installed.end().await;
    table
}

/// Measures the time from a Configuration to the checkpoints of both kubelets with its devices.
async fn offered_by_both(story: &Story) -> Duration {
    let cameras: Vec<String> = (0..SHARED).map(|number| format!("camera-{number}")).collect();
    let details = json!({"descriptions": cameras}).to_string();
    let spec = json!({"discoveryHandler": {"name": "debugEcho", "discoveryDetails": details}, "capacity": 1});
    let metadata = json!({"name": "cameras"});
    let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": metadata, "spec": spec});
    let start = Instant::now();
    story.apply_one(object).await.unwrap();
    for node in &story.cluster().nodes {
        while recorded(node) < SHARED {
            assert!(start.elapsed() < LIMIT, "a kubelet lacks devices");
            sleep(LOOK).await;
        }
    }
    start.elapsed()
}

/// Counts the Instances of which a kubelet has recorded devices.
fn recorded(node: &Worker) -> usize {
    let output = node.command(Path::new("cat")).arg(CHECKPOINT).output().unwrap();
    let checkpoint: Value = serde_json::from_slice(&output.stdout).unwrap_or_default(); // there is none before the first device
    let registered = checkpoint["Data"]["RegisteredDevices"].as_object();
    let has_some = |ids: &Value| ids.as_array().is_some_and(|ids| !ids.is_empty());
    registered.into_iter().flatten().filter(|(name, ids)| name.starts_with("akri.sh/cameras-") && has_some(ids)).count()
}
