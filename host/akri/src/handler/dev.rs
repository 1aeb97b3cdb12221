//! `akri handler dev`: builds and rounds with each change of a file.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use akri_api::data;
use akri_node::watch_dir::any_changed;
use akri_sandbox::{Cache, Host};
use anyhow::ensure;
use tokio::time::timeout_at;

use super::args::DevArgs;
use super::build::build;
use super::project::{self, Files};
use super::run::{Load, RunReport, Stage};
use super::{Judged, host, load_with_rules, subjects, warn_of_refusal};
use crate::agent::stop_signal;
use crate::cli::node_name;
use crate::discover::{DiscoveredDevice, changes};
use crate::output::{count, plain, print_text};
use crate::subject::{self, Subject};

/// Interval of rounds if neither the DiscoveryHandler nor the component names one.
const INTERVAL: Duration = Duration::from_secs(30);
/// The shortest interval.
const SHORTEST: Duration = Duration::from_secs(1);

/// Runs until SIGINT or SIGTERM, which end a build, too.
pub(super) async fn run(args: &DevArgs) -> anyhow::Result<ExitCode> {
    let build = build_command(args)?;
    let stop = stop_signal()?;
    let host = host(Some(&args.host))?;
    let node = node_name(args.node_name.clone())?;
    let mut dev = Dev { args, build, host, node, trial: None, results: BTreeMap::new() };
    tokio::select! {
        ended = dev.follow() => match ended? {},
        () = stop => Ok(ExitCode::SUCCESS),
    }
}

/// Returns the command that builds the component.
fn build_command(args: &DevArgs) -> anyhow::Result<&str> {
    if let Some(command) = &args.build {
        return Ok(command);
    }
    let directory = &args.directory;
    ensure!(
        ["GNUmakefile", "makefile", "Makefile"].iter().any(|name| directory.join(name).is_file()),
        "'{}' has no Makefile; name the command that builds the component with --build",
        plain(&directory.display().to_string())
    );
    Ok("make build")
}

struct Dev<'a> {
    args: &'a DevArgs,
    build: &'a str,
    host: Host,
    node: String,
    /// The component that was loaded last.
    trial: Option<Trial>,
    /// Results by Configuration.
    results: BTreeMap<String, Last>,
}

/// A component with its Configurations.
struct Trial {
    stage: Stage,
    subjects: Vec<(Subject, Cache)>,
}

/// The last results of a Configuration.
#[derive(Default)]
struct Last {
    report: Option<RunReport>,
    /// The error of the last round, if it failed.
    error: Option<String>,
}

impl Dev<'_> {
    async fn follow(&mut self) -> anyhow::Result<Infallible> {
        let args = self.args;
        let mut others = vec![args.file.as_path()];
        others.extend(args.object.handler_object.as_deref());
        let mut known: Option<Files> = None;
        let mut due = Instant::now();
        loop {
            // What is saved during a build is another change.
            let (files, mut watched) = project::watch(&args.directory, &others);
            let is_new = known.as_ref() != Some(&files);
            if is_new {
                known = Some(files);
                self.renew().await?;
            } else if timeout_at(due.into(), any_changed(&mut watched)).await.is_err() {
                self.rounds(false).await?;
            } else {
                continue;
            }
            due = Instant::now() + self.interval();
        }
    }

    fn interval(&self) -> Duration {
        let stage = self.trial.as_ref().map(|trial| &trial.stage);
        let named = stage.and_then(|stage| stage.rules.interval.or(stage.component.description().interval));
        named.unwrap_or(INTERVAL).max(SHORTEST)
    }

    /// Builds, loads and tries the component. If the first two fail, the one from before is kept.
    async fn renew(&mut self) -> anyhow::Result<()> {
        let args = self.args;
        print_text(&format!("building: {}\n", plain(self.build)))?;
        let built = build(self.build, &args.directory).await?;
        let failure = if built.status.success() {
            match self.load().await {
                Ok(trial) => {
                    let head = head(&trial, built.took);
                    self.trial = Some(trial);
                    print_text(&head)?;
                    return self.rounds(true).await;
                }
                Err(error) => format!("{error:#}"),
            }
        } else {
            // The colours of a compiler are not worth what other escapes can do to a terminal.
            built.output.lines().for_each(|line| eprintln!("  {}", plain(line)));
            built.failure()
        };
        let rest = if self.trial.is_some() { "; the component from before goes on" } else { "" };
        eprintln!("error: {failure}{rest}");
        Ok(())
    }

    async fn load(&self) -> anyhow::Result<Trial> {
        let args = self.args;
        let (manifests, own) = (subject::read(&args.file)?, args.object.handler_object.as_ref());
        let loaded = load_with_rules(&self.host, &args.component, own, &manifests).await?;
        let (Judged { component, took, refusal }, rules) = loaded;
        let load = Load::of(&component, took);
        let subjects = subjects(&args.file, &manifests, &component)?;
        warn_of_refusal(refusal.as_ref());
        let values = data::values(&manifests);
        let stage = Stage { component, load, rules, values, node: self.node.clone(), taped: None, is_traced: false };
        let subjects = subjects.into_iter().map(|subject| (subject, Cache::default())).collect();
        Ok(Trial { stage, subjects })
    }

    /// Runs a round of each Configuration and prints what changed.
    async fn rounds(&mut self, is_first: bool) -> anyhow::Result<()> {
        let Some(trial) = &self.trial else { return Ok(()) };
        let configured = |name: &String| trial.subjects.iter().any(|(subject, _)| subject.name() == *name);
        self.results.retain(|name, _| configured(name));
        for (subject, cache) in &trial.subjects {
            let name = subject.name();
            let last = self.results.entry(name.clone()).or_default();
            match trial.stage.round(subject, cache, None).await {
                Ok(report) => {
                    let mut lines = differences(last.report.as_ref(), &report);
                    if last.error.take().is_some() {
                        lines.insert(0, format!("{name}: rounds succeed again"));
                    }
                    if is_first {
                        lines.insert(0, summary(&report));
                    }
                    print_text(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())?;
                    last.report = Some(report);
                }
                Err(error) => {
                    let message = subject.failure(&error).to_string();
                    if is_first || last.error.as_ref() != Some(&message) {
                        eprintln!("error: {message}");
                    }
                    last.error = Some(message);
                }
            }
        }
        Ok(())
    }
}

