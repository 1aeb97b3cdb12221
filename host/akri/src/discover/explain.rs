//! `akri discover --explain`: why a device is found or not. A property of the call asks the handler to explain the
//! device in its log during an ordinary round.

use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use akri_cli::args::Output;
use akri_cli::output::{plain, print, print_message};
use akri_cli::subject::{self, Subject};
use akri_discovery::registry::Handler;
use akri_discovery::{call, details_json, round};
use akri_model::device::Device;
use akri_model::property::Resolved;
use akri_model::resolve::DiscoveryInput;
use akri_node::sysfs::{Bounds, Entry, is_granted};
use akri_sandbox::Cache;
use anyhow::{Context as _, Error, bail, ensure};
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::load::Loaded;
use super::source::{RoundSource, no_handler};
use crate::why::is_in;

/// The property that requests an explanation, and the context of its log lines.
const EXPLAIN: &str = "explain";

/// Limit on the lines of an explanation.
const LINES: usize = 2000;

/// Time for finding the device.
const FIND: Duration = Duration::from_secs(10);

/// Bytes of the devices that are looked at.
const FOUND: usize = 32 << 20;

/// A handler's explanation of a device.
#[derive(Debug, Serialize)]
struct Explanation {
    device: String,
    configuration: String,
    lines: Vec<String>,
}

/// Explains a device for every Configuration. Fails if no handler has an explanation, or if one fails.
pub(super) async fn run(loaded: &Loaded, name: &str, output: Output) -> anyhow::Result<ExitCode> {
    let devices = find(loaded, name).await.with_context(|| format!("cannot look for '{name}'"))?;
    if devices.is_empty() {
        return answered(loaded, name, output).await;
    }
    let mut explanations = Vec::new();
    let mut failed = false;
    let (explaining, others): (Vec<&Subject>, Vec<&Subject>) =
        loaded.subjects.iter().partition(|subject| reads_sysfs(loaded, subject));
    if explaining.is_empty() {
        others.iter().for_each(|subject| warn_unexplained(subject));
    }
    for subject in explaining {
        for device in &devices {
            match explain(loaded, subject, device).await {
                Ok(found) => explanations.extend(found),
                Err(why) => {
                    print_message(format!("error: {why:#}"));
                    failed = true;
                }
            }
        }
    }
    print(&explanations, output, || explanations.iter().map(text).collect())?;
    Ok(if failed || explanations.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the devices that a person's `name` means, at most 16: a node below `/dev` or a link to it, a path of sysfs, or a
/// name in the kernel, which more than one subsystem may have given. Empty if there is none.
async fn find(loaded: &Loaded, name: &str) -> anyhow::Result<Vec<Entry>> {
    let (sysfs, name) = (loaded.sysfs.clone(), name.to_owned());
    let bounds = Bounds { bytes: FOUND, until: Instant::now() + FIND };
    spawn_blocking(move || sysfs.find(&name, &bounds)).await?.map_err(Error::msg)
}

/// Says what rounds of handlers that look elsewhere say of a device: found, left out by a filter, or noted.
async fn answered(loaded: &Loaded, name: &str, output: Output) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    let sources = RoundSource::start_all(loaded).into_iter().filter(|source| !reads_sysfs(loaded, source.subject));
    let mut sources: Vec<RoundSource<'_>> = sources.collect();
    let elsewhere = if sources.is_empty() { "" } else { ", and no round has found it" };
    for source in &mut sources {
        let round = source.next().await; // it shows notes and what filters left out
        let key = &source.configuration().key;
        let Ok((set, _)) = round.map_err(|failure| print_message(format!("error: {failure}"))) else { continue };
        let is_it =
            |device: &Device| [&device.id].into_iter().chain(device.properties.values()).any(|text| is_in(text, name));
        found.extend(set.devices.iter().find(|device| is_it(device)).map(|device| Explanation {
            device: name.to_owned(),
            configuration: key.to_string(),
            lines: vec![format!("found as '{}'", device.id)],
        }));
    }
    ensure!(!found.is_empty(), "no device '{name}' in sysfs{elsewhere}");
    print(&found, output, || found.iter().map(text).collect())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns whether the handler of a Configuration sees the devices of sysfs, which it can explain; one that is not there is reported.
fn reads_sysfs(loaded: &Loaded, subject: &Subject) -> bool {
    let handlers = loaded.handlers.borrow();
    let handler = handlers.ready.get(&subject.configuration.handler);
    handler.is_none_or(|handler| {
        handler.component.imports().iter().any(|import| import.starts_with("akri:discovery/udev@"))
    })
}

/// Returns the explanation of one handler; `None` if it has none.
async fn explain(loaded: &Loaded, subject: &Subject, device: &Entry) -> anyhow::Result<Option<Explanation>> {
    let configuration = &subject.configuration;
    let handlers = loaded.handlers.borrow().clone();
    let Some(handler) = handlers.ready.get(&configuration.handler) else { bail!(no_handler(subject, loaded)) };
    let lines = ask(loaded, subject, handler, device).await?;
    if lines.is_empty() {
        warn_unexplained(subject);
        return Ok(None);
    }
    if !is_granted(&handler.rules.grants.udev_subsystems, device.subsystem.as_deref()) {
        let (key, subsystem) = (&configuration.key, device.subsystem.as_deref().unwrap_or_default());
        bail!("{key}: '{}' is hidden from the handler: its subsystem '{subsystem}' is not granted", device.devpath);
    }
    Ok(Some(Explanation { device: device.devpath.clone(), configuration: configuration.key.to_string(), lines }))
}

fn warn_unexplained(subject: &Subject) {
    let (key, handler) = (&subject.configuration.key, &subject.configuration.handler);
    print_message(format!("warning: {key}: the handler '{handler}' can't explain what it finds"));
}

/// Runs a round that explains the device; returns the lines.
async fn ask(loaded: &Loaded, subject: &Subject, handler: &Handler, device: &Entry) -> anyhow::Result<Vec<String>> {
    let (log, lines) = mpsc::channel();
    let configuration = &subject.configuration;
    let properties =
        DiscoveryInput::new(Arc::clone(configuration), &loaded.values.borrow()).properties.map_err(Error::msg)?;
    let details = details_json(&configuration.details).await;
    let properties = Resolved::clone(&properties);
    let mut call = call(configuration, details, &handler.rules, properties, Cache::default());
    call.properties.properties.insert(EXPLAIN.to_owned(), device.devpath.clone().into_bytes());
    call.limits.log_lines = LINES;
    call.log = Some(log);
    let set = round(handler, configuration, call).await.map_err(|error| subject.failure(&error))?;
    subject::warn(&set.notes, set.notes_dropped, &subject.name());
    Ok(lines.try_iter().filter(|line| line.context == EXPLAIN).map(|line| line.message).collect())
}

fn text(explanation: &Explanation) -> String {
    let lines = explanation.lines.iter().map(|line| format!("  {}\n", plain(line)));
    format!("{} against {}\n{}", explanation.device, explanation.configuration, lines.collect::<String>())
}
