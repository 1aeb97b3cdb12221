//! The shape of the workspace as the README has it: which crate may know which, what never comes in, what shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

/// All of `host/`. The controller and the webhook are not built yet.
const HOST: [&str; 7] =
    ["akri-model", "akri-grpc", "akri-api", "akri-sandbox", "akri-agent", "akri-controller", "akri-webhook"];

/// What our crates may know of each other. One that is not here may not be in the workspace.
const MAY_KNOW: [(&str, &[&str]); 10] = [
    ("akri-model", &[]),
    ("akri-grpc", &[]),
    ("akri-api", &["akri-model"]),
    ("akri-sandbox", &["akri-model"]),
    ("akri-agent", &["akri-model", "akri-api", "akri-grpc", "akri-sandbox"]),
    ("akri-controller", &["akri-model", "akri-api"]),
    ("akri-webhook", &["akri-model", "akri-api"]),
    ("akri", &HOST),
    ("akri-tests", &HOST),
    ("akri-benches", &["akri-model", "akri-grpc", "akri-sandbox", "akri-tests"]),
];

/// Libraries, by how their names begin, and the only ones of our crates that may know them: the edges.
const EDGES: [(&str, &[&str]); 7] = [
    ("wasmtime", &["akri-sandbox"]),
    ("cranelift", &["akri-sandbox"]),
    ("wit-bindgen", &[]),
    ("tonic", &["akri-grpc", "akri-agent", "akri-tests", "akri-benches"]),
    ("prost", &["akri-grpc", "akri-agent", "akri-tests", "akri-benches"]),
    ("kube", &["akri-api", "akri-agent", "akri-controller", "akri-webhook", "akri"]),
    ("k8s-openapi", &["akri-api", "akri-agent", "akri-controller", "akri-webhook"]),
];

/// The rules need nothing but these.
const MODEL: [&str; 3] = ["blake2", "serde", "thiserror"];

/// Workspaces of components: another target, another lock file.
const GUESTS: [&str; 2] = ["handlers", "tests/guests"];

#[test]
fn our_crates_know_each_other_only_as_the_table_says() {
    for (name, dependencies) in packages(".") {
        let allowed = MAY_KNOW.iter().find(|(of, _)| *of == name);
        let (_, allowed) = allowed.unwrap_or_else(|| panic!("'{name}' is not in the table: give it a place there"));
        for ours in dependencies.iter().filter(|dependency| dependency.is_ours) {
            assert!(allowed.contains(&ours.name.as_str()), "'{name}' must not depend on '{}'", ours.name);
        }
    }
}

#[test]
fn edges_are_known_to_the_crates_behind_them_only() {
    for (name, dependencies) in packages(".") {
        for dependency in dependencies {
            let edge = EDGES.iter().find(|(prefix, _)| dependency.name.starts_with(prefix));
            let allowed = edge.is_none_or(|(_, allowed)| allowed.contains(&name.as_str()));
            assert!(allowed, "'{name}' must not depend on '{}'", dependency.name);
        }
    }
}

#[test]
fn the_model_needs_almost_nothing() {
    let packages = packages(".");
    let product = packages["akri-model"].iter().filter(|dependency| dependency.kind != "dev");
    let names: BTreeSet<&str> = product.map(|dependency| dependency.name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(MODEL));
}

#[test]
fn components_know_the_host_only_through_wit() {
    for workspace in GUESTS {
        for (name, dependencies) in packages(workspace) {
            let ours = dependencies.iter().find(|dependency| dependency.is_ours || dependency.name.starts_with("akri"));
            assert_eq!(ours.map(|ours| &ours.name), None, "{workspace}: '{name}' knows one of ours");
        }
    }
}

#[test]
fn nothing_banned_is_in_the_tree() {
    let bans = bans();
    assert!(bans.get("openssl-sys") == Some(&Ban::Always) && bans.get("wasmtime") == Some(&Ban::Twice), "{bans:?}");
    for workspace in [".", GUESTS[0], GUESTS[1]] {
        let locked = locked(workspace);
        assert!(!locked.is_empty());
        for (name, ban) in &bans {
            let count = locked.iter().filter(|locked| *locked == name).count();
            let most = usize::from(*ban == Ban::Twice);
            assert!(count <= most, "{workspace}/Cargo.lock has {count} of '{name}', which deny.toml bans");
        }
    }
}

/// The README shows what misbehaviour meets by the names of tests: they had better be there.
#[test]
fn the_readme_names_tests_that_exist() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, table) = readme.split_once("| a handler that |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let names: Vec<&str> = table.split('`').skip(1).step_by(2).filter(|word| word.matches('_').count() > 1).collect();
    assert!(names.len() > 10, "{names:?}");
    let mut sources = Vec::new();
    for directory in ["host", "tests"] {
        read_sources(&root().join(directory), &mut sources);
    }
    for name in names {
        let test = format!("fn {name}()");
        assert!(sources.iter().any(|source| source.contains(&test)), "the README names '{name}', which is no test");
    }
}

struct Dependency {
    name: String,
    /// `normal`, `dev` or `build`.
    kind: String,
    is_ours: bool,
}

/// The packages of a workspace with all their dependencies, also those for tests and builds.
fn packages(workspace: &str) -> BTreeMap<String, Vec<Dependency>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = root().join(workspace).join("Cargo.toml");
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"]).arg(manifest);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages.map(|package| (text(&package["name"]), dependencies(package))).collect()
}

fn dependencies(package: &Value) -> Vec<Dependency> {
    let dependency = |dependency: &Value| Dependency {
        name: text(&dependency["name"]),
        kind: dependency["kind"].as_str().unwrap_or("normal").to_owned(),
        is_ours: dependency["path"].is_string(),
    };
    package["dependencies"].as_array().unwrap().iter().map(dependency).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

#[derive(Debug, PartialEq, Eq)]
enum Ban {
    Always,
    /// Of more than one version.
    Twice,
}

/// The `deny` list of deny.toml, one crate a line. Those that some crates may use are left to cargo-deny.
fn bans() -> BTreeMap<String, Ban> {
    let file = fs::read_to_string(root().join("deny.toml")).unwrap();
    let (_, list) = file.split_once("\ndeny = [").unwrap();
    let (list, _) = list.split_once("\n]").unwrap();
    let ban = |line: &str| {
        let name = line.split_once("crate = \"")?.1.split('"').next()?;
        let ban = if line.contains("deny-multiple-versions = true") { Ban::Twice } else { Ban::Always };
        (!line.contains("wrappers")).then(|| (name.to_owned(), ban))
    };
    list.lines().filter_map(ban).collect()
}

/// The names in a lock file, once for each version.
fn locked(workspace: &str) -> Vec<String> {
    let lock = fs::read_to_string(root().join(workspace).join("Cargo.lock")).unwrap();
    let name = |line: &str| Some(line.strip_prefix("name = \"")?.strip_suffix('"')?.to_owned());
    lock.lines().filter_map(name).collect()
}

/// All Rust files below a directory but those that cargo made.
fn read_sources(directory: &Path, sources: &mut Vec<String>) {
    for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() && !path.ends_with("target") {
            read_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(fs::read_to_string(&path).unwrap());
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
