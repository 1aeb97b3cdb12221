//! `akri discover --watch`: the devices, and then each change.

use std::io::{self, Write as _};
use std::pin::pin;
use std::process::ExitCode;

use akri_cli::args::Output;
use akri_cli::device::{DeviceChange, DeviceTable, DiscoveredDevice, KnownDevices};
use akri_cli::output::print_message;
use akri_cli::output::write as print;
use akri_cli::program::stop_signal;
use akri_cli::subject::Failure;
use akri_model::device::DeviceSet;
use anyhow::Context as _;
use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use serde::Serialize;

use super::load::Loaded;
use super::source::RoundSource;
use super::{first_rounds, table};

/// A change of a device, or a failed round.
#[derive(Debug, Serialize)]
struct Event {
    at: String,
    #[serde(flatten)]
    kind: EventKind,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum EventKind {
    Device(DeviceChange),
    Failed { event: &'static str, configuration: String, reason: &'static str, message: String },
}

/// Runs until SIGINT or SIGTERM. Fails if a first round fails permanently.
pub(super) async fn run(loaded: &Loaded, output: Output) -> anyhow::Result<ExitCode> {
    let stop = stop_signal()?;
    let ended = tokio::select! {
        ended = watch(loaded, output) => ended,
        () = stop => return Ok(ExitCode::SUCCESS),
    };
    match ended {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        ended => ended.context("cannot write to standard output"),
    }
}

async fn watch(loaded: &Loaded, output: Output) -> io::Result<ExitCode> {
    let (mut table, mut lasting, mut left) = (table(loaded), false, loaded.subjects.len());
    let mut rounds = pin!(first_rounds(loaded));
    let mut watchers = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(ended) = rounds.next() => {
                left -= ended.len();
                let mut first = Vec::new();
                for (_, source, round) in ended {
                    let mut watcher = Watcher { source, node: &loaded.node, known: KnownDevices::default() };
                    match round {
                        Err(failure) if failure.is_lasting => {
                            print_message(format!("error: {failure}"));
                            lasting = true;
                        }
                        round => first.extend(watcher.events(round)),
                    }
                    watchers.push(async move { watcher.follow(output).await });
                }
                begin(first, &mut table, output)?;
                match left {
                    0 if lasting => return Ok(ExitCode::FAILURE),
                    0 if output == Output::Table => print(table.end())?,
                    _ => {}
                }
            }
            Some(ended) = watchers.next() => return ended,
        }
    }
}

/// Prints the result of a first round: rows of the table, or additions in JSON.
fn begin(first: Vec<EventKind>, table: &mut DeviceTable, output: Output) -> io::Result<()> {
    if output != Output::Table {
        return write(first, output);
    }
    let (mut added, mut others): (Vec<DiscoveredDevice>, Vec<EventKind>) = Default::default();
    for kind in first {
        match kind {
            EventKind::Device(DeviceChange::Added(found)) => added.push(found),
            other => others.push(other),
        }
    }
    print(&table.rows(&added))?;
    write(others, output)
}

/// The known devices of a Configuration.
struct Watcher<'a> {
    source: RoundSource<'a>,
    node: &'a str,
    known: KnownDevices,
}

impl Watcher<'_> {
    async fn follow(&mut self, output: Output) -> io::Result<ExitCode> {
        loop {
            let round = self.source.next().await;
            write(self.events(round), output)?;
        }
    }

    fn events(&mut self, round: Result<(DeviceSet, bool), Failure>) -> Vec<EventKind> {
        let configuration = self.source.configuration();
        match round {
            Ok((set, shared)) => {
                let changes = self.known.update(&set, configuration, shared, self.node);
                changes.into_iter().map(EventKind::Device).collect()
            }
            Err(Failure { reason, message, .. }) => {
                let configuration = configuration.key.to_string();
                vec![EventKind::Failed { event: "failed", configuration, reason, message }]
            }
        }
    }
}

fn write(events: Vec<EventKind>, output: Output) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for kind in events {
        let event = Event { at: format!("{:.3}", Timestamp::now()), kind };
        match (output, &event.kind) {
            (Output::Table, EventKind::Device(change)) => writeln!(out, "{} {change}", event.at)?,
            (Output::Table, EventKind::Failed { message, .. }) => {
                print_message(format!("warning: {message}; its devices stay as they are"));
            }
            (Output::Json, _) => writeln!(out, "{}", serde_json::to_string(&event)?)?,
            (Output::Yaml, _) => write!(out, "---\n{}", serde_saphyr::to_string(&event).map_err(io::Error::other)?)?,
        }
    }
    Ok(())
}