fn head(trial: &Trial, took: Duration) -> String {
    let description = trial.stage.component.description();
    let (name, version) = (plain(&description.name), plain(&description.version));
    format!("built in {:.1} s; {name} {version} {}\n", took.as_secs_f64(), trial.stage.load.text())
}

fn summary(report: &RunReport) -> String {
    let RunReport { configuration, milliseconds, memory_bytes, devices, .. } = report;
    let devices = count(devices.len(), "device");
    format!("{configuration}: {devices}; the round took {milliseconds:.1} ms and {} KiB", memory_bytes >> 10)
}

/// Texts of a report.
type List = fn(&RunReport) -> Vec<String>;

/// Returns the differences between two rounds, in lines.
fn differences(before: Option<&RunReport>, now: &RunReport) -> Vec<String> {
    let mut lines = devices(before.map_or(&[][..], |before| &before.devices), &now.devices);
    let lists: [(&str, List); 5] = [
        ("noted", |report| report.notes.iter().map(|note| format!("{} ({})", note.sentence(), note.reason)).collect()),
        ("refused", |report| report.refused.clone()),
        ("withheld", |report| report.withheld.clone()),
        ("not reached", |report| report.kept.clone()),
        ("started by", |report| report.triggers.clone()),
    ];
    for (what, list) in lists {
        let (old, new) = (before.map(list).unwrap_or_default(), list(now));
        let other = |these: &[String], those: &[String]| -> Vec<String> {
            these.iter().filter(|text| !those.contains(text)).map(|text| plain(text)).collect()
        };
        lines.extend(other(&new, &old).iter().map(|text| format!("{what}: {text}")));
        lines.extend(other(&old, &new).iter().map(|text| format!("no longer {what}: {text}")));
    }
    lines
}

fn devices(before: &[DiscoveredDevice], now: &[DiscoveredDevice]) -> Vec<String> {
    let by_id = |list: &'_ [DiscoveredDevice]| -> BTreeMap<String, DiscoveredDevice> {
        list.iter().map(|found| (found.device().id.clone(), found.clone())).collect()
    };
    let (old, new) = (by_id(before), by_id(now));
    let gone = old.iter().filter(|(id, _)| !new.contains_key(*id)).map(|(_, found)| found.line('-'));
    let other = new.iter().filter_map(|(id, found)| match old.get(id) {
        None => Some(found.line('+')),
        Some(was) => {
            let changes = changes(was.device(), found.device());
            let text: String = changes.iter().map(|change| format!("  {change}")).collect();
            (!changes.is_empty()).then(|| found.line('~') + &text)
        }
    });
    gone.chain(other).collect()
}
