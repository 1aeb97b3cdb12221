//! debugEcho as a separate process on the Unix socket given as argument, for comparison with the component.

use akri_grpc::discovery::discovery_handler_server::{DiscoveryHandler, DiscoveryHandlerServer};
use akri_grpc::discovery::{Device, DiscoverRequest, DiscoverResponse};
use serde_json::Value;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

struct Echo;

#[tonic::async_trait]
impl DiscoveryHandler for Echo {
    type DiscoverStream = ReceiverStream<Result<DiscoverResponse, Status>>;

    async fn discover(&self, request: Request<DiscoverRequest>) -> Result<Response<Self::DiscoverStream>, Status> {
        let details: Value = serde_json::from_str(&request.into_inner().discovery_details)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let descriptions = details["descriptions"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let devices = descriptions.map(|description| Device {
            id: description.to_owned(),
            properties: [("DEBUG_ECHO_DESCRIPTION".to_owned(), description.to_owned())].into(),
            ..Device::default()
        });
        let (messages, stream) = mpsc::channel(1);
        let sent = messages.try_send(Ok(DiscoverResponse { devices: devices.collect() }));
        sent.map_err(|error| Status::internal(error.to_string()))?;
        tokio::spawn(async move { messages.closed().await }); // the stream stays open until the caller hangs up
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

#[tokio::main]
async fn main() {
    let socket = std::env::args().nth(1).expect("the path of a socket");
    let listener = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    Server::builder().add_service(DiscoveryHandlerServer::new(Echo)).serve_with_incoming(listener).await.unwrap();
}
