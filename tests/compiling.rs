//! Components that are expensive to compile, by mistake or on purpose: the compiler is a process of its own, and nothing waits
//! for it but the handler that it compiles.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use akri_api::condition;
use akri_api::{DiscoveryHandlerStatus, HandlerState};

use crate::support::costly_components::{large_segments, nested_loops};
use crate::support::node::{Agent, Node, wait_for};

/// The message of the condition that says why a handler can't be used.
fn refusal(status: &DiscoveryHandlerStatus) -> Option<String> {
    let accepted = condition::find(&status.conditions, "Accepted")?;
    (status.state == HandlerState::Refused && accepted.status == "False").then(|| accepted.message.clone())
}

async fn refused(node: &Node, handler: &str, what: &str) {
    let is_refused = |status: &DiscoveryHandlerStatus| refusal(status).is_some_and(|why| why.contains(what));
    node.wait_for_handler(handler, what, is_refused).await;
}

#[tokio::test] // rule 91, threat 2, threat 3, threat 4
async fn costly_compilation_is_refused_and_delays_no_other() {
    let node = Node::new();
    // It sorts before all others.
    fs::write(node.path("components/aaa.wasm"), nested_loops(40_000)).unwrap();
    node.write_handler("aaa", "aaa.wasm", "  limits:\n    compile: {time: 1m}\n");
    node.write_echo("echo", 1, &["one"]);
    let mut agent = node.start();
    node.wait_for_instances("the device of another handler", |all| all.len() == 1).await;
    let is_shown = |status: &DiscoveryHandlerStatus| status.state == HandlerState::Loading;
    node.wait_for_handler("aaa", "being compiled", is_shown).await;
    agent.wait_for_log("the component is being compiled").await;
    // What is granted takes effect at once, although the compiler is busy.
    node.write_handler("udev", "udev.wasm", "  interval: 200ms\n");
    let applied = |log: &String| log.matches("handler ready handler=\"udev\"").count() == 2;
    wait_for("the grants of today", || agent.log(), applied).await;
    node.write_configuration("mem", "udev", "      udevRules:\n      - KERNEL==\"null\"\n", "");
    node.wait_for_condition("mem", "Ready", "False", "NotGranted").await;
    // So does a limit of its own, and what failed is not tried again.
    node.write_handler("aaa", "aaa.wasm", "  limits:\n    compile: {time: 1s}\n");
    refused(&node, "aaa", "compiling it takes more than 1s of processor time; limits.compile.time").await;
    let tries = compilations(&agent);
    fs::write(node.path("components/other.txt"), "").unwrap();
    node.write_handler("debug-echo", "debug_echo.wasm", "  name: debugEcho\n  interval: 300ms\n");
    node.wait_for_instances("the device of another handler", |all| all.len() == 1).await;
    assert_eq!(compilations(&agent), tries);
    // Memory is limited likewise.
    fs::write(node.path("components/large.wasm"), large_segments()).unwrap();
    node.write_handler("large", "large.wasm", "  limits:\n    compile: {memory: 128Mi}\n");
    refused(&node, "large", "compiling it takes more than 128 MiB of memory; limits.compile.memory").await;
    node.write_echo("echo", 1, &["one", "two"]);
    node.wait_for_instances("one more device of another handler", |all| all.len() == 2).await;
    assert!(agent.is_running());
}

/// The hostile components sort first, and none of them compiles within its 8 s of processor time.
#[tokio::test] // rule 91, threat 2
async fn good_handler_waits_for_no_hostile_component() {
    let node = Node::new();
    own_state(&node);
    for number in 0..4 {
        let file = format!("aaa-{number}.wasm");
        fs::write(node.path(&format!("components/{file}")), nested_loops(40_000 + number)).unwrap();
        node.write_handler(&format!("aaa-{number}"), &file, "  limits:\n    compile: {time: 8s}\n");
    }
    node.write_echo("echo", 1, &["one"]);
    let agent = node.start();
    node.wait_for_instances("the device of the good handler", |all| all.len() == 1).await;
    let log = agent.log();
    assert!(!log.contains("compiling it takes more than"), "a hostile component came first: {log}");
    assert!(log.matches("compiling a component").count() > 2, "they were tried: {log}");
}

