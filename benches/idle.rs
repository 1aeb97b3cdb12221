//! Wakeups of an agent that has nothing to do, by thread, and the processor time that they take.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tokio::time::sleep;

use crate::measure::Table;
use crate::memory::Processes;
use crate::node::{Idle, Scope};

/// The time for which it is watched.
const WATCHED: Duration = Duration::from_secs(60);

/// Time for what follows the start.
const SETTLED: Duration = Duration::from_secs(15);

pub(crate) async fn measure() -> Table {
    let mut table = Table::new(format!("An agent at rest for {} s", WATCHED.as_secs()));
    // The last is the default of handlers that name none.
    for (devices, interval) in [(1, "10s"), (200, "10s"), (200, "30s")] {
        let idle = Idle::start_every(Scope::Local, interval).await;
        idle.register(devices).await;
        sleep(SETTLED).await;
        let Processes { agent, sandboxes } = Processes::of(idle.pid());
        let of_both = |count: fn(u32) -> u64| sandboxes.iter().map(|pid| count(*pid)).sum::<u64>();
        let (before, used) = (wakeups(agent), processor(agent) + of_both(processor));
        let of_sandbox = of_both(|pid| wakeups(pid).values().sum());
        sleep(WATCHED).await;
        let (after, used) = (wakeups(agent), processor(agent) + of_both(processor) - used);
        let of_sandbox = of_both(|pid| wakeups(pid).values().sum()).saturating_sub(of_sandbox);
        // Threads that have ended meanwhile take their counts with them.
        let by_thread: BTreeMap<String, u64> = after
            .iter()
            .map(|(name, count)| (name.clone(), count.saturating_sub(*before.get(name).unwrap_or(&0))))
            .collect();
        let sum: u64 = by_thread.values().sum::<u64>() + of_sandbox;
        let mut busy: Vec<(&String, &u64)> = by_thread.iter().filter(|(_, count)| **count > 0).collect();
        busy.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let threads: Vec<String> = busy.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let rate = sum as f64 / WATCHED.as_secs_f64();
        table.value(
            format!("wakeups a second, {devices} local devices, rounds every {interval}"),
            format!("{rate:.2}"),
            format!("target: < 1; by thread: {}, sandbox process {of_sandbox}", threads.join(", ")),
        );
        let share = used as f64 / 100.0 / WATCHED.as_secs_f64() * 100.0;
        table.value(
            format!("processor, {devices} local devices, rounds every {interval}"),
            format!("{share:.2} %"),
            "target: < 1 %",
        );
    }
    table
}

/// Returns how often threads of a process have waited, by name. Each wait but one that still lasts ended with a wakeup.
fn wakeups(pid: u32) -> BTreeMap<String, u64> {
    let mut wakeups = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let (name, count) = wakeups_of(&task.path());
        *wakeups.entry(name).or_default() += count;
    }
    wakeups
}

fn wakeups_of(task: &Path) -> (String, u64) {
    let status = fs::read_to_string(task.join("status")).unwrap_or_default(); // a thread may have ended
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim_start_matches(':').trim().to_owned()).unwrap_or_default()
    };
    (field("Name"), field("voluntary_ctxt_switches").parse().unwrap_or_default())
}

/// Returns the processor time of a process in ticks, which are 10 ms on Linux.
fn processor(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
