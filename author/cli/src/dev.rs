//! `akri handler dev`: builds and rounds with each change of a file.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use akri_cli::device::KnownDevices;
use akri_cli::output::{count, plain, print_message, print_text};
use akri_cli::program::{component_host, stop_signal};
use akri_model::device::DeviceSet;
use akri_node::watch_dir::any_changed;
use akri_sandbox::Host;
use anyhow::{Context as _, ensure};
use tokio::time::timeout_at;

use crate::args::DevArgs;
use crate::build::build;
use crate::project::{self, FILES, Files, Project};
use crate::round_runner::{RoundRunner, RunReport};

/// Interval of rounds if neither the DiscoveryHandler nor the component names one.
const INTERVAL: Duration = Duration::from_secs(30);
/// The shortest interval.
const SHORTEST: Duration = Duration::from_secs(1);

/// Runs until SIGINT or SIGTERM, which end a build, too.
pub(super) async fn run(args: &DevArgs) -> anyhow::Result<ExitCode> {
    let build = build_command(args)?;
    let stop = stop_signal()?;
    let host = component_host(Some(&args.round.host))?;
    let mut dev = Dev { args, build, host, runner: None, results: BTreeMap::new() };
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
    /// The component that was loaded last.
    runner: Option<RoundRunner>,
    /// Results by Configuration.
    results: BTreeMap<String, LastResult>,
}

/// The last results of a Configuration.
#[derive(Default)]
struct LastResult {
    known: KnownDevices,
    report: Option<RunReport>,
    /// The error of the last round, if it failed.
    error: Option<String>,
}

impl Dev<'_> {
    async fn follow(&mut self) -> anyhow::Result<Infallible> {
        let args = self.args;
        let mut others = vec![args.round.file.as_path()];
        others.extend(args.round.object.handler_object.as_deref());
        let mut known: Option<Files> = None;
        let mut due = Instant::now();
        loop {
            // What is saved during a build is another change.
            let Project { files, mut watched, is_cut } = project::watch(&args.directory, &others);
            if is_cut && known.is_none() {
                print_message(format!("warning: changes of more than {FILES} files and directories are not seen"));
            }
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
        let named =
            self.runner.as_ref().and_then(|runner| runner.rules.interval.or(runner.component.description().interval));
        named.unwrap_or(INTERVAL).max(SHORTEST)
    }

    /// Builds and loads the component, and runs its rounds. If the first two fail, the one from before is kept.
    async fn renew(&mut self) -> anyhow::Result<()> {
        let args = self.args;
        print_text(&format!("building: {}\n", plain(self.build)))?;
        let built = build(self.build, &args.directory).await;
        let built =
            built.with_context(|| format!("cannot build in '{}'", plain(&args.directory.display().to_string())))?;
        let failure = if built.status.success() {
            match RoundRunner::load(&self.host, &args.round).await {
                Ok(runner) => {
                    print_text(&head(&runner, built.took))?;
                    self.runner = Some(runner);
                    return self.rounds(true).await;
                }
                Err(error) => format!("{error:#}"),
            }
        } else {
            // The colours of a compiler are not worth what other escapes can do to a terminal.
            built.output.lines().for_each(|line| print_message(format!("  {}", plain(line))));
            built.failure()
        };
        let rest = if self.runner.is_some() { "; the component from before goes on" } else { "" };
        print_message(format!("error: {failure}{rest}"));
        Ok(())
    }

    /// Runs a round of each Configuration and prints what changed.
    async fn rounds(&mut self, is_first: bool) -> anyhow::Result<()> {
        let Some(runner) = &self.runner else { return Ok(()) };
        self.results.retain(|name, _| runner.subjects.iter().any(|(subject, _)| subject.name() == *name));
        for (subject, state) in &runner.subjects {
            let name = subject.name();
            let last = self.results.entry(name.clone()).or_default();
            match runner.run(subject, state, None).await {
                Ok(report) => {
                    let changes =
                        last.known.update(&devices(&report), &subject.configuration, runner.shared(), &runner.node);
                    let mut lines = if is_first { vec![summary(&report)] } else { Vec::new() };
                    if last.error.take().is_some() {
                        lines.push(format!("{name}: rounds succeed again"));
                    }
                    lines.extend(changes.iter().map(ToString::to_string));
                    lines.extend(differences(last.report.as_ref(), &report));
                    print_text(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())?;
                    last.report = Some(report);
                }
                Err(error) => {
                    let message = subject.failure(&error).to_string();
                    if is_first || last.error.as_ref() != Some(&message) {
                        print_message(format!("error: {message}"));
                    }
                    last.error = Some(message);
                }
            }
        }
        Ok(())
    }
}

fn head(runner: &RoundRunner, took: Duration) -> String {
    let description = runner.component.description();
    let (name, version) = (plain(&description.name), plain(&description.version));
    format!("built in {:.1} s; {name} {version} {}\n", took.as_secs_f64(), runner.load.text())
}

fn summary(report: &RunReport) -> String {
    let RunReport { configuration, milliseconds, memory_bytes, devices, .. } = report;
    let devices = count(devices.len(), "device");
    format!("{configuration}: {devices}; the round took {milliseconds:.1} ms and {} KiB", memory_bytes >> 10)
}

/// The devices of a round, and those that it keeps.
fn devices(report: &RunReport) -> DeviceSet {
    DeviceSet {
        devices: report.devices.iter().map(|found| found.device.clone()).collect(),
        kept: report.kept.iter().cloned().collect(),
        withheld: report.withheld.iter().cloned().collect(),
        ..DeviceSet::default()
    }
}

/// Texts of a report.
type List = fn(&RunReport) -> Vec<String>;

/// Returns the differences between two rounds but for their devices, in lines.
fn differences(before: Option<&RunReport>, now: &RunReport) -> Vec<String> {
    let mut lines = Vec::new();
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
