//! The time from plugging or unplugging a device until the kubelet has the new list.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use akri_tests::zram::Zrams;

use crate::measure::{Samples, Table};
use crate::node::{Idle, Scope};

const PLUGS: usize = 100;

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("From a block device plugged or unplugged to the kubelet's new list");
    let Some(zrams) = Zrams::claim().await else { return table };
    for (situation, burst, others) in
        [("at rest", false, 0), ("during a burst of block events", true, 0), ("1,000 other devices", false, 1000)]
    {
        let idle = Idle::start(Scope::Local).await;
        if others > 0 {
            idle.register(others).await;
        }
        let resource = watched_disk(&idle, &zrams).await;
        let running = Arc::new(AtomicBool::new(burst));
        let storm = std::thread::spawn({
            let running = Arc::clone(&running);
            move || shake(&running)
        });
        let (plugs, unplugs) = sample(&idle, &zrams, &resource).await;
        running.store(false, Ordering::Relaxed);
        storm.join().unwrap();
        table.row(format!("plugged, {situation}"), &plugs, "target: p99 ≤ 50 ms; upstream Akri: polls every 10 s");
        table.row(format!("unplugged, {situation}"), &unplugs, "");
    }
    table
}

/// Creates a disk that was discovered once and unplugged; its Instance remains.
async fn watched_disk(idle: &Idle, zrams: &Zrams) -> String {
    let rule = format!("      udevRules:\n      - SUBSYSTEM==\"block\", KERNEL==\"{}\"\n", zrams.next_name());
    idle.node.write_configuration("disk", "udev", &rule, "  offlineGracePeriod: 1h\n");
    let disk = zrams.plug();
    let is_disk = |name: &&String| name.starts_with("akri.sh/disk-");
    idle.kubelet.wait_for("the disk", |view| view.resources.keys().any(|name| is_disk(&name))).await;
    let resource = idle.kubelet.view(|view| view.resources.keys().find(is_disk).unwrap().clone());
    wait_for_slots(idle, &resource, 1).await;
    disk.unplug();
    wait_for_slots(idle, &resource, 0).await;
    resource
}

async fn sample(idle: &Idle, zrams: &Zrams, resource: &str) -> (Samples, Samples) {
    let (mut plugs, mut unplugs) = (Vec::new(), Vec::new());
    for _ in 0..PLUGS {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let start = Instant::now();
        let disk = zrams.plug();
        wait_for_slots(idle, resource, 1).await;
        plugs.push(start.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
        let start = Instant::now();
        disk.unplug();
        wait_for_slots(idle, resource, 0).await;
        unplugs.push(start.elapsed());
    }
    (Samples::new(plugs), Samples::new(unplugs))
}

async fn wait_for_slots(idle: &Idle, resource: &str, slots: usize) {
    idle.kubelet.wait_for("the new list", |view| view.resource(resource).allocatable() == slots).await;
}

/// Causes about 600 events a second of another block device.
fn shake(running: &AtomicBool) {
    while running.load(Ordering::Relaxed) {
        fs::write("/sys/class/block/loop0/uevent", "change").unwrap();
        std::thread::sleep(Duration::from_micros(1500));
    }
}
