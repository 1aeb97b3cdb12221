//! The command line: what it prints for people and programs, and how it ends.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, akri, built_components, compiled_components, identities, wait_for};

const CAM: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: cam
spec:
  discoveryHandler:
    name: debugEcho
    discoveryDetails: |
      descriptions: [foo0]
";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A pipe that nobody reads any more.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

pub fn akri_to(stdout: Stdio, directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(akri());
    command.env("XDG_CACHE_HOME", compiled_components()).current_dir(directory).args(arguments);
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn closed_output_pipe_causes_no_panic() {
    let node = Node::new();
    node.write("cam.yaml", CAM);
    fs::create_dir_all(node.path("state/configurations")).unwrap();
    for arguments in [
        &["crds"][..],
        &["get", "handlers", "--state-dir", "state"],
        &["discover", "cam.yaml", "--components", "components"],
        &["discover", "cam.yaml", "--components", "components", "-o", "json"],
        &["discover", "cam.yaml", "--components", "components", "--watch"],
        &["handler", "inspect", "components/udev.wasm", "-o", "yaml"],
        &["handler", "validate", "components/debug_echo.wasm", "cam.yaml"],
    ] {
        let removed = akri_to(closed_pipe(), &node.path(""), arguments);
        let printed = text(&removed.stderr);
        assert!(
            removed.status.success() && !printed.contains("panicked") && !printed.contains("error"),
            "{arguments:?}: {printed}"
        );
        let full = akri_to(full(), &node.path(""), arguments);
        let printed = text(&full.stderr);
        let expected = "error: cannot write to standard output: No space left on device (os error 28)\n";
        assert_eq!((full.status.code(), printed.ends_with(expected)), (Some(1), true), "{arguments:?}: {printed}");
    }
    for (stdout, code) in [(closed_pipe(), 0), (full(), 1)] {
        let made = akri_to(stdout, &node.path(""), &["handler", "new", &format!("new-{code}")]);
        assert_eq!(made.status.code(), Some(code), "{}", text(&made.stderr));
    }
    let unread = Command::new(akri()).args(["handler", "inspect", "nowhere.wasm"]).stderr(closed_pipe()).status();
    assert_eq!(unread.unwrap().code(), Some(1), "the error, and no panic");
}

#[test]
fn endless_input_is_refused_at_once() {
    let node = Node::new();
    let [pipe, endless] = ["pipe.yaml", "endless.yaml"].map(|name| node.path(name).display().to_string());
    mkfifoat(CWD, &*pipe, Mode::RUSR | Mode::WUSR).unwrap();
    symlink("/dev/zero", &endless).unwrap();
    for input in [&*endless, &pipe] {
        for arguments in [
            ["handler", "inspect", input].as_slice(),
            &["handler", "inspect", "components/udev.wasm", "--handler-object", input],
            &["handler", "test", "components/udev.wasm", "--cassette", input],
            &["handler", "componentize", input, "made.wasm"],
            &["discover", input, "--components", "components"],
            &["upgrade", "check", input],
        ] {
            let printed = text(&akri_to(Stdio::piped(), &node.path(""), arguments).stderr);
            assert!(
                printed.contains(&format!("cannot read '{input}': not a regular file")),
                "{arguments:?}: {printed}"
            );
        }
    }
    let mut command = Command::new(akri());
    command.args(["discover", "-"]).stdin(File::open(endless).unwrap());
    let printed = text(&command.output().unwrap().stderr);
    assert!(printed.contains("cannot read '-': larger than "), "{printed}");
}

#[tokio::test]
async fn agent_goes_on_when_its_output_is_closed() {
    for (stdout, expected) in
        [(closed_pipe(), ""), (full(), "--show ends: cannot write to standard output: No space left")]
    {
        let node = Node::new();
        node.share_compiled();
        let mut command = Command::new(akri());
        command.args(["agent", "--show", "--local", "manifests", "--components", "components", "--state-dir", "state"]);
        command.args(["--kubelet-dir", "kubelet", "--handlers-dir", "handlers", "--node-name", "node-a"]);
        let log = File::create(node.path("log")).unwrap();
        let mut agent = command.current_dir(node.path("")).stdout(stdout).stderr(log).spawn().unwrap();
        let log = || fs::read_to_string(node.path("log")).unwrap();
        node.write("manifests/cam.yaml", CAM);
        node.wait_for_instances("the device", |list| list.len() == 1).await;
        wait_for("what is said of the output", log, |log| log.contains(expected)).await;
        node.write("manifests/cam.yaml", &CAM.replace("foo0", "foo0, foo1"));
        node.wait_for_instances("another device", |list| list.len() == 2).await;
        kill_process(Pid::from_child(&agent), Signal::TERM).unwrap();
        let ended = agent.wait().unwrap();
        assert!(ended.success() && !log().contains("panicked"), "{}", log());
    }
}

#[tokio::test]
async fn table_on_a_terminal_is_drawn_in_place() {
    let node = Node::new();
    node.share_compiled();
    node.write("manifests/cam.yaml", CAM);
    let agent = "exec \"$0\" agent --show --local manifests --components components --state-dir state --kubelet-dir kubelet \
                 --handlers-dir handlers --node-name node-a";
    let mut command = Command::new("script");
    command.args(["--quiet", "--flush", "--command", &agent.replace("$0", akri().to_str().unwrap()), "/dev/null"]);
    let screen = File::create(node.path("screen")).unwrap();
    let mut terminal = command.current_dir(node.path("")).stdin(Stdio::null()).stdout(screen).spawn().unwrap();
    let screen = || String::from_utf8_lossy(&fs::read(node.path("screen")).unwrap()).into_owned();
    wait_for("the device", screen, |screen| screen.contains(" foo0 ")).await;
    node.write("manifests/cam.yaml", &CAM.replace("foo0", "foo0, foo1"));
    let drawn = wait_for("another device", screen, |screen| screen.contains(" foo1 ")).await;
    kill_process(Pid::from_child(&terminal), Signal::TERM).unwrap();
    terminal.wait().unwrap();
    let (before, _) = drawn.split_once(" foo1 ").unwrap();
    let (_, after_first) = before.split_once(" foo0 ").unwrap();
    assert!(after_first.contains("\x1b[2K"), "its lines are cleared: {before:?}");
    assert!(!drawn.contains("\x1b[2J") && !drawn.contains("\x1b[H"), "and no others: {drawn:?}");
}

#[test]
fn errors_are_printed_once_with_a_remedy() {
    let node = Node::new();
    let without_cluster = |command: &str| {
        let mut akri = Command::new(akri());
        akri.args(command.split(' '))
            .env_remove("KUBECONFIG")
            .env_remove("KUBERNETES_SERVICE_HOST")
            .env("HOME", node.path(""));
        let output = akri.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    let expected = "no API server is configured: set KUBECONFIG, or run in a pod with a service account: ";
    let printed = without_cluster("controller");
    assert!(printed.starts_with(&format!("error: {expected}")) && !printed.contains("--local"), "{printed}");
    assert_eq!(printed.matches("No such file or directory").count(), 1, "{printed}");
    let printed = without_cluster("agent");
    assert!(
        printed.starts_with(&format!("error: without --local DIR the agent needs an API server: {expected}")),
        "{printed}"
    );

    let printed = without_cluster("get devices --state-dir /nonexistent");
    let no_agent = "error: no local agent keeps its state in '/nonexistent' (--state-dir): ";
    assert!(printed.starts_with(&format!("{no_agent}{expected}")), "{printed}");

    let printed = text(&node.akri(&["agent", "--listen", "9464"]).stderr);
    assert!(printed.contains("'--listen <ADDRESS>': this is not ADDRESS:PORT, such as 127.0.0.1:9464"), "{printed}");

    fs::create_dir_all(node.path("state/lock")).unwrap();
    fs::create_dir_all(node.path("state/instances/default/cam.json")).unwrap();
    fs::create_dir_all(node.path("state/configurations")).unwrap();
    let path = |name: &str| node.path(name).display().to_string();
    let (state, kubelet, handlers) = (path("state"), path("kubelet"), path("handlers"));
    let printed = text(&node.akri(&["get", "instances", "--state-dir", &state]).stderr);
    let expected = "/instances/default/cam.json': Is a directory (os error 21)\n";
    assert!(printed.ends_with(&format!("error: cannot read '{state}{expected}")), "{printed}");
    let local = ["agent", "--local", &path("manifests"), "--kubelet-dir", &kubelet, "--handlers-dir", &handlers];
    let printed = text(&node.akri(&[&local[..], &["--state-dir", &state]].concat()).stderr);
    let expected = "/lock': Is a directory (os error 21); set another state directory with --state-dir\n";
    assert!(printed.ends_with(&format!("error: cannot lock '{state}{expected}")), "{printed}");
    let printed = text(&node.akri(&["handler", "pull", "user:word@registry.example.org/a"]).stderr);
    assert!(printed.contains("'...@registry.example.org/a'") && !printed.contains("word"), "{printed}");
    // Before anything is pulled.
    node.write("a.wasm", "");
    for (flags, expected) in
        [(&[][..], "'a.wasm' exists; name a file with --output"), (&["-o", "-"], "--output is a file")]
    {
        let pull = [&["handler", "pull", "registry.invalid/a"], flags].concat();
        let printed = text(&akri_to(Stdio::piped(), &node.path(""), &pull).stderr);
        assert!(printed.contains(expected), "{printed}");
    }
    start_with_unusable_state_directories(&node);
}

/// An agent names the part of its state directory that it can't use, and registers nothing.
fn start_with_unusable_state_directories(node: &Node) {
    fs::write(node.path("file"), "").unwrap();
    for name in ["lock", "journal.jsonl"] {
        fs::create_dir_all(node.path(&format!("with-{name}")).join(name)).unwrap();
    }
    for (name, file) in [("with-instances", "instances"), ("with-compiled", "compiled")] {
        fs::create_dir_all(node.path(name)).unwrap();
        fs::write(node.path(name).join(file), "").unwrap();
    }
    for (state, expected) in [
        (
            "file/x",
            "cannot create state directory 'PATH': File exists (os error 17); set another one with --state-dir\n",
        ),
        ("file", "cannot create state directory 'PATH': File exists"),
        ("with-lock", "cannot lock 'PATH/lock': Is a directory"),
        ("with-journal.jsonl", "cannot read journal 'PATH/journal.jsonl': Is a directory"),
        ("with-instances", "cannot create directory 'PATH/instances': "),
        ("with-compiled", "cannot start the component host: the cache directory PATH/compiled: "),
    ] {
        let path = node.path(state).display().to_string();
        let (manifests, components) = (node.path("manifests"), node.path("components"));
        let output = node.akri(&[
            "agent",
            "--local",
            manifests.to_str().unwrap(),
            "--components",
            components.to_str().unwrap(),
            "--state-dir",
            &path,
            "--kubelet-dir",
            node.path("kubelet").to_str().unwrap(),
        ]);
        let expected = format!("error: {}", expected.replace("PATH", &path));
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(&expected), "{expected}: {}", text(&output.stderr));
    }
    assert_eq!(fs::read_dir(node.path("kubelet")).unwrap().count(), 0, "nothing was registered");
}

#[tokio::test] // rule 34
async fn get_shows_whether_an_agent_runs_and_what_is_wrong() {
    let node = Node::new();
    let state = node.path("state").display().to_string();
    let get = || node.akri(&["get", "instances", "--state-dir", &state, "-o", "json"]);
    node.write("manifests/cam.yaml", CAM);
    node.share_compiled();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    let agent = node.start();
    let found = node.wait_for_instances("the device", |list| list.len() == 1).await;
    let printed = || text(&get().stderr);
    wait_for("that nothing is wrong", printed, String::is_empty).await;
    // Problems of manifests are not only in the log.
    node.write("manifests/broken.yaml", "spec: [");
    node.write("manifests/cam.yaml", &format!("{CAM}  brokerSpec: {{brokerPodSpec: {{containers: []}}}}\n"));
    let both = |printed: &String| printed.contains("broken.yaml") && printed.contains("local mode runs no brokers");
    wait_for("both manifests", printed, both).await;
    agent.wait_for_log("local mode runs no brokers").await;
    node.remove("manifests/broken.yaml");
    node.write("manifests/cam.yaml", CAM);
    wait_for("that they are mended", printed, String::is_empty).await;
    drop(kubelet);
    let missing = |printed: &String| printed.starts_with("warning: no kubelet listens on '");
    fs::remove_file(node.path("kubelet/device-plugins/kubelet.sock")).unwrap_or_default();
    wait_for("the missing kubelet", printed, missing).await;
    assert!(agent.stop());
    let left = get();
    assert_eq!(text(&left.stderr), format!("warning: no agent runs on {state}; this is how it was left\n"));
    let shown: Vec<akri_api::Instance> = serde_json::from_slice(&left.stdout).unwrap();
    assert_eq!(identities(&shown), identities(&found));
    assert_eq!(left.status.code(), Some(0));
}

#[tokio::test]
async fn get_selects_objects_and_prints_rows_that_change() {
    let node = Node::new();
    let state = node.path("state").display().to_string();
    let get = |arguments: &[&str]| node.akri(&[&["get"][..], arguments, &["--state-dir", &state]].concat());
    node.write("manifests/cam.yaml", CAM);
    let _agent = node.start();
    let found = node.wait_for_instances("the device", |list| list.len() == 1).await;
    let instance = identities(&found).remove(0).0;
    wait_for("its status", || node.configurations().len(), |count| *count == 1).await;
    for arguments in [
        &["instance", &instance][..],
        &["instances", &format!("akri.sh/{instance}"), "-n", "default"],
        &["instances", "cam", "-o", "wide"],
        &["devices", "default/cam"],
        &["devices", "node-a"],
        &["slots", &instance],
        &["configuration", "cam", "-A"],
        &["akric"],
        &["handler", "debugEcho"],
    ] {
        let output = get(arguments);
        assert!(output.status.success() && text(&output.stdout).lines().count() == 2, "{arguments:?}: {output:?}");
    }
    assert_eq!(text(&get(&["configurations", "-n", "other"]).stdout), "no Configurations\n");
    let name = text(&get(&["instances", "cam", "-o", "name"]).stdout);
    assert_eq!(name, format!("instance.akri.sh/{instance}\n"));
    let misspelt = get(&["configuration", "cm"]);
    assert_eq!(misspelt.status.code(), Some(1));
    let expected = "error: there is no Configuration 'cm', did you mean 'cam'?\n";
    assert!(text(&misspelt.stderr).ends_with(expected), "{}", text(&misspelt.stderr));
    let shown: Vec<akri_api::Instance> = serde_json::from_slice(&get(&["instances", "-o", "json"]).stdout).unwrap();
    assert_eq!(identities(&shown), identities(&found));
    let one: akri_api::Instance = serde_json::from_slice(&get(&["instances", &instance, "-o", "json"]).stdout).unwrap();
    assert_eq!(identities(&[one]), identities(&found), "one by its name is an object and no list");
    let table = text(&get(&["instances"]).stdout);
    assert!(table.lines().nth(1).unwrap().starts_with("default     akri.sh/cam-8120fe   cam"), "{table}");
    watch_rows(&node).await;
}

/// `--watch` prints the rows that change, below the columns of the first ones.
async fn watch_rows(node: &Node) {
    let mut command = Command::new(akri());
    command.args(["get", "devices", "cam", "--watch", "--state-dir", node.path("state").to_str().unwrap()]);
    let mut get = command.stdout(File::create(node.path("rows")).unwrap()).stderr(Stdio::null()).spawn().unwrap();
    let rows = || fs::read_to_string(node.path("rows")).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    let first = wait_for("a header and a row", rows, |rows| rows.len() == 2).await;
    node.write("manifests/cam.yaml", &CAM.replace("foo0", "foo0, foo1"));
    let second = wait_for("the row of another device alone", rows, |rows| rows.len() > 2).await;
    kill_process(Pid::from_child(&get), Signal::TERM).unwrap();
    get.wait().unwrap();
    let columns = |row: &String| row.split_whitespace().map(|cell| row.find(cell)).collect::<Vec<_>>();
    assert!(second.len() == 3 && second[2].contains("foo1"), "{second:?}");
    assert_eq!(columns(&second[2]), columns(&first[1]), "below the columns of the first rows");
}

#[test]
fn completion_knows_the_subcommands() {
    let node = Node::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&node.akri(&["completion", shell]).stdout);
        assert!(script.contains("devices"), "{shell}: {script}");
    }
    let script = r#"source <("$0" completion bash); COMP_WORDS=(akri dr) COMP_CWORD=1; _akri akri dr akri; echo "${COMPREPLY[@]}""#;
    let output = Command::new("bash").args(["-c", script]).arg(akri()).output().unwrap();
    assert_eq!((text(&output.stdout).trim(), text(&output.stderr).as_str()), ("drain", ""));
}

