//! The shape of the workspace: which crate may depend on which, which libraries are banned, and that the documentation has each
//! crate, and comments name rules and threats that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

/// All of `host/` and `author/` but the program.
const HOST: [&str; 19] = [
    "akri-model",
    "akri-brokers",
    "akri-grpc",
    "akri-api",
    "akri-node",
    "akri-engine",
    "akri-sandbox",
    "akri-kube",
    "akri-kubelet",
    "akri-remote",
    "akri-cluster",
    "akri-oci",
    "akri-discovery",
    "akri-agent",
    "akri-controller",
    "akri-webhook",
    "akri-cli",
    "akri-cassette",
    "akri-author",
];

/// The allowed dependencies between our crates. The workspace has no others.
const MAY_KNOW: [(&str, &[&str]); 23] = [
    ("akri-model", &[]),
    ("akri-brokers", &["akri-model"]),
    ("akri-grpc", &[]),
    ("akri-api", &["akri-model", "akri-brokers"]),
    ("akri-node", &["akri-model"]),
    ("akri-engine", &["akri-model", "akri-node"]),
    ("akri-sandbox", &["akri-model", "akri-engine", "akri-node"]),
    ("akri-kube", &["akri-model"]),
    ("akri-kubelet", &["akri-model", "akri-grpc", "akri-node"]),
    ("akri-remote", &["akri-model", "akri-api", "akri-grpc", "akri-node"]),
    ("akri-cluster", &["akri-model", "akri-api", "akri-kube", "akri-node"]),
    ("akri-oci", &["akri-model"]),
    (
        "akri-discovery",
        &["akri-model", "akri-api", "akri-node", "akri-sandbox", "akri-remote", "akri-cluster", "akri-oci"],
    ),
    (
        "akri-agent",
        &[
            "akri-model",
            "akri-api",
            "akri-kube",
            "akri-node",
            "akri-sandbox",
            "akri-kubelet",
            "akri-remote",
            "akri-cluster",
            "akri-oci",
            "akri-discovery",
        ],
    ),
    ("akri-controller", &["akri-model", "akri-brokers", "akri-api", "akri-kube"]),
    ("akri-webhook", &["akri-model", "akri-brokers", "akri-api", "akri-kube", "akri-sandbox"]),
    ("akri-cli", &["akri-model", "akri-api", "akri-node", "akri-sandbox", "akri-cluster", "akri-oci"]),
    ("akri-cassette", &["akri-model", "akri-api", "akri-node", "akri-engine"]),
    (
        "akri-author",
        &[
            "akri-model",
            "akri-api",
            "akri-node",
            "akri-engine",
            "akri-sandbox",
            "akri-cluster",
            "akri-oci",
            "akri-discovery",
            "akri-cli",
            "akri-cassette",
        ],
    ),
    ("akri", &HOST),
    ("remote-handler", &[]),
    ("akri-tests", &HOST),
    (
        "akri-benches",
        &["akri-model", "akri-api", "akri-engine", "akri-grpc", "akri-kubelet", "akri-sandbox", "akri-tests"],
    ),
];

/// The crates that convert gRPC messages, and peers of tests.
const GRPC: [&str; 6] = ["akri-grpc", "akri-kubelet", "akri-remote", "remote-handler", "akri-tests", "akri-benches"];

/// The crates that convert Kubernetes objects, the program that connects to the cluster, and tests.
const KUBERNETES: [&str; 9] = [
    "akri-api",
    "akri-kube",
    "akri-cluster",
    "akri-controller",
    "akri-webhook",
    "akri-author",
    "akri",
    "akri-tests",
    "akri-benches",
];

/// Libraries, by how their names begin, and the only ones of our crates that may know them: the edges.
const EDGES: [(&str, &[&str]); 7] = [
    ("wasmtime", &["akri-engine", "akri-cassette"]),
    ("cranelift", &["akri-engine"]),
    ("wit-bindgen", &["akri-author"]),
    ("tonic", &GRPC),
    ("prost", &GRPC),
    ("kube", &KUBERNETES),
    ("k8s-openapi", &KUBERNETES),
];

/// The rules need nothing but these.
const MODEL: [&str; 11] = [
    "aho-corasick",
    "base64",
    "blake2",
    "ipnet",
    "memchr",
    "percent-encoding",
    "schemars",
    "secrecy",
    "serde",
    "serde_json",
    "thiserror",
];

/// Workspaces of components: another target, another lock file.
const GUESTS: [&str; 2] = ["handlers", "tests/guests"];

