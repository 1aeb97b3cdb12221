//! `akri upgrade check`: what will be different for someone who runs upstream Akri, said before anything is changed.

mod cluster;
mod configuration;
mod leftovers;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use akri_cli::args::Output;
use akri_cli::output::{plain, print, table};
use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

/// The steps before an upgrade.
#[derive(Debug, Subcommand)]
pub(crate) enum UpgradeCommand {
    /// Say what of an installation of upstream Akri will differ: what is refused, what has to be changed, what is taken over.
    /// Nothing is written. Fails if something is in the way.
    Check(CheckArgs),
}

/// Flags of `akri upgrade check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// YAML files to check, such as the Configurations you deploy [default: the objects of the cluster that KUBECONFIG or the
    /// pod's service account leads to].
    files: Vec<PathBuf>,
    /// The format of the output.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// The importance of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum Weight {
    /// It has to be changed first.
    InTheWay,
    /// It works, and differently.
    Differs,
    /// Nothing has to be done.
    TakenOver,
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InTheWay => "in the way",
            Self::Differs => "differs",
            Self::TakenOver => "taken over",
        })
    }
}

/// A difference after the upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    weight: Weight,
    /// Kind, namespace and name.
    object: String,
    /// The change, and what to do about it.
    message: String,
}

impl Finding {
    fn new(weight: Weight, object: &Value, message: impl Into<String>) -> Self {
        Self { weight, object: subject(object), message: message.into() }
    }
}

/// Runs a command.
pub(crate) async fn run(command: UpgradeCommand) -> anyhow::Result<ExitCode> {
    let UpgradeCommand::Check(args) = command;
    let objects = match args.files.as_slice() {
        [] => cluster::objects().await?,
        files => files.iter().map(|file| read(file)).collect::<anyhow::Result<Vec<_>>>()?.concat(),
    };
    let mut findings: Vec<Finding> = objects.iter().flat_map(check).collect();
    findings.sort_by(|a, b| (a.weight, &a.object).cmp(&(b.weight, &b.object)));
    print(&findings, args.output, || describe(&findings, objects.len()))?;
    let is_free = findings.iter().all(|finding| finding.weight != Weight::InTheWay);
    Ok(if is_free { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(file: &Path) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read '{}'", file.display()))?;
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).with_context(|| format!("'{}' is not YAML", file.display()))?;
    Ok(documents.into_iter().flat_map(items).collect())
}

/// The objects of a list, as `kubectl get -o yaml` prints it, or the object itself.
fn items(document: Value) -> Vec<Value> {
    match document.get("items").and_then(Value::as_array) {
        Some(items) => items.clone(),
        None => vec![document],
    }
}

fn check(object: &Value) -> Vec<Finding> {
    match (text(object, "/apiVersion"), text(object, "/kind")) {
        ("akri.sh/v0", "Configuration") => configuration::check(object),
        ("akri.sh/v0", "Instance") => leftovers::instance(object),
        _ => leftovers::workload(object),
    }
}

fn describe(findings: &[Finding], count: usize) -> String {
    if findings.is_empty() {
        return format!("{count} objects, and nothing will differ\n");
    }
    let row = |finding: &Finding| vec![finding.weight.to_string(), plain(&finding.object), plain(&finding.message)];
    table(&["", "OBJECT", "WHAT"], &findings.iter().map(row).collect::<Vec<_>>())
}

fn subject(object: &Value) -> String {
    let (kind, namespace) = (text(object, "/kind"), text(object, "/metadata/namespace"));
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{kind} {namespace}{slash}{}", text(object, "/metadata/name"))
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
