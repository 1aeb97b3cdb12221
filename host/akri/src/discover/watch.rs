//! `akri discover --watch`: the devices, and then each change.

use std::io::{self, Write as _};
use std::process::ExitCode;

use akri_cli::args::Output;
use akri_cli::device::{DeviceChange, DiscoveredDevice, KnownDevices, device_table};
use akri_cli::program::stop_signal;
use akri_cli::subject::Failure;
use akri_model::device::DeviceSet;
use anyhow::Context as _;
use futures::future::try_join_all;
use jiff::Timestamp;
use serde::Serialize;

use super::load::Loaded;
use super::source::RoundSource;

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
    let sources = RoundSource::start_all(loaded).into_iter();
    let mut watchers: Vec<Watcher<'_>> =
        sources.map(|source| Watcher { source, node: &loaded.node, known: KnownDevices::default() }).collect();
    let mut first = Vec::new();
    let mut lasting = false;
    for watcher in &mut watchers {
        match watcher.source.next().await {
            Err(failure) if failure.is_lasting => {
                eprintln!("error: {failure}");
                lasting = true;
            }
            round => first.extend(watcher.events(round)),
        }
    }
    if lasting {
        return Ok(ExitCode::FAILURE);
    }
    begin(first, output)?;
    try_join_all(watchers.iter_mut().map(|watcher| watcher.follow(output))).await?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the first results: a table, or additions in JSON.
fn begin(first: Vec<EventKind>, output: Output) -> io::Result<()> {
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
    io::stdout().write_all(device_table(&added).as_bytes())?;
    write(others, output)
}

/// The known devices of a Configuration.
struct Watcher<'a> {
    source: RoundSource<'a>,
    node: &'a str,
    known: KnownDevices,
}

impl Watcher<'_> {
    async fn follow(&mut self, output: Output) -> io::Result<()> {
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
                eprintln!("warning: {message}; its devices stay as they are");
            }
            (Output::Json, _) => writeln!(out, "{}", serde_json::to_string(&event)?)?,
            (Output::Yaml, _) => write!(out, "---\n{}", serde_saphyr::to_string(&event).map_err(io::Error::other)?)?,
        }
    }
    Ok(())
}
