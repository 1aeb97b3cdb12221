//! The service with which handlers register, and the task that keeps it up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use akri_grpc::discovery::register_discovery_handler_request::EndpointType;
use akri_grpc::discovery::registration_server::{Registration, RegistrationServer};
use akri_grpc::discovery::{Empty, RegisterDiscoveryHandlerRequest};
use akri_model::remote::{Endpoint, Refusal};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tracing::{debug, info, warn};

use super::convert::clean;
use super::dial::is_dead;
use super::endpoints::Shared;
use super::socket::{self, OwnSocket};
use super::trust::{Trust, Untrusted};
use super::{QUIET, SOCKET, Settings};
use crate::discovery::registry::Handlers;

/// Largest request, in bytes: a name, a path or URL, and what surrounds them.
const MAX_REQUEST: usize = 16 << 10;

/// Most bytes of what is said of a refusal.
const MAX_MESSAGE: usize = 1024;

/// A connection is for one call. Who holds it longer is asked to make another one, and then hung up on.
const CONNECTION: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(5));

/// How often to look whether the socket is still there, and whether it can be made now.
const LOOK: Duration = Duration::from_secs(2);

/// Serves registrations for as long as it is polled: with a new socket if the first is lost.
pub(super) async fn serve(settings: Settings, service: Service) {
    let mode = settings.socket_mode();
    let mut told = String::new();
    loop {
        match socket::bind(&settings.directory, mode).await {
            Ok((socket, listener)) => {
                info!(socket = %settings.directory.join(SOCKET).display(), "discovery handlers can register");
                told.clear();
                serve_until_lost(&socket, listener, service.clone()).await;
            }
            Err(error) => {
                let error = error.to_string();
                if error != told {
                    warn!("remote discovery handlers can't register: {error}");
                }
                told = error;
            }
        }
        sleep(LOOK).await;
    }
}

async fn serve_until_lost(socket: &OwnSocket, listener: UnixListener, service: Service) {
    let (age, grace) = CONNECTION;
    let incoming = socket::incoming(listener, Arc::clone(&service.trust));
    let service = RegistrationServer::new(service).max_decoding_message_size(MAX_REQUEST);
    let mut server =
        Server::builder().max_connection_age(age).max_connection_age_grace(grace).max_concurrent_streams(16);
    let lost = async {
        while !socket.lost() {
            sleep(LOOK).await;
        }
        warn!("the registration socket is gone; making it anew");
    };
    tokio::select! {
        Err(error) = server.add_service(service).serve_with_incoming(incoming) => {
            warn!(%error, "the registration server failed");
        }
        () = lost => {} // connections that are there end by themselves
    }
}

/// Takes registrations.
#[derive(Clone)]
pub(super) struct Service {
    trust: Arc<Trust>,
    endpoints: Shared,
    /// Components of the same name have to agree with them.
    components: watch::Receiver<Arc<Handlers>>,
    /// When a refusal was last logged.
    complained: Arc<Mutex<Option<Instant>>>,
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
                // A handler that is told that it is registered need not do so again, whatever happens to the agent.
                if is_new {
                    self.endpoints.save().await;
                }
                Ok(Response::new(Empty {}))
            }
            Err(error) => {
                self.complain(&request, &error);
                Err(error.into())
            }
        }
    }
}

impl Service {
    pub(super) fn new(trust: Arc<Trust>, endpoints: Shared, components: watch::Receiver<Arc<Handlers>>) -> Self {
        Self { trust, endpoints, components, complained: Arc::default() }
    }

    /// Says whether there is something to remember.
    fn register(&self, request: &RegisterDiscoveryHandlerRequest) -> Result<bool, Refused> {
        let address = match EndpointType::try_from(request.endpoint_type) {
            Ok(EndpointType::Uds) => self.trust.unix(&request.endpoint)?,
            Ok(EndpointType::Network) => self.trust.network(&request.endpoint)?,
            Err(_) => return Err(Refused::EndpointType(request.endpoint_type)),
        };
        let endpoint = Endpoint { handler: request.name.clone(), address };
        self.agree(&endpoint, request.shared)?;
        let is_new = self.endpoints.register(endpoint.clone(), request.shared, is_dead)?;
        let (handler, endpoint) = (&endpoint.handler, &endpoint.address);
        if is_new {
            info!(handler, %endpoint, shared = request.shared, "discovery handler registered");
        } else {
            debug!(handler, %endpoint, "discovery handler registered again");
        }
        Ok(is_new)
    }

    /// Instances are named after whether their devices are shared.
    fn agree(&self, endpoint: &Endpoint, shared: bool) -> Result<(), Refusal> {
        let components = self.components.borrow();
        match components.ready.get(&endpoint.handler) {
            Some(component) if component.shared != shared => {
                let other = "the component of that name".to_owned();
                Err(Refusal::SharedDiffers { handler: endpoint.handler.clone(), shared, other })
            }
            _ => Ok(()),
        }
    }

    fn complain(&self, request: &RegisterDiscoveryHandlerRequest, error: &Refused) {
        let mut last = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= QUIET) {
            *last = Some(Instant::now());
            let (handler, endpoint) = (clean(&request.name, 64), clean(&request.endpoint, 128));
            warn!(handler, endpoint, "refused: {}", clean(&error.to_string(), MAX_MESSAGE));
        }
    }
}

/// Why a registration is refused.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("endpoint_type {0} is unknown; 0 is UDS, 1 is NETWORK")]
    EndpointType(i32),
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    #[error(transparent)]
    Refusal(#[from] Refusal),
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        let message = clean(&refused.to_string(), MAX_MESSAGE);
        match refused {
            Refused::EndpointType(_)
            | Refused::Untrusted(Untrusted::Path(_) | Untrusted::Url(_))
            | Refused::Refusal(Refusal::Name) => Self::invalid_argument(message),
            Refused::Untrusted(_) => Self::permission_denied(message),
            Refused::Refusal(Refusal::SharedDiffers { .. }) => Self::failed_precondition(message),
            Refused::Refusal(Refusal::TooMany | Refusal::TooManyOfOneHandler(_)) => Self::resource_exhausted(message),
        }
    }
}