#[test]
fn discover_reads_every_input_and_prints_json_and_yaml() {
    let node = Node::new();
    for form in ["json", "yaml"] {
        let output = node.discover(CAM, &["-o", form]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let found: serde_json::Value = serde_saphyr::from_str(&text(&output.stdout)).unwrap();
        assert_eq!(found[0]["resource"], "akri.sh/cam-8120fe");
        assert_eq!(found[0]["device"]["properties"]["DEBUG_ECHO_DESCRIPTION"], "foo0");
    }
    let none = node.discover(&CAM.replace("[foo0]", "[]"), &["-o", "json"]);
    assert_eq!((none.status.code(), text(&none.stdout).trim()), (Some(0), "[]"), "no device is no failure");
    let components = node.path("components").display().to_string();
    node.write("manifests/cam.yaml", CAM);
    node.write("manifests/other.yaml", &CAM.replace("name: cam", "name: other"));
    let item = CAM.trim_end().replace('\n', "\n  ");
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {item}\n");
    let discover = |file: &str, input: &str| {
        let mut command = Command::new(akri());
        let command = command.args(["discover", file, "--components", &components, "-o", "json"]);
        // Credentials are for images alone.
        let command = command.env("XDG_CACHE_HOME", compiled_components()).env("REGISTRY_AUTH_FILE", &components);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes()); // one that reads a file does not read this
        let output = child.wait_with_output().unwrap();
        let devices: Vec<serde_json::Value> =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
        devices.len()
    };
    assert_eq!(discover(&node.path("manifests").display().to_string(), ""), 2);
    assert_eq!(discover("-", CAM), 1);
    assert_eq!(discover("-", &list), 1);
}

