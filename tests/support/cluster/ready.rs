//! Readiness checks of the cluster's components.

use std::path::Path;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use super::programs;

/// The first version whose pods need no Secret with a token.
const PROJECTED_TOKENS: u32 = 21;

/// Returns a client for a kubeconfig. It belongs to the runtime it is created in.
pub(super) async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Returns whether the API server is ready.
pub(super) fn api_answers(kubeconfig: &Path) -> anyhow::Result<()> {
    ask(kubeconfig, async |client| {
        client.request_text(http::Request::get("/readyz").body(Vec::new())?).await?;
        Ok(())
    })
}

/// Returns whether the controller manager has created the default service account.
pub(super) fn service_accounts_work(kubeconfig: &Path) -> anyhow::Result<()> {
    ask(kubeconfig, async |client| {
        let account = Api::<ServiceAccount>::namespaced(client, "default").get("default").await?;
        let needs_token = programs::current().minor < PROJECTED_TOKENS;
        ensure!(account.secrets.is_some() || !needs_token, "the default service account has no token");
        Ok(())
    })
}

/// Returns whether a node is ready.
pub(super) fn node_is_ready(kubeconfig: &Path, name: &str) -> anyhow::Result<()> {
    ask(kubeconfig, async |client| {
        let node = Api::<Node>::all(client).get(name).await?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready =
            conditions.into_iter().find(|condition| condition.type_ == "Ready").context("nothing is known yet")?;
        ensure!(ready.status == "True", "{}", ready.message.unwrap_or_default());
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        ensure!(taints.is_empty(), "it still has the taint {}", taints[0].key);
        Ok(())
    })
}

/// Runs a request in a separate runtime, since a story may wait in another one.
pub(super) fn ask(
    kubeconfig: &Path,
    question: impl AsyncFn(Client) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async { question(client(kubeconfig).await?).await })
        });
        asked.join().unwrap_or_else(|_| Err(anyhow::anyhow!("asking failed")))
    })
}
