//! Parts that commands share, also those for authors of handlers: flags, output, the objects of files, the devices of rounds.

// `eprintln!` panics if standard error is closed; `print_message` does not.
#![warn(clippy::print_stderr)]

pub mod args;
pub mod component;
pub mod device;
pub mod output;
pub mod program;
pub mod registry;
pub mod subject;
