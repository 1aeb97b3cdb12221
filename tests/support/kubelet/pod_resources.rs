//! The PodResources service, v1.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use akri_grpc::podresources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use akri_grpc::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::state::State;
use super::view::View;

/// The namespace of all pods.
const NAMESPACE: &str = "default";

pub(super) fn serve(socket: &Path, state: Arc<State>) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let server = tonic::transport::Server::builder().add_service(PodResourcesListerServer::new(Lister(state)));
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    Ok(())
}

struct Lister(Arc<State>);

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.0.change(|state| state.view.polls += 1);
        let view = &self.0.lock().view;
        if view.failing_list > 0 && view.polls.is_multiple_of(view.failing_list) {
            return Err(Status::unavailable("once in a while"));
        }
        Ok(Response::new(list(view)))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        self.0.change(|state| state.view.allocatable_answers += 1);
        let state = self.0.lock();
        let devices = state.view.resources.iter().map(|(name, resource)| devices(name, resource.healthy.iter()));
        Ok(Response::new(AllocatableResourcesResponse { devices: devices.collect(), ..Default::default() }))
    }
}

/// Lists pods without init containers, as the kubelet does.
fn list(view: &View) -> ListPodResourcesResponse {
    let mut pods: BTreeMap<&str, BTreeMap<&str, Vec<ContainerDevices>>> = BTreeMap::new();
    for ((pod, container, resource), admitted) in &view.pods {
        let containers = pods.entry(pod).or_default();
        if !admitted.init {
            containers.entry(container).or_default().push(devices(resource, admitted.ids.iter()));
        }
    }
    for (pod, container) in &view.bare {
        pods.entry(pod).or_default().entry(container).or_default();
    }
    let container = |(name, devices): (&str, Vec<ContainerDevices>)| ContainerResources {
        name: name.to_owned(),
        devices,
        ..ContainerResources::default()
    };
    let pod = |(name, containers): (&str, BTreeMap<&str, Vec<ContainerDevices>>)| PodResources {
        name: name.to_owned(),
        namespace: NAMESPACE.to_owned(),
        containers: containers.into_iter().map(container).collect(),
    };
    ListPodResourcesResponse { pod_resources: pods.into_iter().map(pod).collect() }
}

fn devices<'i>(resource: &str, ids: impl Iterator<Item = &'i String>) -> ContainerDevices {
    ContainerDevices { resource_name: resource.to_owned(), device_ids: ids.cloned().collect(), topology: None }
}
