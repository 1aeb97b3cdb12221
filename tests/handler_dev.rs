//! `akri handler dev`: what an author sees while files change.

use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::node::{Node, akri, built_components, compiled_components, guest};

const CONFIGURATION: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: echo}
spec:
  discoveryHandler:
    name: debugEcho
    discoveryDetails: '{descriptions: [DEVICES]}'
";

const GRANT: &str = "\
apiVersion: akri.sh/v0
kind: DiscoveryHandler
metadata: {name: guest}
spec:
  component: {file: built.wasm}
  grants: {tcp: [{networks: [127.0.0.0/8], ports: [9]}]}
";

/// A running `akri handler dev`.
struct Dev {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Dev {
    fn start(project: &Path) -> Self {
        let mut command = Command::new(akri());
        command.args(["handler", "dev", "built.wasm", "configuration.yaml", "--build", "sh ./build.sh"]);
        command.args(["--node-name", "node-a"]).current_dir(project).env("XDG_CACHE_HOME", compiled_components());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let sender = sender.clone();
            thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    let _ = sender.send(line.unwrap());
                }
            });
        }
        Self { child, lines, seen: Vec::new() }
    }

    /// Waits for a line with this text, and returns it.
    fn prints(&mut self, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(90); // the component may have to be compiled
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else { panic!("no '{text}' in {:#?}", self.seen) };
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Ctrl-C.
    fn interrupt(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn changes_of_files_are_built_and_their_effects_printed() {
    let node = Node::new();
    let project = node.path("project");
    fs::create_dir(&project).unwrap();
    // Without a Makefile, the command for a build has to be named.
    let directory = project.display().to_string();
    let output = node.akri(&["handler", "dev", "built.wasm", "configuration.yaml", "--directory", &directory]);
    let message =
        format!("error: '{directory}' has no Makefile; name the command that builds the component with --build\n");
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(1), message));
    let nowhere = ["handler", "dev", "built.wasm", "try.yaml", "--directory", "nowhere", "--build", "true"];
    let output = node.akri(&nowhere);
    let message = "error: cannot build in 'nowhere': No such file or directory (os error 2)\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), message);
    // At once, as editors do: half a file would be an error of its own.
    let write = |name: &str, text: &str| {
        node.write("saved", text);
        fs::rename(node.path("saved"), project.join(name)).unwrap();
    };
    let devices = |devices: &str| write("configuration.yaml", &CONFIGURATION.replace("DEVICES", devices));
    // Two versions of a handler: the second one calls a property otherwise.
    let mut wasm = fs::read(built_components().join("debug_echo.wasm")).unwrap();
    fs::write(node.path("one.wasm"), &wasm).unwrap();
    let (old, new) = (b"DEBUG_ECHO_DESCRIPTION", b"DEBUG_ECHO_DESCRIPTIVE");
    let at = wasm.windows(old.len()).position(|part| part == old).unwrap();
    wasm[at..at + new.len()].copy_from_slice(new);
    fs::write(node.path("two.wasm"), &wasm).unwrap();

    devices("a, b");
    write("build.sh", "cp ../one.wasm built.wasm");
    let mut dev = Dev::start(&project);
    dev.prints("building: sh ./build.sh");
    let built = dev.prints("built in ");
    assert!(built.contains(" s; debugEcho 0.1.0 loaded in "), "{built}");
    dev.prints("default/echo: 2 devices; the round took ");
    let added = [dev.prints("+ akri.sh/echo-"), dev.prints("+ akri.sh/echo-")];
    assert!(added[0].ends_with(" a a") && added[1].ends_with(" b b"), "{added:?}");

    // A changed Configuration, and its mistakes.
    devices("b, c");
    dev.prints("default/echo: 2 devices; the round took ");
    assert!(dev.prints("- akri.sh/echo-").ends_with(" a a"));
    assert!(dev.prints("+ akri.sh/echo-").ends_with(" c c"));
    write("configuration.yaml", &CONFIGURATION.replace("discoveryHandler", "discoveryHandle"));
    assert!(dev.prints("unknown field").starts_with("error: "));
    dev.prints("; the component from before goes on");
    devices("b, c");
    dev.prints("default/echo: 2 devices; the round took ");

    // A build that fails, and one that is mended.
    write("build.sh", "echo handler.c:3: expected a semicolon; exit 3");
    assert_eq!(dev.prints("semicolon"), "  handler.c:3: expected a semicolon");
    assert_eq!(dev.prints("error: "), "error: the build failed with exit code 3; the component from before goes on");
    write("build.sh", "cp ../two.wasm built.wasm");
    dev.prints("default/echo: 2 devices; the round took ");
    let changed = dev.prints("~ akri.sh/echo-");
    for change in ["  DEBUG_ECHO_DESCRIPTION: \"b\" -> null", "  DEBUG_ECHO_DESCRIPTIVE: null -> \"b\""] {
        assert!(changed.contains(change), "{changed}");
    }

    // Another handler, which is refused something until a grant allows it.
    fs::copy(guest(), node.path("guest.wasm")).unwrap();
    write("build.sh", "cp ../guest.wasm built.wasm");
    assert!(
        dev.prints("error: ").contains("holds no Configuration for handler 'guest'; handlers named there: debugEcho;")
    );
    let guest = CONFIGURATION.replace("debugEcho", "guest").replace("{descriptions: [DEVICES]}", "tcp:127.0.0.1:9");
    write("configuration.yaml", &guest);
    assert!(dev.prints("- akri.sh/echo-").ends_with(" b b"));
    let refused = "refused: a tcp socket: grants.tcp of the DiscoveryHandler is empty; a line to begin with, below spec.grants: \
                   tcp: [{networks: [192.0.2.7], ports: [502]}]";
    while dev.prints("refused: a") != refused {} // the log of each round has it, too
    write("configuration.yaml", &format!("{guest}---\n{GRANT}"));
    assert_eq!(dev.prints("no longer refused"), format!("no longer {refused}"));

    // A device stays while what it comes from is not reached, as in an agent.
    let guest_does = |what: &str| write("configuration.yaml", &guest.replace("tcp:127.0.0.1:9", what));
    guest_does("keep:found");
    assert!(dev.prints("+ akri.sh/echo-").ends_with(" camera"));
    guest_does("keep");
    dev.prints("not reached: http://camera-1");
    assert!(!dev.seen.iter().any(|line| line.starts_with('-') && line.ends_with(" camera")), "{:#?}", dev.seen);
    guest_does("devices:1");
    assert!(dev.prints("- akri.sh/echo-").ends_with(" camera"));

    // Ctrl-C ends a build with the processes that it started.
    write("build.sh", "sleep 1000 & echo $! >../sleeps; wait");
    let deadline = Instant::now() + Duration::from_secs(30);
    let sleeping = loop {
        match fs::read_to_string(node.path("sleeps")).ok().and_then(|text| text.trim().parse::<u32>().ok()) {
            Some(pid) => break format!("/proc/{pid}/cmdline"),
            None if Instant::now() > deadline => panic!("{:#?}", dev.seen),
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    assert!(Path::new(&sleeping).exists());
    dev.interrupt();
    while fs::read(&sleeping).is_ok_and(|command| !command.is_empty()) {
        assert!(Instant::now() < deadline, "the build still runs");
        thread::sleep(Duration::from_millis(20));
    }
}
