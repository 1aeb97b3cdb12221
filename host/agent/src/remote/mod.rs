//! Remote discovery handlers: processes that register on a Unix socket and stream the devices they see (rule 31).
//!
//! Anyone who has a handler for upstream Akri keeps it: `proto/discovery.proto` is the same. What a handler sends is taken as
//! little on trust as what a component returns.

mod codec;
mod convert;
mod dial;
mod endpoints;
mod memory;
mod registration;
mod socket;
mod stream;
mod trust;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use akri_model::grant::Limits;
use akri_model::remote::Endpoints;
use ipnet::IpNet;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::discovery::registry::Handlers;
use endpoints::Shared;
pub use memory::{MemoryError, read_remote_handlers};
use registration::Service;
pub(crate) use stream::{Heard, News, Question, Stream};
use trust::Trust;

/// The socket on which handlers register, in the handler directory.
const SOCKET: &str = "agent-registration.sock";

/// Refusals are logged at most this often: who asks hears of each.
const QUIET: Duration = Duration::from_secs(1);

/// Messages that are decoded at once, of all handlers together.
const DECODING: usize = 2;

/// Who may serve discovery handlers, and how far they are trusted.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The handler directory: the registration socket is made in it, and the sockets of handlers have to be in it.
    pub directory: PathBuf,
    /// Users that may register and serve, beside root and the agent's own.
    pub users: Vec<u32>,
    /// Networks of which handlers may register addresses. What they are asked, secrets included, goes there unencrypted.
    pub networks: Vec<IpNet>,
    /// Whether handlers may name any path of the node in mounts and device specs, as upstream Akri's may; else only
    /// devices below `/dev`.
    pub trust_paths: bool,
    /// How long an endpoint may be offline, or silent on a new stream, before nobody answers for its devices any more.
    pub patience: Duration,
}

impl Settings {
    /// Who may connect is for the kernel to say, unless users are named that may not open the socket otherwise.
    fn socket_mode(&self) -> u32 {
        if self.users.is_empty() { 0o660 } else { 0o666 }
    }

    fn trust(&self) -> Trust {
        let own = [0, rustix::process::geteuid().as_raw()];
        Trust {
            directory: self.directory.clone(),
            users: own.into_iter().chain(self.users.iter().copied()).collect(),
            networks: self.networks.clone(),
        }
    }
}

/// The remote handlers of this node; cheap to clone.
#[derive(Clone)]
pub struct Remote(Arc<Inner>);

struct Inner {
    trust: Arc<Trust>,
    endpoints: Shared,
    limits: Limits,
    trust_paths: bool,
    decoding: Semaphore,
    socket: PathBuf,
    patience: Duration,
}

/// Serves registrations until it is stopped or dropped; the socket goes with it.
pub struct Serving(Vec<JoinHandle<()>>);

impl Serving {
    /// When this returns, the socket is gone. (Dropping only says that it shall go.)
    pub async fn stop(mut self) {
        for task in &mut self.0 {
            task.abort();
            let _ = task.await; // it was aborted, that is all it can say
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Remote {
    /// Recalls the handlers of before and begins to take registrations. That the socket can't be made is logged and tried
    /// again and again: without it, the rest of the agent works.
    pub fn start(settings: Settings, state: &Path, components: watch::Receiver<Arc<Handlers>>) -> (Self, Serving) {
        let (trust, endpoints) = (Arc::new(settings.trust()), Shared::new(state));
        memory::recall(state, &trust, &endpoints);
        let service = Service::new(Arc::clone(&trust), endpoints.clone(), components);
        let remote = Self(Arc::new(Inner {
            trust,
            endpoints: endpoints.clone(),
            limits: Limits::default(),
            trust_paths: settings.trust_paths,
            decoding: Semaphore::new(DECODING),
            socket: settings.directory.join(SOCKET),
            patience: settings.patience,
        }));
        let keeping = tokio::spawn(endpoints.keep(settings.patience));
        let serving = tokio::spawn(registration::serve(settings, service));
        (remote, Serving(vec![keeping, serving]))
    }

    /// All endpoints now, and every change.
    pub(crate) fn endpoints(&self) -> watch::Receiver<Arc<Endpoints>> {
        self.0.endpoints.watch()
    }

    /// How long a new stream may be silent.
    pub(crate) fn patience(&self) -> Duration {
        self.0.patience
    }

    /// Where handlers register.
    pub(crate) fn socket(&self) -> &Path {
        &self.0.socket
    }
}
