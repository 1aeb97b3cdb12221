//! The contract as a package: what authors get is what the host speaks, and its reference page is current.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::node::Node;
use crate::support::skip::{is_left_to_make_test, skip};

/// The order of interfaces on the reference page; those that are not named here come last.
const ORDER: [&str; 10] = [
    "handler.wit",
    "types.wit",
    "round.wit",
    "properties.wit",
    "udev.wit",
    "multicast.wit",
    "cache.wit",
    "logging.wit",
    "world.wit",
    "network.wit",
];

const HEAD: &str = "\
# The contract

The WIT package `akri:discovery`, from [wit/](../../wit/world.wit). `make manifests` makes this page of it. A copy of the package for
your own handler, with the packages of WASI that it depends on, is written by `akri handler wit DIR`.
";

fn wit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit")
}

/// The files below a directory with their texts, by path.
fn tree(directory: &Path) -> BTreeMap<PathBuf, String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let all = entries.flat_map(|path| match path.is_dir() {
        true => tree(&path).into_iter().map(|(below, text)| (path.join(below), text)).collect::<Vec<_>>(),
        false => vec![(path.clone(), fs::read_to_string(&path).unwrap())],
    });
    all.map(|(path, text)| (path.strip_prefix(directory).unwrap().to_owned(), text)).collect()
}

#[test]
fn wit_command_and_sdk_have_the_contract() {
    let node = Node::new();
    let directory = node.path("their/wit");
    for _ in 0..2 {
        let output = node.akri(&["handler", "wit", directory.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(tree(&directory), tree(&wit()));
        fs::write(directory.join("types.wit"), "an older version").unwrap();
    }
    sdk_is_a_package_with_the_contract();
}

/// A package that others build has the contract in it, and needs nothing of this repository around it.
fn sdk_is_a_package_with_the_contract() {
    let handlers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../handlers");
    let packaged = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sdk");
    let mut cargo = Command::new("cargo");
    cargo.args(["package", "-p", "akri-handler", "--no-verify", "--offline", "--allow-dirty", "--target-dir"]);
    let output = cargo.arg(&packaged).current_dir(&handlers).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !printed.contains("warning"), "{printed}");
    let archive = packaged.join("package/akri-handler-0.1.0.crate");
    let listed = Command::new("tar").arg("tzf").arg(&archive).output().unwrap();
    let files = String::from_utf8(listed.stdout).unwrap();
    for file in ["README.md", "src/net.rs", "wit/handler.wit", "wit/deps/sockets.wit", "Cargo.toml"] {
        assert!(files.lines().any(|line| line == format!("akri-handler-0.1.0/{file}")), "{file}: {files}");
    }
    // A registry of packages asks for these.
    let manifest = fs::read_to_string(handlers.join("sdk/Cargo.toml")).unwrap();
    for field in ["description", "license", "readme", "documentation", "keywords", "categories"] {
        assert!(manifest.contains(&format!("\n{field} = ")), "{field}");
    }
    assert!(!manifest.contains("publish = false"));
}

/// A component that imports everything in a world is linked, so the host has all of it. It fails when it is called, since its
/// functions are empty.
#[test]
fn host_links_everything_in_the_worlds() {
    if is_left_to_make_test() {
        return; // it needs wasm-tools
    }
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers/python/bin/wasm-tools");
    if !tool.exists() {
        return skip("wasm-tools is not installed: run 'make peers'");
    }
    let node = Node::new();
    let component = |arguments: &[&str]| {
        let output = Command::new(&tool).arg("component").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    for world in ["discovery-handler", "net-handler", "http-handler"] {
        let [core, component_file] = ["core.wasm", "whole.wasm"].map(|name| node.path(name).display().to_string());
        component(&["embed", wit().to_str().unwrap(), "--world", world, "--dummy", "--output", &core]);
        component(&["new", &core, "--output", &component_file]);
        let error = String::from_utf8(node.akri(&["handler", "inspect", &component_file]).stderr).unwrap();
        assert!(error.contains("the handler does not describe itself"), "{world}: {error}");
    }
}

/// An interface or a world: its doc comment, and its text.
fn sections(wit: &str) -> Vec<(String, String)> {
    let (mut sections, mut doc, mut body) = (Vec::new(), String::new(), String::new());
    for line in wit.lines() {
        match line.strip_prefix("///") {
            Some(text) if body.is_empty() => doc += &format!("{}\n", text.strip_prefix(' ').unwrap_or(text)),
            _ if body.is_empty() && !line.ends_with('{') => doc.clear(), // the package's
            _ => body += &format!("{line}\n"),
        }
        if line == "}" {
            sections.push((std::mem::take(&mut doc), std::mem::take(&mut body)));
        }
    }
    sections
}

fn page() -> String {
    let mut files: Vec<(PathBuf, String)> =
        tree(&wit()).into_iter().filter(|(path, _)| !path.starts_with("deps")).collect();
    files.sort_by_key(|(path, _)| ORDER.iter().position(|name| Path::new(name) == path).unwrap_or(ORDER.len()));
    let section = |(doc, body): (String, String)| {
        let name = body.lines().next().unwrap_or_default().trim_end_matches(" {").replace("interface ", "");
        format!("\n## {name}\n\n{doc}\n```wit\n{body}```\n")
    };
    let types = fs::read_to_string(wit().join("types.wit")).unwrap();
    let about = types.lines().map_while(|line| line.strip_prefix("///"));
    let about: String = about.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect();
    let all: String = files.iter().flat_map(|(_, text)| sections(text)).map(section).collect();
    format!("{HEAD}\n{about}{all}")
}

/// With `AKRI_WRITE=1` it writes the page.
#[test]
fn reference_page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/contract.md");
    if std::env::var_os("AKRI_WRITE").is_some() {
        fs::write(&path, page()).unwrap();
    }
    assert_eq!(fs::read_to_string(path).unwrap(), page(), "run 'make manifests'");
    assert_eq!(page().matches("\n## ").count(), 12, "nine interfaces and three worlds");
}
