//! `akri agent`: conversion of flags to settings, and shutdown on signals.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use akri_agent::agent::{self, ClusterKind, Settings};
use akri_agent::cdi::Cdi;
use akri_agent::pod_resources_poller::Polling;
use akri_cli::args::node_name;
use akri_cli::output::{with_causes, write};
use akri_cli::program::{sandbox_program, stop_signal};
use akri_node::watch_dir::{WatchDir, any_changed};
use akri_sandbox::HostConfig;
use anyhow::{Context as _, ensure};
use indicatif::ProgressBar;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

use crate::api_server::client;
use crate::cli::{AgentArgs, CdiFor, RemoteArgs};
use crate::get::args::SourceArgs;
use crate::get::instances_of;
use crate::log_lines;
use crate::page::beside;

/// Runs the agent until SIGTERM or SIGINT. Its sandbox processes get the flags of its log.
pub(crate) async fn run(args: AgentArgs, logging: Vec<String>) -> anyhow::Result<ExitCode> {
    raise_file_limit();
    let source = source(args.local.clone()).await?;
    let shown = args.show.then(|| tokio::spawn(show(args.state_dir.clone())));
    let kubelet = args.cdi == CdiFor::Kubelet;
    let state_dir = std::path::absolute(&args.state_dir).context("--state-dir")?; // compiled code is only run from a fixed place
    let settings = Settings {
        host_state_dir: args.host_state_dir.unwrap_or_else(|| state_dir.clone()),
        host: HostConfig {
            program: sandbox_program(args.sandbox_memory << 20, logging),
            cache_dir: Some(state_dir.join("compiled")),
            precompiled: args.precompiled.map(std::path::absolute).transpose().context("--precompiled")?,
            sysfs: args.host.sysfs,
            udev_data: args.host.udev_data,
        },
        state_dir,
        cdi: args.cdi_dir.map(|directory| Cdi { directory, kubelet }),
        node: node_name(args.node_name)?,
        registries: args.registry.settings()?,
        remote: remote(args.remote)?,
        source,
        listen: args.listen,
        components: args.components,
        kubelet_dir: args.kubelet_dir,
        polling: Polling {
            interval: Duration::from_millis(args.poll_milliseconds),
            reclaim_delay: Duration::from_secs(args.reclaim_delay_seconds),
            own_pod: args.pod,
            cgroups: args.cgroups,
            release_delay: Duration::from_secs(args.release_delay_seconds),
        },
    };
    let is_cluster = args.local.is_none();
    let on_page = SourceArgs { state_dir: settings.state_dir.clone(), is_cluster, ..SourceArgs::default() };
    let node = is_cluster.then(|| settings.node.clone());
    beside(args.page, on_page, node, agent::run(settings, stop_signal()?)).await?.map_err(with_causes)?;
    if let Some(shown) = shown {
        shown.abort();
    }
    Ok(ExitCode::SUCCESS)
}

fn remote(args: RemoteArgs) -> anyhow::Result<akri_remote::RemoteSettings> {
    Ok(akri_remote::RemoteSettings {
        directory: std::path::absolute(&args.handlers_dir).context("--handlers-dir")?,
        users: args.allow_handler_uid,
        networks: args.allow_network_handlers,
        paths: args.remote_path,
        trust_paths: args.trust_remote_paths,
        offline_timeout: Duration::from_secs(args.handler_offline_seconds.min(u32::MAX.into())), // no time overflows
    })
}

/// Returns the directory of local mode, or a client for the API server from KUBECONFIG or the pod's service account.
async fn source(local: Option<PathBuf>) -> anyhow::Result<ClusterKind> {
    if let Some(directory) = local {
        ensure!(directory.is_dir(), "--local '{}' is not a directory", directory.display());
        return Ok(ClusterKind::Local(directory));
    }
    Ok(ClusterKind::Kubernetes(client().await.context("without --local DIR the agent needs an API server")?))
}

/// Raises the limit of open files. Each resource takes two descriptors, and the usual limit of 1,024 is for programs
/// that use `select`.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!("the limit of open files stays at {:?}: {error}", limit.current);
    }
}

/// Prints the table of Instances whenever it changes: on a terminal in place, otherwise once more. If the output fails, printing ends
/// and the agent continues.
async fn show(state: PathBuf) {
    let drawn = log_lines::drawn();
    let instances = state.join("instances");
    let mut shown = None;
    loop {
        // They are watched before they are read.
        let namespaces = fs::read_dir(&instances).into_iter().flatten().flatten().map(|entry| entry.path());
        let directories = namespaces.chain([instances.clone()]);
        let mut watched: Vec<WatchDir> = directories.map(|directory| WatchDir::new(&directory)).collect();
        let now = instances_of(&state);
        if now != shown {
            let table = format!("\n{}\n", now.as_deref().unwrap_or("no Instances\n"));
            let draw = |drawn: &ProgressBar| {
                drawn.set_message(table.clone());
                drawn.force_draw();
                Ok(())
            };
            match drawn.map_or_else(|| write(&table), draw) {
                Ok(()) => shown = now,
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return, // the reader has closed the pipe
                Err(error) => return warn!("--show ends: cannot write to standard output: {error}"),
            }
        }
        any_changed(&mut watched).await;
    }
}
