//! `akri discover`: discovery on this machine, without a cluster. Rounds are run by the agent's code.

mod explain;
mod load;
mod source;
mod watch;

use std::collections::BTreeMap;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use akri_cli::args::Output;
use akri_cli::device::{DeviceTable, DiscoveredDevice, name_problems};
use akri_cli::output::{print, print_message, print_text};
use akri_cli::subject::Failure;
use akri_model::device::DeviceSet;
use futures::stream::{self, FuturesUnordered, Stream, StreamExt as _};
use load::Loaded;
use source::RoundSource;
use tokio::time::sleep;

use crate::cli::DiscoverArgs;

/// Time in which rounds end together: their rows are in the order of the file.
const TOGETHER: Duration = Duration::from_millis(300);

/// Runs one round for each Configuration of the file, or the mode selected by flags.
pub(crate) async fn run(args: DiscoverArgs) -> anyhow::Result<ExitCode> {
    let loaded = load::load(&args).await?;
    match &args.explain {
        Some(device) => explain::run(&loaded, device, args.output).await,
        None if args.watch => watch::run(&loaded, args.output).await,
        None => once(&loaded, args.output).await,
    }
}

/// Runs one round for each Configuration. Fails if one of them failed, or came to nothing but warnings.
async fn once(loaded: &Loaded, output: Output) -> anyhow::Result<ExitCode> {
    let (mut table, mut all) = (table(loaded), BTreeMap::new());
    let mut failed = false;
    let mut rounds = pin!(first_rounds(loaded));
    while let Some(ended) = rounds.next().await {
        let mut found = Vec::new();
        for (place, source, round) in ended {
            match round {
                Ok((set, shared)) => {
                    failed |= set.has_only_warnings();
                    let named = DiscoveredDevice::all(&set.devices, source.configuration(), shared, &loaded.node);
                    name_problems(&named).iter().for_each(|problem| print_message(format!("warning: {problem}")));
                    found.extend(named.clone());
                    all.insert(place, named);
                }
                Err(failure) => {
                    print_message(format!("error: {failure}"));
                    failed = true;
                }
            }
        }
        if output == Output::Table {
            print_text(&table.rows(&found))?;
        }
    }
    let found: Vec<DiscoveredDevice> = all.into_values().flatten().collect();
    if !failed && found.is_empty() {
        print_message("--explain DEVICE says of a device why it is not found");
    }
    match output {
        Output::Table if failed => {}
        Output::Table => print_text(table.end())?,
        _ => print(&found, output, String::new)?,
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The place of a Configuration in the file, its rounds, and the result of the first one.
type FirstRound<'l> = (usize, RoundSource<'l>, Result<(DeviceSet, bool), Failure>);

/// Returns the first rounds as they end: first those that end together, in the order of the file, then each for itself.
fn first_rounds<'l>(loaded: &'l Loaded) -> impl Stream<Item = Vec<FirstRound<'l>>> {
    let sources = RoundSource::start_all(loaded).into_iter().enumerate();
    let first_round = |(place, mut source): (usize, RoundSource<'l>)| async move {
        let round = source.next().await;
        (place, source, round)
    };
    let mut rounds: FuturesUnordered<_> = sources.map(first_round).collect();
    let soon = async move {
        let mut ended: Vec<FirstRound<'_>> = rounds.next().await.into_iter().collect();
        ended.extend(rounds.by_ref().take_until(sleep(TOGETHER)).collect::<Vec<_>>().await);
        ended.sort_by_key(|(place, ..)| *place);
        stream::iter([ended]).chain(rounds.map(|round| vec![round]))
    };
    stream::once(soon).flatten()
}

/// Returns an empty table for the devices of the file.
fn table(loaded: &Loaded) -> DeviceTable {
    DeviceTable::new(loaded.subjects.iter().any(|subject| !subject.configuration.paths.is_empty()))
}
