//! `akri handler compile`: the compiler, in a process that limits itself before it looks at a component.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use akri_model::grant::CompileLimits;
use akri_sandbox::{compile_here, precompile};
use anyhow::{Context as _, bail};

use super::args::CompileArgs;
use crate::agent::OWN_PROGRAM;
use crate::output::whole;

/// Compiles. Has to be called before any thread was started: what is not allowed is so for this thread and those it starts.
pub(crate) fn run(args: &CompileArgs) -> anyhow::Result<ExitCode> {
    let limits = CompileLimits { memory_bytes: args.memory, time: Duration::from_secs(args.time) };
    match (&args.precompiled, &args.output) {
        (Some(directory), _) => {
            let directory = std::path::absolute(directory).context("--precompiled")?;
            precompile(Path::new(OWN_PROGRAM), &args.components, &directory, &limits).map_err(whole)?;
        }
        (None, Some(output)) => compile_one(args, output, &limits)?,
        (None, None) => bail!("either --output or --precompiled is needed"),
    }
    Ok(ExitCode::SUCCESS)
}

fn compile_one(args: &CompileArgs, output: &Path, limits: &CompileLimits) -> anyhow::Result<()> {
    let component = match args.components.as_slice() {
        [] => None,
        [component] => Some(component.as_path()),
        _ => bail!("--output is for one component; --precompiled takes more"),
    };
    let output = std::path::absolute(output).context("--output")?;
    fs::create_dir_all(&output).with_context(|| format!("cannot create '{}'", output.display()))?;
    compile_here(component, &output, limits).map_err(whole)
}
