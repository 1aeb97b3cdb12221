//! Asks the kubelet which pod uses which of our devices.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use akri_grpc::podresources::pod_resources_lister_client::PodResourcesListerClient;
use akri_grpc::podresources::{ListPodResourcesRequest, ListPodResourcesResponse};
use akri_model::names::Key;
use tokio::time::timeout;

use super::channel;

/// How long a look may take. The kubelet answers from memory.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer, in bytes; the same as the kubelet's own client takes. It lists all pods with all their CPUs.
const MAX_RESPONSE: usize = 16 << 20;
/// What our resources begin with.
const PREFIX: &str = "akri.sh/";

/// What one container uses of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUse {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
    /// The extended resource, such as `akri.sh/camera-8120fe`.
    pub resource: String,
    /// Device plugin ids as we advertised them, in ascending order.
    pub ids: Vec<String>,
}

/// Which pods there are, and what they use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// All pods of the node that the kubelet knows of.
    pub pods: BTreeSet<Key>,
    /// Uses of resources that begin with `akri.sh/`.
    pub uses: Vec<PodUse>,
}

/// Why a look failed. It says nothing about what is in use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens, or no longer.
    #[error("can't reach the kubelet on {}: {error}", socket.display())]
    Connect {
        /// Where the kubelet should be.
        socket: PathBuf,
        /// What went wrong.
        error: io::Error,
    },
    /// The kubelet answered with an error, or too much.
    #[error("the kubelet did not list pod resources: {}", .0.message())]
    Refused(Box<tonic::Status>),
    /// The kubelet did not answer within 5 s.
    #[error("the kubelet did not list pod resources within {TIMEOUT:?}")]
    Timeout,
}

/// Lists pods and their uses of resources that begin with `akri.sh/`, by the kubelet's PodResources API v1 on
/// `pod-resources/kubelet.sock` below its root directory.
///
/// # Errors
/// If there is no kubelet, or none that answers within 5 s and 16 MiB.
pub async fn list(kubelet_dir: &Path) -> Result<Listed, Error> {
    let socket = kubelet_dir.join("pod-resources").join("kubelet.sock");
    let response = timeout(TIMEOUT, ask(socket)).await.map_err(|_| Error::Timeout)??;
    let pods = response.pod_resources.iter().map(|pod| Key::new(&*pod.namespace, &*pod.name)).collect();
    Ok(Listed { pods, uses: uses(response) })
}

async fn ask(socket: PathBuf) -> Result<ListPodResourcesResponse, Error> {
    let channel = channel::connect(&socket).await.map_err(|error| Error::Connect { socket, error })?;
    let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_RESPONSE);
    let response = client.list(ListPodResourcesRequest {}).await.map_err(|status| Error::Refused(Box::new(status)))?;
    Ok(response.into_inner())
}

/// The devices of one resource come in a group for each set of NUMA nodes; here they are one.
fn uses(response: ListPodResourcesResponse) -> Vec<PodUse> {
    let mut all = Vec::new();
    for pod in response.pod_resources {
        for container in pod.containers {
            let mut by_resource: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for devices in container.devices.into_iter().filter(|devices| devices.resource_name.starts_with(PREFIX)) {
                by_resource.entry(devices.resource_name).or_default().extend(devices.device_ids);
            }
            all.extend(by_resource.into_iter().map(|(resource, mut ids)| {
                ids.sort_unstable();
                let (namespace, pod, container) = (pod.namespace.clone(), pod.name.clone(), container.name.clone());
                PodUse { namespace, pod, container, resource, ids }
            }));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use akri_grpc::podresources::{ContainerDevices, ContainerResources, PodResources};

    use super::*;

    fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
        let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        ContainerDevices { resource_name: resource.into(), device_ids, topology: None }
    }

    #[test]
    fn only_our_resources_are_listed_and_groups_of_one_resource_are_joined() {
        let container = ContainerResources {
            name: "c".into(),
            devices: vec![
                devices("akri.sh/b", &["2"]),
                devices("nvidia.com/gpu", &["0"]),
                devices("akri.sh/a", &["0"]),
                devices("akri.sh/b", &["1"]),
                devices("akri.sha/b", &["1"]),
            ],
            ..ContainerResources::default()
        };
        let pod = PodResources { name: "p".into(), namespace: "n".into(), containers: vec![container] };
        let listed = uses(ListPodResourcesResponse { pod_resources: vec![pod, PodResources::default()] });
        let of = |resource: &str, ids: &[&str]| PodUse {
            namespace: "n".into(),
            pod: "p".into(),
            container: "c".into(),
            resource: resource.into(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        assert_eq!(listed, [of("akri.sh/a", &["0"]), of("akri.sh/b", &["1", "2"])]);
    }

    #[tokio::test]
    async fn a_kubelet_that_is_not_there_is_an_error_and_not_an_empty_list() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(list(dir.path()).await, Err(Error::Connect { .. })));
    }
}
