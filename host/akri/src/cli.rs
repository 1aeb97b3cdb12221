//! The command line. Each flag of the agent has an environment variable, for use in manifests.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use akri_cli::args::{HostArgs, Output};
use akri_cli::registry::RegistryArgs;
use akri_model::names::Key;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ipnet::IpNet;

use crate::crds::CrdsArgs;
use crate::get::args::{DrainArgs, Listing, is_plugin};
use crate::handler::HandlerCommand;
use crate::page::PageArgs;
use crate::upgrade::UpgradeCommand;
use crate::webhook::WebhookArgs;
use crate::why::WhyArgs;

/// Leaf devices as Kubernetes resources, discovered by sandboxed WASM components.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 120,
    after_help = include_str!("../help/akri.txt")
)]
pub(crate) struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Format of log lines.
    #[arg(long, global = true, value_enum, default_value = "text", env = "AKRI_LOG_FORMAT")]
    pub(crate) log_format: LogFormat,
    /// Log more; twice for everything. AKRI_LOG sets a filter by module instead.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// Readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the agent of this node: discover devices and serve them to the kubelet.
    Agent(Box<AgentArgs>),
    /// Run the controller of a cluster: it runs brokers for devices and writes the status of Configurations and Instances.
    /// Of several, one works; another takes over when that one ends.
    Controller(ControllerArgs),
    /// Print the CustomResourceDefinitions of Akri's kinds, for `kubectl apply -f -`, or apply them.
    Crds(CrdsArgs),
    /// Run discovery on this machine and print the devices. Needs no cluster and no kubelet, and keeps nothing but pulled
    /// and compiled components, in the user's cache directory.
    Discover(DiscoverArgs),
    /// Inspect, check and try a component, or create a new one. Needs no cluster.
    #[command(after_help = include_str!("../help/handler.txt"))]
    Handler {
        /// The subcommand.
        #[command(subcommand)]
        command: HandlerCommand,
    },
    /// Show what a local agent or a cluster has: devices, who uses them, Configurations and handlers.
    Get {
        /// The kind of rows.
        #[command(subcommand)]
        listing: Listing,
    },
    /// Show the pods of a node that hold devices and would be interrupted. Changes nothing; fails if there are any.
    Drain(DrainArgs),
    /// Print the script that lets a shell complete commands and flags: `source <(akri completion bash)`.
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Say why a device is not there, or why a pod does not get it: where the chain from the manifest to the container ends, and what
    /// to do. Fails if it ends.
    Why(WhyArgs),
    /// Show in a browser what is there and why something is not: devices with who uses them, Configurations and handlers of a local
    /// agent, or of a cluster.
    Page(PageArgs),
    /// Prepare the change from upstream Akri.
    Upgrade {
        /// The subcommand.
        #[command(subcommand)]
        command: UpgradeCommand,
    },
    /// Run components for an agent, which starts this itself.
    #[command(hide = true)]
    Sandbox(SandboxArgs),
    /// Run the admission webhook: it checks Configurations and DiscoveryHandlers before the API server stores them.
    Webhook(WebhookArgs),
}

/// Flags of `akri controller`.
#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    /// Serve the Configurations of this namespace alone, beside controllers of others [default: all namespaces].
    #[arg(long, value_name = "NAMESPACE", env = "AKRI_CONTROLLER_NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Namespace of the Leases: the one of leader election, and those by which agents show that they run. It has to be the
    /// agents' namespace [default: that of the pod, or of the kubeconfig's context].
    #[arg(long, value_name = "NAMESPACE", env = "AKRI_LEASE_NAMESPACE")]
    pub(crate) lease_namespace: Option<String>,
    /// Serve /healthz, /readyz and /metrics (OpenMetrics) at this address, such as :9465 [default: nowhere].
    #[arg(long, value_name = "ADDRESS", env = "AKRI_LISTEN", value_parser = listen)]
    pub(crate) listen: Option<SocketAddr>,
    /// Serve a page for browsers at this address, which has to be of this machine alone, such as :9466 [default: nowhere].
    #[arg(long, value_name = "ADDRESS", env = "AKRI_PAGE", value_parser = crate::page::address)]
    pub(crate) page: Option<SocketAddr>,
}

