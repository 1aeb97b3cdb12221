//! Flags of `akri handler`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::{HostArgs, Output};

/// What to do with a component.
#[derive(Debug, Subcommand)]
pub(crate) enum HandlerCommand {
    /// Show what a component is, what it asks for, and whether it is granted that.
    #[command(after_help = "\
The imports of a component are what it may ask for. `akri:...` it asks for itself, `wasi:...` the runtime of its language may
ask for without need. What it gets is decided by the grants of a DiscoveryHandler alone:
  akri handler inspect target/components/udev.wasm --handler-object target/components/udev.yaml")]
    Inspect(InspectArgs),
    /// Check the discoveryDetails of Configurations as the component itself does, and say what is wrong on which line.
    #[command(after_help = "\
The component looks at nothing but the details, so that this is safe everywhere, for example in CI:
  akri handler validate my_handler.wasm my-configuration.yaml")]
    Validate(ValidateArgs),
    /// Run one round of discovery with a component, and show everything that came of it.
    #[command(after_help = "\
FILE may hold, beside Configurations, the DiscoveryHandler with the grants, and the Secrets and ConfigMaps that properties
come from. Log lines of the component go to standard error as they are written:
  akri handler run my_handler.wasm my-configuration.yaml
To go on with the next rounds, and to see what changes: akri discover FILE --handler my_handler.wasm --watch")]
    Run(RunArgs),
    /// Write a small handler to begin with, in Rust.
    #[command(after_help = "\
The new directory has everything that the handler needs to be built, and a Configuration to try it with:
  akri handler new my-handler && cd my-handler && make run")]
    New(NewArgs),
}

/// Flags of `akri handler inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The component.
    #[arg(value_name = "WASM")]
    pub(crate) component: PathBuf,
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

/// Flags of `akri handler validate`.
#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// The component.
    #[arg(value_name = "WASM")]
    pub(crate) component: PathBuf,
    /// YAML file with Configurations; those for other handlers are left out.
    pub(crate) file: PathBuf,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

/// Flags of `akri handler run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The component.
    #[arg(value_name = "WASM")]
    pub(crate) component: PathBuf,
    /// YAML file with Configurations; those for other handlers are left out.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// This node's name [default: the host name].
    #[arg(long, env = "AGENT_NODE_NAME")]
    pub(crate) node_name: Option<String>,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

/// Where the grants come from.
#[derive(Debug, Args)]
pub(crate) struct ObjectArgs {
    /// YAML file with the DiscoveryHandler whose grants and limits hold. Without one the component is granted nothing but
    /// device nodes below /dev.
    #[arg(long, value_name = "YAML", visible_alias = "grants")]
    pub(crate) handler_object: Option<PathBuf>,
}

/// Flags of `akri handler new`.
#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// The directory to make. Its last part is the name of the handler: lower-case letters, digits and '-'.
    pub(crate) directory: PathBuf,
}
