//! The time from the agent's start to its first device, which is mostly that of compiling components.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use akri_tests::node::{Node, akri};

use crate::measure::{Samples, Table};

const STARTS: usize = 10;

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
    start(Code::Kept).await; // fills what it keeps
    for (what, code, beside) in [
        ("cold: all components are compiled", Code::None, ""),
        ("warm: compiled by an earlier agent", Code::Kept, "target: ≤ 200 ms"),
        ("precompiled code in the image", Code::Precompiled, "target: ≤ 200 ms"),
    ] {
        let mut samples = Vec::new();
        for _ in 0..STARTS {
            samples.push(start(code).await);
        }
        table.row(what, &Samples::new(samples), beside);
    }
    table
}

/// Starts the agent of a new node with two components.
async fn start(code: Code) -> Duration {
    let node = Node::new();
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
