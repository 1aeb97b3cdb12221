//! The command line. Each flag of the agent has an environment variable, for manifests.

use std::net::SocketAddr;
use std::path::PathBuf;

use akri_model::names::Key;
use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;

use crate::handler::HandlerCommand;

/// Leaf devices as Kubernetes resources, discovered by sandboxed WASM components.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 120,
    after_help = "\
Try it without a cluster:
  akri discover examples/local/memory.yaml --components target/components
  akri agent --local examples/local --components target/components --state-dir /tmp/akri/state \\
    --kubelet-dir /tmp/akri/kubelet --handlers-dir /tmp/akri/handlers --show"
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// How log lines look.
    #[arg(long, global = true, value_enum, default_value = "text", env = "AKRI_LOG_FORMAT")]
    pub(crate) log_format: LogFormat,
    /// Log more; twice for everything. AKRI_LOG sets a filter by module instead.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the agent of this node: discover devices and serve them to the kubelet.
    Agent(AgentArgs),
    /// Run the controller: one for a cluster. It says in the status of Configurations and Instances how they are.
    Controller,
    /// Print the CustomResourceDefinitions of Akri's kinds, for `kubectl apply -f -`.
    Crds,
    /// Run discovery on this machine and show what it finds. No cluster, no kubelet, nothing is kept.
    Discover(DiscoverArgs),
    /// Inspect, check and try a component that is a discovery handler, or begin a new one. No cluster is needed.
    #[command(after_help = "\
From nothing to a handler that a node may run:
  akri handler new my-handler                              # a small one, in Rust, to be built with make
  akri handler validate my_handler.wasm configuration.yaml # are the details right? The line, if not
  akri handler run my_handler.wasm configuration.yaml      # what does it find on this machine?
  akri handler inspect my_handler.wasm --handler-object my-handler.yaml  # what does it ask for, and may it have that?
The DiscoveryHandler and the component then go into the directory that the agent knows as --components.")]
    Handler {
        /// What to do with it.
        #[command(subcommand)]
        command: HandlerCommand,
    },
    /// Show what a local agent keeps.
    Get(GetArgs),
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
    /// The kubelet's root directory, with device-plugins/ and pod-resources/.
    #[arg(long, value_name = "DIR", env = "AKRI_KUBELET_DIR", default_value = "/var/lib/kubelet")]
    pub(crate) kubelet_dir: PathBuf,
    /// Where the agent keeps its journal, its Instances and its compiled components.
    #[arg(long, value_name = "DIR", env = "AKRI_STATE_DIR", default_value = "/var/lib/akri/state")]
    pub(crate) state_dir: PathBuf,
    /// Write a CDI specification for each Instance into this directory, for Podman, Docker, containerd and CRI-O; they
    /// read /etc/cdi and /var/run/cdi.
    #[arg(long, value_name = "DIR", env = "AKRI_CDI_DIR")]
    pub(crate) cdi_dir: Option<PathBuf>,
    /// Whom to tell the CDI names: the kubelet can pass them to the container runtime instead of device nodes and mounts
    /// (Kubernetes 1.29 and later, with CDI enabled in the runtime).
    #[arg(long, value_enum, default_value = "none", env = "AKRI_CDI", requires = "cdi_dir")]
    pub(crate) cdi: CdiFor,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Seconds after a restart of the kubelet or the agent in which no slot is given back: the kubelet's list of pods is
    /// not complete right away.
    #[arg(long, value_name = "SECONDS", env = "AKRI_SETTLE_SECONDS", default_value_t = 60)]
    pub(crate) settle_seconds: u64,
    /// The pod this agent runs in: no slot is given back while the kubelet's list of pods lacks it.
    #[arg(long, value_name = "NAMESPACE/NAME", env = "AKRI_POD", value_parser = pod)]
    pub(crate) pod: Option<Key>,
    /// Serve /healthz, /readyz and /metrics (OpenMetrics) at this address, such as 0.0.0.0:8080 [default: nowhere].
    #[arg(long, value_name = "ADDRESS", env = "AKRI_LISTEN", value_parser = listen)]
    pub(crate) listen: Option<SocketAddr>,
    /// Print the table of Instances to standard output whenever it changes.
    #[arg(long)]
    pub(crate) show: bool,
}

/// Who is told CDI names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CdiFor {
    /// Nobody: the files are for engines that are asked by a person.
    None,
    /// The kubelet, in its Allocate answers.
    Kubelet,
}

