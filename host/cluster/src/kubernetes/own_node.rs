//! The Node object of this node, of which its presence counts (rule 100), and its labels (rule 126).

use akri_kube::watch::{Change, FirstList, Restores, WatchSource, watch_objects};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Config;
use tokio::sync::watch;

use super::manifests::Assembler;

/// Watches it.
pub(super) async fn watch(
    client: Client,
    node: String,
    restores: Restores,
    is_missing: watch::Sender<bool>,
    assembler: Assembler,
) {
    let config = Config::default().fields(&format!("metadata.name={node}"));
    let read = |node: PartialObjectMeta<Node>| Some(node.metadata.labels.unwrap_or_default());
    let source = WatchSource::new(Api::all(client), config, "the Node of this agent", FirstList::Consistent, read);
    let source = WatchSource { restores, ..source };
    watch_objects(source, move |change| {
        let labels = match change {
            Change::All(nodes) => nodes.into_iter().next(),
            Change::Put(labels) => Some(labels),
            Change::Deleted(_) => None,
        };
        is_missing.send_replace(labels.is_none());
        assembler.labels(labels);
    })
    .await;
}
