//! Flags of `akri handler`.

use std::path::PathBuf;

use akri_cli::args::{HostArgs, Output};
use akri_cli::registry::RegistryArgs;
use akri_sandbox::Platform;
use clap::{Args, Subcommand};

use crate::bindings::World;
use crate::templates::Language;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum HandlerCommand {
    /// Show the type of a component, its imports, and whether they are granted.
    #[command(after_help = include_str!("../help/inspect.txt"))]
    Inspect(InspectArgs),
    /// Check the discoveryDetails of Configurations with the component, and print errors with their lines.
    #[command(after_help = include_str!("../help/validate.txt"))]
    Validate(ValidateArgs),
    /// Run one round of discovery with a component, and print all its results.
    #[command(after_help = include_str!("../help/run.txt"))]
    Run(RunArgs),
    /// Build a component and run rounds with it whenever a file changes, and print what changed.
    #[command(after_help = include_str!("../help/dev.txt"))]
    Dev(DevArgs),
    /// Play cassettes: rounds that were recorded, or written by hand, without network, devices and grants.
    #[command(after_help = include_str!("../help/test.txt"))]
    Test(TestArgs),
    /// Create a small handler, in Rust, Python, JavaScript, C or Go.
    #[command(after_help = include_str!("../help/new.txt"))]
    New(NewArgs),
    /// Write the contract between host and handler, a WIT package, into a directory.
    #[command(after_help = include_str!("../help/wit.txt"))]
    Wit(WitArgs),
    /// Make a component of the module that a compiler for C or Go makes.
    #[command(after_help = include_str!("../help/componentize.txt"))]
    Componentize(ComponentizeArgs),
    /// Write a component, its DiscoveryHandler with the digest, what it imports, and checksums into a directory.
    #[command(after_help = include_str!("../help/pack.txt"))]
    Pack(PackArgs),
    /// Push a component to a registry, and print the DiscoveryHandler that names it.
    #[command(after_help = include_str!("../help/push.txt"))]
    Push(PushArgs),
    /// Pull a component from a registry into a file, and print the DiscoveryHandler that names it.
    Pull(PullArgs),
}

/// Flags of `akri handler pack`.
#[derive(Debug, Args)]
pub struct PackArgs {
    /// The component.
    #[arg(value_name = "WASM")]
    pub(crate) component: PathBuf,
    /// YAML file with the DiscoveryHandler that names the component's file.
    #[arg(long, value_name = "YAML")]
    pub(crate) handler_object: PathBuf,
    /// The directory to write, which has to be new or empty.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Add machine code, for `akri agent --precompiled`.
    #[arg(long)]
    pub(crate) precompiled: bool,
    /// Platform of its nodes: linux/amd64, linux/arm64 or linux/arm/v7 [default: this one].
    #[arg(long, value_name = "PLATFORM", requires = "precompiled", default_value_t = Platform::here(), hide_default_value = true)]
    pub(crate) target: Platform,
}