fn compilations(agent: &Agent) -> usize {
    agent.log().matches("compiling a component").count()
}

/// The files with machine code below a directory of the node.
fn machine_code(node: &Node, directory: &str) -> Vec<PathBuf> {
    let versions = fs::read_dir(node.path(directory).join("modules")).into_iter().flatten();
    let files = versions.flat_map(|version| fs::read_dir(version.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_none()).collect()
}

/// Gives the node a state directory without compiled components, which stories share otherwise.
fn own_state(node: &Node) {
    fs::create_dir(node.path("state")).unwrap();
}

/// A node without compiled components, and the directory of precompiled ones that its agent is to use.
fn precompiled_node() -> (Node, String) {
    precompiled_node_for(&[])
}

/// Likewise, with flags of the compiler.
fn precompiled_node_for(flags: &[&str]) -> (Node, String) {
    let node = Node::new();
    own_state(&node);
    node.write_echo("echo", 1, &["one"]);
    let path = |name: &str| node.path(name).to_str().unwrap().to_owned();
    let (directory, udev, echo) =
        (path("precompiled"), path("components/udev.wasm"), path("components/debug_echo.wasm"));
    let command = ["handler", "compile", "--precompiled", &directory, &udev, &echo];
    let made = node.akri(&[&command, flags].concat());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (node, directory)
}

#[tokio::test] // rule 91, threat 11
async fn precompiled_components_need_no_compiler() {
    let (node, directory) = precompiled_node();
    let agent = node.start_with(&["--precompiled", &directory]);
    node.wait_for_instances("its device", |all| all.len() == 1).await;
    agent.wait_for_log("handler ready handler=\"udev\"").await;
    assert_eq!(agent.log().matches("using precompiled code").count(), 2);
    let log = agent.log();
    assert!(compilations(&agent) == 0 && !log.contains("had to be made here"), "{log}");
    // Other components are compiled as ever.
    fs::write(node.path("components/other.wasm"), nested_loops(10)).unwrap();
    node.write_handler("other", "other.wasm", "");
    refused(&node, "other", "").await;
    assert_eq!(compilations(&agent), 1);
    assert!(agent.stop());

    let agent = node.start();
    agent.wait_for_log("handler ready handler=\"debugEcho\"").await;
    agent.wait_for_log("handler ready handler=\"udev\"").await;
    assert!(!agent.log().contains("had to be made here"), "what was used is kept");
    drop((agent, node));

    // Code that others could have written is not used.
    let (node, directory) = precompiled_node();
    for file in machine_code(&node, "precompiled") {
        fs::set_permissions(file, Permissions::from_mode(0o666)).unwrap();
    }
    let agent = node.start_with(&["--precompiled", &directory]);
    agent.wait_for_log("precompiled code is not used: ").await;
    node.wait_for_instances("its device", |all| all.len() == 1).await;
    agent.wait_for_log("handler ready handler=\"udev\"").await;
    assert_eq!(compilations(&agent), 2);
}

#[tokio::test] // rule 91
async fn code_of_another_platform_is_compiled_anew() {
    let other = if cfg!(target_arch = "x86_64") { "linux/arm64" } else { "linux/amd64" };
    for platform in [other, "linux/arm/v7"] {
        let (node, directory) = precompiled_node_for(&["--target", platform]);
        let agent = node.start_with(&["--precompiled", &directory]);
        agent.wait_for_log(&format!("precompiled code is not used: it is for {platform}, and this node is ")).await;
        node.wait_for_instances("its device", |all| all.len() == 1).await;
        agent.wait_for_log("handler ready handler=\"udev\"").await;
        assert_eq!(compilations(&agent), 2);
    }
    let refused = Node::new().akri(&["handler", "compile", "--target", "linux/mips", "--output", "/tmp/x"]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("it is none of linux/amd64, linux/arm64, linux/arm/v7"), "{message}");
}
