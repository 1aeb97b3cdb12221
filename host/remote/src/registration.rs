//! The registration service, and the task that serves it.

use std::sync::Arc;
use std::time::Duration;

use akri_grpc::discovery::register_discovery_handler_request::EndpointType;
use akri_grpc::discovery::registration_server::{Registration, RegistrationServer};
use akri_grpc::discovery::{Empty, RegisterDiscoveryHandlerRequest};
use akri_grpc::unix::{OwnSocket, incoming};
use akri_model::remote::{Endpoint, RegistrationRefusal};
use akri_model::text::clean;
use akri_node::watch_dir::WatchDir;
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::time::{Instant, sleep};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tracing::{debug, info, warn};

use crate::endpoints::EndpointRegistry;
use crate::socket::{self, CONNECTIONS, may_register};
use crate::{MAX_MESSAGE, REFUSAL_LOG_INTERVAL, RemoteSettings, SOCKET, SharedByComponent};

/// Limit on a request, in bytes: a name, a path or URL, and their encoding.
const MAX_REQUEST: usize = 16 << 10;

/// Maximum age and grace period of a connection, which is for one call.
const CONNECTION: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(5));

/// Interval of checks whether the socket can be created.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Serves registrations while it is polled; binds a new socket if the first is lost.
pub(super) async fn serve(
    settings: Arc<RemoteSettings>,
    endpoints: EndpointRegistry,
    shared_by_component: SharedByComponent,
) {
    let last_reported = Arc::default();
    let service = Service { settings: Arc::clone(&settings), endpoints, shared_by_component, last_reported };
    let mut expected = String::new();
    loop {
        match socket::bind(&settings.directory, settings.socket_mode()) {
            Ok((socket, listener)) => {
                info!(socket = %settings.directory.join(SOCKET).display(), "discovery handlers can register");
                expected.clear();
                serve_until_lost(&socket, listener, service.clone()).await;
            }
            Err(error) => {
                if error != expected {
                    warn!("remote discovery handlers can't register: {error}");
                }
                expected = error;
            }
        }
        sleep(CHECK_INTERVAL).await;
    }
}

async fn serve_until_lost(socket: &OwnSocket, listener: UnixListener, service: Service) {
    let (age, grace) = CONNECTION;
    let (settings, mut refused) = (Arc::clone(&service.settings), None);
    let mut directory = WatchDir::new(&settings.directory);
    let may_connect = move |stream: &_| may_register(stream, &settings, &mut refused);
    let incoming = incoming(listener, CONNECTIONS, may_connect);
    let service = RegistrationServer::new(service).max_decoding_message_size(MAX_REQUEST);
    let mut server =
        Server::builder().max_connection_age(age).max_connection_age_grace(grace).max_concurrent_streams(16);
    let lost = async {
        while !socket.is_lost() {
            directory.changed().await;
        }
        warn!("the registration socket is lost; binding it again");
    };
    tokio::select! {
        Err(error) = server.add_service(service).serve_with_incoming(incoming) => {
            warn!(%error, "the registration server failed");
        }
        () = lost => {} // open connections end by themselves
    }
}

/// The registration service.
#[derive(Clone)]
struct Service {
    settings: Arc<RemoteSettings>,
    endpoints: EndpointRegistry,
    shared_by_component: SharedByComponent,
    /// The time of the last reported refusal.
    last_reported: Arc<Mutex<Option<Instant>>>,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register_discovery_handler(
        &self,
        request: Request<RegisterDiscoveryHandlerRequest>,
    ) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        match self.register(&request) {
            Ok(is_new) => {
                // A registration is confirmed after it was saved, so the handler need not repeat it when the agent
                // restarts.
                if is_new && !self.endpoints.save().await {
                    return Err(Status::unavailable("the agent can't store the registration; see its log"));
                }
                Ok(Response::new(Empty {}))
            }
            Err(status) => {
                self.report_refusal(&request, &status);
                Err(status)
            }
        }
    }
}

impl Service {
    /// Registers an endpoint; returns whether it must be saved.
    fn register(&self, request: &RegisterDiscoveryHandlerRequest) -> Result<bool, Status> {
        let address = match EndpointType::try_from(request.endpoint_type) {
            Ok(EndpointType::Uds) => self.settings.unix(&request.endpoint),
            Ok(EndpointType::Network) => self.settings.network(&request.endpoint),
            Err(_) => {
                let message = format!("endpoint_type {} is unknown; 0 is UDS, 1 is NETWORK", request.endpoint_type);
                return Err(Status::invalid_argument(message));
            }
        };
        let endpoint = Endpoint { handler: request.name.clone(), address: address? };
        // Remote handlers and the component agree on `shared`, since names of Instances depend on it.
        if (self.shared_by_component)(&endpoint.handler).is_some_and(|by_component| by_component != request.shared) {
            let (handler, shared, other) = (endpoint.handler, request.shared, "the component of that name".to_owned());
            return Err(refused(RegistrationRefusal::SharedDiffers { handler, shared, other }));
        }
        let is_new = self.endpoints.register(endpoint.clone(), request.shared).map_err(refused)?;
        let (handler, endpoint) = (&endpoint.handler, &endpoint.address);
        if is_new {
            info!(handler, %endpoint, shared = request.shared, "discovery handler registered");
        } else {
            debug!(handler, %endpoint, "discovery handler registered again");
        }
        Ok(is_new)
    }

    /// Logs a refusal and keeps its reason for the Configurations that use the handler, at most once a second but for the first.
    fn report_refusal(&self, request: &RegisterDiscoveryHandlerRequest, status: &Status) {
        let mut last = self.last_reported.lock();
        let is_due = last.is_none_or(|last| last.elapsed() >= REFUSAL_LOG_INTERVAL);
        if is_due || self.endpoints.watch().borrow().refusal(&request.name).is_none() {
            self.endpoints.change(|all, _| all.record_refusal(&request.name, status.message().to_owned()));
        }
        if is_due {
            *last = Some(Instant::now());
            let (handler, endpoint) = (clean(&request.name, 64), clean(&request.endpoint, 128));
            warn!(handler, endpoint, "refused: {}", status.message());
        }
    }
}

fn refused(refusal: RegistrationRefusal) -> Status {
    let message = clean(&refusal.to_string(), MAX_MESSAGE);
    match refusal {
        RegistrationRefusal::Name => Status::invalid_argument(message),
        RegistrationRefusal::SharedDiffers { .. } => Status::failed_precondition(message),
        RegistrationRefusal::TooMany | RegistrationRefusal::TooManyOfOneHandler(_) => {
            Status::resource_exhausted(message)
        }
    }
}
