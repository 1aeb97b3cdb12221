//! The time until a restarted kubelet has all resources.

use std::time::Instant;

use crate::measure::{Samples, Table};
use crate::node::{Idle, Scope};

const RESOURCES: usize = 300;
const RESTARTS: usize = 10;

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("From a kubelet's start to all resources registered again");
    let mut idle = Idle::start(Scope::Local).await;
    idle.register(RESOURCES).await;
    let mut samples = Vec::new();
    for _ in 0..RESTARTS {
        idle.kubelet.stop();
        let start = Instant::now();
        idle.kubelet.start_again();
        idle.wait_for(RESOURCES).await;
        samples.push(start.elapsed());
    }
    table.row(format!("{RESOURCES} resources"), &Samples::new(samples), "target: ≤ 2 s; upstream Akri: never");
    table
}
