//! Components run in processes of their own: what happens to these happens neither to the agent nor to devices.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use akri_api::condition::Condition;
use rustix::process::{Pid, Signal, getpgid, kill_process};

use crate::support::kubelet::Kubelet;
use crate::support::namespace::Namespace;
use crate::support::node::{Agent, Node, akri, identities, is_online, rss_kib, wait_for};
use crate::support::skip::is_root;

/// The sandbox processes of an agent.
fn workers(agent: &Agent) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("children")).ok());
    let children: Vec<u32> =
        children.flat_map(|all| all.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect();
    children.into_iter().filter(|pid| command_line(*pid).contains("sandbox")).collect()
}

fn command_line(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
}

async fn worker(agent: &Agent) -> u32 {
    wait_for("one sandbox process", || workers(agent), |all| all.len() == 1).await[0]
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).unwrap()
}

fn kill(number: u32) {
    kill_process(pid(number), Signal::KILL).unwrap();
}

fn write_guest(node: &Node, name: &str, behaviour: &str) {
    node.write_configuration(name, "guest", &format!("      {behaviour}\n"), "");
}

/// The open files of a process, without the kernel's own numbers.
fn open_files(pid: u32) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let names = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    names.map(|name| name.display().to_string().split(':').next().unwrap().to_owned()).collect()
}

/// The sockets of a process.
fn sockets(pid: u32) -> BTreeSet<PathBuf> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let names = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    names.filter(|name| name.to_string_lossy().starts_with("socket:")).collect()
}

