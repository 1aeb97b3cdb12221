//! Remote discovery handlers: processes that register on a Unix socket and stream their devices (rule 31).
//!
//! Handlers for upstream Akri keep working: `proto/discovery.proto` is the same. Their messages are trusted as little
//! as the results of a component.

mod codec;
mod convert;
mod decoding_permits;
mod dial;
mod endpoint_file;
mod endpoints;
mod registration;
mod socket;
mod stream;
mod trust;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use akri_model::device::Device;
use akri_model::grant::{Grants, Limits};
use akri_model::remote::Endpoints;
use ipnet::IpNet;
use tokio::sync::watch;
use tokio::task::JoinSet;

use decoding_permits::DecodingPermits;
pub use endpoint_file::read_remote_handlers;
use endpoints::EndpointRegistry;
pub use stream::EndpointStream;

/// The socket on which handlers register, in the handler directory.
const SOCKET: &str = "agent-registration.sock";

/// The paths that remote handlers may report by default: serial ports, video, input, sound and USB.
pub const DEVICE_PATHS: [&str; 13] = [
    "/dev/bus/usb/**",
    "/dev/hidraw*",
    "/dev/input/**",
    "/dev/media*",
    "/dev/serial/**",
    "/dev/snd/**",
    "/dev/ttyACM*",
    "/dev/ttyAMA*",
    "/dev/ttyS*",
    "/dev/ttyUSB*",
    "/dev/ttymxc*",
    "/dev/v4l/**",
    "/dev/video*",
];

/// Maximum length of a refusal's message, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Shortest interval between logged refusals; every refusal is returned to the caller.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The settings of remote handlers: who may serve them, and how far they are trusted.
#[derive(Debug, Clone)]
pub struct RemoteSettings {
    /// The handler directory: it contains the registration socket and the sockets of handlers.
    pub directory: PathBuf,
    /// Users that may register and serve, in addition to root and the agent's own.
    pub users: Vec<u32>,
    /// Networks in which handlers may register addresses. Requests, including secrets, are sent there unencrypted.
    pub networks: Vec<IpNet>,
    /// Paths of the node that handlers may report in mounts and device specs, as in grants.
    pub paths: Vec<String>,
    /// Set if handlers may report any path of the node, as upstream Akri's may.
    pub trust_paths: bool,
    /// Time that an endpoint may be offline, or silent on a new stream, before its devices become `Unknown`.
    pub offline_timeout: Duration,
}

impl RemoteSettings {
    /// Returns the mode of the registration socket. The kernel decides who may connect, unless users are allowed that
    /// could not open the socket.
    fn socket_mode(&self) -> u32 {
        if self.users.is_empty() { 0o660 } else { 0o666 }
    }

    fn grants(&self) -> Grants {
        let (device_paths, mount_paths) = (self.paths.clone(), self.paths.clone());
        Grants { device_paths, mount_paths, any_path: self.trust_paths, ..Grants::default() }
    }
}

/// Returns whether the component handler of a name reports shared devices; `None` if there is no such component. Remote
/// handlers of the same name must agree, since the names of Instances depend on it.
pub type SharedByComponent = Arc<dyn Fn(&str) -> Option<bool> + Send + Sync>;

/// The remote handlers of this node; cheap to clone.
#[derive(Clone)]
pub struct Remote(Arc<Inner>);

struct Inner {
    settings: Arc<RemoteSettings>,
    endpoints: EndpointRegistry,
    limits: Limits,
    /// The grants of remote handlers.
    grants: Grants,
    decoding: DecodingPermits,
}

impl Remote {
    /// Restores known handlers and starts to accept registrations. If the socket can't be created, that is logged and
    /// retried; the rest of the agent works without it. The registration socket is removed when the tasks end.
    pub fn start(
        settings: RemoteSettings,
        state: &Path,
        shared_by_component: SharedByComponent,
    ) -> (Self, JoinSet<()>) {
        let (settings, endpoints) = (Arc::new(settings), EndpointRegistry::new(state));
        endpoint_file::restore(state, &settings, &endpoints);
        let remote = Self(Arc::new(Inner {
            settings: Arc::clone(&settings),
            endpoints: endpoints.clone(),
            limits: Limits::default(),
            grants: settings.grants(),
            decoding: DecodingPermits::default(),
        }));
        let mut tasks = JoinSet::new();
        tasks.spawn(endpoints.clone().run(settings.offline_timeout));
        tasks.spawn(registration::serve(settings, endpoints, shared_by_component));
        (remote, tasks)
    }

    /// Returns all endpoints, and every change.
    pub fn endpoints(&self) -> watch::Receiver<Arc<Endpoints>> {
        self.0.endpoints.watch()
    }

    /// Removes the endpoints of a handler that differ from its component in `shared`: names of Instances depend on it.
    pub fn remove_differing(&self, handler: &str, shared: bool) {
        self.0.endpoints.remove_differing(handler, shared);
    }

    /// Returns the reason why a remote handler may not give a device to a container, if any; `None` if none of that name is known.
    pub fn refusal(&self, handler: &str, device: &Device) -> Option<Option<String>> {
        let is_known = self.endpoints().borrow().of(handler).next().is_some();
        is_known.then(|| self.0.refusal(device))
    }

    /// Returns how long a new stream may be silent.
    pub fn offline_timeout(&self) -> Duration {
        self.0.settings.offline_timeout
    }

    /// Returns the path of the registration socket.
    pub fn socket(&self) -> PathBuf {
        self.0.settings.directory.join(SOCKET)
    }
}
