//! The shape of the workspace: which crate may depend on which, which libraries are banned, and that the documentation names
//! crates, rules and tests that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

/// All of `host/`.
const HOST: [&str; 17] = [
    "akri-model",
    "akri-grpc",
    "akri-http",
    "akri-api",
    "akri-node",
    "akri-cassette",
    "akri-confine",
    "akri-engine",
    "akri-sandbox",
    "akri-kubelet",
    "akri-remote",
    "akri-cluster",
    "akri-oci",
    "akri-discovery",
    "akri-agent",
    "akri-controller",
    "akri-webhook",
];

/// The allowed dependencies between our crates. The workspace has no others.
const MAY_KNOW: [(&str, &[&str]); 21] = [
    ("akri-model", &[]),
    ("akri-grpc", &[]),
    ("akri-http", &[]),
    ("akri-api", &["akri-model"]),
    ("akri-node", &["akri-model"]),
    ("akri-cassette", &["akri-model", "akri-node"]),
    ("akri-confine", &["akri-model"]),
    ("akri-engine", &["akri-model", "akri-cassette", "akri-confine", "akri-node"]),
    ("akri-sandbox", &["akri-model", "akri-confine", "akri-engine", "akri-node"]),
    ("akri-kubelet", &["akri-grpc"]),
    ("akri-remote", &["akri-model", "akri-api", "akri-grpc", "akri-node"]),
    ("akri-cluster", &["akri-model", "akri-api", "akri-node"]),
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
            "akri-http",
            "akri-node",
            "akri-sandbox",
            "akri-kubelet",
            "akri-remote",
            "akri-cluster",
            "akri-oci",
            "akri-discovery",
        ],
    ),
    ("akri-controller", &["akri-model", "akri-api", "akri-http"]),
    ("akri-webhook", &["akri-model", "akri-api", "akri-http", "akri-sandbox"]),
    ("akri", &HOST),
    ("remote-handler", &[]),
    ("akri-tests", &HOST),
    ("akri-benches", &["akri-model", "akri-api", "akri-grpc", "akri-sandbox", "akri-tests"]),
];

/// The crates that convert gRPC messages, and peers of tests.
const GRPC: [&str; 6] = ["akri-grpc", "akri-kubelet", "akri-remote", "remote-handler", "akri-tests", "akri-benches"];

/// The crates that convert Kubernetes objects, the program that connects to the cluster, and tests.
const KUBERNETES: [&str; 7] =
    ["akri-api", "akri-cluster", "akri-controller", "akri-webhook", "akri", "akri-tests", "akri-benches"];

/// Libraries, by how their names begin, and the only ones of our crates that may know them: the edges.
const EDGES: [(&str, &[&str]); 7] = [
    ("wasmtime", &["akri-engine"]),
    ("cranelift", &["akri-engine"]),
    ("wit-bindgen", &[]),
    ("tonic", &GRPC),
    ("prost", &GRPC),
    ("kube", &KUBERNETES),
    ("k8s-openapi", &KUBERNETES),
];

/// The rules need nothing but these. Specs of brokers are opaque JSON.
const MODEL: [&str; 9] =
    ["base64", "blake2", "ipnet", "memchr", "percent-encoding", "secrecy", "serde", "serde_json", "thiserror"];

/// Workspaces of components: another target, another lock file.
const GUESTS: [&str; 2] = ["handlers", "tests/guests"];

#[test]
fn crates_depend_on_each_other_as_the_table_says() {
    for (name, dependencies) in packages(".") {
        let allowed = MAY_KNOW.iter().find(|(of, _)| *of == name);
        let (_, allowed) = allowed.unwrap_or_else(|| panic!("'{name}' is not in the table: give it a place there"));
        for ours in dependencies.iter().filter(|dependency| dependency.is_ours) {
            assert!(allowed.contains(&ours.name.as_str()), "'{name}' must not depend on '{}'", ours.name);
        }
    }
}

#[test]
fn external_crates_are_used_by_listed_crates_only() {
    for (name, dependencies) in packages(".") {
        for dependency in dependencies {
            let edge = EDGES.iter().find(|(prefix, _)| dependency.name.starts_with(prefix));
            let allowed = edge.is_none_or(|(_, allowed)| allowed.contains(&name.as_str()));
            assert!(allowed, "'{name}' must not depend on '{}'", dependency.name);
        }
    }
}

#[test]
fn model_has_few_dependencies() {
    let packages = packages(".");
    let product = packages["akri-model"].iter().filter(|dependency| dependency.kind != "dev");
    let names: BTreeSet<&str> = product.map(|dependency| dependency.name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(MODEL));
}

