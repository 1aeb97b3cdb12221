//! `akri handler compile`: the compiler, in a process that limits itself before it looks at a component.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use akri_model::grant::CompileLimits;
use akri_sandbox::compile_here;
use anyhow::Context as _;

use super::args::CompileArgs;
use crate::output::whole;

/// Compiles. Has to be called before any thread was started: what is not allowed is so for this thread and those it starts.
pub(crate) fn run(args: &CompileArgs) -> anyhow::Result<ExitCode> {
    let output = std::path::absolute(&args.output).context("--output")?;
    fs::create_dir_all(&output).with_context(|| format!("cannot create '{}'", output.display()))?;
    let limits = CompileLimits { memory_bytes: args.memory, time: Duration::from_secs(args.time) };
    compile_here(args.component.as_deref(), &output, &limits).map_err(whole)?;
    Ok(ExitCode::SUCCESS)
}
