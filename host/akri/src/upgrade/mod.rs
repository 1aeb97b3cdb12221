//! `akri upgrade check`: the differences for someone who runs upstream Akri, before anything is changed.

mod checks;
mod shipped_handlers;
mod udev_rules;
mod workloads;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use akri_api::{Configuration, Instance};
use akri_cli::args::Output;
use akri_cli::output::{plain, print, table};
use akri_node::regular_file;
use anyhow::Context as _;
use clap::{Args, Subcommand};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{Api, DynamicObject, ListParams, TypeMeta};
use kube::core::ApiResource;
use serde::Serialize;
use serde_json::{Value, json};

use self::shipped_handlers::ShippedHandlers;
use crate::api_server::client;

/// Bytes of a file: a list of all objects of a large cluster.
const MAX_LIST: u64 = 256 << 20;

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
    /// Directory of the handlers that are to check discoveryDetails, with their DiscoveryHandler manifests.
    #[arg(long, value_name = "DIR", env = "AKRI_COMPONENTS", default_value = "/usr/lib/akri/components")]
    components: PathBuf,
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

/// A difference after the upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    weight: Weight,
    /// Kind, namespace and name.
    object: String,
    /// The change, and what to do about it.
    message: String,
}

/// Runs a command.
pub(crate) async fn run(command: UpgradeCommand) -> anyhow::Result<ExitCode> {
    let UpgradeCommand::Check(args) = command;
    let objects = match args.files.as_slice() {
        [] => objects_of_cluster().await?,
        files => files.iter().map(|file| read(file)).collect::<anyhow::Result<Vec<_>>>()?.concat(),
    };
    let mut handlers = ShippedHandlers::read(&args.components)?;
    let mut findings = Vec::new();
    for object in &objects {
        let all = [checks::check(object, &objects), handlers.check(object).await].concat();
        findings.extend(all.into_iter().map(|(weight, message)| Finding { weight, object: subject(object), message }));
    }
    findings.sort_by(|a, b| (a.weight, &a.object).cmp(&(b.weight, &b.object)));
    print(&findings, args.output, || describe(&findings, objects.len()))?;
    let is_free = findings.iter().all(|finding| finding.weight != Weight::InTheWay);
    Ok(if is_free { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(file: &Path) -> anyhow::Result<Vec<Value>> {
    let text = regular_file::read_text(file, MAX_LIST).with_context(|| format!("cannot read '{}'", file.display()))?;
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

/// Returns the objects of the cluster that an upgrade is about. A kind that does not exist has none.
async fn objects_of_cluster() -> anyhow::Result<Vec<Value>> {
    let client = client().await?;
    let mut all = Vec::new();
    for kind in [
        ApiResource::erase::<Configuration>(&()),
        ApiResource::erase::<Instance>(&()),
        ApiResource::erase::<DaemonSet>(&()),
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
        ApiResource::erase::<RoleBinding>(&()),
        ApiResource::erase::<ClusterRoleBinding>(&()),
    ] {
        let listed = Api::<DynamicObject>::all_with(client.clone(), &kind).list(&ListParams::default()).await;
        let objects = match listed {
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            listed => listed.with_context(|| format!("cannot list {}s", kind.kind))?,
        };
        let types = TypeMeta { api_version: kind.api_version, kind: kind.kind };
        for object in objects {
            all.push(serde_json::to_value(DynamicObject { types: Some(types.clone()), ..object })?);
        }
    }
    Ok(all)
}

fn describe(findings: &[Finding], count: usize) -> String {
    if findings.is_empty() {
        return format!("{count} objects, and nothing will differ\n");
    }
    let row = |finding: &Finding| {
        let weight = match finding.weight {
            Weight::InTheWay => "in the way",
            Weight::Differs => "differs",
            Weight::TakenOver => "taken over",
        };
        vec![weight.to_owned(), plain(&finding.object), plain(&finding.message)]
    };
    table(&["", "OBJECT", "WHAT"], &findings.iter().map(row).collect::<Vec<_>>())
}

fn subject(object: &Value) -> String {
    let (kind, namespace) = (text(object, "/kind"), text(object, "/metadata/namespace"));
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{kind} {namespace}{slash}{}", text(object, "/metadata/name"))
}

/// Returns an object without the fields of its metadata that may be newer than this program.
fn spec_of(object: &Value) -> Value {
    let metadata =
        json!({"name": object.pointer("/metadata/name"), "namespace": object.pointer("/metadata/namespace")});
    json!({"metadata": metadata, "spec": object.get("spec")})
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