#[test]
fn components_use_the_host_through_wit_only() {
    for workspace in GUESTS {
        let packages = packages(workspace);
        for (name, dependencies) in &packages {
            let is_host = |name: &str| !packages.contains_key(name);
            let host = dependencies.iter().find(|dependency| dependency.is_ours && is_host(&dependency.name));
            assert_eq!(host.map(|host| &host.name), None, "{workspace}: '{name}' knows one of the host's");
        }
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

/// The table of misbehaviours names the tests that show each of them.
#[test]
fn security_page_names_existing_tests() {
    let page = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let (_, table) = page.split_once("| a handler that |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let names: Vec<&str> = table.split('`').skip(1).step_by(2).filter(|word| word.matches('_').count() > 1).collect();
    assert!(names.len() > 10, "{names:?}");
    let sources = ["host", "tests"].map(|directory| files(&root().join(directory), &["rs"])).concat();
    for name in names {
        let exists = sources.iter().any(|(_, source)| has_test(source, name));
        assert!(exists, "docs/security.md names '{name}', which is no test");
    }
}

/// The table of crates has a row for each.
#[test]
fn architecture_page_names_every_crate() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    for (name, _) in packages(".") {
        assert!(page.contains(&format!("| `{name}` |")), "docs/architecture.md has no row for the crate '{name}'");
    }
}

/// Comments name rules by number.
#[test]
fn cited_rules_are_documented() {
    let rules = rules();
    let mut count = 0;
    for (path, source) in files(&root(), &["rs", "wit"]) {
        for comment in source.lines().filter_map(|line| Some(line.split_once("//")?.1)) {
            for number in cited(comment) {
                assert!(rules.contains_key(&number), "{}: there is no rule {number}", path.display());
                count += 1;
            }
        }
    }
    assert!(count > 50, "{count}");
}

/// Checks that the files and tests that rules name exist.
#[test]
fn rules_name_existing_files_and_tests() {
    for (number, rule) in rules() {
        for link in rule.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            assert!(root().join("docs").join(link).exists(), "rule {number} names '{link}', which is no file");
        }
        let count = assert_named_tests_exist(&format!("rule {number}"), &rule);
        assert!(count > 0 || rule.contains("\nNot built yet."), "rule {number} has no test");
    }
}

#[test]
fn threat_model_names_existing_tests() {
    let page = fs::read_to_string(root().join("docs/threat-model.md")).unwrap();
    assert!(assert_named_tests_exist("docs/threat-model.md", &page) > 20);
}

/// Checks the names of tests, with their modules, in a text; returns how many there are.
fn assert_named_tests_exist(place: &str, text: &str) -> usize {
    let is_name = |span: &&str| {
        span.contains("::") && span.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_:".contains(&b))
    };
    let names: Vec<&str> = text.split('`').skip(1).step_by(2).filter(is_name).collect();
    for name in &names {
        let (module, test) = name.rsplit_once("::").unwrap();
        let exists = sources_of(module).iter().any(|source| has_test(source, test));
        assert!(exists, "{place} names '{name}', which is no test");
    }
    names.len()
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

/// docs/rules.md, rule by rule.
fn rules() -> BTreeMap<u32, String> {
    let text = fs::read_to_string(root().join("docs/rules.md")).unwrap();
    let rule = |part: &str| Some((part.split_once(". ")?.0.parse().ok()?, part.to_owned()));
    let parts: Vec<&str> = text.split("\n### ").skip(1).collect();
    let rules: BTreeMap<u32, String> = parts.iter().filter_map(|part| rule(part)).collect();
    assert_eq!(rules.len(), parts.len(), "each has a number of its own");
    rules
}

/// The numbers in "rule 12" and "rules 1-4, 6 and 7".
fn cited(comment: &str) -> Vec<u32> {
    let comment = comment.to_lowercase().replace(" and ", ", ");
    let mut numbers = Vec::new();
    for rest in comment.split("rule").skip(1) {
        let Some(list) = rest.trim_start_matches('s').strip_prefix(' ') else { continue };
        let end = list.find(|c: char| !c.is_ascii_digit() && !", -".contains(c)).unwrap_or(list.len());
        for part in list[..end].split(", ").map(|part| part.trim_end_matches([',', ' ', '-'])) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = first.parse::<u32>().into_iter().zip(last.parse::<u32>());
            numbers.extend(range.flat_map(|(first, last)| first..=last));
        }
    }
    numbers
}

/// The files that may hold the tests of a module: `crate::module` of `host/`, or a story.
fn sources_of(module: &str) -> Vec<String> {
    let paths = match module.split_once("::") {
        None => vec![
            format!("tests/{module}.rs"),
            format!("host/{module}/src/lib.rs"),
            format!("host/{module}/src/tests.rs"),
        ],
        Some((of, path)) => {
            let path = path.replace("::", "/");
            let unit = [".rs", "/mod.rs", "/tests.rs"].map(|end| format!("host/{of}/src/{path}{end}"));
            unit.into_iter().chain([format!("host/{of}/tests/{path}/main.rs")]).collect()
        }
    };
    paths.into_iter().filter_map(|path| fs::read_to_string(root().join(path)).ok()).collect()
}

/// Returns whether there is a function of that name below an attribute that makes it a test.
fn has_test(source: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    let above = source.split_once(&function).and_then(|(above, _)| above.rsplit('\n').nth(1));
    above.is_some_and(|attribute| attribute.contains("test"))
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
fn files(directory: &Path, ends: &[&str]) -> Vec<(PathBuf, String)> {
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
