//! `akri handler pack`: what a node runs, as files that can be reviewed and carried.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::node::{Node, built_components};

/// The DiscoveryHandler of the story, with what an administrator may have written beside it.
const OBJECT: &str = "\
# Reviewed in June.
apiVersion: akri.sh/v0
kind: DiscoveryHandler
metadata: {name: my-echo}
spec:
  name: debugEcho
  component: {file: debug_echo.wasm}
  shared: false
  interval: 200ms
  grants: {devicePaths: [/dev/null]}
  limits: {memory: 32Mi}
";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn pack(node: &Node, flags: &[&str]) -> Output {
    let path = |name: &str| node.path(name).display().to_string();
    let component = built_components().join("debug_echo.wasm").display().to_string();
    let (object, out) = (path("my.yaml"), path("out"));
    node.akri(&[&["handler", "pack", &component, "--handler-object", &object, "--out", &out], flags].concat())
}

/// `sha256sum --check`, as the one who gets the files runs it.
fn is_intact(directory: &Path) -> bool {
    let mut check = Command::new("sha256sum");
    let output = check.args(["--check", "--strict", "--quiet", "SHA256SUMS"]).current_dir(directory).output().unwrap();
    output.status.success()
}

#[tokio::test]
async fn packed_handler_runs_where_its_files_are_put() {
    let node = Node::new();
    node.write("my.yaml", &OBJECT.replace("name: debugEcho", "name: echo"));
    let packed = text(&pack(&node, &[]).stderr);
    assert!(packed.contains("it is handler 'debugEcho', and the object says 'echo' in spec.name"), "{packed}");
    fs::remove_dir_all(node.path("out")).unwrap();
    node.write("my.yaml", OBJECT);
    fs::create_dir_all(node.path("out/.akri-parts/of-one-that-was-interrupted")).unwrap();
    let packed = pack(&node, &["--precompiled"]);
    assert!(packed.status.success() && !text(&packed.stderr).contains("warning: agents"), "{}", text(&packed.stderr));
    let out = node.path("out");
    let sums = fs::read_to_string(out.join("SHA256SUMS")).unwrap();
    assert_eq!(text(&packed.stdout), sums);
    let names: Vec<&str> = sums.lines().map(|line| line.split_once("  ").unwrap().1).collect();
    assert!(is_intact(&out) && names.iter().all(|name| out.join(name).is_file()), "{sums}");
    assert_eq!(names.iter().filter(|name| name.starts_with("compiled/")).count(), names.len() - 3, "{sums}");
    assert!(names.len() > 3 && names.ends_with(&["debug_echo.wasm", "debug_echo.yaml", "inspect.txt"]), "{sums}");
    let report = fs::read_to_string(out.join("inspect.txt")).unwrap();
    let digest = sums.lines().find_map(|line| line.strip_suffix("  debug_echo.wasm")).unwrap();
    assert!(report.contains(&format!("sha256:{digest}")) && report.contains("/dev/null"), "{report}");

    // The packed object has all of the given one, and the digest.
    let value = |text: &str| -> Value { serde_saphyr::from_str(text).unwrap() };
    let (mut expected, object) = (value(OBJECT), value(&fs::read_to_string(out.join("debug_echo.yaml")).unwrap()));
    expected["spec"]["component"]["digest"] = format!("sha256:{digest}").into();
    assert_eq!(object, expected);

    ["udev.yaml", "debug-echo.yaml"].iter().for_each(|other| node.remove(&format!("components/{other}")));
    for name in ["debug_echo.wasm", "debug_echo.yaml"] {
        fs::copy(out.join(name), node.path("components").join(name)).unwrap();
    }
    // Without compiled components, which stories share otherwise.
    fs::create_dir(node.path("state")).unwrap();
    node.write_echo("echo", 1, &["one"]);
    let agent = node.start_with(&["--precompiled", out.join("compiled").to_str().unwrap()]);
    node.wait_for_instances("its device", |all| all.len() == 1).await;
    let log = agent.log();
    assert!(log.contains("using precompiled code") && !log.contains("compiling a component"), "{log}");
    assert!(agent.stop());

    // Any other component is refused by the object, and found by the checksums.
    fs::copy(built_components().join("udev.wasm"), node.path("components/debug_echo.wasm")).unwrap();
    let agent = node.start();
    agent.wait_for_log("DiscoveryHandler refused: ").await;
    assert!(agent.log().contains(digest), "{}", agent.log());
    fs::copy(built_components().join("udev.wasm"), out.join("debug_echo.wasm")).unwrap();
    assert!(!is_intact(&out));
}

#[test]
fn pack_refuses_other_components_and_used_directories() {
    let node = Node::new();
    let refused = |what: &str| {
        let output = pack(&node, &[]);
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains(what), "{what}: {error}");
    };
    for (from, to, what) in [
        ("debug_echo.wasm", "other.wasm", "so that the agent would not run 'debug_echo.wasm' for it"),
        (
            "file: debug_echo.wasm",
            "file: debug_echo.wasm, digest: 'sha256:0f9d75bb6c5fa7b2a5d1b1e2ed9ed1d6b1c6ac5a1c1a7a8d4b3c2b1a0f9e8d7c'",
            "wants sha256:0f9d75bb",
        ),
        (
            "file: debug_echo.wasm",
            "image: 'a.example/b@sha256:0f9d75bb6c5fa7b2a5d1b1e2ed9ed1d6b1c6ac5a1c1a7a8d4b3c2b1a0f9e8d7c'",
            "names an image",
        ),
    ] {
        node.write("my.yaml", &OBJECT.replace(from, to));
        refused(what);
        assert!(!node.path("out").exists(), "nothing is written");
    }
    node.write("my.yaml", OBJECT);
    symlink(node.path("kubelet"), node.path("out")).unwrap();
    refused("is a link");
    node.remove("out");
    fs::create_dir(node.path("out")).unwrap();
    symlink("/etc/passwd", node.path("out/notes.txt")).unwrap();
    refused("is not empty");
    assert_eq!(fs::read_dir(node.path("out")).unwrap().count(), 1);
}
