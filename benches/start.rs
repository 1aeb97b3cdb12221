//! The time from the agent's start to its first device, which is mostly that of compiling components.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use akri_tests::costly_components::nested_loops;
use akri_tests::node::{Node, akri};

use crate::measure::{Samples, Table};

const STARTS: usize = 10;
/// Starts beside hostile components, which keep the compilers busy for a minute each.
const HOSTILE_STARTS: usize = 3;

/// Compiled components at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    /// Nothing is there.
    None,
    /// In the state directory, as after a restart.
    Kept,
    /// Beside the program, as in the image.
    Precompiled,
}

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("From the agent's start to its first device");
    start(Code::Kept, 0).await; // fills what it keeps
    for (what, code, beside) in [
        ("cold: all components are compiled", Code::None, ""),
        ("warm: compiled by an earlier agent", Code::Kept, "target: ≤ 200 ms"),
        ("precompiled code in the image", Code::Precompiled, "target: ≤ 200 ms"),
    ] {
        let mut samples = Vec::new();
        for _ in 0..STARTS {
            samples.push(start(code, 0).await);
        }
        table.row(what, &Samples::new(samples), beside);
    }
    let mut samples = Vec::new();
    for _ in 0..HOSTILE_STARTS {
        samples.push(start(Code::None, 4).await);
    }
    table.row("cold, beside four that take minutes to compile", &Samples::new(samples), "target: ≤ 5 s");
    table
}

/// Starts the agent of a new node with two components, and so many that do not compile in time.
async fn start(code: Code, hostile: usize) -> Duration {
    let node = Node::new();
    for number in 0..hostile {
        let file = format!("aaa-{number}.wasm");
        fs::write(node.path("components").join(&file), nested_loops(40_000 + number)).unwrap();
        node.write_handler(&format!("aaa-{number}"), &file, "");
    }
    node.write_echo("echo", 1, &["one"]);
    if code != Code::Kept {
        // Otherwise the node shares one with all others.
        fs::DirBuilder::new().mode(0o700).create(node.path("state")).unwrap();
    }
    let directory = node.path("precompiled");
    let mut flags = Vec::new();
    if code == Code::Precompiled {
        precompile(&node.path("components"), &directory);
        flags.extend(["--precompiled", directory.to_str().unwrap()]);
    }
    let start = Instant::now();
    let agent = node.start_with(&flags);
    while node.instances().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let taken = start.elapsed();
    agent.stop();
    taken
}

fn precompile(components: &Path, directory: &Path) {
    let mut command = Command::new(akri());
    command.args(["handler", "compile", "--precompiled"]).arg(directory);
    let made = command.args(["udev.wasm", "debug_echo.wasm"].map(|file| components.join(file))).status().unwrap();
    assert!(made.success());
}