/// Configurations that upstream Akri takes and that mean something else here.
const OF_UPSTREAM: &str = r#"
apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: zero}
spec: {discoveryHandler: {name: debugEcho, discoveryDetails: "descriptions: [a]"}, capacity: 0}
---
apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: camera-with-a-name-of-sixty-characters-which-is-four-too-many}
spec: {discoveryHandler: {name: debugEcho, discoveryDetails: "descriptions: [a]"}}
---
apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: unknown}
spec: {discoveryHandler: {name: onvif, discoveryDetails: "{discoveryTimeoutSecond: 2}"}}
---
apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: slow}
spec: {discoveryHandler: {name: onvif, discoveryDetails: "discoveryTimeoutSeconds: 60"}}
---
apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: nothing}
spec: {discoveryHandler: {name: onvif, discoveryDetails: "scopes: {action: Include, items: []}"}}
---
apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: plant}
spec:
  discoveryHandler:
    name: opcua
    discoveryDetails: "opcuaDiscoveryMethod: {standard: {discoveryUrls: ['opc.tcp://localhost:50000', 'opc.tcp://10.0.0.1:4840']}}"
---
apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: action}
spec: {discoveryHandler: {name: udev, discoveryDetails: "udevRules: ['ACTION==\"add\"']"}}
"#;

