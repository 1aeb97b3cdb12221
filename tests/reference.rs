//! Tables of the documentation that are made from the program: its command line, the fields of its kinds, the values of its
//! chart and its metrics.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use akri_api::{Configuration, DiscoveryHandler, Instance};
use akri_kube::metrics::MetricDoc;
use kube::CustomResourceExt as _;
use serde_json::Value;

use crate::architecture::files;
use crate::monitoring::documented;
use crate::support::node::akri;

/// Fields that mean the same wherever they are.
const REPEATED: [&str; 3] = ["status.conditions", "status.nodes", "status.brokers"];
/// Options that each command has.
const OF_ALL: [&str; 3] = ["--log-format", "--verbose", "--help"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The pages of the documentation, with their paths.
pub fn pages() -> Vec<(PathBuf, String)> {
    files(&root().join("docs"), &["md"])
}

fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows = rows.into_iter().map(|row| format!("| {} |\n", row.join(" | ").replace("|  |", "| |")));
    format!("| {} |\n|{}\n{}", head.join(" | "), "---|".repeat(N), rows.collect::<String>())
}

/// A text as one line, in which angle brackets outside of code are themselves.
fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let outside =
        |(number, part): (usize, &str)| if number % 2 == 0 { part.replace('<', "&lt;") } else { part.to_owned() };
    line.split('`').enumerate().map(outside).collect::<Vec<_>>().join("`")
}

/// An item of a list: what has long names does not fit into a table on a narrow screen.
fn item(name: &str, facts: &[String], meaning: &str) -> String {
    let facts: Vec<&str> = facts.iter().map(String::as_str).filter(|fact| !fact.is_empty()).collect();
    let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
    let meaning = if meaning.is_empty() { String::new() } else { format!(": {meaning}") };
    format!("- `{name}`{facts}{meaning}\n")
}

fn metrics(docs: Vec<MetricDoc>) -> String {
    let row = |doc: MetricDoc| {
        let labels: Vec<String> = doc.labels.iter().map(|label| format!("`{label}`")).collect();
        [format!("`{}`", doc.name), labels.join(", "), doc.help.to_owned()]
    };
    table(["metric", "labels", "meaning"], docs.into_iter().map(row))
}

/// Adds an item for each field of a schema below `path`.
fn fields(path: &str, schema: &Value, items: &mut String) {
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let mut kind = field["type"].as_str().unwrap_or("string or integer").to_owned();
        if let Some(values) = field["enum"].as_array() {
            kind = values
                .iter()
                .filter_map(Value::as_str)
                .map(|value| format!("`{value}`"))
                .collect::<Vec<_>>()
                .join(", ");
        }
        if required.iter().any(|of| of == name) {
            kind.push_str(", required");
        }
        items.push_str(&item(&path, &[kind], &one_line(field["description"].as_str().unwrap_or_default())));
        if !REPEATED.contains(&&*path) {
            fields(&path, field, items);
            fields(&format!("{path}[]"), &field["items"], items);
        }
    }
}

/// The fields of `spec` and `status` of a kind.
fn kind(crd: impl serde::Serialize) -> String {
    let crd = serde_json::to_value(crd).unwrap();
    let properties = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let mut items = String::new();
    for part in ["spec", "status"] {
        fields(part, &properties[part], &mut items);
    }
    items
}

