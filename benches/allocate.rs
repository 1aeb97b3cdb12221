//! The duration of Allocate for free devices, called as by the kubelet.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use akri_grpc::deviceplugin::{AllocateRequest, ContainerAllocateRequest};

use crate::measure::{Samples, Table};
use crate::node::{Idle, Scope};

/// Devices, each allocated once.
const DEVICES: usize = 500;
/// Approximate size of a claim in the journal, in bytes.
const CLAIM: usize = 1024;

pub(crate) async fn measure() -> Table {
    let node = Idle::start(Scope::Local).await;
    node.register(DEVICES).await;
    let mut samples = Vec::new();
    for resource in &node.resources() {
        samples.push(allocate(&node, resource).await);
    }
    let mut table = Table::new("Allocate");
    table.row(format!("of a local device, one of {DEVICES}"), &Samples::new(samples), "target: p99 ≤ 2 ms");
    let disk = disk(&node.node.path("disk"));
    table.row(format!("of which the disk: {CLAIM} bytes appended and synced"), &disk, "");
    table
}

async fn allocate(node: &Idle, resource: &str) -> Duration {
    let mut plugin = node.kubelet.plugin(resource);
    let devices_ids = node.kubelet.view(|view| view.resource(resource).healthy.into_iter().take(1).collect());
    let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] };
    let start = Instant::now();
    let answer = plugin.allocate(request).await;
    let taken = start.elapsed();
    assert_eq!(answer.unwrap().into_inner().container_responses.len(), 1);
    taken
}

/// Measures the lower bound of a claim: a synced write to disk.
fn disk(path: &Path) -> Samples {
    let mut file = File::create(path).unwrap();
    let append = |_| {
        let start = Instant::now();
        file.write_all(&[b'x'; CLAIM]).unwrap();
        file.sync_data().unwrap();
        start.elapsed()
    };
    Samples::new((0..DEVICES).map(append).collect())
}
