//! The client for the API server.

use akri_cli::output::with_causes;
use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::get::args::SourceArgs;

/// Returns a client for the API server from KUBECONFIG or the pod's service account.
pub(crate) async fn client() -> anyhow::Result<Client> {
    let config = Config::infer().await.map_err(with_causes);
    let config =
        config.context("no API server is configured: set KUBECONFIG, or run in a pod with a service account")?;
    client_of(config)
}

/// Returns a client for the cluster that flags name, or else for that of [`client`].
pub(crate) async fn client_for(SourceArgs { kubeconfig, context, .. }: &SourceArgs) -> anyhow::Result<Client> {
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let config = match kubeconfig {
        None if context.is_none() => return client().await,
        None => Config::from_kubeconfig(&options).await,
        Some(file) => {
            let file = Kubeconfig::read_from(file).map_err(with_causes)?;
            Config::from_custom_kubeconfig(file, &options).await
        }
    };
    client_of(config.map_err(with_causes)?)
}

fn client_of(config: Config) -> anyhow::Result<Client> {
    akri_kube::client::client(config).context("cannot set up a client for the API server")
}
