//! `akri handler run`: one round with all its results.

use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use akri_api::{HandlerRules, data};
use akri_cassette::Recorder;
use akri_discovery::{call, details_json, validate_details};
use akri_engine::LocalComponent;
use akri_model::device::{DeviceSet, Note};
use akri_model::discovery::RoundError;
use akri_model::resolve::{Values, resolve};
use akri_node::admission::admit;
use akri_sandbox::{Cache, Call, Component, LogLine, Tape};
use serde::Serialize;

use super::args::RunArgs;
use super::record::{self, Recording};
use super::{Judged, handlers, host, load_taping, load_with_rules, subjects, validate, warn_of_refusal};
use crate::cli::node_name;
use crate::discover::{DiscoveredDevice, found_table};
use crate::output::{plain, print};
use crate::subject::{self, Subject, warn};

/// The results of a round.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunReport {
    pub(super) configuration: String,
    pub(super) handler: String,
    pub(super) version: String,
    pub(super) digest: String,
    pub(super) milliseconds: f64,
    /// Memory that the round took of `limits.memory`.
    pub(super) memory_bytes: u64,
    pub(super) load: Load,
    pub(super) triggers: Vec<String>,
    pub(super) devices: Vec<DiscoveredDevice>,
    /// Ids of withheld devices; the reasons are in notes.
    pub(super) withheld: Vec<String>,
    /// Origins whose known devices are kept.
    pub(super) kept: Vec<String>,
    pub(super) notes: Vec<Note>,
    pub(super) notes_dropped: u64,
    /// Calls that the host refused, with the grant that would allow each.
    pub(super) refused: Vec<String>,
    pub(super) log: Vec<Line>,
}

/// The way in which the component was loaded.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Load {
    pub(super) milliseconds: f64,
    /// Set if it was compiled, in place of using code from the cache.
    pub(super) compiled: bool,
}

/// A log line of the component.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    level: String,
    context: String,
    message: String,
}