/// Components use the host through WIT only. The architecture's table of crates has a row for each.
#[test]
fn crates_depend_on_what_the_tables_allow() {
    let packages = packages(".");
    let page = fs::read_to_string(root().join("docs/explanation/architecture.md")).unwrap();
    for (name, dependencies) in &packages {
        assert!(
            page.contains(&format!("| `{name}` |")),
            "docs/explanation/architecture.md has no row for the crate '{name}'"
        );
        let allowed = MAY_KNOW.iter().find(|(of, _)| of == name);
        let (_, allowed) = allowed.unwrap_or_else(|| panic!("'{name}' is not in the table: give it a place there"));
        for ours in dependencies.iter().filter(|dependency| dependency.is_ours) {
            assert!(allowed.contains(&ours.name.as_str()), "'{name}' must not depend on '{}'", ours.name);
        }
        for dependency in dependencies {
            let edge = EDGES.iter().find(|(prefix, _)| dependency.name.starts_with(prefix));
            let allowed = edge.is_none_or(|(_, allowed)| allowed.contains(&name.as_str()));
            assert!(allowed, "'{name}' must not depend on '{}'", dependency.name);
        }
    }
    let product = packages["akri-model"].iter().filter(|dependency| dependency.kind != "dev");
    let names: BTreeSet<&str> = product.map(|dependency| dependency.name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(MODEL));
    GUESTS.into_iter().for_each(assert_knows_no_host);
}

/// Checks that no crate of a workspace of components depends on one of the host's.
fn assert_knows_no_host(workspace: &str) {
    let packages = packages(workspace);
    for (name, dependencies) in &packages {
        let is_host = |name: &str| !packages.contains_key(name);
        let host = dependencies.iter().find(|dependency| dependency.is_ours && is_host(&dependency.name));
        assert_eq!(host.map(|host| &host.name), None, "{workspace}: '{name}' knows one of the host's");
    }
}

#[test]
fn banned_crates_are_not_in_the_tree() {
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

/// Comments name rules one by one, as in "rule 12, rule 43", so that `git grep -w` finds them. Each rule has a test. The lines
/// of the tables of attacks are cited in the same way.
#[test]
fn rules_threats_and_comments_name_each_other() {
    let rules = numbers("docs/contribute/rules.md", |line| line.strip_prefix("### ")?.split_once(". "));
    assert_cited("rule", &rules);
    let threats = numbers("docs/explanation/threat-model.md", |line| line.strip_prefix("| ")?.split_once(" | "));
    assert_cited("threat", &threats);
}

/// Checks that comments name the numbers of a page and no others, and that each is named beside a test.
fn assert_cited(what: &str, numbers: &BTreeSet<u32>) {
    let mut tested = BTreeSet::new();
    for (path, source) in files(&root(), &["rs", "wit"]) {
        for (line, comment) in source.lines().filter_map(|line| Some((line, line.split_once("//")?.1))) {
            let many =
                comment.split(&format!("{what}s ")).skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            assert!(!many, "{}: name each {what} by itself in '{comment}'", path.display());
            let cited = cited(what, comment);
            let unknown = cited.iter().find(|number| !numbers.contains(number));
            assert_eq!(unknown, None, "{}: there is no such {what}", path.display());
            if line.trim_start().starts_with("#[") && line.contains("test") {
                tested.extend(cited);
            }
        }
    }
    let untested: Vec<_> = numbers.difference(&tested).collect();
    assert!(untested.is_empty(), "no test has the comment '{what} N' with N in {untested:?}");
}

/// The numbers that follow a word: 12 and 43 in "rule 12, rule 43".
fn cited(what: &str, comment: &str) -> Vec<u32> {
    let comment = comment.to_lowercase();
    let number = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    comment.split(&format!("{what} ")).skip(1).filter_map(number).collect()
}

/// The numbers with which parts of a page begin, of which each has one of its own.
fn numbers(page: &str, part: impl Fn(&str) -> Option<(&str, &str)>) -> BTreeSet<u32> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let all: Vec<u32> = text.lines().filter_map(|line| part(line)?.0.parse().ok()).collect();
    let numbers = BTreeSet::from_iter(all.iter().copied());
    assert!(numbers.len() == all.len() && numbers.len() > 50, "{page}: {all:?}");
    numbers
}

/// A comment that cites notes of those who wrote the code tells its readers nothing.
#[test]
fn sources_cite_published_documents_only() {
    let is_cited = |text: &str, notes: &str| {
        text.split(notes).skip(1).any(|rest| match rest.strip_prefix(' ') {
            Some(rest) => rest.starts_with(|c: char| c.is_ascii_digit() || c == '\u{a7}' || c == '"'),
            None => rest.starts_with(".md"),
        })
    };
    for (path, text) in files(&root(), &["rs", "wit", "md", "toml", "yaml", "proto", "Makefile"]) {
        for notes in ["RULES", "DESIGN", "CONTRACT"] {
            assert!(!is_cited(&text, notes), "{} cites {notes}", path.display());
        }
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

/// Files below a directory whose names end so, but for hidden ones and those that cargo made.
pub fn files(directory: &Path, ends: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(".");
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, ends));
        } else if path.is_file() && ends.iter().any(|end| name == *end || name.ends_with(&format!(".{end}"))) {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