/// Flags of `akri agent`.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// Local mode: take Configurations and DiscoveryHandlers from the YAML files in this directory instead of the API
    /// server that KUBECONFIG or the pod's service account leads to. Files may change at any time.
    #[arg(long, value_name = "DIR", env = "AKRI_LOCAL")]
    pub(crate) local: Option<PathBuf>,
    /// This node's name; it is part of the names of its local devices [default: the host name].
    #[arg(long, env = "AGENT_NODE_NAME")]
    pub(crate) node_name: Option<String>,
    /// Directory of component handlers (*.wasm) and their DiscoveryHandler manifests.
    #[arg(long, value_name = "DIR", env = "AKRI_COMPONENTS", default_value = "/usr/lib/akri/components")]
    pub(crate) components: PathBuf,
    /// Directory of machine code that ships with the program (`akri handler compile --precompiled`). It is used only if nobody
    /// but root and this user can write to it; components that are not in it are compiled.
    #[arg(long, value_name = "DIR", env = "AKRI_PRECOMPILED")]
    pub(crate) precompiled: Option<PathBuf>,
    /// The kubelet's root directory, with device-plugins/ and pod-resources/.
    #[arg(long, value_name = "DIR", env = "AKRI_KUBELET_DIR", default_value = "/var/lib/kubelet")]
    pub(crate) kubelet_dir: PathBuf,
    /// Directory of the journal, Instances, compiled components and images (at most 1 GiB). Nobody else may write to it, so that it can't be inside
    /// of --handlers-dir.
    #[arg(long, value_name = "DIR", env = "AKRI_STATE_DIR", default_value = "/var/lib/akri-agent")]
    pub(crate) state_dir: PathBuf,
    /// The path of --state-dir on the node, if the agent runs in a container that has it elsewhere. Containers get directories
    /// in it [default: that of --state-dir].
    #[arg(long, value_name = "DIR", env = "AKRI_HOST_STATE_DIR")]
    pub(crate) host_state_dir: Option<PathBuf>,
    /// Write a CDI specification for each Instance into this directory, for Podman, Docker, containerd and CRI-O; they
    /// read /etc/cdi and /var/run/cdi.
    #[arg(long, value_name = "DIR", env = "AKRI_CDI_DIR")]
    pub(crate) cdi_dir: Option<PathBuf>,
    /// The place of CDI names: the kubelet can pass them to the container runtime instead of device nodes and mounts
    /// (Kubernetes 1.29 and later, with CDI enabled in the runtime).
    #[arg(long, value_enum, default_value = "none", env = "AKRI_CDI", requires = "cdi_dir")]
    pub(crate) cdi: CdiFor,
    /// Mebibytes of memory of each sandbox process. Four rounds run at once, each of which may take its `limits.memory`.
    #[arg(long, value_name = "MIB", env = "AKRI_SANDBOX_MEMORY_MIB", default_value_t = 384,
        value_parser = clap::value_parser!(u64).range(64..=65_536))]
    pub(crate) sandbox_memory: u64,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    /// Seconds after a restart of the kubelet or the agent in which no slot is given back: the kubelet's list of pods is
    /// not complete right away.
    #[arg(long, value_name = "SECONDS", env = "AKRI_RECLAIM_DELAY_SECONDS", default_value_t = 60)]
    pub(crate) reclaim_delay_seconds: u64,
    /// The node's tree of cgroups, where containers are seen that the kubelet no longer lists and that run out their grace
    /// period: their slots of shared devices stay taken. Names of directories are all that is read.
    #[arg(long, value_name = "DIR", env = "AKRI_CGROUPS", default_value = "/sys/fs/cgroup")]
    pub(crate) cgroups: PathBuf,
    /// Seconds after a container was last observed, in which other nodes don't get its slot of a shared device, if that tree
    /// has no cgroups of a kubelet.
    #[arg(long, value_name = "SECONDS", env = "AKRI_RELEASE_DELAY_SECONDS", default_value_t = 30)]
    pub(crate) release_delay_seconds: u64,
    /// Milliseconds between polls of what containers use, while devices are claimed. A slot is free again two polls after
    /// its container has gone.
    #[arg(long, value_name = "MILLISECONDS", env = "AKRI_POLL_MILLISECONDS", default_value_t = 2000,
        value_parser = clap::value_parser!(u64).range(50..))]
    pub(crate) poll_milliseconds: u64,
    /// The pod this agent runs in: no slot is released while the kubelet's list of pods lacks it.
    #[arg(long, value_name = "NAMESPACE/NAME", env = "AKRI_POD", value_parser = namespaced_name)]
    pub(crate) pod: Option<Key>,
    /// Serve /healthz, /readyz and /metrics (OpenMetrics) at this address, such as :8080 [default: nowhere].
    #[arg(long, value_name = "ADDRESS", env = "AKRI_LISTEN", value_parser = listen)]
    pub(crate) listen: Option<SocketAddr>,
    /// Serve a page for browsers at this address, which has to be of this machine alone, such as :9466 [default: nowhere].
    #[arg(long, value_name = "ADDRESS", env = "AKRI_PAGE", value_parser = crate::page::address)]
    pub(crate) page: Option<SocketAddr>,
    /// Print the table of Instances to standard output whenever it changes.
    #[arg(long)]
    pub(crate) show: bool,
}

