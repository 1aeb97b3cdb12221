//! `akri handler run`: one round with all its results.

use std::process::ExitCode;

use akri_cli::device::{DiscoveredDevice, device_table};
use akri_cli::output::{plain, print, print_message};
use akri_cli::program::{component_host, stop_signal};
use akri_cli::subject::warn;
use akri_model::discovery::RoundError;
use anyhow::ensure;
use tokio::task::JoinHandle;

use crate::args::RunArgs;
use crate::component::load_taping;
use crate::record::Recording;
use crate::round_runner::{RoundRunner, RunReport};

/// Devices whose properties are shown below the table.
const SHOWN: usize = 16;

/// Runs the rounds. Fails if one of them failed.
pub(super) async fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let mut runner = RoundRunner::load(&component_host(Some(&args.round.host))?, &args.round).await?;
    if args.record.is_some() || args.trace {
        runner.taped = Some(load_taping(&args.round.component, Some(&args.round.host)).await?);
        runner.is_traced = args.trace;
    }
    let mut recording = match (&args.record, &runner.taped) {
        (Some(path), Some(component)) => {
            let count = runner.subjects.len();
            ensure!(count == 1, "a cassette is of one Configuration, and the file has {count} for this handler");
            Some(Recording::new(component, path)?)
        }
        _ => None,
    };
    // The rounds until then are kept: those with real devices may take long.
    let stop = if recording.is_some() { Some(tokio::spawn(stop_signal()?)) } else { None };
    let (mut reports, mut is_refused) = (Vec::new(), false);
    let rounds = (0..args.rounds).flat_map(|_| &runner.subjects);
    let mut failed = false;
    for (subject, state) in rounds {
        match runner.run(subject, state, recording.as_mut()).await {
            Ok(report) => {
                warn(&report.notes, report.notes_dropped, &report.configuration);
                is_refused |= !report.withheld.is_empty();
                reports.push(report);
            }
            Err(error) => {
                failed = true;
                is_refused |= matches!(error, RoundError::NotGranted(_));
                print_message(format!("error: {}", subject.failure(&error)));
            }
        }
        if stop.as_ref().is_some_and(JoinHandle::is_finished) {
            break;
        }
    }
    if is_refused && !runner.has_object {
        print_message("hint: nothing is granted without a DiscoveryHandler; name its file with --handler-object");
    }
    let recorded = match (recording, &args.record, &runner.taped) {
        (Some(recording), Some(path), Some(component)) => recording.finish(component, path).await,
        _ => Ok(()),
    };
    print(&reports, args.output, || reports.iter().map(text).collect())?;
    recorded?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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
    lines += &device_table(devices);
    for DiscoveredDevice { device, .. } in devices.iter().take(SHOWN) {
        let property = |(name, value): (&String, &String)| format!("  {}={:?}", plain(name), plain(value));
        let properties: String = device.properties.iter().map(property).collect();
        if !properties.is_empty() {
            lines += &format!("{}:{properties}\n", plain(&device.id));
        }
    }
    lines
}
