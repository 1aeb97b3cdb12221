//! Attacks on the sandbox as an agent runs it: the rounds of a good handler beside each, and the memory that this process (in
//! the place of the agent), the sandbox process and the compiler take at most.

use std::fs;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use akri_model::grant::{CompileLimits, Grants, Isolation, Limits};
use akri_model::property::{Resolved, Secret};
use akri_sandbox::{Call, Host};
use akri_tests::costly_components::{large_segments, many_globals, nested_loops};
use akri_tests::node::guest;
use tokio::task::JoinSet;

use crate::hostile::{MISBEHAVING, again_and_again, misbehaviours, rounds};
use crate::measure::{Samples, Table};
use crate::round::{children, load, sandbox};

/// An attack, which is repeated without end.
enum Attack {
    Nothing,
    Round(Box<Call>),
    /// Load a component. What failed to compile is remembered, so that each is another one.
    Load(Vec<u8>),
}

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("A round of 10 devices in a sandbox process");
    let compiled = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut alone: Option<Duration> = None;
    for (what, attack) in attacks(&silent) {
        while !children().is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await; // of the attack before
        }
        let host = sandbox(Some(compiled.path().join("compiled")));
        let (samples, peaks) = attacked(host, attack).await;
        let alone = *alone.get_or_insert(samples.median());
        let ratio = samples.median().as_secs_f64() / alone.as_secs_f64();
        table.row(what, &samples, format!("{ratio:.1} × alone; {peaks}"));
    }
    table
}

fn attacks(silent: &TcpListener) -> Vec<(String, Attack)> {
    let round = |details: &str| {
        let limits = Limits { log_lines: 1_000_000, ..Limits::default() };
        let (subject, details) = ("default/bad".to_owned(), details.to_owned());
        Attack::Round(Box::new(Call { subject, details, limits, grants: Grants::default(), ..Call::default() }))
    };
    let first = [("alone", Attack::Nothing)];
    let rounds = misbehaviours(silent).into_iter().map(|(what, call)| (what, Attack::Round(Box::new(call))));
    let more = [
        ("return 150 devices beside 250 secrets", secrets()),
        ("return a list that grows when it is copied", round("aliased-strings")),
        ("may log a million lines", round("log-flood:1000000")),
        ("fill their cache", round("cache-flood:1000000")),
        ("keep a million origins", round("keep-flood:1000000")),
    ];
    let loads = [
        ("components of 240 instances with a million globals", Attack::Load(many_globals())),
        ("components that take minutes to compile", Attack::Load(nested_loops(40_000))),
        ("components that take gigabytes to compile", Attack::Load(large_segments())),
    ];
    let first = first.map(|(what, attack)| (what.to_owned(), attack)).into_iter();
    let rounds = rounds.chain(more).map(|(what, attack)| (format!("beside three that {what}"), attack));
    let loads = loads.map(|(what, attack)| (format!("beside the loading of {what}"), attack));
    first.chain(rounds).chain(loads).collect()
}

/// Rounds whose devices are searched for many secrets.
fn secrets() -> Attack {
    let secret = |n: usize| (format!("K{n}"), Secret::new(format!("a-secret-word-of-many-{n}").into_bytes()));
    let properties = Resolved { secrets: (0..250).map(secret).collect(), ..Resolved::default() };
    let grants = Grants { secrets: vec!["*".to_owned()], ..Grants::default() };
    let (subject, details) = ("default/bad".to_owned(), "devices:150".to_owned());
    Attack::Round(Box::new(Call { subject, details, properties, grants, ..Call::default() }))
}

/// Measures rounds during an attack.
async fn attacked(host: Host, attack: Attack) -> (Samples, String) {
    let bytes = fs::read(guest()).unwrap();
    let (good, bad) = (load(&host, bytes.clone()).await, load(&host, bytes).await);
    let peaks = Arc::<Mutex<Peaks>>::default();
    let mut running = JoinSet::new();
    match attack {
        Attack::Nothing => {}
        Attack::Round(call) => {
            (0..MISBEHAVING).for_each(|_| drop(running.spawn(again_and_again(bad.clone(), Call::clone(&call)))));
        }
        Attack::Load(component) => drop(running.spawn(load_again_and_again(host.clone(), component))),
    }
    running.spawn(observe(Arc::clone(&peaks)));
    tokio::time::sleep(Duration::from_secs(1)).await; // it is under way
    let samples = rounds(&good).await;
    drop(running);
    let peaks = peaks.lock().unwrap().to_string();
    (samples, peaks)
}

/// Loads a component that is another one each time by the name of a custom section at its end.
async fn load_again_and_again(host: Host, component: Vec<u8>) {
    for number in 0_u32.. {
        let section = [&[0, 5, 4][..], &number.to_be_bytes().map(|byte| byte & 0x7f)].concat();
        let limits = CompileLimits { time: Duration::from_secs(10), ..CompileLimits::default() };
        let _ = host.load([component.as_slice(), &section].concat(), &limits, Isolation::Shared).await; // it is refused
    }
}

/// The largest resident memory, in KiB, of this process, the sandbox process and the compiler.
#[derive(Default)]
struct Peaks {
    own: usize,
    sandbox: usize,
    compiler: usize,
}

async fn observe(peaks: Arc<Mutex<Peaks>>) {
    loop {
        {
            let mut peaks = peaks.lock().unwrap();
            peaks.own = peaks.own.max(resident(std::process::id(), "VmRSS:"));
            peaks.sandbox = largest("sandbox").max(peaks.sandbox);
            peaks.compiler = largest("compile").max(peaks.compiler);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the largest peak of the children with that word in their command line.
fn largest(word: &str) -> usize {
    let command = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let children = children().into_iter().filter(|pid| command(pid).split('\0').any(|part| part == word));
    children.map(|pid| resident(pid, "VmHWM:")).max().unwrap_or(0)
}

/// Returns a figure of a process in KiB, or 0 if it has just ended.
fn resident(pid: u32, name: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

impl std::fmt::Display for Peaks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at most {} MiB here, {} MiB in the sandbox process", self.own >> 10, self.sandbox >> 10)?;
        if self.compiler > 0 { write!(f, ", {} MiB in the compiler", self.compiler >> 10) } else { Ok(()) }
    }
}
