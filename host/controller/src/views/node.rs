//! A Node as the controller keeps it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

/// The taint by which an administrator says that nothing runs on a node any more.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A Node.
#[derive(Debug, PartialEq)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) is_out_of_service: bool,
}

impl NodeView {
    /// Reads a Node.
    pub(crate) fn of(node: &Node) -> Self {
        Self { name: node.name_any(), labels: node.labels().clone(), is_out_of_service: is_out_of_service(node) }
    }
}

/// Returns whether an administrator says that nothing runs on a node any more.
pub(crate) fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
}