/// Flags of `akri handler push`.
#[derive(Debug, Args)]
pub struct PushArgs {
    /// The component.
    #[arg(value_name = "WASM")]
    pub(crate) component: PathBuf,
    /// REGISTRY/REPOSITORY[:TAG]. Without a tag the image has no other name than its digest.
    pub(crate) reference: String,
    /// YAML file with the DiscoveryHandler that names the component's file: it is printed with the image in place of that,
    /// and with its grants.
    #[arg(long, value_name = "YAML")]
    pub(crate) handler_object: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

/// Flags of `akri handler pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST].
    pub(crate) reference: String,
    /// The file to write [default: the last part of the repository with .wasm, if there is no such file].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

/// Flags of `akri handler inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The component.
    #[arg(value_name = "WASM")]
    pub(crate) component: PathBuf,
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// Print the JSON Schema of the details, for editors.
    #[arg(long, conflicts_with_all = ["output", "suggest_grants"])]
    pub(crate) schema: bool,
    /// Print a DiscoveryHandler with a grant for each import that needs one, to be filled in.
    #[arg(long, conflicts_with = "output")]
    pub(crate) suggest_grants: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

/// Flags of `akri handler validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// The component.
    #[arg(value_name = "WASM")]
    pub(crate) component: PathBuf,
    /// YAML file with Configurations; those for other handlers are ignored.
    pub(crate) file: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

/// Flags of `akri handler run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub(crate) round: RoundArgs,
    /// Write what the calls of the round bring into a cassette, for `akri handler test`. Secrets are not in it. A cassette of
    /// that name is replaced, any other file is not. Ctrl-C ends the recording after the present round.
    #[arg(long, value_name = "CASSETTE")]
    pub(crate) record: Option<PathBuf>,
    /// Run so many rounds, one after the other, with one cache.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Print each call of the host with its arguments and result to standard error. Secrets are replaced.
    #[arg(long)]
    pub(crate) trace: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

/// Flags of `akri handler dev`.
#[derive(Debug, Args)]
pub struct DevArgs {
    #[command(flatten)]
    pub(crate) round: RoundArgs,
    /// The shell command that builds the component [default: make build].
    #[arg(long, value_name = "COMMAND")]
    pub(crate) build: Option<String>,
    /// The directory in which it is run, and whose files are watched.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,
}

/// The component of rounds, with its Configurations, grants and node.
#[derive(Debug, Args)]
pub(crate) struct RoundArgs {
    /// The component.
    #[arg(value_name = "WASM")]
    pub(crate) component: PathBuf,
    /// YAML file with Configurations; those for other handlers are ignored.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// This node's name [default: the host name].
    #[arg(long, env = "AGENT_NODE_NAME")]
    pub(crate) node_name: Option<String>,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

/// Flags of `akri handler test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// The component.
    #[arg(value_name = "WASM")]
    pub(crate) component: PathBuf,
    /// A cassette, or a directory of such (*.jsonl, *.yaml, *.yml). May be given more than once [default: cassettes/ in the
    /// working directory, or else beside the component].
    #[arg(long, value_name = "PATH")]
    pub(crate) cassette: Vec<PathBuf>,
    /// Write what differs into the cassettes, after it is shown: results, and what is sent. Answers of peers stay.
    #[arg(long)]
    pub(crate) update: bool,
}

/// The source of the grants.
#[derive(Debug, Args)]
pub(crate) struct ObjectArgs {
    /// YAML file with the DiscoveryHandler that defines grants and limits. Without one, and without one in the file of
    /// Configurations, nothing is granted.
    #[arg(long, value_name = "YAML")]
    pub(crate) handler_object: Option<PathBuf>,
}

/// Flags of `akri handler new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The name of the handler: lower-case letters, digits and '-'.
    pub(crate) name: String,
    /// The directory for its files, none of which may exist [default: the name].
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// The language.
    #[arg(long, value_enum, default_value = "rust")]
    pub(crate) lang: Language,
    /// Its use of the network, which decides what bindings for C and Go have.
    #[arg(long, value_enum, default_value = "discovery-handler")]
    pub(crate) world: World,
}

/// Flags of `akri handler componentize`.
#[derive(Debug, Args)]
pub struct ComponentizeArgs {
    /// The module, which imports nothing, the contract, or WASI 0.1. With --details-schema it may be a component.
    pub(crate) module: PathBuf,
    /// The component, which is replaced.
    pub(crate) component: PathBuf,
    /// The world of its bindings.
    #[arg(long, value_enum, default_value = "discovery-handler")]
    pub(crate) world: World,
    /// File with a JSON Schema of the details, which the component holds then: `akri handler inspect --schema`.
    #[arg(long, value_name = "JSON")]
    pub(crate) details_schema: Option<PathBuf>,
}

/// Flags of `akri handler wit`.
#[derive(Debug, Args)]
pub struct WitArgs {
    /// The directory. Files of the package that are in it are replaced.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}
