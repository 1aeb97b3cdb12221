//! Akri: leaf devices as Kubernetes resources, discovered by sandboxed WASM components.

// `eprintln!` panics if standard error is closed; `print_message` does not.
#![warn(clippy::print_stderr)]

mod agent;
mod api_server;
mod cli;
mod compile;
mod controller;
mod crds;
mod discover;
mod get;
mod handler;
mod log_lines;
mod observed;
mod page;
mod sandbox;
mod upgrade;
mod webhook;
mod why;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use akri_cli::output::{print_message, print_text};
use clap::CommandFactory as _;
use cli::{Cli, Command, LogFormat};
use handler::HandlerCommand;
use log_lines::LogLines;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::read();
    // The only built-in provider; fails only if one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    start_log(&cli);
    let logging = (0..cli.verbose).map(|_| "--verbose".to_owned()).collect();
    match run(cli.command, logging) {
        Ok(code) => code,
        Err(error) => {
            print_message(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Threads that wait for the outside world: on a machine with many processors each would cost a heap of its own, and an event wakes
/// up more than one.
const MAX_THREADS: usize = 2;

fn run(command: Command, logging: Vec<String>) -> anyhow::Result<ExitCode> {
    if let Command::Sandbox(args) = &command {
        return sandbox::run(args);
    }
    if let Command::Handler { command: HandlerCommand::Compile(args) } = &command {
        return compile::run(args);
    }
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(MAX_THREADS));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let result = runtime.block_on(async {
        match command {
            Command::Agent(args) => agent::run(*args, logging).await,
            Command::Controller(args) => controller::run(args).await,
            Command::Crds(args) => crds::run(args).await,
            Command::Discover(args) => discover::run(args).await,
            Command::Get { listing } => get::run(&listing).await,
            Command::Drain(args) => get::drain(&args).await,
            Command::Completion { shell } => completion(shell),
            Command::Sandbox(args) => sandbox::run(&args),
            Command::Handler { command } => handler::run(command).await,
            Command::Page(args) => page::run(args).await,
            Command::Upgrade { command } => upgrade::run(command).await,
            Command::Webhook(args) => webhook::run(args, logging).await,
            Command::Why(args) => why::run(&args).await,
        }
    });
    runtime.shutdown_background(); // nothing that still reads a slow file may delay the end
    result
}

/// Prints the script with which a shell completes this command line.
fn completion(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "akri", &mut script);
    print_text(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Starts logging to standard error; results go to standard output.
fn start_log(cli: &Cli) {
    let default = match (&cli.command, cli.verbose) {
        (Command::Agent(_) | Command::Controller(_) | Command::Sandbox(_) | Command::Webhook(_), 0) => "info",
        (_, 0) => "warn",
        (_, 1) => "debug",
        _ => "trace",
    };
    // h2 warns of each unexpected frame, so that a peer could fill the disk; the cache of compiled code, of what it may not do, such as
    // lower its priority; kube, of each attempt to list what it may not.
    let others = "warn,h2=error,wasmtime_internal_cache=error,kube_runtime=error";
    // `discover` prints the results of rounds itself.
    let rounds = if default == "warn" { "error" } else { default };
    let ours = format!("akri={default},akri_discovery={rounds}"); // a target stands for all that begin with it
    // While trying a component, its own log lines matter.
    let guests = if matches!(cli.command, Command::Handler { .. }) { ",akri::handler=trace" } else { "" };
    let wanted = format!("{others},{ours}{guests}");
    let filter = EnvFilter::try_from_env("AKRI_LOG").unwrap_or_else(|_| EnvFilter::new(wanted));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| LogLines);
    match cli.log_format {
        // The agent logs its lines.
        _ if matches!(cli.command, Command::Sandbox(_)) => {
            log.with_target(false).without_time().with_ansi(false).init()
        }
        LogFormat::Text => log.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}