/// Who may serve remote discovery handlers.
#[derive(Debug, Clone, Args)]
pub(crate) struct RemoteArgs {
    /// Directory of remote discovery handlers: they register on the socket agent-registration.sock in it, and their own
    /// sockets have to be in it.
    #[arg(long, value_name = "DIR", env = "DISCOVERY_HANDLERS_DIRECTORY", default_value = "/var/lib/akri")]
    pub(crate) handlers_dir: PathBuf,
    /// Let processes of this user register and serve handlers, beside those of root and of the agent's own user. May be
    /// given more than once.
    #[arg(long, value_name = "UID", env = "AKRI_ALLOW_HANDLER_UIDS", value_delimiter = ',')]
    pub(crate) allow_handler_uid: Vec<u32>,
    /// Let handlers register addresses in this network, such as 10.1.0.0/16. What they are asked, values of Secrets
    /// included, goes there unencrypted. May be given more than once; without it, handlers serve on Unix sockets only.
    #[arg(long, value_name = "CIDR", env = "AKRI_ALLOW_NETWORK_HANDLERS", value_delimiter = ',')]
    pub(crate) allow_network_handlers: Vec<IpNet>,
    /// Let remote handlers name any path of the node in mounts and device specs, as upstream Akri does; else only devices
    /// below /dev.
    #[arg(long, env = "AKRI_TRUST_REMOTE_PATHS")]
    pub(crate) trust_remote_paths: bool,
    /// Seconds that a remote handler may be offline before it is forgotten, or silent after it is back: from then on its
    /// devices are not handed out until a handler of its name reports again.
    #[arg(long, value_name = "SECONDS", env = "AKRI_HANDLER_PATIENCE_SECONDS", default_value_t = 300)]
    pub(crate) handler_patience_seconds: u64,
}

/// Where the node's devices are described.
#[derive(Debug, Clone, Args)]
pub(crate) struct HostArgs {
    /// Where sysfs is mounted.
    #[arg(long, value_name = "DIR", env = "AKRI_SYSFS", default_value = "/sys")]
    pub(crate) sysfs: PathBuf,
    /// udev's database.
    #[arg(long, value_name = "DIR", env = "AKRI_UDEV_DATA", default_value = "/run/udev/data")]
    pub(crate) udev_data: PathBuf,
}

/// Flags of `akri discover`.
#[derive(Debug, Args)]
pub(crate) struct DiscoverArgs {
    /// YAML file with one or more Configurations, and if you like DiscoveryHandlers, and the Secrets and ConfigMaps that
    /// properties come from.
    pub(crate) file: PathBuf,
    /// Use this component for all Configurations, whatever handler they name. A DiscoveryHandler in FILE that names the
    /// component's file gives its grants; without one it is granted nothing but device nodes below /dev.
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
    /// Go on after the first round, and print each change as it happens: `+` a device that came, `-` one that went, `~`
    /// one that looks different. With -o json one object a line. Ends on SIGINT or SIGTERM.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Say for each rule which of its matches hold for this device, and which fail. A device node (/dev/video0), a path of
    /// sysfs (/sys/class/tty/ttyS0, /devices/...) or a kernel name (ttyS0).
    #[arg(long, value_name = "DEVICE", conflicts_with = "watch")]
    pub(crate) explain: Option<String>,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

/// Flags of `akri get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// What to show.
    #[arg(value_enum)]
    pub(crate) kind: Kind,
    /// The agent's --state-dir.
    #[arg(long, value_name = "DIR", env = "AKRI_STATE_DIR", default_value = "/var/lib/akri/state")]
    pub(crate) state_dir: PathBuf,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

/// What can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Devices, and who uses them.
    Instances,
    /// Configurations, and how they are doing.
    Configurations,
    /// Discovery handlers, components and remote ones, and how they are doing.
    Handlers,
}

/// How an answer looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For programs and people.
    Yaml,
}

/// The given node name, else the host name.
pub(crate) fn node_name(given: Option<String>) -> anyhow::Result<String> {
    let name = given.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().to_lowercase());
    let valid = !name.is_empty() && name.len() <= 253 && !name.contains([':', '/', ' ']);
    anyhow::ensure!(valid, "'{name}' can't be a node name; give one with --node-name");
    Ok(name)
}

fn listen(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "this is not ADDRESS:PORT, such as 127.0.0.1:9464")
}

fn pod(text: &str) -> Result<Key, &'static str> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    parts.map(|(namespace, name)| Key::new(namespace, name)).ok_or("this is not NAMESPACE/NAME")
}