/// Flags of `akri sandbox`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SandboxArgs {
    /// Bytes of memory.
    #[arg(long)]
    pub(crate) memory: u64,
    /// Directory of compiled components.
    #[arg(long)]
    pub(crate) compiled: PathBuf,
    /// Mount point of sysfs.
    #[arg(long)]
    pub(crate) sysfs: PathBuf,
    /// udev's database.
    #[arg(long)]
    pub(crate) udev_data: PathBuf,
}

/// The place of CDI names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CdiFor {
    /// Nowhere: the files are for container engines that are called directly.
    None,
    /// In Allocate responses to the kubelet.
    Kubelet,
}

/// Settings of remote discovery handlers.
#[derive(Debug, Clone, Args)]
pub(crate) struct RemoteArgs {
    /// Directory of remote discovery handlers: it contains the registration socket agent-registration.sock and the
    /// sockets of handlers.
    #[arg(long, value_name = "DIR", env = "DISCOVERY_HANDLERS_DIRECTORY", default_value = "/var/lib/akri")]
    pub(crate) handlers_dir: PathBuf,
    /// Allow processes of this user to register and serve handlers, in addition to root and the agent's own user. May
    /// be given more than once.
    #[arg(long, value_name = "UID", env = "AKRI_ALLOW_HANDLER_UIDS", value_delimiter = ',')]
    pub(crate) allow_handler_uid: Vec<u32>,
    /// Let handlers register addresses in this network, such as 10.1.0.0/16. What they are asked, values of Secrets
    /// included, goes there unencrypted. May be given more than once; without it, handlers serve on Unix sockets only.
    #[arg(long, value_name = "CIDR", env = "AKRI_ALLOW_NETWORK_HANDLERS", value_delimiter = ',')]
    pub(crate) allow_network_handlers: Vec<IpNet>,
    /// Let remote handlers name this path of the node in mounts and device specs: a path, a pattern of names such as
    /// /dev/video*, or a directory and /**. May be given more than once; the default is serial ports, video, input, sound and USB.
    #[arg(long, value_name = "PATTERN", env = "AKRI_REMOTE_PATHS", value_delimiter = ',',
        default_values = akri_remote::DEVICE_PATHS, hide_default_value = true)]
    pub(crate) remote_path: Vec<String>,
    /// Let remote handlers name any path of the node, as upstream Akri does.
    #[arg(long, env = "AKRI_TRUST_REMOTE_PATHS")]
    pub(crate) trust_remote_paths: bool,
    /// Seconds that a remote handler may be offline, or silent after a reconnect. After that its devices are not
    /// allocated until a handler of its name reports them again.
    #[arg(long, value_name = "SECONDS", env = "AKRI_HANDLER_OFFLINE_SECONDS", default_value_t = 300)]
    pub(crate) handler_offline_seconds: u64,
}