#[tokio::test] // threat 21
async fn sandbox_process_has_nothing_of_the_agent() {
    let node = Node::new();
    let _kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_echo("echo", 1, &["one"]);
    let agent = node.start();
    node.wait_for_instances("a device", |all| all.len() == 1).await;
    let number = worker(&agent).await;
    for file in open_files(number) {
        let is_harmless =
            ["socket", "pipe", "anon_inode", "/dev/null", "/memfd"].iter().any(|name| file.starts_with(name));
        assert!(is_harmless, "{file}");
    }
    let (own, agents) = (sockets(number), sockets(agent.pid()));
    assert!(!own.is_empty() && own.iter().all(|socket| !agents.contains(socket)), "{own:?} {agents:?}");
    let log_of = |number: u32| fs::read_link(format!("/proc/{number}/fd/2")).unwrap();
    assert_ne!(log_of(number), log_of(agent.pid()), "its lines come through the agent");
    assert_eq!(getpgid(Some(pid(number))).unwrap(), pid(number), "signals of a terminal are for the agent");
    let environment = fs::read_to_string(format!("/proc/{number}/environ")).unwrap();
    for name in ["AKRI_RECLAIM_DELAY_SECONDS", "PATH", "HOME", "KUBECONFIG"] {
        assert!(!environment.contains(name), "{environment}");
    }
    let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap();
    assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
    let limits = fs::read_to_string(format!("/proc/{number}/limits")).unwrap();
    let of = |name: &str| {
        limits.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().nth_back(1).unwrap().to_owned()
    };
    assert_eq!((of("Max data size"), of("Max core file size")), ((384 << 20).to_string(), "0".to_owned()));
    assert!(!command_line(number).contains(node.path("kubelet").to_str().unwrap()));
    assert!(agent.stop());
    wait_for("the end of the sandbox process", || command_line(number), String::is_empty).await;
    // The kernel gives files in /proc of a process to root if others of its user may not attach to it.
    if !is_root() {
        return;
    }
    const NOBODY: u32 = 65_534;
    let compiled = tempfile::tempdir().unwrap();
    fs::set_permissions(compiled.path(), fs::Permissions::from_mode(0o700)).unwrap();
    chown(compiled.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(akri());
    command.args([
        "sandbox",
        "--memory",
        "268435456",
        "--sysfs",
        "/sys",
        "--udev-data",
        "/run/udev/data",
        "--compiled",
    ]);
    command.arg(compiled.path()).stdin(OwnedFd::from(theirs)).uid(NOBODY).gid(NOBODY);
    let mut process = command.spawn().unwrap();
    let directory = PathBuf::from(format!("/proc/{}", process.id()));
    let status = || fs::read_to_string(directory.join("status")).unwrap();
    wait_for("a confined process", status, |status| status.contains("Seccomp:\t2\n")).await;
    assert!(status().contains("Uid:\t65534\t"));
    assert_eq!(directory.join("environ").metadata().unwrap().uid(), 0);
    assert!(process.try_wait().unwrap().is_none(), "it serves");
    process.kill().unwrap();
    process.wait().unwrap();
}

/// Its rounds fail when their time is over.
#[tokio::test] // rule 92, threat 19
async fn sandbox_process_that_hangs_is_killed() {
    let node = Node::new();
    node.add_guest("  limits:\n    round: 1s\n");
    node.write_echo("echo", 1, &["one"]);
    write_guest(&node, "guest", "devices:2");
    let mut agent = node.start();
    let found = node.wait_for_instances("every device", |all| all.len() == 3).await;
    let hanging = worker(&agent).await;
    kill_process(pid(hanging), Signal::STOP).unwrap();
    agent.wait_for_log("the sandbox process does not answer; killing it").await;
    wait_for("the end of the process", || command_line(hanging), String::is_empty).await;
    assert_eq!(identities(&node.instances()), identities(&found));
    node.write_echo("echo", 1, &["one", "two"]);
    let after = node.wait_for_instances("another device", |all| all.len() == 4).await;
    assert!(after.iter().all(is_online) && agent.is_running());
}

/// Listeners of the time between rounds move with the component.
#[tokio::test] // threat 29
async fn process_of_a_replaced_component_ends_though_it_listened() {
    const GRANTED: &str =
        "  interval: 1h\n  grants:\n    multicast:\n    - {group: 239.255.255.250, port: 3702, interfaces: [lo]}\n";
    let Some(network) = Namespace::new() else { return };
    let node = Node::new();
    node.add_guest("");
    node.write_handler("guest", "guest.wasm", &format!("  isolation: own\n{GRANTED}"));
    write_guest(&node, "guest", "devices:1");
    node.write_echo("echo", 1, &["one"]);
    let agent = node.start_by(network.command(&akri()), &[]);
    let rounds = || agent.log().matches("round done configuration=default/guest ").count();
    let datagram = || {
        let send =
            || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().send_to(b"<Hello/>", ("239.255.255.250", 3702));
        network.run(send).join().unwrap().unwrap();
        rounds()
    };
    node.wait_for_instances("every device", |all| all.len() == 2).await;
    wait_for("a round for a datagram", datagram, |rounds| *rounds >= 2).await;
    wait_for("two processes", || workers(&agent), |all| all.len() == 2).await;
    let before = rounds();
    node.write_handler("guest", "guest.wasm", GRANTED);
    wait_for("a round in the shared process", rounds, |rounds| *rounds > before).await;
    assert_eq!(worker(&agent).await, pid_of(&agent, "shared"));
    let before = rounds();
    wait_for("a round for a datagram", datagram, |rounds| *rounds > before).await;
}

/// A round that ends its process for the second time is its last one for ten minutes.
#[tokio::test] // rule 92, rule 135, threat 18
async fn component_that_crashed_harms_only_itself_from_then_on() {
    let node = Node::new();
    // No round of this one is in the process when it ends, or this one would be apart, too.
    node.write_handler("debug-echo", "debug_echo.wasm", "  name: debugEcho\n  interval: 1h\n");
    node.add_guest("  limits:\n    round: 20s\n");
    node.write_echo("echo", 1, &["one"]);
    write_guest(&node, "guest", "devices:2");
    let agent = node.start();
    let found = node.wait_for_instances("every device", |all| all.len() == 3).await;
    write_guest(&node, "guest", "sleep");
    agent.wait_for_log("sleeps").await;
    kill(pid_of(&agent, "shared"));
    // Its next round is in a process of its own, beside which others run.
    let own = wait_for("its own process", || own_process(&agent), Option::is_some).await.unwrap();
    node.write_echo("echo", 1, &["one", "two"]);
    node.wait_for_instances("another handler's device", |all| all.len() == 4).await;
    let shared = pid_of(&agent, "shared");
    assert_ne!(shared, own);
    kill(own);
    wait_for("its end", || agent.log(), |log| log.contains(&format!("ended by signal 9 pid={own}"))).await;
    // Whether the first end counts depends on whether another round was in the process then.
    let has_failed = |ready: &Option<Condition>| {
        ready.as_ref().is_some_and(|ready| ["Trapped", "Quarantined"].contains(&ready.reason.as_str()))
    };
    let failed = wait_for("a failed round", || node.condition("guest", "Ready"), has_failed).await.unwrap();
    assert!(failed.message.contains("the sandbox process ended by signal 9"), "{}", failed.message);
    // Others notice nothing, and its devices stay.
    node.write_echo("echo", 1, &["one", "two", "three"]);
    let after = node.wait_for_instances("another handler's device", |all| all.len() == 5).await;
    assert!(identities(&found).iter().all(|known| identities(&after).contains(known)));
    assert!(workers(&agent).contains(&shared));
    // It stays apart, good rounds or not.
    write_guest(&node, "guest", "devices:2");
    node.wait_for_condition("guest", "Ready", "True", "Discovered").await;
    assert_ne!(own_process(&agent), Some(own));
    assert_eq!(pid_of(&agent, "shared"), shared);
}

/// The process of a component alone that was started last.
fn own_process(agent: &Agent) -> Option<u32> {
    let log = agent.log();
    let line = log.lines().rfind(|line| line.contains("sandbox process started") && !line.contains("\"shared\""))?;
    line.rsplit_once("pid=")?.1.trim().parse().ok()
}

#[tokio::test] // threat 29
async fn isolated_component_has_a_process_of_its_own() {
    let node = Node::new();
    node.add_guest("  isolation: own\n  limits:\n    round: 20s\n");
    node.write_echo("echo", 1, &["one"]);
    write_guest(&node, "guest", "devices:2");
    let agent = node.start();
    node.wait_for_instances("every device", |all| all.len() == 3).await;
    wait_for("two processes", || workers(&agent), |all| all.len() == 2).await;
    agent.wait_for_log("sandbox process started sandbox=\"shared\"").await;
    let shared = pid_of(&agent, "shared");
    // It shares again when the object says so, and its process ends.
    node.add_guest("  limits:\n    round: 20s\n");
    write_guest(&node, "guest", "devices:3");
    node.wait_for_instances("another device", |all| all.len() == 4).await;
    assert_eq!(worker(&agent).await, shared);
    node.add_guest("  isolation: own\n  limits:\n    round: 20s\n");
    let both = wait_for("two processes again", || workers(&agent), |all| all.len() == 2).await;
    // The end of its own is nothing to the others.
    let own = both.into_iter().find(|pid| *pid != shared).unwrap();
    write_guest(&node, "guest", "sleep");
    agent.wait_for_log("sleeps").await;
    kill(own);
    node.wait_for_condition("guest", "Ready", "False", "Trapped").await;
    assert!(workers(&agent).contains(&shared));
}

/// The id of the process with a name, as the log has it.
fn pid_of(agent: &Agent, name: &str) -> u32 {
    let log = agent.log();
    let mut lines = log.lines();
    let line = lines.rfind(|line| line.contains(&format!("sandbox process started sandbox={name:?} pid=")));
    line.unwrap().rsplit_once("pid=").unwrap().1.trim().parse().unwrap()
}

/// Limits that together are more than the process may have.
#[tokio::test] // threat 20
async fn memory_of_guests_is_bounded_by_the_process() {
    let node = Node::new();
    node.add_guest("  limits:\n    memory: 1Gi\n    round: 20s\n");
    node.write_echo("echo", 1, &["one"]);
    write_guest(&node, "guest", "devices:1");
    let mut agent = node.start_with(&["--sandbox-memory", "96"]);
    let found = node.wait_for_instances("every device", |all| all.len() == 2).await;
    let before = rss_kib(agent.pid());
    write_guest(&node, "guest", "memory");
    let failed = wait_for(
        "a failed round",
        || node.condition("guest", "Ready"),
        |ready| ready.as_ref().is_some_and(|ready| ready.status == "False"),
    );
    failed.await;
    node.write_echo("echo", 1, &["one", "two"]);
    let after = node.wait_for_instances("another handler's device", |all| all.len() == 3).await;
    assert!(identities(&found).iter().all(|known| identities(&after).contains(known)));
    assert!(after.iter().all(is_online) && agent.is_running());
    assert!(rss_kib(agent.pid()) < before + (32 << 10), "the agent's memory is not the guest's");
    assert!(workers(&agent).into_iter().all(|pid| rss_kib(pid) < 160 << 10));
}
