//! `akri handler inspect`: the type of a component, its imports, and whether they are granted.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use akri_api::HandlerRules;
use akri_cli::component::read;
use akri_cli::output::{plain, print, print_message, print_text, table};
use akri_cli::program::component_host;
use akri_model::grant::Grants;
use akri_sandbox::{Component, Import, grant_warnings};
use anyhow::{Context as _, anyhow};
use serde::Serialize;

use crate::args::InspectArgs;
use crate::component::load_with_rules;
use crate::image::object_name;
use crate::schema;

/// The description of a component.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InspectReport {
    handler: String,
    version: String,
    digest: String,
    bytes: usize,
    /// The interface that makes it a handler, with its version.
    exports: String,
    /// True if its devices are visible to several nodes.
    shared: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_milliseconds: Option<u128>,
    /// Bytes of the schema of its details.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema_bytes: Option<usize>,
    imports: Vec<Import>,
    /// Paths that devices may name: `grants.devicePaths` and `grants.mountPaths`.
    device_paths: Vec<String>,
    mount_paths: Vec<String>,
    /// `grants.containerPaths` and `grants.environment`.
    container_paths: Vec<String>,
    environment: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

pub(super) async fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let own = args.object.handler_object.as_ref();
    let bytes = read(&args.component)?;
    let schema = schema::read(&bytes);
    let (component, rules, _) = load_with_rules(&component_host(None)?, (&args.component, bytes), own, &[]).await?;
    if args.schema {
        let schema = schema.map_err(|why| anyhow!("'{}': {why}", args.component.display()))?;
        print_text(&schema.context("the component has no schema of its details")?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.suggest_grants {
        print_text(&suggestion(&component, &args.component))?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = report(&component, &rules, schema);
    report.warnings.iter().for_each(|warning| print_message(format!("warning: {}", plain(warning))));
    print(std::slice::from_ref(&report), args.output, || text(&report))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the report as a text.
pub(super) fn described(component: &Component, bytes: &[u8], rules: &HandlerRules) -> String {
    let report = report(component, rules, schema::read(bytes));
    let warnings: String = report.warnings.iter().map(|warning| format!("warning: {}\n", plain(warning))).collect();
    text(&report) + &warnings
}

fn report(component: &Component, rules: &HandlerRules, schema: Result<Option<String>, String>) -> InspectReport {
    let description = component.description();
    let lie = schema.as_ref().err().map(|why| format!("{why}; nobody uses it"));
    InspectReport {
        handler: description.name.clone(),
        version: description.version.clone(),
        digest: format!("sha256:{}", component.digest()),
        bytes: component.size(),
        exports: component.exported().to_owned(),
        shared: rules.shared.unwrap_or(description.shared),
        interval_milliseconds: rules.interval.or(description.interval).map(|interval| interval.as_millis()),
        schema_bytes: schema.ok().flatten().map(|schema| schema.len()),
        imports: component.coverage(&rules.grants),
        device_paths: rules.grants.device_paths.clone(),
        mount_paths: rules.grants.mount_paths.clone(),
        container_paths: rules.grants.container_paths.clone(),
        environment: rules.grants.environment.clone(),
        warnings: lie.into_iter().chain(warnings(&rules.grants)).collect(),
    }
}

/// Grants by the imports that they open, with an entry to be filled in.
const OPENS: [(&str, &str); 7] = [
    ("akri:discovery/udev@", "udev: {subsystems: []}         # such as tty, video4linux, usb"),
    ("akri:discovery/multicast@", "multicast: []                  # such as {group: 239.255.255.250, port: 3702}"),
    ("akri:discovery/secrets@", "secrets: []                    # names of properties that come from a Secret"),
    (
        "wasi:http/outgoing-handler@",
        "http: []                       # such as {networks: [192.0.2.0/24], ports: [80, 443]}",
    ),
    ("wasi:sockets/tcp@", "tcp: []                        # such as {networks: [192.0.2.0/24], ports: [502]}"),
    ("wasi:sockets/udp@", "udp: []                        # such as {networks: [192.0.2.0/24], ports: [161]}"),
    ("wasi:sockets/ip-name-lookup@", "names: []                      # such as '*.example'"),
];

/// Writes a DiscoveryHandler with an empty grant for each import that needs one. Interpreters import all of WASI, also files,
/// which no handler has; and compiled programs import name lookups with every connection.
fn suggestion(component: &Component, path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let name = &component.description().name;
    let is_interpreter = component.imports().iter().any(|import| import.starts_with("wasi:filesystem/"));
    let (mut asked, mut runtime) = (String::new(), String::new());
    for import in component.imports() {
        let Some((_, grant)) = OPENS.iter().find(|(opened, _)| import.starts_with(opened)) else { continue };
        match import.starts_with("akri:") || !is_interpreter && !import.starts_with("wasi:sockets/ip-name-lookup@") {
            true => asked += &format!("    {grant}\n"),
            false => runtime += &format!("    # {grant}\n"),
        }
    }
    if !runtime.is_empty() {
        runtime = format!("    # The runtime of its language imports these, perhaps without need:\n{runtime}");
    }
    format!(
        "apiVersion: akri.sh/v0\nkind: DiscoveryHandler\nmetadata:\n  name: {}\nspec:\n  name: {}\n  component:\n    file: {}\n  \
         grants:\n{asked}{runtime}    devicePaths: []                # such as /dev/ttyUSB*\n",
        object_name(name),
        plain(name),
        plain(&file),
    )
}

/// Returns warnings about risky grants.
fn warnings(grants: &Grants) -> Vec<String> {
    let paths = grants.device_paths.iter().chain(&grants.mount_paths);
    let outside: BTreeSet<&String> = paths.filter(|path| !path.starts_with("/dev/")).collect();
    let outside: Vec<String> = outside.into_iter().cloned().collect();
    let risks = [
        (&outside, "its devices may name paths of the node outside of /dev (LIST), which containers then get"),
        (&grants.container_paths, "its devices may replace files of containers outside of /dev (LIST)"),
        (&grants.environment, "its devices may choose what programs in containers run or trust (LIST)"),
    ];
    let granted = risks.iter().filter(|(list, _)| !list.is_empty());
    let more = granted.map(|(list, risk)| risk.replace("LIST", &list.join(", ")));
    grant_warnings(grants).into_iter().map(str::to_owned).chain(more).collect()
}

fn text(report: &InspectReport) -> String {
    let InspectReport { handler, version, digest, bytes, exports, shared, interval_milliseconds, schema_bytes, .. } =
        report;
    let devices = if *shared { "shared by all nodes that see them" } else { "of one node each" };
    let interval = interval_milliseconds.map_or("not named".to_owned(), |ms| format!("{ms} ms"));
    let schema = schema_bytes.map_or("not described".to_owned(), |bytes| format!("{bytes} bytes of schema: --schema"));
    let head = [
        ("handler", format!("{} {}", plain(handler), plain(version))),
        ("digest", digest.clone()),
        ("size", format!("{bytes} bytes")),
        ("exports", exports.clone()),
        ("devices", devices.to_owned()),
        ("interval", interval),
        ("details", schema),
    ];
    let head: String = head.iter().map(|(name, value)| format!("{name:8}   {value}\n")).collect();
    let row = |import: &Import| [import.name.as_str(), import.kind, import.covered, &import.note].map(plain).to_vec();
    let rows: Vec<Vec<String>> = report.imports.iter().map(row).collect();
    format!("{head}\n{}\n{}", table(&["IMPORT", "KIND", "COVERED", "NOTE"], &rows), paths(report))
}

/// Returns the paths that devices may name.
fn paths(report: &InspectReport) -> String {
    let row = |(grant, list): (&str, &[String])| {
        let list = if list.is_empty() { "none".to_owned() } else { plain(&list.join(", ")) };
        vec![grant.to_owned(), list]
    };
    let grants = [
        ("devicePaths", &*report.device_paths),
        ("mountPaths", &*report.mount_paths),
        ("containerPaths", &*report.container_paths),
        ("environment", &*report.environment),
    ];
    table(&["GRANT", "WHAT"], &grants.map(row))
}