/// Flags of `akri discover`.
#[derive(Debug, Args)]
pub(crate) struct DiscoverArgs {
    /// YAML file with one or more Configurations, a directory of such files, or - for standard input; they may also hold
    /// DiscoveryHandlers, and Secrets and ConfigMaps for properties.
    pub(crate) file: PathBuf,
    /// Use this component for all Configurations, regardless of the handler they name. A DiscoveryHandler in FILE that
    /// names the component's file defines its grants; without one, nothing is granted.
    #[arg(long, value_name = "WASM")]
    pub(crate) handler: Option<PathBuf>,
    /// Directory of component handlers (*.wasm) and their DiscoveryHandler manifests.
    #[arg(long, value_name = "DIR", env = "AKRI_COMPONENTS", default_value = "/usr/lib/akri/components")]
    pub(crate) components: PathBuf,
    /// This node's name [default: the host name].
    #[arg(long, env = "AGENT_NODE_NAME")]
    pub(crate) node_name: Option<String>,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    /// Continue after the first round, and print each change: `+` for an added device, `-` for a removed one, `~` for a
    /// changed one. With -o json one object per line. Ends on SIGINT or SIGTERM.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Show for each rule which of its matches hold for this device, and which fail. A device node (/dev/video0), a
    /// path in sysfs (/sys/class/tty/ttyS0, /devices/...) or a kernel name (ttyS0).
    #[arg(long, value_name = "DEVICE", conflicts_with = "watch")]
    pub(crate) explain: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

/// See which devices a cluster has and who uses them, and why one is not there.
#[derive(Debug, Parser)]
#[command(name = "kubectl-akri", bin_name = "kubectl akri", version, max_term_width = 120,
    after_help = include_str!("../help/kubectl-akri.txt"))]
struct Plugin {
    #[command(subcommand)]
    command: PluginCommand,
}

/// The subcommands of the plugin.
#[derive(Debug, Subcommand)]
enum PluginCommand {
    #[command(flatten)]
    Get(Listing),
    /// Say why a device is not there, or why a pod does not get it. Fails if the chain from the Configuration to the container ends.
    Why(WhyArgs),
    /// Show the pods of a node that hold devices and would be interrupted. Changes nothing; fails if there are any.
    Drain(DrainArgs),
}

impl Cli {
    /// Reads the command line. Under the name `kubectl-akri` it is that of a plugin of kubectl, for clusters.
    pub(crate) fn read() -> Self {
        if !is_plugin() {
            return Self::parse();
        }
        let command = match Plugin::parse().command {
            PluginCommand::Get(listing) => Command::Get { listing },
            PluginCommand::Why(args) => Command::Why(args),
            PluginCommand::Drain(args) => Command::Drain(args),
        };
        Self { command, log_format: LogFormat::Text, verbose: 0 }
    }
}

/// Reads an address and a port. `:PORT` stands for all addresses of the machine, IPv6 and IPv4.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, &'static str> {
    // In a manifest the address is put in as it is: an IPv6 address without brackets.
    let address = |text: &str| if text.is_empty() { Some(Ipv6Addr::UNSPECIFIED.into()) } else { text.parse().ok() };
    let split = || text.rsplit_once(':').and_then(|(host, port)| Some((address(host)?, port.parse().ok()?)));
    let bare = || split().map(|(address, port): (IpAddr, u16)| SocketAddr::new(address, port));
    text.parse().ok().or_else(bare).ok_or("this is not ADDRESS:PORT, such as 127.0.0.1:9464")
}

pub(crate) fn namespaced_name(text: &str) -> Result<Key, &'static str> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    parts.map(|(namespace, name)| Key::new(namespace, name)).ok_or("this is not NAMESPACE/NAME")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_addresses_are_read() {
        for (text, address) in [
            ("127.0.0.1:9464", "127.0.0.1:9464"),
            ("[fd00::1]:9464", "[fd00::1]:9464"),
            ("fd00::1:9464", "[fd00::1]:9464"),
            (":8443", "[::]:8443"),
        ] {
            assert_eq!(listen(text).unwrap(), address.parse().unwrap(), "{text}");
        }
        for text in ["", ":", "8443", "localhost:1", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(listen(text).is_err(), "{text}");
        }
    }
}
