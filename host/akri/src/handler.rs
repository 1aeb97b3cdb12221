//! `akri handler`: the compiler, and, with the feature `author`, tools for authors of handlers.

#[cfg(not(feature = "author"))]
use std::ffi::OsString;
use std::process::ExitCode;

use clap::Subcommand;

use crate::compile::{self, CompileArgs};

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum HandlerCommand {
    #[cfg(feature = "author")]
    #[command(flatten)]
    Author(akri_author::HandlerCommand),
    /// Compile a component as the agent has it compiled: without network and files, within bounds on memory and time.
    #[command(after_help = include_str!("../help/compile.txt"))]
    Compile(CompileArgs),
    #[cfg(not(feature = "author"))]
    #[command(external_subcommand)]
    Missing(Vec<OsString>),
}

/// Runs the subcommand.
pub(crate) async fn run(command: HandlerCommand) -> anyhow::Result<ExitCode> {
    match command {
        #[cfg(feature = "author")]
        HandlerCommand::Author(command) => akri_author::run(command).await,
        HandlerCommand::Compile(args) => compile::run(&args),
        #[cfg(not(feature = "author"))]
        HandlerCommand::Missing(arguments) => anyhow::bail!(
            "this build of akri, which is that of images, has no 'akri handler {}'; \
             `cargo build --release --package akri` makes one with all tools for authors",
            arguments.first().map(|name| name.to_string_lossy()).unwrap_or_default()
        ),
    }
}
