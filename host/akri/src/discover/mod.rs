//! `akri discover`: discovery on this machine, without a cluster. Rounds are run by the agent's code.

mod explain;
mod load;
mod source;
mod watch;

use std::process::ExitCode;

use akri_cli::args::Output;
use akri_cli::device::{DiscoveredDevice, device_table, name_problems};
use akri_cli::output::print;
use load::Loaded;
use source::RoundSource;

use crate::cli::DiscoverArgs;

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
    let mut found = Vec::new();
    let mut failed = false;
    for source in &mut RoundSource::start_all(loaded) {
        match source.next().await {
            Ok((set, shared)) => {
                failed |= set.has_only_warnings();
                let named = DiscoveredDevice::all(&set.devices, source.configuration(), shared, &loaded.node);
                name_problems(&named).iter().for_each(|problem| eprintln!("warning: {problem}"));
                found.extend(named);
            }
            Err(failure) => {
                eprintln!("error: {failure}");
                failed = true;
            }
        }
    }
    if !failed && found.is_empty() {
        eprintln!("--explain DEVICE says of a device why it is not found");
    }
    if !(failed && found.is_empty() && output == Output::Table) {
        print(&found, output, || device_table(&found))?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
