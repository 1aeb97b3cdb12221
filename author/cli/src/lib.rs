//! `akri handler`: tools for authors of handlers, and for administrators who grant them access.

// `eprintln!` panics if standard error is closed; `print_message` does not.
#![warn(clippy::print_stderr)]

mod args;
mod bindings;
mod build;
mod component;
mod componentize;
mod dev;
mod image;
mod inspect;
mod new;
mod output_file;
mod pack;
mod project;
mod record;
mod replay;
mod round_runner;
mod rules;
mod run;
mod schema;
mod templates;
mod test;
mod update;
mod validate;

use std::process::ExitCode;

pub use self::args::HandlerCommand;

/// Runs the subcommand.
///
/// # Errors
/// If the subcommand fails; the message says what to do.
pub async fn run(command: HandlerCommand) -> anyhow::Result<ExitCode> {
    match command {
        HandlerCommand::Inspect(args) => inspect::run(&args).await,
        HandlerCommand::Validate(args) => validate::run(&args).await,
        HandlerCommand::Run(args) => run::run(&args).await,
        HandlerCommand::Dev(args) => dev::run(&args).await,
        HandlerCommand::Test(args) => test::run(&args).await,
        HandlerCommand::New(args) => new::run(&args),
        HandlerCommand::Wit(args) => new::wit(&args),
        HandlerCommand::Componentize(args) => componentize::run(&args),
        HandlerCommand::Pack(args) => pack::run(&args).await,
        HandlerCommand::Push(args) => image::push(&args).await,
        HandlerCommand::Pull(args) => image::pull(&args).await,
    }
}
