//! `akri handler new`, as a new user goes through it in each language: create, test, build, run.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::node::{Node, akri};
use crate::support::skip::{is_left_to_make_test, leave_out, skip};

/// A new handler in a directory of its own.
struct Project {
    node: Node,
    directory: PathBuf,
}

impl Project {
    fn new(language: &str) -> Self {
        Self::with_world(language, "discovery-handler")
    }

    fn with_world(language: &str, world: &str) -> Self {
        let node = Node::new();
        let directory = node.path("my-handler");
        let path = directory.to_str().unwrap();
        let made = node.akri(&["handler", "new", "--lang", language, "--world", world, "my-handler", path]);
        let expected = format!("created {0}; to try it: cd {0} && make run\n", directory.display());
        assert_eq!((text(&made.stdout), text(&made.stderr)), (expected, String::new()));
        Self { node, directory }
    }

    /// Uses tools that `make peers` has installed, in place of installing them.
    fn with_tools(self, from: &str, to: &str) -> Option<Self> {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers").join(from);
        if !tools.exists() {
            skip(&format!("{from} is not installed: run 'make peers'"));
            return None;
        }
        symlink(tools.canonicalize().unwrap(), self.directory.join(to)).unwrap();
        Some(self)
    }

    /// `make TARGETS`. What installs tools is not made.
    fn make(&self, targets: &[&str]) -> String {
        let mut make = Command::new("make");
        for installed in [".venv/installed", "node_modules/installed", "go.sum"] {
            make.args(["--old-file", installed]);
        }
        let offline = [("CARGO_NET_OFFLINE", "true"), ("GOPROXY", "off"), ("GOTOOLCHAIN", "local")];
        // Where it exists, it says where Go finds the module that bindings import.
        let workspace = ("GOWORK", self.node.path("go.work"));
        let output = make.args(targets).current_dir(&self.directory).envs(offline).envs([workspace]).output().unwrap();
        assert!(output.status.success(), "{targets:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs the component as the Makefile does, and checks what it finds. Returns the bytes of memory that a round takes.
    fn finds_its_devices(&self, component: &Path) -> u64 {
        let path = |name: &str| self.directory.join(name).display().to_string();
        let run = |configuration: &str| {
            let (component, object) = (component.display().to_string(), path("handler.yaml"));
            let arguments = ["handler", "run", &component, configuration, "--handler-object", &object, "-o", "json"];
            self.node.akri(&arguments)
        };
        let output = run(&path("configuration.yaml"));
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(!text(&output.stderr).contains("an agent would refuse"), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let devices = report[0]["devices"].as_array().unwrap();
        let found: Vec<&Value> = devices.iter().map(|device| &device["device"]).collect();
        let expected = |name: &str| serde_json::json!({"DEVICE_NAME": name, "GREETING": "hello"});
        assert_eq!(found.iter().map(|device| &device["id"]).collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(found[0]["properties"], expected("first"));
        assert_eq!(report[0]["log"][0]["message"], "2 devices");
        // What can't be parsed is a problem in the details, and not a trap.
        let bad = fs::read_to_string(self.directory.join("configuration.yaml")).unwrap();
        let many: String = (0..99).map(|number| format!("\n      {number}")).collect();
        let bad = bad.replace("devices: [first, second]", "devices: 5").replace("\n      first", &many);
        self.node.write("bad.yaml", &bad);
        let refused = text(&run(&self.node.path("bad.yaml").display().to_string()).stderr);
        assert!(refused.contains("spec.discoveryHandler.discoveryDetails"), "{refused}");
        // The cassette that it comes with is about this handler, and as it says.
        let cassettes = path("cassettes");
        let played =
            self.node.akri(&["handler", "test", component.to_str().unwrap(), "--cassette", cassettes.as_str()]);
        let output = text(&played.stdout) + &text(&played.stderr);
        assert!(played.status.success() && output.contains("example.yaml (2 rounds, 0 calls, "), "{output}");
        report[0]["memoryBytes"].as_u64().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The documentation of the network.
fn network_section() -> &'static str {
    let page = include_str!("../docs/how-to/writing-handlers.md");
    page.split("\n## The network\n").nth(1).unwrap().split("\n## ").next().unwrap()
}

fn block<'p>(page: &'p str, language: &str) -> &'p str {
    page.split(&format!("```{language}\n")).nth(1).unwrap().split("```").next().unwrap()
}

/// Returns the block of this language in the documentation of the network. Each line of code in the language's column of the table
/// is in it, up to dots.
fn network_block(language: &str, column: usize, others: &[&str]) -> String {
    let page = network_section();
    let block = block(page, language);
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
    let cells = rows.iter().filter_map(|row| row.split(" | ").nth(column));
    let mut count = 0;
    for code in cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).filter(|code| !others.contains(code)) {
        let code = code.split("...").next().unwrap();
        assert!(block.contains(code), "{language}: '{code}' is not in the block");
        count += 1;
    }
    assert!(count > 1, "{language}: {count}");
    block.to_owned()
}

/// Plays the rounds of the network, which are in the same words for each language. `sends` are those of the peer that is connected.
fn plays_the_network(project: &Project, component: &Path, sends: &str) {
    plays(project, component, &include_str!("support/network_rounds.yaml").replace("SENDS", sends));
}

fn plays(project: &Project, component: &Path, rounds: &str) {
    project.node.write("network.yaml", rounds);
    let cassette = project.node.path("network.yaml").display().to_string();
    let played = project.node.akri(&["handler", "test", component.to_str().unwrap(), "--cassette", &cassette]);
    assert!(played.status.success(), "{}{}", text(&played.stdout), text(&played.stderr));
}

/// The handler of the network's rounds: what each of its devices asks, and the answer.
const NETWORK_IN_RUST: &str = r#"
use akri_handler::{Description, Device, Failure, Handler, Problem, net};

use crate::devices::Details;

struct Component;
akri_handler::export!(Component);

impl Handler for Component {
    type Details = Details;

    const DESCRIPTION: Description = Description::new("my-handler", "1");

    fn parse(json: Option<&str>) -> Result<Details, Vec<Problem>> {
        Details::parse(json)
    }

    fn discover(details: Details) -> Result<Vec<Device>, Failure> {
        let ids = details.find("").into_iter().map(|device| device.id);
        Ok(ids.map(|id| Device::new(&id).property("ANSWER", answer(&id))).collect())
    }
}

fn answer(asked: &str) -> String {
    let (how, servers) = asked.split_once(' ').unwrap_or_default();
    let servers: Vec<String> = servers.split(' ').map(str::to_owned).collect();
    let answer = match how {
        "tcp" => net::block_on(crate::network::tcp(&servers[0])),
        "udp" => net::block_on(crate::network::udp(&servers[0])),
        _ => {
            let answers = crate::network::ask_all(&servers);
            return format!("{} of {}", answers.iter().flatten().count(), answers.len());
        }
    };
    match answer {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => "denied".to_owned(),
        Err(_) => "late".to_owned(),
    }
}
"#;

const NETWORK_IN_PYTHON: &str = r#"
import devices
import network
from wit_world import exports
from wit_world.exports.handler import Description
from wit_world.imports import round as this_round
from wit_world.imports.types import Device


class Handler(exports.Handler):
    def describe(self):
        return Description(name="my-handler", version="1", shared=False, hints=[])

    def validate(self, details):
        return []

    def discover(self, details):
        ids = devices.parse(this_round.details_json())
        properties = lambda id: [("ANSWER", answer(*id.split(" ")))]
        return [Device(id=id, origin="", properties=properties(id), mounts=[], device_specs=[], hints=[]) for id in ids]


def answer(how, *servers):
    try:
        if how == "all":
            errors = network.ask_all(servers).values()
            return f"{sum(error == 0 for error in errors)} of {len(servers)}"
        return (network.tcp if how == "tcp" else network.udp)(*servers).decode()
    except PermissionError:
        return "denied"
    except TimeoutError:
        return "late"
"#;

/// Builds a new handler with the dependencies of the built-in handlers.
#[test]
fn rust_handler_builds_and_runs() {
    if is_left_to_make_test() {
        return; // it builds a package anew
    }
    let project = Project::new("rust");
    for command in ["run", "dev", "test", "inspect"] {
        let target = if command == "test" { "cassettes" } else { command };
        let line =
            format!("\n\"{}\" handler {command} \"target/wasm32-wasip2/release/my_handler.wasm\"", akri().display());
        let dry = format!("\n{}", project.make(&["--dry-run", target]));
        assert!(dry.contains(&line), "{line}: {dry}");
    }
    let handlers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../handlers");
    fs::copy(handlers.join("Cargo.lock"), project.directory.join("Cargo.lock")).unwrap();
    let target = format!("CARGO_TARGET_DIR={}", handlers.join("target").display());
    let cargo = |arguments: &[&str]| -> Output {
        let mut cargo = Command::new("cargo");
        cargo.args(arguments).arg("--offline").current_dir(&project.directory);
        cargo.env("CARGO_TARGET_DIR", handlers.join("target")).output().unwrap()
    };
    let tested = cargo(&["test"]);
    assert!(tested.status.success() && text(&tested.stdout).contains("3 passed"), "{target}: {}", text(&tested.stderr));
    let built = cargo(&["build", "--release", "--target", "wasm32-wasip2"]);
    assert!(built.status.success() && !text(&built.stderr).contains("warning"), "{}", text(&built.stderr));
    let wasm = handlers.join("target/wasm32-wasip2/release/my_handler.wasm");
    project.finds_its_devices(&wasm);
    let source = |name: &str| project.directory.join("src").join(name);
    fs::write(source("network.rs"), network_block("rust", 1, &["wstd::http::Client", "wstd::net", "multicast"]))
        .unwrap();
    fs::write(source("component.rs"), NETWORK_IN_RUST).unwrap();
    fs::write(source("lib.rs"), "mod component; pub mod devices; mod network;\n").unwrap();
    let manifest = fs::read_to_string(project.directory.join("Cargo.toml")).unwrap();
    let with_network = manifest.replace("\"sdk/akri-handler\" }", "\"sdk/akri-handler\", features = [\"net\"] }");
    fs::write(project.directory.join("Cargo.toml"), with_network).unwrap();
    let built = cargo(&["build", "--release", "--target", "wasm32-wasip2"]);
    assert!(built.status.success() && !text(&built.stderr).contains("warning"), "{}", text(&built.stderr));
    plays_the_network(
        &project,
        &wasm,
        "- {call: tcp.send, socket: 1, bytes: \"hello\\n\"}\n- {call: tcp.receive, socket: 1, bytes: world}\n",
    );
    fs::remove_file(&wasm).unwrap();
}

#[test]
fn c_handler_builds_and_runs() {
    if is_left_to_make_test() {
        return; // it needs tools from a package registry
    }
    let Some(project) = Project::new("c").with_tools("python", ".venv") else { return };
    fs::create_dir(project.directory.join("build")).unwrap();
    assert!(project.make(&["test", "build"]).contains("\nok\n"));
    let memory = project.finds_its_devices(&project.directory.join("my_handler.wasm"));
    assert!(memory < 1 << 20, "its stack is small: {memory}");

    let Some(project) = Project::with_world("c", "net-handler").with_tools("python", ".venv") else { return };
    let source = |name: &str| project.directory.join(name);
    fs::write(source("network.c"), block(network_section(), "c")).unwrap();
    let handler = fs::read_to_string(source("handler.c")).unwrap();
    let declared = "#include \"gen/discovery_handler.h\"\nbool tcp(wasi_sockets_network_ipv4_address_t, discovery_handler_list_u8_t *);";
    let handler = handler.replace("#include \"gen/discovery_handler.h\"", declared);
    let asks = "string greeting = text(\"late\");\n  discovery_handler_list_u8_t answer;\n  \
                if (tcp((wasi_sockets_network_ipv4_address_t){192, 0, 2, 7}, &answer)) greeting = (string){answer.ptr, answer.len};";
    fs::write(source("handler.c"), handler.replace("string greeting = property(\"GREETING\");", asks)).unwrap();
    let makefile = fs::read_to_string(source("Makefile")).unwrap();
    fs::write(source("Makefile"), makefile.replace("handler.c devices.c", "handler.c network.c devices.c")).unwrap();
    fs::create_dir(source("build")).unwrap();
    project.make(&["build"]);
    let rounds: String = [("silent: true", "late"), ("at: 900000", "world")].map(|(connect, answer)| {
        let sends = "- {call: tcp.send, socket: 1, bytes: \"hello\\n\"}\n- {call: tcp.receive, socket: 1, at: 950000, bytes: world}\n";
        let device = format!("{{id: one, properties: {{DEVICE_NAME: one, GREETING: {answer}}}}}");
        format!(
            "- round: {{details: \"one\"}}\n- {{call: tcp.connect, socket: 1, to: \"192.0.2.7:502\", {connect}}}\n{}- result: {{devices: [{device}]}}\n",
            if answer == "world" { sends } else { "" }
        )
    }).concat();
    plays(&project, &source("my_handler.wasm"), &format!("- {{akriCassette: 1, handler: my-handler}}\n{rounds}"));
}

#[test]
fn python_handler_builds_and_runs() {
    if is_left_to_make_test() {
        return;
    }
    let Some(project) = Project::new("python").with_tools("python", ".venv") else { return };
    let component = project.directory.join("my_handler.wasm");
    project.make(&["test", "build"]);
    project.finds_its_devices(&component);
    let others = ["ssl", "wasi:http", "asyncio"];
    fs::write(project.directory.join("network.py"), network_block("python", 2, &others)).unwrap();
    fs::write(project.directory.join("app.py"), NETWORK_IN_PYTHON).unwrap();
    project.make(&["build"]);
    plays_the_network(&project, &component, "");
}

#[test]
fn javascript_handler_builds_and_runs() {
    if std::env::var_os("AKRI_LANGUAGES").is_none() {
        return leave_out("left to make languages: it downloads 385 MB");
    }
    let Some(project) = Project::new("javascript").with_tools("javascript/node_modules", "node_modules") else {
        return;
    };
    let component = project.directory.join("my_handler.wasm");
    project.make(&["test", "build"]);
    project.finds_its_devices(&component);
    let source = |name: &str| project.directory.join(name);
    fs::write(source("network.js"), network_block("javascript", 3, &["http://[2001:db8::7]/"])).unwrap();
    let handler = fs::read_to_string(source("handler.js")).unwrap();
    let handler = handler.replace("  discover() {", "  async discover() {").replace(
        "    return names.map((name) => ({",
        "    const answers = await askAll(names);\n    return names.map((name, index) => ({",
    );
    let handler = handler.replace("properties(name, greeting)", "[['ANSWER', String(answers[index])]]");
    fs::write(source("handler.js"), format!("import {{ askAll }} from './network.js';\n{handler}")).unwrap();
    project.make(&["build"]);
    let rounds = "- {akriCassette: 1, handler: my-handler}\n\
                  - round: {details: {devices: [\"http://192.0.2.7/\", \"http://[2001:db8::7]/\", \"https://plc.example/\"]}}\n\
                  - {call: http.request, request: {method: GET, uri: \"http://192.0.2.7/\"}, silent: true}\n\
                  - {call: http.request, request: {method: GET, uri: \"http://[2001:db8::7]/\"}, at: 9000, response: {status: 200, body: six}}\n\
                  - {call: http.request, request: {method: GET, uri: \"https://plc.example/\"}, response: {status: 200, body: tls}}\n\
                  - result: {devices: [{id: \"http://192.0.2.7/\", properties: {ANSWER: \"null\"}}, \
                  {id: \"http://[2001:db8::7]/\", properties: {ANSWER: six}}, {id: \"https://plc.example/\", properties: {ANSWER: tls}}]}\n";
    plays(&project, &component, rounds);
}

#[test]
fn go_handler_builds_and_runs() {
    if std::env::var_os("AKRI_LANGUAGES").is_none() {
        return leave_out("left to make languages: it downloads 75 MB, and compiles Go's library");
    }
    let project = Project::new("go");
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers/languages").canonicalize().unwrap();
    let module = module_of_bindings();
    let workspace = format!("go 1.25\nuse (\n{}\n{}\n)\n", project.directory.display(), module.display());
    project.node.write("go.work", &workspace);
    assert!(project.make(&[&format!("GO={}", tools.join("bin/go").display()), "test", "build"]).contains("\nok "));
    project.finds_its_devices(&project.directory.join("my_handler.wasm"));
}

/// Returns the Go module that bindings import. It is in the crate that makes them, and in Go's own registry, which not every machine
/// reaches.
fn module_of_bindings() -> PathBuf {
    let metadata = Command::new("cargo").args(["metadata", "--format-version", "1", "--locked"]).output().unwrap();
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let generator = packages.iter().find(|package| package["name"] == "wit-bindgen-go").unwrap();
    Path::new(generator["manifest_path"].as_str().unwrap()).with_file_name("src/pkg")
}

#[test]
fn new_writes_limits_by_language_and_nothing_over_others() {
    let node = Node::new();
    for (language, is_large) in [("python", true), ("javascript", true), ("rust", false), ("c", false), ("go", false)] {
        let directory = node.path(language);
        let made = node.akri(&["handler", "new", "--lang", language, "mine", directory.to_str().unwrap()]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        let object = fs::read_to_string(directory.join("handler.yaml")).unwrap();
        assert_eq!(object.contains("\n    compile: {memory: 1Gi, time: 3m}\n"), is_large, "{language}: {object}");
    }

    let directory = node.path("mine");
    let new = |name: &str| {
        let made = node.akri(&["handler", "new", "--lang", "c", name, directory.to_str().unwrap()]);
        text(&made.stderr)
    };
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("handler.c"), "mine").unwrap();
    assert_eq!(new("mine"), format!("error: '{}' exists already\n", directory.join("handler.c").display()));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is written");
    assert_eq!(fs::read_to_string(directory.join("handler.c")).unwrap(), "mine");
    fs::rename(directory.join("handler.c"), directory.join("other.c")).unwrap();
    assert_eq!(new("mine"), "", "a directory with other files is fine");

    let new = |name: &str| {
        let made = node.akri(&["handler", "new", "--lang", "c", name, node.path(name).to_str().unwrap()]);
        text(&made.stderr)
    };
    for name in ["My_Handler", "a--b", "a-", "1a", "a\u{1b}b"] {
        assert!(
            new(name).contains("can't be a handler's name: at most 56 lower-case letters"),
            "{name}: {}",
            new(name)
        );
    }
    for name in ["udev", "onvif", "opcua", "mdns", "debug-echo"] {
        let message = "is a built-in handler, which a DiscoveryHandler of this name replaces; choose another name\n";
        assert_eq!(new(name), format!("error: '{name}' {message}"));
        assert!(!node.path(name).exists());
    }
    assert_eq!(new("my-udev-2"), "");
    // Files are not written through links.
    {
        let node = Node::new();
        for directory in ["elsewhere", "package"] {
            fs::create_dir(node.path(directory)).unwrap();
        }
        node.write("precious", "");
        symlink(node.path("elsewhere"), node.path("linked")).unwrap();
        symlink(node.path("precious"), node.path("package/types.wit")).unwrap();
        let made =
            |arguments: &[&str]| crate::command_line::akri_to(std::process::Stdio::piped(), &node.path(""), arguments);
        for arguments in [["handler", "new", "linked"], ["handler", "wit", "linked"], ["handler", "wit", "linked/"]] {
            let refused = made(&arguments);
            let printed = text(&refused.stderr);
            assert!(!refused.status.success() && printed.contains("'linked' is a link or a file"), "{printed}");
        }
        assert_eq!(fs::read_dir(node.path("elsewhere")).unwrap().count(), 0);
        for _ in 0..2 {
            let written = made(&["handler", "wit", "package"]);
            assert!(written.status.success(), "{}", text(&written.stderr));
        }
        assert!(fs::symlink_metadata(node.path("package/types.wit")).unwrap().is_file());
        assert_eq!(fs::read_to_string(node.path("precious")).unwrap(), "", "what the link led to is as it was");
    }
}
