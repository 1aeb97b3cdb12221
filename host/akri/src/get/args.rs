//! The flags of listings.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Returns whether this program was called as a plugin of kubectl.
pub(crate) fn is_plugin() -> bool {
    let program = std::env::args_os().next().map(PathBuf::from);
    program.is_some_and(|program| program.file_name().is_some_and(|name| name == "kubectl-akri"))
}

/// The kinds of what can be listed.
#[derive(Debug, Subcommand)]
pub(crate) enum Listing {
    /// Devices by node: their state, their slots, and the pods that hold them.
    #[command(alias = "device")]
    Devices(ListArgs),
    /// Slots of devices, with the node and the pod of each; of an unreadable one the command that frees it.
    #[command(alias = "slot")]
    Slots(ListArgs),
    /// Instances: devices and their use.
    #[command(aliases = ["instance", "akrii"])]
    Instances(ListArgs),
    /// Configurations and their status.
    #[command(aliases = ["configuration", "akric"])]
    Configurations(ListArgs),
    /// Component and remote discovery handlers and their status.
    #[command(alias = "handler")]
    Handlers(ListArgs),
}

/// A name and the flags of a listing.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Show this one only; that of a Configuration shows all it has, and NAMESPACE/NAME is one in a namespace.
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) options: ListOptions,
}

/// Flags of `akri drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The node.
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) options: ListOptions,
}

/// Flags of all listings.
#[derive(Debug, Args)]
pub(crate) struct ListOptions {
    /// Show the objects of this namespace only [default: all].
    #[arg(short, long, conflicts_with = "all_namespaces")]
    pub(crate) namespace: Option<String>,
    /// Show the objects of all namespaces, which is the default.
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    /// Continue, and print each row that changes; one that is gone as it was.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Format,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// The place where objects are read.
#[derive(Debug, Default, Args)]
pub(crate) struct SourceArgs {
    /// The --state-dir of a local agent. Without one there, the objects are those of the cluster that KUBECONFIG or the pod's service
    /// account leads to.
    #[arg(long, value_name = "DIR", env = "AKRI_STATE_DIR", default_value = "/var/lib/akri-agent")]
    pub(crate) state_dir: PathBuf,
    /// Read the cluster that this kubeconfig leads to.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Read the cluster of this context of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Set if it is a cluster in any case, as for the plugin of kubectl.
    #[arg(skip = is_plugin())]
    pub(crate) is_cluster: bool,
}

/// Formats of listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table.
    Table,
    /// A table with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Names.
    Name,
}
