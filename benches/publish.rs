//! Processor time for publishing many devices in local mode, which has to grow in proportion to their number.

use std::fs;
use std::time::Duration;

use akri_tests::node::{Node, built_components};

use crate::measure::Table;

/// Configurations among which the devices are divided: more new devices of one are published at a bounded rate.
const CONFIGURATIONS: usize = 3;

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("Processor time of the agent from its start to all devices published, local mode");
    for (devices, beside) in [(999, ""), (3_000, ""), (10_200, "target: ≤ 5 s")] {
        let spent = publish(devices).await;
        table.value(format!("{devices} devices"), format!("{:.2} s", spent.as_secs_f64()), beside);
    }
    table
}

async fn publish(devices: usize) -> Duration {
    let node = Node::new();
    let object = fs::read_to_string(built_components().join("debug-echo.yaml")).unwrap();
    node.write("components/debug-echo.yaml", &format!("{object}  shared: false\n"));
    let each = devices / CONFIGURATIONS;
    for number in 0..CONFIGURATIONS {
        let names: Vec<String> = (0..each).map(|device| format!("d-{number}-{device}")).collect();
        node.write_echo(&format!("echo-{number}"), 1, &names.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let agent = node.start();
    let directory = node.path("state/instances/default");
    while fs::read_dir(&directory).map_or(0, Iterator::count) < devices {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    processor_time(agent.pid())
}

/// Returns the processor time of a process so far (`proc_pid_stat(5)`).
fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = [11, 12].map(|field: usize| fields[field].parse::<u64>().unwrap()).iter().sum();
    Duration::from_millis(ticks * 10) // USER_HZ is 100
}
