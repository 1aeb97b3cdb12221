//! `akri handler inspect`: what a component is, what it asks for, and whether it is granted that.

use std::collections::BTreeSet;
use std::process::ExitCode;

use akri_api::HandlerRules;
use akri_model::grant::Grants;
use akri_sandbox::{Component, Covered, Import, Kind, cautions};
use serde::Serialize;

use super::args::InspectArgs;
use super::{load, rules};
use crate::output::{plain, print, table};

/// A component.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    handler: String,
    version: String,
    digest: String,
    bytes: usize,
    /// The interface that makes it a handler, with its version.
    exports: String,
    /// Whether many nodes see its devices.
    shared: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_milliseconds: Option<u128>,
    imports: Vec<Line>,
    /// What devices may name of the node: `grants.devicePaths` and `grants.mountPaths`.
    device_paths: Vec<String>,
    mount_paths: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// An import.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    /// `asked`: by the component itself; `runtime`: maybe only by the runtime of its language.
    kind: &'static str,
    /// `always`, `granted` or `not granted`.
    covered: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    note: String,
}

pub(super) async fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let component = load(&args.component, None).await?;
    let rules = rules(args.object.handler_object.as_ref(), &[], &args.component, &component)?;
    let report = report(&component, &rules);
    for warning in &report.warnings {
        eprintln!("warning: {}", plain(warning));
    }
    print(std::slice::from_ref(&report), args.output, || text(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn report(component: &Component, rules: &HandlerRules) -> Report {
    let description = component.description();
    Report {
        handler: description.name.clone(),
        version: description.version.clone(),
        digest: format!("sha256:{}", component.digest()),
        bytes: component.size(),
        exports: component.exported().to_owned(),
        shared: rules.shared.unwrap_or(description.shared),
        interval_milliseconds: rules.interval.or(description.interval).map(|interval| interval.as_millis()),
        imports: component.coverage(&rules.grants).into_iter().map(line).collect(),
        device_paths: rules.grants.device_paths.clone(),
        mount_paths: rules.grants.mount_paths.clone(),
        warnings: warnings(&rules.grants),
    }
}

/// What to think about before the component gets these grants.
fn warnings(grants: &Grants) -> Vec<String> {
    let paths = grants.device_paths.iter().chain(&grants.mount_paths);
    let outside: BTreeSet<&str> = paths.map(String::as_str).filter(|path| !path.starts_with("/dev/")).collect();
    let outside = (!outside.is_empty()).then(|| {
        let list = outside.into_iter().collect::<Vec<_>>().join(", ");
        format!("its devices may name paths of the node outside of /dev ({list}), which containers then get")
    });
    cautions(grants).into_iter().map(str::to_owned).chain(outside).collect()
}

fn line(import: Import) -> Line {
    Line {
        name: import.name,
        kind: match import.kind {
            Kind::Asked => "asked",
            Kind::Runtime => "runtime",
        },
        covered: match import.covered {
            Covered::Always => "always",
            Covered::Granted => "granted",
            Covered::NotGranted => "not granted",
        },
        note: import.note,
    }
}

fn text(report: &Report) -> String {
    let Report { handler, version, digest, bytes, exports, shared, interval_milliseconds, .. } = report;
    let devices = if *shared { "shared by all nodes that see them" } else { "of one node each" };
    let interval = interval_milliseconds.map_or("not named".to_owned(), |ms| format!("{ms} ms"));
    let head = [
        ("handler", format!("{} {}", plain(handler), plain(version))),
        ("digest", digest.clone()),
        ("size", format!("{bytes} bytes")),
        ("exports", exports.clone()),
        ("devices", devices.to_owned()),
        ("interval", interval),
    ];
    let head: String = head.iter().map(|(name, value)| format!("{name:8}   {value}\n")).collect();
    let row = |line: &Line| vec![line.name.clone(), line.kind.to_owned(), line.covered.to_owned(), plain(&line.note)];
    let rows: Vec<Vec<String>> = report.imports.iter().map(row).collect();
    format!("{head}\n{}\n{}", table(&["IMPORT", "KIND", "COVERED", "NOTE"], &rows), paths(report))
}

/// What devices may name of the node.
fn paths(report: &Report) -> String {
    let row = |(grant, list): (&str, &[String])| {
        let list = if list.is_empty() { "none".to_owned() } else { plain(&list.join(", ")) };
        vec![grant.to_owned(), list]
    };
    let grants = [("devicePaths", &*report.device_paths), ("mountPaths", &*report.mount_paths)];
    table(&["GRANT", "PATHS"], &grants.map(row))
}
