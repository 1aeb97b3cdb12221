//! A client of the kubelet's PodResources API: which pod uses which device.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use akri_grpc::podresources::pod_resources_lister_client::PodResourcesListerClient;
use akri_grpc::podresources::{
    AllocatableResourcesRequest, ContainerDevices, ListPodResourcesRequest, ListPodResourcesResponse,
};
use akri_grpc::unix::connect;
use akri_model::reclaim::{ContainerName, Users};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status};

/// Timeout of a request. The kubelet answers from memory.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit on a response, in bytes; the kubelet's own client has the same. It lists all pods with all their CPUs.
const MAX_RESPONSE: usize = 16 << 20;

/// The containers of a node, and their uses of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerList {
    /// All containers of pods known to the kubelet.
    pub containers: BTreeSet<ContainerName>,
    /// Containers without any device, of whichever plugin.
    pub without_devices: BTreeSet<ContainerName>,
    /// Uses of the requested resources.
    pub users: Users<ContainerName>,
}

/// The healthy devices of each resource, whether in use or not.
pub type Allocatable = BTreeMap<String, BTreeSet<String>>;

/// Lists containers and their uses of resources whose names begin with `prefix`, by the kubelet's PodResources API v1 on
/// `pod-resources/kubelet.sock` below its root directory.
///
/// # Errors
/// If there is no kubelet, or it does not answer within 5 s and 16 MiB.
pub async fn list(kubelet_dir: &Path, prefix: &str) -> Result<ContainerList, String> {
    let request = async { client(kubelet_dir).await?.list(ListPodResourcesRequest {}).await.map_err(refused) };
    Ok(listed(answer(request).await?, prefix))
}

/// Returns the healthy devices of all resources, by `GetAllocatableResources` of the same API.
///
/// # Errors
/// As [`list`], and if the kubelet is older than 1.23, which does not offer it.
pub async fn allocatable(kubelet_dir: &Path) -> Result<Allocatable, String> {
    let request = async {
        let mut client = client(kubelet_dir).await?;
        client.get_allocatable_resources(AllocatableResourcesRequest {}).await.map_err(refused)
    };
    let mut all = Allocatable::new();
    for ContainerDevices { resource_name, device_ids, .. } in answer(request).await?.devices {
        all.entry(resource_name).or_default().extend(device_ids); // one entry for each NUMA node
    }
    Ok(all)
}

/// Returns the answer to a request, unless it takes too long.
async fn answer<T>(request: impl Future<Output = Result<Response<T>, String>>) -> Result<T, String> {
    let late = |_| format!("the kubelet did not list pod resources within {TIMEOUT:?}");
    Ok(timeout(TIMEOUT, request).await.map_err(late)??.into_inner())
}

async fn client(kubelet_dir: &Path) -> Result<PodResourcesListerClient<Channel>, String> {
    let socket = kubelet_dir.join("pod-resources").join("kubelet.sock");
    let unreachable = |error| format!("can't reach the kubelet on {}: {error}", socket.display());
    let channel = connect(&socket).await.map_err(unreachable)?;
    Ok(PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_RESPONSE))
}

fn refused(status: Status) -> String {
    format!("the kubelet did not list pod resources: {}", status.message())
}

/// Returns the users of each ID. The kubelet groups the devices of a resource by NUMA nodes; the groups are joined.
fn listed(response: ListPodResourcesResponse, prefix: &str) -> ContainerList {
    let mut list = ContainerList::default();
    for pod in response.pod_resources {
        for container in pod.containers {
            let (namespace, pod) = (pod.namespace.clone(), pod.name.clone());
            let name = ContainerName { namespace, pod, container: container.name };
            if container.devices.iter().all(|devices| devices.device_ids.is_empty()) {
                list.without_devices.insert(name.clone());
            }
            for devices in container.devices.into_iter().filter(|devices| devices.resource_name.starts_with(prefix)) {
                let ids = list.users.entry(devices.resource_name).or_default();
                for id in devices.device_ids {
                    ids.entry(id).or_default().insert(name.clone());
                }
            }
            list.containers.insert(name);
        }
    }
    list
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
    fn only_our_resources_are_listed_and_groups_joined() {
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
        let devices = vec![devices("nvidia.com/gpu", &["1"])];
        let of_others = ContainerResources { name: "d".into(), devices, ..ContainerResources::default() };
        let without = ContainerResources { name: "e".into(), ..ContainerResources::default() };
        let containers = vec![container, of_others, without];
        let pod = PodResources { name: "p".into(), namespace: "n".into(), containers };
        let list = listed(ListPodResourcesResponse { pod_resources: vec![pod, PodResources::default()] }, "akri.sh/");
        let name =
            |container: &str| ContainerName { namespace: "n".into(), pod: "p".into(), container: container.into() };
        let of = |resource: &str, ids: &[&str]| {
            (resource.to_owned(), ids.iter().map(|id| ((*id).to_owned(), [name("c")].into())).collect())
        };
        assert_eq!(list.users, [of("akri.sh/a", &["0"]), of("akri.sh/b", &["1", "2"])].into());
        assert_eq!(list.containers, [name("c"), name("d"), name("e")].into());
        assert_eq!(list.without_devices, [name("e")].into());
    }

    #[tokio::test] // rule 19
    async fn absent_kubelet_is_an_error_and_not_an_empty_list() {
        let dir = tempfile::tempdir().unwrap();
        let error = list(dir.path(), "akri.sh/").await.unwrap_err().to_string();
        assert!(error.starts_with("can't reach the kubelet on "), "{error}");
    }
}
