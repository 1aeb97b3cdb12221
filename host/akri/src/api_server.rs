//! The client for the API server.

use akri_cli::output::with_causes;
use anyhow::Context as _;
use kube::{Client, Config};

/// Returns a client for the API server from KUBECONFIG or the pod's service account.
pub(crate) async fn client() -> anyhow::Result<Client> {
    let config = Config::infer().await.map_err(with_causes);
    let config =
        config.context("no API server is configured: set KUBECONFIG, or run in a pod with a service account")?;
    akri_kube::client::client(config).context("cannot set up a client for the API server")
}
