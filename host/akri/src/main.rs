//! Akri: leaf devices as Kubernetes resources, discovered by sandboxed WASM components.

mod agent;
mod cli;
mod controller;
mod crds;
mod discover;
mod get;
mod handler;
mod output;
mod subject;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;
use cli::{Cli, Command, LogFormat};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The only one that is built in; fails only if there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    start_log(&cli);
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        match command {
            Command::Agent(args) => agent::run(args).await,
            Command::Controller => controller::run().await,
            Command::Crds => crds::run(),
            Command::Discover(args) => discover::run(args).await,
            Command::Get(args) => get::run(&args),
            Command::Handler { command } => handler::run(command).await,
        }
    });
    runtime.shutdown_background(); // nothing that still reads a slow file may delay the end
    result
}

/// The log goes to standard error; what was asked for goes to standard output.
fn start_log(cli: &Cli) {
    let default = match (&cli.command, cli.verbose) {
        (Command::Agent(_) | Command::Controller, 0) => "info",
        (_, 0) => "warn",
        (_, 1) => "debug",
        _ => "trace",
    };
    let others = "warn,cranelift=warn,wasmtime=warn,h2=warn";
    // What became of its rounds, `discover` says itself.
    let rounds = if default == "warn" { "error" } else { default };
    let ours = format!(
        "akri={default},akri_agent={default},akri_agent::discovery={rounds},akri_controller={default},akri_sandbox={default}"
    );
    // Whoever tries a component wants to see what it writes.
    let guests = if matches!(cli.command, Command::Handler { .. }) { ",akri::handler=trace" } else { "" };
    let wanted = format!("{others},{ours}{guests}");
    let filter = EnvFilter::try_from_env("AKRI_LOG").unwrap_or_else(|_| EnvFilter::new(wanted));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match cli.log_format {
        LogFormat::Text => log.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}
