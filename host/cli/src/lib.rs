//! Parts that commands share, also those for authors of handlers: flags, output, the objects of files, the devices of rounds.

pub mod args;
pub mod device;
pub mod output;
pub mod program;
pub mod registry;
pub mod subject;
