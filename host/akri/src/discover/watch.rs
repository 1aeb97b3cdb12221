//! `akri discover --watch`: the devices, and then each change.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::io::{self, Write as _};
use std::process::ExitCode;

use akri_model::device::Device;
use akri_model::instance::Online;
use akri_model::names::Identity;
use akri_model::plan::{Known, plan};
use anyhow::Context as _;
use futures::future::try_join_all;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::load::Loaded;
use super::source::{RoundResult, RoundSource};
use super::{DiscoveredDevice, found_table};
use crate::agent::stop_signal;
use crate::cli::Output;
use crate::output::plain;
use crate::subject::Failure;

/// A change of a device.
#[derive(Debug, Serialize)]
struct Event {
    at: String,
    #[serde(flatten)]
    what: What,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum What {
    Added(DiscoveredDevice),
    Removed(DiscoveredDevice),
    Changed {
        #[serde(flatten)]
        found: DiscoveredDevice,
        changes: Vec<Change>,
    },
    Failed {
        configuration: String,
        reason: &'static str,
        message: String,
    },
}

/// A changed field of a device; a missing value is null.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Change {
    field: String,
    from: Value,
    to: Value,
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
    let mut watchers: Vec<Watcher<'_>> =
        RoundSource::start_all(loaded).into_iter().map(|s| Watcher::new(s, loaded)).collect();
    let mut first = Vec::new();
    let mut lasting = false;
    for watcher in &mut watchers {
        match watcher.source.next().await {
            Ok(round) => first.extend(watcher.take(round)),
            Err(failure) if failure.is_lasting => {
                eprintln!("error: {failure}");
                lasting = true;
            }
            Err(failure) => first.push(watcher.failed(failure)),
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
fn begin(first: Vec<What>, output: Output) -> io::Result<()> {
    if output != Output::Table {
        return write(first, output);
    }
    let (added, others): (Vec<What>, Vec<What>) = first.into_iter().partition(|what| matches!(what, What::Added(_)));
    let added = added.into_iter().filter_map(|what| if let What::Added(found) = what { Some(found) } else { None });
    io::stdout().write_all(found_table(&added.collect::<Vec<_>>()).as_bytes())?;
    write(others, output)
}

/// The known devices of a Configuration.
struct Watcher<'a> {
    source: RoundSource<'a>,
    node: &'a str,
    known: BTreeMap<Identity, Device>,
}

impl<'a> Watcher<'a> {
    fn new(source: RoundSource<'a>, loaded: &'a Loaded) -> Self {
        Self { source, node: &loaded.node, known: BTreeMap::new() }
    }

    async fn follow(&mut self, output: Output) -> io::Result<()> {
        loop {
            let events = match self.source.next().await {
                Ok(round) => self.take(round),
                Err(failure) => vec![self.failed(failure)],
            };
            write(events, output)?;
        }
    }

    /// Returns the changes made by a round, as the agent would apply them.
    fn take(&mut self, RoundResult { set, shared }: RoundResult) -> Vec<What> {
        let online = |(identity, device): (&Identity, _)| (identity.clone(), Known { device, online: Online::True });
        let plan = plan(&set, &self.known.iter().map(online).collect(), shared, self.node);
        let configuration = self.source.configuration();
        let found = |device: &Device| DiscoveredDevice::new(device.clone(), configuration, shared, self.node);
        let mut events = Vec::new();
        for identity in &plan.offline {
            events.extend(self.known.remove(identity).map(|device| What::Removed(found(&device))));
        }
        for (identity, device) in plan.publish {
            events.push(What::Added(found(&device)));
            self.known.insert(identity, device);
        }
        for (identity, device) in plan.change {
            let found = found(&device);
            let changes = self.known.get(&identity).map(|was| changes(was, &device)).unwrap_or_default();
            events.push(What::Changed { found, changes });
            self.known.insert(identity, device);
        }
        events
    }

    fn failed(&self, failure: Failure) -> What {
        let configuration = self.source.configuration().key.to_string();
        What::Failed { configuration, reason: failure.reason, message: failure.message }
    }
}

/// Returns the fields that differ.
pub(crate) fn changes(was: &Device, now: &Device) -> Vec<Change> {
    let names = was.properties.keys().chain(now.properties.keys().filter(|name| !was.properties.contains_key(*name)));
    let properties =
        names.map(|name| (name.as_str(), json!(was.properties.get(name)), json!(now.properties.get(name))));
    let others = [
        ("origin", json!(was.origin), json!(now.origin)),
        ("mounts", json!(was.mounts), json!(now.mounts)),
        ("deviceSpecs", json!(was.device_specs), json!(now.device_specs)),
    ];
    let differ = properties.chain(others).filter(|(_, from, to)| from != to);
    differ.map(|(field, from, to)| Change { field: field.to_owned(), from, to }).collect()
}

fn write(events: Vec<What>, output: Output) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for what in events {
        let event = Event { at: format!("{:.3}", Timestamp::now()), what };
        match output {
            Output::Table => match event.line() {
                Ok(line) => writeln!(out, "{line}")?,
                Err(warning) => eprintln!("warning: {warning}"),
            },
            Output::Json => writeln!(out, "{}", serde_json::to_string(&event)?)?,
            Output::Yaml => write!(out, "---\n{}", serde_saphyr::to_string(&event).map_err(io::Error::other)?)?,
        }
    }
    Ok(())
}

impl Event {
    /// Formats the change as text: a line for standard output, or an error.
    fn line(&self) -> Result<String, String> {
        let (sign, found, changes) = match &self.what {
            What::Added(found) => ('+', found, &[][..]),
            What::Removed(found) => ('-', found, &[][..]),
            What::Changed { found, changes } => ('~', found, changes.as_slice()),
            What::Failed { message, .. } => return Err(format!("{message}; its devices stay as they are")),
        };
        let changes: String = changes.iter().map(|change| format!("  {change}")).collect();
        Ok(format!("{} {}{changes}", self.at, found.line(sign)))
    }
}

impl Display for Change {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&plain(&format!("{}: {} -> {}", self.field, self.from, self.to)))
    }
}