#[test] // rule 65
fn upgrade_check_names_each_difference_with_its_remedy() {
    let node = Node::new();
    let urls: Vec<String> = (0..300).map(|number| format!("opc.tcp://10.0.0.1:{}", 4840 + number)).collect();
    let details = serde_json::json!({"opcuaDiscoveryMethod": {"standard": {"discoveryUrls": urls}}}).to_string();
    let handler = serde_json::json!({"name": "opcua", "discoveryDetails": details});
    let many = serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "many"}, "spec": {"discoveryHandler": handler},
    });
    node.write("of-upstream.yaml", &format!("{OF_UPSTREAM}---\n{many}\n"));
    let (file, components) = (node.path("of-upstream.yaml"), built_components());
    let arguments =
        ["upgrade", "check", file.to_str().unwrap(), "--components", components.to_str().unwrap(), "-o", "json"];
    let output = node.akri(&arguments);
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(1), ""));
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for (name, weight, part) in [
        ("zero", "inTheWay", "spec.capacity: 0 is not between"),
        ("camera-with-a-name", "inTheWay", "56"),
        ("unknown", "inTheWay", "discoveryDetails.discoveryTimeoutSecond"),
        ("slow", "inTheWay", "discoveryDetails.discoveryTimeoutSeconds"),
        ("nothing", "inTheWay", "discoveryDetails.scopes: without items it selects nothing"),
        ("plant", "differs", "{networks: [127.0.0.1], ports: [50000]}"),
        ("many", "inTheWay", "discoveryDetails.opcuaDiscoveryMethod.standard.discoveryUrls"),
        ("action", "inTheWay", "discoveryDetails.udevRules[0]"),
        ("action", "differs", "'permissions: rwm'"),
    ] {
        let is_it = |finding: &&serde_json::Value| {
            let text = |field: &str| finding[field].as_str().unwrap().to_owned();
            text("object").contains(&format!(" {name}")) && text("weight") == weight && text("message").contains(part)
        };
        assert!(findings.as_array().unwrap().iter().any(|finding| is_it(&finding)), "{name} {part}: {findings:#}");
    }
    let of_private_network =
        |finding: &&serde_json::Value| finding["message"].as_str().unwrap().contains("10.0.0.1:4840 is not");
    assert!(!findings.as_array().unwrap().iter().any(|finding| of_private_network(&finding)), "{findings:#}");
}