/// Runs the rounds. Fails if one of them failed.
pub(super) async fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let node = node_name(args.node_name.clone())?;
    let (host, manifests) = (host(Some(&args.host))?, subject::read(&args.file)?);
    let own = args.object.handler_object.as_ref();
    let (Judged { component, took, refusal }, rules) = load_with_rules(&host, &args.component, own, &manifests).await?;
    let load = Load::of(&component, took);
    let subjects = subjects(&args.file, &manifests, &component)?;
    warn_of_refusal(refusal.as_ref());
    let taped = match args.record.is_some() || args.trace {
        true => Some(load_taping(&args.component, Some(&args.host)).await?),
        false => None,
    };
    let mut recording = match (&args.record, &taped) {
        (Some(path), Some(taped)) => Some(record::one(&subjects).and_then(|()| Recording::new(taped, path))?),
        _ => None,
    };
    let has_object = own.is_some() || handlers(&manifests).next().is_some();
    let stage = Stage { component, load, rules, values: data::values(&manifests), node, taped, is_traced: args.trace };
    let (mut reports, mut is_refused) = (Vec::new(), false);
    let caches: Vec<Cache> = subjects.iter().map(|_| Cache::default()).collect();
    let rounds = (0..args.rounds).flat_map(|_| subjects.iter().zip(&caches));
    let mut failed = false;
    for (subject, cache) in rounds {
        match stage.round(subject, cache, recording.as_mut()).await {
            Ok(report) => {
                warn(&report.notes, report.notes_dropped, &report.configuration);
                is_refused |= !report.withheld.is_empty();
                reports.push(report);
            }
            Err(error) => {
                failed = true;
                is_refused |= matches!(error, RoundError::NotGranted(_));
                eprintln!("error: {}", subject.failure(&error));
            }
        }
    }
    if is_refused && !has_object {
        eprintln!("hint: nothing is granted without a DiscoveryHandler; name its file with --handler-object");
    }
    print(&reports, args.output, || reports.iter().map(text).collect())?;
    if let (Some(recording), Some(path), Some(taped)) = (recording, &args.record, &stage.taped) {
        recording.finish(taped, path).await?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The environment of the rounds.
pub(super) struct Stage {
    pub(super) component: Component,
    pub(super) load: Load,
    pub(super) rules: HandlerRules,
    pub(super) values: Values,
    pub(super) node: String,
    /// The component in this process, for rounds with a tape.
    pub(super) taped: Option<LocalComponent>,
    pub(super) is_traced: bool,
}

impl Load {
    /// Describes a component whose load took that long.
    pub(super) fn of(component: &Component, took: Duration) -> Self {
        Self { milliseconds: milliseconds(took), compiled: component.was_compiled() }
    }

    /// Describes the time it took and the origin of the code.
    pub(super) fn text(&self) -> String {
        let how = if self.compiled { "compiled" } else { "from the cache" };
        format!("loaded in {:.0} ms, {how}", self.milliseconds)
    }
}

impl Stage {
    /// Runs a round of a Configuration.
    pub(super) async fn round(
        &self,
        subject: &Subject,
        cache: &Cache,
        recording: Option<&mut Recording>,
    ) -> Result<RunReport, RoundError> {
        let configuration = &subject.configuration;
        let properties = resolve(&configuration.properties, &self.values).map_err(RoundError::PropertiesUnresolved)?;
        let (log, lines) = mpsc::channel();
        let details = details_json(&configuration.details).await;
        let mut call = call(configuration, details, &self.rules, properties, cache.clone());
        let triggers = validate_details(&self.component, call.clone()).await?;
        let triggers: Vec<String> = triggers.iter().map(validate::trigger).collect();
        call.log = Some(log);
        let begun = Instant::now();
        let found = self.discover(call, &triggers, recording).await;
        let took = begun.elapsed();
        let set = admit(found?, &self.rules.grants, &self.rules.limits);
        Ok(self.report(subject, set, took, triggers, lines.try_iter()))
    }

    /// Runs a round, with a tape if one was asked for.
    async fn discover(
        &self,
        mut call: Call,
        triggers: &[String],
        recording: Option<&mut Recording>,
    ) -> Result<DeviceSet, RoundError> {
        let Some(taped) = &self.taped else { return self.component.discover(call).await };
        let (sender, printing) = self.is_traced.then(|| record::trace(&call.properties)).unzip();
        let recorder = match &recording {
            Some(recording) => recording.recorder(sender),
            None => Arc::new(Recorder::new(0, sender)),
        };
        call.tape = Tape::Record(recorder.clone());
        let result = taped.discover(call.clone()).await;
        let result = result.and_then(|set| set.check(&call.limits).map(|()| set));
        if let Some(recording) = recording {
            recording.add(&call, &recorder, triggers.to_vec(), &result);
        }
        drop((call, recorder));
        if let Some(printing) = printing {
            let _ = tokio::task::spawn_blocking(|| printing.join()).await;
        }
        result
    }

    fn report(
        &self,
        subject: &Subject,
        set: DeviceSet,
        took: Duration,
        triggers: Vec<String>,
        lines: impl Iterator<Item = LogLine>,
    ) -> RunReport {
        let (refused, lines): (Vec<LogLine>, Vec<LogLine>) = lines.partition(|line| line.is_refusal);
        let (description, configuration) = (self.component.description(), &subject.configuration);
        let shared = self.rules.shared.unwrap_or(description.shared);
        let line = |line: LogLine| Line { level: line.level.to_string(), context: line.context, message: line.message };
        let devices =
            set.devices.into_iter().map(|device| DiscoveredDevice::new(device, configuration, shared, &self.node));
        RunReport {
            configuration: configuration.key.to_string(),
            handler: description.name.clone(),
            version: description.version.clone(),
            digest: format!("sha256:{}", self.component.digest()),
            milliseconds: milliseconds(took),
            memory_bytes: set.memory_bytes,
            load: self.load.clone(),
            triggers,
            devices: devices.collect(),
            withheld: set.withheld.into_iter().collect(),
            kept: set.kept.into_iter().collect(),
            notes: set.notes,
            notes_dropped: set.notes_dropped,
            refused: refused.into_iter().map(|line| line.message).collect(),
            log: lines.into_iter().map(line).collect(),
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn text(report: &RunReport) -> String {
    let RunReport { configuration, handler, version, milliseconds, triggers, devices, withheld, kept, .. } = report;
    let RunReport { memory_bytes, load, refused, .. } = report;
    let list = |list: &[String]| list.iter().map(|text| plain(text)).collect::<Vec<_>>().join(", ");
    let version = plain(version);
    let mut lines = format!("{configuration}: a round of {handler} {version} took {milliseconds:.1} ms\n");
    lines += &format!("memory: {} KiB; {}\n", memory_bytes >> 10, load.text());
    for refusal in refused {
        lines += &format!("refused: {}\n", plain(refusal));
    }
    for (what, all) in [("the next is started by", triggers), ("withheld", withheld), ("not reached", kept)] {
        if !all.is_empty() {
            lines += &format!("{what}: {}\n", list(all));
        }
    }
    lines + &found_table(devices)
}
