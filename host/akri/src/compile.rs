//! `akri handler compile`: the compiler, in a process that limits itself before it looks at a component.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use akri_cli::component::read;
use akri_cli::output::with_causes;
use akri_cli::program::OWN_PROGRAM;
use akri_model::grant::CompileLimits;
use akri_sandbox::{Platform, compile, compile_here, precompile};
use anyhow::{Context as _, bail};
use clap::{ArgGroup, Args};

/// Flags of `akri handler compile`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("directory").required(true).args(["output", "precompiled"]))]
pub(crate) struct CompileArgs {
    /// The component [default: standard input]; with --precompiled, the components.
    #[arg(value_name = "WASM")]
    pub(crate) components: Vec<PathBuf>,
    /// Directory for the machine code of one component; nothing else can be written.
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Directory for machine code that ships with the program, for all processors of the architecture.
    #[arg(long, value_name = "DIR", requires = "components")]
    pub(crate) precompiled: Option<PathBuf>,
    /// Platform of the nodes: linux/amd64, linux/arm64 or linux/arm/v7 [default: this one].
    #[arg(long, value_name = "PLATFORM", default_value_t = Platform::here(), hide_default_value = true)]
    pub(crate) target: Platform,
    /// Bytes of memory.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    pub(crate) memory: usize,
    /// Seconds of processor time.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) time: u64,
}

/// Compiles. Has to be called before any thread was started: what is not allowed is so for this thread and those it starts.
pub(crate) fn run(args: &CompileArgs) -> anyhow::Result<ExitCode> {
    let limits = CompileLimits { memory_bytes: args.memory, time: Duration::from_secs(args.time) };
    match (&args.precompiled, &args.output) {
        (Some(directory), _) => {
            let directory = std::path::absolute(directory).context("--precompiled")?;
            for file in &args.components {
                let compiled = precompile(Path::new(OWN_PROGRAM), file, args.target, &directory, &limits);
                compiled.with_context(|| format!("'{}'", file.display()))?;
            }
        }
        (None, Some(output)) => compile_one(args, output, &limits)?,
        (None, None) => bail!("either --output or --precompiled is needed"),
    }
    Ok(ExitCode::SUCCESS)
}

fn compile_one(args: &CompileArgs, output: &Path, limits: &CompileLimits) -> anyhow::Result<()> {
    let output = std::path::absolute(output).context("--output")?;
    fs::create_dir_all(&output).with_context(|| format!("cannot create '{}'", output.display()))?;
    match args.components.as_slice() {
        [] => compile_here(&output, args.target, limits).map_err(with_causes),
        // In another process, as the agent does: one that goes over its limits can't say so itself.
        [file] => {
            let shown = file.display();
            let component = read(file)?;
            let compiled = compile(Path::new(OWN_PROGRAM), &component, args.target, limits, limits.time, &output);
            compiled.with_context(|| format!("'{shown}'"))
        }
        _ => bail!("--output is for one component; --precompiled takes more"),
    }
}
