//! `akri agent`: flags to settings, and signals to an orderly end.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use akri_agent::agent::{self, Settings, Source};
use akri_agent::cdi::Cdi;
use akri_agent::remote;
use anyhow::{Context as _, ensure};
use kube::{Client, Config};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::cli::{AgentArgs, CdiFor, RemoteArgs, node_name};
use crate::get::instances_of;
use crate::output::{whole, write};

/// How often `--show` looks for changes.
const SHOW: Duration = Duration::from_millis(250);

/// Runs the agent until SIGTERM or SIGINT.
pub(crate) async fn run(args: AgentArgs) -> anyhow::Result<ExitCode> {
    raise_file_limit();
    let source = source(args.local.clone()).await?;
    let shown = args.show.then(|| tokio::spawn(show(args.state_dir.clone())));
    let kubelet = args.cdi == CdiFor::Kubelet;
    let settings = Settings {
        cdi: args.cdi_dir.map(|directory| Cdi { directory, kubelet }),
        node: node_name(args.node_name)?,
        remote: remote(args.remote)?,
        source,
        listen: args.listen,
        components: args.components,
        kubelet_dir: args.kubelet_dir,
        state_dir: std::path::absolute(&args.state_dir).context("--state-dir")?, // compiled code is only run from a fixed place
        sysfs: args.host.sysfs,
        udev_data: args.host.udev_data,
        settle: Duration::from_secs(args.settle_seconds),
        own_pod: args.pod,
    };
    agent::run(settings, stop_signal()?).await.map_err(whole)?;
    if let Some(shown) = shown {
        shown.abort();
    }
    Ok(ExitCode::SUCCESS)
}

fn remote(args: RemoteArgs) -> anyhow::Result<remote::Settings> {
    Ok(remote::Settings {
        directory: std::path::absolute(&args.handlers_dir).context("--handlers-dir")?,
        users: args.allow_handler_uid,
        networks: args.allow_network_handlers,
        trust_paths: args.trust_remote_paths,
        patience: Duration::from_secs(args.handler_patience_seconds),
    })
}

/// The directory of local mode, or the API server that KUBECONFIG or the pod's service account leads to.
async fn source(local: Option<PathBuf>) -> anyhow::Result<Source> {
    if let Some(directory) = local {
        ensure!(directory.is_dir(), "--local '{}' is not a directory", directory.display());
        return Ok(Source::Local(directory));
    }
    Ok(Source::Kubernetes(client().await.context("without --local DIR the agent needs an API server")?))
}

/// A client for the API server that KUBECONFIG or the pod's service account leads to.
pub(crate) async fn client() -> anyhow::Result<Client> {
    let config = Config::infer().await.map_err(whole);
    let config =
        config.context("no API server is configured: set KUBECONFIG, or run in a pod with a service account")?;
    Client::try_from(config).context("cannot set up a client for the API server")
}

/// Each resource takes two descriptors, and the usual limit of 1,024 is for programs that still use `select`.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!("the limit of open files stays at {:?}: {error}", limit.current);
    }
}

/// Ends at SIGINT or SIGTERM.
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM"),
            _ = interrupt.recv() => info!("SIGINT"),
        }
    })
}

/// Prints the table of Instances whenever it is another one, as long as that can be done: the agent runs on in any case.
async fn show(state: PathBuf) {
    let mut shown = None;
    loop {
        let now = instances_of(&state);
        if now != shown {
            match write(&format!("\n{}\n", now.as_deref().unwrap_or("no Instances\n"))) {
                Ok(()) => shown = now,
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return, // whoever read has seen enough
                Err(error) => return warn!("--show ends: cannot write to standard output: {error}"),
            }
        }
        sleep(SHOW).await;
    }
}
