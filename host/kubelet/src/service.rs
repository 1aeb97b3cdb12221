//! The gRPC service of one resource.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use akri_grpc::deviceplugin as proto;
use akri_grpc::deviceplugin::device_plugin_server::DevicePlugin;
use futures::Stream;
use futures::stream::unfold;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use crate::convert;
use crate::lists::Streams;
use crate::resource::Resource;

/// Time limit of a call, for resources that exceed their own budget of 2 s (rule 7). When it expires, or the kubelet
/// cancels the call, the call is dropped, and the resource undoes the claims made for it.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_millis(2500);

/// Serves a [`Resource`] to the kubelet.
pub(super) struct Service {
    pub(super) resource: Arc<dyn Resource>,
    pub(super) streams: Arc<Streams>,
    /// The time limit of a call: [`CALL_TIMEOUT`].
    pub(super) limit: Duration,
}

impl Service {
    async fn within<T>(&self, call: impl Future<Output = T>) -> Result<T, Status> {
        timeout(self.limit, call).await.map_err(|_| Status::deadline_exceeded("the agent took too long"))
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<proto::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<proto::Empty>,
    ) -> Result<Response<proto::DevicePluginOptions>, Status> {
        Ok(Response::new(convert::options()))
    }

    async fn list_and_watch(&self, _: Request<proto::Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let lists = self.streams.open(self.resource.advertised());
        let stream = unfold(lists, |mut lists| async {
            let list = lists.next().await?;
            Some((Ok(list), lists))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<proto::PreferredAllocationRequest>,
    ) -> Result<Response<proto::PreferredAllocationResponse>, Status> {
        // With an empty response the kubelet chooses by itself; an error would fail the pod.
        let preferred = match convert::preferences(request.into_inner()) {
            Ok(containers) => self.within(self.resource.preferred(containers)).await.unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        Ok(Response::new(convert::preferred(preferred)))
    }

    async fn allocate(
        &self,
        request: Request<proto::AllocateRequest>,
    ) -> Result<Response<proto::AllocateResponse>, Status> {
        let containers = convert::containers(request.into_inner())?;
        let edits = self.within(self.resource.allocate(containers)).await?.map_err(convert::status)?;
        Ok(Response::new(convert::allocated(edits)))
    }

    async fn pre_start_container(
        &self,
        request: Request<proto::PreStartContainerRequest>,
    ) -> Result<Response<proto::PreStartContainerResponse>, Status> {
        let ids = convert::prestart_ids(request.into_inner())?;
        if self.within(self.resource.holds(ids)).await? {
            Ok(Response::new(proto::PreStartContainerResponse {}))
        } else {
            Err(Status::not_found("not all of these devices are claimed here"))
        }
    }
}

#[cfg(test)]
mod tests {
    use akri_model::claim_machine::Refusal;
    use akri_model::edits::ContainerEdits;
    use async_trait::async_trait;
    use tokio::sync::watch;
    use tonic::Code;

    use super::*;
    use crate::allocatable::KeptDevices;
    use crate::resource::AdvertisedDevices;
    use akri_model::claim_machine::Preference;

    /// A resource that never responds.
    struct Stuck(watch::Sender<AdvertisedDevices>);

    #[async_trait]
    impl Resource for Stuck {
        fn name(&self) -> &str {
            "akri.sh/stuck"
        }

        fn advertised(&self) -> watch::Receiver<AdvertisedDevices> {
            self.0.subscribe()
        }

        async fn allocate(&self, _: Vec<Vec<String>>) -> Result<Vec<ContainerEdits>, Refusal> {
            std::future::pending().await
        }

        async fn preferred(&self, _: Vec<Preference>) -> Vec<Vec<String>> {
            std::future::pending().await
        }

        async fn holds(&self, _: Vec<String>) -> bool {
            std::future::pending().await
        }
    }

    #[tokio::test] // rule 7
    async fn stuck_resource_does_not_block_the_kubelet() {
        let resource = Arc::new(Stuck(watch::Sender::new(AdvertisedDevices::default())));
        let kept = Arc::new(KeptDevices::new("/nonexistent".into()));
        let streams = Streams::new("akri.sh/stuck", kept);
        let service = Service { resource, streams: Arc::new(streams), limit: Duration::from_millis(1) };
        let allocate = service.allocate(Request::new(proto::AllocateRequest::default())).await;
        assert_eq!(allocate.unwrap_err().code(), Code::DeadlineExceeded);
        let start = service.pre_start_container(Request::new(proto::PreStartContainerRequest::default())).await;
        assert_eq!(start.unwrap_err().code(), Code::DeadlineExceeded);
        let preferred = service.get_preferred_allocation(Request::new(proto::PreferredAllocationRequest::default()));
        assert_eq!(preferred.await.unwrap().into_inner().container_responses, []);
    }
}