fn help(command: &[&str]) -> String {
    let output = Command::new(akri()).args(command).arg("-h").env_clear().output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the entries of a list of `--help`: each is a name and the text beside and below it.
fn entries(help: &str, list: &str) -> Vec<(String, String)> {
    let Some((_, rest)) = help.split_once(&format!("\n{list}:\n")) else { return Vec::new() };
    let mut entries: Vec<(String, String)> = Vec::new();
    for line in rest.split("\n\n").next().unwrap().lines() {
        let indent = line.len() - line.trim_start().len();
        match (line.trim().split_once("  "), entries.last_mut()) {
            (_, Some((_, text))) if indent > 6 => text.extend([" ", line.trim()]),
            (Some((name, text)), _) => entries.push((name.to_owned(), text.trim().to_owned())),
            (None, _) => entries.push((line.trim().to_owned(), String::new())),
        }
    }
    entries
}

/// Takes what `--help` says in brackets after a name, such as the default, out of a text.
fn take(text: &mut String, name: &str) -> String {
    let Some(start) = text.find(&format!("[{name}: ")) else { return String::new() };
    let end = start + text[start..].find(']').unwrap();
    let value = text[start + name.len() + 3..end].to_owned();
    text.replace_range(start..=end, "");
    value
}

/// The arguments and flags of a command.
fn options(help: &str) -> Option<String> {
    let all = [entries(help, "Arguments"), entries(help, "Options")].concat();
    let is_own = |(name, _): &(String, String)| !OF_ALL.iter().any(|other| name.contains(other));
    let row = |(name, mut text): (String, String)| {
        let variable = take(&mut text, "env");
        let default = take(&mut text, "default");
        // A value is code, words that describe one are not.
        let code = |text: &str| match text {
            "" => String::new(),
            "nowhere" => text.to_owned(),
            _ if text.contains(' ') && !text.starts_with('-') => one_line(text),
            _ => format!("`{text}`"),
        };
        let default = if default.is_empty() { default } else { format!("default {}", code(&default)) };
        let facts = [code(variable.trim_end_matches('=')), default];
        item(&name, &facts, &one_line(&text))
    };
    let items = all.into_iter().filter(is_own).map(row).collect::<String>();
    (!items.is_empty()).then_some(items)
}

/// A section for each command, and for those below it.
fn commands(command: &[&str], sections: &mut Vec<String>, known: &mut Vec<(String, String)>) {
    let help = help(command);
    if !command.is_empty() {
        let about = help.lines().next().unwrap_or_default();
        let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap();
        let name = format!("akri {}", command.join(" "));
        let parts = [format!("## {name}\n"), format!("{}.\n", one_line(about)), format!("`{usage}`\n")];
        let table = options(&help);
        // Commands of one family may have the same options.
        let same = table.as_ref().and_then(|table| known.iter().find(|(_, other)| other == table));
        let shown = same.map(|(other, _)| format!("Options are those of `{other}`.\n")).or_else(|| table.clone());
        sections.extend(parts.into_iter().chain(shown));
        known.extend(table.map(|table| (name, table)));
    }
    for (name, _) in entries(&help, "Commands").iter().filter(|(name, _)| name != "help") {
        commands(&[command, &[name]].concat(), sections, known);
    }
}

fn command_line() -> String {
    let mut sections = Vec::new();
    commands(&[], &mut sections, &mut Vec::new());
    sections.join("\n")
}

/// An item for each value of the chart, with the comment above it or behind it.
fn values() -> String {
    let text = fs::read_to_string(root().join("deploy/helm/akri/values.yaml")).unwrap();
    let mut rows: Vec<[String; 3]> = Vec::new();
    let mut path: Vec<&str> = Vec::new();
    let mut above: Vec<&str> = Vec::new();
    for line in text.lines() {
        let (indent, rest) = (line.len() - line.trim_start().len(), line.trim());
        if let Some(comment) = rest.strip_prefix('#') {
            above.push(comment.trim());
            continue;
        }
        let Some((name, value)) = rest.split_once(':').filter(|_| !rest.starts_with('-')) else {
            let list = rows.last_mut().filter(|_| !rest.is_empty());
            list.into_iter().for_each(|[_, default, _]| *default = format!("`[{}]`", rest.trim_start_matches("- ")));
            above.clear();
            continue;
        };
        path.truncate(indent / 2);
        path.push(name);
        let (value, behind) = value.split_once(" # ").unwrap_or((value, ""));
        let value = value.trim();
        let meaning = above.drain(..).chain([behind]).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        let is_group = value.is_empty() || value.starts_with('&');
        if !is_group || !meaning.is_empty() {
            let default = if is_group { String::new() } else { format!("`{value}`") };
            rows.push([path.join("."), default, one_line(&meaning)]);
        }
    }
    rows.into_iter().map(|[name, default, meaning]| item(&name, &[default], &meaning)).collect()
}

/// The blocks that are made from the program, by the names in their comments.
fn made() -> Vec<(&'static str, String)> {
    let metrics = documented().map(|(name, docs)| (name, metrics(docs)));
    let others = [
        ("fields of Configuration", kind(Configuration::crd())),
        ("fields of Instance", kind(Instance::crd())),
        ("fields of DiscoveryHandler", kind(DiscoveryHandler::crd())),
        ("commands", command_line()),
        ("values of the chart", values()),
    ];
    metrics.into_iter().chain(others).collect()
}

/// Returns the page that has a block between two comments, with what is before, in and after it.
fn block(name: &str) -> (PathBuf, [String; 3]) {
    let begin = format!("<!-- made by 'make manifests': {name} -->\n");
    let with = pages().into_iter().filter(|(_, text)| text.contains(&begin)).collect::<Vec<_>>();
    let [(path, text)] = &with[..] else { panic!("{} pages of docs/ have '{begin}'", with.len()) };
    let (before, rest) = text.split_once(&begin).unwrap();
    let (inside, after) = rest.split_once("<!-- end -->").unwrap_or_else(|| panic!("'{name}' has no end"));
    (path.clone(), [format!("{before}{begin}"), inside.to_owned(), format!("<!-- end -->{after}")])
}

/// With `AKRI_WRITE=1` it writes them.
#[test]
fn reference_is_made_from_the_program() {
    for (name, expected) in made() {
        let (path, [before, inside, after]) = block(name);
        if std::env::var_os("AKRI_WRITE").is_some() {
            fs::write(path, [&*before, "\n", &expected, "\n", &after].concat()).unwrap();
        } else {
            assert!(inside.trim() == expected.trim(), "{name}: run 'make manifests'");
        }
    }
}

#[test]
fn all_options_values_and_fields_are_in_the_reference() {
    let all = made().into_iter().map(|(_, text)| text).collect::<String>();
    for expected in [
        "## akri handler componentize\n",
        "- `--kubelet-dir <DIR>` (`AKRI_KUBELET_DIR`, default `/var/lib/kubelet`): ",
        "- `agent.tolerations` (`[{operator: Exists}]`): ",
        "- `udev.configuration.brokerJob.backoffLimit` (`2`)\n",
        "- `spec.grants.http[].tls.caBundle` (string): ",
        "- `spec.discoveryHandler.name` (string, required): ",
    ] {
        assert!(all.contains(expected), "{expected}: {all}");
    }
    let options = all.lines().filter(|line| line.starts_with("- `--")).collect::<BTreeSet<_>>();
    assert!(options.len() > 50 && options.iter().all(|option| !option.contains("[env")), "{options:#?}");
}
