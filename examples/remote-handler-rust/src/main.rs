//! A discovery handler as a process of its own: each file in a directory is a device. The directory is what a Configuration
//! says in `discoveryDetails`. Run it beside the agent:
//!
//! ```sh
//! DISCOVERY_HANDLERS_DIRECTORY=/var/lib/akri remote-handler files
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, error, fs};

use proto::discovery_handler_server::{DiscoveryHandler, DiscoveryHandlerServer};
use proto::register_discovery_handler_request::EndpointType;
use proto::registration_client::RegistrationClient;
use proto::{Device, DiscoverRequest, DiscoverResponse, RegisterDiscoveryHandlerRequest};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

mod proto {
    tonic::include_proto!("v0");
}

const PAUSE: Duration = Duration::from_millis(200);

struct Handler;

#[tonic::async_trait]
impl DiscoveryHandler for Handler {
    type DiscoverStream = ReceiverStream<Result<DiscoverResponse, Status>>;

    /// Streams the full list whenever it changes, until the agent closes the stream.
    async fn discover(&self, request: Request<DiscoverRequest>) -> Result<Response<Self::DiscoverStream>, Status> {
        let directory = PathBuf::from(request.into_inner().discovery_details.trim());
        if !directory.is_absolute() {
            return Err(Status::invalid_argument(format!("'{}' is not an absolute path", directory.display())));
        }
        let (messages, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut sent = None;
            while timeout(PAUSE, messages.closed()).await.is_err() {
                let devices = list_devices(&directory);
                if sent.as_ref() != Some(&devices) {
                    let _ = messages.send(Ok(DiscoverResponse { devices: devices.clone() })).await; // or it hung up
                    sent = Some(devices);
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

fn list_devices(directory: &Path) -> Vec<Device> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let device =
        |name: String| Device { properties: [("FILE".to_owned(), name.clone())].into(), id: name, ..Device::default() };
    names.into_iter().map(device).collect()
}

/// Registers the handler. The agent stores the registration, so once is enough.
async fn register(directory: &Path, name: String, socket: &Path) -> Result<(), Box<dyn error::Error>> {
    let agent = Endpoint::from_shared(format!("unix://{}/agent-registration.sock", directory.display()))?;
    let channel = loop {
        match agent.connect().await {
            Ok(channel) => break channel,
            Err(_) => sleep(PAUSE).await, // the agent does not run yet
        }
    };
    let endpoint = socket.display().to_string();
    let endpoint_type = EndpointType::Uds.into();
    let request = RegisterDiscoveryHandlerRequest { name, endpoint, endpoint_type, shared: false };
    RegistrationClient::new(channel).register_discovery_handler(request).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn error::Error>> {
    let name = env::args().nth(1).unwrap_or_else(|| "files".to_owned());
    let directory = env::var_os("DISCOVERY_HANDLERS_DIRECTORY").unwrap_or_else(|| "/var/lib/akri".into());
    let directory = PathBuf::from(directory);
    let socket = directory.join(format!("{name}.sock")); // by this name the agent finds it even if it has lost its memory
    let _ = fs::remove_file(&socket); // of the process before
    let listener = UnixListenerStream::new(UnixListener::bind(&socket)?);
    let serving = Server::builder().add_service(DiscoveryHandlerServer::new(Handler)).serve_with_incoming(listener);
    tokio::try_join!(async { Ok(serving.await?) }, register(&directory, name, &socket))?;
    Ok(())
}
