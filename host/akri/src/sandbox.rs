//! `akri sandbox`: the process in which components run for an agent.

use std::process::ExitCode;

use akri_cli::output::with_causes;
use akri_sandbox::{ReadablePaths, serve_standard_input};

use crate::cli::SandboxArgs;

/// Serves the agent at the other end of standard input. Has to be called before any thread was started: what is not allowed is
/// so for this thread and those it starts.
pub(crate) fn run(args: &SandboxArgs) -> anyhow::Result<ExitCode> {
    let SandboxArgs { memory, compiled, sysfs, udev_data } = args.clone();
    serve_standard_input(ReadablePaths { compiled, sysfs, udev_data }, memory).map_err(with_causes)?;
    Ok(ExitCode::SUCCESS)
}
