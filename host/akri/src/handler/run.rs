//! `akri handler run`: one round, and everything that came of it.

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use akri_agent::discovery::admission::admit;
use akri_agent::discovery::call;
use akri_api::{HandlerRules, data};
use akri_model::device::{DeviceSet, Note};
use akri_model::discovery::RoundError;
use akri_model::resolve::{Values, resolve};
use akri_sandbox::{Cache, Component, LogLine};
use serde::Serialize;

use super::args::RunArgs;
use super::{load, rules, subjects, validate};
use crate::cli::node_name;
use crate::discover::{Found, found_table};
use crate::output::{plain, print};
use crate::subject::{Subject, warn};

/// What came of a round.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    configuration: String,
    handler: String,
    version: String,
    digest: String,
    milliseconds: f64,
    triggers: Vec<String>,
    devices: Vec<Found>,
    /// Ids of devices that are not handed out, and why is in a note.
    withheld: Vec<String>,
    /// Origins whose known devices stay as they are.
    kept: Vec<String>,
    notes: Vec<Note>,
    notes_dropped: u64,
    log: Vec<Line>,
}

/// A line that the component wrote.
#[derive(Debug, Serialize)]
struct Line {
    level: String,
    context: String,
    message: String,
}

/// Fails if one of the rounds failed.
pub(super) async fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let node = node_name(args.node_name.clone())?;
    let component = load(&args.component, Some(&args.host)).await?;
    let (subjects, manifests) = subjects(&args.file, &component)?;
    let rules = rules(args.object.handler_object.as_ref(), &manifests, &args.component, &component)?;
    let stage = Stage { component, rules, values: data::values(&manifests), node };
    let mut reports = Vec::new();
    for subject in &subjects {
        match stage.round(subject).await {
            Ok(report) => reports.push(report),
            Err(error) => eprintln!("error: {}", subject.failure(&error)),
        }
    }
    print(&reports, args.output, || reports.iter().map(text).collect())?;
    Ok(if reports.len() == subjects.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where rounds are run.
struct Stage {
    component: Component,
    rules: HandlerRules,
    values: Values,
    node: String,
}

impl Stage {
    async fn round(&self, subject: &Subject) -> Result<Report, RoundError> {
        let configuration = &subject.configuration;
        let properties = resolve(&configuration.properties, &self.values).map_err(RoundError::PropertiesUnresolved)?;
        let (log, lines) = mpsc::channel();
        let mut call = call(configuration, &self.rules, properties, Cache::default());
        let triggers = self.component.validate(call.clone()).await?;
        call.log = Some(log);
        let begun = Instant::now();
        let set = self.component.discover(call).await?;
        let took = begun.elapsed();
        let set = admit(set, &self.rules.grants, &self.rules.limits);
        warn(&set, configuration);
        let triggers = triggers.iter().map(validate::trigger).collect();
        Ok(self.report(subject, set, took, triggers, lines.try_iter()))
    }

    fn report(
        &self,
        subject: &Subject,
        set: DeviceSet,
        took: Duration,
        triggers: Vec<String>,
        lines: impl Iterator<Item = LogLine>,
    ) -> Report {
        let (description, configuration) = (self.component.description(), &subject.configuration);
        let shared = self.rules.shared.unwrap_or(description.shared);
        let line = |line: LogLine| Line { level: line.level.to_string(), context: line.context, message: line.message };
        let devices = set.devices.into_iter().map(|device| Found::new(device, configuration, shared, &self.node));
        Report {
            configuration: configuration.key.to_string(),
            handler: description.name.clone(),
            version: description.version.clone(),
            digest: self.component.digest().to_owned(),
            milliseconds: took.as_secs_f64() * 1000.0,
            triggers,
            devices: devices.collect(),
            withheld: set.withheld.into_iter().collect(),
            kept: set.kept.into_iter().collect(),
            notes: set.notes,
            notes_dropped: set.notes_dropped,
            log: lines.map(line).collect(),
        }
    }
}

fn text(report: &Report) -> String {
    let Report { configuration, handler, version, milliseconds, triggers, devices, withheld, kept, .. } = report;
    let list = |list: &[String]| list.iter().map(|text| plain(text)).collect::<Vec<_>>().join(", ");
    let mut lines = format!("{configuration}: a round of {handler} {} took {milliseconds:.1} ms\n", plain(version));
    for (what, all) in [("the next is started by", triggers), ("withheld", withheld), ("not reached", kept)] {
        if !all.is_empty() {
            lines += &format!("{what}: {}\n", list(all));
        }
    }
    lines + &found_table(devices)
}
