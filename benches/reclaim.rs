//! The time from the end of a pod until its slot can be used again.

use std::time::{Duration, Instant};

use akri_tests::node::{used, wait_for};

use crate::measure::{Samples, Table};
use crate::node::{Idle, Scope};

const PODS: usize = 10;

/// Longer than the interval of pod observations, so that the agent has observed the pod.
const SEEN: Duration = Duration::from_secs(3);

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("From a pod gone to its slot free");
    let idle = Idle::start(Scope::Local).await;
    idle.register(1).await;
    let own = idle.resources().remove(0);
    for (resource, beside) in
        [(own.as_str(), "target: ≤ 5 s; upstream Akri: never"), ("akri.sh/echo", "target: ≤ 5 s; upstream Akri: 28 s")]
    {
        let mut samples = Vec::new();
        for number in 0..PODS {
            samples.push(until_free(&idle, resource, &format!("{resource}-{number}")).await);
        }
        let kind = if resource == own { "through the Instance's resource" } else { "through the Configuration's" };
        table.row(kind, &Samples::new(samples), beside);
    }
    table
}

async fn until_free(idle: &Idle, resource: &str, pod: &str) -> Duration {
    idle.kubelet.wait_for("a slot", |view| view.resource(resource).allocatable() > 0).await;
    idle.kubelet.admit(pod, "container", resource, 1).await.unwrap();
    tokio::time::sleep(SEEN).await;
    idle.kubelet.remove_pod(pod);
    let start = Instant::now();
    wait_for("a free slot", || idle.node.instances(), |instances| instances.iter().all(|i| used(i).is_empty())).await;
    start.elapsed()
}
