//! The Registration service, and the connection to each plugin that registers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use akri_grpc::deviceplugin::device_plugin_client::DevicePluginClient;
use akri_grpc::deviceplugin::registration_server::{Registration, RegistrationServer};
use akri_grpc::deviceplugin::{Empty, RegisterRequest};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::dial::dial;
use super::state::State;
use super::{Authority, Options};

/// Time in which a kubelet before late 2025 notices the end of a connection, at worst.
const LATE: Duration = Duration::from_millis(300);

pub(super) fn serve(socket: &Path, options: Options, state: Arc<State>) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let service = Service { dir: socket.parent().unwrap().to_owned(), options, state };
    let server = tonic::transport::Server::builder().add_service(RegistrationServer::new(service));
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    Ok(())
}

#[derive(Clone)]
struct Service {
    dir: PathBuf,
    options: Options,
    state: Arc<State>,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        if self.state.change(|state| state.refuses()) {
            return Err(Status::unknown("the test kubelet refuses registrations"));
        }
        if request.version != "v1beta1" {
            return Err(Status::unknown(format!("requested API version {:?} is not supported", request.version)));
        }
        if !is_extended_resource(&request.resource_name) {
            return Err(Status::unknown(format!("the ResourceName {:?} is invalid", request.resource_name)));
        }
        match self.options.authority {
            Authority::Localhost => self.connect(request).await?,
            Authority::Path => {
                let service = self.clone();
                tokio::spawn(async move { service.connect(request).await });
            }
        }
        Ok(Response::new(Empty {}))
    }
}

impl Service {
    async fn connect(&self, request: RegisterRequest) -> Result<(), Status> {
        let RegisterRequest { endpoint: socket, resource_name: resource, options, .. } = request;
        let channel = dial(&self.dir.join(&socket), self.options.authority).await?;
        let mut client = DevicePluginClient::new(channel);
        let options = match self.options.authority {
            Authority::Localhost => client.get_device_plugin_options(Empty {}).await?.into_inner(),
            Authority::Path => options.unwrap_or_default(),
        };
        self.state.change(|state| state.connected(&resource, &socket, client.clone(), options));
        self.state.save_soon();
        tokio::spawn(self.clone().run(resource, socket, client));
        Ok(())
    }

    /// Follows the list until the stream ends.
    async fn run(self, resource: String, socket: String, mut client: DevicePluginClient<Channel>) {
        if let Ok(lists) = client.list_and_watch(Empty {}).await {
            let mut lists = lists.into_inner();
            while let Ok(Some(list)) = lists.message().await {
                self.state.change(|state| state.listed(&resource, list));
                self.state.save_soon();
            }
        }
        let late = self.options.late_disconnect;
        if late {
            tokio::time::sleep(LATE).await;
        }
        self.state.change(|state| state.disconnected(&resource, &socket, late));
    }
}

/// Checks resource names like `IsExtendedResourceName`, in part: `domain/name`, not a Kubernetes domain, and at most 63
/// characters in the name.
fn is_extended_resource(name: &str) -> bool {
    let part = |text: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        edge(text.chars().next()) && edge(text.chars().last()) && text.chars().all(inner)
    };
    name.split_once('/').is_some_and(|(domain, name)| {
        !domain.contains("kubernetes.io") && part(domain) && part(name) && name.len() <= 63
    })
}
