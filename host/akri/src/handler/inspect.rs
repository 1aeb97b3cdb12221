//! `akri handler inspect`: what a component is, what it asks for, and whether it is granted that.

use std::process::ExitCode;

use akri_api::HandlerRules;
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<&'static str>,
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
    let rules = rules(args.object.handler_object.as_ref(), &[], &args.component)?;
    let report = report(&component, &rules);
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
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
        warnings: cautions(&rules.grants),
    }
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
    let Report { handler, version, digest, bytes, exports, shared, interval_milliseconds, imports, .. } = report;
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
    let rows: Vec<Vec<String>> = imports.iter().map(row).collect();
    format!("{head}\n{}", table(&["IMPORT", "KIND", "COVERED", "NOTE"], &rows))
}
